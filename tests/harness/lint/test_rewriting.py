"""The engines change the words of a command line before argparse sees them."""

import pytest

from fixtures.lint.inputs.values import Word
from fixtures.lint.options import take_apart
from tests.harness.lint.made import ONE, rows, table, troubles, used, words

JSON = {"takes": "one", "type": "json", "extra": "forbid"}
SERVE = {
    "--model": ONE,
    "--served-model-name": {"takes": "some"},
    "--max-model-len": ONE,
    "--tensor-parallel-size": ONE | {"also": ["-tp"]},
    "--enforce-eager": {"takes": "pair", "off": ["--no-enforce-eager"]},
    "--compilation-config": JSON | {"also": ["-cc"]},
    "--compilation-config.mode": {},
}
LEVELED = {name: facts for name, facts in SERVE.items() if name != "--compilation-config"}
VLLM = {
    "0.8.0": LEVELED | {"--compilation-config": ONE | {"also": ["-O"]}},
    "0.11.0": LEVELED | {"--compilation-config": JSON | {"also": ["-O"]}, "--compilation-config.level": {}},
    "0.20.0": SERVE | {"--optimization-level": ONE},
}
del VLLM["0.8.0"]["--compilation-config.mode"], VLLM["0.11.0"]["--compilation-config.mode"]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    return table("vllm", tmp_path_factory.mktemp("vllm"), {v: rows(flag=flags) for v, flags in VLLM.items()})


@pytest.fixture(scope="module")
def sglang(tmp_path_factory):
    flags = {"--model-path": ONE | {"also": ["--model"]}, "--tp-size": ONE | {"also": ["-tp"]}}
    releases = {version: rows(flag=flags) for version in ("0.5.9", "0.5.10", "0.5.16")}
    return table("sglang", tmp_path_factory.mktemp("sglang"), releases)


@pytest.fixture(scope="module")
def serve(vllm):
    return lambda line, version="0.20.0": take_apart(vllm.release(version), "vllm serve", words(line))


class TestVllm:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("--max_model_len 8k", [("--max-model-len", "8k")]),
            ("--max_model_len=a_b", [("--max-model-len", "a_b")]),
            ("--enforce_eager --no_enforce_eager", [("--enforce-eager",), ("--enforce-eager",)]),
            ("-tp 2 -tp=4", [("--tensor-parallel-size", "2"), ("--tensor-parallel-size", "4")]),
            ("--compilation-config.mode 3", [("--compilation-config.mode", "3")]),
            ("--compilation_config.mode=3", [("--compilation-config.mode", "3")]),
            ("--compilation-config.pass_config.x_y=true", [("--compilation-config.pass_config.x_y", "true")]),
            ("--compilation-config.mode --weird", [("--compilation-config.mode", "--weird")]),
            ("-cc.mode 3", [("--compilation-config.mode", "3")]),
            ("-cc.mode=3", [("--compilation-config.mode", "3")]),
            ("--compil.mode=3", [("--compilation-config.mode", "3")]),
            ("--compilation-config.ops+ a,b", [("--compilation-config.ops", '["a", "b"]')]),
            ("--compilation-config.ops+=a", [("--compilation-config.ops", '["a"]')]),
            ("--max-model-len=1.5", [("--max-model-len", "1.5")]),
            ("-O3", [("--optimization-level", "3")]),
            ("-O=3", [("--optimization-level", "3")]),
            ("-O 3", [("--optimization-level", "3")]),
            ("--help=all", [("--help",)]),
        ],
    )
    def test_words_are_changed_before_they_are_compared(self, serve, line, expected):
        taken = serve(f"org/model {line}")
        assert (used(taken), troubles(taken)) == (expected, [])

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("--compilation-config.mode", ("missing value", "--compilation-config.mode")),
            ("--compilation-config.mode 3 4", ("unexpected", "4")),
            ("--enforce-eager.x 1", ("unwanted value", "--enforce-eager.x")),
            ("--no-enforce-eager=1", ("unwanted value", "--no-enforce-eager")),
            ("--nothing.x 1", ("unknown", "--nothing.x")),
            ("-xx.mode 1", ("unknown", "-xx.mode")),
            ("--max-model-len -1.5", ("missing value", "--max-model-len")),  # taken for a dotted flag
            ("-O 7", ("unknown", "-O")),
        ],
    )
    def test_what_the_parser_refuses_is_told(self, serve, line, expected):
        assert troubles(serve(f"org/model {line}"))[0] == expected

    def test_a_pair_tells_whether_it_is_switched_off(self, serve):
        assert [use.off for use in serve("org/model --enforce-eager --no-enforce_eager").uses] == [
            False,
            True,
        ]

    @pytest.mark.parametrize("line", ["-O3", "-O=3", "-O 3", "-O.level 3", "-O.level=3"])
    def test_a_level_was_a_key_of_the_compilation_settings(self, serve, line):
        assert used(serve(f"org/model {line}", "0.11.0")) == [("--compilation-config.level", "3")]

    def test_json_behind_the_letter_is_the_compilation_settings(self, serve):
        assert used(serve("org/model -O {}", "0.11.0")) == [("--compilation-config", "{}")]

    def test_a_level_was_the_value_of_the_compilation_settings_at_first(self, serve):
        assert used(serve("org/model -O3 -O 2", "0.8.0")) == [
            ("--compilation-config", "3"),
            ("--compilation-config", "2"),
        ]


