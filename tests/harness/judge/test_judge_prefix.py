import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.judge import prefix
from tests.harness.judge.strategies import tokens

LAW = settings(max_examples=150, deadline=None)
histories = st.lists(tokens, max_size=5)
blocks = st.integers(1, 9)
# Prompts that share something with the history, as independent draws rarely do.
shared = st.tuples(histories, tokens, tokens).map(
    lambda drawn: ([*drawn[0], drawn[1]], [*drawn[1], *drawn[2]])
)


class TestExamples:
    @pytest.mark.parametrize(
        ("length", "history", "block", "whole", "expected"),
        [
            (300, 300, 128, False, 256),
            (256, 256, 128, False, 128),
            (257, 257, 128, False, 256),
            (65, 65, 1, False, 64),
            (64, 64, 16, False, 48),
            (64, 64, 16, True, 64),
            (100, 15, 16, False, 0),
            (100, 16, 16, False, 16),
            (1, 1, 1, False, 0),
            (0, 4, 4, False, 0),
        ],
    )
    def test_a_known_length_is_cached(self, length, history, block, whole, expected):
        assert prefix.cached(range(length), [range(history)], block, whole_prompt=whole) == expected

    def test_nothing_is_cached_at_first(self):
        assert prefix.cached(range(100), [], 4) == 0

    def test_a_finished_request_leaves_all_but_its_last_token(self):
        assert list(prefix.stored([1, 2], [3, 4]).tokens) == [1, 2, 3]
        assert list(prefix.stored([1, 2], []).tokens) == [1, 2]

    def test_a_block_without_tokens_is_the_callers_mistake(self):
        with pytest.raises(ValueError, match="not 0"):
            prefix.cached([1], [], 0)


class TestLaws:
    @given(drawn=shared, more=histories, block=blocks)
    @LAW
    def test_more_history_never_caches_less(self, drawn, more, block):
        history, prompt = drawn
        assert prefix.cached(prompt, history, block) <= prefix.cached(prompt, [*more, *history], block)

    @given(drawn=shared, block=blocks)
    @LAW
    def test_the_result_is_whole_blocks_and_leaves_a_token(self, drawn, block):
        history, prompt = drawn
        count = prefix.cached(prompt, history, block)
        assert count % block == 0
        assert 0 <= count <= max(len(prompt) - 1, 0)

    @given(drawn=shared)
    @LAW
    def test_blocks_of_one_give_the_longest_common_prefix(self, drawn):
        history, prompt = drawn
        longest = max(prefix.common(prompt, one) for one in history)
        assert prefix.cached(prompt, history, 1) == min(longest, max(len(prompt) - 1, 0))
        assert prefix.cached(prompt, history, 1, whole_prompt=True) == longest

    @given(drawn=shared, block=blocks)
    @LAW
    def test_cached_tokens_are_those_of_some_earlier_sequence(self, drawn, block):
        history, prompt = drawn
        count = prefix.cached(prompt, history, block)
        assert any(list(one[:count]) == prompt[:count] and len(one) >= count for one in history)

    @given(drawn=shared, block=blocks)
    @LAW
    def test_smaller_dividing_blocks_never_cache_less(self, drawn, block):
        history, prompt = drawn
        assert prefix.cached(prompt, history, 2 * block) <= prefix.cached(prompt, history, block)

    @given(drawn=shared, block=blocks, salt=st.sampled_from([None, "a", "b"]))
    @LAW
    def test_only_equal_salts_match(self, drawn, block, salt):
        history, prompt = drawn
        salted = [prefix.Stored(one, "a") for one in history]
        alone = prefix.cached(prompt, history, block)
        assert prefix.cached(prompt, salted, block, salt=salt) == (alone if salt == "a" else 0)

    @given(a=tokens, b=tokens)
    @LAW
    def test_common_counts_equal_leading_tokens(self, a, b):
        count = prefix.common(a, b)
        assert a[:count] == b[:count]
        assert a[count : count + 1] != b[count : count + 1] or count == len(a) == len(b)
