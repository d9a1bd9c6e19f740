"""A model without attention answers from its state alone: nothing of it is lost, foreign or faded wrongly.

The mamba model's heads forget at rates from 3 to 2000 tokens, so that each number depends on the whole text. Known
answers come from the recurrence, one token after the other in float64; engines compute prompts in chunks, in parallel,
and go on one by one.
Not decided here: models that mix state-space layers with attention, and prefix caching of states, which is off here.
"""

import numpy as np
import pytest

from fixtures import catches, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, stream

pytestmark = [feature(23, "State-space models"), serve(model="mamba", prefix_cache=False)]

ANSWER = 8  # tokens asked for
# Sums of hundreds of terms in float32, and states that fade over them: some 1e-5 nats. The smallest fault that is tried
# moves numbers by 0.01; where two tokens are closer than twice the tolerance, either may come first.
TOLERANCE = 1e-3
CHUNK = 32  # the model's chunk_size
LENGTHS = [
    1,
    2,
    3,
    4,
    5,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    2 * CHUNK,
    2 * CHUNK + 1,
    5 * CHUNK - 1,
    8 * CHUNK,
    500,
]


def judged(oracle, prompt, choice, tokens=ANSWER):
    """Return what is wrong with a greedy answer and its log-probabilities."""
    answer, seen = oracle.greedy(prompt, tokens), make.ids(oracle, choice.text)
    right = oracle.answer_logprobs(prompt, answer)
    second, first = np.partition(right, -2)[:, -2:].T
    found = agree.problems(seen, answer, margins=first - second, tie_margin=2 * TOLERANCE)
    same = agree.first_difference(seen, answer)
    return found or logprobs.compare(choice.logprobs[:same], right[:same], answer[:same], TOLERANCE)


def asked(client, prompt, tokens=ANSWER, **ask):
    return client.complete(prompt, max_tokens=tokens, temperature=0, logprobs=1, **ask)


@proves
@catches("taken_for_attention")
def test_the_engine_serves_a_model_without_attention(server):
    assert server.fact("attention_free") is True


@catches(
    "state_fades_too_fast",
    "convolution_shifted",
    "skip_lost",
    "keys_for_queries",
    "heads_swapped",
)
@pytest.mark.parametrize("length", LENGTHS)
def test_answers_are_exact_around_the_chunks_of_a_prompt(client, oracle, length):
    prompt = make.words(oracle, length, seed=length)
    assert judged(oracle, prompt, asked(client, prompt).choice) == []


@catches("state_fades_too_fast", "convolution_shifted", "prompt_logprobs_shifted")
@pytest.mark.parametrize("length", [3, 2 * CHUNK + 5, 400])
def test_every_token_of_a_prompt_has_its_log_probability(client, oracle, length):
    text = make.words(oracle, length, seed=50 + length)
    choice = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    right = oracle.logprobs(text[:-1])
    assert logprobs.compare(choice.logprobs[1:length], right, text[1:], TOLERANCE) == []


@catches("state_fades_too_fast", "keys_for_queries")
def test_a_long_answer_goes_on_exactly(client, oracle):
    prompt = make.words(oracle, 45, seed=60)
    assert judged(oracle, prompt, asked(client, prompt, 4 * CHUNK).choice, 4 * CHUNK) == []


@catches("heads_swapped", "skip_lost")
def test_one_step_at_a_time_is_the_same_as_all_at_once(client, oracle):
    """The state after a prompt is that after its beginning and the rest, generated."""
    prompt = make.words(oracle, 20, seed=61)
    grown = oracle.greedy(prompt, CHUNK)
    whole = asked(client, prompt, CHUNK + 4).choice
    rest = asked(client, [*prompt, *grown], 4).choice
    assert judged(oracle, prompt, whole, CHUNK + 4) == []
    assert judged(oracle, [*prompt, *grown], rest, 4) == []


@catches("requests_mixed_up", "state_not_cleared")
@pytest.mark.parametrize("size", [2, 5, 8])
def test_a_crowd_shares_no_state(client, oracle, size):
    prompts = [make.words(oracle, 1 + 43 * n, seed=70 + n) for n in range(2 * size)]
    replies = client.each([*prompts, *prompts], at_once=size, max_tokens=ANSWER, temperature=0, logprobs=1)
    for prompt, reply in zip([*prompts, *prompts], replies, strict=True):
        assert judged(oracle, prompt, reply.choice) == []


@catches("state_not_cleared", "answers_depend_on_others")
def test_prompts_that_take_several_steps_carry_their_state(client, oracle):
    """Together they are longer than any step of an engine with room for 2048 tokens."""
    prompts = [make.words(oracle, 700 + n, seed=90 + n) for n in range(4)]
    for prompt, reply in zip(
        prompts,
        client.each(prompts, at_once=4, max_tokens=ANSWER, temperature=0, logprobs=1),
        strict=True,
    ):
        assert judged(oracle, prompt, reply.choice) == []


@catches("state_not_cleared", "answers_depend_on_others")
def test_the_same_prompt_after_others_is_answered_the_same(client, oracle):
    prompt = make.words(oracle, 100, seed=80)
    first = asked(client, prompt).choice
    for n in range(3):
        asked(client, make.words(oracle, 10 + 60 * n, seed=81 + n))
    again = asked(client, prompt).choice
    assert [judged(oracle, prompt, choice) for choice in (first, again)] == [[], []]


@catches("state_not_cleared", "answers_depend_on_others")
def test_a_request_that_is_given_up_leaves_no_trace(client, oracle):
    left = client.body(
        {"prompt": make.words(oracle, 200, seed=85)},
        max_tokens=1000,
        temperature=0,
        stream=True,
        ignore_eos=True,
    )
    with client.http.stream("POST", "/v1/completions", json=left) as broken:
        next(broken.iter_lines())
    prompt = make.words(oracle, 100, seed=86)
    for _ in range(2):
        assert judged(oracle, prompt, asked(client, prompt).choice) == []


@catches("stream_drops_a_chunk", "stream_drops_logprobs", "done_missing")
@pytest.mark.parametrize("length", [5, 150])
def test_streamed_answers_are_the_same(client, oracle, length):
    prompt = make.words(oracle, length, seed=95)
    whole, streamed = asked(client, prompt, 30), asked(client, prompt, 30, stream=True)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []
