"""`python -m ci engines`: list, install and remove the engines that have a lock."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fixtures.launch import environments
from fixtures.launch.wheels import GB

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

say = partial(print, flush=True)  # also where the output goes to a file or a pipe


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m ci`."""
    parser = commands.add_parser("engines", help="list, install or remove engine releases")
    parser.set_defaults(run=_list)
    actions = parser.add_subparsers(metavar="ACTION")
    for name, run, text in (
        ("list", _list, "list the releases that have a lock (the default)"),
        ("install", _install, "install a release, unless it is"),
        ("remove", _remove, "remove a release and what was downloaded for it"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(run=run)
        if name != "list":
            action.add_argument("engine", help="vllm or sglang")
            action.add_argument("version", help="such as 0.32.0")


def _list(_: argparse.Namespace) -> None:
    rows = [("ENGINE", "VERSION", "TORCH", "SIZE", "PATH")]
    for engine, version in environments.locked():
        place, found = environments.folder(engine, version), environments.find(engine, version)
        if found:
            rows.append((engine, version, found.torch, f"{_size(place) / GB:.1f} GB", str(place)))
        else:
            rows.append((engine, version, "-", "-", "incomplete" if place.exists() else "not installed"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        say("  ".join((*cells, row[4])))


def _install(chosen: argparse.Namespace) -> None:
    found = environments.ensure(chosen.engine, chosen.version, say=say)
    say(f"{chosen.engine} {chosen.version} with torch {found.torch}: {found.python}")


def _remove(chosen: argparse.Namespace) -> None:
    environments.remove(chosen.engine, chosen.version, say=say)
    say(f"{chosen.engine} {chosen.version} is removed")


def _size(place: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in place.rglob("*"))
