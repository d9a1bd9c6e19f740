"""A check that cannot fail of a fault that it names turns the run red; so does one that ends in another error."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.errors import EngineFault, HarnessError
from fixtures.evidence import journal
from fixtures.faux.scene import Fault
from fixtures.mutants import state_of

ROOT = Path(__file__).parents[2]

CHECKS = """
pytestmark = [feature("25a", "Prefix caching"), serve(model="chain", prefix_cache=True)]

@catches("reset_ignored", "cache_off")
def test_notices(client):
    client.complete("w001w002" * 200, max_tokens=1)
    assert client.complete("w001w002" * 200, max_tokens=1).cached_tokens > 0
    client.reset_prefix_cache()
    assert not client.complete("w001w002" * 200, max_tokens=1).cached_tokens

@catches("reset_ignored")
@pytest.mark.parametrize("words", [1, 200, 300])
def test_notices_with_some_parameters(client, words):
    client.complete("w001w002" * words, max_tokens=1)
    client.reset_prefix_cache()
    assert not client.complete("w001w002" * words, max_tokens=1).cached_tokens
"""
BLIND = """
pytestmark = serve(model="chain", prefix_cache=True)

@catches("cache_off")
@pytest.mark.parametrize("n", range(2))
def test_is_blind(client, n):
    assert client.complete("w001", max_tokens=1).text
"""
STUMBLES = """
pytestmark = serve(model="chain", prefix_cache=True)

@catches("cache_off")
def test_stumbles(client):
    client.complete("w001w002" * 200, max_tokens=1)
    {"yes": 1}["yes" if client.complete("w001w002" * 200, max_tokens=1).cached_tokens else "no"]
"""
FAILS_ANYWAY = """
pytestmark = serve(model="chain", prefix_cache=True)

@catches("cache_off")
def test_fails_anyway(server):
    assert 0
"""


def kills(suite):
    (path,) = (suite.pytester.path / "evidence").glob("*/results.json")
    (run,) = journal.read(path).runs
    return {(kill.test.partition("::")[2], kill.fault): kill.state for kill in run.kills}, run


def test_mutants_that_are_noticed_are_expected_failures(suite):
    suite.write(test_a=CHECKS)
    result = suite.run("--mutants", "--vllm", "faux:")
    result.assert_outcomes(passed=5, xfailed=3, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["3 of 3 mutants noticed (100.0%); 2 distinct faults"])
    seen, run = kills(suite)
    assert seen == {
        ("test_notices", "reset_ignored"): "noticed",
        ("test_notices", "cache_off"): "noticed",
        ("test_notices_with_some_parameters", "reset_ignored"): "noticed",
    }
    assert [r.state for r in run.results] == ["pass"] * 4  # the checks without a fault
    assert run.engines[0].fake


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_a_survivor_turns_the_run_red(suite, workers):
    suite.write(test_a=CHECKS, test_b=BLIND)
    result = suite.run("--mutants", "--vllm", "faux:", *workers)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["survived: cache_off before test_b.py::test_is_blind on vllm *", "3 of 4 mutants noticed*"]
    )
    assert kills(suite)[0]["test_is_blind", "cache_off"] == "survived"


def test_another_error_does_not_count_as_noticing(suite):
    suite.write(test_a=STUMBLES)
    result = suite.run("--mutants", "--vllm", "faux:")
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*KeyError: 'no' - this does not count as noticing cache_off*", "0 of 1 mutants noticed*"]
    )
    assert kills(suite)[0] == {("test_stumbles", "cache_off"): "error"}


def test_a_check_that_fails_without_a_fault_shows_nothing(suite):
    suite.write(test_a=FAILS_ANYWAY)
    result = suite.run("--mutants", "--vllm", "faux:")
    result.assert_outcomes(failed=1, skipped=1)
    assert kills(suite)[0] == {}


def test_a_fault_that_nobody_knows_is_one_sentence(suite):
    suite.write(
        test_a="pytestmark = serve(model='chain')\n@catches('no_such_fault')\ndef test_1(client): 0\n"
    )
    result = suite.run("--mutants", "--vllm", "faux:")
    result.stdout.fnmatch_lines(["*test_1: no fault is called no_such_fault*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--fault", "no_such_fault"], "*--fault no_such_fault: there is no such fault.*"),
        (["--fault", "cache_off", "--mutants"], "*give only one.*"),
    ],
)
def test_options_that_cannot_be_kept_are_one_sentence(suite, options, sentence):
    suite.write(test_a=CHECKS)
    result = suite.run("--vllm", "faux:", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([sentence])
    assert "Traceback" not in result.stderr.str()


def naming(module, fault):
    """The checks of a module that name a fault."""
    return {
        node.name
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(
            ast.unparse(d).startswith("catches(") and repr(fault) in ast.unparse(d)
            for d in node.decorator_list
        )
    }


@pytest.mark.parametrize(
    ("engine", "fault", "rows"),
    [
        ("vllm", "salt_ignored", {"features/test_prefix_caching.py"}),
        ("sglang", "seed_ignored", {"accuracy/test_logprobs.py"}),
    ],
)
def test_a_broken_engine_is_red_in_the_right_cells_only(engine, fault, rows, tmp_path, model_cache):
    modules = ["features/test_prefix_caching.py", "accuracy/test_logprobs.py"]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--{engine}=faux:", "--fault", fault, "--evidence", tmp_path]
        + [f"tests/{module}" for module in modules],
        cwd=ROOT, env=os.environ | {"DSV4_CACHE": str(model_cache)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 1, told.stdout
    (path,) = tmp_path.glob("*/results.json")
    (run,) = journal.read(path).runs
    failed = {r.test for r in run.results if r.state == "fail"}
    assert not [r.id for r in run.results if r.state == "error"]
    assert {test.partition("::")[0] for test in failed} == rows
    named = {f"{module}::{name}" for module in modules for name in naming(ROOT / "tests" / module, fault)}
    assert named <= failed
    assert run.engines[0].tampered == f"behind the fault {fault}"


@pytest.mark.parametrize(
    ("shows", "error", "state"),
    [
        ("assertion", None, "survived"),
        ("assertion", AssertionError(), "noticed"),
        ("assertion", EngineFault("gone"), "error"),
        ("assertion", HarnessError("wrong"), "error"),
        ("assertion", KeyError(), "error"),
        ("engine", None, "survived"),
        ("engine", EngineFault("gone"), "noticed"),
        ("engine", AssertionError(), "error"),
    ],
)
def test_only_the_error_that_a_fault_calls_for_counts(shows, error, state):
    assert state_of(Fault("f", "Does wrong.", shows=shows), error) == state
