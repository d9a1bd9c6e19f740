"""Functions and classes of a package are read without running it."""

import textwrap

import pytest

from fixtures.census.values import Class, Computed, Function, Instance, Member
from tests.harness.census.packages import reader, value


class TestFunctions:
    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("return a + b", "12"),
            ("a += b\nreturn a", "12"),
            ("x, y = b, a\nreturn x + y", "21"),
            ("if a == '1':\n    return 'yes'\nreturn 'no'", "yes"),
            (
                "found = []\nfor x in (a, b):\n    if x == '1':\n        continue\n    found.append(x)\nreturn found",
                ["2"],
            ),
            ("found = {}\nfor k, v in {'a': a}.items():\n    found[k] = v\nreturn found", {"a": "1"}),
            ("d = {'a': 1, 'b': 2}\ndel d['a']\nreturn d", {"b": 2}),
            ("d = dict(a=1)\nd.update(b=2)\nd.pop('a')\nreturn d", {"b": 2}),
            ("def inner(x):\n    return a + x\nreturn inner(b)", "12"),
            ("try:\n    x = a\nexcept ValueError:\n    x = b\nreturn x", "1"),
            ("with open(a) as f:\n    x = b\nreturn x", "2"),
            ("from pkg.base import LIMIT\nreturn LIMIT", 3),
            ("x = 1\nif unknown():\n    x = 2\nelse:\n    x = 3\nreturn x", 2),
            ("if unknown():\n    return unknown()\nreturn 'known'", "known"),
            ("for x in unknown():\n    return x\nreturn 'none'", "none"),
            ("pass", None),
        ],
    )
    def test_statements_are_gone_through(self, body, expected):
        text = "def f(a, b='2', *, c=3):\n" + textwrap.indent(body, "    ")
        assert value("f('1')", text) == expected

    def test_arguments_go_to_their_names(self):
        text = "def f(a, /, b=2, *, c=3, d):\n    return [a, b, c, d]\n"
        assert value("f(1, c=4, d=5)", text) == [1, 2, 4, 5]
        assert value("f(*[1, 2], **{'d': 6})", text) == [1, 2, 3, 6]

    def test_an_argument_that_is_not_given_is_computed(self):
        assert value("f()", "def f(a):\n    return a\n") == Computed("a")

    def test_a_function_that_raises_gives_nothing_known(self):
        assert isinstance(value("f()", "def f():\n    raise ValueError\n    return 1\n"), Computed)

    def test_a_function_that_calls_itself_ends(self):
        assert isinstance(value("f(1)", "def f(x):\n    return f(x)\n"), Computed)

    def test_calls_are_answered_by_overrides_by_name(self):
        seen = []
        text = "from lib import add\ndef f(p):\n    p.add('a', k=1)\n    p.group().add('b')\n    add('c')\n"
        value("f(0)", text, {"add": lambda _, args, given: seen.append((args, given))})
        assert seen == [(["a"], {"k": 1}), (["b"], {}), (["c"], {})]

    def test_a_deep_copy_is_the_thing_itself(self):
        assert value("deepcopy({'a': 1})", "from copy import deepcopy\n") == {"a": 1}

    def test_the_arguments_of_a_literal_are_its_values(self):
        text = "from typing import Literal, get_args\nKinds = Literal['a', 'b']\n"
        assert value("list(get_args(Kinds))", text) == ["a", "b"]


CLASSES = """
    from dataclasses import dataclass, field
    from enum import Enum
    from pydantic import Field
    from typing import ClassVar

    class Kind(str, Enum):
        A = "a"
        B = "b"

        def __str__(self):
            return self.value

    class More(Kind):
        C = "c"

    @dataclass
    class Base:
        kept: ClassVar[int] = 0
        x: int = 1
        y: "list[str]" = field(default_factory=list)

        @classmethod
        def make(cls, given):
            return [cls.top(), given]

        @classmethod
        def top(cls):
            return "base"

        @staticmethod
        def plain(a):
            return a

    class Derived(Base):
        NAME = "derived"
        x: int = 2
        z: int = Field(default=7, gt=0)
        w: int = field(default=8)
        first: int = Field(9)
        u: int

        @classmethod
        def make(cls, given):
            return [*super().make(given), "derived"]

        @classmethod
        def top(cls):
            return "top"
"""


class TestClasses:
    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ("Derived.NAME", "derived"),
            ("Derived.__name__", "Derived"),
            ("[Base.x, Derived.x, Derived.z, Derived.w, Derived.y, Derived.first]", [1, 2, 7, 8, [], 9]),
            ("Derived.plain(1)", 1),
            ("Base.make(1)", ["base", 1]),
            ("Derived.make(1)", ["top", 1, "derived"]),
            ("Kind.A", Member("A", "a")),
            ("Kind.A.value", "a"),
            ("Kind.A.name.lower()", "a"),
            ("[k.value for k in Kind]", ["a", "b"]),
            ("[k.value for k in More]", ["a", "b", "c"]),
            ("list(Kind.__members__)", ["A", "B"]),
            ("Kind('b')", Member("B", "b")),
            ("Derived(x=4).x", 4),
            ("Derived(5).x", 5),
            ("Derived(x=4).z", 7),
        ],
    )
    def test_members_come_from_the_nearest_class(self, expression, expected):
        assert value(expression, CLASSES) == expected

    @pytest.mark.parametrize("expression", ["Derived.u", "Derived.gone", "Kind('z')", "Derived.make"])
    def test_what_a_class_does_not_tell_is_computed(self, expression):
        assert isinstance(value(expression, CLASSES), Computed | Function)

    def test_fields_are_in_order_with_those_of_the_bases_first(self):
        made, _ = reader(CLASSES)
        assert [name for name, _, _ in made.fields(value("Derived", CLASSES))] == [
            "x",
            "y",
            "z",
            "w",
            "first",
            "u",
        ]

    def test_a_call_of_a_class_is_an_instance_with_its_arguments(self):
        got = value("Base(3, y=[])", CLASSES)
        assert isinstance(got, Instance)
        assert (got.of.name, got.given, got.args) == ("Base", {"x": 3, "y": []}, (3,))

    def test_an_enumeration_is_told_by_its_bases(self):
        made, scope = reader(CLASSES)
        classes = [made.named(name, scope) for name in ("Kind", "More", "Base")]
        assert all(isinstance(cls, Class) for cls in classes)
        assert [made.is_enum(cls) for cls in classes] == [True, True, False]

    def test_a_base_of_another_package_is_not_followed(self):
        made, scope = reader("from torch.nn import Module\nclass Layer(Module):\n    a: int = 1\n")
        layer = made.named("Layer", scope)
        assert [cls.name for cls in made.bases(layer)] == ["Layer"]
        assert [name for name, _, _ in made.fields(layer)] == ["a"]


def test_a_variable_of_the_environment_has_its_default():
    text = "class EnvBool:\n    pass\nclass Envs:\n    SGLANG_X = EnvBool(False)\nenvs = Envs()\n"
    assert value("envs.SGLANG_X.get()", text) is False
