"""Covering arrays: every two values meet, in few rows, the same ones each time; and the servers made of them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import items, pairs, serve_pairs
from fixtures.engines.rules import Catalog
from fixtures.errors import HarnessError
from fixtures.model import ServerSpec

CPU = Catalog.bound("vllm", "0.32.0", "cpu")
CUDA = Catalog.bound("vllm", "0.32.0", "cuda")
KNOBS = {
    "speculation": [{"model": "lookup"}, {"model": "lookup", "ngram": 3}, {"model": "mimo", "mtp": 3}],
    "prefix_cache": [True, False],
    "grammar": ["xgrammar", "llguidance"],
    "chunk": [64, 0],
    "kv_dtype": ["auto", "fp8"],
    "async_scheduling": [True, False],
}


def met(rows):
    return {frozenset(pair) for row in rows for pair in itertools.combinations(enumerate(row), 2)}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_every_two_values_meet_and_no_row_is_useless(sizes):
    rows = pairs.rows(sizes)
    assert met(rows) == pairs.due(sizes, lambda _a, _b: False)
    assert all(met([row]) - met([other for other in rows if other != row]) for row in rows)
    assert rows == pairs.rows(sizes)


@pytest.mark.parametrize(
    ("sizes", "most"), [([3, 2, 2, 2, 2], 6), ([4, 2, 2, 2, 2], 8), ([2, 2, 2, 2], 6), ([3], 3)]
)
def test_an_array_is_small(sizes, most):
    assert len(pairs.rows(sizes)) <= most


def test_values_that_do_not_go_together_never_meet_and_all_else_does():
    def apart(a, b):
        return {a, b} == {(0, 1), (1, 0)}

    rows = pairs.rows([2, 2, 3], apart)
    assert met(rows) == pairs.due([2, 2, 3], apart)
    assert frozenset([(0, 1), (1, 0)]) not in met(rows)


def test_a_factor_without_values_and_a_pair_that_nothing_goes_with_are_errors():
    with pytest.raises(ValueError, match="needs a value"):
        pairs.rows([2, 0])
    with pytest.raises(ValueError, match="goes with"):
        pairs.rows([2, 2, 2], lambda a, b: (0, 1) in (a, b) and 2 in (a[0], b[0]))


def servers(table, **factors):
    return list(items.specs(serve_pairs(**factors).mark, table))


def values(spec):
    """A server's values by factor, as they were written."""
    knobs = {"model": spec.model, **dict(spec.knobs)}
    whole = next(one for one in reversed(KNOBS["speculation"]) if one.items() <= knobs.items())
    return {"speculation": str(whole)} | {k: str(v) for k, v in knobs.items() if k in KNOBS}


def company(specs):
    return {frozenset(pair) for spec in specs for pair in itertools.combinations(values(spec).items(), 2)}


def test_what_a_device_lacks_is_left_out_and_all_else_meets():
    specs = servers(CPU, **KNOBS)
    assert len(specs) <= 8
    assert not any("async_scheduling" in dict(spec.knobs) for spec in specs)
    kept = {name: some for name, some in KNOBS.items() if name != "async_scheduling"}
    due = {
        frozenset([(a, str(one)), (b, str(other))])
        for a, b in itertools.combinations(kept, 2)
        for one, other in itertools.product(kept[a], kept[b])
    }
    assert company(specs) == due


def test_what_a_rule_says_not_to_go_together_does_not():
    together = [dict(spec.knobs) for spec in servers(CUDA, **KNOBS)]
    assert any(knobs["async_scheduling"] for knobs in together)
    assert not any(knobs["async_scheduling"] and "ngram" in knobs for knobs in together)


def test_sglang_on_a_cpu_has_few_servers():
    specs = servers(Catalog.bound("sglang", "0.5.20", "cpu"), **KNOBS)
    assert len(specs) <= 6
    assert {spec.model for spec in specs} == {"lookup", "mimo"}
    assert not any("ngram" in dict(spec.knobs) for spec in specs)


def test_a_server_of_pairs_is_one_like_any_other():
    (spec,) = servers(CPU, model=["lookup"], prefix_cache=[True])
    assert spec == ServerSpec("lookup", (("prefix_cache", True),))


def test_a_knob_that_does_not_exist_is_an_error():
    with pytest.raises(HarnessError, match="no knob 'prefix_cach'"):
        servers(CPU, model=["lookup"], prefix_cach=[True])
