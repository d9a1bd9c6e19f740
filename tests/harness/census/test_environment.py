"""Registries and reads of variables in modules made up here, in the two engines' manners."""

from __future__ import annotations

import pytest

from fixtures.census import environment
from fixtures.census.archive import Source
from fixtures.errors import HarnessError

VLLM = """
import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    VLLM_SHAPE: Literal["round", "square"] = "round"
    VLLM_TYPED: int = 0
    VLLM_WORDS: set[str] = set()
    VLLM_MAYBE: float | None = 0.5


def _port():
    return os.getenv("VLLM_PORT")


def one_of(env_name, default, choices):
    return lambda: os.getenv(env_name, default)


def is_set(name):
    return name in os.environ


environment_variables: dict[str, object] = {
    "VLLM_TYPED": lambda: int(os.getenv("VLLM_TYPED", "5")),
    "VLLM_WORDS": lambda: set(sorted(os.environ["VLLM_WORDS"])),
    "VLLM_ON": lambda: os.environ.get("VLLM_ON", "1").strip().lower() in ("1", "true"),
    "VLLM_SIZE": lambda: 2 * int(os.getenv("VLLM_SIZE", str(1 << 4))),
    "VLLM_SHAPE": one_of("VLLM_SHAPE", "round", ["round", "square"]),
    "VLLM_MAYBE": lambda: maybe_convert_float(os.getenv("VLLM_MAYBE", None)),
    "VLLM_PORT": _port,
    "VLLM_HOST": lambda: os.getenv("VLLM_HOST", "") or os.getenv("VLLM_FALLBACK"),
    "VLLM_FALLBACK": lambda: os.getenv("VLLM_FALLBACK"),
    "VLLM_IDLE": lambda: os.getenv("VLLM_IDLE"),
}
"""

SGLANG = """
import os
from enum import IntEnum


class Level(IntEnum):
    OFF = 0


class Envs:
    SGLANG_ON = EnvBool(True)
    SGLANG_SIZE = EnvInt(4 * 1024)
    SGLANG_LEVEL = EnvInt(Level.OFF)
    SGLANG_NAMES = EnvTuple(tuple())
    SGLANG_DIR = EnvStr(lambda: os.path.expanduser("~"))
    SGLANG_NEW = EnvIntWithAlias(2, deprecated_name="SGLANG_FORMER")
    SGLANG_SHAPE = EnvEnum("round")
    SGLANG_HUGE = EnvInt(2**99999999999)
    SGLANG_LONG = EnvStr("a" * 99999999999)


envs = Envs()


def _print_deprecated(old_name, new_name=None):
    if old_name in os.environ:
        os.environ[new_name] = os.environ[old_name]


_print_deprecated("SGLANG_OLD", "SGLANG_ON")
_print_deprecated("SGLANG_GONE")
_warned("SGLANG_NOT", "Use '--not'.")

_DEPRECATED_ENVS = {
    "SGLANG_FLAGGED": _Deprecated(note="Use '--flagged' for SGLANG_FLAGGED."),
    "SGLANG_DROPPED": _Deprecated(),
}
"""


def rows(engine="vllm", registry=None, **modules):
    """Return the rows of a package with a registry and the modules given by name, `__` for a folder."""
    home = {"vllm": "vllm/envs.py", "sglang": "sglang/srt/environ.py"}[engine]
    files = {home: {"vllm": VLLM, "sglang": SGLANG}[engine] if registry is None else registry}
    files |= {f"{engine}/__init__.py": ""}
    files |= {f"{engine}/{name.replace('__', '/')}.py": text for name, text in modules.items()}
    return environment.rows(Source(engine, "1.0", "", "", "", {"METADATA": "see envs.VLLM_IDLE", **files}))


