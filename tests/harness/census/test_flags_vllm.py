"""The fields of a made-up vLLM's configuration classes are flags, as its parser would have them."""

import pytest

from fixtures.census import parsers
from fixtures.errors import HarnessError
from tests.harness.census.packages_vllm import SERVE, vllm

OTHERS = {"--origins", "--log-level", "--middleware", "--enable-log-requests"}


def one(field, call="group.add_argument('--x', **kwargs['x'])", engine="", **modules):
    """Read the flag of one field; what the frontend and the engine have beside it is left out."""
    rows, gaps = vllm(field, call, engine, **modules)
    assert gaps == []
    return {name: facts for name, facts in rows.items() if name not in OTHERS}


class TestFields:
    @pytest.mark.parametrize(
        ("field", "facts"),
        [
            ("x: str = 'a'", {"takes": "one", "default": "a"}),
            ("x: str | None = None", {"takes": "one", "null": True}),
            ("x: Optional[int] = None", {"takes": "one", "type": "int", "null": True}),
            ("x: int = 4", {"takes": "one", "type": "int", "default": 4}),
            ("x: float = Field(default=0.9, gt=0)", {"takes": "one", "type": "float", "default": 0.9}),
            ("x: bool = False", {"takes": "pair", "off": ["--no-x"], "default": False}),
            ("x: bool | None = None", {"takes": "pair", "off": ["--no-x"]}),
            ("x: Literal['b', 'a'] = 'a'", {"takes": "one", "choices": ["a", "b"], "default": "a"}),
            ("x: Literal['a'] | None = None", {"takes": "one", "choices": ["a"], "null": True}),
            ("x: Literal['a'] | str = 'a'", {"takes": "one", "known": ["a"], "default": "a"}),
            ("x: Literal[1, 2] = 1", {"takes": "one", "type": "int", "choices": ["1", "2"], "default": 1}),
            ("x: list[str] | None = None", {"takes": "some", "null": True}),
            ("x: list[int] = field(default_factory=list)", {"takes": "some", "type": "int", "default": []}),
            ("x: list[Literal['a', 'b']] = field(default_factory=list)",
             {"takes": "some", "choices": ["a", "b"], "default": []}),
            ("x: list[dict[str, Any]] | None = None", {"takes": "some", "null": True}),
            ("x: set[str] | None = None", {"takes": "some", "null": True}),
            ("x: tuple[int, int] | None = None", {"takes": 2, "type": "int", "null": True}),
            ("x: tuple[str, ...] = ()", {"takes": "some", "default": []}),
            ("x: dict[str, Any] = field(default_factory=dict)", {"takes": "one", "type": "json", "default": {}}),
            ("x: dict | None = None", {"takes": "one", "type": "json", "null": True}),
            ("x: dict[str, Any] | str = 'a'", {"takes": "one", "default": "a"}),
            ("x: Annotated[int, 'words'] = 1", {"takes": "one", "type": "int", "default": 1}),
            ("x: SkipValidation[int] = 1", {"takes": "one", "type": "int", "default": 1}),
            ("x: 'int | None' = None", {"takes": "one", "type": "int", "null": True}),
            ("x: Mode = Mode.FAST", {"takes": "one", "known": ["2", "FAST", "FULL_SIZE", "fast"], "default": "fast",
                                     "lower": "case"}),
            ("x: Methods | None = None", {"takes": "one", "choices": ["awq", "fp8"], "null": True}),
            ("x: 'dtype' = read('dtype')", {"takes": "one", "computed": "read('dtype')"}),
        ],
    )  # fmt: skip
    def test_a_type_is_a_way_of_parsing(self, field, facts):
        assert one(field) == {"--x": facts}

    @pytest.mark.parametrize(
        ("call", "facts"),
        [
            ("group.add_argument('--x', '-ex', **kwargs['x'])", {"takes": "one", "default": "a", "also": ["-ex"]}),
            ("group.add_argument('--other', dest='x', default='b')", {"takes": "one", "default": "b", "dest": "x"}),
            ("group.add_argument('--x', **kwargs['x'], deprecated=True)",
             {"takes": "one", "default": "a", "deprecated": True}),
            ("kwargs['x']['choices'] = ['a', 'b']\ngroup.add_argument('--x', **kwargs['x'])",
             {"takes": "one", "default": "a", "choices": ["a", "b"]}),
            ("kwargs['x']['type'] = optional_type(json.loads)\ngroup.add_argument('--x', **kwargs['x'])",
             {"takes": "one", "default": "a", "type": "json", "null": True}),
            ("del kwargs['x']['default']\ngroup.add_argument('--x', **kwargs['x'])", {"takes": "one"}),
            ("for name in ['x']:\n    group.add_argument(f'--{name}', **kwargs[name])",
             {"takes": "one", "default": "a"}),
        ],
    )  # fmt: skip
    def test_a_call_may_change_what_the_field_says(self, call, facts):
        (found,) = one("x: str = 'a'", call).values()
        assert found == facts

    def test_later_names_are_known_where_the_release_registers_them(self):
        parsers = {"tool_parsers": "_TOOL_PARSERS_TO_REGISTER = {'mistral': 1, 'hermes': 2}\n"}
        call = "group.add_argument('--tool-call-parser', **kwargs['tool_call_parser'])"
        assert one("tool_call_parser: str | None = None", call, **parsers) == {
            "--tool-call-parser": {
                "takes": "one", "null": True, "known": ["hermes", "mistral"], "open": True, "lower": "case",
            }
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("engine", "known"),
        [("", ["r1"]), ("def parse_reasoning_parser(value):\n    pass\n", ["r1", "none"])],
    )
    def test_a_reasoning_parser_may_be_none(self, engine, known):
        call = "group.add_argument('--reasoning-parser', **kwargs['reasoning_parser'])"
        table = "_REASONING_PARSERS_TO_REGISTER = {'r1': 1}\n"
        rows = one("reasoning_parser: str = ''", call, engine, reasoning=table)
        assert rows["--reasoning-parser"]["known"] == known

    def test_connectors_are_known_by_the_names_that_are_registered(self):
        factory = "F.register_connector('Nixl', 'a', 'b')\nF.register_connector(name)\nF.other('Gone')\n"
        field = "kv_transfer_config: Transfer | None = None"
        call = "group.add_argument('--kv-transfer-config', **kwargs['kv_transfer_config'])"
        rows = one(field, call, distributed__kv_transfer__kv_connector__factory=factory)
        assert rows["--kv-transfer-config.kv_connector"] == {
            "null": True, "known": ["Nixl"], "open": True, "lower": "case",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("engine", "kind"), [("", "int"), ("def human_readable_int(value):\n    pass\n", "size")]
    )
    def test_a_size_may_have_a_letter_where_the_release_reads_it(self, engine, kind):
        call = "for name in kwargs:\n    group.add_argument(f'--{name}', **kwargs[name])"
        rows = one("max_model_len: int = 1\nx: int = 1", call, engine)
        assert [rows[name]["type"] for name in ("--max_model_len", "--x")] == [kind, "int"]

    @pytest.mark.parametrize(
        ("engine", "facts"),
        [("", {"takes": "pair", "off": ["--no-x"]}), ('KEYS = ["const"]\n', {"takes": "maybe"})],
    )
    def test_a_switch_may_take_a_text_where_the_release_has_such(self, engine, facts):
        assert one("x: bool | str | None = None", engine=engine) == {"--x": facts}

    def test_a_pair_may_have_another_opposite(self):
        call = "group.add_argument('--enable-x', **kwargs['x'], dest='x')"
        parser = "class EnableDisableAction:\n    pass\n"
        rows = one("x: bool = False", call, utils__argparse_utils=parser)
        assert rows["--enable-x"]["off"] == ["--no-enable-x", "--disable-x"]


