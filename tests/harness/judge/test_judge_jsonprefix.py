import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.judge import jsonprefix, jsontext
from tests.harness.judge import strategies as make

ALPHABET = '{}[]",:\\/u01e.-+ trfalsn'
CLOSERS = '"}]:0,truefalsn'


def completes(text, depth=14):
    """Search for an ending, going only where the scanner sees a way."""
    try:
        json.loads(text, parse_constant=float.fromhex)
    except ValueError:
        return depth > 0 and any(
            jsonprefix.possible(text + char) and completes(text + char, depth - 1) for char in CLOSERS
        )
    return True


class TestJsonPrefix:
    @given(value=make.json_values, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
    @settings(max_examples=80, deadline=None)
    def test_every_prefix_of_a_json_text_is_possible(self, value, indent, ascii_only):
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        assert all(jsonprefix.possible(text[:end]) for end in range(len(text) + 1))

    @given(text=st.text(ALPHABET, max_size=8), more=st.text(ALPHABET, max_size=6))
    @settings(max_examples=400, deadline=None)
    def test_what_is_impossible_stays_so(self, text, more):
        if not jsonprefix.possible(text):
            assert not jsonprefix.possible(text + more)
            with pytest.raises(ValueError, match=r"."):
                jsontext.loads(text + more)

    @given(value=make.json_values, data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_what_is_possible_after_a_slip_has_an_ending(self, value, data):
        text = json.dumps(value)[:6]
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.sampled_from(ALPHABET)) + text[place + 1 :]
        if jsonprefix.possible(text):
            assert completes(text), text

    @pytest.mark.parametrize(
        "text",
        [
            "",
            " ",
            "-",
            "1",
            "1.",
            "1e",
            "1e+",
            "1.5E-",
            '"',
            '"\\',
            '"\\u12',
            "t",
            "nul",
            "[",
            "[1,",
            '{"a":',
            "{ ",
            "[[] ,",
        ],
    )
    def test_a_cut_token_is_possible(self, text):
        assert jsonprefix.possible(text)

    @pytest.mark.parametrize(
        "text",
        [
            "x", "}", "]", ",", ":", "{1", "{,", '{"a",', '{"a":}', '{"a":1,}', "[1 2", "[,", "[1,]", "[}",
            "01", "--", "+1", ".5", "1.e", "1..", "1 2", "{} {", "tru ", "nulL", "NaN", "'a'", '"\n',
            '"\\x', '"\\u12g', '"a" b', "1e5.",
        ],
    )  # fmt: skip
    def test_a_slip_is_impossible(self, text):
        assert not jsonprefix.possible(text)

    def test_nesting_costs_no_recursion(self):
        assert jsonprefix.possible("[" * 100_000)
        assert jsonprefix.possible('{"a":' * 50_000)

    @pytest.mark.parametrize(
        ("text", "answer"), [("", True), (" ", True), (" {", True), ("[", False), (" 1", False)]
    )
    def test_the_first_character_can_be_asked_for(self, text, answer):
        assert jsonprefix.possible(text, first="{") is answer
