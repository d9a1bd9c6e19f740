"""`--shard I/N` runs its part of the selection and no other, says so in the results, and explains what it cannot do."""

from collections import Counter
from itertools import chain

import pytest

from fixtures.evidence import journal
from fixtures.evidence.results import Shard
from tests.harness.report.values import minutes_to_start

TESTS = """
@serve(model='chain', prefix_cache=each(True, False), mtp=each(0, 1))
@pytest.mark.parametrize("n", range(3))
def test_1(server, n): 0
@serve(model='lookup', compile=True, caches='cold')
def test_2(server): 0
@serve(model='lookup', compile=True, caches='warm')
def test_3(server): 0
def test_4(): 0
"""
REAL = ["--vllm", "venv:0.32.0"]


def collected(result):
    return [line for line in result.outlines if "::" in line and " " not in line]


def server(test):
    return test.partition("[")[2].rpartition("-")[0]


def test_the_shards_are_the_whole_and_tear_no_server_apart(suite):
    suite.write(test_a=TESTS)
    words = ["--collect-only", "-q", "-m", "not sglang", *REAL]
    whole = collected(suite.run(*words))
    shards = [collected(suite.run(*words, "--shard", f"{n}/3")) for n in (1, 2, 3)]
    assert all(shards)
    assert Counter(chain.from_iterable(shards)) == Counter(whole)
    servers = [{server(test) for test in shard if "::test_1" in test} for shard in shards]
    assert sum(map(len, servers)) == len(set().union(*servers)) == 4
    assert len([shard for shard in shards if any("::test_2" in t or "::test_3" in t for t in shard)]) == 1


def results(suite):
    """The runs that the suite wrote, in the order of their shards."""
    paths = (suite.pytester.path / "evidence").glob("*/results.json")
    return sorted(journal.merge(map(journal.read, paths)).runs, key=lambda run: run.shard.number)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_results_say_which_shard_of_which_cut_they_are(suite, workers):
    suite.write(test_a="@serve(model='chain', prefix_cache=each(True, False))\ndef test_1(server): 0\n")
    for number in (1, 2):
        suite.run("--shard", f"{number}/2", *workers).assert_outcomes(passed=1)
    one, two = results(suite)
    assert one.shard.cut
    assert one.shard == Shard(number=1, of=2, cut=one.shard.cut)
    assert two.shard == Shard(number=2, of=2, cut=one.shard.cut)
    assert (one.planned, two.planned) == (1, 1)
    assert (one.id.rpartition("-")[2], two.id.rpartition("-")[2]) == ("1of2", "2of2")
    assert {r.server for r in (*one.results, *two.results)} == {
        "vllm-chain-prefix_cache",
        "vllm-chain-no_prefix_cache",
    }
    assert len(suite.launches) == 2


def test_recorded_times_decide_the_cut(suite):
    names = ["chain", "lookup", "mimo", "fuzz"]
    suite.write(test_a=f"@serve(model=each{tuple(names)!r})\ndef test_1(server): 0\n")
    suite.write(
        test_b="@pytest.mark.parametrize('n', range(2))\n@serve(model='chain')\ndef test_2(server, n): 0\n"
    )
    # Without a record `chain`, which has the most tests, goes first; recorded, `fuzz` is as long as all others.
    words = ["--collect-only", "-q", *REAL]
    first = collected(suite.run(*words, "--shard", "1/4"))
    assert {"[vllm-chain" in test for test in first} == {True}
    path = suite.pytester.path / "before.json"
    path.write_text(minutes_to_start({"chain": 1, "lookup": 1, "mimo": 1, "fuzz": 9}))
    alone = collected(suite.run(*words, "--shard", "1/2", f"--shard-times={path}"))
    assert alone == ["tests/test_a.py::test_1[vllm-fuzz]"]


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_a_shard_without_tests_is_refused_in_one_sentence(suite, workers):
    suite.write(test_a="@serve(model='chain')\ndef test_1(server): 0\n")
    result = suite.run("--shard", "2/2", *workers)
    assert result.ret != 0
    result.stdout.fnmatch_lines(
        ["*ERROR collecting --shard 2/2*", "2 shards are too many: ask for 1 at most.*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    assert suite.launches == []


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["--shard", "0/2"],
            "ERROR: --shard 0/2: write it as I/N with I from 1 to N, for example --shard 2/4.",
        ),
        (["--shard", "3/2"], "ERROR: --shard 3/2: write it as I/N *"),
        (["--shard", "one"], "ERROR: --shard one: write it as I/N *"),
        (
            ["--shard-times", "x.json"],
            "ERROR: --shard-times says what --shard weighs by, and there is no --shard.*",
        ),
        (
            ["--shard", "1/2", "--shard-times", "x.json"],
            "ERROR: x.json cannot be read (No such file or directory).*",
        ),
        (["--shard", "1/2", "--mutants"], "ERROR: --shard and --mutants do not go together: *"),
    ],
)
def test_a_mistake_is_one_sentence(suite, args, sentence):
    suite.write(test_a="@serve(model='chain')\ndef test_1(server): 0\n")
    result = suite.run(*args, *REAL)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([sentence])
    result.stderr.no_fnmatch_line("*Traceback*")
