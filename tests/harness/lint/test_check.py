"""A command line held against a release: each thing that the release would not do is one finding."""

import pytest

from fixtures.lint import rules
from fixtures.lint.check import command
from fixtures.lint.inputs.values import Setting, Start
from fixtures.lint.rules import Replaced
from tests.harness.lint.made import NONE, ONE, rows, table, words

VERSIONS = ("0.20.0", "0.21.0", "0.22.0")
JSON = {"takes": "one", "type": "json", "extra": "forbid"}
ALWAYS = {
    "--model": ONE,
    "--served-model-name": {"takes": "some"},
    "--config": ONE,
    "--max-model-len": ONE | {"type": "size"},
    "--tensor-parallel-size": ONE | {"type": "int", "also": ["-tp"]},
    "--enable-eplb": {"takes": "pair", "off": ["--no-enable-eplb"]},
    "--eplb-config": JSON,
    "--eplb-config.window_size": {"type": "int"},
    "--eplb-config.inner": {"type": "json", "extra": "ignore"},
    "--eplb-config.inner.number": {"type": "int"},
    "--tool-parser": ONE | {"known": ["hermes", "mistral"], "open": True},
    "--tool-parser-plugin": ONE,
    "--old-name": ONE | {"deprecated": True},
    "--older-name": ONE | {"deprecated": "--new-name"},
    "--gone-name": ONE | {"refused": "use something else"},
}
FLAGS = {
    "0.20.0": ALWAYS | {"--kv-cache-dtype": ONE | {"choices": ["auto", "e8m0", "fp8"]}, "--swap-space": ONE,
                        "--a2a": ONE, "--back": NONE},
    "0.21.0": ALWAYS | {"--kv-cache-dtype": ONE | {"choices": ["auto", "fp8"]},
                        "--moe-backend": ONE | {"also": ["--moe"]}, "--all2all-backend": ONE | {"also": ["--a2a"]}},
    "0.22.0": ALWAYS | {
        "--kv-cache-dtype": ONE | {"choices": ["auto", "fp8", "nvfp4"]},
        "--back": NONE,
        "--backend-of-moe": ONE | {"also": ["--moe-backend"]},
        "--eplb-config.step": {"type": "int"},
    },
}  # fmt: skip
RULES = [
    Replaced("vllm", "flag", "--swap-space", by="", say="There is none."),
    Replaced("vllm", "flag", "--guided", by="--constrained {value}"),
    Replaced("vllm", "flag", "--kv-cache-dtype", by="--kv-cache-dtype fp8", only="e8m0"),
    Replaced("vllm", "flag", "--old-name", by="--new-name {value}"),
    Replaced("vllm", "flag", "--old", by="--new-name {value}"),
    Replaced("sglang", "flag", "--deepep", by="--a2a deepep"),
    Replaced("sglang", "flag", "--tp", by="--tp-size {value}"),
]


@pytest.fixture(autouse=True)
def _rules(monkeypatch):
    monkeypatch.setattr(rules, "_rules", lambda: (RULES, []))


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    return table("vllm", tmp_path_factory.mktemp("vllm"), {v: rows(flag=FLAGS[v]) for v in VERSIONS})


@pytest.fixture(scope="module")
def sglang(tmp_path_factory):
    flags = {"--model-path": ONE | {"required": True, "also": ["--model"]}, "--tp-size": ONE,
             "--deepep-mode": NONE}  # fmt: skip
    return table("sglang", tmp_path_factory.mktemp("sglang"), {"0.5.16": rows(flag=flags)})


@pytest.fixture
def serve(vllm):
    def found(line, version="0.21.0", program="vllm serve", env=()):
        return command(vllm.release(version), Start("vllm", program, tuple(words(line)), env, "run.sh:3"))

    return found


@pytest.fixture
def launch(sglang):
    def found(line, program="sglang.launch_server"):
        return command(sglang.release("0.5.16"), Start("sglang", program, tuple(words(line)), (), ""))

    return found


def only(findings):
    (finding,) = findings
    return finding


def brief(finding):
    return finding.level, finding.code, finding.what, finding.fix


