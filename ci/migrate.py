"""`python -m ci migrate`: write a command line for another release, and say what changed and why."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci import lint
from fixtures.census.tables import table
from fixtures.engines.rules import ENGINES
from fixtures.errors import HarnessError
from fixtures.lint import check
from fixtures.lint.findings import ERROR
from fixtures.lint.migrate import as_command, defaults, migrate

if TYPE_CHECKING:
    import argparse

    from fixtures.census.tables import Release
    from fixtures.lint.inputs import Start

say = partial(print, flush=True)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m ci`."""
    parser = commands.add_parser(
        "migrate",
        help="write a command line for another release",
        description="Write a command line for another release. The new one goes to stdout, the reason of each change "
        "and the defaults that are different to stderr. The exit code is 1 when something is left that the release "
        "would refuse or ignore.",
        usage="python -m ci migrate --vllm OLD..NEW | --sglang OLD..NEW [FILE ...] [-- COMMAND]",
    )
    for engine in ENGINES:
        parser.add_argument(f"--{engine}", metavar="OLD..NEW", help="such as 0.10.2..0.33.0")
    parser.add_argument("inputs", nargs="*", type=Path, metavar="FILE")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    bound = {engine: _both(engine, span) for engine in ENGINES if (span := getattr(chosen, engine))}
    if not bound:
        raise HarnessError("Say from which release to which: --vllm OLD..NEW or --sglang OLD..NEW.")
    starts = [start for start in lint.read(chosen.inputs, chosen.words)[0] if start.engine in bound]
    if not starts:
        raise HarnessError(f"The input has no command line of {' or '.join(bound)}.")
    return max(_one(*bound[start.engine], start) for start in starts)


def explain(text: str) -> None:
    """Say why, beside the new command line, which alone goes to stdout."""
    sys.stderr.write(f"{text}\n")


def _both(engine: str, span: str) -> tuple[Release, Release]:
    old, dots, new = span.partition("..")
    if not (old and dots and new):
        raise HarnessError(f"'{span}' is no pair of releases. Write it like 0.10.2..0.33.0.")
    return table(engine).release(old), table(engine).release(new)


def _one(before: Release, after: Release, start: Start) -> int:
    made = migrate(before, after, start)
    explain(f"# {start.where}: {before.engine} {before.version} to {after.version}")
    for change in made.changes:
        explain(f"# - {change}")
    left = check.command(after, made.start)
    for finding in left:
        explain(f"# {finding.level}: {finding.text}")
    for change in defaults(before, after, made.start):
        explain(f"# default: {change}")
    say(as_command(made.start))
    return int(any(finding.level == ERROR for finding in left))
