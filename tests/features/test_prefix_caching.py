"""The beginning of a prompt that was computed before is taken from the cache, and no answer changes by it.

The lookup model copies from the prompt, so that an answer depends on the cached keys and values: a block that
is stale, foreign or lost changes a token.
"""

import pytest

from fixtures import catches, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, prefix

pytestmark = [feature("25a", "Prefix caching"), serve(model="lookup", prefix_cache=True)]

ANSWER = 6  # tokens asked for
# Two layers of float32 with unit-size activations: rounding stays well under this; a wrong key moves nats.
TOLERANCE = 1e-3


class Conversation:
    """Asks prompts one after the other and knows from arithmetic how much of each is in the cache."""

    def __init__(self, client, oracle, block):
        self.client, self.oracle, self.block, self.history = client, oracle, block, []

    def expect(self, prompt, salt=None):
        return prefix.cached(prompt, self.history, self.block, salt=salt)

    def ask(self, prompt, salt=None):
        """Return (reply, cached tokens by arithmetic), after judging the answer."""
        expected = self.expect(prompt, salt)
        reply = self.client.complete(prompt, max_tokens=ANSWER, temperature=0, salt=salt)
        answer = self.oracle.greedy(prompt, ANSWER)
        assert agree.problems(make.ids(self.oracle, reply.text), answer) == []
        self.history.append(prefix.stored(prompt, answer, salt))
        return reply, expected


@pytest.fixture
def talk(client, oracle, server):
    client.reset_prefix_cache()
    return Conversation(client, oracle, server.fact("block_size"))


def saved(reply):
    """Cached tokens as the reply counts them; engines leave the field out when there are none."""
    return reply.cached_tokens or 0


@proves
@catches("cache_off", "hit_counter_frozen")
def test_the_cache_is_on_and_counts_its_hits(server, oracle, talk, counters):
    assert server.fact("prefix_cache") is True
    prompt = make.question(oracle, 600, seed=1)
    talk.ask(prompt)
    with counters() as seen:
        _, expected = talk.ask(prompt)
    assert seen["prefix_hits"] == expected > 0


@catches("cache_off", "cached_tokens_off_by_one", "hits_beyond_the_block", "cached_tokens_not_told")
@pytest.mark.parametrize(("blocks", "more"), [(1, -1), (1, 0), (1, 1), (3, -1), (3, 0), (3, 1), (5, 17)])
def test_a_repeated_prompt_hits_its_whole_blocks(talk, oracle, blocks, more):
    length = blocks * max(talk.block, 100) + more  # with pages of one token any length has all its blocks
    prompt = make.question(oracle, length, seed=10 * blocks + more)
    first, none = talk.ask(prompt)
    again, expected = talk.ask(prompt)
    assert (saved(first), none) == (0, 0)
    assert saved(again) == expected == (length - 1) // talk.block * talk.block


@catches("hits_beyond_the_prefix", "stale_block")
def test_a_shared_beginning_hits_and_different_endings_do_not(talk, oracle):
    shared = make.words(oracle, 400, seed=2)
    for seed in range(3):
        tail = make.words(oracle, 150, seed=20 + seed, avoid=shared)
        reply, expected = talk.ask([*shared, *tail, shared[200]])
        assert saved(reply) == expected
    assert expected == 400 // talk.block * talk.block


@catches("stale_block", "generated_tokens_not_cached")
def test_a_branching_conversation_hits_up_to_the_branch(talk, oracle):
    first = make.question(oracle, 300, seed=3, depth=0.3)
    reply, _ = talk.ask(first)
    turn = [*first, *make.ids(oracle, reply.text)]
    more = make.words(oracle, 400, seed=31, avoid=turn)
    for branch in (more[:200], more[200:]):
        prompt = [*turn, *branch, branch[50]]
        reply, expected = talk.ask(prompt)
        assert saved(reply) == expected >= len(turn) // talk.block * talk.block - talk.block
        deeper = [*prompt, *make.ids(oracle, reply.text), branch[120]]
        reply, expected = talk.ask(deeper)
        assert saved(reply) == expected > len(turn) - talk.block


@catches("reset_ignored")
def test_nothing_is_cached_after_a_reset(talk, oracle):
    prompt = make.question(oracle, 500, seed=4)
    talk.ask(prompt)
    assert saved(talk.ask(prompt)[0]) > 0
    talk.client.reset_prefix_cache()
    talk.history.clear()
    reply, expected = talk.ask(prompt)
    assert saved(reply) == expected == 0


@catches("salt_ignored")
def test_salts_keep_tenants_apart(talk, oracle):
    prompt = make.question(oracle, 500, seed=5)
    seen = [saved(talk.ask(prompt, salt)[0]) for salt in ("a", "a", "b", None, "b", None)]
    hit = 499 // talk.block * talk.block
    assert seen == [0, hit, 0, 0, hit, hit]


