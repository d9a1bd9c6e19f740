"""Whatever length a text has, its compressed cache is read to the right place.

V4 keeps each layer's cache as it is, compressed 4 to 1, or 128 to 1, beside a window of 128 tokens. Its answers are
known here for any text, but do not come from the cache: what is proved is that no length breaks the arithmetic of
blocks, not that what was compressed is read back right.
"""

import pytest

from fixtures import catches, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree

pytestmark = [feature(14, "KV compression (c4, c128, SWA)"), serve(model="v4", prefix_cache=True)]

ANSWER = 12
GROUP, LONG, WINDOW = 4, 128, 128  # tokens that are compressed to one, in two kinds of layers; the window
EDGES = sorted({edge + more for edge in (LONG, 2 * LONG, 4 * LONG) for more in range(-GROUP, GROUP + 1)})


def right(oracle, prompt, reply, n=ANSWER):
    """Judge an answer."""
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, n)) == []


@proves
@catches("other_settings")
def test_a_block_holds_whole_groups_of_every_kind(server):
    assert server.fact("prefix_cache") is True
    assert server.fact("block_size") % LONG == 0


@catches("greedy_takes_the_second")
@pytest.mark.parametrize("length", EDGES)
def test_prompts_around_every_edge_of_compression_are_answered(client, oracle, length):
    """vllm#55927: with a prompt of 3 modulo 4 tokens, the last digit of a number was wrong."""
    prompt = make.words(oracle, length, seed=length, avoid=oracle.path_to_eos)
    right(oracle, prompt, client.complete(prompt, max_tokens=ANSWER, temperature=0))


@catches("drop_drafted_token", "answer_longer_than_asked")
@pytest.mark.parametrize("length", [LONG - 6, 2 * LONG - 6, WINDOW + GROUP - 2])
def test_an_answer_may_cross_an_edge_while_it_grows(client, oracle, length):
    prompt = make.walk(oracle, "half", length)
    tokens = 3 * GROUP + 2
    right(oracle, prompt, client.complete(prompt, max_tokens=tokens, temperature=0), tokens)


@catches("cache_off", "cached_tokens_off_by_one")
@pytest.mark.parametrize("more", [-1, 0, 1, 3])
def test_a_repeated_prompt_hits_at_every_length(server, client, oracle, more):
    """vllm#42948, vllm#51441: no hit at most lengths."""
    client.reset_prefix_cache()
    block = server.fact("block_size")
    prompt = make.walk(oracle, "always", 3 * block + more)
    for cached in (0, (len(prompt) - 1) // block * block):
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0)
        right(oracle, prompt, reply)
        assert (reply.cached_tokens or 0) == cached


@catches("requests_mixed_up")
def test_texts_of_all_residues_at_once_are_kept_apart(client, oracle):
    asked = [make.words(oracle, 120 + n, seed=n, avoid=oracle.path_to_eos) for n in range(16)]
    replies = client.each(asked, at_once=16, max_tokens=ANSWER, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        right(oracle, prompt, reply)
