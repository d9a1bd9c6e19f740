"""A command line is written for another release by the rules, and what no rule can rewrite is left and said."""

import pytest

from fixtures.lint import rules
from fixtures.lint.inputs import from_text, from_words
from fixtures.lint.migrate import as_command, defaults, migrate
from fixtures.lint.rules import Replaced
from tests.harness.lint.made import NONE, ONE, rows, table

JSON = {"takes": "one", "type": "json", "extra": "forbid"}
OLD = {
    "--model": ONE,
    "--served": {"takes": "some"},
    "--swap": ONE,
    "--guided": ONE,
    "--reason": NONE,
    "--seed": ONE | {"default": None, "type": "int"},
    "--share": ONE | {"default": 0.9, "type": "float"},
    "--old": ONE,
    "--lost": ONE,
    "--conf": JSON,
    "--conf.level": {"type": "int", "default": 3},
    "--conf.pass": JSON,
    "--conf.pass.fusion": {"type": "bool"},
    "--dtype": ONE | {"choices": ["auto", "half"]},
}
NEW = {
    "--model": ONE,
    "--served": {"takes": "some"},
    "--served-by": ONE,
    "--structured": JSON,
    "--structured.backend": {},
    "--seed": ONE | {"default": 0, "type": "int"},
    "--share": ONE | {"default": 0.92, "type": "float"},
    "--old": ONE | {"deprecated": True},
    "--young": ONE,
    "--conf": JSON,
    "--conf.mode": {"type": "int", "default": 3},
    "--conf.pass": JSON,
    "--conf.pass.fuse_norm": {"type": "bool"},
    "--dtype": ONE | {"choices": ["auto", "float16"]},
    "--attention": ONE,
}
RULES = [
    Replaced("vllm", "flag", "--swap", by="", say="There is none."),
    Replaced("vllm", "flag", "--guided", by="--structured.backend={value}"),
    Replaced("vllm", "flag", "--reason", by=""),
    Replaced("vllm", "flag", "--old", by="--young {value}"),
    Replaced("vllm", "flag", "--before", by="--young {value}"),
    Replaced("vllm", "flag", "--lost", say="Think again."),
    Replaced("vllm", "flag", "--conf.level", by="--conf.mode={value}"),
    Replaced("vllm", "flag", "--conf.pass.fusion", by="--conf.pass.fuse_norm={value}"),
    Replaced("vllm", "flag", "--dtype", by="--dtype float16", only="half"),
    Replaced("vllm", "env", "VLLM_ATTENTION", by="--attention {value}"),
    Replaced("vllm", "env", "VLLM_OLD", by="env VLLM_NEW={value}"),
    Replaced("vllm", "env", "VLLM_GONE", by=""),
]


@pytest.fixture(autouse=True)
def _rules(monkeypatch):
    monkeypatch.setattr(rules, "_rules", lambda: (RULES, []))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    made = table(
        "vllm",
        tmp_path_factory.mktemp("vllm"),
        {"1.0": rows(flag=OLD, env={}), "2.0": rows(flag=NEW, env={"VLLM_NEW": {}, "VLLM_KEPT": {}})},
    )
    return made.release("1.0"), made.release("2.0")


def moved(both, *words):
    made = migrate(*both, from_words(words))
    return [word.text for word in made.start.args], made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("vllm serve m --seed 1", "m --seed 1"),
        ("vllm serve m --swap 4 --seed 1", "m --seed 1"),
        ("vllm serve m --reason", "m"),
        ("vllm serve m --guided xgrammar", "m --structured.backend=xgrammar"),
        ("vllm serve m --guided=xgrammar", "m --structured.backend=xgrammar"),
        ("vllm serve m --old 5", "m --young 5"),
        ("vllm serve m --dtype half", "m --dtype float16"),
        ("vllm serve m --dtype auto", "m --dtype auto"),
        ("vllm serve m --conf.level 2", "m --conf.mode=2"),
        ("vllm serve m --conf.pass.fusion true", "m --conf.pass.fuse_norm=true"),
        ("vllm serve m --serv a b --seed 1", "m --served a b --seed 1"),
        ("vllm serve --model m --seed 1", "m --seed 1"),
        ("vllm serve m --lost 3 --seed 1", "m --lost 3 --seed 1"),
    ],
)
def test_flags_are_written_as_the_new_release_takes_them(both, before, after):
    assert moved(both, *before.split())[0] == after.split()


