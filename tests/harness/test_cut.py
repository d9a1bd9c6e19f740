"""A selection is cut into whole units, each in one shard, balanced by recorded times, alike on every machine."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cut
from fixtures.errors import HarnessError
from fixtures.evidence.results import Launched
from fixtures.evidence.times import LAUNCH, Times, recorded
from tests.harness.report.values import VLLM, result, run

COSTS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(0, 10_000), min_size=1)
SECONDS = st.floats(0, 1000)


@st.composite
def selections(draw):
    """Tests of a few servers, some of which share a unit, with records of some of them."""
    tests = []
    for server in range(draw(st.integers(1, 8))):
        unit = draw(st.sampled_from([f"unit{server}", "caches"]))
        name = draw(st.sampled_from([f"server{server}", None]))
        tests += [
            cut.Test(f"t{server}-{n}", unit, name, runs=draw(st.booleans()))
            for n in range(draw(st.integers(1, 5)))
        ]
    some = draw(st.sets(st.sampled_from([test.id for test in tests])))
    times = Times(
        {
            name: draw(SECONDS)
            for name in sorted({test.server or "" for test in tests})
            if name and draw(st.booleans())
        },
        {name: draw(SECONDS) for name in sorted(some)},
    )
    return tests, times


def wholes(tests):
    return len({test.unit for test in tests})


class TestTheCut:
    """What holds for every selection and every number of shards."""

    @given(selections(), st.data())
    def test_each_test_is_in_one_shard_with_all_of_its_unit(self, selection, data):
        tests, times = selection
        shards = data.draw(st.integers(1, wholes(tests)))
        shares = cut.cut(tests, times, shards)
        parts = [[test for test in tests if shares[test.unit] == n] for n in range(1, shards + 1)]
        assert Counter(itertools.chain(*parts)) == Counter(tests)
        assert all(parts)
        for a, b in itertools.combinations(parts, 2):
            assert not {test.unit for test in a} & {test.unit for test in b}

    @given(selections(), st.data())
    def test_the_order_of_tests_changes_nothing(self, selection, data):
        tests, times = selection
        shards = data.draw(st.integers(1, wholes(tests)))
        shares = cut.cut(tests, times, shards)
        other = data.draw(st.permutations(tests))
        assert cut.cut(other, times, shards) == shares
        assert cut.digest(other, shares) == cut.digest(tests, shares)

    @given(COSTS, st.integers(1, 4))
    def test_no_shard_is_longer_than_four_thirds_of_the_best_cut(self, costs, shards):
        shards = min(shards, len(costs))
        few = dict(list(costs.items())[: max(shards, 7)])
        best = min(
            max(sum(c for c, s in zip(few.values(), way, strict=True) if s == n) for n in range(shards))
            for way in itertools.product(range(shards), repeat=len(few))
        )
        shares = cut.spread(few, shards)
        longest = max(sum(c for name, c in few.items() if shares[name] == n) for n in range(1, shards + 1))
        assert best <= longest
        assert 3 * longest <= 4 * best

    @given(COSTS)
    def test_a_shard_without_tests_is_refused(self, costs):
        assert set(cut.spread(costs, len(costs)).values()) == set(range(1, len(costs) + 1))
        with pytest.raises(HarnessError, match=f"too many: ask for {len(costs)} at most"):
            cut.spread(costs, len(costs) + 1)


def test_the_longest_units_go_first_and_ties_go_by_name():
    assert cut.spread({"c": 2, "b": 2, "a": 3, "d": 0}, 2) == {"a": 1, "b": 2, "c": 2, "d": 1}


def test_a_unit_costs_its_tests_and_a_launch_of_each_of_its_servers():
    times = Times({"a": 60.0, "b": 30.0}, {"1": 2.0, "2": 3.0})
    one, two = cut.Test("1", "u", "a"), cut.Test("2", "u", "b")
    assert cut.cost([one, two], times) == 95_000
    assert cut.cost([one, cut.Test("2", "u", "a")], times) == 65_000
    assert cut.cost([one, cut.Test("2", "u", "b", runs=False)], times) == 62_000
    assert cut.cost([one, cut.Test("2", "u", "b", starts=False)], times) == 65_000
    assert cut.cost([cut.Test("1", "u"), cut.Test("2", "u")], times) == 5_000


def test_the_digest_tells_cuts_and_wholes_apart():
    tests = [cut.Test("1", "a"), cut.Test("2", "b")]
    known = cut.digest(tests, {"a": 1, "b": 2})
    assert cut.digest(tests, {"a": 2, "b": 1}) != known
    assert cut.digest([*tests, cut.Test("3", "b")], {"a": 1, "b": 2}) != known


def started(server="vllm-a", seconds=60.0, at=10.0, why="first use"):
    return Launched(server=server, engine="vllm", why=why, seconds=seconds, at=at)


def timed(item, seconds, at, server="vllm-a", **more):
    return result(item=item, seconds=seconds, at=at, server=server, **more)


def name(item):
    return f"tests/features/test_x.py::test_a[{item}]"


class TestTimes:
    """What earlier results tell of launches and tests."""

    def test_a_launch_is_not_counted_again_in_the_test_that_waited_for_it(self):
        told = run(timed("1", 61.5, 0.0), timed("2", 2.0, 61.5), launches=(started(at=60.5),))
        times = recorded([told], {"vllm": False})
        assert times == Times({"vllm-a": 60.0}, {name("1"): 1.5, name("2"): 2.0})

    def test_another_launch_stays_in_the_test_that_made_it_necessary(self):
        again = started(at=80.0, seconds=15.0, why="dirtied by a test")
        told = run(timed("1", 61.0, 0.0), timed("2", 20.0, 61.0), launches=(started(), again))
        times = recorded([told], {"vllm": False})
        assert times == Times({"vllm-a": 60.0}, {name("1"): 1.0, name("2"): 20.0})

    def test_of_several_records_the_median_counts(self):
        runs = [
            run(timed("1", s + 10, 0.0), launches=(started(seconds=10.0, at=9.0),), id=str(s))
            for s in (9, 1, 2)
        ]
        assert recorded(runs, {"vllm": False}) == Times({"vllm-a": 10.0}, {name("1"): 2.0})

    def test_what_did_not_run_tells_nothing(self):
        told = run(
            timed("1", 0.001, 0.0, state="not_applicable"),
            timed("2", 600.0, 1.0, server="vllm-b", state="fail"),
            timed("3", 0.01, 601.0, server="vllm-b", state="fail"),
            launches=(started("vllm-b", None, 600.0),),
        )
        assert recorded([told], {"vllm": False}) == Times()

    def test_a_fake_engine_tells_nothing_of_a_real_one(self):
        fake = run(
            timed("1", 3.0, 0.0), engines=(VLLM.model_copy(update={"fake": True}),), launches=(started(),)
        )
        assert recorded([fake], {"vllm": False}) == Times()
        assert recorded([fake], {"vllm": True}).any
        assert recorded([fake], {"sglang": True}) == Times()

    def test_what_has_no_record_gets_the_median_of_what_has(self):
        times = Times({"a": 10.0, "b": 30.0, "c": 80.0}, {"1": 1.0, "2": 3.0})
        assert (times.launch("b"), times.launch("x"), times.test("2"), times.test("x")) == (
            30.0,
            30.0,
            3.0,
            2.0,
        )

    def test_one_kind_of_record_gives_the_scale_of_the_other(self):
        assert Times(tests={"1": 2.0}).launch("x") == 2.0 * LAUNCH
        assert Times(launches={"a": 100.0}).test("x") == 100.0 / LAUNCH
        assert (Times().test("x"), Times().launch("x")) == (1.0, LAUNCH)
