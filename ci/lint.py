"""`python -m ci lint`: hold command lines, variables and requests against what a release takes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fixtures.census.tables import table
from fixtures.engines.rules import ENGINES
from fixtures.errors import HarnessError
from fixtures.lint import check, requests
from fixtures.lint.findings import ERROR, Finding
from fixtures.lint.inputs import from_file, from_words

if TYPE_CHECKING:
    import argparse

    from fixtures.census.tables import Release
    from fixtures.lint.inputs import Request, Start

say = partial(print, flush=True)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m ci`."""
    parser = commands.add_parser(
        "lint",
        help="hold command lines, variables and requests against what a release takes",
        description="Hold command lines against the flags of a release, before GPU time is spent on it. Reads shell "
        "scripts, compose files, Dockerfiles, Kubernetes manifests and documents, or the command after '--'. "
        "The exit code is 1 when the release would refuse something, or silently ignore it.",
        usage="python -m ci lint --vllm VERSION | --sglang VERSION [--format text|json|github] FILE ... | -- COMMAND",
    )
    releases(parser)
    parser.add_argument(
        "--format", choices=("text", "json", "github"), default="text", help="github: annotations of a run"
    )
    parser.add_argument("inputs", nargs="*", type=Path, metavar="FILE")
    parser.set_defaults(run=_run)


def releases(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the release of each engine."""
    for engine in ENGINES:
        parser.add_argument(
            f"--{engine}",
            metavar="VERSION",
            help=f"the {engine} release, such as {table(engine).versions[-1]}",
        )


def _run(chosen: argparse.Namespace) -> int:
    wanted = {engine: version for engine in ENGINES if (version := getattr(chosen, engine))}
    if not wanted:
        raise HarnessError("Say for which release: --vllm VERSION, --sglang VERSION, or both.")
    bound = {engine: table(engine).release(version) for engine, version in wanted.items()}
    starts, asked = read(chosen.inputs, chosen.words)
    found: list[Finding] = []
    looked = 0
    for start in starts:
        if start.engine in bound:
            looked += 1
            found += check.command(bound[start.engine], start)
    for request in asked:
        for release in bound.values():
            looked += 1
            found += requests.fields(release, request)
    if not looked:
        named = ", ".join(sorted({start.engine for start in starts}))
        raise HarnessError(f"The input starts {named} only; name its release: --{named} VERSION.")
    _show(found, chosen.format, bound, looked)
    return 1 if any(finding.level == ERROR for finding in found) else 0


def read(files: list[Path], command: list[str]) -> tuple[list[Start], list[Request]]:
    """Return the starts and requests of the files, and of the command after `--`."""
    starts: list[Start] = []
    asked: list[Request] = []
    for path in files:
        found = from_file(path)
        starts += found[0]
        asked += found[1]
    if command:
        starts.append(from_words(command))
    if not files and not command:
        raise HarnessError("Nothing to look at: give files, or '--' and the command line.")
    return starts, asked


def _show(found: list[Finding], form: str, bound: dict[str, Release], looked: int) -> None:
    if form == "json":
        say(json.dumps([finding.as_json() for finding in found], indent=2, ensure_ascii=False))
        return
    for finding in found:
        say(_github(finding) if form == "github" else _text(finding))
    if form == "text":
        errors = sum(finding.level == ERROR for finding in found)
        against = " and ".join(f"{release.engine} {release.version}" for release in bound.values())
        say(
            f"{looked} looked at for {against}: {_count(errors, 'error')}, {_count(len(found) - errors, 'warning')}"
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _text(finding: Finding) -> str:
    place = _place(finding)
    return f"{place}{': ' if place else ''}{finding.level}: {finding.text}"


def _place(finding: Finding) -> str:
    file = finding.where.split(":", 1)[0].split(",", 1)[0]
    return f"{file}:{finding.line}" if finding.line else finding.where


def _github(finding: Finding) -> str:
    """Return a workflow command of GitHub Actions, which shows the finding at its line."""
    file = finding.where.split(":", 1)[0].split(",", 1)[0]
    where = f"file={_escaped(file, ',:')},line={finding.line}," if finding.line else ""
    return f"::{finding.level} {where}title={_escaped(finding.code, ',:')}::{_escaped(finding.text)}"


def _escaped(text: str, also: str = "") -> str:
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
