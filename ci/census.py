"""`python -m ci census`: read what a release has from its sources, compare releases, and make the shipped tables."""

from __future__ import annotations

import json
import random
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from fixtures.census import archive, release, tables
from fixtures.engines.rules import ENGINES, Catalog
from fixtures.errors import HarnessError
from fixtures.launch import environments
from fixtures.lint import agreement
from fixtures.model import ServerSpec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from fixtures.census.tables import Rows

OLDEST = {"vllm": "0.8.0", "sglang": "0.4.6"}  # the first releases of the shipped tables
IN_FULL = {
    "vllm": "0.19.0",
    "sglang": "0.5.8",
}  # from these on every kind must be read; before them, the flags
_PROBE = Path(release.__file__).with_name("probe.py")
_TITLES = {"came": "new", "went": "gone", "changed": "changed"}
_LINES = 800  # command lines that --check asks the parser about
_IN_CODE = "type=value_error"  # a rule that a configuration class has in code, which no census sees
say = partial(print, flush=True)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m ci`."""
    parser = commands.add_parser(
        "census",
        help="what an engine release has: flags, variables, metrics, request fields, models, pins",
        description="Read what a release has from the archive on the package index; nothing of it is run. "
        "Two versions with '..' between them are compared.",
    )
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument(
        "version", nargs="?", help="such as 0.33.0, or 0.32.0..0.33.0; without it, what is shipped"
    )
    parser.add_argument(
        "--archive", type=Path, metavar="FILE", help="read this wheel or sdist in place of the index's"
    )
    parser.add_argument(
        "--list", choices=tables.KINDS, metavar="KIND", help=f"print one kind: {', '.join(tables.KINDS)}"
    )
    parser.add_argument("--add", action="store_true", help="put the release into the shipped table")
    parser.add_argument("--all", action="store_true", help="make the shipped table anew, from all releases")
    parser.add_argument("--downloads", type=Path, metavar="FOLDER", help="keep what is downloaded there")
    parser.add_argument(
        "--check", action="store_true",
        help=f"ask the parser of the installed engine: are its flags those of the census, and does it take and refuse "
        f"the same of {_LINES} command lines?",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    if chosen.all:
        return _rebuild(chosen.engine, chosen.downloads)
    if chosen.version is None:
        return _shipped(chosen.engine)
    if ".." in chosen.version:
        before, after = chosen.version.split("..", 1)
        return _compare(chosen.engine, before, after)
    if chosen.check:
        return _check(chosen.engine, chosen.version)
    return _read(chosen)


def _shipped(engine: str) -> int:
    table = tables.table(engine)
    for place, version in enumerate(table.versions):
        names = table.release(version).names
        counts = ", ".join(f"{len(names[kind])} {kind}s" for kind in tables.KINDS)
        say(f"{engine} {version}: {counts}  ({table.origins[place].file})")
    return 0


def _read(chosen: argparse.Namespace) -> int:
    source = (
        archive.read(chosen.archive)
        if chosen.archive
        else archive.fetch(chosen.engine, chosen.version, chosen.downloads)
    )
    rows, gaps = release.rows(source)
    if chosen.list:
        for (kind, name), facts in sorted(rows.items()):
            if kind == chosen.list:
                say(f"{name}\t{_json(facts)}")
        return 0
    say(f"{source.engine} {source.version}, {source.file}")
    for kind in tables.KINDS:
        say(f"{sum(k == kind for k, _ in rows):6} {kind}s")
    for gap in gaps:
        say(f"not read: {gap}")
    _held_against_shipped(source.engine, source.version, rows)
    if chosen.add and not gaps:
        say(f"added to {_add(source.engine, [(release.origin(source), rows)])}")
    return 1 if gaps else 0


def _held_against_shipped(engine: str, version: str, rows: Rows) -> None:
    table = tables.table(engine)
    if version not in table.versions:
        say(f"The shipped table does not have it; its newest is {table.versions[-1]}.")
        return
    found = release.changes(table.release(version).rows(), rows)
    differ = [f"{kind} {name}" for names in found.values() for kind, name in names]
    say(
        "The shipped table says the same."
        if not differ
        else f"The shipped table differs: {', '.join(differ[:20])}"
    )


def _add(engine: str, fresh: Iterable[tuple[tables.Origin, Rows]]) -> Path:
    table = tables.table(engine)
    releases = {version: table.release(version).rows() for version in table.versions}
    origins = {origin.version: origin for origin in table.origins}
    for origin, rows in fresh:
        origins[origin.version], releases[origin.version] = origin, rows
    return tables.write(engine, releases, origins.values())


def _rebuild(engine: str, downloads: Path | None) -> int:
    """Read all releases again, oldest first; what cannot be read of one is told, and the table is not written."""
    read: dict[str, Rows] = {}
    origins, incomplete = [], 0
    for version in archive.releases(engine):
        if Version(version).is_prerelease or Version(version) < Version(OLDEST[engine]):
            continue
        source = archive.fetch(engine, version, downloads)
        read[version], gaps = release.rows(source)
        origins.append(release.origin(source))
        say(f"{engine} {version}: {len(read[version])} rows{''.join(f'; not read: {gap}' for gap in gaps)}")
        old = Version(version) < Version(IN_FULL[engine])
        incomplete += bool(gaps) and not old
    if incomplete:
        raise HarnessError(
            f"{incomplete} releases of {engine} could not be read in full; the table is left as it was."
        )
    say(f"written: {tables.write(engine, read, origins)}")
    return 0


def _compare(engine: str, before: str, after: str) -> int:
    table = tables.table(engine)
    old, new = table.release(before).rows(), table.release(after).rows()
    for what, names in release.changes(old, new).items():
        for kind, name in names:
            say(f"{_TITLES[what]:8}{kind:7}{name}{_how(old, new, (kind, name)) if what == 'changed' else ''}")
    return 0


def _how(old: Rows, new: Rows, key: tuple[str, str]) -> str:
    """Return how the facts about one thing changed: choices by what came and went, others as before and after."""
    told = []
    for fact in sorted(set(old[key]) | set(new[key])):
        was, now = old[key].get(fact), new[key].get(fact)
        if isinstance(was, list) and isinstance(now, list):
            told += [f"+{one}" for one in now if one not in was] + [
                f"-{one}" for one in was if one not in now
            ]
        elif was != now:
            told.append(f"{fact} {_json(was)} -> {_json(now)}")
    return f": {', '.join(told)}"


def _check(engine: str, version: str) -> int:
    """Hold the census against the engine's own parser; 1 when they differ."""
    known = tables.table(engine).release(version)
    asked = agreement.lines(known, _LINES, random.Random(f"{engine} {version}"))  # noqa: S311 - the same lines each time
    told = _ask(engine, version, asked)
    problems = list(agreement.flags_differ(known, told["flags"]))
    say(
        f"{engine} {version}: {len(told['flags'])} flags of the parser, {len(problems)} differ from the census"
    )
    in_code = refused = 0
    for line, answer in zip(asked, told["answers"], strict=True):
        ours = agreement.refusals(known, line)
        refused += answer is not None
        if answer is not None and not ours and _IN_CODE in answer:
            in_code += 1
        elif bool(ours) != (answer is not None):
            problems.append(
                f"{' '.join(line)}\n  parser: {(answer or 'takes it').strip()}\n  linter: {ours or 'takes it'}"
            )
    same = len(asked) - in_code - sum("\n" in problem for problem in problems)
    say(f"{len(asked)} command lines: the parser refuses {refused}; parser and linter agree on {same}")
    if in_code:
        say(f"{in_code} refused by a rule in the engine's code, which the census does not claim to know")
    for problem in problems:
        say(problem)
    return 1 if problems else 0


def _ask(engine: str, version: str, asked: list[list[str]]) -> dict[str, Any]:
    found = environments.find(engine, version)
    if found is None:
        raise HarnessError(
            f"{engine} {version} is not installed. Install it: python -m ci engines install {engine} {version}"
        )
    launch = Catalog.bound(engine, version, "cpu").launch(ServerSpec("none"), str(found.python), "none", 1)
    done = subprocess.run(
        [str(found.python), str(_PROBE), engine], input=json.dumps(asked), capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(environments.root()), **launch.env},
    )  # fmt: skip
    if done.returncode:
        raise HarnessError(f"The parser of {engine} {version} cannot be asked: {done.stderr.strip()[-400:]}")
    return dict(json.loads(done.stdout))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