class TestNames:
    def test_a_line_that_the_release_takes_has_no_findings(self, serve):
        assert (
            serve("org/model -tp 2 --max-model-len 8k --kv_cache_dtype auto --moe x --tool-parser $X") == []
        )

    @pytest.mark.parametrize(
        ("line", "version", "expected", "words"),
        [
            ("--max-modl-len 8", "0.21.0",
             ("error", "unknown", "--max-modl-len", "--max-model-len"),
             ["no release from 0.20.0 to 0.22.0 has it", "Did you mean --max-model-len?"]),
            ("--zebra", "0.21.0", ("error", "unknown", "--zebra", ""), ["no release"]),
            ("--guided x", "0.21.0", ("error", "unknown", "--guided", "--constrained {value}"),
             ["Write --constrained … in its place."]),
            ("--swap_space 1", "0.21.0", ("error", "removed", "--swap-space", ""),
             ["vllm 0.21.0 does not have it; 0.20.0 was the last release that did.", "There is none."]),
            ("--moe-backend x", "0.20.0", ("error", "not-yet", "--moe-backend", ""),
             ["vllm 0.20.0 does not have it yet; it came with 0.21.0."]),
            ("--eplb-config.step 1 --enable-eplb", "0.20.0", ("error", "not-yet", "--eplb-config.step", ""),
             ["it came with 0.22.0"]),
            ("--back", "0.21.0", ("error", "removed", "--back", ""),
             ["it was gone after 0.20.0 and came back with 0.22.0."]),
            ("--a2a x", "0.22.0", ("error", "removed", "--a2a", ""), ["0.21.0 was the last"]),
        ],
    )  # fmt: skip
    def test_a_name_that_is_not_there_comes_with_its_history(self, serve, line, version, expected, words):
        finding = only(serve(f"org/model {line}", version))
        assert brief(finding) == expected
        assert all(text in finding.text for text in words)
        assert (finding.where, finding.line) == ("run.sh:3", 1)

    def test_a_name_that_lives_on_as_another_spelling_is_there(self, serve):
        assert serve("org/model --moe-backend x", "0.22.0") == []

    @pytest.mark.parametrize(
        ("line", "expected", "text"),
        [
            ("--old-name x", ("warning", "deprecated", "--old-name", "--new-name {value}"),
             "--old-name is deprecated in vllm 0.21.0. Write --new-name … in its place."),
            ("--older-name x", ("warning", "deprecated", "--older-name", "--new-name"),
             "--older-name is deprecated in vllm 0.21.0. Write --new-name in its place."),
            ("--gone-name x", ("error", "removed", "--gone-name", ""), "--gone-name: use something else"),
            ("--max-model 8", ("warning", "abbreviated", "--max-model", "--max-model-len"),
             "--max-model works as short for --max-model-len only as long as no other flag begins so."),
        ],
    )  # fmt: skip
    def test_a_name_that_will_not_last_is_told(self, serve, line, expected, text):
        finding = only(serve(f"org/model {line}"))
        assert (brief(finding), finding.text) == (expected, text)

    def test_a_beginning_of_another_flag_has_another_meaning(self, launch):
        finding = only(launch("--model-path x --deepep"))
        assert brief(finding) == ("error", "other-meaning", "--deepep", "--a2a deepep")
        assert finding.text.startswith(
            "--deepep is taken as short for --deepep-mode, which is something else."
        )

    def test_a_beginning_of_what_was_meant_is_short(self, launch):
        assert brief(only(launch("--model-path x --tp 2"))) == ("warning", "abbreviated", "--tp", "--tp-size")


