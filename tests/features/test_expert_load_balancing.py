"""Experts are copied and moved between GPUs while serving, and no answer changes by it.

Not proved: that the load becomes more even; only that experts were moved.
"""

import pytest

from fixtures import catches, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs

EVERY = 32  # engine steps from one rearrangement to the next
pytestmark = [
    feature(2, "Expert-parallel load balancing (EPLB)"),
    serve(model="moe", expert_balance=EVERY, prefix_cache=False),
]

ANSWER = 16
TOLERANCE = 1e-3  # one layer of float32 with unit-size activations


def answered(client, oracle, seed):
    """Ask for an answer and its log-probabilities, and judge both."""
    prompt = make.words(oracle, 60, seed)
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    assert agree.problems(make.ids(oracle, choice.text), answer) == []
    assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []


@proves
@catches("other_settings")
def test_the_balancer_is_on(server):
    assert server.fact("expert_balance") == EVERY


@proves
@catches("greedy_takes_the_second", "logprobs_off_by_0.2")
def test_answers_before_and_after_experts_were_moved_are_the_same(server, client, oracle):
    """sglang#17162: the first rearrangement turned answers into noise."""
    for seed in range(1 + 4 * EVERY // ANSWER):  # each asks for ANSWER steps, so that several periods pass
        answered(client, oracle, seed)
    assert server.fact("experts_rearranged") is not None
    answered(client, oracle, 0)


@catches("requests_mixed_up", "greedy_takes_the_second")
@pytest.mark.parametrize("at_once", [4, 16])
def test_a_crowd_is_answered_while_experts_move(client, oracle, at_once):
    asked = [make.words(oracle, 20 + n, seed=100 + n) for n in range(32)]
    replies = client.each(asked, at_once=at_once, max_tokens=ANSWER, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []


@catches("greedy_takes_the_second", "logprobs_off_by_0.2")
def test_a_load_that_falls_on_one_word_is_answered_as_any_other(client, oracle):
    """Always the same word: its experts carry all the load, and are the ones that are copied."""
    word = make.words(oracle, 1, seed=7)
    prompt = word * 40
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    for _ in range(3 * EVERY // ANSWER):
        choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
        assert agree.problems(make.ids(oracle, choice.text), answer) == []
        assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []
