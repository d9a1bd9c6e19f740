"""The calls of add_argument in a made-up SGLang are read as its parser would have them, and gaps are told."""

import pytest

from fixtures.census import parsers
from fixtures.errors import HarnessError
from tests.harness.census.packages import sglang


def one(call):
    """Read what one call of add_argument makes, beside a flag for the one field."""
    rows, gaps = sglang(f"parser.add_argument('--port', type=int)\nparser.add_argument({call})")
    assert gaps == []
    ((name, facts),) = [(name, facts) for name, facts in rows.items() if name != "--port"]
    return name, facts


class TestCalls:
    @pytest.mark.parametrize(
        ("call", "facts"),
        [
            ("'--x'", {"takes": "one"}),
            ("'--x', type=str, default='a', help='Some x.'", {"takes": "one", "default": "a"}),
            ("'--x', type=int, default=None", {"takes": "one", "type": "int"}),
            ("'--x', type=float, default=0.0", {"takes": "one", "type": "float", "default": 0.0}),
            ("'--x', type=json.loads", {"takes": "one", "type": "json"}),
            ("'--x', type=os.path.abspath", {"takes": "one", "type": "code"}),
            ("'--x', type=lambda s: s.lower()", {"takes": "one", "lower": "case"}),
            ("'--x', type=lambda s: s.lower().replace('-', '_')", {"takes": "one", "lower": "case and dashes"}),
            ("'--x', type=lambda s: s.upper()", {"takes": "one", "type": "code"}),
            ("'--x', default=os.environ.get('X')", {"takes": "one", "computed": "os.environ.get('X')"}),
            ("'--x', default=argparse.SUPPRESS", {"takes": "one"}),
            ("'--x', default=ServerArgs.port", {"takes": "one", "default": 1}),
            ("'--x', required=True", {"takes": "one", "required": True}),
            ("'--x', nargs='?'", {"takes": "maybe"}),
            ("'--x', nargs='+', type=int", {"takes": "some", "type": "int"}),
            ("'--x', nargs='*'", {"takes": "any"}),
            ("'--x', nargs=2", {"takes": 2}),
            ("'--x', nargs=None", {"takes": "one"}),
            ("'--x', action='store_true'", {"takes": "none"}),
            ("'--x', action='store_false', dest='y', default=True", {"takes": "none", "default": True, "dest": "y"}),
            ("'--x', action='append'", {"takes": "one", "repeat": True}),
            ("'--x', action='extend', nargs='+'", {"takes": "some", "repeat": True}),
            ("'--x', action=argparse.BooleanOptionalAction", {"takes": "pair", "off": ["--no-x"]}),
            ("'--x', '-x', '--ex'", {"takes": "one", "also": ["-x", "--ex"]}),
            ("'-x', '--x'", {"takes": "one", "also": ["-x"]}),
            ("'--x', dest='x'", {"takes": "one"}),
            ("'--x', choices=['b', 'a']", {"takes": "one", "choices": ["a", "b"]}),
            ("'--x', choices=[1, 2], type=int", {"takes": "one", "type": "int", "choices": ["1", "2"]}),
            ("'--x', choices=MORE", {"takes": "one", "choices": ["flashinfer", "triton"]}),
            ("'--x', choices=BACKENDS + FROM_ELSEWHERE", {"takes": "one", "choices": ["triton"], "open": True}),
            ("'--x', choices=FROM_ELSEWHERE", {"takes": "one", "open": True}),
            ("'--x', choices=[level.value for level in Level]", {"takes": "one", "choices": ["high", "low"]}),
            ("'--x', choices=list(get_args(Literal['a', 'b']))", {"takes": "one", "choices": ["a", "b"]}),
            ("'--x', action=Switch", {"takes": "none"}),
            ("'--x', action=Both", {"takes": "some", "type": "code"}),
            ("'--x', action=Both, nargs='*'", {"takes": "any", "type": "code"}),
            ("'--x', action=Collect, type=str, nargs='*'", {"takes": "any", "type": "code"}),
            ("'--x', action=Retired, new_flag='--y'", {"takes": "none", "deprecated": "--y"}),
            ("'--x', action=Stop, error_message='Use --y.'", {"takes": "none", "refused": "Use --y."}),
            ("'--x', action=Retired, nargs=None", {"takes": "one", "type": "code"}),
            ("'--x', action=DeprecatedStore", {"takes": "one", "type": "code", "deprecated": True}),
            ("'--x', help='Deprecated: use --y.'", {"takes": "one", "deprecated": True}),
            ("'--x', help='Not for this.'", {"takes": "one"}),
        ],
    )  # fmt: skip
    def test_a_call_of_add_argument_is_one_flag(self, call, facts):
        assert one(call) == ("--x", facts)

    def test_a_positional_is_no_flag(self):
        rows, gaps = sglang("parser.add_argument('--port')\nparser.add_argument('model', nargs='?')")
        assert (list(rows), gaps) == (["--port"], [])

    @pytest.mark.parametrize(
        "body",
        [
            "for name in ['--a', '--b']:\n    parser.add_argument(name, type=int)",
            "common = {'type': int}\nparser.add_argument('--a', **common)\nparser.add_argument('--b', **common)",
            "group = parser.add_argument_group('g')\nfor n in 'a', 'b':\n    group.add_argument(f'--{n}', type=int)",
            "add_more(parser)",
            "if os.name:\n    parser.add_argument('--a', type=int)\nelse:\n    parser.add_argument('--b', type=int)",
            "from sglang.srt.more import more\nmore(parser)",
        ],
    )
    def test_loops_tables_groups_and_functions_are_followed(self, body):
        more = "def add_more(p):\n    p.add_argument('--a', type=int)\n    p.add_argument('--b', type=int)\n"
        rows, gaps = sglang(
            "parser.add_argument('--port')\n" + body, after=more, more=more.replace("add_more", "more")
        )
        assert {name: rows[name] for name in rows if name != "--port"} == {
            name: {"takes": "one", "type": "int"} for name in ("--a", "--b")
        }
        assert gaps == []


