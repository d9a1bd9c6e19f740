"""A vLLM that is made up, to be read."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from fixtures.census import parsers

if TYPE_CHECKING:
    from fixtures.census.flags import Facts

SERVE = """
from vllm.entrypoints.openai.cli_args import make_arg_parser

class ServeSubcommand(CLISubcommand):
    name = "serve"

    def subparser_init(self, subparsers):
        parser = subparsers.add_parser(self.name, usage="vllm serve")
        return make_arg_parser(parser)
"""
CLI_ARGS = """
import json
from dataclasses import dataclass, field
from vllm.config import config
from vllm.engine.arg_utils import AsyncEngineArgs, get_kwargs, optional_type

@dataclass
class BaseArgs:
    origins: list[str] = field(default_factory=lambda: ["*"])

    @classmethod
    def _customize(cls, kwargs):
        kwargs["origins"]["type"] = json.loads
        del kwargs["origins"]["nargs"]
        return kwargs

    @classmethod
    def add_cli_args(cls, parser):
        group = parser.add_argument_group(title="Frontend")
        for key, value in cls._customize(get_kwargs(cls)).items():
            group.add_argument(f"--{key.replace('_', '-')}", **value)
        return parser

@dataclass
class FrontendArgs(BaseArgs):
    log_level: str = "info"
    middleware: list[str] = field(default_factory=lambda: [])

    @classmethod
    def _customize(cls, kwargs):
        kwargs = super()._customize(kwargs)
        kwargs["middleware"]["action"] = "append"
        kwargs["middleware"].pop("nargs")
        return kwargs

def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser = FrontendArgs.add_cli_args(parser)
    return AsyncEngineArgs.add_cli_args(parser)
"""
ARG_UTILS = """
import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from vllm.config import ModelConfig

if TYPE_CHECKING:
    from vllm.layers import Methods
else:
    Methods = str

def optional_type(convert):
    return lambda value: None if value in ("", "None") else convert(value)

def get_kwargs(cls):
    return compute(cls)

@dataclass
class EngineArgs:
{fields}

    @staticmethod
    def add_cli_args(parser):
        kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="ModelConfig")
{calls}
        return parser

@dataclass
class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False

    @staticmethod
    def add_cli_args(parser):
        parser = EngineArgs.add_cli_args(parser)
        parser.add_argument(
            "--enable-log-requests",
            action=argparse.BooleanOptionalAction,
            default=AsyncEngineArgs.enable_log_requests,
        )
        return parser
"""
CONFIG = """
from dataclasses import dataclass, field, InitVar
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional, Union
from pydantic import BeforeValidator, Field, SkipValidation, field_validator

if TYPE_CHECKING:
    from vllm.layers import Methods
    from torch import dtype
else:
    Methods = str

def config(cls=None, **options):
    return cls

class Mode(Enum):
    FAST = "fast"
    FULL_SIZE = 2

@config
class PassConfig:
    fuse: bool = True
    size: int | None = None

@config
class Compilation:
    level: Literal[0, 1, 2] = 0
    backend: Literal["a", "b"] | str = "a"
    ops: list[str] = field(default_factory=list)
    names: list[str] | str = "x"
    mode: Mode = Mode.FAST
    passes: PassConfig = field(default_factory=PassConfig)
    made: str = field(init=False)
    shared: ClassVar[int] = 0
    _own: int = 0

@dataclass
class Plain:
    x: float = 0.5

@config(extra="allow")
class Open:
    x: int = 1

@config
class Transfer:
    kv_connector: str | None = None

Key = Annotated[PassConfig | None, BeforeValidator(lambda value: value)]

@config
class Seen:
    plain: int = 1
    names: list[str] = field(default_factory=list)
    mode: Literal["a", "b"] = "a"
    late: int = 1
    either: PassConfig | Literal["all"] = "all"
    key: Key = None
    draft: SkipValidation[PassConfig] = None

    @field_validator("names", "mode", mode="before")
    @classmethod
    def split(cls, value):
        return value

    @field_validator("late")
    @classmethod
    def positive(cls, value):
        return value

    @field_validator("plain", mode="after")
    @classmethod
    def small(cls, value):
        return value

"""
LAYERS = "from typing import Literal\nMethods = Literal['awq', 'fp8']\n"


def vllm(fields: str, calls: str, engine: str = "", **modules: str) -> tuple[dict[str, Facts], list[str]]:
    """Read a release whose ModelConfig has these fields, for which its EngineArgs makes these calls.

    `engine` is put at the end of the engine's module; the names of other modules have two underscores for a dot.
    """
    names = [line.partition(":")[0] for line in fields.splitlines() if line.partition(":")[0].isidentifier()]
    model = "@config\nclass ModelConfig:\n" + textwrap.indent(fields, "    ") + "\n"
    own = "\n".join(f"    {name}: Any = None" for name in names)
    files = {
        "vllm/entrypoints/cli/serve.py": SERVE,
        "vllm/entrypoints/openai/cli_args.py": CLI_ARGS,
        "vllm/engine/arg_utils.py": ARG_UTILS.replace("{fields}", own).replace(
            "{calls}", textwrap.indent(calls, "        ")
        )
        + engine,
        "vllm/config/__init__.py": CONFIG + model,
        "vllm/layers.py": LAYERS,
    }
    return parsers.read(
        "vllm", files | {f"vllm/{name.replace('__', '/')}.py": text for name, text in modules.items()}
    )