class TestModel:
    @pytest.mark.parametrize(
        "line",
        ["org/model", "org/model -tp 2", "-tp 2 org/model", "-tp 2 -- org/model",
         "--model org/model", "--model org/model -tp 2", "-tp 2 --model=org/model --max-model-len 1"],
    )  # fmt: skip
    def test_the_first_word_that_no_flag_takes_is_the_model(self, serve, line):
        taken = serve(line)
        assert (taken.model, taken.troubles) == (Word("org/model", 1), ())
        given = [
            word for word in line.replace("=", " ").split() if word not in ("--", "--model", "org/model")
        ]
        assert [word for use in taken.uses for word in (use.spelled, *[v.text for v in use.values])] == given

    def test_a_model_that_is_only_known_at_run_time_is_the_model(self, serve):
        taken = serve("$MODEL --max-model-len 1")
        assert (taken.model, taken.whole) == (Word("$MODEL", 1, True), True)

    def test_one_model_is_served(self, serve):
        assert troubles(serve("org/model other")) == [("unexpected", "other")]
        assert troubles(serve("org/model --model other")) == [("unexpected", "org/model")]

    def test_without_one_there_is_none(self, serve):
        assert serve("-tp 2").model is None

    def test_a_flag_without_its_value_is_told(self, serve):
        assert troubles(serve("--model")) == [("missing value", "--model")]

    def test_the_server_module_takes_it_by_flag_only(self, vllm):
        taken = take_apart(vllm.release("0.20.0"), "vllm.entrypoints.openai.api_server", words("--model a b"))
        assert (used(taken), troubles(taken)) == ([("--model", "a")], [("unexpected", "b")])

    @pytest.mark.parametrize(
        ("version", "line", "expected"),
        [
            ("0.5.16", "org/model -tp 2", ([("--model-path", "org/model"), ("--tp-size", "2")], [])),
            ("0.5.16", "--model-type llm org/model", ([("--model-path", "org/model")], [])),
            ("0.5.16", "-tp 2 org/model", ([("--tp-size", "2")], [("unexpected", "org/model")])),
            ("0.5.10", "org/model", ([], [("unexpected", "org/model")])),
            ("0.5.10", "--model-type=llm --model a", ([("--model-path", "a")], [])),
            ("0.5.9", "--model-type=llm", ([], [("unknown", "--model-type")])),
        ],
    )
    def test_sglang_serve_takes_the_model_as_its_first_word_from_0_5_16(
        self, sglang, version, line, expected
    ):
        taken = take_apart(sglang.release(version), "sglang serve", words(line))
        assert (used(taken), troubles(taken)) == expected

    def test_sglang_launch_server_never_does(self, sglang):
        taken = take_apart(sglang.release("0.5.16"), "sglang.launch_server", words("org/model"))
        assert troubles(taken) == [("unexpected", "org/model")]
