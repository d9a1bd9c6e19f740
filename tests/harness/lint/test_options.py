"""A command line is taken apart as argparse would."""

import argparse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.lint.inputs.values import Word
from fixtures.lint.options import take_apart
from tests.harness.lint.made import NONE, ONE, rows, table, troubles, used, words

FLAGS = {
    "--model-path": ONE | {"also": ["--model"]},
    "--tp-size": ONE | {"also": ["--tensor-parallel-size", "-tp"]},
    "--data-parallel-size": ONE | {"also": ["-dp"]},
    "--data-parallel-rank": ONE | {"also": ["-dpn"]},
    "--trust-remote-code": NONE,
    "--trace": ONE,
    "--trace-level": ONE,
    "--quantization": ONE | {"also": ["-q"]},
    "--stop": {"takes": "maybe"},
    "--ports": {"takes": "some"},
    "--tags": {"takes": "any"},
    "--range": {"takes": 2},
}


@pytest.fixture(scope="module")
def sglang(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sglang")
    releases = {version: rows(flag=FLAGS) for version in ("0.5.9", "0.5.10", "0.5.16")}
    return table("sglang", folder, releases)


@pytest.fixture(scope="module")
def launch(sglang):
    return lambda line: take_apart(sglang.release("0.5.9"), "sglang.launch_server", words(line))


class TestArgparse:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("--tp-size 4", [("--tp-size", "4")]),
            ("--tp-size=4", [("--tp-size", "4")]),
            ("--tp-size=", [("--tp-size", "")]),
            ("--tensor-parallel-size=a=b", [("--tp-size", "a=b")]),
            ("-tp 4", [("--tp-size", "4")]),
            ("-tp=4", [("--tp-size", "4")]),
            ("-dp 2 -dpn 1", [("--data-parallel-size", "2"), ("--data-parallel-rank", "1")]),
            ("-qfp8", [("--quantization", "fp8")]),
            ("-q=fp8", [("--quantization", "fp8")]),
            ("--trust-remote-code", [("--trust-remote-code",)]),
            ("--stop --stop x", [("--stop",), ("--stop", "x")]),
            ("--ports 1 2 3 --tags", [("--ports", "1", "2", "3"), ("--tags",)]),
            ("--tags a --ports=1", [("--tags", "a"), ("--ports", "1")]),
            ("--range 1 2", [("--range", "1", "2")]),
            ("--tp-size -1", [("--tp-size", "-1")]),
            ("--range -1.5 -.5", [("--range", "-1.5", "-.5")]),
            ("--tp-size - --tags", [("--tp-size", "-"), ("--tags",)]),
        ],
    )
    def test_values_go_to_their_flags(self, launch, line, expected):
        taken = launch(line)
        assert (used(taken), troubles(taken)) == (expected, [])
        assert not any(use.shortened for use in taken.uses)

    @pytest.mark.parametrize(
        ("line", "flag"),
        [
            ("--tp=4", "--tp-size"),
            ("--trust", "--trust-remote-code"),
            ("--data-parallel-s 1", "--data-parallel-size"),
            ("--trace 1", "--trace"),
            ("--trace-l 1", "--trace-level"),
        ],
    )
    def test_the_beginning_of_one_flag_is_enough(self, launch, line, flag):
        taken = launch(line)
        assert [use.flag for use in taken.uses] == [flag]
        assert [use.shortened for use in taken.uses] == [line.split()[0] != flag]

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("--tp-sizes 4", ("unknown", "--tp-sizes")),
            ("--tp-sizes=4", ("unknown", "--tp-sizes")),
            ("--tp-sizes -4", ("unknown", "--tp-sizes")),
            ("-tp4", ("unknown", "-tp4")),
            ("-x", ("unknown", "-x")),
            ("--tr", ("ambiguous", "--tr")),
            ("--tr=1", ("ambiguous", "--tr")),
            ("--data-parallel 1", ("ambiguous", "--data-parallel")),
            ("-d=1", ("ambiguous", "-d")),
            ("--tp-size", ("missing value", "--tp-size")),
            ("--tp-size --trust-remote-code", ("missing value", "--tp-size")),
            ("--tp-size --unknown", ("missing value", "--tp-size")),
            ("--tp-size -x", ("missing value", "--tp-size")),
            ("--tp-size -- 4", ("missing value", "--tp-size")),
            ("--ports", ("missing value", "--ports")),
            ("--range 1", ("missing value", "--range")),
            ("--range=1 2", ("missing value", "--range")),
            ("--trust-remote-code=1", ("unwanted value", "--trust-remote-code")),
            ("--trust-remote-code yes", ("unexpected", "yes")),
            ("--tp-size 4 5", ("unexpected", "5")),
            ("--stop x y", ("unexpected", "y")),
            ("4", ("unexpected", "4")),
            ("--", ("unexpected", "--")),
        ],
    )
    def test_what_the_parser_refuses_is_told(self, launch, line, expected):
        assert troubles(launch(line))[0] == expected

    def test_an_unknown_flag_keeps_the_word_behind_it(self, launch):
        assert troubles(launch("--unknown 1 2 --other=1 3 --third --tags")) == [
            ("unknown", "--unknown"),
            ("unknown", "--other"),
            ("unknown", "--third"),
            ("unexpected", "2"),
            ("unexpected", "3"),
        ]

    def test_an_ambiguous_flag_comes_with_what_it_could_be(self, launch):
        (trouble,) = launch("--data-parallel-").troubles
        assert trouble.text == "--data-parallel-rank, --data-parallel-size"

    def test_all_that_is_wrong_is_told_at_once_with_its_line(self, sglang):
        args = [Word("--tp-size", 1), Word("--nope", 2), Word("--trace", 3), Word("x", 3), Word("y", 4)]
        taken = take_apart(sglang.release("0.5.9"), "sglang.launch_server", args)
        assert [(t.kind, t.line) for t in taken.troubles] == [
            ("missing value", 1),
            ("unknown", 2),
            ("unexpected", 4),
        ]
        assert [(use.flag, use.line, use.values) for use in taken.uses] == [
            ("--trace", 3, (Word("x", 3),)),
        ]

    @pytest.mark.parametrize("text", ["-x and more", "--tp and more", "--trace.x y", "- a", "-1 2"])
    def test_a_word_with_a_blank_is_a_value(self, sglang, text):
        args = [Word("--trace", 1), Word(text, 1)]
        taken = take_apart(sglang.release("0.5.9"), "sglang.launch_server", args)
        assert (used(taken), troubles(taken)) == ([("--trace", text)], [])

    def test_a_word_with_a_blank_behind_an_equals_sign_is_a_flag(self, sglang):
        taken = take_apart(sglang.release("0.5.9"), "sglang.launch_server", [Word("--trace=a b", 1)])
        assert used(taken) == [("--trace", "a b")]

    def test_help_is_a_flag_of_every_release(self, launch):
        assert used(launch("-h --help")) == [("--help",), ("--help",)]

    def test_underscores_stay_in_sglang(self, launch):
        assert troubles(launch("--tp_size 1")) == [("unknown", "--tp_size")]

    def test_dots_mean_nothing_in_sglang(self, launch):
        assert troubles(launch("--trace.x 1")) == [("unknown", "--trace.x")]


