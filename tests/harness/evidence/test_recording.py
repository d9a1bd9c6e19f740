"""A run writes down what it found: every state, evidence of failures, no secret, and all of it when it is killed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fixtures.evidence import journal, kept

ROOT = Path(__file__).parents[3]
SECRET = "sk-do-not-write-me-0123456789"
ODD = 'an odd "pass\\word", with ünicode'

EVERY_STATE = """
from fixtures.errors import EngineFault, Inconclusive
pytestmark = [feature("25a", "Prefix caching"), serve(model="chain")]

@proves
def test_passes(server, record):
    record.number("acceptance", 0.75, unit="of drafts", interval=(0.7, 0.8), samples=40, origin="counter")
    record.series("Accepted at each place", [(0, 9), (1, 4)], x="place", y="drafts", expected=[(0, 9), (1, 5)])
def test_fails(client):
    assert client.send("GET", "/version").json() == {"version": "1.0"}, "told another version"
def test_faults(server): raise EngineFault("it broke", "its log")
def test_errs(server): raise KeyError("a mistake of the suite")
def test_cannot_say(server): raise Inconclusive("too few samples")
def test_skips(server): pytest.skip("not applicable: another release")
def test_known(server): raise AssertionError("the known words")
def test_flaky(server): pass
def test_retired(server): pass
def test_teardown(server, broken): pass

@pytest.fixture
def broken():
    yield
    raise RuntimeError("on the way out")
"""
KNOWN = """
[[known]]
test = "test_a.py::test_{name}"
match = "{match}"
upstream = "vllm-project/vllm#1"
why = "reported"
since = 2026-11-30
flaky = {flaky}
"""


def results(suite):
    """The one run that the suite wrote."""
    (path,) = (suite.pytester.path / "evidence").glob("*/results.json")
    (run,) = journal.read(path).runs
    return path.parent, run


def exchanges_in(folder):
    lines = (folder / kept.EXCHANGES).read_text().splitlines()
    return [kept.exchange(line) for line in lines if not line.startswith('{"left_out"')]


@pytest.fixture
def every_state(suite):
    suite.write(test_a=EVERY_STATE)
    folder = suite.pytester.path / "tests" / "expectations"
    folder.mkdir()
    entries = [
        ("known", "known words", "false"),
        ("flaky", "anything", "true"),
        ("retired", "anything", "false"),
    ]
    (folder / "vllm.toml").write_text(
        "".join(KNOWN.format(name=name, match=match, flaky=flaky) for name, match, flaky in entries)
    )
    return suite


def test_every_state_is_told_with_its_sentence(every_state):
    every_state.run()
    folder, run = results(every_state)
    seen = {r.test.partition("::test_")[2]: (r.state, r.sentence.partition("\n")[0]) for r in run.results}
    assert seen == {
        "passes": ("pass", ""),
        "fails": ("fail", "told another version"),
        "faults": ("fail", "it broke"),
        "errs": ("error", "KeyError: 'a mistake of the suite'"),
        "cannot_say": ("inconclusive", "too few samples"),
        "skips": ("not_applicable", "another release"),
        "known": ("known", "reported (vllm-project/vllm#1): the known words"),
        "flaky": ("flaky", ""),
        "retired": ("error", "passes, although it is written down as a known failure: retire the entry"),
        "teardown": ("error", "RuntimeError: on the way out"),
    }
    by_name = {r.test.partition("::test_")[2]: r for r in run.results}
    assert by_name["known"].link == "vllm-project/vllm#1"
    assert (run.planned, run.exit_code, run.unreadable) == (10, 1, 0)
    assert run.ended > run.began
    assert {(r.engine, r.version, r.server) for r in run.results} == {("vllm", "0.32.0", "vllm-chain")}
    passed = by_name["passes"]
    assert (passed.proves, passed.feature.number, passed.evidence) == (True, "25a", None)
    assert (passed.measures[0].low, passed.measures[0].samples) == (0.7, 40)
    assert [point.y for point in passed.series[0].expected] == [9, 5]
    assert {name for name, r in by_name.items() if r.evidence} == set(seen) - {"passes", "skips"}
    (launch,) = run.launches
    assert (folder / launch.log).exists()
    assert "--model" in launch.argv


def test_a_failed_test_keeps_what_went_over_the_wire_counters_log_and_launch(suite):
    suite.write(test_a=EVERY_STATE)
    suite.run("-k", "test_fails")
    folder, run = results(suite)
    evidence = folder / run.results[0].evidence
    (exchange,) = exchanges_in(evidence)
    assert (exchange.path, exchange.status, exchange.json()) == ("/version", 200, {"version": "0.32.0"})
    told = kept.read_test(evidence)
    assert told["result"]["id"] == "tests/test_a.py::test_fails[vllm-chain]"
    assert told["spec"] == {"model": "chain", "knobs": {}, "extra": {}}
    assert told["url"].startswith(
        "http://127.0.0.1:"
    )  # though the server had been stopped when this was written
    assert told["served"] == "oracle"
    assert "--port" in told["launch"]["argv"]
    assert told["engine"]["label"] == "vLLM 0.32.0, CPU build"
    for name in (kept.BEFORE, kept.AFTER):
        assert (evidence / name).read_text().startswith("vllm:cache_config_info")
    assert (evidence / kept.LOG).exists()


def test_a_start_that_fails_keeps_its_command_and_log(suite):
    suite.write(test_a="pytestmark = serve(model='chain', prefix_cache=True)\ndef test_1(server): 0\n")
    suite.run(STAND_IN_FAULT="unknown_flag")
    folder, run = results(suite)
    assert (run.launches[0].seconds, run.results[0].state) == (None, "fail")
    assert "--enable-prefix-caching" in run.launches[0].argv
    assert "unrecognized arguments" in (folder / run.launches[0].log).read_text()
    assert kept.read_test(folder / run.results[0].evidence)["launch"]["seconds"] is None


def test_keep_keeps_passes_as_well(suite):
    suite.write(test_a=EVERY_STATE)
    suite.run("-k", "test_passes", "--keep")
    folder, run = results(suite)
    assert kept.read_test(folder / run.results[0].evidence)["result"]["state"] == "pass"


def test_evidence_is_bounded(tmp_path, monkeypatch, suite):
    suite.write(
        test_a="""
