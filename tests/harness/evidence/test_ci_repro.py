"""A failed test is handed on as a bundle, which fails again from the recording, and is tried on other releases."""

import json
import subprocess
import zipfile

import pytest

from ci import repro
from ci.__main__ import main
from fixtures.errors import HarnessError
from tests.harness.conftest import STAND_IN
from tests.harness.evidence.samples import about, exchange, keep

FAILS = """
pytestmark = serve(model='chain')
def test_version(client, server):
    \"\"\"On the stand-in, the version is what $STAND_IN_VERSION says.\"\"\"
    assert server.fact("served_name") == "oracle"
    assert client.send("GET", "/version").json()["version"] != "0.32.0", "the version is wrong"
def test_passes(client): assert client.send("GET", "/health").status == 200
"""


TEST = "tests/features/test_a.py::test_version[vllm-chain]"
STAND_IN_TARGET = ("--vllm", f"process:{STAND_IN}")


@pytest.fixture
def ci(suite, monkeypatch, capfd):
    """Run a command of `python -m ci` in the suite's folder."""
    monkeypatch.chdir(suite.pytester.path)

    def run(*args, **env):
        with monkeypatch.context() as patch:
            for name, value in {**suite.env, **env}.items():
                patch.setenv(name, value)
            capfd.readouterr()
            code = main([str(arg) for arg in args])
        told = capfd.readouterr()
        return subprocess.CompletedProcess(args, code, told.out, told.err)

    return run


@pytest.fixture
def recorded(suite, tmp_path):
    """Give the recording of the failure, made by hand, in a suite that has the test."""
    suite.write(features__test_a=FAILS)
    told = about(spec={"model": "chain"})
    told["result"] |= {"id": TEST, "sentence": "the version is wrong\nassert '0.32.0' != '0.32.0'"}
    models = exchange(json.dumps({"data": [{"id": "oracle"}]}), path="/v1/models", method="GET", request=None)
    version = exchange('{"version": "0.32.0"}', path="/version", method="GET", request=None)
    return keep(tmp_path / "recorded", models, version, told=told)


def test_a_failure_is_bundled_judged_again_and_replayed(suite, ci):
    suite.write(features__test_a=FAILS)
    suite.run(STAND_IN_SECRET_KEY="hush-hush-hush").assert_outcomes(passed=1, failed=1)
    made = ci("repro", "--out", "b.zip")
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.splitlines()[-1] == "judge it again: python -m ci judge b.zip"
    tells_nothing_of_this_machine(suite)

    launches = len(suite.launches)
    judged = ci("judge", "b.zip")
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert judged.stdout.splitlines()[-1] == "fails as it was recorded: fail: the version is wrong"
    assert len(suite.launches) == launches  # without a server

    same = ci("replay", "b.zip", *STAND_IN_TARGET)
    assert same.returncode == 0, same.stdout + same.stderr
    assert same.stdout.splitlines()[-1] == "fails there as well: fail: the version is wrong"

    other = ci("replay", "b.zip", *STAND_IN_TARGET, "--evidence", "mine", STAND_IN_VERSION="0.33.0")
    assert other.returncode == 1, other.stdout + other.stderr
    assert other.stdout.splitlines()[-1] == f"passes there: {TEST} on {STAND_IN_TARGET[1]}"
    (results,) = (suite.pytester.path / "mine").glob("*/results.json")
    assert json.loads(results.read_text())["runs"][0]["results"][0]["state"] == "pass"
    assert suite.left_behind() == []


def tells_nothing_of_this_machine(suite):
    with zipfile.ZipFile(suite.pytester.path / "b.zip") as packed:
        texts = {name: packed.read(name).decode() for name in packed.namelist()}
    assert {
        "issue.md",
        "launch.sh",
        "replay.py",
        "recipe.json",
        "test.json",
        "exchanges.jsonl",
    } <= texts.keys()
    for name, text in texts.items():
        for secret in (
            str(suite.pytester.path),
            suite.env["DSV4_CACHE"],
            str(STAND_IN.parents[3]),
            "hush-hush-hush",
        ):
            assert secret not in text, name
    assert "curl -sS http://127.0.0.1:8000/version" in texts["issue.md"]


def test_a_kept_folder_is_judged_like_a_bundle(ci, recorded):
    judged = ci("judge", recorded)
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_another_failure_is_told_with_the_recorded_one(suite, ci, recorded):
    suite.write(features__test_a=FAILS.replace("the version is wrong", "quite another thing"))
    judged = ci("judge", recorded)
    assert judged.returncode == 1
    assert judged.stdout.splitlines()[-4:] == [
        "recorded: fail: the version is wrong",
        "assert '0.32.0' != '0.32.0'",
        "fails differently: fail: quite another thing",
        "assert '0.32.0' != '0.32.0'",
    ]


def test_a_test_that_passes_by_now_says_so(suite, ci, recorded):
    suite.write(features__test_a=FAILS.replace("!=", "=="))
    judged = ci("judge", recorded)
    assert judged.returncode == 1
    assert judged.stdout.splitlines()[-1].startswith(f"passes when it is judged again: {TEST} on recorded:")


