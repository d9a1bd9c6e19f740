import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as distributions

from fixtures.errors import Inconclusive
from fixtures.judge import stats

ROUNDS = 2000
LAW = settings(max_examples=100, deadline=None)


def tolerance(rate, rounds=ROUNDS):
    """Four standard deviations of a simulated share: a right judge strays further once in 16,000 seeds."""
    return 4 * (rate * (1 - rate) / rounds) ** 0.5


class TestChiSquare:
    def test_it_equals_scipy_where_nothing_is_pooled(self):
        counts, chances = [18, 22, 60], [0.2, 0.2, 0.6]
        right = distributions.chisquare(counts, np.array(chances) * 100).pvalue
        assert stats.chi_square(counts, chances) == pytest.approx(right)

    def test_rare_outcomes_are_pooled(self):
        counts, chances = [1, 2, 3, 94], [0.02, 0.02, 0.03, 0.93]
        right = distributions.chisquare([6, 94], [7, 93]).pvalue
        assert stats.chi_square(counts, chances) == pytest.approx(right)

    def test_a_remainder_joins_the_last_pool(self):
        counts, chances = [10, 10, 10], [1 / 3] * 3
        assert stats.chi_square([*counts, 0], [*chances, 0.0]) == pytest.approx(1)

    @pytest.mark.parametrize("rate", [0.05, 0.01])
    def test_false_alarms_come_at_the_stated_rate(self, rate):
        chances = [0.4, 0.3, 0.15, 0.1, 0.03, 0.01, 0.01]
        draws = np.random.default_rng(7).multinomial(400, chances, size=ROUNDS)
        alarms = np.mean([stats.chi_square(draw, chances) < rate for draw in draws])
        # The approximation itself is good to some tenths of the rate.
        assert abs(alarms - rate) < tolerance(rate) + 0.2 * rate

    def test_a_wrong_distribution_is_noticed(self):
        draws = np.random.default_rng(7).multinomial(1000, [0.5, 0.3, 0.2], size=100)
        assert max(stats.chi_square(draw, [0.4, 0.3, 0.3]) for draw in draws) < 0.05

    def test_an_impossible_outcome_leaves_no_doubt(self):
        assert stats.chi_square([99, 1], [1.0, 0.0]) == 0

    @given(counts=st.lists(st.integers(0, 100), min_size=2, max_size=6))
    @LAW
    def test_it_is_a_probability(self, counts):
        if sum(counts) >= 10 * len(counts):
            assert 0 <= stats.chi_square(counts, [1 / len(counts)] * len(counts)) <= 1

    def test_too_few_samples_decide_nothing(self):
        with pytest.raises(Inconclusive, match="take more"):
            stats.chi_square([3, 2], [0.5, 0.5])

    @pytest.mark.parametrize(
        ("counts", "chances"),
        [
            ([1, 2], [1.0]),
            ([1, 2], [0.5, 0.6]),
            ([-1, 2], [0.5, 0.5]),
            ([1, 2], [1.5, -0.5]),
            ([1], [float("nan")]),
        ],
        ids=str,
    )
    def test_arguments_that_do_not_fit_are_the_callers_mistake(self, counts, chances):
        with pytest.raises(ValueError, match=r"fit|sum to"):
            stats.chi_square(counts, chances)


class TestWilson:
    @pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
    def test_the_interval_covers_the_truth_as_often_as_stated(self, share, confidence):
        draws = np.random.default_rng(11).binomial(400, share, size=ROUNDS)
        estimates = [stats.wilson(int(draw), 400, confidence) for draw in draws]
        covered = np.mean([one.low <= share <= one.high for one in estimates])
        # Counts are whole, so that coverage swings about its nominal value by up to a percent at this n.
        assert abs(covered - confidence) < tolerance(confidence) + 0.01

    @pytest.mark.parametrize(("successes", "n"), [(0, 10), (3, 10), (10, 10), (500, 1000)])
    def test_it_equals_scipy(self, successes, n):
        right = distributions.binomtest(successes, n).proportion_ci(method="wilson")
        seen = stats.wilson(successes, n)
        assert (seen.low, seen.high) == pytest.approx((right.low, right.high))

    @given(n=st.integers(1, 10_000), part=st.floats(0, 1), confidence=st.floats(0.5, 0.999))
    @LAW
    def test_the_interval_holds_the_value_and_narrows_with_samples(self, n, part, confidence):
        one = stats.wilson(int(part * n), n, confidence)
        assert 0 <= one.low <= one.value <= one.high <= 1
        more = stats.wilson(int(part * n) * 4, n * 4, confidence)
        assert more.high - more.low < one.high - one.low

    @given(n=st.integers(1, 1000), part=st.floats(0, 1))
    @LAW
    def test_failures_mirror_successes(self, n, part):
        successes = int(part * n)
        one, other = stats.wilson(successes, n), stats.wilson(n - successes, n)
        assert (one.low, one.high) == pytest.approx((1 - other.high, 1 - other.low))

    def test_no_samples_decide_nothing(self):
        with pytest.raises(Inconclusive, match="no samples"):
            stats.wilson(0, 0)

    @pytest.mark.parametrize("arguments", [(-1, 5, 0.9), (6, 5, 0.9), (1, 5, 1.0), (1, 5, 0.0)])
    def test_impossible_arguments_are_the_callers_mistake(self, arguments):
        with pytest.raises(ValueError, match="expected 0 <= successes"):
            stats.wilson(*arguments)
