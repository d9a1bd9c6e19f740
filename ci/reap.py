"""`python -m ci reap`: remove what killed runs have left on this machine and its docker daemon."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import TYPE_CHECKING

from fixtures.errors import HarnessError
from fixtures.launch import reap

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from fixtures.launch.reap import Left

say = partial(print, flush=True)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m ci`."""
    text = "remove the containers, networks, volumes and processes that killed runs of this suite have left"
    parser = commands.add_parser("reap", help=text, description=f"{text}; what a living run uses stays")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and leave it")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    found = list(itertools.chain(_containers(), reap.processes()))
    if not found:
        say("nothing is left of any dead run")
    if chosen.dry_run:
        for left in found:
            say(f"would remove {left.what}")
        return 0
    return 1 if reap.sweep(iter(found), say) else 0


def _containers() -> Iterator[Left]:
    """Look on the daemon, which a machine without docker need not have; one that was named must answer."""
    try:
        yield from reap.containers()
    except HarnessError as error:
        if "DOCKER_HOST" in os.environ:
            raise
        say(f"no containers were looked for: {error}")