def test_a_test_that_changed_since_is_said_to_ask_something_else(suite, ci, recorded):
    suite.write(features__test_a=FAILS.replace('"/version"', '"/other"'))
    judged = ci("judge", recorded)
    assert judged.returncode == 1
    sentence = "HarnessError: the recording holds no answer to GET /other: the test now asks something else"
    assert sentence in judged.stdout
    assert f"\nfails differently: error: {sentence}" in judged.stdout


def test_a_checkout_without_the_test_is_one_sentence(suite, ci, recorded):
    suite.write(features__test_a="def test_other(): 0\n")
    judged = ci("judge", recorded)
    assert judged.returncode == 2
    assert judged.stderr.startswith(
        "error: this checkout has no test 'tests/features/test_a.py::test_version[vllm-"
    )
    assert "use its replay.py" in judged.stderr
    assert judged.stderr.count("\n") == 1


def test_a_test_that_needs_another_server_by_now_is_not_applicable(ci, recorded):
    told = json.loads((recorded / "test.json").read_text())
    told["spec"] = {"model": "chain", "knobs": {"prefix_cache": False}}
    (recorded / "test.json").write_text(json.dumps(told))
    judged = ci("judge", recorded)
    assert judged.returncode == 2
    assert "is not applicable on recorded:" in judged.stderr
    assert "is of the server chain-no_prefix_cache, this needs chain." in judged.stderr


def test_without_an_answer_there_is_nothing_to_judge(ci, recorded):
    (recorded / "exchanges.jsonl").write_text("")
    judged = ci("judge", recorded)
    assert judged.returncode == 2
    assert "holds no answer of a server, so there is nothing to judge again." in judged.stderr


@pytest.fixture
def runs(tmp_path):
    """Write runs as they lie under evidence/: for each its name and the states of the tests that it kept."""

    def write(**states):
        for run, kept in states.items():
            (tmp_path / "evidence" / run).mkdir(parents=True)
            (tmp_path / "evidence" / run / "journal.jsonl").touch()
            for number, state in enumerate(kept):
                told = about()
                told["result"]["state"] = state
                folder = tmp_path / "evidence" / run / "tests" / f"test_{number}"
                folder.parent.mkdir(exist_ok=True)
                keep(folder, told=told)
        return tmp_path / "evidence"

    return write


def test_the_one_failure_of_the_newest_run_is_bundled(ci, suite, runs):
    evidence = runs(a=["fail", "fail"], b=["pass", "known", "not_applicable"])
    made = ci("repro", "--evidence", evidence)
    assert made.returncode == 0, made.stderr
    assert (suite.pytester.path / "repro-test_1.zip").is_file()


def test_of_several_failures_one_must_be_named(ci, suite, runs):
    made = ci("repro", "--evidence", runs(a=["fail", "error", "pass"]))
    assert made.returncode == 2
    first, *ways = made.stderr.splitlines()
    assert first.endswith("did not pass. Name one of them:")
    assert [way.split("/")[-1] for way in ways] == ["test_0", "test_1"]
    assert ci(*ways[1].split()[3:]).returncode == 0
    assert (suite.pytester.path / "repro-test_1.zip").is_file()


@pytest.mark.parametrize(
    ("kept", "sentence"), [({}, "error: no run is kept under"), ({"a": ["pass"]}, "error: the newest run, ")]
)
def test_nothing_to_bundle_is_one_sentence(ci, runs, tmp_path, kept, sentence):
    runs(**kept)
    made = ci("repro", "--evidence", tmp_path / "evidence")
    assert (made.returncode, made.stderr.count("\n")) == (2, 1)
    assert made.stderr.startswith(sentence)


# --- a bundle is a stranger's word ---


@pytest.mark.parametrize(
    "test",
    [
        "--collect-only",
        "-p/tests/test_a.py",
        "conftest.py::test_1",
        "tests/../outside.py::test_1",
        "tests/../../x.py",
        "/etc/passwd",
        "tests/test_a.txt::test_1",
        "tests/test_b.py::test_1",
        "tests/\0.py::test_1",
        f"tests/{'x' * 300}.py",
        "",
        "tests/test_a.py; touch hacked",
    ],
)
def test_an_id_that_is_none_of_the_checkout_starts_nothing(tmp_path, monkeypatch, test):
    (tmp_path / "tests").mkdir()
    for name in ("tests/test_a.py", "conftest.py", "outside.py"):
        (tmp_path / name).touch()
    told = about()
    told["result"]["id"] = test
    folder = keep(tmp_path / "kept", told=told)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was started"))
    with pytest.raises(HarnessError, match="this checkout has no test"):
        repro.judge(folder)


def test_an_id_that_pytest_would_take_for_several_tests_is_none(suite, ci, tmp_path):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(client): 0\n")
    told = about(spec={"model": "chain"})
    told["result"]["id"] = "tests/test_a.py"
    judged = ci("judge", keep(tmp_path / "kept", told=told))
    assert judged.returncode == 2
    assert "this checkout has no test 'tests/test_a.py'" in judged.stderr


@pytest.mark.parametrize(
    "options", [(), ("--sglang", "venv:0.5.20"), ("--vllm", "venv:1", "--sglang", "venv:1")]
)
def test_a_replay_needs_a_target_of_the_bundles_engine(ci, tmp_path, options):
    told = ci("replay", keep(tmp_path / "kept"), *options)
    assert told.returncode == 2
    assert "is of vllm: say where to run it with --vllm venv:VERSION." in told.stderr
