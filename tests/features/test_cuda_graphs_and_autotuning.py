"""Steps replayed from recorded CUDA graphs, with kernels chosen by trial, answer as any others.

Not proved: that a given step was replayed, or which kernel won.
"""

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs

pytestmark = [
    feature(9, "GEMM and MoE autotuning, CUDA graphs"),
    serve(model="lookup", cuda_graphs=each("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE")),
]

ANSWER = 12
# Two layers of float32 with unit-size activations, as in test_prefix_caching.
TOLERANCE = 1e-3
# Graphs are recorded for batches of 1, 2, 4 and multiples of 8; a batch between two is padded to the larger.
AT_ONCE = [1, 3, 9, 17]


def right(oracle, prompt, reply):
    """Judge an answer."""
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []


@proves
@catches("other_settings")
def test_the_mode_that_was_asked_for_is_used(server):
    assert server.fact("cuda_graphs") == dict(server.spec.knobs)["cuda_graphs"]


@catches("requests_mixed_up", "greedy_takes_the_second")
@pytest.mark.parametrize("at_once", AT_ONCE)
def test_batches_of_every_size_are_answered_alike(client, oracle, at_once):
    asked = [make.question(oracle, 30 + 5 * n, seed=n, depth=0.3) for n in range(at_once)]
    replies = client.each(asked, at_once=at_once, max_tokens=ANSWER, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        right(oracle, prompt, reply)


@catches("greedy_takes_the_second")
def test_equal_prompts_at_once_have_equal_answers(client, oracle):
    """vllm#41331: some of them were garbled."""
    prompt = make.question(oracle, 300, seed=40, depth=0.3)
    for reply in client.each([prompt] * 16, at_once=16, max_tokens=ANSWER, temperature=0):
        right(oracle, prompt, reply)


@catches("requests_mixed_up", "greedy_takes_the_second")
def test_short_requests_one_after_the_other_do_not_hang(client, oracle):
    """vllm#40969: the engine stopped at request 8 to 19."""
    for seed in range(24):
        prompt = make.question(oracle, 10 + seed, seed=50 + seed, depth=0.3)
        right(oracle, prompt, client.complete(prompt, max_tokens=ANSWER, temperature=0))


@catches("logprobs_off_by_0.2")
def test_logprobs_are_those_of_the_model(client, oracle):
    prompt = make.question(oracle, 200, seed=41, depth=0.3)
    answer = oracle.greedy(prompt, ANSWER)
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    known = oracle.answer_logprobs(prompt, answer)
    assert logprobs.compare(choice.logprobs, known, answer, TOLERANCE) == []


@proves
@serve(model="lookup", autotune=each(True, False))
@catches("other_settings", "greedy_takes_the_second")
def test_answers_are_the_same_with_kernels_chosen_by_trial_and_without(server, client, oracle):
    """vllm#26381: the trial itself ended the start."""
    assert server.fact("autotune") is dict(server.spec.knobs)["autotune"]
    for n in (20, 150):
        prompt = make.question(oracle, n, seed=60 + n, depth=0.3)
        right(oracle, prompt, client.complete(prompt, max_tokens=ANSWER, temperature=0))