class TestFrontend:
    def test_a_loop_over_the_items_of_fields_is_followed_with_what_subclasses_change(self):
        rows, gaps = vllm("x: int = 1", "group.add_argument('--x', **kwargs['x'])")
        assert {name: facts for name, facts in rows.items() if name != "--x"} == {
            "--origins": {"takes": "one", "type": "json", "default": ["*"]},
            "--log-level": {"takes": "one", "default": "info"},
            "--middleware": {"takes": "one", "repeat": True, "default": []},
            "--enable-log-requests": {"takes": "pair", "off": ["--no-enable-log-requests"], "default": False},
        }
        assert gaps == []


class TestKeys:
    def test_a_configuration_class_is_a_flag_of_json_with_a_row_for_each_key(self):
        assert one("x: Compilation = field(default_factory=Compilation)") == {
            "--x": {"takes": "one", "type": "json", "extra": "forbid"},
            "--x.level": {"choices": ["0", "1", "2"], "type": "int", "default": 0},
            "--x.backend": {"known": ["a", "b"], "default": "a"},
            "--x.ops": {"type": "json", "default": []},
            "--x.names": {"default": "x"},
            "--x.mode": {"known": ["2", "FAST", "FULL_SIZE", "fast"], "lower": "case", "default": "fast"},
            "--x.passes": {"type": "json", "extra": "forbid"},
            "--x.passes.fuse": {"type": "bool", "default": True},
            "--x.passes.size": {"type": "int", "null": True},
        }

    @pytest.mark.parametrize(
        ("cls", "extra"),
        [("Plain", "ignore"), ("Open", "allow"), ("PassConfig", "forbid")],
    )
    def test_the_class_says_what_becomes_of_other_keys(self, cls, extra):
        assert one(f"x: {cls} | None = None")["--x"] == {
            "takes": "one",
            "type": "json",
            "extra": extra,
            "null": True,
        }

    def test_keys_that_are_looked_at_after_parsing_are_late(self):
        call = "kwargs['x']['type'] = optional_type(json.loads)\ngroup.add_argument('--x', **kwargs['x'])"
        assert one("x: Plain | None = None", call)["--x"]["late"] is True

    def test_a_key_whose_value_the_engine_sees_first_is_free(self):
        rows = one("x: Seen = field(default_factory=Seen)")
        keys = {name.removeprefix("--x."): facts for name, facts in rows.items() if name.count(".") == 1}
        assert {key for key, facts in keys.items() if facts.get("free")} == {
            "names",
            "mode",
            "either",
            "key",
            "draft",
        }
        assert keys["mode"]["choices"] == ["a", "b"]
        assert "--x.either.fuse" in rows
        assert "--x.draft.fuse" not in rows


class TestGaps:
    def test_a_field_that_no_flag_fills_is_reported(self):
        _, gaps = vllm("x: int = 1\ny: int = 2", "group.add_argument('--x', **kwargs['x'])")
        assert gaps == ["no flag fills the field y of AsyncEngineArgs"]

    def test_a_computed_name_is_reported(self):
        _, gaps = vllm(
            "x: int = 1", "group.add_argument('--x', **kwargs['x'])\ngroup.add_argument(unknown())"
        )
        assert gaps == ["a flag's name is computed: [Computed(text='unknown()')]"]

    def test_arguments_that_are_elsewhere_are_reported(self):
        files = {"vllm/entrypoints/cli/serve.py": SERVE}
        assert parsers.read("vllm", files) == ({}, ["AsyncEngineArgs has no fields that the reader sees"])

    @pytest.mark.parametrize("files", [{}, {"vllm/entrypoints/cli/serve.py": "class Serve:\n    pass\n"}])
    def test_a_parser_that_is_built_elsewhere_is_an_error(self, files):
        with pytest.raises(
            HarnessError, match=r"finds no ServeSubcommand\.subparser_init in vllm\.entrypoints"
        ):
            parsers.read("vllm", files)