pytestmark = serve(model="chain")
def test_1(client):
    for _ in range(9):
        client.send("GET", "/version")
    assert 0
"""
    )
    suite.run()
    folder, run = results(suite)
    exchanges = exchanges_in(folder / run.results[0].evidence)
    monkeypatch.setattr(kept, "MOST", 3 * len(kept.line(exchanges[0])) + 20)
    kept.write_exchanges(tmp_path, exchanges)
    assert exchanges_in(tmp_path) == exchanges[:3]
    assert json.loads((tmp_path / kept.EXCHANGES).read_text().splitlines()[-1])["left_out"] == 6


def test_workers_write_one_run(suite):
    suite.write(
        test_a="""
pytestmark = serve(model="chain")
@pytest.mark.parametrize("n", range(6))
def test_1(client, n):
    assert client.send("GET", "/version").status == 200 + n // 5
"""
    )
    suite.run("-n", "2")
    folder, run = results(suite)
    assert sorted(r.state for r in run.results) == ["fail"] + 5 * ["pass"]
    assert (run.planned, run.exit_code) == (6, 1)
    assert 1 <= len(run.launches) <= 2
    (failed,) = (r for r in run.results if r.state == "fail")
    assert exchanges_in(folder / failed.evidence)


def test_a_worker_that_dies_is_an_error_of_its_test(suite):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): os._exit(1)\n")
    suite.run("-n", "1", "--max-worker-restart", "0")
    _, run = results(suite)
    assert [(r.state, "crashed" in r.sentence) for r in run.results] == [("error", True)]


def test_a_killed_run_gives_a_report_of_what_had_finished(suite):
    suite.write(
        test_a="""
