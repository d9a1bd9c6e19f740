"""Running this suite's own pytest from a command, and finding what the run wrote."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from fixtures.evidence import journal

if TYPE_CHECKING:
    from pathlib import Path


def run(
    arguments: list[str], evidence: Path, **options: Any
) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    """Run pytest; return how it ended and the results.json that it wrote under `evidence`: one, or none.

    options  of subprocess.run
    """
    before = set(evidence.glob(f"*/{journal.RESULTS}"))
    # With "=": pytest takes an existing folder after a blank for its root, and then knows none of our options.
    command = [sys.executable, "-m", "pytest", *arguments, f"--evidence={evidence.absolute()}"]
    ended = subprocess.run(command, text=True, check=False, **options)
    return ended, sorted(set(evidence.glob(f"*/{journal.RESULTS}")) - before)
