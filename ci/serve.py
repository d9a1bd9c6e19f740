"""`python -m ci model` and `python -m ci command`: what is needed to start by hand what the suite would start."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from fixtures.engines.rules import ENGINES, Catalog, NotApplicable, table
from fixtures.errors import HarnessError
from fixtures.launch import environments, targets
from fixtures.launch.faux import FauxTarget
from fixtures.model import ServerSpec
from fixtures.models.locate import locate
from fixtures.settings import assumptions

if TYPE_CHECKING:
    import argparse


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the two commands."""
    model = commands.add_parser("model", help="build an oracle checkpoint and print its folder")
    model.add_argument("name", metavar="RECIPE")
    model.set_defaults(run=_model)
    command = commands.add_parser("command", help="print the command line of a server")
    command.add_argument("engine", choices=ENGINES)
    command.add_argument("model", metavar="RECIPE")
    command.add_argument("knobs", nargs="*", metavar="KNOB=VALUE")
    command.add_argument(
        "--target", metavar="TARGET", help="venv:VERSION, process:[PYTHON] or faux:[VERSION]"
    )
    command.add_argument("--port", type=int, default=8000)
    command.set_defaults(run=_command)


def _model(chosen: argparse.Namespace) -> None:
    print(locate(chosen.name, environments.root() / "models"))  # noqa: T201 - this is a command


def _command(chosen: argparse.Namespace) -> None:
    text = chosen.target or f"venv:{table(chosen.engine)['engine']['default']}"
    target = targets.parse(chosen.engine, text)
    if not isinstance(target, targets.VenvTarget | targets.ProcessTarget | FauxTarget):
        raise HarnessError(
            f"{text} is not started by a command; name venv:VERSION, process:[PYTHON] or faux:[VERSION]."
        )
    knobs = assumptions(chosen.knobs)
    spec = ServerSpec(chosen.model, tuple(sorted(knobs.items())))
    path = locate(chosen.model, environments.root() / "models")
    try:
        catalog = Catalog.of(target)
        launch = catalog.launch(spec, target.python, str(path), chosen.port)
    except NotApplicable as absent:
        raise HarnessError(f"{absent}.") from None
    if isinstance(target, FauxTarget):
        launch = target.launch(launch)
    settings = [f"{name}={shlex.quote(value)}" for name, value in launch.env.items()]
    print(" ".join([*settings, shlex.join(launch.argv)]))  # noqa: T201
