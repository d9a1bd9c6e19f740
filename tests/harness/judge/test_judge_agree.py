import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.judge import agree
from tests.harness.judge.strategies import tokens

LAW = settings(max_examples=150, deadline=None)


class TestFirstDifference:
    @pytest.mark.parametrize(
        ("a", "b", "place"),
        [([], [], None), ([1], [1], None), ([1], [], 0), ([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2)],
        ids=str,
    )
    def test_known_places(self, a, b, place):
        assert agree.first_difference(a, b) == agree.first_difference(b, a) == place

    @given(a=tokens, b=tokens)
    @LAW
    def test_before_it_all_is_equal_and_at_it_nothing(self, a, b):
        place = agree.first_difference(a, b)
        if place is None:
            assert a == b
        else:
            assert a[:place] == b[:place]
            assert a[place : place + 1] != b[place : place + 1]


class TestProblems:
    @given(ids=tokens)
    @LAW
    def test_equal_sequences_agree(self, ids):
        assert agree.problems(ids, list(ids)) == []

    @given(ids=tokens.filter(bool), data=st.data())
    @LAW
    def test_any_change_is_placed_and_forgiven_only_by_a_tie_there(self, ids, data):
        place = data.draw(st.integers(0, len(ids) - 1))
        seen = [*ids[:place], 9, *ids[place + 1 :]]
        margins = [0.0] * len(ids)
        margins[place] = 0.2
        (found,) = agree.problems(seen, ids, margins=margins, tie_margin=0.2)
        assert found.where == f"token {place}"
        assert agree.problems(seen, ids, margins=margins, tie_margin=0.21) == []

    def test_both_tokens_and_their_neighbourhood_are_told(self):
        (found,) = agree.problems([*range(10), 77, 11], range(12))
        assert str(found) == (
            "token 10: is 77, expected 10; seen [... 7 8 9 77 11], expected [... 7 8 9 10 11]"
        )

    def test_an_early_end_is_told(self):
        (found,) = agree.problems([1], [1, 2])
        assert "is absent (the sequence has 1 tokens), expected 2" in found.what

    def test_a_margin_that_excuses_nothing_is_told(self):
        (found,) = agree.problems([1], [2], margins=[0.5], tie_margin=0.1)
        assert found.what.endswith("the margin there is 0.5, a tie is below 0.1")

    def test_beyond_the_margins_nothing_is_forgiven(self):
        assert len(agree.problems([1, 2], [1], margins=[0.0], tie_margin=1.0)) == 1

    def test_without_a_tie_margin_nothing_is_forgiven(self):
        assert len(agree.problems([1], [2], margins=[0.0])) == 1
