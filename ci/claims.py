"""`python -m ci claims`: what two guides claim about the engines, and which of it holds."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import astuple
from typing import TYPE_CHECKING

from fixtures.claims.ledger import COLUMNS, FEATURES, VERDICTS, WRONG, counts, read
from fixtures.engines.rules import ENGINES
from fixtures.report.render import code, escape
from fixtures.report.words import count, engine

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from fixtures.claims.ledger import Claim

_NARROWEST = 40  # columns; below it a sentence cannot be read
_INDENT = "    "


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = commands.add_parser("claims", help="show what two guides claim about the engines, with verdicts")
    parser.add_argument("--engine", choices=ENGINES, help="only claims about this engine")
    parser.add_argument(
        "--feature", choices=FEATURES, metavar="N", help="only this feature: 1 to 24, 25a, 25b or app"
    )
    parser.add_argument("--verdict", choices=VERDICTS, help="only claims with this verdict")
    parser.add_argument("--format", choices=_FORMATS, default="text", help="(default: text)")
    parser.set_defaults(run=_claims)


def _claims(chosen: argparse.Namespace) -> None:
    wanted = {name: value for name in ("engine", "feature", "verdict") if (value := getattr(chosen, name))}
    found = [
        claim for claim in read() if all(getattr(claim, name) == value for name, value in wanted.items())
    ]
    print("\n".join(_FORMATS[chosen.format](found)))  # noqa: T201 - this is a command


def text(claims: Sequence[Claim], width: int = 0) -> Iterator[str]:
    """Yield lines that fit in a terminal of a width, by default this one."""
    width = max(width or shutil.get_terminal_size((110, 24)).columns, _NARROWEST)
    for feature, mine in _grouped(claims):
        yield from textwrap.wrap(f"{feature} {FEATURES[feature]}: {counted(mine)}", width)
        yield ""
        for claim in mine:
            yield from _wrapped(
                f"{claim.id} {claim.verdict} of {engine(claim.engine)}: {claim.claim}", "", width
            )
            if claim.right:
                yield from _wrapped(
                    f"{'right' if claim.verdict in WRONG else 'note'}: {claim.right}", _INDENT, width
                )
            yield from _wrapped(claim.grounds, _INDENT, width)
        yield ""
    yield from textwrap.wrap(f"{count(len(claims), 'claim')}: {counted(claims)}", width)


def tsv(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield the lines of a table with tabs, as the ledger is written."""
    yield "\t".join(COLUMNS)
    yield from ("\t".join(astuple(claim)) for claim in claims)


def markdown(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield the lines of a document with a table for each feature."""
    yield f"{count(len(claims), 'claim')}: {counted(claims)}"
    for feature, mine in _grouped(claims):
        yield f"\n## {feature} {FEATURES[feature]}\n\n{counted(mine)}\n"
        yield "| | Engine | Verdict | Claim | Right | Evidence |\n| --- | --- | --- | --- | --- | --- |"
        for one in mine:
            said = (engine(one.engine), one.verdict, escape(one.claim), escape(one.right), code(one.grounds))
            yield f"| {one.id} | {' | '.join(said)} |"


def counted(claims: Iterable[Claim]) -> str:
    """Return "12 true, 3 false", and "none" of no claim."""
    return ", ".join(f"{number} {verdict}" for verdict, number in counts(claims).items() if number) or "none"


def _wrapped(sentence: str, indent: str, width: int) -> list[str]:
    """Return the lines of a sentence; the first with an indent, the others with one in any case."""
    return textwrap.wrap(
        sentence, width, initial_indent=indent, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def _grouped(claims: Sequence[Claim]) -> Iterator[tuple[str, list[Claim]]]:
    for feature in FEATURES:
        if mine := [claim for claim in claims if claim.feature == feature]:
            yield feature, mine


_FORMATS = {"text": text, "tsv": tsv, "markdown": markdown}
