"""The annotated fields of a made-up SGLang are flags, as its parser would have them."""

import pytest

from tests.harness.census.packages import sglang


class TestAnnotated:
    BODY = "add_cli_args_from_dataclass(parser, ServerArgs)"

    @pytest.mark.parametrize(
        ("field", "name", "facts"),
        [
            ("x: A[str, 'The x.'] = 'a'", "--x", {"takes": "one", "default": "a"}),
            ("x: A[int, 'Number'] = 1", "--x", {"takes": "one", "type": "int", "default": 1}),
            ("x: A[Optional[float], 'The x.'] = None", "--x", {"takes": "one", "type": "float"}),
            ("x: A[bool, 'The x.'] = False", "--x", {"takes": "none", "default": False}),
            ("x: A[str, 'The x.']", "--x", {"takes": "one", "required": True}),
            ("x: A[str, Arg(help='The x.', required=False)]", "--x", {"takes": "one"}),
            ("two_words: A[str, Arg(help='x', aliases=['--ex', '-x'])] = ''", "--two-words",
             {"takes": "one", "also": ["--ex", "-x"], "default": ""}),
            ("x: A[str, Arg(cli_name='--other')] = 'a'", "--other", {"takes": "one", "default": "a", "dest": "x"}),
            ("x: A[Literal['a', 'b'], 'The x.'] = 'a'", "--x",
             {"takes": "one", "choices": ["a", "b"], "default": "a"}),
            ("x: A[str, Arg(choices=MORE)] = 'triton'", "--x",
             {"takes": "one", "choices": ["flashinfer", "triton"], "default": "triton"}),
            ("x: A[Optional[List[int]], 'The x.'] = None", "--x", {"takes": "some", "type": "int"}),
            ("x: A[Optional[List[str]], Arg(nargs='*')] = None", "--x", {"takes": "any"}),
            ("x: A[str, Arg(nargs='?')] = None", "--x", {"takes": "maybe"}),
            ("x: A[dict, Arg(type_parser=json.loads)] = None", "--x",
             {"takes": "one", "type": "json"}),
            ("x: A[bool, Arg(action=argparse.BooleanOptionalAction)] = True", "--x",
             {"takes": "pair", "off": ["--no-x"], "default": True}),
            ("x: A[list, Arg(action=Collect, action_kwargs={'type': str, 'nargs': '*'})] = None", "--x",
             {"takes": "any", "type": "code"}),
            ("x: A[str, Arg(help='Deprecated, use --y.')] = 'a'", "--x",
             {"takes": "one", "deprecated": True, "default": "a"}),
            ("x: A[List[str], 'The x.'] = dataclasses.field(default_factory=list)", "--x",
             {"takes": "some", "default": []}),
        ],
    )  # fmt: skip
    def test_an_annotated_field_is_a_flag(self, field, name, facts):
        rows, gaps = sglang(self.BODY, field)
        assert (rows, gaps) == ({name: facts}, [])

    def test_a_field_without_the_command_line_is_no_flag(self):
        rows, gaps = sglang(
            self.BODY, "port: A[int, 'The port.'] = 1\nx: A[int, Arg(no_cli=True)] = 1\n_own: int = 1"
        )
        assert (list(rows), gaps) == (["--port"], [])

    def test_fields_come_from_a_class_for_each_topic(self):
        topics = {
            "fields__a": "from typing import Annotated as A\nclass Model:\n    name: A[str, 'Its name.'] = 'x'\n",
            "fields__b": "from typing import Annotated as A\nclass Memory:\n    share: A[float, 'The share.'] = 0.9\n",
        }
        after = (
            "from sglang.srt.fields.a import Model\nfrom sglang.srt.fields.b import Memory\n"
            "_INPUT_NAMESPACES = [Model, Memory]\nServerArgs = make(_INPUT_NAMESPACES)\n"
            "def _declared_default(name):\n    return look_up(name)\n"
        )
        body = f"{self.BODY}\nparser.add_argument('--kept', default=_declared_default('share'))"
        rows, gaps = sglang(body, "pass", after, **topics)
        assert rows == {
            "--name": {"takes": "one", "default": "x"},
            "--share": {"takes": "one", "type": "float", "default": 0.9},
            "--kept": {"takes": "one", "default": 0.9},
        }
        assert gaps == []

    def test_names_that_are_looked_up_later_are_known(self):
        algorithms = "from enum import Enum\nclass SpeculativeAlgorithm(Enum):\n    NONE = 0\n    EAGLE = 1\n"
        field = "speculative_algorithm: A[Optional[str], 'The algorithm.'] = None"
        rows, _ = sglang(self.BODY, field, speculative__spec_info=algorithms)
        assert rows["--speculative-algorithm"] == {
            "takes": "one", "known": ["EAGLE", "NEXTN"], "open": True, "lower": "case",
        }  # fmt: skip
