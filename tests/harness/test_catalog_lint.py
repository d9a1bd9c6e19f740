"""Every flag, variable, metric and request field of the catalog exists in every release that the suite is kept for."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.engines import rules, vet
from fixtures.engines.rules import Catalog
from fixtures.model import ServerSpec

ROOT = Path(__file__).parents[2]
TARGETS = [
    (engine, version, device)
    for engine, target in tomllib.loads((ROOT / "ci" / "targets.toml").read_text()).items()
    for version in target["releases"]
    for device in target["devices"]
]


def planned(engine, version, device="cpu", extra=()):
    spec = ServerSpec("none", (), ((engine, tuple(extra)),))
    return Catalog.bound(engine, version, device).launch(spec, "python", "none", 8000)


@pytest.mark.parametrize(("engine", "version", "device"), TARGETS, ids=" ".join)
def test_the_catalog_asks_for_nothing_that_the_release_lacks(engine, version, device):
    assert list(vet.catalog(engine, version, device)) == []


@pytest.mark.parametrize(
    ("table", "change", "problem"),
    [
        ("knobs", {"odd": {"rules": [{"args": ["--enable-dsa-cp"]}]}}, "knob odd=1: --enable-dsa-cp: no release"),
        (
            "knobs",
            {"odd": {"rules": [{"values": ["word", 7], "args": ["--max-num-seqs", "{value}"]}]}},
            "knob odd=word: --max-num-seqs word: it takes a whole number.",
        ),
        ("knobs", {"odd": {"rules": [{"env": {"VLLM_MOE_BACKEND": "x"}}]}}, "knob odd=1: VLLM_MOE_BACKEND is ignored"),
        ("metrics", {"odd": [{"name": "vllm:no_such_total"}]}, "metric odd: vllm:no_such_total: no release"),
        ("fields", {"odd": [{"path": "guided_json"}]}, "field odd: guided_json in /v1/completions is ignored"),
        ("fields", {"odd": [{"path": "structured_outputs.rgx"}]}, "field odd: structured_outputs.rgx in /v1/comp"),
    ],
)  # fmt: skip
def test_what_a_release_lacks_is_told(monkeypatch, table, change, problem):
    real = rules.table("vllm")
    monkeypatch.setattr(rules, "table", lambda _: real | {table: real[table] | change})
    told = list(vet.catalog("vllm", "0.32.0", "cuda"))
    assert told
    assert all(problem.split(":")[0] in one for one in told)
    assert any(one.startswith(problem) for one in told)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_launch_with_an_unknown_flag_is_told(engine):
    version = {"vllm": "0.32.0", "sglang": "0.5.20"}[engine]
    assert vet.launch(engine, version, planned(engine, version)) == []
    (finding,) = vet.launch(engine, version, planned(engine, version, extra=["--no-such-flag", "1"]))
    assert finding.what == "--no-such-flag"


def test_a_variable_that_nothing_reads_is_told():
    launch = planned("vllm", "0.32.0")
    odd = replace(launch, env=launch.env | {"VLLM_NO_SUCH": "1"})
    assert [finding.what for finding in vet.launch("vllm", "0.32.0", odd)] == ["VLLM_NO_SUCH"]


def test_a_build_of_a_release_is_held_against_its_census_and_others_are_left_alone():
    assert vet.known("vllm", "0.32.0+cpu").version == "0.32.0"
    assert vet.known("sglang", "0.5.12.post1+cpu").version == "0.5.12.post1"
    assert vet.known("vllm", "0.32.1.dev3+gabc") is None
    assert vet.known("vllm", "99.0") is None
    assert vet.launch("vllm", "99.0", planned("vllm", "0.32.0", extra=["--no-such-flag"])) == []
