import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fixtures.judge import logprobs
from fixtures.model import Choice, TokenLogprob
from tests.harness.judge import strategies as make

LAW = settings(max_examples=120, deadline=None)
logits = arrays.arrays(np.float64, (3, 5), elements=st.floats(-20, 20))


def normal(values):
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


def choice(*entries, text="ab", finish="length", **more):
    return Choice(0, text, finish, logprobs=entries, **more)


A = TokenLogprob("a", -0.5, {"a": -0.5, "b": -1.5})
B = TokenLogprob("b", -2.0, {"b": -2.0, "a": -0.5, "c": -1.5})


class TestNumbers:
    @given(n=st.integers(1, 1000), count=st.integers(1, 20))
    @LAW
    def test_a_uniform_choice_of_n_has_perplexity_n(self, n, count):
        assert logprobs.perplexity([-math.log(n)] * count) == pytest.approx(n)

    def test_perplexity_of_nothing_is_no_number(self):
        with pytest.raises(ValueError, match="no log-probabilities"):
            logprobs.perplexity([])

    @given(p=logits.map(normal), q=logits.map(normal))
    @LAW
    def test_kl_is_zero_for_equals_and_never_negative(self, p, q):
        assert logprobs.kl(p, p) == 0
        assert logprobs.kl(p, q) >= -1e-12

    def test_kl_handles_zero_mass(self):
        half, sure = np.log([0.5, 0.5]), np.array([0.0, -np.inf])
        assert logprobs.kl(sure, half) == pytest.approx(math.log(2))
        assert logprobs.kl(half, sure) == math.inf
        assert logprobs.kl(sure, sure) == 0

    def test_kl_of_several_positions_is_their_mean(self):
        half, sure = np.log([0.5, 0.5]), np.array([0.0, -np.inf])
        assert logprobs.kl([sure, half], [half, half]) == pytest.approx(math.log(2) / 2)

    @pytest.mark.parametrize(
        ("seen", "expected", "error"),
        [
            ([], [], 0),
            ([-1.0, -2.0], [-1.0, -2.5], 0.5),
            ([-math.inf], [-math.inf], 0),
            ([-math.inf], [-1.0], math.inf),
            ([math.nan], [-1.0], math.inf),
            ([math.nan], [math.nan], math.inf),
        ],
        ids=str,
    )
    def test_max_error(self, seen, expected, error):
        assert logprobs.max_error(seen, expected) == error

    def test_other_shapes_are_the_callers_mistake(self):
        for function in (logprobs.kl, logprobs.max_error):
            with pytest.raises(ValueError, match="differ"):
                function([-1.0], [-1.0, -2.0])


