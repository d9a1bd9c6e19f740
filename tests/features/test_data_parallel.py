"""Copies of an engine behind one address answer alike, share the work, and keep a cache and counters each.

Attention that is data parallel within one model (V4's, with its experts split) needs several GPUs and a model with
experts; what is shared across layers is not here either: no family that shares keys and values is simple enough.
"""

import pytest

from fixtures import catches, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, stream

pytestmark = [
    feature(12, "Cross-layer and data-parallel attention"),
    serve(model="lookup", prefix_cache=True, data_parallel=2),
]

ANSWER = 6
CROWD = 8
TOLERANCE = 1e-3  # as in test_prefix_caching


@pytest.fixture
def asked(client, oracle):
    """Different questions, and nothing of them in any cache."""
    client.reset_prefix_cache()
    return [make.question(oracle, 300, seed=n, depth=n / CROWD) for n in range(CROWD)]


@proves
@catches("one_rank_idle")
def test_all_ranks_serve(server, client, asked, counters):
    ranks = dict(server.spec.knobs)["data_parallel"]
    assert server.fact("data_parallel") == ranks
    with counters() as seen:
        client.each(asked, at_once=CROWD, max_tokens=ANSWER, temperature=0)
    served = seen.ranks("finished_requests")
    assert sorted(served) == [str(n) for n in range(ranks)]
    assert min(served.values()) > 0
    assert sum(served.values()) == len(asked)


@catches("one_rank_is_wrong", "requests_mixed_up", "logprobs_off_by_1e-3")
def test_every_rank_gives_the_models_answers(client, oracle, asked):
    replies = client.each(asked, at_once=CROWD, max_tokens=ANSWER, temperature=0, logprobs=1)
    for prompt, reply in zip(asked, replies, strict=True):
        answer = oracle.greedy(prompt, ANSWER)
        right = oracle.answer_logprobs(prompt, answer)
        assert agree.problems(make.ids(oracle, reply.text), answer) == []
        assert logprobs.compare(reply.choice.logprobs, right, answer, TOLERANCE) == []


@catches("rank_not_counted", "counter_falls")
def test_the_ranks_counters_add_up_to_what_the_client_saw(client, asked, counters):
    with counters() as seen:
        replies = client.each(asked, at_once=CROWD, max_tokens=ANSWER, temperature=0)
    assert sum(seen.ranks("prompt_tokens").values()) == sum(len(prompt) for prompt in asked)
    generated = sum(reply.usage["completion_tokens"] for reply in replies)
    assert sum(seen.ranks("generated_tokens").values()) == generated
    assert seen.problems() == []


@catches("ranks_share_a_cache", "hit_counter_frozen", "usage_and_counter_disagree")
def test_each_rank_has_a_prefix_cache_of_its_own(client, oracle, server, asked, counters):
    """Whoever serves: the first time on a rank misses; once every rank has served, no rank misses any more."""
    prompt, block = asked[0], server.fact("block_size")
    hit = (len(prompt) - 1) // block * block
    with counters() as first:
        new = client.each([prompt] * CROWD, at_once=CROWD, max_tokens=ANSWER, temperature=0)
    served, hits = first.ranks("finished_requests"), first.ranks("prefix_hits")
    assert min(served.values()) > 0
    assert [rank for rank, n in served.items() if hits[rank] > (n - 1) * hit] == []
    with counters() as second:
        again = client.each([prompt] * CROWD, at_once=CROWD, max_tokens=ANSWER, temperature=0)
    served, hits = second.ranks("finished_requests"), second.ranks("prefix_hits")
    assert hits == {rank: n * hit for rank, n in served.items()}
    assert first["prefix_hits"] == sum(reply.cached_tokens or 0 for reply in new)
    for reply in [*new, *again]:
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []


@catches("reset_ignored")
def test_a_reset_empties_the_caches_of_all_ranks(client, asked, counters):
    ask = {"at_once": CROWD, "max_tokens": ANSWER, "temperature": 0}
    client.each([asked[0]] * CROWD, **ask)
    client.reset_prefix_cache()
    with counters() as seen:
        replies = client.each(asked, **ask)  # different ones: none finds what another left
    assert [reply.cached_tokens or 0 for reply in replies] == [0] * CROWD
    assert set(seen.ranks("prefix_hits").values()) == {0}


@pytest.mark.usefixtures("asked")
@catches("seed_ignored")
def test_a_seed_gives_the_same_answer_on_every_rank(client, oracle):
    prompt = make.question(oracle, 60, seed=20)
    replies = client.each([prompt] * CROWD, at_once=CROWD, max_tokens=12, temperature=2.0, seed=7)
    assert len({reply.text for reply in replies}) == 1


@catches("done_missing", "two_finish_reasons", "stream_without_usage", "stream_changes_its_id")
def test_streamed_answers_are_the_same(client, asked):
    ask = {"max_tokens": 12, "temperature": 0, "logprobs": 1}
    for prompt in asked[:2]:
        whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
        assert stream.problems(streamed.exchange.events, "completion") == []
        assert stream.parity(whole, streamed) == []
