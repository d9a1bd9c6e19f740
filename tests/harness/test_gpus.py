"""The GPUs of a machine are read from NVML, and those that no server can have are named."""

# ruff: noqa: N802, N815 - NVML's names

from types import SimpleNamespace

import pytest

from fixtures.launch import gpus
from fixtures.launch.gpus import GIB, Gpu


class Nvml:
    """A driver with some GPUs, which are dictionaries, or none that answers."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVMLError_NotSupported = type("NotSupported", (NVMLError,), {})
    NVMLError_NoPermission = type("NoPermission", (NVMLError,), {})
    nvmlMemory_v2 = 2

    def __init__(self, *devices, driver=True):
        self.devices, self.driver, self.opened = devices, driver, 0

    def nvmlInit(self):
        if not self.driver:
            raise self.NVMLError
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlDeviceGetCount(self):
        assert self.opened
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.devices[index]

    def nvmlDeviceGetUUID(self, device):
        return device["uuid"]

    def nvmlDeviceGetName(self, device):
        return device.get("name", "NVIDIA H200")

    def nvmlDeviceGetCudaComputeCapability(self, device):
        return device.get("capability", (9, 0))

    def nvmlDeviceGetMemoryInfo(self, device, version):
        assert version == self.nvmlMemory_v2, "the first version counts the driver's own memory as used"
        return SimpleNamespace(total=device.get("total", 140 * GIB), used=device.get("used", 0))

    def nvmlDeviceGetMigMode(self, device):
        if "mig" not in device:
            raise self.NVMLError_NotSupported
        return device["mig"], device["mig"]

    def nvmlDeviceGetComputeRunningProcesses(self, device):
        if "processes" not in device:
            raise self.NVMLError_NoPermission
        return [SimpleNamespace(pid=pid) for pid in device["processes"]]


def gpu(index, **more):
    return Gpu(
        index, f"GPU-{'abcdef'[index]}0{index}", "NVIDIA H200", "9.0", 140 * GIB, **{"used": 0, **more}
    )


def test_a_gpu_is_described_as_its_driver_tells():
    old = {"uuid": "GPU-1", "name": "Tesla P4", "capability": (6, 1), "total": 8 * GIB, "used": 3}
    new = {"uuid": "GPU-2", "mig": 1, "processes": [30, 4]}
    nvml = Nvml(old, new)
    assert gpus.inventory(nvml) == (
        Gpu(0, "GPU-1", "Tesla P4", "6.1", 8 * GIB, 3),
        Gpu(1, "GPU-2", "NVIDIA H200", "9.0", 140 * GIB, 0, mig=True, processes=(4, 30)),
    )
    assert nvml.opened == 0


def test_a_machine_without_a_driver_has_no_gpus():
    nvml = Nvml({"uuid": "GPU-1"}, driver=False)
    assert gpus.inventory(nvml) == ()
    assert nvml.opened == 0


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2", [2]),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        ("0,0", [0]),
        ("GPU-b01", [1]),
        ("GPU-b,GPU-a00", [1, 0]),
        ("GPU-,1", []),  # more than one begins so
        ("GPU-f,1", []),
        ("b01", []),
        ("GPU-c02,0", [2, 0]),
        ("MIG-1,0", []),
    ],
)
def test_the_callers_choice_is_read_as_cuda_reads_it(chosen, left):
    there = [gpu(0), gpu(1), gpu(2)]
    assert [one.index for one in gpus.visible(there, chosen)] == left


def test_the_callers_choice_comes_from_the_environment():
    nvml = Nvml({"uuid": "GPU-1"}, {"uuid": "GPU-2"})
    assert [one.uuid for one in gpus.here({"CUDA_VISIBLE_DEVICES": "1"}, nvml)] == ["GPU-2"]
    assert [one.uuid for one in gpus.here({}, nvml)] == ["GPU-1", "GPU-2"]


def test_a_divided_gpu_is_no_whole_one_and_is_named():
    divided = gpu(1, mig=True)
    assert gpus.whole([gpu(0), divided]) == (gpu(0),)
    assert gpus.why_not(divided) == (
        "GPU 1 (NVIDIA H200, GPU-b01) is in MIG mode, which divides it, and servers are given whole GPUs"
    )


@pytest.mark.parametrize(
    ("more", "by"),
    [
        ({"used": 70 * GIB, "processes": (7, 9)}, "process 7, 9 and 70.0 of 140.0 GiB"),
        ({"used": 2 * GIB}, "a process that is not told and 2.0 of 140.0 GiB"),
        ({"processes": (7,)}, "process 7 and 0.0 of 140.0 GiB"),
    ],
)
def test_a_gpu_that_somebody_else_uses_is_named_with_what_uses_it(more, by):
    told = gpus.why_not(gpu(0, **more))
    assert told == f"GPU 0 (NVIDIA H200, GPU-a00) is used by somebody else: {by}"


def test_a_picture_on_a_gpu_is_no_use_of_it():
    assert gpus.why_not(gpu(0, used=gpus.IDLE)) is None
    assert gpus.why_not(gpu(0, used=gpus.IDLE + 1)) is not None
