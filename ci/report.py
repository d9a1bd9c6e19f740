"""`python -m ci report`: one page, one summary and a text view from what runs wrote down."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixtures.errors import HarnessError
from fixtures.evidence import journal, redact
from fixtures.evidence.results import Results
from fixtures.report import render, terminal

if TYPE_CHECKING:
    import argparse

    from fixtures.evidence.results import Run


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    report = commands.add_parser("report", help="render results as a page, as Markdown and as text")
    report.add_argument(
        "paths", nargs="*", metavar="PATH", help="results.json, journal.jsonl or a run's folder"
    )
    report.add_argument("--out", metavar="DIR", help="where the files go (default: beside the first PATH)")
    report.add_argument("--schema", action="store_true", help="print the JSON Schema of results.json instead")
    report.set_defaults(run=_report)


def _report(chosen: argparse.Namespace) -> None:
    if chosen.schema:
        print(json.dumps(Results.model_json_schema(), indent=1))  # noqa: T201 - this is a command
        return
    if not chosen.paths:
        raise HarnessError(
            "name what is to be reported: a run's folder, its results.json or its journal.jsonl."
        )
    paths = [_file(Path(path)) for path in chosen.paths]
    out = Path(chosen.out) if chosen.out else paths[0].parent
    results = journal.merge(_moved(journal.read(path), path.parent, out) for path in paths)
    files = {
        journal.RESULTS: results.model_dump_json(indent=1) + "\n",
        "report.html": render.html(results, out),
        "summary.md": render.markdown(results),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            redact.write(out / name, content)
    except OSError as error:
        raise HarnessError(
            f"the report cannot be written to {out} ({error.strerror}). Name a folder with --out."
        ) from None
    width = shutil.get_terminal_size((110, 24)).columns
    print(terminal.text(results, width, sys.stdout.isatty()))  # noqa: T201 - this is a command
    for name in files:
        print(f"{out / name}")  # noqa: T201


def _file(path: Path) -> Path:
    """Return the file of results that a path names; of a folder the journal, when it was not assembled."""
    if not path.is_dir():
        return path
    found = next((path / name for name in (journal.RESULTS, journal.JOURNAL) if (path / name).exists()), None)
    if found is None:
        raise HarnessError(
            f"{path} holds neither {journal.RESULTS} nor {journal.JOURNAL}. Name the folder of a run."
        )
    return found


def _moved(results: Results, old: Path, new: Path) -> Results:
    """Return results whose evidence is named as seen from another folder."""
    way = Path(os.path.relpath(old, new))

    def moved(run: Run) -> Run:
        return run.model_copy(
            update={
                "results": tuple(
                    one.model_copy(update={"evidence": (way / one.evidence).as_posix()})
                    if one.evidence
                    else one
                    for one in run.results
                )
            }
        )

    return results.model_copy(update={"runs": tuple(moved(run) for run in results.runs)})
