"""Adding up the GPUs' parts and normalising in one kernel gives what the two steps give.

The lookup model's heads write one half of each answer each, so that on two GPUs no answer is right without the sum.
Not proved: that the fused kernel ran, for which no release has an observable; only that the pass was on.
"""

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs

pytestmark = [
    feature(22, "All-reduce and RMSNorm fusion"),
    serve(model="lookup", all_reduce_fusion=each(True, False)),
]

ANSWER = 8
# Two layers of float32 with unit-size activations, as in test_prefix_caching; the sum has two terms more.
TOLERANCE = 1e-3


@proves
@catches("other_settings")
def test_the_fusion_is_as_it_was_asked_for(server):
    assert server.fact("all_reduce_fusion") is dict(server.spec.knobs)["all_reduce_fusion"]
    assert server.fact("tensor_parallel") == 2


@catches("greedy_takes_the_second", "logprobs_off_by_0.2")
@pytest.mark.parametrize("length", [2, 16, 127, 512, 900])
def test_the_sum_is_exact_for_few_tokens_and_many(client, oracle, length):
    """A fused kernel is used up to a size of the message, so that short and long prompts take different ways."""
    prompt = make.question(oracle, length, seed=length, depth=0.3)
    answer = oracle.greedy(prompt, ANSWER)
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    right = oracle.answer_logprobs(prompt, answer)
    assert agree.problems(make.ids(oracle, choice.text), answer) == []
    assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []


@catches("requests_mixed_up", "greedy_takes_the_second")
@pytest.mark.parametrize("at_once", [3, 8])
def test_a_crowd_is_answered_as_each_alone(client, oracle, at_once):
    asked = [make.question(oracle, 25 + 13 * n, seed=n, depth=0.5) for n in range(8)]
    replies = client.each(asked, at_once=at_once, max_tokens=ANSWER, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
