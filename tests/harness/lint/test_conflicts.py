"""Combinations of flags, model and release that do not work are found in the command line."""

import pytest

from fixtures.lint import rules
from fixtures.lint.check import command
from fixtures.lint.inputs.values import Start, Word
from fixtures.lint.rules import Conflict
from tests.harness.lint.made import ONE, rows, table, words

FLAGS = {
    "--model": ONE,
    "--kv-cache-dtype": ONE | {"choices": ["auto", "fp8"]},
    "--enable-eplb": {"takes": "pair", "off": ["--no-enable-eplb"]},
    "--eplb-config": {"takes": "one", "type": "json", "extra": "forbid"},
    "--eplb-config.window_size": {"type": "int"},
}
CONFLICTS = [
    Conflict("vllm", "not-yet", "It cannot load V4.", "error", when="<0.21", model="deepseek-v4"),
    Conflict("vllm", "alone", "No effect.", "error", given={"--eplb-config": ["*"]},
             absent=("--enable-eplb",), fix="--enable-eplb"),
    Conflict("vllm", "auto", "Auto stops.", "warning", when=">=0.22", model="deepseek-v4",
             given={"--kv-cache-dtype": ["auto"]}),
    Conflict("vllm", "key", "Too wide.", "error", given={"--eplb-config.window_size": ["5"]}),
    Conflict("sglang", "dtype", "Refused.", "error", model="v4", given={"--kv": ["e5"]}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _rules(monkeypatch):
    monkeypatch.setattr(rules, "_rules", lambda: ([], CONFLICTS))


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    releases = {version: rows(flag=FLAGS) for version in ("0.20.0", "0.21.0", "0.22.0")}
    return table("vllm", tmp_path_factory.mktemp("vllm"), releases)


@pytest.fixture(scope="module")
def sglang(tmp_path_factory):
    flags = {"--model-path": ONE | {"also": ["--model"]}, "--kv": ONE}
    return table("sglang", tmp_path_factory.mktemp("sglang"), {"0.5.16": rows(flag=flags)})


@pytest.fixture
def serve(vllm):
    def found(line, version):
        return command(vllm.release(version), Start("vllm", "vllm serve", tuple(words(line)), (), "run.sh:3"))

    return found


@pytest.fixture
def launch(sglang):
    def found(line):
        start = Start("sglang", "sglang.launch_server", tuple(words(line)), (), "")
        return command(sglang.release("0.5.16"), start)

    return found


@pytest.mark.parametrize(
    ("line", "version", "names"),
    [
        ("deepseek-ai/DeepSeek-V4", "0.20.0", ["deepseek-ai/DeepSeek-V4"]),
        ("--model x/deepseek-v4-flash", "0.20.0", ["x/deepseek-v4-flash"]),
        ("deepseek-ai/DeepSeek-V4", "0.21.0", []),
        ("org/model", "0.20.0", []),
        ("org/model --eplb-config {}", "0.21.0", ["--eplb-config"]),
        ("org/model --eplb-config.window_size 1", "0.21.0", ["--eplb-config"]),
        ("org/model --eplb-config {} --enable-eplb", "0.21.0", []),
        ("org/model --eplb-config {} --enable-eplb --no-enable-eplb", "0.21.0", ["--eplb-config"]),
        ("org/model --eplb-config {} $MORE", "0.21.0", []),
        ("x/deepseek-v4 --kv-cache-dtype auto", "0.22.0", ["--kv-cache-dtype"]),
        ("x/deepseek-v4 --kv-cache-dtype auto --kv-cache-dtype fp8", "0.22.0", []),
        ("x/deepseek-v4 --kv-cache-dtype auto", "0.21.0", []),
    ],
)
def test_a_combination_is_found_by_flags_model_and_release(serve, line, version, names):
    findings = serve(line, version)
    assert [finding.what for finding in findings] == names
    assert {finding.code for finding in findings} <= {"conflict"}


def test_the_rule_gives_level_text_and_fix(serve):
    (finding,) = serve("x/deepseek-v4 --kv-cache-dtype auto", "0.22.0")
    assert (finding.level, finding.text, finding.fix) == ("warning", "Auto stops.", "")
    assert (finding.where, finding.line) == ("run.sh:3", 1)
    (finding,) = serve("org/model --eplb-config {}", "0.21.0")
    assert (finding.level, finding.text, finding.fix) == ("error", "No effect.", "--enable-eplb")


def test_a_key_is_found_behind_its_dot_and_told_with_its_line(vllm):
    args = (
        Word("org/model", 2),
        Word("--enable-eplb", 3),
        Word("--eplb-config.window_size", 4),
        Word("5", 4),
    )
    (finding,) = command(vllm.release("0.21.0"), Start("vllm", "vllm serve", args, (), ""))
    assert (finding.what, finding.line) == ("--eplb-config.window_size", 4)


def test_a_model_is_told_with_its_line(vllm):
    args = (Word("--kv-cache-dtype", 2), Word("fp8", 2), Word("x/deepseek-v4", 3))
    (finding,) = command(vllm.release("0.20.0"), Start("vllm", "vllm serve", args, (), ""))
    assert (finding.what, finding.line) == ("x/deepseek-v4", 3)


def test_the_server_module_has_its_model_by_flag(vllm):
    start = Start("vllm", "vllm.entrypoints.openai.api_server", tuple(words("--model x/deepseek-v4")), (), "")
    assert [finding.what for finding in command(vllm.release("0.20.0"), start)] == ["x/deepseek-v4"]


@pytest.mark.parametrize("model", ["--model-path x/V4", "--model=x/V4"])
def test_the_model_may_come_by_flag(launch, model):
    assert [finding.text for finding in launch(f"{model} --kv e5")] == ["Refused."]
    assert launch(f"{model} --kv e4") == []
