"""Log-probabilities and samples are those of the model, to the last digit that float32 can hold.

The chain model's distribution is known in float64 for every text, so nothing here is compared with a past run.
"""

import math

import numpy as np
import pytest

from fixtures import catches, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, stats, stream

pytestmark = serve(model="chain")

# A logit is a sum of 256 products in float32. Its rounding error is at most 256 * 2**-24 * sum|w*h| (Higham,
# Accuracy and Stability of Numerical Algorithms, 3.1); with sum|w*h| = scale * 2/pi = 7.6 that is 1.2e-4, and a
# log-probability has the error of one logit and of the logarithm of the sum.
TOLERANCE = 2.5e-4
#: A right engine fails a sampling check once in so many runs.
FALSE_ALARM = 1e-6


def after(oracle, prompt, answer):
    """Reference log-probabilities [len(answer), vocab] at the places of the answer's tokens."""
    return oracle.answer_logprobs(prompt, answer)


@catches(
    "logprobs_off_by_1e-3",
    "logprobs_scaled_by_temperature",
    "alternatives_of_another_position",
    "logprob_positive",
    "logprobs_lack_the_last_token",
)
@pytest.mark.parametrize("temperature", [0, 2.0])
def test_generated_tokens_carry_their_exact_logprobs(client, oracle, temperature, record):
    prompt = make.walk(oracle, "main", 50)
    choice = client.complete(
        prompt, max_tokens=60, temperature=temperature, logprobs=5, token_ids=True
    ).choice
    right = after(oracle, prompt, choice.token_ids)
    if temperature and client.catalog.promise("sampled_logprobs") == "scaled":
        right = logprobs.tempered(right, temperature)
    assert logprobs.problems(choice, hidden=oracle.tokenizer.specials) == []
    assert logprobs.compare(choice.logprobs, right, choice.token_ids, TOLERANCE) == []
    divergence = []
    for entry, row in zip(choice.logprobs, right, strict=True):
        assert max(entry.top.values()) == pytest.approx(row.max(), abs=TOLERANCE)
        shown = {token: make.ids(oracle, token) for token in entry.top}
        known = {t: ids[0] for t, ids in shown.items() if len(ids) == 1 and oracle.tokenizer.decode(ids) == t}
        for token, place in known.items():  # others are shown alike
            assert entry.top[token] == pytest.approx(row[place], abs=TOLERANCE)
        divergence.append(
            logprobs.kl(
                with_rest([entry.top[token] for token in known]), with_rest(row[list(known.values())])
            )
        )
    record.number(
        "greatest KL of a position", max(divergence), unit="nats", origin="alternatives against float64"
    )
    record.series(
        f"KL at each position, temperature {temperature}",
        enumerate(divergence),
        x="position",
        y="nats",
        kind="line",
    )


def with_rest(values):
    """Complete some log-probabilities, [k], to a distribution by one outcome for all that is not shown, [k + 1]."""
    return np.append(values, np.log(max(1 - np.exp(values).sum(), np.finfo(np.float32).tiny)))


@catches("greedy_takes_the_second")
def test_greedy_takes_the_likeliest_token(client, oracle):
    for seed in range(4):
        prompt = make.words(oracle, 30, seed)
        reply = client.complete(prompt, max_tokens=20, temperature=0)
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, 20)) == []


@catches("prompt_logprobs_shifted", "logprobs_off_by_1e-3", "echo_ignored")
@pytest.mark.parametrize("length", [2, 33, 500])
def test_a_texts_logprobs_and_perplexity_are_exact(client, oracle, length):
    text = make.words(oracle, length, seed=length)
    choice = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    prompt_part = choice.logprobs[1:length]
    assert choice.logprobs[0].logprob is None
    assert logprobs.compare(prompt_part, oracle.logprobs(text[:-1]), text[1:], TOLERANCE) == []
    measured = logprobs.perplexity([entry.logprob for entry in prompt_part])
    assert measured == pytest.approx(oracle.perplexity(text), rel=math.expm1(TOLERANCE))


@catches("logprobs_off_by_1e-3", "chat_template_changed")
def test_chat_logprobs_are_exact(client, oracle):
    messages = [{"role": "user", "content": "w001w002"}]
    reply = client.chat(messages, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3)
    prompt = oracle.tokenizer.chat(messages)
    answer = oracle.greedy(prompt, 8)
    assert reply.usage["prompt_tokens"] == len(prompt)
    assert agree.problems(make.ids(oracle, reply.text), answer) == []
    assert logprobs.compare(reply.choice.logprobs, after(oracle, prompt, answer), answer, TOLERANCE) == []