class TestVllmRegistry:
    def test_the_default_is_what_the_getter_gives_and_not_what_type_checkers_are_told(self):
        assert rows(a="envs.VLLM_TYPED")["VLLM_TYPED"] == {"type": "int", "default": 5, "declared": True}

    @pytest.mark.parametrize(
        ("name", "facts"),
        [
            ("VLLM_ON", {"type": "bool", "default": True}),
            ("VLLM_SIZE", {"type": "int", "default": 32}),
            ("VLLM_SHAPE", {"type": "str", "default": "round", "choices": ["round", "square"]}),
            ("VLLM_MAYBE", {"type": "float", "default": None}),
            ("VLLM_WORDS", {"type": "list", "default": []}),
        ],
    )
    def test_conversions_choices_and_types_are_read(self, name, facts):
        assert rows(a=f"envs.{name}")[name] == {**facts, "declared": True}

    @pytest.mark.parametrize(
        "use",
        [
            "x = envs.VLLM_IDLE",
            "if envs.VLLM_IDLE == 3: pass",
            "from vllm.envs import VLLM_ON, VLLM_IDLE",
            "from vllm.envs import (\n    VLLM_ON,\n    VLLM_IDLE,\n)",
            "envs.is_set('VLLM_IDLE')",
            "getattr(envs, 'VLLM_IDLE')",
            "import os; os.environ['VLLM_IDLE']",
        ],
    )
    def test_a_variable_that_a_module_asks_for_is_in_use(self, use):
        assert "unread" not in rows(a=use)["VLLM_IDLE"]

    @pytest.mark.parametrize(
        "use",
        [
            "",
            "# envs.VLLM_IDLE",
            "envs.VLLM_IDLE = 3",
            "'use `envs.VLLM_IDLE` instead'",
            "import os; os.environ['VLLM_IDLE'] = '1'",
            "envs.VLLM_IDLENESS",
        ],
    )
    def test_a_variable_that_no_module_asks_for_is_unread(self, use):
        assert rows(a=use)["VLLM_IDLE"] == {"declared": True, "default": None, "unread": True}

    def test_what_only_a_test_asks_for_is_unread(self):
        assert rows(tests__a="envs.VLLM_IDLE")["VLLM_IDLE"]["unread"]

    def test_a_name_that_is_handed_on_as_a_text_is_in_use(self):
        assert "unread" not in rows(a="from vllm import envs\nask('VLLM_IDLE')")["VLLM_IDLE"]
        assert rows(a="from vllm import envs\ntable = {'VLLM_IDLE': 1}")["VLLM_IDLE"]["unread"]

    def test_what_the_entry_of_another_variable_reads_is_in_use(self):
        found = rows()
        assert "unread" not in found["VLLM_FALLBACK"]
        assert found["VLLM_HOST"]["unread"]

    def test_the_registry_of_the_engine_has_the_last_word(self):
        other = (
            "import os\nenvironment_variables: dict = {'VLLM_TYPED': lambda: os.getenv('VLLM_TYPED', '7')}\n"
        )
        assert rows(a_first=other, zz_last=other)["VLLM_TYPED"]["default"] == 5

    def test_the_function_that_an_entry_names_is_part_of_it(self):
        assert rows()["VLLM_PORT"]["unread"]
        assert "unread" not in rows(a="envs.VLLM_PORT")["VLLM_PORT"]


class TestSglangRegistry:
    @pytest.mark.parametrize(
        ("name", "facts"),
        [
            ("SGLANG_ON", {"type": "bool", "default": True}),
            ("SGLANG_SIZE", {"type": "int", "default": 4096}),
            ("SGLANG_LEVEL", {"type": "int", "default": 0}),
            ("SGLANG_NAMES", {"type": "list", "default": []}),
            ("SGLANG_DIR", {"type": "str"}),
            ("SGLANG_NEW", {"type": "int", "default": 2}),
            ("SGLANG_SHAPE", {"default": "round"}),
            ("SGLANG_HUGE", {"type": "int"}),
            ("SGLANG_LONG", {"type": "str"}),
        ],
    )
    def test_the_descriptor_gives_type_and_default(self, name, facts):
        assert rows("sglang", a=f"envs.{name}.get()")[name] == {**facts, "declared": True}

    @pytest.mark.parametrize("use", ["envs.SGLANG_ON.get()", "if envs.SGLANG_ON.is_set(): pass"])
    def test_a_variable_that_a_module_gets_is_in_use(self, use):
        assert "unread" not in rows("sglang", a=use)["SGLANG_ON"]

    @pytest.mark.parametrize("use", ["envs.SGLANG_ON.set(True)", "with envs.SGLANG_ON.override(1): pass"])
    def test_a_variable_that_is_only_set_is_unread(self, use):
        assert rows("sglang", a=use)["SGLANG_ON"]["unread"]

    @pytest.mark.parametrize(
        ("name", "facts"),
        [
            ("SGLANG_FORMER", {"old": True, "replacement": "SGLANG_NEW"}),
            ("SGLANG_OLD", {"old": True, "replacement": "SGLANG_ON"}),
            ("SGLANG_GONE", {"old": True}),
            ("SGLANG_FLAGGED", {"old": True, "replacement": "--flagged"}),
            ("SGLANG_DROPPED", {"old": True}),
        ],
    )
    def test_names_that_are_no_longer_to_be_used_are_old(self, name, facts):
        assert rows("sglang")[name] == facts

    def test_a_function_that_reads_nothing_makes_no_variable(self):
        assert "SGLANG_NOT" not in rows("sglang")


