"""The keys of a JSON flag are held against the release, given as JSON and behind dots."""

import pytest

from fixtures.lint import rules
from fixtures.lint.check import command
from fixtures.lint.inputs.values import Start
from fixtures.lint.rules import Replaced
from tests.harness.lint.made import rows, table, words

JSON = {"takes": "one", "type": "json", "extra": "forbid"}
FLAGS = {
    "--eplb-config": JSON,
    "--eplb-config.window_size": {"type": "int"},
    "--eplb-config.inner": {"type": "json", "extra": "ignore"},
    "--eplb-config.inner.number": {"type": "int"},
    "--pooler": JSON | {"null": True},
}
RULES = [Replaced("vllm", "flag", "--eplb-config.inner.count", by="--eplb-config.inner.number={value}")]


@pytest.fixture
def serve(tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "_rules", lambda: (RULES, []))
    release = table("vllm", tmp_path, {"0.21.0": rows(flag=FLAGS)}).release("0.21.0")
    return lambda line: command(
        release, Start("vllm", "vllm serve", tuple(words(f"org/model {line}")), (), "")
    )


def only(findings):
    (finding,) = findings
    return finding


def brief(finding):
    return finding.level, finding.code, finding.what, finding.fix


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('--eplb-config {"windw_size":1}',
         ("error", "unknown", "--eplb-config.windw_size", "--eplb-config.window_size")),
        ("--eplb-config.windw_size=1",
         ("error", "unknown", "--eplb-config.windw_size", "--eplb-config.window_size")),
        ('--eplb-config {"zebra":1}', ("error", "unknown", "--eplb-config.zebra", "")),
        ("--eplb-confg.window_size 1",
         ("error", "unknown", "--eplb-confg.window_size", "--eplb-config.window_size")),
        ('--eplb-config {"window_size":"x"}', ("error", "wrong-value", "--eplb-config.window_size=x", "")),
        ("--eplb-config.window_size x", ("error", "wrong-value", "--eplb-config.window_size=x", "")),
        ('--eplb-config {"inner":{"nmber":1}}',
         ("error", "ignored", "--eplb-config.inner.nmber", "--eplb-config.inner.number")),
        ("--eplb-config.inner.nmber 1",
         ("error", "ignored", "--eplb-config.inner.nmber", "--eplb-config.inner.number")),
        ('--eplb-config {"inner":{"number":"x"}}',
         ("error", "wrong-value", "--eplb-config.inner.number=x", "")),
        ('--pooler {"x":1}', ("error", "unknown", "--pooler.x", "")),
        ("--eplb-config []", ("error", "wrong-value", "--eplb-config []", "")),
        ("--eplb-config {", ("error", "wrong-value", "--eplb-config {", "")),
    ],
)  # fmt: skip
def test_keys_are_looked_at_as_json_and_behind_dots(serve, given, expected):
    assert brief(only(serve(given))) == expected


def test_a_key_that_nothing_reads_comes_with_what_replaced_it(serve):
    finding = only(serve("--eplb-config.inner.count 1"))
    assert finding.fix == "--eplb-config.inner.number={value}"
    assert finding.text == (
        "--eplb-config.inner.count: vllm 0.21.0 takes it, and nothing reads it. "
        "Write --eplb-config.inner.number=… in its place."
    )


@pytest.mark.parametrize(
    "given", ['--eplb-config {"window_size":1,"inner":{"number":2}}', "--eplb-config.window_size 1",
              "--eplb-config.window_size $X", "--eplb-config $X", "--pooler None", "--pooler {}"]
)  # fmt: skip
def test_right_keys_have_no_findings(serve, given):
    assert serve(given) == []


@pytest.mark.parametrize(
    "line",
    [
        '--eplb-config {"inner":{"number":1}} --eplb-config.window_size 1',
        '--eplb-config.window_size 1 --eplb-config {"inner":{"number":1}}',
    ],
)
def test_json_beside_dotted_keys_is_lost(serve, line):
    finding = only(serve(line))
    assert brief(finding) == ("error", "ignored", "--eplb-config", "give all keys in one form")
    assert "--eplb-config.window_size makes a second value of it" in finding.text


def test_several_dotted_keys_make_one_value(serve):
    assert serve("--eplb-config.window_size 1 --eplb-config.inner.number 2") == []