@catches(
    "stream_drops_logprobs",
    "done_missing",
    "two_finish_reasons",
    "stream_without_usage",
    "stream_changes_its_id",
)
def test_streamed_logprobs_are_those_of_the_whole_answer(client, oracle):
    prompt, ask = make.walk(oracle, "main", 20), {"max_tokens": 20, "temperature": 0, "logprobs": 3}
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


def samples(client, prompt, count, **ask):
    """Return `count` sampled tokens that follow a prompt."""
    replies = client.each([prompt] * (count // 16), at_once=8, n=16, max_tokens=1, token_ids=True, **ask)
    assert {reply.status for reply in replies} == {200}, replies[0].exchange.body
    drawn = [choice.token_ids[0] for reply in replies for choice in reply.choices]
    assert len(drawn) == count
    return drawn


@catches("temperature_ignored", "sampler_favours_a_token", "n_ignored")
@pytest.mark.parametrize("temperature", [1.0, 1.5, 2.0])
def test_samples_have_the_models_frequencies(client, oracle, temperature, record):
    prompt = make.walk(oracle, "main", 20)
    chances = np.exp(logprobs.tempered(oracle.logprobs(prompt)[-1], temperature))
    drawn = samples(client, prompt, 1024, temperature=temperature)
    # The likeliest token alone, all others in ten groups: any shift of mass between groups is seen.
    group = np.arange(oracle.vocab_size) % 10 + 1
    group[oracle.next(prompt[-1])] = 0
    observed = np.bincount(group[drawn], minlength=11)
    share = stats.wilson(int(observed[0]), len(drawn))
    record.number(
        f"share of the likeliest token, {chances[oracle.next(prompt[-1])]:.4f} by the model",
        share.value,
        interval=(share.low, share.high),
        samples=share.n,
        origin="samples",
    )
    expected = np.bincount(group, weights=chances, minlength=11)
    assert stats.chi_square(observed.tolist(), expected.tolist()) > FALSE_ALARM


@catches("top_k_ignored", "top_p_ignored")
@pytest.mark.parametrize(
    "ask", [{"top_k": 1}, {"top_p": 0.01}, {"top_k": 3}], ids=["top_k1", "top_p", "top_k3"]
)
def test_samples_stay_among_the_admitted_tokens(client, oracle, ask):
    prompt = make.walk(oracle, "main", 20)
    admitted = set(np.argsort(oracle.logprobs(prompt)[-1])[::-1][: ask.get("top_k", 1)].tolist())
    drawn = samples(
        client, prompt, 1024, temperature=2.0, **ask
    )  # 1024: the runners-up have a chance of 1 % each
    assert set(drawn) <= admitted
    assert min(len(admitted), 2) <= len(set(drawn))


@catches("seed_ignored")
def test_a_seed_reproduces_an_answer_alone_and_in_a_crowd(client, oracle):
    prompt = make.walk(oracle, "main", 20)
    ask = {"max_tokens": 20, "temperature": 2.0}
    alone = {seed: client.complete(prompt, seed=seed, **ask).text for seed in (1, 2, 3)}
    assert len(set(alone.values())) == len(alone)
    crowd = client.each([prompt] * 6, at_once=6, seed=1, **ask)
    assert {reply.text for reply in crowd} == {alone[1]}


@catches("answer_does_not_end", "end_reported_as_cut")
def test_the_end_token_ends_an_answer(client, oracle):
    path = oracle.path_to_eos
    reply = client.complete([path[0]] * 2, max_tokens=50, temperature=0)
    assert agree.problems(make.ids(oracle, reply.text), path[1:-1]) == []
    assert reply.choice.finish_reason == "stop"


@catches("sdk_cannot_read_the_answer")
def test_the_openai_sdk_reads_the_answers(client, oracle):
    prompt = oracle.tokenizer.decode(make.walk(oracle, "main", 20))
    answer = oracle.tokenizer.decode(oracle.greedy(oracle.tokenizer.encode(prompt), 8))
    whole = client.openai.completions.create(model=client.model, prompt=prompt, max_tokens=8, temperature=0)
    assert whole.choices[0].text == answer
    chunks = client.openai.completions.create(
        model=client.model, prompt=prompt, max_tokens=8, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == answer
    assert [exchange.status for exchange in client.exchanges] == [200, 200]
