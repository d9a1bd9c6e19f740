"""Hyper-connections mix four streams so that the known answer comes out, fused or not.

V4's oracle sends each token's embedding through the mixing of every layer: a wrong weight of the streams, a lost
stream or a wrong normalisation changes the log-probabilities. Not proved: that the fused kernel ran, for which no
release has an observable. The unfused run is the float64 reference.
"""

import pytest

from fixtures import catches, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs

pytestmark = [feature(15, "MHC fusion"), serve(model="v4", prefix_cache=True)]

ANSWER = 30
# The streams are bfloat16: 2**-8 of a logit of 12 is 0.05, for the right token's logit and for the sum of all.
TOLERANCE = 0.1


@proves
@catches("other_settings")
def test_the_engine_serves_v4_as_it_was_asked_to(server):
    assert server.fact("prefix_cache") is True


@catches("logprobs_off_by_0.2", "greedy_takes_the_second")
@pytest.mark.parametrize("length", [2, 3, 16, 17, 129, 700])
def test_logprobs_are_the_models_for_few_tokens_and_many(client, oracle, length):
    """vllm#46796: the fused product before the norm did not start for some shapes."""
    prompt = make.walk(oracle, "half", length)
    answer = oracle.greedy(prompt, ANSWER)
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    right = oracle.answer_logprobs(prompt, answer)
    assert agree.problems(make.ids(oracle, choice.text), answer) == []
    assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []


@catches("prompt_logprobs_shifted")
def test_every_position_of_a_prompt_is_mixed_alike(client, oracle):
    prompt = [*make.walk(oracle, "always", 150), *make.words(oracle, 150, seed=1)]
    choice = client.complete(prompt, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    right = oracle.logprobs(prompt[:-1])
    assert logprobs.compare(choice.logprobs[1 : len(prompt)], right, prompt[1:], TOLERANCE) == []


@catches("requests_mixed_up")
@pytest.mark.parametrize("at_once", [3, 16])
def test_a_crowd_is_mixed_as_each_alone(client, oracle, at_once):
    asked = [make.words(oracle, 5 + 17 * n, seed=n, avoid=oracle.path_to_eos) for n in range(16)]
    replies = client.each(asked, at_once=at_once, max_tokens=ANSWER, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
