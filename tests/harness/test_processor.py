"""What a processor lacks decides which servers are started on it, and which known failures it has."""

from pathlib import Path

import pytest

from fixtures import each, items, serve
from fixtures.engines.rules import Catalog
from fixtures.launch import processor
from fixtures.launch.faux import FauxTarget
from fixtures.launch.targets import ProcessTarget
from fixtures.model import ServerSpec

BLOCKS = ServerSpec("loud", (("quantization", "fp8_per_block"),), ())
CHANNELS = ServerSpec("loud", (("quantization", "fp8_per_channel"),), ())


@pytest.fixture
def plain(monkeypatch):
    """A processor with AVX2 only."""
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"avx2"}))


def reason(target, spec, device="cpu"):
    return items.lacking(target, Catalog.bound("vllm", "0.32.0", device), spec)


@pytest.fixture
def real():
    """An engine on this machine; nothing of it is looked at but its kind."""
    return object.__new__(ProcessTarget)


@pytest.mark.usefixtures("plain")
def test_a_server_that_needs_more_than_the_processor_has_is_not_applicable(real):
    assert (
        reason(real, BLOCKS) == "vLLM 0.32.0 needs a processor with amx_tile for quantization=fp8_per_block"
    )
    assert reason(real, CHANNELS) is None


@pytest.mark.usefixtures("plain")
def test_a_gpu_and_a_fake_need_no_processor(real):
    assert reason(real, BLOCKS, "cuda") is None
    assert reason(FauxTarget.read("vllm", ""), BLOCKS) is None


def test_a_processor_that_has_it_serves(monkeypatch, real):
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"amx_tile"}))
    assert reason(real, BLOCKS) is None


def test_flags_are_those_of_the_kernel():
    text = Path("/proc/cpuinfo").read_text()
    assert processor.flags() <= set(text.split())
    assert "sse2" in processor.flags()


def test_a_models_name_may_hold_a_knobs_value():
    mark = serve(model="loud_{native_quantization}", native_quantization=each("awq", "fp8_blocks")).mark
    assert [spec.model for spec in items.specs(mark)] == ["loud_awq", "loud_fp8_blocks"]