class TestGaps:
    @pytest.mark.parametrize("name", ["os.environ['FLAG']", "f'--{os.name}'", "unknown(1)"])
    def test_a_computed_name_is_reported(self, name):
        rows, gaps = sglang(f"parser.add_argument('--port')\nparser.add_argument({name}, type=int)")
        assert list(rows) == ["--port"]
        assert len(gaps) == 1
        assert gaps[0].startswith("a flag's name is computed: ")

    def test_a_field_that_no_flag_fills_is_reported(self):
        _, gaps = sglang("parser.add_argument('--port')", "port: int = 1\nhost: str = ''\n_cache: int = 0")
        assert gaps == ["no flag fills the field host of ServerArgs"]

    @pytest.mark.parametrize(
        "call",
        ["'--host'", "'--address', '--host'", "'--no-address', dest='host'"],
        ids=["name", "alias", "dest"],
    )
    def test_a_field_is_filled_by_name_alias_or_dest(self, call):
        assert sglang(f"parser.add_argument({call})", "host: str = ''")[1] == []

    def test_arguments_without_fields_are_reported(self):
        assert sglang("parser.add_argument('--port')", "pass")[1] == [
            "ServerArgs has no fields that the reader sees"
        ]

    @pytest.mark.parametrize(
        "files",
        [
            {},
            {"sglang/srt/server_args.py": "class Arguments:\n    pass\n"},
            {"sglang/srt/server_args.py": "class ServerArgs:\n    port: int = 1\n"},
            {"sglang/srt/server_args.py": "from torch import ServerArgs\n"},
        ],
        ids=["no module", "no class", "no method", "a class from elsewhere"],
    )
    def test_a_parser_that_is_built_elsewhere_is_an_error(self, files):
        with pytest.raises(
            HarnessError, match=r"finds no ServerArgs\.add_cli_args in sglang\.srt\.server_args"
        ):
            parsers.read("sglang", files)
