import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.evidence.results import STATES, Feature
from fixtures.report import terminal, words
from tests.harness.report import sample
from tests.harness.report.hostile import EVIL, hostile
from tests.harness.report.values import result, small

SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
REALISTIC = sample.realistic()


@pytest.mark.parametrize("width", [24, 40, 80, 100, 200])
def test_no_line_is_wider_than_the_window_with_and_without_colour(width):
    plain, painted = (terminal.text(REALISTIC, width, colour=colour) for colour in (False, True))
    assert max(map(terminal.cells, plain.splitlines())) <= width
    assert "\x1b" not in plain
    assert SEQUENCE.sub("", painted) == plain != painted


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60), st.integers(24, 120))
def test_no_text_breaks_the_view(text, width):
    found = small(*(result(f"f/{text}.py::{text}", s, item=s, sentence=text, engine=text) for s in STATES))
    shown = terminal.text(found, width, colour=False)
    assert max(map(terminal.cells, shown.splitlines())) <= width
    assert {char for char in shown if unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"}} <= {"\n"}


@pytest.mark.parametrize("kind", EVIL)
@pytest.mark.parametrize("colour", [False, True])
def test_no_control_character_of_a_text_reaches_the_terminal(kind, colour):
    shown = SEQUENCE.sub("", terminal.text(hostile(EVIL[kind]), 80, colour=colour))
    assert not re.search(r"[\0-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", shown)


def test_states_have_a_symbol_and_a_word_each_and_sentences_stand_beneath():
    feature = Feature(number="25a", title="Prefix caching")
    found = [result(f"features/test_{s}.py::test_a", s, sentence=f"why {s}", feature=feature) for s in STATES]
    shown = terminal.text(small(*found), 100, colour=False)
    assert re.search(r"25a Prefix caching +! error 1 of 7", shown)
    for state in ("error", "fail", "inconclusive", "flaky"):
        assert f"{words.MARKS[state]} {words.WORDS[state]}  tests/features/test_{state}.py::test_a" in shown
        assert f"    why {state}\n" in shown
    assert shown.index("why error") < shown.index("why fail") < shown.index("why flaky")
    assert len(set(words.MARKS.values())) == len(set(words.WORDS.values())) == len(STATES)


def test_columns_that_do_not_fit_come_in_another_table():
    assert terminal.text(REALISTIC, 60, colour=False).count("Prefix caching") > 1
    assert terminal.text(REALISTIC, 200, colour=False).count("Prefix caching") == 1