@catches("stale_block", "drift_when_cached")
@pytest.mark.usefixtures("talk")
@pytest.mark.parametrize("depth", [0.01, 0.5, 0.98])
def test_cached_and_uncached_answers_are_the_same(oracle, client, depth):
    prompt = make.question(oracle, 700, seed=6, depth=depth)
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    for _ in range(2):
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1)
        choice = reply.choice
        assert agree.problems(make.ids(oracle, choice.text), answer) == []
        assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []
    assert saved(reply) > 0


@catches("stale_prompt_logprobs", "echo_ignored")
def test_prompt_logprobs_do_not_depend_on_what_is_cached(talk, oracle, client):
    prompt = make.question(oracle, 400, seed=7)
    talk.ask(prompt)
    for text in (prompt, [*prompt[:200], *make.words(oracle, 100, seed=71, avoid=prompt)], prompt):
        right = oracle.logprobs(text[:-1])
        choice = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
        prompt_part = choice.logprobs[1 : len(text)]
        assert choice.logprobs[0].logprob is None
        assert logprobs.compare(prompt_part, right, text[1:], TOLERANCE) == []


@catches("stale_block", "usage_and_counter_disagree")
def test_identical_prompts_at_once_all_get_the_answer(talk, oracle, client, counters):
    prompt = make.question(oracle, 600, seed=8)
    answer, most = oracle.greedy(prompt, ANSWER), 599 // talk.block * talk.block
    with counters() as seen:
        replies = client.each([prompt] * 8, at_once=8, max_tokens=ANSWER, temperature=0)
    for reply in replies:
        assert agree.problems(make.ids(oracle, reply.text), answer) == []
        assert saved(reply) % talk.block == 0
        assert saved(reply) <= most
    assert seen["prefix_hits"] == sum(saved(reply) for reply in replies)
    talk.history.append(prefix.stored(prompt, answer))
    assert saved(talk.ask(prompt)[0]) == most


@pytest.mark.usefixtures("talk")
@catches("usage_and_counter_disagree", "hit_counter_frozen", "counter_falls")
def test_replies_and_counters_tell_the_same(oracle, client, counters, record):
    asked = [make.question(oracle, n, seed=9) for n in (150, 300, 300, 450, 600)]
    with counters() as seen:
        replies = client.each(asked, max_tokens=ANSWER, temperature=0)
    hits, tokens = int(seen["prefix_hits"]), int(seen["prompt_tokens"])
    record.number(
        "prefix hit rate", hits / tokens, unit="of prompt tokens", samples=tokens, origin="counters"
    )
    record.series(
        "Prompt tokens taken from the cache",
        [
            (f"{n}: {len(prompt)} tokens", saved(r))
            for n, (prompt, r) in enumerate(zip(asked, replies, strict=True), 1)
        ],
        x="request",
        y="cached tokens",
    )
    assert seen["prefix_hits"] == sum(saved(reply) for reply in replies) > 0
    assert seen["prompt_tokens"] == sum(len(prompt) for prompt in asked)
    assert seen["generated_tokens"] == ANSWER * len(asked)
    assert seen.problems() == []


@serve(model="lookup", prefix_cache=True, kv_tokens=2176)
@catches("eviction_corrupts", "cache_never_evicts")
def test_eviction_loses_hits_and_never_answers(talk, oracle, server):
    room = server.fact("kv_tokens")
    asked = [make.question(oracle, 700, seed=100 + n, depth=0.2) for n in range(5)]
    assert sum(len(prompt) for prompt in asked[1:]) > room  # the first cannot have survived the others
    for prompt in asked:
        assert saved(talk.ask(prompt)[0]) == 0
    latest, expected = talk.ask(asked[-1])
    assert saved(latest) == expected > 0
    reply, if_it_had_stayed = talk.ask(asked[0])
    assert saved(reply) == 0 < if_it_had_stayed


@serve(model="lookup", prefix_cache=True, kv_tokens=2176)
@pytest.mark.usefixtures("talk")
@catches("eviction_corrupts")
def test_a_crowd_beyond_the_cache_is_served_in_turn(oracle, client, server, record):
    asked = [make.question(oracle, 600, seed=200 + n, depth=n / 10) for n in range(8)]
    assert sum(len(prompt) for prompt in asked) > server.fact("kv_tokens")
    replies = client.each(asked, at_once=8, max_tokens=ANSWER, temperature=0)
    record.series(
        "End-to-end time of 8 requests at once",
        [(n, reply.exchange.elapsed) for n, reply in enumerate(replies)],
        x="request",
        y="seconds",
        kind="histogram",
    )
    for prompt, reply in zip(asked, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []


@serve(model="lookup", prefix_cache=False)
@catches("cache_cannot_be_switched_off")
def test_without_the_cache_nothing_hits_and_answers_are_the_same(server, oracle, client, counters):
    assert server.fact("prefix_cache") is False
    prompt = make.question(oracle, 600, seed=1)
    with counters() as seen:
        replies = client.each([prompt] * 2, max_tokens=ANSWER, temperature=0)
    assert [saved(reply) for reply in replies] == [0, 0]
    assert seen["prefix_hits"] == 0
    for reply in replies:
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
