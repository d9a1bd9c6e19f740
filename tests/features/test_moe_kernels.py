"""Each token's few experts compute its answer, each in its proportion, whatever else is in the batch.

The answer of the moe model is what its experts write: 8 in each of two layers, of which a token takes 2. One that is
lost, swapped or weighted otherwise changes log-probabilities by nats and most tokens.

Which kernel computed is shown by vLLM's log alone; SGLang shows what it was set to. Fusion of kernels, and kernels for
quantised experts, cannot be told from outside.
"""

import numpy as np
import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, stream

pytestmark = [
    feature(6, "MoE kernels and fusion"),
    serve(model="moe", moe_backend=each("auto", "triton"), prefix_cache=True),
]

# An answer is a chain of seven float32 products of up to 256 terms, each with an error of about
# sqrt(256) * 2**-24 = 1e-6 of its result; on a logit of 12 that is 1e-4. The quietest expert moves a nat.
TOLERANCE = 5e-4
TEXT = 200  # words, of any class
ANSWER = 24


def words(oracle, n, seed):
    """Return n words, none of which leads to an end."""
    return make.words(oracle, n, seed, avoid=oracle.path_to_eos)


def used(oracle, ids):
    """The experts that each layer takes anywhere in a text."""
    return [set(layer.ravel().tolist()) for layer in oracle.reference.routes(ids)]


def check_prompt(client, oracle, text):
    """Judge the log-probabilities of a text's own tokens."""
    choice = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    right = oracle.logprobs(text[:-1])
    assert logprobs.compare(choice.logprobs[1 : len(text)], right, text[1:], TOLERANCE) == []


def check_answer(oracle, prompt, reply):
    """Judge the tokens of an answer, and their log-probabilities."""
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    assert agree.problems(make.ids(oracle, reply.text), answer) == []
    assert logprobs.compare(reply.choice.logprobs, right, answer, TOLERANCE) == []


@proves
@catches("other_settings", "experts_swapped")
def test_the_experts_are_computed_as_the_server_was_told(server, client, oracle):
    assert server.fact("moe_backend") == dict(server.spec.knobs)["moe_backend"]
    check_prompt(client, oracle, words(oracle, 60, seed=1))


@proves
@catches("experts_swapped")
def test_the_log_names_the_architecture(server, client, oracle):
    assert server.fact("architecture") == "Qwen3MoeForCausalLM"
    check_prompt(client, oracle, words(oracle, 60, seed=1))


@proves
@catches("experts_swapped")
def test_the_log_names_the_kernel(server, client, oracle):
    assert "Experts" in server.fact("moe_kernel")
    check_prompt(client, oracle, words(oracle, 60, seed=1))


@catches(
    "experts_swapped",
    "expert_lost",
    "router_rows_swapped",
    "one_expert_less",
    "expert_weights_normalised_otherwise",
    "logprobs_off_by_1e-3",
)
def test_every_expert_adds_its_share(client, oracle):
    text = words(oracle, TEXT, seed=2)
    assert used(oracle, text) == [set(range(8))] * 2
    check_prompt(client, oracle, text)


@catches("experts_swapped", "expert_lost", "router_rows_swapped", "greedy_takes_the_second")
def test_greedy_answers_and_their_logprobs_are_exact(client, oracle):
    for seed in range(3):
        prompt = words(oracle, 20, seed)
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1)
        check_answer(oracle, prompt, reply)


@catches("expert_lost", "requests_mixed_up")
def test_a_crowd_of_eight_is_as_exact_as_each_alone(client, oracle):
    asked = [words(oracle, 10 * n, seed=10 + n) for n in range(1, 9)]
    alone, crowd = (
        client.each(asked, at_once=at_once, max_tokens=ANSWER, temperature=0, logprobs=1)
        for at_once in (1, 8)
    )
    for prompt, one, other in zip(asked, alone, crowd, strict=True):
        check_answer(oracle, prompt, one)
        check_answer(oracle, prompt, other)


@pytest.mark.parametrize("cycle", ["one", "even"])
@catches("experts_swapped", "logprobs_off_by_1e-3")
def test_a_batch_for_two_experts_is_as_exact_as_one_for_all(client, oracle, cycle):
    """Of the words of "one", all go to the same two experts of a layer: the greatest imbalance that there is."""
    walked = oracle.cycle(cycle)
    text = [walked[n % len(walked)] for n in range(192)]
    load = [np.bincount(layer.ravel(), minlength=8).tolist() for layer in oracle.reference.routes(text)]
    assert [sorted(counts) for counts in load] == [{"one": [0] * 6 + [192] * 2, "even": [48] * 8}[cycle]] * 2
    check_prompt(client, oracle, text)
    prompt = text[:160]
    check_answer(oracle, prompt, client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1))


@catches("stream_drops_logprobs", "done_missing", "two_finish_reasons")
def test_streamed_answers_are_the_same(client, oracle):
    prompt, ask = words(oracle, 20, seed=3), {"max_tokens": ANSWER, "temperature": 0, "logprobs": 1}
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@catches("expert_lost", "drift_when_cached", "cache_off")
def test_answers_are_the_same_when_the_beginning_is_cached(client, oracle):
    prompt = words(oracle, 300, seed=4)
    replies = client.each([prompt] * 2, max_tokens=ANSWER, temperature=0, logprobs=1)
    assert replies[1].cached_tokens
    for reply in replies:
        check_answer(oracle, prompt, reply)


@serve(model="moe", chunk=64, prefix_cache=False)
@catches("expert_lost", "experts_swapped", "cache_cannot_be_switched_off")
def test_prompts_computed_in_parts_and_never_cached_give_the_same(server, client, oracle):
    assert server.fact("chunk") == 64
    assert server.fact("prefix_cache") is False
    asked = [words(oracle, 150, seed=20 + n) for n in range(4)]
    for prompt, reply in zip(
        asked, client.each(asked, at_once=4, max_tokens=ANSWER, temperature=0, logprobs=1), strict=True
    ):
        check_answer(oracle, prompt, reply)
    again = client.complete(asked[0], max_tokens=ANSWER, temperature=0, logprobs=1)
    assert not again.cached_tokens
    check_answer(oracle, asked[0], again)
    check_prompt(client, oracle, asked[0])
