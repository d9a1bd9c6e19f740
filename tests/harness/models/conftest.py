from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.engines import rules
from fixtures.launch import environments
from fixtures.models import RECIPES, Oracle, build, open_oracle

if TYPE_CHECKING:
    from collections.abc import Callable


RELEASES = {"vllm": "0.32.0", "sglang": "0.5.20"}
STAND_IN = Path(rules.__file__).with_name("sglang_cpu")  # what SGLang needs to be imported without a GPU
# The recipes, with v4 in small sizes: the real ones take 570 MB and some seconds.
SMALL_V4 = {
    "hidden": 256,
    "heads": 4,
    "head_dim": 128,
    "q_rank": 128,
    "o_rank": 128,
    "o_groups": 2,
    "index_heads": 4,
    "index_topk": 16,
    "window": 16,
    "experts": 4,
    "chosen": 2,
    "expert": 128,
}
SMALL = {
    **RECIPES,
    "v4": replace(RECIPES["v4"], parameters={**RECIPES["v4"].parameters, **SMALL_V4}),
}


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of checkpoints for all tests of a worker."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def oracle(root: Path) -> Callable[[str], Oracle]:
    """Open a recipe's checkpoint, v4 in small sizes, building it when it is new."""
    opened: dict[str, Oracle] = {}

    def of(name: str) -> Oracle:
        if name not in opened:
            opened[name] = open_oracle(build(SMALL[name], root))
        return opened[name]

    return of


@pytest.fixture(scope="session")
def in_engine(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run a function's source in an engine's environment (vLLM's, or SGLang's), with JSON in and out.

    The script reads its argument from stdin and writes its answer to the file named by its first argument,
    because libraries print on stdout.
    """
    folder = tmp_path_factory.mktemp("scripts")

    def run(script: str, argument: Any, *, engine: str = "vllm") -> Any:
        answer = folder / "answer.json"
        python = environments.ensure(engine, RELEASES[engine]).python
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
        if engine == "sglang":
            env |= {"PYTHONPATH": str(STAND_IN), "SGLANG_USE_CPU_ENGINE": "1"}
        done = subprocess.run(
            [str(python), "-c", script, str(answer)],
            input=json.dumps(argument),
            capture_output=True,
            text=True,
            env=env,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(answer.read_text())

    return run
