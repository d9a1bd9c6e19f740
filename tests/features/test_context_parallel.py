"""A text that is split among GPUs is answered as on one.

vLLM splits the cache while it decodes, SGLang the prompt while it is read (DSA context parallelism).
"""

import pytest

from fixtures import catches, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs

pytestmark = [feature("25c", "Context parallelism"), serve(model="v4", prefix_cache=True, context_parallel=2)]

ANSWER = 12
TOLERANCE = 0.1  # bfloat16 streams, as in test_mhc_fusion


@proves
@catches("other_settings")
def test_two_gpus_share_a_text(server):
    assert server.fact("context_parallel") == 2


@catches("greedy_takes_the_second", "logprobs_off_by_0.2")
@pytest.mark.parametrize("length", [2, 3, 7, 8, 15, 16, 17, 127, 129, 1000])
def test_a_text_may_be_shorter_than_its_parts(client, oracle, length):
    """sglang#18280: with fewer than eight new tokens in a part, the indexer read the scales of another place."""
    prompt = make.walk(oracle, "always", length)
    answer = oracle.greedy(prompt, ANSWER)
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    right = oracle.answer_logprobs(prompt, answer)
    assert agree.problems(make.ids(oracle, choice.text), answer) == []
    assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []


@catches("cache_off", "cached_tokens_off_by_one")
@pytest.mark.parametrize("fresh", [1, 5, 9])
def test_few_new_tokens_after_a_cached_beginning_are_answered(server, client, oracle, fresh):
    client.reset_prefix_cache()
    block = server.fact("block_size")
    prompt = make.walk(oracle, "always", 512 + fresh)
    for cached in (0, (len(prompt) - 1) // block * block):
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0)
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
        assert (reply.cached_tokens or 0) == cached


@catches("requests_mixed_up", "drop_drafted_token")
def test_a_crowd_of_long_and_short_texts_is_answered(client, oracle):
    """vllm#41623: unrelated text."""
    asked = [make.words(oracle, 3 + 67 * n, seed=n, avoid=oracle.path_to_eos) for n in range(12)]
    replies = client.each(asked, at_once=12, max_tokens=ANSWER, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
