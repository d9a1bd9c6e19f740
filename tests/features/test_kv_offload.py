"""KV blocks that the cache has lost come back from a second tier, and no answer changes by it.

The lookup model answers from cached keys and values, so that a block that comes back wrong changes a token. On a CPU
the tier is vLLM's file connector, an example; the offloading of KV to the CPU's memory, LMCache and HiCache need CUDA.
It finds a prompt by all its whole blocks together, hence prompts here repeat, or share all whole blocks.

Not proved: prefill and decoding split between two servers that share the files, which need two servers at once.
"""

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, prefix

OFFLOAD = each("file", "cpu", "lmcache", "hicache")
pytestmark = [
    feature(24, "KV offload tiers"),
    serve(model="lookup", prefix_cache=True, offload=OFFLOAD),
]

ANSWER = 6  # tokens asked for
TOLERANCE = 1e-3  # derived in test_prefix_caching


@pytest.fixture
def ask(client, oracle):
    """Ask for the answer to a prompt and judge it; say what was taken from any tier."""

    def asked(prompt, salt=None, **more):
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0, salt=salt, **more)
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
        return reply.cached_tokens or 0

    return asked


@pytest.fixture
def due(server):
    """The hits on a prompt that was asked before, by arithmetic."""
    return lambda prompt: prefix.cached(prompt, [prompt], server.fact("block_size"))


@proves
@catches("tier_off", "external_hits_not_counted", "external_hits_counted_as_local")
def test_the_tier_is_on_and_each_source_counts_its_own(server, oracle, client, ask, due, counters):
    assert server.fact("offload") == dict(server.spec.knobs)["offload"]
    prompt = make.question(oracle, 600, seed=1)
    with counters() as first:
        ask(prompt)
    client.reset_prefix_cache()
    with counters() as seen:
        taken = ask(prompt)
    with counters() as again:
        ask(prompt)
    assert taken == due(prompt) > 0
    assert [(one["prefix_hits"], one["external_hits"]) for one in (first, seen, again)] == [
        (0, 0),
        (0, taken),
        (taken, 0),
    ]
    assert seen["external_queries"] > 0


@catches("tier_off", "tier_block_stale")
@pytest.mark.parametrize("length", [255, 256, 257, 258, 300, 640])
def test_a_prompt_comes_back_whatever_its_length(server, oracle, client, ask, due, length):
    """One token before, at and after the end of a block.

    vLLM's file tier looks for a prompt without its last two tokens and keeps one without its last, so that it misses
    one that ends a token after a block: no wrong answer, and no hit beyond the prompt's.
    """
    prompt, block = make.question(oracle, length, seed=length), server.fact("block_size")
    ask(prompt)
    client.reset_prefix_cache()
    taken = ask(prompt)
    assert taken == due(prompt) or (length % block == 1 and taken in range(0, due(prompt), block))


@catches("tier_block_stale")
def test_what_is_in_both_tiers_is_taken_once(oracle, ask, due):
    for length in (300, 513):
        prompt = make.question(oracle, length, seed=1000 + length)
        assert [ask(prompt) for _ in range(3)] == [0, due(prompt), due(prompt)]


@catches("tier_block_stale", "drift_when_cached")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("depth", [0.01, 0.5, 0.98])
def test_blocks_that_come_back_give_the_same_logprobs(oracle, client, due, depth, streamed):
    prompt = make.question(oracle, 700, seed=2, depth=depth)
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    for _ in range(2):
        client.reset_prefix_cache()
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1, stream=streamed)
        assert agree.problems(make.ids(oracle, reply.text), answer) == []
        assert logprobs.compare(reply.choice.logprobs, right, answer, TOLERANCE) == []
    assert reply.cached_tokens == due(prompt)


@catches("prompt_logprobs_wrong_in_later_parts")
def test_prompt_logprobs_do_not_depend_on_what_comes_back(oracle, client, ask):
    prompt = make.question(oracle, 400, seed=3)
    ask(prompt)
    client.reset_prefix_cache()
    choice = client.complete(prompt, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    right = oracle.logprobs(prompt[:-1])
    assert logprobs.compare(choice.logprobs[1 : len(prompt)], right, prompt[1:], TOLERANCE) == []


@catches("tier_off", "tier_block_stale")
def test_endings_that_differ_share_whole_blocks(server, oracle, client, ask):
    block = server.fact("block_size")
    shared = make.words(oracle, 4 * block, seed=4)
    tails = make.words(oracle, 60, seed=5, avoid=shared)
    ask([*shared, *tails[:30], shared[7]])
    for tail in (tails[30:], tails[10:45]):
        client.reset_prefix_cache()
        assert ask([*shared, *tail, shared[300]]) == 4 * block


@catches("hits_beyond_the_prefix", "tier_block_stale")
def test_a_prompt_with_another_beginning_takes_no_block(server, oracle, client, ask):
    prompt = make.question(oracle, 600, seed=6)
    ask(prompt)
    client.reset_prefix_cache()
    other = [*make.words(oracle, 1, seed=7, avoid=prompt), *prompt[1:]]
    assert ask(other) == 0
    shorter = [*prompt[:200], prompt[100]]  # what is shared may come back, and nothing else
    assert ask(shorter) <= 200 // server.fact("block_size") * server.fact("block_size")


@catches("tier_ignores_salts")
def test_salts_keep_tenants_apart_in_the_tier(oracle, client, ask, due):
    prompt = make.question(oracle, 500, seed=8)
    seen = []
    for salt in ("a", "a", "b", None):
        client.reset_prefix_cache()
        seen.append(ask(prompt, salt))
    assert seen == [0, due(prompt), 0, 0]


@catches("tier_block_stale", "requests_mixed_up")
def test_a_crowd_comes_back(oracle, client, due):
    """Three prompts fit into one step: what a step computes of a longer crowd in parts is another test's."""
    asked = [make.question(oracle, 600, seed=20 + n, depth=0.3 * n + 0.1) for n in range(3)]
    for _ in range(2):
        client.reset_prefix_cache()
        replies = client.each(asked, at_once=3, max_tokens=ANSWER, temperature=0)
        for prompt, reply in zip(asked, replies, strict=True):
            assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
    assert [reply.cached_tokens for reply in replies] == [due(prompt) for prompt in asked]


@serve(model="lookup", prefix_cache=True, kv_tokens=2176, offload=OFFLOAD)
@catches("eviction_corrupts")
def test_what_was_evicted_comes_back(server, oracle, ask, due):
    asked = [make.question(oracle, 700, seed=40 + n, depth=0.2) for n in range(5)]
    assert sum(len(prompt) for prompt in asked[1:]) > server.fact("kv_tokens")  # the first has been evicted
    assert [ask(prompt) for prompt in asked] == [0] * 5
    assert [ask(prompt) for prompt in asked] == [due(prompt) for prompt in asked]


@serve(model="lookup", prefix_cache=True, chunk=64, offload=OFFLOAD)
@catches("tier_block_stale")
def test_a_prompt_computed_in_parts_comes_back_whole(oracle, client, ask):
    prompt = make.question(oracle, 300, seed=50)
    ask(prompt)
    client.reset_prefix_cache()
    ask(prompt)
