"""Small tables of releases that never were."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from fixtures.census import tables
from fixtures.lint.inputs.values import Word

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fixtures.census.tables import Facts, Rows, Table
    from fixtures.lint.options import Taken

ONE, NONE = {"takes": "one"}, {"takes": "none"}


def rows(**kinds: Mapping[str, Facts]) -> Rows:
    """Return the rows of one release: rows(flag={"--port": ONE}, env={})."""
    return {(kind, name): facts for kind, named in kinds.items() for name, facts in named.items()}


def table(engine: str, folder: Path, releases: Mapping[str, Rows]) -> Table:
    """Write the table of some releases, and read it again."""
    origins = [tables.Origin(version, f"{version}.whl", "0" * 64, "2026-01-01") for version in releases]
    path = tables.write(engine, releases, origins, folder)
    return tables.parse(engine, gzip.decompress(path.read_bytes()).decode())


def used(taken: Taken) -> list[tuple[str, ...]]:
    """Return the flags that were used, each with its values; a key is written behind a dot."""
    return [
        (f"{use.flag}.{use.key}" if use.key else use.flag, *[word.text for word in use.values])
        for use in taken.uses
    ]


def troubles(taken: Taken) -> list[tuple[str, str]]:
    """Return the kinds of trouble, each with its word."""
    return [(trouble.kind, trouble.word) for trouble in taken.troubles]


def words(line: str) -> list[Word]:
    """Return the words of a line in which nothing is quoted; those with a $ are only known at run time."""
    return [Word(text, 1, "$" in text) for text in line.split()]