class TestReads:
    @pytest.mark.parametrize(
        ("code", "facts"),
        [
            ("os.environ['X_Y']", {}),
            ("os.environ.get('X_Y')", {}),
            ("os.getenv('X_Y', 'a')", {"default": "a"}),
            ("os.getenv(key='X_Y', default='a')", {"default": "a"}),
            ("getenv('X_Y')", {}),
            ("'X_Y' in os.environ", {}),
            ("'X_Y' not in os.environ", {}),
            ("os.environ.setdefault('X_Y', 'a')", {"default": "a"}),
            ("os.environ.pop('X_Y', None)", {}),
            ("int(os.environ.get('X_Y', 4))", {"type": "int", "default": 4}),
            ("int(os.environ['X_Y'])", {"type": "int"}),
            ("bool(int(os.getenv('X_Y', '0')))", {"type": "bool", "default": False}),
            ("float(os.getenv('X_Y', LIMIT))", {"type": "float", "default": 2.5}),
            ("os.getenv('X_Y', '0') == '1'", {"type": "bool", "default": False}),
            ("os.getenv('X_Y', 'yes').lower() in ('true', 'yes')", {"type": "bool", "default": True}),
            ("os.getenv('X_Y', 'true') == 'true'", {"type": "bool", "default": True}),
            ("os.getenv('X_Y', 'fast') == 'slow'", {"default": "fast"}),
            ("os.getenv('X_Y', 'fast') == 1", {"default": "fast"}),
            ("os.getenv('X_Y', compute())", {}),
            ("os.getenv('X_Y', float('inf'))", {}),
            ("os.getenv('X_Y', {'a': 1})", {"default": {"a": 1}}),
            ("os.getenv('X_Y', {**more})", {}),
            ("os.getenv('X_Y', f'{LIMIT}')", {"default": "2.5"}),
            ("os.getenv('X_Y', f'{LIMIT:.1f}')", {}),
        ],
    )
    def test_every_way_of_asking_is_known(self, code, facts):
        assert rows(a=f"import os\nLIMIT = 2.5\nx = {code}")["X_Y"] == facts

    @pytest.mark.parametrize(
        "code",
        [
            "os.environ['X_Y'] = '1'",
            "del os.environ['X_Y']",
            "os.environ.update({'X_Y': '1'})",
            "os.environ.encodekey('X_Y')",
            "table.get('X_Y')",
            "name = input(); os.environ[name]",
            "# os.environ['X_Y']",
        ],
    )
    def test_setting_a_variable_or_reading_something_else_makes_no_row(self, code):
        assert "X_Y" not in rows(a=f"import os\nos.environ.get('A_B')\n{code}")

    @pytest.mark.parametrize(
        "code",
        [
            "NAME = 'X_Y'\nos.environ[NAME]",
            "PREFIX = 'X'\nos.environ[f'{PREFIX}_Y']",
            "PREFIX = 'X'\nos.environ[PREFIX + '_Y']",
            "class A:\n    name = 'X_Y'\n    def f(self):\n        return os.environ[self.name]",
            "def f():\n    name = 'X_Y'\n    if name in os.environ: pass",
            "for name in ('A_B', 'X_Y'):\n    os.environ.get(name)",
            "found = [os.environ[n] for n in sorted(['X_Y'])]",
            "NAMES = {'X_Y': 1}\nfor name, value in NAMES.items():\n    os.environ.get(name)",
            "for name in {'X_Y': 1}:\n    os.environ.get(name)",
            "for name in {'X_Y': 1}.keys():\n    os.environ.get(name)",
            "NAMES = [(1, 'X_Y')]\nfor place, name in NAMES:\n    os.environ.get(name)",
            "os.environ['X_Y' if fast else 'A_B']",
            "from vllm.names import X_NAME\nos.environ[X_NAME]",
            "from vllm import names\nos.environ[names.X_NAME]",
            "def f():\n    env = os.environ.copy()\n    return env.get('X_Y')",
            "def f():\n    env = dict(os.environ)\n    return env['X_Y']",
        ],
    )
    def test_names_may_be_constants_or_run_through_them(self, code):
        assert "X_Y" in rows(a=f"import os\n{code}", names="X_NAME = 'X_Y'\n")

    @pytest.mark.parametrize(
        "code",
        [
            "A = B\nB = A\nos.environ[A]",
            "for a in a:\n    os.environ[a]",
            "os.getenv(*['X_Y'])",
            "os.environ[f'{NAME:>9}']",
            "os.environ[names.X_NAME + 1]",
            "NAME: str\nos.environ[NAME]",
            "NAME = 'X_Y'\nNAME = other\nos.environ['' + NAME]",
            "for a, b in [('A_B',), 'X_Y', ('A_B', 3)]:\n    os.environ[b]",
            "for a in [('X_Y', 1)]:\n    os.environ[a]",
            "for a in {**more, **{'X_Y': 1}}:\n    os.environ[a]",
            "x.y = x[0] = os.environ\nx[1]: int = 1\nx['X_Y']",
            "from vllm.names import NUMBER\nos.environ[NUMBER]",
            "from nowhere import X_Y\nos.environ[X_Y]",
        ],
    )
    def test_code_that_says_no_name_is_skipped(self, code):
        names = "X_NAME = 'X_Y'\nNUMBER = 3\n"
        assert "X_Y" not in rows(a=f"import os\n{code}", names=names)

    def test_a_function_that_takes_the_name_reads_what_it_is_called_with(self):
        helper = (
            "import os\ndef get_bool_env_var(name, default='false'):\n    return os.getenv(name, default)\n"
        )
        use = "from vllm.utils import get_bool_env_var\nget_bool_env_var({})\n"
        assert rows(utils=helper, a=use.format("'X_Y'"))["X_Y"] == {"type": "bool", "default": False}
        assert rows(utils=helper, a=use.format("'X_Y', 'true'"))["X_Y"] == {"type": "bool", "default": True}
        assert rows(utils=helper, a=use.format("name='X_Y', default='0'"))["X_Y"]["default"] is False

    def test_a_function_that_has_no_default_gives_none(self):
        code = "import os\ndef env_bool(name):\n    return os.getenv(name)\nenv_bool('X_Y')\n"
        assert rows(a=code)["X_Y"] == {"type": "bool"}

    def test_so_does_a_function_that_calls_it(self):
        inner = "import os\ndef _read_env(name):\n    return os.environ[name]\n"
        outer = "def whole_env_number(unit, name):\n    return _read_env(name)\nwhole_env_number(8, 'X_Y')\n"
        assert rows(a=inner + outer)["X_Y"] == {}
        assert "8" not in rows(a=inner + outer)

    def test_a_method_counts_without_the_object_itself(self):
        code = (
            "import os\nclass A:\n    def read(self, name):\n        return os.environ[name]\nA().read('X_Y')"
        )
        assert "X_Y" in rows(a=code)

    def test_what_places_do_not_agree_on_is_left_out(self):
        two = "import os\nos.getenv('X_Y', '1')\nint(os.getenv('X_Y', '2'))\n"
        assert rows(a=two)["X_Y"] == {"type": "int"}
        two = "import os\nint(os.getenv('X_Y', '1'))\nos.getenv('X_Y', True)\n"
        assert rows(a=two)["X_Y"] == {"type": "int"}

    def test_tests_and_modules_that_cannot_be_parsed_are_left_out(self):
        found = rows(
            tests__a="import os\nos.environ['X_Y']",
            test_b="import os\nos.environ['X_Y']",
            c="import os\nos.environ[",
        )
        assert "X_Y" not in found

    def test_a_variable_of_the_registry_keeps_what_the_registry_says(self):
        found = rows(a="import os\nos.getenv('VLLM_TYPED', 'other')")
        assert found["VLLM_TYPED"]["default"] == 5


@pytest.mark.parametrize(
    ("engine", "registry"), [("vllm", "variables = {}"), ("sglang", "class Envs:\n    A = Variable(True)")]
)
def test_a_release_without_a_registry_is_read_incompletely(engine, registry):
    with pytest.raises(
        HarnessError, match=rf"census of {engine} 1\.0 found no registry of environment variables"
    ):
        rows(engine, registry, a="import os\nos.environ['X_Y']")
