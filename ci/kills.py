"""`python -m ci kills`: put every fault before every check that names it, and show which were noticed.

The fake engine plays a CPU first. Checks that do not apply there are tried once more on a fake with GPUs.

Exit code: 0 when all were noticed, 1 when one survived or ended in another error, or a check could be tried nowhere,
2 when nothing could be run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ci import within
from fixtures.engines.rules import ENGINES
from fixtures.errors import HarnessError
from fixtures.evidence import journal, redact
from fixtures.report import kills

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from fixtures.evidence.results import Results
    from fixtures.report.kills import Kills

_ROOT = Path(__file__).parents[1]
_SIGNS = {"noticed": "", "survived": " SURVIVED", "error": " ERROR"}


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = commands.add_parser("kills", help="show that each check notices the faults that it names")
    for engine in ENGINES:
        parser.add_argument(
            f"--{engine}",
            metavar="TARGET",
            help=f"{engine} behind the faults (default: faux: for both engines, then faux:@cuda)",
        )
    parser.add_argument("-k", metavar="EXPRESSION", help="only these tests, as pytest's -k")
    parser.add_argument("-n", metavar="WORKERS", help="run in parallel, as pytest's -n")
    parser.add_argument("--into", type=Path, metavar="RESULTS", help="add the run to this results.json")
    parser.add_argument(
        "--evidence", type=Path, metavar="DIR", help="where the run is kept (default: nowhere)"
    )
    parser.set_defaults(run=_kills)


def _kills(chosen: argparse.Namespace) -> int:
    into = journal.read(chosen.into) if chosen.into else None  # a mistake is told before minutes are spent
    given = {engine: getattr(chosen, engine) for engine in ENGINES if getattr(chosen, engine)}
    targets = given or dict.fromkeys(ENGINES, "faux:")
    with tempfile.TemporaryDirectory() as scratch:
        evidence = chosen.evidence or Path(scratch)
        red, results = _run(targets, chosen, evidence, [])
        if not given and (elsewhere := untried(results)):
            again, more = _run(dict.fromkeys(ENGINES, "faux:@cuda"), chosen, evidence, elsewhere)
            red, results = red or again, journal.merge([results, more])
    for engine in kills.kills(results):
        print("\n".join(_lines(engine)))  # noqa: T201 - this is a command
    nowhere = untried(results)
    if nowhere:
        print(f"\n{len(nowhere)} checks apply to neither fake: {', '.join(nowhere)}")  # noqa: T201
    if into is not None:
        redact.write(chosen.into, journal.merge([into, results]).model_dump_json(indent=1) + "\n")
    return 1 if red or (nowhere and not given) else 0


def _run(
    targets: Mapping[str, str], chosen: argparse.Namespace, evidence: Path, tests: Sequence[str]
) -> tuple[bool, Results]:
    """Run the mutants of these tests, of all where none is named; return whether that was red, and what came."""
    arguments = ["--mutants", "-q", *(f"--{engine}={target}" for engine, target in targets.items()), *tests]
    arguments += [f"-k={chosen.k}"] if chosen.k else []
    # All servers of a check on one worker, where one of them that notices is enough.
    arguments += [f"-n={chosen.n}", "--dist=loadfile"] if chosen.n else []
    ended, written = within.run(arguments, evidence, cwd=_ROOT)
    if not written:
        raise HarnessError(
            f"pytest ended with {ended.returncode} and wrote no results; its own words are above."
        )
    return bool(ended.returncode), journal.read(written[0])


def untried(results: Results) -> list[str]:
    """Return the checks, as pytest is given them, of which no mutant could be tried on any engine."""
    tried = {kill.test for run in results.runs for kill in run.kills}
    found = {
        result.test: None
        for run in results.runs
        for result in run.results
        if result.state == "not_applicable" and "fault" in result.parameters
    }
    return [f"tests/{test}" for test in found if test not in tried]


def _lines(told: Kills) -> Iterator[str]:
    """Yield the kill matrix of an engine: a check, then its faults."""
    yield f"\n{told.engine}{' (fake)' if told.fake else ''}"
    for table in told.tables:
        yield f"  {table.module}"
        for check in table.checks:
            faults = [
                f"{f}{_SIGNS[table.kills[check, f].state]}" for f in table.faults if (check, f) in table.kills
            ]
            yield f"    {check.partition('::')[2]}: {', '.join(faults)}"
    distinct = len({kill.fault for table in told.tables for kill in table.kills.values()})
    share = told.noticed / told.total if told.total else 0
    yield f"{told.noticed} of {told.total} mutants noticed ({share:.1%}), {distinct} distinct faults"
