"""Packages that are made up, to be read."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING, Any

from fixtures.census import parsers
from fixtures.census.scopes import Scope
from fixtures.census.static import Reader
from fixtures.census.tree import Tree

if TYPE_CHECKING:
    from fixtures.census.flags import Facts

HEAD = """
import argparse
import dataclasses
import json
import os
from enum import Enum
from typing import Annotated as A, List, Literal, Optional, get_args
from sglang.srt.actions import Both, Collect, Retired, DeprecatedStore, Stop, Switch
from sglang.srt.arg_utils import Arg, add_cli_args_from_dataclass
from sglang.srt.choices import BACKENDS, FROM_ELSEWHERE, MORE, Level

"""
ACTIONS = """
import argparse

class Collect(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        pass

class Switch(argparse._StoreTrueAction):
    pass

class Retired(argparse.Action):
    def __init__(self, option_strings, dest, new_flag=None, nargs=0, **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)

class Stop(Retired):
    def __init__(self, option_strings, dest, error_message=None, nargs=0, **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)

class DeprecatedStore(argparse.Action):
    pass

class Both(argparse.Action):
    def __init__(self, option_strings, dest, nargs="+", **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)
"""
CHOICES = """
from enum import Enum
from other.library import FROM_ELSEWHERE

BACKENDS = ["triton"]
MORE = [*BACKENDS, "flashinfer"]

class Level(str, Enum):
    LOW = "low"
    HIGH = "high"
"""
ARG = "from typing import Any\nclass Arg:\n    help: str = ''\n"
MODULES = {
    "pkg/__init__.py": "from pkg.base import LIMIT\nfrom pkg.base import *\n",
    "pkg/base.py": "LIMIT = 3\nHIDDEN = 'base'\n",
    "pkg/lazy/__init__.py": "def __getattr__(name):\n    return load(name)\n",
    "pkg/lazy/thing.py": "X = 1\n",
    "pkg/broken.py": "def (:\n",
}


def reader(text: str, overrides: dict[str, Any] | None = None) -> tuple[Reader, Scope]:
    """Return a reader of a package with this module in it, and the module's scope."""
    files = MODULES | {"pkg/mod.py": textwrap.dedent(text)}
    made = Reader(Tree(files), overrides)
    return made, Scope(made.tree.module("pkg.mod"))


def value(expression: str, text: str = "", overrides: dict[str, Any] | None = None) -> Any:
    """Return what an expression stands for in a module with this text."""
    made, scope = reader(text, overrides)
    return made.value(ast.parse(expression, mode="eval").body, scope)


def sglang(
    methods: str, fields: str = "port: int = 1", after: str = "", **modules: str
) -> tuple[dict[str, Facts], list[str]]:
    """Read a release whose ServerArgs has these fields, and this body of add_cli_args."""
    lines = [
        "@dataclasses.dataclass",
        "class ServerArgs:",
        textwrap.indent(textwrap.dedent(fields).strip(), "    "),
    ]
    lines += [
        "    @staticmethod",
        "    def add_cli_args(parser):",
        textwrap.indent(textwrap.dedent(methods), "        "),
    ]
    files = {"sglang/srt/server_args.py": HEAD + "\n".join(lines) + "\n" + textwrap.dedent(after)}
    files |= {
        "sglang/srt/actions.py": ACTIONS,
        "sglang/srt/choices.py": CHOICES,
        "sglang/srt/arg_utils.py": ARG,
    }
    files |= {
        f"sglang/srt/{name.replace('__', '/')}.py": textwrap.dedent(text) for name, text in modules.items()
    }
    return parsers.read("sglang", files)