class TestRunTime:
    def test_a_value_that_is_only_known_at_run_time_stays_open(self, launch):
        taken = launch("--trace $A --tp-size=$B")
        assert [word for use in taken.uses for word in use.values] == [
            Word("$A", 1, True),
            Word("$B", 1, True),
        ]
        assert (taken.troubles, taken.rest, taken.whole) == ((), (), True)

    @pytest.mark.parametrize("line", ["$ARGS", "--$FLAG", "--trust-remote-code $ARGS", "--a$B=1"])
    def test_words_that_may_be_more_flags_are_no_trouble(self, launch, line):
        taken = launch(line)
        assert (taken.troubles, taken.whole) == ((), False)
        assert [word for word in taken.rest if not word.open] == []

    def test_an_open_value_excuses_no_unknown_flag(self, launch):
        assert troubles(launch("--unknown=$X")) == [("unknown", "--unknown")]


# One law for all flags: what argparse refuses is trouble, and what it takes has the same values.
COUNTS = {"none": 0, "one": None, "maybe": "?", "some": "+", "any": "*"}
SIZES = {"none": (0, 0), "one": (1, 1), "maybe": (0, 1), "some": (1, 3), "any": (0, 3), 2: (2, 2)}
SPELLED = {spelled: name for name, facts in FLAGS.items() for spelled in (name, *facts.get("also", []))}
VALUES = ["", "x", "4", "-", "-4", "-0.5", "a b", "-x y", "--tp y", "a=b", "a.b"]
UNKNOWN = ["--unknown", "--tp-sizes", "-z", "--unknown=1", "-tp4", "-qfp8", "-q-", "--trace x", "--"]
values = st.sampled_from(VALUES)
spelled = st.sampled_from(sorted(SPELLED))
shortened = spelled.flatmap(lambda name: st.integers(2, len(name)).map(lambda end: name[:end]))


@st.composite
def uses(draw):
    """Draw a flag with as many values as it takes."""
    name = draw(spelled)
    least, most = SIZES[FLAGS[SPELLED[name]]["takes"]]
    return [name, *draw(st.lists(values, min_size=least, max_size=most))]


@st.composite
def attached(draw):
    """Draw a flag, or the beginning of one, with its value behind an equals sign.

    A cut flag of one dash (-d=1) is left out: argparse takes it only since 3.12.
    """
    name = draw(st.one_of(spelled, shortened).filter(lambda one: one[:2] == "--" or one in SPELLED))
    return [f"{name}={draw(values)}"]


single = st.one_of(shortened, values, st.sampled_from(UNKNOWN)).map(lambda word: [word])
argv = st.lists(st.one_of(uses(), uses(), attached(), single), max_size=5).map(
    lambda parts: [word for part in parts for word in part]
)


def real():
    """Return a parser of argparse with the same flags."""
    parser = argparse.ArgumentParser()
    for name, facts in FLAGS.items():
        count = COUNTS.get(facts["takes"], facts["takes"])
        how = {"action": "store_true"} if count == 0 else {"nargs": count}
        parser.add_argument(name, *facts.get("also", []), dest=name, default=argparse.SUPPRESS, **how)
    return parser


def kept(taken):
    """Return what argparse keeps of the flags that were used: of each, the last."""
    found = {}
    for use in taken.uses:
        texts = [word.text for word in use.values]
        by_count = {"none": True, "one": texts[:1] and texts[0], "maybe": texts[0] if texts else None}
        found[use.flag] = by_count.get(FLAGS[use.flag]["takes"], texts)
    return found


class TestLaw:
    @settings(max_examples=500)
    @given(argv)
    def test_a_line_is_taken_as_argparse_takes_it(self, sglang, argv):
        taken = take_apart(sglang.release("0.5.9"), "sglang.launch_server", [Word(text, 1) for text in argv])
        try:
            found = vars(real().parse_args(argv))
        except SystemExit:
            assert taken.troubles
        else:
            assert (taken.troubles, kept(taken)) == ((), found)
