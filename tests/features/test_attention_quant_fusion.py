"""Attention that writes its output as FP8 itself answers as attention and quantization one after the other.

Not proved: that the fused kernel ran, for which no release has an observable; only that the pass was on.
"""

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree

pytestmark = [
    feature(21, "Attention and quantization fusion"),
    serve(model="lookup", attention_quant_fusion=each(True, False)),
]

ANSWER = 8


@proves
@catches("other_settings")
def test_the_fusion_is_as_it_was_asked_for(server):
    assert server.fact("attention_quant_fusion") is dict(server.spec.knobs)["attention_quant_fusion"]


@catches("greedy_takes_the_second")
@pytest.mark.parametrize("length", [2, 17, 128, 129, 700])
def test_lookups_are_answered_with_the_fusion_and_without(client, oracle, length):
    """The lookup's answers lead by nats, which FP8's three bits of mantissa do not turn round."""
    prompt = [*make.question(oracle, length, seed=length, depth=0.3)]
    reply = client.complete(prompt, max_tokens=ANSWER, temperature=0)
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []


@catches("requests_mixed_up")
def test_a_crowd_is_answered_as_each_alone(client, oracle):
    asked = [make.question(oracle, 30 + 40 * n, seed=n, depth=0.5) for n in range(10)]
    replies = client.each(asked, at_once=10, max_tokens=ANSWER, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
