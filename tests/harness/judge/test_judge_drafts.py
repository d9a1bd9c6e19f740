from dataclasses import replace

import pytest
from hypothesis import given, settings

from fixtures.judge import drafts
from fixtures.model import DraftCounts
from tests.harness.judge.strategies import draft_counts

LAW = settings(max_examples=150, deadline=None)
SEEN = DraftCounts(steps=10, drafted=20, accepted=13, per_position=(8, 5))


class TestProblems:
    @given(drawn=draft_counts())
    @LAW
    def test_simulated_steps_keep_the_books(self, drawn):
        counts, k = drawn
        emitted = counts.steps + counts.accepted + 3
        assert drafts.problems(counts, emitted, k, prefill=3) == []
        assert drafts.problems(replace(counts, per_position=()), 0, k) == []

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"accepted": 21, "per_position": ()}, "accepted: is 21, expected at most the 20 drafted"),
            ({"drafted": 21}, "drafted: is 21, expected at most 2 in each of 10 steps"),
            ({"steps": -1}, "steps: is -1"),
            ({"drafted": -1, "accepted": -2}, "accepted: is -2"),
            ({"per_position": (5, 8)}, "per_position[1]: is 8, expected at most the 5"),
            ({"per_position": (8, 4)}, "sums to 12, expected the 13"),
            ({"per_position": (13,)}, "has 1 positions"),
            ({"per_position": (8, 4, 1)}, "has 3 positions"),
            ({"per_position": (11, 2)}, "per_position[0]: is 11, expected between 0 and the 10"),
            ({"per_position": (14, -1)}, "per_position[1]: is -1"),
        ],
        ids=str,
    )
    def test_a_broken_law_is_noticed(self, changes, complaint):
        found = drafts.problems(replace(SEEN, **changes), 0, 2)
        assert any(complaint in str(one) for one in found)

    def test_emission_is_counted_when_prefill_is_known(self):
        assert drafts.problems(SEEN, 24, 2, prefill=1) == []
        assert [one.what for one in drafts.problems(SEEN, 25, 2, prefill=1)] == [
            "is 25, expected 24 = 10 steps + 13 accepted + 1 from prefill"
        ]
        assert drafts.problems(SEEN, 25, 2) == []


class TestCompare:
    def test_equal_counts_agree(self):
        assert drafts.compare(SEEN, SEEN) == []

    @pytest.mark.parametrize(
        "changes", [{"steps": 9}, {"drafted": 19}, {"accepted": 12}, {"per_position": (7, 6)}], ids=str
    )
    def test_each_other_count_is_named(self, changes):
        (found,) = drafts.compare(replace(SEEN, **changes), SEEN)
        assert found.where == f"drafts.{next(iter(changes))}"


class TestAcceptance:
    @given(drawn=draft_counts())
    @LAW
    def test_the_rate_lies_in_0_to_1_and_the_length_in_1_to_1_plus_k(self, drawn):
        counts, k = drawn
        if counts.drafted:
            assert 0 <= drafts.acceptance_rate(counts) <= 1
        if counts.steps:
            assert 1 <= drafts.acceptance_length(counts) <= 1 + k

    def test_known_values(self):
        assert drafts.acceptance_rate(SEEN) == 0.65
        assert drafts.acceptance_length(SEEN) == 2.3

    def test_nothing_drafted_has_no_rate(self):
        with pytest.raises(ValueError, match="no token was drafted"):
            drafts.acceptance_rate(DraftCounts(0, 0, 0))
        with pytest.raises(ValueError, match="no verification step"):
            drafts.acceptance_length(DraftCounts(0, 0, 0))
