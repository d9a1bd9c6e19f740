"""What the fake counts agrees with what it answered: cached tokens, drafts, requests."""

import json
import random

import pytest

from fixtures import prompts as make
from fixtures.client import observe
from fixtures.engines.rules import ENGINES
from fixtures.faux.drafting import Lookup
from fixtures.faux.kvcache import Blocks, Radix
from fixtures.judge import counters, prefix
from fixtures.models.drafts import simulate

both = pytest.mark.parametrize("engine", ENGINES)
BLOCKS = {"vllm": 128, "sglang": 1}


@both
def test_hits_are_those_of_block_arithmetic(fake, engine):
    server, history, hits = fake(engine, "chain", prefix_cache=True), [], 0
    rng = random.Random(1)
    base = make.words(server.oracle, 600, seed=1)
    for n in range(30):
        prompt = [*base[: rng.randrange(2, 500)], *make.words(server.oracle, rng.randrange(1, 200), seed=n)]
        salt = rng.choice([None, None, "a", "b"])
        expected = prefix.cached(prompt, history, BLOCKS[engine], salt=salt)
        reply = server.complete(prompt, max_tokens=3, cache_salt=salt)
        assert (reply.cached_tokens or 0) == expected
        first = server.oracle.next(prompt[-1])
        history.append(prefix.stored(prompt, [first, server.oracle.next(first), 0], salt))
        hits += expected
    assert server.counted("prefix_hits") == hits > 0
    assert server.counted("finished_requests") == 30
    assert server.counted("generated_tokens") == 90


@both
def test_a_reset_forgets_and_a_scored_prompt_is_computed(fake, engine):
    server = fake(engine, "chain", prefix_cache=True)
    prompt = make.walk(server.oracle, "main", 300)
    server.complete(prompt, max_tokens=1)
    assert server.complete(prompt, max_tokens=1).cached_tokens
    assert not server.complete(prompt, max_tokens=1, echo=True, logprobs=1).cached_tokens
    call = server.catalog.call("reset_prefix_cache")
    assert server.get(call["path"], call["method"])[0] == 200
    assert not server.complete(prompt, max_tokens=1).cached_tokens


@both
def test_without_a_cache_nothing_hits(fake, engine):
    server = fake(engine, "chain", prefix_cache=False)
    prompt = make.walk(server.oracle, "main", 300)
    for _ in range(2):
        assert not server.complete(prompt, max_tokens=1).cached_tokens
    assert server.counted("prefix_hits") == 0


@both
def test_a_small_cache_forgets_what_was_used_longest_ago(fake, engine):
    server = fake(engine, "chain", prefix_cache=True, kv_tokens=2176)
    asked = [make.words(server.oracle, 700, seed=n) for n in range(5)]
    for prompt in asked:
        assert not server.complete(prompt, max_tokens=3).cached_tokens
    assert server.complete(asked[-1], max_tokens=3).cached_tokens
    assert not server.complete(asked[0], max_tokens=3).cached_tokens


@pytest.mark.parametrize("make_cache", [lambda: Blocks(4, 68), lambda: Radix(64)], ids=["blocks", "radix"])
def test_a_cache_never_tells_of_what_it_was_not_given_and_stays_within_its_room(make_cache):
    rng, cache, history = random.Random(2), make_cache(), []
    block = getattr(cache, "block", 1)
    for _ in range(400):
        tokens = tuple(rng.choices((0, 1), k=rng.randrange(2, 30)))
        assert cache.take(tokens, None) <= prefix.cached(tokens, history, block)
        cache.store(tokens, None)
        history.append(tokens)
        assert cache.take((*tokens, 9), None) == len(tokens) // block * block  # the newest is never lost
        assert cache.held <= cache.room * block


def test_what_a_tree_holds_is_what_it_counts():
    cache = Radix(1000)
    for tokens in ((1, 2, 3), (1, 2, 4, 5), (7,), (1, 2)):
        cache.store(tokens, None)
    cache.store((1, 2), "salted")
    assert cache.held == 8


@both
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("cycle", ["always", "half", "three_quarters", "never"])
def test_drafts_are_counted_as_simulated(fake, engine, cycle, k):
    server = fake(engine, "mimo", mtp=k)
    prompt = make.walk(server.oracle, cycle, 20)
    reply = server.complete(prompt, max_tokens=43, return_spec_tokens_details=True)
    right = simulate(server.oracle.next, server.oracle.draft, prompt[-1], 43, k)
    assert make.ids(server.oracle, reply.text) == server.oracle.greedy(prompt, 43)
    assert server.counted("draft_steps") == right.steps
    if engine == "vllm":
        assert server.counted("drafted_tokens") == right.drafted
        assert server.counted("accepted_tokens") == right.accepted
        places = [server.counted("accepted_tokens_position", position=str(place)) for place in range(k)]
        assert places == list(right.per_position)
    else:
        told = json.loads(reply.exchange.body)["sglext"]["spec_tokens_details"]
        assert told["spec_num_proposed_drafts"] == right.drafted
        assert told["spec_num_correct_drafts"] == right.accepted
        assert (
            sum(n * count for n, count in enumerate(told["spec_correct_drafts_histogram"])) == right.accepted
        )


def test_speculation_changes_no_answer(fake):
    plain = fake("vllm", "mimo")
    asked = {
        "max_tokens": 30,
        "temperature": 1.5,
        "seed": 4,
        "return_token_ids": True,
        "stop": ["w99", "w00"],
    }
    prompt = make.walk(plain.oracle, "half", 20)
    right = plain.complete(prompt, **asked)
    for knobs in ({"mtp": 3}, {"ngram": 3}):
        seen = fake("vllm", "mimo", **knobs).complete(prompt, **asked)
        assert (seen.text, seen.choice.token_ids) == (right.text, right.choice.token_ids)


def test_a_lookup_takes_the_longest_run_at_its_earliest_place():
    drafter = Lookup(3, 2, 4)
    assert drafter.propose([1, 2, 3, 4, 9, 2, 3, 4]) == (9, 2, 3)  # three words match, not four
    assert drafter.propose([1, 2, 7, 1, 2, 8, 1, 2]) == (7, 1, 2)
    assert drafter.propose([5, 5, 5]) == (5,)  # no more follows
    assert drafter.propose([1, 2, 3]) == ()


@both
def test_facts_are_shown_where_the_catalog_looks(fake, engine):
    server = fake(engine, "mimo", mtp=3, prefix_cache=True, kv_tokens=2176, grammar="llguidance")

    class Client:
        catalog = server.catalog

        def send(self, method, path, _=None):
            return server.ask(None, path, method).exchange

    facts = {"prefix_cache": True, "block_size": BLOCKS[engine], "kv_tokens": 2176, "speculative_tokens": 3}
    facts |= {"grammar": "llguidance", "served_name": "oracle"}
    client = Client()
    client.url = ""
    assert {name: observe.fact(client, name) for name in facts} == facts
    assert counters.problems(server.scrape()) == []
