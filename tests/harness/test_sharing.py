"""Runs of one machine share it: no more servers at once than fit, and whoever waits says so."""

from types import SimpleNamespace

import psutil
import pytest

from fixtures.auto import pytest_xdist_auto_num_workers as workers
from fixtures.errors import HarnessError
from fixtures.launch import leases
from fixtures.waiting import Waits
from tests.harness.test_launching import HANGS, LIMIT, started, wait_for  # noqa: F401 - a fixture


def asked(root, *args, numprocesses="auto", vllm=None, sglang=None):
    return SimpleNamespace(
        option=SimpleNamespace(numprocesses=numprocesses, vllm=vllm, sglang=sglang),
        rootpath=root,
        invocation_params=SimpleNamespace(dir=root),
        args=args,
    )


def test_auto_means_as_many_servers_as_fit_where_engines_are_started(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "fitting", lambda found: {"vllm": 7, "sglang": 5}[found.engine])
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    assert workers(asked(tmp_path, "tests/features")) == 5
    assert workers(asked(tmp_path, "tests/features", vllm="venv:0.32.0")) == 7
    assert workers(asked(tmp_path, "tests/harness/x.py::test_1", "tests/accuracy")) == 5
    assert workers(asked(tmp_path, "tests/harness")) is None
    assert workers(asked(tmp_path, "tests/harness/x.py::test_1")) is None
    assert workers(asked(tmp_path, "tests/features", numprocesses="logical")) is None
    for text in ("faux:", "faux:@cuda", "attach:http://127.0.0.1:1", "no such target"):
        assert workers(asked(tmp_path, "tests/features", vllm=text)) is None, text
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "3")
    assert workers(asked(tmp_path, "tests/features")) is None


def test_waiting_does_not_count_as_the_tests_own_time():
    done = []
    hook = SimpleNamespace(
        pytest_timeout_cancel_timer=lambda **given: done.append(("stopped", given)),
        pytest_timeout_set_timer=lambda **given: done.append(("set", given)),
    )
    waits = Waits(SimpleNamespace(pluginmanager=SimpleNamespace(hook=hook)))
    with waits.pause():
        pass
    assert done == []  # no time is set for tests
    waits.pytest_timeout_set_timer("item", "settings")
    with pytest.raises(HarnessError), waits.pause():
        raise HarnessError
    assert done == [("stopped", {"item": "item"}), ("set", {"item": "item", "settings": "settings"})]


def share(suite, servers):
    """Have runs of a suite believe that the machine has room for so many servers."""
    suite.pytester.makeconftest(
        'pytest_plugins = ["fixtures.plugin"]\n'
        "from fixtures.launch import leases\n"
        f"leases.cpu_slots = lambda: {servers}\n"
    )


def test_a_second_run_says_that_it_waits_and_goes_on_when_the_first_has_ended(suite, started):  # noqa: F811
    share(suite, 1)
    suite.write(test_hangs=HANGS, test_a="pytestmark = serve(model='chain')\ndef test_2(server): 0\n")
    first = started("tests/test_hangs.py")
    wait_for((suite.pytester.path / "here").exists, first)
    refused = suite.run("tests/test_a.py", "--lease-limit", "0")
    refused.assert_outcomes(errors=1)
    holder = f"cpu-0 is held by vllm-chain of run *-{first.pid} (process {first.pid})"
    refused.stdout.fnmatch_lines([f"HarnessError: vllm-chain needs 1 CPU slot and did not get *: {holder}*"])
    refused.stdout.no_fnmatch_line("*Traceback*")
    second = started("tests/test_a.py", "-n1")
    logs = suite.pytester.path / "evidence"
    wait_for(lambda: any("and waits" in log.read_text() for log in logs.glob("*/vllm-chain.gw0.log")), second)
    first.kill()
    output, _ = second.communicate(timeout=LIMIT)
    assert second.returncode == pytest.ExitCode.OK, output
    assert "vllm-chain needs 1 CPU slot and waits: cpu-0 is held by vllm-chain of run " in output
    assert suite.left_behind() == []


def test_workers_are_as_many_as_servers_fit_but_not_for_tests_without_an_engine(suite):
    fit = (psutil.cpu_count() or 1) + 1
    share(suite, fit)
    suite.write(test_a="def test_1(): 0\n", harness__test_b="def test_2(): 0\n")
    engine_run = suite.run("-n", "auto", "tests", PYTEST_XDIST_AUTO_NUM_WORKERS="")
    assert f"created: {fit}/{fit} workers" in engine_run.stdout.str()
    harness_run = suite.run("-n", "auto", "tests/harness")
    harness_run.assert_outcomes(passed=1)
    assert f"created: {fit}/{fit} workers" not in harness_run.stdout.str()


def test_workers_begin_with_the_servers_that_need_most_gpus(suite):
    small = "".join(f"def test_{n}(server): 0\n" for n in range(3))
    suite.write(
        test_a=f"pytestmark = serve(model='lookup')\n{small}",
        test_b="pytestmark = serve(model='lookup', tensor_parallel=2)\ndef test_large(server): 0\n",
    )
    result = suite.run("-n1", "-v", "--vllm", "faux:@cuda")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*PASSED*::test_large[[]*", "*PASSED*::test_0[[]*"])


def test_an_engine_sees_its_leased_gpus_and_the_way_to_start_it_elsewhere_names_none(suite):
    suite.pytester.makeconftest(
        'pytest_plugins = ["fixtures.plugin"]\n'
        "from fixtures.launch import leases\n"
        "from fixtures.launch.gpus import Gpu\n"
        "held = leases.Lease((Gpu(3, 'GPU-3', '', '9.0', 1, 0), Gpu(5, 'GPU-5', '', '9.0', 1, 0)))\n"
        "leases.for_server = lambda host, log: held\n"
    )
    suite.write(
        test_a="""
pytestmark = serve(model='chain')
def test_1(server):
    seen = open(f"/proc/{server.pid}/environ").read().split("\\0")
    assert "CUDA_VISIBLE_DEVICES=3,5" in seen
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in seen
    assert not [name for name in server.host.launched.env if name.startswith("CUDA")]
"""
    )
    suite.run().assert_outcomes(passed=1)


def test_a_divided_gpu_is_named_in_the_header(suite):
    suite.pytester.makeconftest(
        'pytest_plugins = ["fixtures.plugin"]\n'
        "from fixtures.launch import targets\n"
        "from fixtures.launch.gpus import Gpu\n"
        "node = [Gpu(n, f'GPU-{n}', 'H200', '9.0', 1, 0, mig=n == 1) for n in range(2)]\n"
        "targets._here = lambda: tuple(node)\n"
    )
    suite.write(test_a="def test_1(): 0\n")
    result = suite.run()
    result.stdout.fnmatch_lines(
        ["GPU 1 (H200, GPU-1) is in MIG mode, which divides it, and servers are given *"]
    )
    result.stdout.no_fnmatch_line("GPU 0*")