import signal
pytestmark = serve(model="chain")
def test_1(client): assert client.send("GET", "/version").status == 200
def test_2(server): assert 0, "before the end"
def test_3(server): os.kill(os.getpid(), signal.SIGKILL)
def test_4(server): pass
"""
    )
    assert suite.run().ret == -9
    (path,) = (suite.pytester.path / "evidence").glob("*/journal.jsonl")
    assert not path.with_name(journal.RESULTS).exists()
    told = subprocess.run(
        [sys.executable, "-m", "ci", "report", path],
        cwd=ROOT,
        env=os.environ | suite.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    _, run = results(suite)
    assert [r.state for r in run.results] == ["pass", "fail"]
    assert (run.planned, run.ended) == (4, None)
    page = path.with_name("report.html").read_text()
    assert "before the end" in page
    assert "2 of 4" in page
    assert "2 of 4" in told.stdout


def test_a_full_disk_is_told_and_turns_the_run_red_but_does_not_end_it(suite):
    suite.write(
        test_a="""
from types import SimpleNamespace
from fixtures.evidence import journal, kept
pytestmark = serve(model="chain")

def full(*args):
    raise OSError(28, "No space left on device")

def test_1(server):
    kept.write_exchanges = full
    journal.os = SimpleNamespace(**{**vars(os), "write": full})
def test_2(server): pass
"""
    )
    told = suite.run("--keep")
    told.assert_outcomes(passed=2)
    assert told.ret == pytest.ExitCode.INTERNAL_ERROR
    told.stdout.fnmatch_lines(
        ["*times; at first: the evidence of *test_1* cannot be kept (No space left on device)."]
    )
    told.stdout.no_fnmatch_line("*Traceback*")
    _, run = results(suite)
    assert (run.planned, run.results, run.ended) == (2, (), None)  # what had been written by then


def test_junit_has_the_same_properties(every_state):
    every_state.run("--junitxml", "evidence/junit.xml")
    _, run = results(every_state)
    tree = ET.parse(every_state.pytester.path / "evidence" / "junit.xml")
    seen = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in tree.iter("testcase")
    }
    assert len(seen) == len(run.results)
    for result in run.results:
        told = seen[result.id.partition("::")[2]]
        assert (told["state"], told["engine"], told["version"], told["server"]) == (
            result.state, result.engine, result.version, result.server,
        )  # fmt: skip
        assert told.get("evidence") == result.evidence
    assert seen["test_passes[vllm-chain]"]["acceptance"] == "0.75 of drafts"


def test_no_secret_reaches_the_output_folder(suite):
    suite.write(
        test_a="""
pytestmark = serve(model="chain")
def test_1(client, record):
    key = os.environ["DSV4_API_KEY"]
    print("printed", key, os.environ["ODD_TOKEN"])
    record.series("titled " + key, [(os.environ["ODD_TOKEN"], 1)], x="x", y="y")
    client.send("POST", "/v1/" + key, {"prompt": [key, os.environ["ODD_TOKEN"]], key: "Bearer " + key})
    client.chat("a hf_AbCdEfGhIjKlMnOpQr token")
    assert key == os.environ["ODD_TOKEN"], repr(os.environ["ODD_TOKEN"]) + key
"""
    )
    told = suite.run(
        "--junitxml",
        "evidence/junit.xml",
        "--keep",
        DSV4_API_KEY=SECRET,
        ODD_TOKEN=ODD,
        STAND_IN_FAULT="talks",
    )
    told.assert_outcomes(failed=1)
    folder, run = results(suite)
    env = os.environ | suite.env | {"DSV4_API_KEY": SECRET, "ODD_TOKEN": ODD}
    subprocess.run(
        [sys.executable, "-m", "ci", "report", folder], cwd=ROOT, env=env, check=True, capture_output=True
    )
    files = [path for path in (suite.pytester.path / "evidence").rglob("*") if path.is_file()]
    assert {"junit.xml", "report.html", "summary.md", "results.json", "vllm-chain.log"} <= {
        path.name for path in files
    }
    assert "the engine was given [hidden]" in (folder / "vllm-chain.log").read_text()
    for path in files:
        content = path.read_text()
        for spelled in (
            SECRET,
            ODD,
            json.dumps(ODD)[1:-1],
            json.dumps(ODD, ensure_ascii=False)[1:-1],
            "hf_AbCd",
        ):
            assert spelled not in content, path
            assert spelled not in str(path)
    assert [r.state for r in run.results] == ["fail"]
