"""A variable that a release does not read, or not with this value, is found."""

import pytest

from fixtures.lint import rules
from fixtures.lint.inputs.values import Setting
from fixtures.lint.rules import Replaced
from fixtures.lint.variables import variables
from tests.harness.lint.made import rows, table

EARLY = {"VLLM_OLD_BACKEND": {}, "VLLM_PORT": {}}
LATE = {
    "VLLM_PORT": {},
    "VLLM_LOGGING_LEVEL": {"default": "INFO"},
    "VLLM_LEGACY": {"deprecated": True},
    "VLLM_FORMER_NAME": {"old": True},
    "VLLM_LISTED": {"unread": True},
    "VLLM_REPLACED": {"unread": True},
    "VLLM_ALL2ALL": {"choices": ["naive", "pplx"]},
    "CUDA_SOMETHING": {"choices": ["1"]},
}
RULES = [
    Replaced("vllm", "env", "VLLM_OLD_BACKEND", by="--backend {value}"),
    Replaced("vllm", "env", "VLLM_REPLACED", by="--backend {value}"),
    Replaced("vllm", "env", "OTHER_LIBRARY", say="Nothing reads it."),
    Replaced("vllm", "env", "VLLM_FORMER_NAME", by="env VLLM_PORT={value}"),
]


@pytest.fixture(autouse=True)
def _rules(monkeypatch):
    monkeypatch.setattr(rules, "_rules", lambda: (RULES, []))


@pytest.fixture
def found(tmp_path):
    release = table("vllm", tmp_path, {"0.19.0": rows(env=EARLY), "0.20.0": rows(env=LATE)}).release("0.20.0")
    return lambda name, value="1", opened=False: list(variables(release, [Setting(name, value, 7, opened)]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_PORT", "8000"),
        ("VLLM_LOGGING_LEVEL", "anything"),
        ("VLLM_ALL2ALL", "PPLX"),
        ("CUDA_SOMETHING", "1"),
        ("HF_HOME", "/models"),
        ("SGLANG_PORT", "1"),
    ],
)
def test_a_variable_that_is_read_or_belongs_to_others_is_left_alone(found, name, value):
    assert found(name, value) == []


@pytest.mark.parametrize(
    ("name", "fix", "texts"),
    [
        (
            "VLLM_LOGING_LEVEL",
            "VLLM_LOGGING_LEVEL",
            ["no release from 0.19.0 to 0.20.0 has it", "Did you mean"],
        ),
        ("VLLM_ZZZ", "", ["VLLM_ZZZ is ignored: no release"]),
        (
            "VLLM_OLD_BACKEND",
            "--backend {value}",
            ["0.19.0 was the last release that did", "Write --backend …"],
        ),
        ("OTHER_LIBRARY", "", ["Nothing reads it."]),
        (
            "VLLM_REPLACED",
            "--backend {value}",
            ["vllm 0.20.0 lists it, and nothing reads it. Write --backend …"],
        ),
    ],
)
def test_a_variable_that_nothing_reads_is_ignored(found, name, fix, texts):
    (finding,) = found(name)
    assert (finding.level, finding.code, finding.what, finding.fix, finding.line) == (
        *("error", "ignored", name, fix),
        7,
    )
    assert all(text in finding.text for text in texts)


def test_a_value_that_is_not_taken_comes_with_those_that_are(found):
    (finding,) = found("VLLM_ALL2ALL", "pplxx")
    assert (finding.level, finding.code, finding.fix) == ("error", "wrong-value", "pplx")
    assert finding.text == "VLLM_ALL2ALL=pplxx: it takes naive, pplx."


def test_a_value_that_is_only_known_at_run_time_is_left_alone(found):
    assert found("VLLM_ALL2ALL", "$BACKEND", opened=True) == []


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        ("VLLM_LEGACY", "VLLM_LEGACY is deprecated in vllm 0.20.0.", ""),
        (
            "VLLM_FORMER_NAME",
            "VLLM_FORMER_NAME is deprecated in vllm 0.20.0. Set VLLM_PORT=… in its place.",
            "env VLLM_PORT={value}",
        ),
    ],
)
def test_a_variable_that_will_not_last_is_a_warning(found, name, text, fix):
    (finding,) = found(name)
    assert (finding.level, finding.code, finding.text, finding.fix) == ("warning", "deprecated", text, fix)


def test_findings_come_in_the_order_of_the_settings(tmp_path):
    release = table("sglang", tmp_path, {"0.5.20": rows(env={"SGLANG_PORT": {}})}).release("0.5.20")
    names = ["SGLANG_B", "SGLANG_PORT", "SGL_A", "VLLM_PORT"]
    findings = variables(release, [Setting(name, "1", 1) for name in names])
    assert [finding.what for finding in findings] == ["SGLANG_B", "SGL_A"]


def test_a_variable_that_compiled_code_may_read_is_a_warning(found):
    (finding,) = found("VLLM_LISTED")
    assert (finding.level, finding.code) == ("warning", "ignored")
    assert finding.text == "VLLM_LISTED: vllm 0.20.0 lists it, and none of its Python modules reads it."
