"""What a processor lacks decides which servers are started on it, and which known failures it has."""

from pathlib import Path

import pytest

from fixtures import each, expect, serve
from fixtures.engines.fitting import Hardware
from fixtures.engines.rules import Catalog, NotApplicable, table
from fixtures.launch import processor
from fixtures.launch.faux import FauxTarget
from fixtures.launch.targets import VenvTarget
from fixtures.specs import specs

PLAIN = frozenset({"avx2"})


def catalog(extensions, device="cpu"):
    return Catalog("vllm", "0.32.0", Hardware(device, (), extensions), table("vllm"))


def test_a_server_that_needs_more_than_the_processor_has_is_not_applicable():
    with pytest.raises(
        NotApplicable, match=r"quantization=fp8_per_block: it needs a GPU, or a processor with amx_tile"
    ):
        catalog(PLAIN).knob("quantization", "fp8_per_block")
    assert catalog(PLAIN).knob("quantization", "fp8_per_channel")


def test_an_engine_here_has_this_processor_and_a_fake_lacks_nothing(monkeypatch):
    monkeypatch.setattr(processor, "flags", lambda: PLAIN)
    assert VenvTarget("vllm", "0.32.0").hardware.extensions == PLAIN
    assert FauxTarget.read("vllm", "").hardware.extensions is None


def test_what_nobody_has_tried_on_such_a_processor_only_the_fake_takes():
    with pytest.raises(NotApplicable, match=r"or to be tried on a processor with amx_tile$"):
        catalog(PLAIN | {"amx_tile"}).knob("quantization", "fp8_per_block")
    assert catalog(None).knob("quantization", "fp8_per_block")


def test_flags_are_those_of_the_kernel():
    text = Path("/proc/cpuinfo").read_text()
    assert processor.flags() <= set(text.split())
    assert "sse2" in processor.flags()


def test_a_models_name_may_hold_a_knobs_value():
    mark = serve(model="loud_{native_quantization}", native_quantization=each("awq", "fp8_blocks")).mark
    assert [spec.model for spec in specs(mark, catalog(None))] == ["loud_awq", "loud_fp8_blocks"]


@pytest.mark.parametrize(
    ("extensions", "covered"), [(PLAIN, True), (PLAIN | {"avx512_vnni"}, False), (None, False)]
)
def test_a_failure_may_be_known_only_where_the_processor_lacks_something(extensions, covered):
    entry = expect.Known(
        engine="vllm", test="a::b", match="", upstream="", why="", since="", lacks="avx512_vnni"
    )
    assert entry.covers(catalog(extensions), "a::b", {}) is covered
