"""`python -m ci repro`, `replay` and `judge`: hand a failed test on, and look at one that was handed on.

Exit code of replay and judge: 0 the test ends as it was recorded, 1 it ends otherwise, 2 nothing can be said.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci import within
from fixtures.engines.rules import ENGINES
from fixtures.errors import HarnessError
from fixtures.evidence import bundle, byhand, journal, kept
from fixtures.launch import environments

if TYPE_CHECKING:
    import argparse
    from typing import Any

    from fixtures.evidence.case import Case
    from fixtures.evidence.results import Result

say = partial(print, flush=True)
_ROOT = Path(__file__).parents[1]
_TESTS = "tests"
_FINE = ("pass", "not_applicable")
_THERE = ("passes there", "fails there as well", "fails differently")
_AGAIN = ("passes when it is judged again", "fails as it was recorded", "fails differently")


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the three commands."""
    repro = commands.add_parser("repro", help="make a bundle of a test that failed")
    repro.add_argument(
        "folder", nargs="?", type=Path, help="what was kept of the test (default: of the newest run)"
    )
    repro.add_argument(
        "--evidence", type=Path, default=Path("evidence"), metavar="DIR", help="where runs are kept"
    )
    repro.add_argument("--out", type=Path, metavar="FILE.zip", help="default: repro-TEST.zip")
    repro.set_defaults(run=_repro)
    replay = commands.add_parser("replay", help="run a bundle's test on another release of its engine")
    judge = commands.add_parser("judge", help="judge a bundle's test again, by the recorded answers")
    for parser, run in ((replay, _replay), (judge, _judge)):
        parser.add_argument("bundle", type=Path, help="a bundle, or the kept folder of a test")
        parser.add_argument(
            "--evidence", type=Path, metavar="DIR", help="where this run is kept (default: nowhere)"
        )
        parser.set_defaults(run=run)
    for engine in ENGINES:
        replay.add_argument(f"--{engine}", metavar="TARGET", help=f"{engine} to run it on: venv:VERSION, ...")


def _repro(chosen: argparse.Namespace) -> None:
    folder = chosen.folder or _only_failure(chosen.evidence)
    out = chosen.out or Path(f"repro-{folder.resolve().name}.zip")
    case = bundle.write(folder, out, places(_run_of(folder)))
    say(f"{out}: {case.result.id} on {case.about.engine.label}, requests: {len(case.exchanges)}")
    say(f"judge it again: python -m ci judge {out}")


def _only_failure(evidence: Path) -> Path:
    """Return the folder of the one test of the newest run that is kept and did not pass."""
    runs = sorted(path.parent for path in evidence.glob(f"*/{journal.JOURNAL}"))
    if not runs:
        raise HarnessError(
            f"no run is kept under {evidence}. Run pytest first, or name a kept test's folder."
        )
    told = (
        (path.parent, kept.read_test(path.parent)) for path in sorted(runs[-1].glob(f"tests/*/{kept.TEST}"))
    )
    failed = [folder for folder, test in told if test["result"]["state"] not in _FINE]
    if not failed:
        raise HarnessError(
            f"the newest run, {runs[-1]}, kept no test that did not pass. Name a kept test's folder."
        )
    if len(failed) > 1:
        ways = "".join(f"\n  python -m ci repro {folder}" for folder in failed)
        raise HarnessError(f"{len(failed)} tests of {runs[-1]} did not pass. Name one of them:{ways}")
    return failed[0]


def _run_of(folder: Path) -> Path:
    """Return the folder of the run that kept a test."""
    return folder.resolve().parents[1] if folder.resolve().parent.name == _TESTS else folder


def places(run: Path) -> dict[str, str]:
    """Return the paths that a bundle does not tell, with what stands for each."""
    found = {
        run.resolve(): "~run",
        environments.root(): "~cache",
        Path.home(): "~",
        Path.cwd(): byhand.SUITE,
        _ROOT: byhand.SUITE,
    }
    if sys.prefix != sys.base_prefix:
        found[Path(sys.prefix)] = "~python"
    return {str(path): name for path, name in found.items() if len(path.parts) > 1}


