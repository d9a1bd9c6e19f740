"""`python -m ci report` takes what runs wrote, wherever it lies, and says in one sentence what it cannot take."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from fixtures.evidence import journal
from fixtures.evidence.machine import machine
from fixtures.evidence.results import Engine, Result, Run

ROOT = Path(__file__).parents[2]


def report(*args, **env):
    command = [sys.executable, "-m", "ci", "report", *map(str, args)]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False
    )


def run(folder, version, *, ended=5.0, tampered=""):
    """Write the journal of a run with one failed test, as pytest would, and return its folder."""
    book = journal.Journal(folder)
    engine = Engine(
        name="vllm", target=f"venv:{version}", version=version, label=f"vLLM {version}", device="cpu", origin="default",
        tampered=tampered,
    )  # fmt: skip
    told = Run(id=folder.name, began=1, command=("pytest",), suite="0", machine=machine(), engines=(engine,))
    book.note("run", told.model_dump(mode="json", exclude={"results", "kills", "launches", "planned"}))
    book.note("planned", 1)
    result = Result(
        id=f"t::{version}", test="features/test_a.py::test_1", folder="features", state="fail", seconds=1, at=1,
        engine="vllm", version=version, sentence=f"wrong in {version}", evidence="tests/one",
    )  # fmt: skip
    book.note("result", result)
    (folder / "tests" / "one").mkdir(parents=True)
    (folder / "tests" / "one" / "server.log").write_text("a log")
    if ended:
        book.note("end", {"ended": ended, "exit_code": 1})
    return folder


def test_runs_of_several_releases_become_one_matrix_with_their_evidence(tmp_path):
    folders = [run(tmp_path / f"run{n}", version) for n, version in enumerate(["0.31.0", "0.32.0"])]
    told = report(*folders, "--out", tmp_path)
    assert told.returncode == 0, told.stderr
    merged = journal.read(tmp_path / journal.RESULTS)
    assert [r.evidence for one in merged.runs for r in one.results] == ["run0/tests/one", "run1/tests/one"]
    page = (tmp_path / "report.html").read_text()
    for n, version in enumerate(["0.31.0", "0.32.0"]):
        assert f"wrong in {version}" in page
        assert f'href="./run{n}/tests/one/server.log"' in page
        assert f"wrong in {version}" in told.stdout.replace("\n", " ")
    assert "0.31.0" in (tmp_path / "summary.md").read_text()


def test_a_journal_that_was_not_ended_is_reported_as_cut_off(tmp_path):
    told = report(run(tmp_path / "run", "0.32.0", ended=None))
    assert told.returncode == 0, told.stderr
    assert "cut off" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_that_was_tampered_with_says_so_and_is_not_mixed_with_a_fair_one(tmp_path):
    fair, wrong = (
        run(tmp_path / "a", "0.32.0"),
        run(tmp_path / "b", "0.32.0", tampered="behind the fault salt_ignored"),
    )
    assert report(fair, wrong, "--out", tmp_path).returncode == 0
    for name in ("report.html", "summary.md"):
        content = (tmp_path / name).read_text().replace("\\", "")
        assert "Tampered with on purpose" in content
        assert content.count("behind the fault salt_ignored") >= 2  # the warning, and its column


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (None, "name what is to be reported"),
        ("missing", "cannot be read (No such file or directory)"),
        ("empty", "holds neither results.json nor journal.jsonl"),
        ("text.json", "does not hold results of the form"),
    ],
)
def test_what_is_no_run_is_one_sentence(tmp_path, path, sentence):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("text")
    told = report(*([tmp_path / path] if path else []))
    assert told.returncode == 2
    assert sentence in told.stderr
    assert "Traceback" not in told.stderr


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    told = report(run(tmp_path / "run", "0.32.0"), "--out", tmp_path / "file")
    assert (told.returncode, "Name a folder with --out" in told.stderr) == (2, True)


def test_the_printed_schema_admits_what_is_written(tmp_path):
    schema = json.loads(report("--schema").stdout)
    assert report(run(tmp_path / "run", "0.32.0")).returncode == 0
    Draft202012Validator(schema).validate(json.loads((tmp_path / "run" / "results.json").read_text()))