def test_keys_inside_json_are_renamed_and_the_rest_is_kept(both):
    given = '{"level": 3, "pass": {"fusion": true}, "other": [1, "a"]}'
    words, made = moved(both, "vllm", "serve", "m", "--conf", given)
    assert words == ["m", "--conf", '{"mode": 3, "pass": {"fuse_norm": true}, "other": [1, "a"]}']
    assert [change.split(":")[0] for change in made.changes] == ["--conf.level", "--conf.pass.fusion"]


@pytest.mark.parametrize("text", ['{"mode": 3}', "{broken", "[1]"])
def test_json_without_old_keys_is_left_as_it_is_written(both, text):
    words, made = moved(both, "vllm", "serve", "m", "--conf", text)
    assert (words, made.changes) == (["m", "--conf", text], [])


def test_variables_become_flags_or_other_variables_or_go(both):
    words, made = moved(
        both,
        "VLLM_ATTENTION=A B",
        "VLLM_OLD=x y",
        "VLLM_GONE=1",
        "VLLM_KEPT=1",
        "HOME=/h",
        "vllm",
        "serve",
        "m",
    )
    assert words == ["m", "--attention", "A B"]
    assert [(one.name, one.value) for one in made.start.env] == [
        ("VLLM_NEW", "x y"),
        ("VLLM_KEPT", "1"),
        ("HOME", "/h"),
    ]
    assert len(made.changes) == 3


def test_each_change_says_since_when_and_why(both):
    _, made = moved(
        both,
        *["vllm", "serve", "m", "--swap", "4", "--old", "5", "--serv", "a", "--dtype", "half", "--lost", "1"],
    )
    assert made.changes == [
        "--swap: vllm 2.0 does not have it; 1.0 was the last release that did. There is none.",
        "--old: it is deprecated. Write --young … in its place.",
        "--serv was short for --served.",
        "--dtype half: 2.0 does not take it. Write --dtype float16 in its place.",
        "--lost: vllm 2.0 does not have it; 1.0 was the last release that did. Think again.",
    ]


@pytest.mark.parametrize("words", [["--before", "a/b"], ["--before=a/b"]])
def test_what_neither_release_takes_is_written_by_a_rule_where_there_is_one(both, words):
    moved_words, made = moved(both, "vllm", "serve", "m", *words, "--seed", "1")
    assert moved_words == ["m", "--seed", "1", "--young", "a/b"]
    assert made.changes == ["--before: no release from 1.0 to 2.0 has it. Write --young … in its place."]


def test_what_neither_release_takes_is_left_for_the_lint(both):
    words, _ = moved(both, "vllm", "serve", "m", "--never", "3", "--seed", "1")
    assert words == ["m", "--seed", "1", "--never", "3"]


def test_defaults_that_are_different_are_told_unless_the_flag_is_given(both):
    told = [
        "--seed: the default was nothing, now it is 0.",
        "--share: the default was 0.9, now it is 0.92.",
    ]
    assert defaults(*both, from_words(["vllm", "serve", "m"])) == told
    assert defaults(*both, from_words(["vllm", "serve", "m", "--share", "0.5"])) == told[:1]


@pytest.mark.parametrize(
    "words", [["vllm", "serve", "m", "--seed", "1"], ["A=b c", "vllm", "serve", "a b", "--x", "$"]]
)
def test_the_printed_command_reads_back_as_the_same_start(words):
    start = from_words(words)
    printed = as_command(start)
    (again,), _ = from_text(printed, "a.sh")
    assert [word.text for word in again.args] == [word.text for word in start.args]
    assert [(one.name, one.value) for one in again.env] == [(one.name, one.value) for one in start.env]


def test_an_engine_that_is_a_module_is_printed_with_its_interpreter():
    start = from_words(["python3", "-m", "sglang.launch_server", "--model-path", "m"])
    assert as_command(start) == "python -m sglang.launch_server \\\n  --model-path m"
