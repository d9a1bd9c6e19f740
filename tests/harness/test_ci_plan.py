"""`python -m ci plan` shows what a selection starts, how long it takes and how it is cut, exactly as pytest cuts it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci.plan import Row, matrix
from fixtures.evidence.times import Times
from tests.harness.report.values import minutes_to_start

ROOT = Path(__file__).parents[2]
TESTS = """
@serve(model=each('chain', 'lookup', 'mimo'))
@pytest.mark.parametrize("n", range(2))
def test_1(server, n): 0
@serve(model='chain', kv_tokens=17)
def test_2(server): 0
"""
WORDS = ["--", "-m", "vllm", "--vllm", "venv:0.32.0"]


@pytest.fixture
def plan(suite):
    """Run the command where a small suite lies."""
    suite.write(test_a=TESTS)
    (suite.pytester.path / "before.json").write_text(minutes_to_start({"chain": 4, "lookup": 2}))

    def run(*args, words=WORDS):
        return subprocess.run(
            [sys.executable, "-m", "ci", "plan", *args, *words],
            cwd=suite.pytester.path, env=os.environ | suite.env, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def rows(told):
    return [re.split(r"\s{2,}", line) for line in told.stdout.splitlines()]


def test_the_table_shows_servers_tests_minutes_and_shards(plan):
    told = plan("--shards", "2", "--from", "before.json")
    assert told.returncode == 0, told.stderr
    # `mimo` has no record, so it gets the median launch; a test gets a fiftieth of it.
    assert rows(told) == [
        ["server", "tests", "minutes", "shard"],
        ["vllm-chain", "2", "4.1", "1/2"],
        ["vllm-mimo", "2", "3.1", "2/2"],
        ["vllm-lookup", "2", "2.1", "2/2"],
        [""],
        ["1 server", "2", "4.1", "1/2"],
        ["2 servers", "4", "5.2", "2/2"],
        ["3 servers", "6", "9.4", "all"],
        ["Not applicable here, and free: 1 more test."],
        ["No record of 1 of 3 launches: each gets the median, 180 s."],
        ["No record of 6 of 6 tests: each gets the median, 3.6 s."],
        ["Minutes are those of one worker, without -n."],
    ]


def test_without_a_record_it_gives_shares_and_says_so(plan):
    told = plan()
    assert told.returncode == 0, told.stderr
    assert rows(told) == [
        ["server", "tests", "share", "shard"],
        *([f"vllm-{name}", "2", "33.3 %", "1/1"] for name in ("chain", "lookup", "mimo")),
        [""],
        ["3 servers", "6", "100.0 %", "1/1"],
        ["Not applicable here, and free: 1 more test."],
        ["No record: a test counts as 1, a launch as 50. Give results.json of earlier runs with --from."],
    ]


def test_the_matrix_is_what_pytest_cuts(plan, suite):
    told = plan("--shards", "2", "--json", "--from", "before.json")
    assert told.stdout.count("\n") == 1
    shards = json.loads(told.stdout)
    assert [(one["shard"], one["minutes"], one["tests"]) for one in shards] == [
        ("1/2", 4.1, 2),
        ("2/2", 5.2, 4),
    ]
    for one in shards:
        result = suite.run(
            *WORDS[1:], "--collect-only", "-q", "--shard", one["shard"], "--shard-times", "before.json"
        )
        ran = {line.partition("[")[2].rpartition("-")[0] for line in result.outlines if "test_1[" in line}
        assert ran == set(one["servers"])


def test_without_a_record_the_matrix_has_no_minutes():
    row = Row("vllm-chain", server=True, tests=2, cost=52_000, shard=1)
    assert matrix([row], 1, Times()) == [
        {"shard": "1/1", "minutes": None, "tests": 2, "servers": ["vllm-chain"]}
    ]


@pytest.mark.parametrize(
    ("args", "words", "sentence"),
    [
        (["--shards", "0"], WORDS, "error: --shards 0: ask for 1 at least."),
        (["--shards", "9"], WORDS, "error: 9 shards are too many: ask for 4 at most."),
        (["--from", "none.json"], WORDS, "error: none.json cannot be read (No such file or directory)."),
        (
            [],
            ["--", "-k", "nothing"],
            "error: nothing is selected by: pytest -k nothing. Name tests as for pytest.",
        ),
        ([], ["--", "--vllm", "nonsense"], "ERROR: --vllm nonsense: this is no target."),
        (
            [],
            ["--", "--vllm", "nonsense"],
            "error: pytest cannot collect this selection; its own words are above.",
        ),
    ],
)
def test_a_mistake_is_one_sentence(plan, args, words, sentence):
    told = plan(*args, words=words)
    assert told.returncode == 2
    assert sentence in told.stderr
    assert "Traceback" not in told.stderr + told.stdout
    assert told.stdout == ""
