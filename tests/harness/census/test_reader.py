"""Expressions, names and type hints of a package are read without running it."""

import pytest

from fixtures.census.tree import External
from fixtures.census.values import Computed, Hint
from tests.harness.census.packages import value


class TestExpressions:
    @pytest.mark.parametrize(
        "expression",
        [
            "1", "'a'", "None", "-2.5", "[1, *[2, 3]]", "(1, 'a')", "{1, 2}", "{'a': 1, **{'b': 2}}",
            "1 + 2 * 3", "2 ** 10", "1 << 4", "7 // 2", "[1] + [2]", "'a' + 'b'", "{'a': 1} | {'b': 2}",
            "f'--{1}-x'", "'a' if 1 else 'b'", "not 0", "1 == 1 and 2 in [2]", "3 not in (1, 2)", "[] is not None",
            "[x * 2 for x in [1, 2, 3] if x != 2]", "{k: v for k, v in {'a': 1}.items()}",
            "[a + b for a in 'x'.split() for b in ['y', 'z']]", "{'a': [1, 2]}['a'][-1]",
            "'A-b'.lower().replace('-', '_')", "'--no-x'.removeprefix('--no-')", "', '.join(['a', 'b'])",
            "sorted({'b', 'a'})", "list({'a': 1}.keys())", "len([1, 2])", "max(1, 2)", "list(range(3))", "str(1)",
            "'{}-{}'.format(1, 2)", "(lambda x, y=2: x + y)(1)", "dict(a=1)", "tuple([1])", "int('4')",
        ],
    )  # fmt: skip
    def test_plain_data_is_what_python_makes_of_it(self, expression):
        assert value(expression) == eval(expression)

    @pytest.mark.parametrize(
        "expression",
        ["unknown", "unknown.attribute", "unknown()", "1 / 0", "'a' * 'b'", "[1][5]", "{}['a']", "1 + unknown",
         "f'{unknown}'", "a if unknown else b", "int('x')", "await x", "[1] < [2]", "'a'.no_such()"],
    )  # fmt: skip
    def test_what_only_the_running_program_knows_is_computed(self, expression):
        assert isinstance(value(expression), Computed)

    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ("unknown and False", False),
            ("True or unknown", True),
            ("False or 0", False),
            ("not (unknown and 0)", True),
        ],
    )
    def test_a_condition_is_known_when_its_unknown_part_does_not_matter(self, expression, expected):
        assert value(expression) is expected

    def test_a_computed_element_is_one_element(self):
        computed, known = value("[*unknown, 1]")
        assert (computed, known) == (Computed("unknown"), 1)

    def test_what_is_computed_shows_the_expression(self):
        assert value("os . environ[ 'A' ]") == Computed("os.environ['A']")


class TestNames:
    @pytest.mark.parametrize(
        ("text", "expression", "expected"),
        [
            ("A = 1\nB = A + 1\n", "B", 2),
            ("from pkg.base import LIMIT as TOP\n", "TOP", 3),
            ("from pkg import LIMIT\n", "LIMIT", 3),
            ("from pkg import HIDDEN\n", "HIDDEN", "base"),
            ("from .base import HIDDEN\n", "HIDDEN", "base"),
            ("from . import base\n", "base.LIMIT", 3),
            ("import pkg.base\n", "pkg.base.LIMIT", 3),
            ("import pkg.base as b\n", "b.LIMIT", 3),
            ("from pkg.lazy import thing\n", "thing.X", 1),
            ("A: int = 5\n", "A", 5),
            ("if X:\n    A = 1\nelse:\n    A = 2\n", "A", 1),
            ("try:\n    import fast\n    A = 1\nexcept ImportError:\n    A = 2\n", "A", 1),
            ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    A = 'truth'\nelse:\n    A = 'stand-in'\n",
             "A", "truth"),
            ("from torch import nn\n", "nn", External("torch.nn")),
            ("import torch\n", "torch.nn.Linear", External("torch.nn.Linear")),
            ("", "print", External("builtins.print")),
            ("", "int", int),
            ("from pkg.gone import A\n", "A", External("pkg.gone.A")),
            ("from pkg.broken import A\n", "A", External("pkg.broken.A")),
        ],
    )  # fmt: skip
    def test_names_are_followed_to_where_they_are_defined(self, text, expression, expected):
        assert value(expression, text) == expected

    @pytest.mark.parametrize("text", ["A = A\n", "A = B\nB = A\n", "from pkg.mod import A\n"])
    def test_names_that_stand_for_each_other_end(self, text):
        assert isinstance(value("A", text), Computed | External)


class TestHints:
    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ("Literal['a', 'b']", Hint("literal", ("a", "b"))),
            ("Literal[Literal['a'], 'b']", Hint("literal", ("a", "b"))),
            ("int | None", Hint("union", (int, None))),
            ("Optional[int]", Hint("union", (int, None))),
            ("Union[int, str | None]", Hint("union", (int, str, None))),
            ("list[str]", Hint("list", (str,))),
            ("List['int']", Hint("list", (int,))),
            ("dict[str, int] | str", Hint("union", (Hint("dict", (str, int)), str))),
            ("tuple[int, ...]", Hint("tuple", (int, Ellipsis))),
            ("Annotated[int, 'help']", Hint("annotated", (int, "help"))),
            ("SkipValidation[int]", int),
        ],
    )
    def test_type_hints_are_kept_as_such(self, expression, expected):
        typing = "from typing import Annotated, List, Literal, Optional, Union\nfrom pydantic import SkipValidation\n"
        assert value(expression, typing) == expected