class TestProblems:
    @given(drawn=make.choices())
    @LAW
    def test_scripted_choices_conform(self, drawn):
        assert logprobs.problems(drawn) == []
        assert logprobs.problems(replace(drawn, logprobs=None)) == []

    def test_the_sampled_token_may_stand_before_the_ranked_ones(self):
        assert logprobs.problems(choice(A, B)) == []

    @pytest.mark.parametrize(
        ("entry", "complaint"),
        [
            (TokenLogprob("b", 0.1), "log-probability of 'b' is 0.1, expected at most 0"),
            (TokenLogprob("b", math.nan), "is nan"),
            (TokenLogprob("b", -1.0, {"a": math.nan}), "log-probability of 'a' is nan"),
            (TokenLogprob("b", -1.0, {"a": 0.5}), "log-probability of 'a' is 0.5"),
            (TokenLogprob("b", None), "no log-probability for 'b'"),
            (TokenLogprob("b", -3.0, {"c": -2.0, "a": -1.0, "b": -3.0}), "expected the likeliest first"),
            (
                TokenLogprob("b", -1.0, {"b": -1.1, "a": -3.0}),
                "'b' has -1.0, but -1.1 among its alternatives",
            ),
            (TokenLogprob("b", -0.1, {"b": -0.1, "a": -0.2}), "expected at most 1"),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )
    def test_an_impossible_entry_is_noticed(self, entry, complaint):
        (found,) = logprobs.problems(choice(A, entry))
        assert found.where == "choice 0.logprobs[1]"
        assert complaint in found.what

    def test_rounding_is_tolerated(self):
        top = {"b": 1e-7, "a": -12.0}
        assert logprobs.problems(choice(A, TokenLogprob("b", 1e-7, top))) == []

    def test_the_first_token_of_an_echo_may_lack_it(self):
        assert logprobs.problems(choice(TokenLogprob("a", None), B)) == []

    @pytest.mark.parametrize("ids", [(), (1,), (1, 2, 3)], ids=str)
    def test_every_token_has_an_entry(self, ids):
        assert len(logprobs.problems(choice(A, B, token_ids=ids))) == 1

    @pytest.mark.parametrize(
        ("tokens", "text", "finish", "conforms"),
        [
            (["a", "b"], "ab", "length", True),
            (["a", "b"], "a", "length", False),
            (["a", "b"], "abc", "stop", False),
            (["a", "b"], "ba", "length", False),
            (["a", "</s>"], "a", "stop", True),
            (["a", "</s>"], "b", "stop", False),
            (["a", "\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}", "b"], "aéb", "length", True),
            (["a", "bytes:\\xc3", "bytes:\\xa9", "b"], "aéc", "length", False),
            (["a", "token_id:7", "b", "token_id:7", "c"], "a-b-c", "length", True),
            (["a", "token_id:7", "x", "token_id:7", "c"], "a-b-c", "length", False),
            (["token_id:7", "token_id:8"], "anything", "length", True),
            (["ab", "token_id:7", "bc"], "abc", "length", False),
            (["a", "<eos>", "b"], "ab", "length", True),
            ([], "", "length", True),
            ([], "a", "length", False),
        ],
    )
    def test_tokens_spell_the_text(self, tokens, text, finish, conforms):
        entries = [TokenLogprob(token, -1.0) for token in tokens]
        found = logprobs.problems(choice(*entries, text=text, finish=finish), hidden={"<eos>"})
        assert (found == []) is conforms

    def test_a_parsed_answer_is_not_spelled(self):
        assert logprobs.problems(choice(A, B, text="b", reasoning="a")) == []

    @given(drawn=make.choices(), data=st.data())
    @LAW
    def test_a_lost_entry_is_noticed(self, drawn, data):
        if drawn.logprobs:
            place = data.draw(st.integers(0, len(drawn.logprobs) - 1))
            rest = drawn.logprobs[:place] + drawn.logprobs[place + 1 :]
            assert logprobs.problems(replace(drawn, logprobs=rest)) != []


class TestCompare:
    @given(values=logits.map(normal), ids=st.lists(st.integers(0, 4), min_size=3, max_size=3), data=st.data())
    @LAW
    def test_reference_values_agree_and_a_shift_is_found(self, values, ids, data):
        seen = [TokenLogprob(str(token), float(row[token])) for row, token in zip(values, ids, strict=True)]
        assert logprobs.compare(seen, values, ids, 1e-5) == []
        place = data.draw(st.integers(0, 2))
        seen[place] = replace(seen[place], logprob=seen[place].logprob - 0.01)
        (found,) = logprobs.compare(seen, values, ids, 1e-5)
        assert found.where == f"logprobs[{place}]"

    def test_the_first_and_the_worst_position_are_named(self):
        rows = np.log(np.full((3, 2), 0.5))
        seen = [TokenLogprob("x", -0.693147 - off) for off in (0.0, 0.1, 0.5)]
        (found,) = logprobs.compare(seen, rows, [0, 1, 0], 1e-3)
        assert found.where == "logprobs[1]"
        assert "2 of 3" in found.what
        assert "first at 1 (id 1): -0.79314" in found.what
        assert "worst at 2 (id 0): -1.19314" in found.what

    @pytest.mark.parametrize("value", [None, math.nan, math.inf], ids=str)
    def test_what_is_no_number_is_off(self, value):
        assert len(logprobs.compare([TokenLogprob("x", value)], [[-1.0]], [0], 1e9)) == 1

    def test_vllms_floor_stands_for_no_mass(self):
        assert logprobs.compare([TokenLogprob("x", -9999.0)], [[-math.inf]], [0], 1e-5) == []

    def test_lengths_and_ids_that_do_not_fit_are_noticed(self):
        one = [TokenLogprob("x", -1.0)]
        assert len(logprobs.compare(one, [[-1.0]] * 2, [0, 0], 1)) == 1
        assert len(logprobs.compare(one, [[-1.0]], [0, 0], 1)) == 1
        assert len(logprobs.compare(one, [[-1.0]], [1], 1)) == 1
        assert len(logprobs.compare(one, [[-1.0]], [-1], 1)) == 1
