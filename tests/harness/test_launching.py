"""Servers are started once for each configuration, their end is noticed and explained, and nothing is left behind."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from fixtures.evidence import journal

HANGS = """
import time
pytestmark = serve(model='chain')
def test_1(server):
    open("here", "w")
    time.sleep(600)
"""
LIMIT = 60  # seconds for anything that a test waits for


def wait_for(condition, process):
    """Wait until a condition holds; the process that should bring it about must not end before."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited in vain"
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue


@pytest.fixture
def started(suite):
    """Start a run in the background; it is killed at the end of the test if need be."""
    processes = []

    def start(*args, **env):
        process = subprocess.Popen(
            suite.command(*args),
            env=os.environ | suite.env | env,
            cwd=suite.pytester.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # whoever runs us in the background has INT ignored, and we would hand that down
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread here
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_each_configuration_is_launched_once(suite):
    body = """
@pytest.mark.parametrize("n", range(3))
def test_it(server, n):
    assert server.pid
"""
    suite.write(
        test_a=f"pytestmark = serve(model='chain')\n{body}",
        test_b=f"pytestmark = serve(model='chain', prefix_cache=False)\n{body}",
        test_c=f"pytestmark = serve(model='chain')\n{body}",
        test_d=f"pytestmark = serve(prefix_cache=each(True, False), model='chain')\n{body}",
    )
    result = suite.run()
    result.assert_outcomes(passed=15)
    result.stdout.fnmatch_lines(["vllm servers: 3 (*", "3 configurations, 3 launches"])
    assert len(suite.launches) == 3
    assert suite.left_behind() == []


def test_a_failed_start_is_tried_once_and_explained(suite):
    suite.write(
        test_a="pytestmark = serve(model='chain', prefix_cache=True)\ndef test_1(server): 0\ndef test_2(server): 0\n"
    )
    result = suite.run(STAND_IN_FAULT="unknown_flag")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        [
            "EngineFault: vLLM 0.32.0, CPU build ended while starting (exit code 2): it does not know *",
            "api_server.py: error: unrecognized arguments: --enable-prefix-caching",
        ]
    )
    flag = "the flag --enable-prefix-caching (the flag comes from knob prefix_cache). Log: "
    assert flag in result.stdout.str()
    result.stdout.no_fnmatch_line("*Traceback*")
    assert len(suite.launches) == 1
    assert suite.left_behind() == []


def test_a_launch_that_the_release_would_refuse_starts_nothing(suite):
    suite.write(
        test_a="""
pytestmark = serve(model='chain', extra={'vllm': ['--enable-prefix-cachin', '--max-num-seq', 'x']})
def test_1(server): 0
def test_2(server): 0
"""
    )
    result = suite.run()
    result.assert_outcomes(errors=2)
    told = "HarnessError: vLLM 0.32.0, CPU build was not started. --max-num-seq x: it takes a whole number."
    result.stdout.fnmatch_lines([f"{told} (It comes from serve(extra=*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert suite.launches == []


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            "traceback",
            "*ended while starting (exit code 1): its log says: ValueError: the number of heads is odd*",
        ),
        (
            "memory",
            "*ended while starting (killed (SIGKILL), by somebody or by the kernel for lack of memory)*",
        ),
        ("illegal", "*(stopped by an illegal instruction: *"),
        ("port", "*its port is in use*"),
    ],
)
def test_the_cause_of_a_failed_start_is_named(suite, fault, sentence):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    result = suite.run(STAND_IN_FAULT=fault)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([sentence])
    assert suite.left_behind() == []


def test_an_engine_that_never_gets_ready_ends_at_the_limit(suite):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    result = suite.run("--start-limit", "1", STAND_IN_FAULT="never_ready")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*was not ready within 1 s*--start-limit SECONDS*"])
    assert suite.left_behind() == []


def test_a_missing_model_is_one_sentence(suite):
    suite.write(test_a="pytestmark = serve(model='/nowhere/model')\ndef test_1(server): 0\n")
    result = suite.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["HarnessError: there is no checkpoint at /nowhere/model (no config.json)*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert suite.launches == []


def test_a_taken_port_is_one_sentence(suite):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = suite.run("--port", str(port))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"HarnessError: port {port} on 127.0.0.1 cannot be used*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_folder_for_logs_that_cannot_be_made_is_one_sentence(suite):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    (suite.pytester.path / "file").touch()
    result = suite.run("--evidence", "file")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: results cannot go to *(Not a directory)*--evidence."])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_a_server_that_dies_fails_its_test_and_the_next_gets_a_new_one(suite):
    suite.write(
        test_a="""
pytestmark = serve(model='chain')
def test_1(server): 0
def test_2(client, server):
    os.kill(server.pid, 9)
    client.send("GET", "/health")
    client.send("GET", "/health")
def test_3(client):
    assert client.send("GET", "/health").status == 200
"""
    )
    result = suite.run()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "EngineFault: vLLM 0.32.0, CPU build ended while serving (killed (SIGKILL), *",
            "vllm-chain: ready in * s (first use)",
            "vllm-chain: ready in * s (it had died)",
            "1 configurations, 2 launches",
        ]
    )
    assert suite.left_behind() == []


