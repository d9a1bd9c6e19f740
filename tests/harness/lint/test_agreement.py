"""Whether census and linter agree with a parser is decided by asking both; here the parser is Python's own."""

import argparse
import random

import pytest

from fixtures.lint import agreement
from tests.harness.lint.made import NONE, ONE, rows, table

FLAGS = {
    "--model-path": ONE | {"required": True},
    "--name": ONE | {"choices": ["a", "b"]},
    "--number": ONE | {"type": "int", "also": ["--num"]},
    "--ratio": ONE | {"type": "float"},
    "--many": {"takes": "some"},
    "--any": {"takes": "any"},
    "--maybe": {"takes": "maybe"},
    "--two": {"takes": 2},
    "--on": NONE,
}


def parser():
    made = argparse.ArgumentParser(exit_on_error=True)
    for name, facts in FLAGS.items():
        count = {"some": "+", "any": "*", "maybe": "?"}.get(facts["takes"], facts["takes"])
        if facts["takes"] == "none":
            made.add_argument(name, action="store_true")
            continue
        made.add_argument(
            name,
            *facts.get("also", []),
            nargs=None if count == "one" else count,
            type={"int": int, "float": float}.get(facts.get("type"), str),
            choices=facts.get("choices"),
            required=facts.get("required", False),
        )
    return made


def told(made):
    """What `probe.py` says of a parser's flags."""
    return [
        {
            "names": list(action.option_strings),
            "takes": action.nargs,
            "choices": action.choices and sorted(action.choices),
            "required": action.required,
        }
        for action in made._actions  # noqa: SLF001 - as the probe does
    ]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return table("sglang", tmp_path_factory.mktemp("sglang"), {"1.0": rows(flag=FLAGS)}).release("1.0")


def refused(line):
    try:
        parser().parse_args(line)
    except SystemExit:
        return True
    return False


def test_the_same_parser_agrees(release, capsys):
    assert list(agreement.flags_differ(release, told(parser()))) == []
    lines = agreement.lines(release, 400, random.Random(1))
    verdicts = [refused(line) for line in lines]
    assert [bool(agreement.refusals(release, line)) for line in lines] == verdicts
    assert 60 < sum(verdicts) < 340  # both kinds are asked for
    assert "error:" in capsys.readouterr().err


def test_lines_use_every_flag_and_are_the_same_for_the_same_seed(release):
    lines = agreement.lines(release, 400, random.Random(1))
    assert lines == agreement.lines(release, 400, random.Random(1))
    assert {name for line in lines for name in FLAGS if name in line} == set(FLAGS)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"--on": None}, "--on is in the census only"),
        ({"--more": {}}, "--more is not in the census"),
        ({"--many": {"takes": "*"}}, "--many takes '*' values, the census says '+'"),
        ({"--name": {"choices": ["a"]}}, "--name has the choices ['a'], the census says ['a', 'b']"),
        ({"--name": {"required": True}}, "--name is required: True, the census says otherwise"),
    ],
)
def test_each_difference_of_flags_is_a_sentence(release, change, sentence):
    ((name, facts),) = change.items()
    flags = [flag for flag in told(parser()) if facts is not None or name not in flag["names"]]
    known = next((flag for flag in flags if name in flag["names"]), None)
    if known:
        known |= facts
    elif facts is not None:
        flags.append({"names": [name], "takes": None, "choices": None, "required": False})
    assert list(agreement.flags_differ(release, flags)) == [sentence]
