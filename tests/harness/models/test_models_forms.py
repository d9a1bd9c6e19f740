"""The closed forms are those of the generic float64 forward pass, for the recipes and for any seed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from fixtures.errors import HarnessError
from fixtures.model import DraftCounts
from fixtures.models import RECIPES, build, open_oracle
from fixtures.models.chain import LENGTH, MARGIN, SHORT
from fixtures.models.drafts import simulate
from fixtures.models.lookup import LIMIT, PART, signatures
from fixtures.models.tokenizer import Tokenizer

TOKENIZER = Tokenizer()
TOKENS = st.integers(0, TOKENIZER.size - 1)
SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="session")
def of_seed(tmp_path_factory):
    root = tmp_path_factory.mktemp("seeds")
    return lambda name, seed: open_oracle(build(replace(RECIPES[name], seed=seed), root))


@pytest.mark.parametrize("name", ["chain", "mimo"])
class TestChain:
    @settings(max_examples=20)
    @given(data=st.data())
    def test_the_next_token_is_as_told_for_any_context(self, name, data, oracle):
        known = oracle(name)
        ids = data.draw(st.lists(TOKENS, min_size=1, max_size=20))
        scores = known.reference.logits(ids)
        assert scores.argmax(axis=1).tolist() == [known.next(token) for token in ids]
        scores.sort(axis=1)
        assert (scores[:, -1] - scores[:, -2]).min() > MARGIN
        assert np.abs(scores[:, -1] - 12).max() < 0.01

    @settings(max_examples=3)
    @given(seed=SEEDS)
    def test_any_seed_gives_a_chain(self, name, seed, of_seed):
        known = of_seed(name, seed)
        ids = list(range(known.vocab_size))
        assert known.reference.logits(ids).argmax(axis=1).tolist() == [known.next(token) for token in ids]

    def test_cycles_are_closed_and_share_no_word(self, name, oracle):
        known = oracle(name)
        names = (
            ["main"] if name == "chain" else ["always", "half", "three_quarters", "never", "short", "rest"]
        )
        walked = [known.cycle(one) for one in names]
        for cycle in walked:
            assert [known.next(token) for token in cycle] == [*cycle[1:], cycle[0]]
        words = [*sum(walked, ()), *known.path_to_eos[:-1]]
        assert sorted(words) == sorted(TOKENIZER.words)

    def test_the_path_ends_in_eos(self, name, oracle):
        known = oracle(name)
        path = list(known.path_to_eos)
        assert len(path) == 11
        for i in range(len(path) - 1):
            assert known.greedy(path[: i + 1], 50) == path[i + 1 :]
        assert known.greedy(path[:-1], 3, ignore_eos=True) == [
            known.eos,
            known.next(known.eos),
            known.next(known.next(known.eos)),
        ]

    def test_entropy_is_honest_when_hot_and_small_when_cold(self, name, oracle):
        known = oracle(name)
        cold = known.logprobs(list(TOKENIZER.words[:100]))
        assert np.exp(cold.max(axis=1)).min() > 0.95
        hot = softmax(cold / 2, axis=1).max(axis=1)
        assert 0.18 < hot.min() < hot.max() < 0.25


class TestMimo:
    def test_the_head_is_right_but_after_every_flagged_token(self, oracle):
        known = oracle("mimo")
        right = {
            name: [known.draft(t) == known.next(t) for t in known.cycle(name)] for name in ("half", "always")
        }
        assert right["half"] == [i % 3 != 0 for i in range(LENGTH)]
        assert all(right["always"])
        wrong = {known.draft(token) for token in known.cycle("never")}
        assert len(wrong) == 1
        assert not wrong & {known.next(token) for token in range(known.vocab_size)}

    @pytest.mark.parametrize(
        ("cycle", "share"), [("always", 1), ("half", 1 / 2), ("three_quarters", 3 / 4), ("never", 0)]
    )
    def test_acceptance_is_exact_over_whole_periods(self, cycle, share, oracle):
        known = oracle("mimo")
        words = known.cycle(cycle)
        for periods in (1, 2, 10):
            seen = simulate(known.next, known.draft, words[0], 1 + periods * LENGTH, 1)
            assert seen.accepted == share * seen.drafted
            assert seen.steps == seen.drafted

    @pytest.mark.parametrize(
        ("start", "k", "seen"),
        [  # as counted by vLLM 0.32.0
            (0, 1, (5, 5, 5, (5,))),
            (1, 1, (4, 4, 4, (4,))),
            (4, 1, (3, 3, 3, (3,))),
            (8, 1, (1, 1, 1, (1,))),
            (0, 3, (3, 9, 9, (3, 3, 3))),
            (1, 3, (2, 6, 6, (2, 2, 2))),
            (4, 3, (2, 6, 6, (2, 2, 2))),
            (8, 3, (1, 3, 3, (1, 1, 1))),
            (9, 3, (0, 0, 0, (0, 0, 0))),
        ],
    )
    def test_an_answer_that_stops_by_itself_is_counted_to_its_last_step(self, start, k, seen, oracle):
        known = oracle("mimo")
        counts = simulate(known.next, known.draft, known.path_to_eos[start], 50, k, stop=known.eos)
        assert counts == DraftCounts(*seen)

    @pytest.mark.parametrize(
        ("cycle", "n", "k", "seen"),
        [  # as counted by vLLM 0.32.0
            ("always", 1, 1, (0, 0, 0, (0,))),
            ("always", 2, 3, (1, 3, 3, (1, 1, 1))),
            ("half", 100, 1, (66, 66, 33, (33,))),
            ("half", 400, 3, (133, 399, 266, (133, 133, 0))),
            ("three_quarters", 100, 1, (57, 57, 43, (43,))),
            ("three_quarters", 400, 3, (114, 342, 285, (114, 114, 57))),
            ("never", 4, 3, (3, 9, 0, (0, 0, 0))),
        ],
    )
    def test_counts_are_those_of_an_engine(self, cycle, n, k, seen, oracle):
        known = oracle("mimo")
        assert simulate(known.next, known.draft, known.cycle(cycle)[0], n, k) == DraftCounts(*seen)

    def test_the_short_cycle_is_short(self, oracle):
        assert len(oracle("mimo").cycle("short")) == SHORT

    @given(
        name=st.sampled_from(["always", "half", "three_quarters", "never", "short", "rest"]),
        start=st.integers(0, 7),
        n=st.integers(1, 300),
        k=st.integers(1, 5),
    )
    def test_counting_conserves_tokens(self, name, start, n, k, oracle):
        known = oracle("mimo")
        seen = simulate(known.next, known.draft, known.cycle(name)[start], n, k)
        assert seen.drafted == k * seen.steps
        assert seen.accepted == sum(seen.per_position)
        assert list(seen.per_position) == sorted(seen.per_position, reverse=True)
        emitted = 1 + seen.steps + seen.accepted
        assert n <= emitted <= n + k


class TestLookup:
    @settings(max_examples=15)
    @given(seed=SEEDS, length=st.integers(2, 300), data=st.data())
    def test_the_answer_is_what_followed_the_first_occurrence(self, seed, length, data, oracle):
        known = oracle("lookup")
        words = random.Random(seed).sample(range(known.vocab_size), length)
        depth = data.draw(st.integers(0, length - 2))
        prompt = [*words, words[depth]]
        self._holds(known, prompt, 12)

    @pytest.mark.parametrize("depth", [0, 1, 500, 997, 998])
    def test_a_thousand_words_can_be_looked_up(self, depth, oracle):
        words = random.Random(depth).sample(TOKENIZER.words, 1000)
        self._holds(oracle("lookup"), [*words, words[depth]], 12)

    @settings(max_examples=3)
    @given(seed=SEEDS)
    def test_any_seed_gives_a_lookup(self, seed, of_seed):
        words = random.Random(seed).sample(TOKENIZER.words, 200)
        self._holds(of_seed("lookup", seed), [*words, words[seed % 198]], 12)

    def test_the_law_holds_far_into_the_context(self, oracle):
        known = oracle("lookup")
        words = TOKENIZER.words[:500]
        prompt = [*words, *[words[-1], words[0]] * 1000, words[250]]
        assert known.greedy(prompt, 5) == list(words[251:256])

    def test_repeats_that_agree_are_no_matter(self, oracle):
        known = oracle("lookup")
        block = list(TOKENIZER.words[:20])
        self._holds(known, [*block, *block, *block[:7]], 30)

    def test_a_law_that_does_not_apply_is_refused(self, oracle):
        a, b, c = TOKENIZER.words[:3]
        for prompt in ([a, b, c], [a, b, a, c, a], [a, a, b, a]):
            with pytest.raises(ValueError, match=r"ambiguous|nowhere"):
                oracle("lookup").copy(prompt, 1)

    @settings(max_examples=3)
    @given(seed=SEEDS)
    def test_signatures_are_far_from_each_other_and_from_their_opposites(self, seed):
        signs = signatures(np.random.default_rng(seed), 300)
        products = np.abs(signs @ signs.T)
        assert (products.diagonal() == PART).all()
        np.fill_diagonal(products, 0)
        assert products.max() <= LIMIT

    @staticmethod
    def _holds(known, prompt, n):
        # Each token is the likeliest after those before it: by induction that is the greedy answer.
        answer = known.copy(prompt, n)
        scores = known.answer_logprobs(prompt, answer)
        assert scores.argmax(axis=1).tolist() == answer
        ranked = np.sort(scores, axis=1)
        assert (ranked[:, -1] - ranked[:, -2]).min() > 3
        right = np.exp(scores[np.arange(n), answer])
        assert 0.9 < right.min() <= right.max() < 0.999


class TestFuzz:
    @settings(max_examples=10)
    @given(ids=st.lists(TOKENS, min_size=1, max_size=20))
    def test_every_context_has_the_same_distribution(self, ids, oracle):
        known = oracle("fuzz")
        scores = known.logprobs(ids)
        bias = known.reference.weights["lm_head.weight"][:, 0]
        assert np.abs(scores - np.log(softmax(bias))).max() < 1e-5

    def test_no_two_tokens_are_tied(self, oracle):
        gaps = np.diff(np.sort(oracle("fuzz").reference.weights["lm_head.weight"][:, 0]))
        assert gaps.min() > 0.9e-4

    def test_json_closes_soon(self, oracle):
        share = np.exp(oracle("fuzz").logprobs([0])[0])
        content = [n for n in range(32, 1366) if n != ord("\\")]
        assert 0.12 < share[ord('"')] / share[content].sum() < 0.18
        assert share[[ord(","), ord("}")]].sum() > 0.7 * share[[*b"0123456789"]].sum()
        assert share[ord("\n")] < 0.001
        assert 0.02 < share[TOKENIZER.eos] < 0.1


class TestOracle:
    @pytest.mark.parametrize("name", sorted(RECIPES))
    def test_continuing_with_a_cache_equals_computing_all_again(self, name, oracle):
        known = oracle(name)
        ids = [int(n) for n in np.random.default_rng(5).integers(0, known.vocab_size, 40)]
        answer = known.greedy(ids, 6, ignore_eos=True)
        again = known.logprobs([*ids, *answer])[len(ids) - 1 : -1]
        assert again.argmax(axis=1).tolist() == answer
        ranked = np.sort(again, axis=1)
        assert known.margin(ids, 6) == pytest.approx((ranked[:, -1] - ranked[:, -2]).min())

    def test_perplexity_is_of_all_tokens_but_the_first(self, oracle):
        known = oracle("chain")
        ids = list(known.cycle("main")[:30])
        scores = [known.logprobs([a])[0, b] for a, b in pairwise(ids)]
        assert known.perplexity(ids) == pytest.approx(np.exp(-np.mean(scores)))
        assert known.scored(ids) == pytest.approx(scores)

    def test_a_law_of_another_family_is_refused(self, oracle):
        for ask in (
            lambda: oracle("fuzz").next(0),
            lambda: oracle("chain").draft(0),
            lambda: oracle("mimo").copy([1, 2, 1], 1),
            lambda: oracle("lookup").cycle("main"),
        ):
            with pytest.raises(HarnessError, match="checkpoint"):
                ask()