class TestShape:
    @pytest.mark.parametrize(
        ("line", "code", "text"),
        [
            ("--max-model-len", "missing-value", "--max-model-len lacks its value."),
            ("--enable-eplb=1", "unwanted-value", "--enable-eplb takes no value."),
            ("other", "unexpected", "'other' belongs to no flag, and the program takes no such word."),
            ("--mo 1", "ambiguous", "--mo could be --model, --moe-backend, --moe: the release refuses it."),
        ],
    )  # fmt: skip
    def test_what_the_parser_refuses_is_an_error(self, serve, line, code, text):
        finding = only(serve(f"org/model {line}"))
        assert (finding.level, finding.code) == ("error", code)
        assert finding.text == text

    def test_an_ambiguous_name_comes_with_what_replaced_it(self, serve):
        finding = only(serve("org/model --old 1"))
        assert brief(finding) == ("error", "ambiguous", "--old", "--new-name {value}")
        assert finding.text.endswith("the release refuses it. Write --new-name … in its place.")

    def test_a_required_flag_is_missed(self, launch):
        assert brief(only(launch("--tp-size 1"))) == ("error", "missing", "--model-path", "")

    @pytest.mark.parametrize("line", ["--model x", "--help", "$ARGS", "--tp-size 1 $ARGS"])
    def test_nothing_is_missed_where_it_may_come_from_elsewhere(self, launch, line):
        assert launch(line) == []

    def test_a_server_without_a_model_is_a_warning(self, serve):
        finding = only(serve("-tp 1"))
        assert brief(finding) == ("warning", "missing", "model", "")
        assert finding.text.startswith("No model is named")
        assert serve("-tp 1 --config x.yaml") == []

    def test_a_model_behind_an_unknown_flag_is_not_missed(self, serve):
        assert only(serve("--zebra org/model")).code == "unknown"

    @pytest.mark.parametrize("line", ["--served-model-name a b", "-tp 1 --served_model_name=a -- org/model"])
    def test_a_served_name_takes_the_model_in_front(self, serve, line):
        assert brief(only(serve(line))) == ("error", "missing", "model", "vllm serve MODEL")
        assert serve(f"org/model {line.removesuffix(' -- org/model')}") == []
        assert serve(f"{line.removesuffix(' -- org/model')} --model org/model") == []


class TestValues:
    @pytest.mark.parametrize(
        ("line", "version", "expected", "words"),
        [
            ("--kv-cache-dtype fp4", "0.21.0",
             ("error", "wrong-value", "--kv-cache-dtype fp4", "--kv-cache-dtype fp8"),
             ["--kv-cache-dtype fp4: it takes auto, fp8.", "Did you mean --kv-cache-dtype fp8?"]),
            ("--kv-cache-dtype nvfp4", "0.21.0",
             ("error", "wrong-value", "--kv-cache-dtype nvfp4", ""), ["It came with 0.22.0."]),
            ("--kv-cache-dtype=e8m0", "0.21.0",
             ("error", "wrong-value", "--kv-cache-dtype e8m0", "--kv-cache-dtype fp8"),
             ["0.20.0 was the last release with this value.", "Write --kv-cache-dtype fp8 in its place."]),
            ("--tool-parser herms", "0.21.0",
             ("error", "wrong-value", "--tool-parser herms", "--tool-parser hermes"), ["plugins may add more"]),
            ("-tp two", "0.21.0", ("error", "wrong-value", "-tp two", ""), ["it takes a whole number"]),
            ("--max-model-len.x 1", "0.21.0", ("error", "wrong-value", "--max-model-len.x 1", ""),
             ["it takes a number"]),
        ],
    )  # fmt: skip
    def test_a_wrong_value_comes_with_the_right_ones(self, serve, line, version, expected, words):
        finding = only(serve(f"org/model {line}", version))
        assert brief(finding) == expected
        assert all(text in finding.text for text in words)


def test_variables_are_looked_at_with_the_line(serve):
    finding = only(serve("org/model", env=(Setting("VLLM_NOTHING", "1", 2),)))
    assert (finding.code, finding.what, finding.where, finding.line) == (
        "ignored",
        "VLLM_NOTHING",
        "run.sh:3",
        2,
    )


def test_a_name_that_a_given_plugin_may_register_is_a_warning(serve):
    (finding,) = serve("org/model --tool-parser mine --tool-parser-plugin mine.py", "0.21.0")
    assert (finding.level, finding.code) == ("warning", "wrong-value")
    (finding,) = serve("org/model --kv-cache-dtype mine --tool-parser-plugin mine.py", "0.21.0")
    assert finding.level == "error"
