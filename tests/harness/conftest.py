"""Runs the suite on small test files against the stand-in engine, as a user would run it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpcore  # noqa: F401 - httpx loads it late, and pytester forgets what a test loaded: its errors would be twins
import psutil
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).parent / "stand_in" / "python"

settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


@dataclass
class Suite:
    """A folder with test files, and the environment that the suite is run in there."""

    pytester: pytest.Pytester
    env: dict[str, str]
    book: Path

    def write(self, **modules: str) -> None:
        """Write test modules, by name; a module in a subfolder has two underscores in its name."""
        for name, text in modules.items():
            path = self.pytester.path / "tests" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"import os, pytest\nfrom fixtures import *\n{text}")

    def command(self, *args: str, target: Sequence[str] | None = None) -> list[str]:
        """Return the command that runs the suite: on the stand-in, unless a target is given or arguments name one."""
        if target is None:
            named = any(arg.startswith(("--vllm", "--sglang")) for arg in args)
            target = () if named else ("--vllm", f"process:{STAND_IN}")
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *target, *args]

    def run(self, *args: str, target: Sequence[str] | None = None, **env: str) -> pytest.RunResult:
        """Run the suite to its end."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**self.env, **env}.items():
                patch.setenv(name, value)
            return self.pytester.run(*self.command(*args, target=target), timeout=120)

    @property
    def launches(self) -> list[Mapping[str, int]]:
        """What the stand-in wrote about each of its launches: pid, child, port."""
        return [json.loads(line) for line in self.book.read_text().splitlines()] if self.book.exists() else []

    def left_behind(self) -> list[str]:
        """Return what launches have left: processes and shared memory."""
        pids = [pid for launch in self.launches for pid in (launch["pid"], launch["child"]) if alive(pid)]
        shared = [
            str(p) for launch in self.launches if (p := Path(f"/dev/shm/stand-in-{launch['pid']}")).exists()
        ]
        return [*map(str, pids), *shared]


def alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of oracle checkpoints for all runs."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def suite(pytester: pytest.Pytester, model_cache: Path) -> Suite:
    """Give an empty suite in a folder of its own."""
    pytester.makeconftest('pytest_plugins = ["fixtures.plugin"]')
    pytester.makepyprojecttoml(
        '[tool.pytest]\ntestpaths = ["tests"]\nstrict = true\naddopts = ["--import-mode=importlib"]\n'
    )
    book = pytester.path / "book"
    env = {
        "PYTHONPATH": str(ROOT),
        "DSV4_CACHE": str(model_cache),
        "DSV4_LEASES": str(pytester.path / "leases"),  # a server of the user's is nothing to wait for
        "STAND_IN_BOOK": str(book),
        "PATH": os.environ["PATH"],
    }
    return Suite(pytester, env, book)
