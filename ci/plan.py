"""`python -m ci plan`: which servers a selection needs, how long it will take, and how it is cut into shards.

Nothing is started: pytest only collects, here, with the words after `--`.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fixtures import cut, shard
from fixtures.errors import HarnessError
from fixtures.evidence import journal
from fixtures.evidence.times import LAUNCH
from fixtures.report.words import count
from fixtures.settings import CHOICES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from fixtures.evidence.results import Results
    from fixtures.evidence.times import Times


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "plan", help="show what a selection starts and how long it takes; cut it into shards"
    )
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="how many shards (default: 1)")
    parser.add_argument(
        "--from",
        dest="records",
        nargs="*",
        type=Path,
        default=[],
        metavar="RESULTS",
        help="results.json of earlier runs",
    )
    parser.add_argument("--json", action="store_true", help="print the list of shards for the matrix of a CI")
    parser.set_defaults(run=_plan)


def _plan(chosen: argparse.Namespace) -> None:
    if chosen.shards < 1:
        raise HarnessError(f"--shards {chosen.shards}: ask for 1 at least.")
    records = journal.merge(map(journal.read, chosen.records))  # a mistake is told before pytest collects
    tests, times = _collect(chosen.words, records)
    rows = plan(tests, times, cut.cut(tests, times, chosen.shards))
    if chosen.json:
        # On one line, as the outputs of a CI's steps want it.
        print(json.dumps(matrix(rows, chosen.shards, times)))  # noqa: T201 - this is a command
    else:
        print("\n".join([*lines(rows, chosen.shards, times), *notes(tests, times)]))  # noqa: T201


class _Seen:
    """Takes what pytest collected."""

    def __init__(self, records: Results) -> None:
        self.records = records
        self.found: tuple[list[cut.Test], Times] | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the tests that are left after selection, and the times that count for them."""
        choices = session.config.stash[CHOICES]
        self.found = shard.tests(session.items, choices), shard.times(self.records, choices)


def _collect(words: Sequence[str], records: Results) -> tuple[list[cut.Test], Times]:
    """Have pytest collect. Raises HarnessError when it cannot, after pytest's own words on stderr."""
    seen, told, complained = _Seen(records), io.StringIO(), io.StringIO()
    with redirect_stdout(told), redirect_stderr(complained):
        code = pytest.main([*words, "--collect-only", "-qq"], plugins=[seen])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise HarnessError(f"nothing is selected by: pytest {' '.join(words)}. Name tests as for pytest.")
    if code != pytest.ExitCode.OK or seen.found is None:
        sys.stderr.write(complained.getvalue() or told.getvalue())
        raise HarnessError("pytest cannot collect this selection; its own words are above.")
    return seen.found


@dataclass(frozen=True)
class Row:
    """A line of the plan: a server, or a module whose tests need none.

    server  whether it is one
    tests   how many of its tests run
    cost    milliseconds
    """

    name: str
    server: bool
    tests: int
    cost: int
    shard: int


def plan(tests: Sequence[cut.Test], times: Times, shares: Mapping[str, int]) -> list[Row]:
    """Return a row for each server or module of which a test runs, by shard, the longest first."""
    groups: dict[str, list[cut.Test]] = {}
    for test in tests:
        if test.runs:
            groups.setdefault(test.server or test.unit, []).append(test)
    rows = [
        Row(name, own[0].server is not None, len(own), cut.cost(own, times), shares[own[0].unit])
        for name, own in groups.items()
    ]
    return sorted(rows, key=lambda row: (row.shard, -row.cost, row.name))


def matrix(rows: Sequence[Row], shards: int, times: Times) -> list[dict[str, Any]]:
    """Return an entry for each shard: what `--shard` wants, minutes (None without records), tests, servers."""
    found = []
    for number in range(1, shards + 1):
        own = [row for row in rows if row.shard == number]
        minutes = round(sum(row.cost for row in own) / 60_000, 1) if times.any else None
        told = {"shard": f"{number}/{shards}", "minutes": minutes, "tests": sum(row.tests for row in own)}
        found.append(told | {"servers": [row.name for row in own if row.server]})
    return found


def lines(rows: Sequence[Row], shards: int, times: Times) -> Iterator[str]:
    """Yield the plan as text: a table, then the sums of shards."""
    total = sum(row.cost for row in rows) or 1

    def cells(name: str, own: Sequence[Row], where: str) -> tuple[str, ...]:
        cost = sum(row.cost for row in own)
        share = f"{cost / 60_000:.1f}" if times.any else f"{100 * cost / total:.1f} %"
        return name, str(sum(row.tests for row in own)), share, where

    def sums(own: Sequence[Row], where: str) -> tuple[str, ...]:
        return cells(count(sum(row.server for row in own), "server"), own, where)

    numbers = range(1, shards + 1)
    table: list[tuple[str, ...]] = [("server", "tests", "minutes" if times.any else "share", "shard")]
    table += [cells(row.name, [row], f"{row.shard}/{shards}") for row in rows]
    table += [("", "", "", "")]
    table += [sums([row for row in rows if row.shard == number], f"{number}/{shards}") for number in numbers]
    table += [sums(rows, "all")] if shards > 1 else []
    first, *others = (max(map(len, column)) for column in zip(*table, strict=True))
    for name, *rest in table:
        padded = [name.ljust(first), *(cell.rjust(width) for cell, width in zip(rest, others, strict=True))]
        yield "  ".join(padded).rstrip()


def notes(tests: Sequence[cut.Test], times: Times) -> Iterator[str]:
    """Yield what the table leaves out, and what its numbers rest on where there is no record."""
    running = [test for test in tests if test.runs]
    if len(running) < len(tests):
        yield f"Not applicable here, and free: {count(len(tests) - len(running), 'more test')}."
    if not times.any:
        yield f"No record: a test counts as 1, a launch as {LAUNCH}. Give results.json of earlier runs with --from."
        return
    servers = {test.server for test in running if test.server and test.starts}
    if new := len(servers - times.launches.keys()):
        yield f"No record of {new} of {len(servers)} launches: each gets the median, {times.typical_launch:.0f} s."
    if new := sum(test.id not in times.tests for test in running):
        yield f"No record of {new} of {len(running)} tests: each gets the median, {times.typical_test:.1f} s."
    yield "Minutes are those of one worker, without -n."
