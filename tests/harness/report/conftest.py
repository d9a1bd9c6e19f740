from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fixtures.report import render
from tests.harness.report import sample

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of the realistic sample, with its evidence beside it."""
    folder = tmp_path_factory.mktemp("report")
    path = folder / "report.html"
    path.write_text(render.html(sample.realistic(folder), folder), encoding="utf-8")
    return path