def test_a_server_that_dies_before_the_test_begins_is_named_as_well(suite):
    suite.write(
        test_a="""
pytestmark = serve(model='chain')
@pytest.fixture
def broken(client, server):
    os.kill(server.pid, 9)
    client.send("GET", "/health")
    client.send("GET", "/health")
def test_1(broken): 0
def test_2(client): assert client.send("GET", "/health").status == 200
"""
    )
    result = suite.run()
    result.assert_outcomes(passed=1, errors=1)
    told = "EngineFault: vLLM 0.32.0, CPU build ended while serving (killed (SIGKILL), *"
    result.stdout.fnmatch_lines([told, "vllm-chain: ready in * s (it had died)"])
    assert suite.left_behind() == []


def test_a_perturbed_model_is_served_beside_the_sound_answers(suite):
    suite.write(
        test_a="""
pytestmark = serve(model='chain')
def test_1(server, oracle):
    served = open(f"/proc/{server.pid}/cmdline").read().split("\\0")
    assert served[served.index("--model") + 1].endswith("-row500x-1")
    assert oracle.perturbed is None
"""
    )
    result = suite.run("--perturb", "500")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["perturb: row 500 of every model's head is wrong (from: command line)"])


def test_a_fault_of_the_checkpoint_is_served_beside_the_sound_answers_and_then_gone(suite):
    suite.write(
        test_a="""
import json, pathlib
import numpy as np
from safetensors.numpy import load_file
from fixtures.faux.faults import FAULTS, edit
def turn(config, tensors): tensors['lm_head.weight'] *= -1
FAULTS['turned'] = edit.serves('turned', 'The head has the wrong sign.', turn)
pytestmark = serve(model='chain')
@pytest.mark.catches('turned')
def test_1(server, oracle, fault):
    served = open(f"/proc/{server.pid}/cmdline").read().split("\\0")
    folder = pathlib.Path(served[served.index("--model") + 1])
    with open("folders", "a") as file: print(folder, file=file)
    assert json.loads((folder / "oracle.json").read_text()).get("perturbed") == (fault and {"fault": fault})
    head, right = load_file(folder / "model.safetensors")["lm_head.weight"], oracle.reference.weights["lm_head.weight"]
    assert np.array_equal(head, -right if fault else right)
    assert not fault
""",
    )
    result = suite.run("--mutants")
    result.stdout.fnmatch_lines(
        [
            "1 of 1 mutants noticed*",
            "vllm-chain: ready in * s (first use)",
            "vllm-chain: ready in * s (to be wrong: turned)",
        ]
    )
    sound, wrong = (suite.pytester.path / "folders").read_text().split()
    assert Path(sound).is_dir()
    assert not Path(wrong).exists()


def test_workers_share_the_servers_and_start_each_once(suite):
    """Two modules that ask for the same servers; ids are those of a run without workers."""
    text = "pytestmark = serve(model=each('chain', 'fuzz', 'lookup'))\n" + "".join(
        f"def test_{n}(client, server): assert client.send('GET', '/health').status == 200\n"
        for n in range(3)
    )
    suite.write(test_a=text, test_b=text)
    result = suite.run("-n2", "-v")
    result.assert_outcomes(passed=18)
    result.stdout.fnmatch_lines(["3 configurations, 3 launches"])
    result.stdout.no_fnmatch_line("*@server*")
    assert len(suite.launches) == 3
    (written,) = (suite.pytester.path / "evidence").glob("*/results.json")
    (run,) = journal.read(written).runs
    assert {kept.id for kept in run.results} == {
        f"tests/test_{module}.py::test_{n}[vllm-{model}]"
        for module in "ab"
        for n in range(3)
        for model in ("chain", "fuzz", "lookup")
    }


def test_a_worker_that_is_killed_loses_its_own_test_only(suite):
    suite.write(
        test_a="""
pytestmark = serve(model=each('chain', 'fuzz'))
def test_1(server): 0
def test_2(server):
    if server.spec.model == 'fuzz': os._exit(3)
def test_3(server): 0
"""
    )
    result = suite.run("-n2")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["FAILED tests/test_a.py::test_2[[]vllm-fuzz[]] - worker *"])
    result.stdout.no_fnmatch_line("*@server*")
    assert suite.left_behind() == []


def test_a_dirtied_server_is_replaced_and_its_breaker_runs_last(suite):
    suite.write(
        test_a="""
pytestmark = serve(model='chain')
@pytest.mark.dirties
def test_breaks(server): os.kill(server.pid, 9)
def test_1(server): 0
""",
        test_b="pytestmark = serve(model='chain', prefix_cache=True)\ndef test_2(server): 0\n",
    )
    result = suite.run("-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["*::test_1*", "*::test_breaks*", "*::test_2*", "2 configurations, 2 launches"]
    )


def test_an_interrupt_while_starting_leaves_nothing(suite, started):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    run = started(STAND_IN_FAULT="never_ready")
    wait_for(lambda: suite.launches, run)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert suite.left_behind() == []


@pytest.mark.parametrize("fault", ["", "deaf"])
def test_a_killed_run_leaves_nothing(suite, started, fault):
    suite.write(test_a=HANGS)
    run = started(STAND_IN_FAULT=fault)
    wait_for((suite.pytester.path / "here").exists, run)
    (launch,) = suite.launches
    engine = psutil.Process(launch["pid"])
    supervisor = engine.parent()
    run.kill()
    supervisor.wait(LIMIT)
    assert suite.left_behind() == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", launch["port"])) != 0


def test_the_supervisors_own_death_takes_the_engine_along(suite, started):
    suite.write(test_a=HANGS)
    run = started()
    wait_for((suite.pytester.path / "here").exists, run)
    engine = psutil.Process(suite.launches[0]["pid"])
    engine.parent().kill()
    assert engine.wait(LIMIT) is None
