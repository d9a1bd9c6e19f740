"""Results by hand: what a test does not name is as in a run on vLLM that passed."""

from __future__ import annotations

from fixtures.evidence.results import Engine, Launched, Machine, Result, Results, Run

BEGAN = 1_796_057_000.0
MACHINE = Machine(
    system="Linux 6.1 x86_64", processor="AMD EPYC 9V74", cores=2, memory_gib=15.6, python="3.11.7"
)
VLLM = Engine(
    name="vllm",
    target="venv:0.32.0",
    version="0.32.0",
    label="vLLM 0.32.0, CPU build",
    device="cpu",
    origin="default",
    digest="sha256:9b1c4a70d2f36e58a4c17f02be93d6a85c20f1e7394ab6d8c5f2e01b7a48d963",
)


def result(test="features/test_x.py::test_a", state="pass", item="", **more):
    """Return a result; `item` is what makes its id unlike that of others of the same test."""
    base = {
        "id": f"tests/{test}[{item}]" if item else f"tests/{test}",
        "folder": test.split("/")[0],
        "seconds": 0.5,
        "at": BEGAN,
        "engine": "vllm",
        "version": "0.32.0",
        "server": "vllm:lookup",
    }
    return Result(**{**base, "test": test, "state": state, **more})


def run(*results, **more):
    """Return a run that ended."""
    base = {
        "id": "r1",
        "began": BEGAN,
        "ended": BEGAN + 100,
        "exit_code": 0,
        "command": ("pytest",),
        "suite": "0.1.0",
        "machine": MACHINE,
        "engines": (VLLM,),
        "planned": len(results),
    }
    return Run(**{**base, "results": results, **more})


def small(*results, **more):
    """Return Results of one run."""
    return Results(runs=(run(*results, **more),))


def minutes_to_start(minutes):
    """Return results.json of a run on vLLM that started the servers of these models, and tested nothing."""
    launches = [
        Launched(server=f"vllm-{model}", engine="vllm", why="first use", seconds=60.0 * told, at=BEGAN)
        for model, told in minutes.items()
    ]
    return small(launches=launches).model_dump_json()