def _replay(chosen: argparse.Namespace) -> int:
    engine = bundle.read(chosen.bundle).about.engine.name
    named = {name: target for name in ENGINES if (target := getattr(chosen, name))}
    if list(named) != [engine]:
        raise HarnessError(
            f"{chosen.bundle} is of {engine}: say where to run it with --{engine} venv:VERSION."
        )
    return _compare(chosen.bundle, named[engine], chosen.evidence, _THERE)


def _judge(chosen: argparse.Namespace) -> int:
    return judge(chosen.bundle, chosen.evidence)


def judge(path: Path, evidence: Path | None = None) -> int:
    """Run the test of a bundle or of a kept folder on its own recording; return the exit code."""
    return _compare(path, f"recorded:{path.absolute()}", evidence, _AGAIN)


def _compare(path: Path, target: str, evidence: Path | None, words: tuple[str, str, str]) -> int:
    """Run a kept test on a target, and say how its end compares with the recorded one."""
    case = bundle.read(path)
    say(f"recorded: {_told(case.result)} on {case.about.engine.label}")
    if case.about.engine.tampered:
        say(f"that run was tampered with on purpose ({case.about.engine.tampered}); this one is not")
    with tempfile.TemporaryDirectory(prefix="dsv4-") as temporary:
        now, run = _run(case, target, (evidence or Path(temporary)).absolute())
    passes, same, otherwise = words
    if now.state == "not_applicable":
        raise HarnessError(f"{now.id} is not applicable on {target}: {now.sentence}.")
    if now.state == "pass":
        say(f"{passes}: {now.id} on {target}")
        return int(case.result.state != "pass")
    same_known = (
        now.link is not None and now.link == case.result.link
    )  # sampled answers differ, the report is one
    alike = same_known or _plain(now, run) == _plain(case.result, _run_of(path))
    if now.state == case.result.state and alike:
        say(f"{same}: {_told(now)}")
        return 0
    say(f"recorded: {case.result.state}: {case.result.sentence}")
    say(f"{otherwise}: {now.state}: {now.sentence}")
    return 1


def _run(case: Case, target: str, evidence: Path) -> tuple[Result, Path]:
    """Run a case's test; return its result and the folder of the run. pytest's words go to the terminal."""
    test = case.result.id
    missing = HarnessError(
        f"this checkout has no test {test[:200]!r}. Run the command in the root of a checkout that has it "
        f"(the bundle is of {case.about.suite}), or unpack the bundle and use its replay.py."
    )
    if not _may_be_ours(test):
        raise missing
    arguments = ["-p", "no:cacheprovider", test, f"--{case.about.engine.name}={target}"]
    ended, written = within.run(arguments, evidence, stderr=subprocess.PIPE)
    if "not found: " in ended.stderr:
        raise missing
    print(ended.stderr, end="", file=sys.stderr, flush=True)  # noqa: T201 - pytest's own words
    for file in written:
        for result in (r for run in journal.read(file).runs for r in run.results if r.id == test):
            return result, file.parent
    raise HarnessError(f"{test} did not run on {target}; pytest says above why.")


def _may_be_ours(test: str) -> bool:
    """Whether a test id names a module of this checkout. It is a stranger's word: nothing else may reach pytest."""
    file = Path(test.partition("::")[0])
    try:
        within = file.resolve().is_relative_to(Path(_TESTS).resolve()) and file.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
    return within and "::" in test and test.startswith(f"{_TESTS}/") and file.suffix == ".py"


def _told(result: Result) -> str:
    return ": ".join([result.state, *result.sentence.splitlines()[:1]])


def _plain(result: Result, run: Path) -> str:
    """Return a verdict's sentence without what belongs to one machine, one run or one release."""
    sentence = bundle.hide(places(run))(result.sentence)
    sentence = sentence.replace(result.version, "VERSION") if result.version else sentence
    return re.sub(r"(https?://[\w.-]+):\d+", r"\1:PORT", re.sub(r"\b0x[0-9a-f]+\b", "ADDRESS", sentence))
