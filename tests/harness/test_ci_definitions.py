"""The ready-made CI definitions are valid by the linters of their kind, and call the suite as the README does."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fixtures.shard import parse

ROOT = Path(__file__).parents[2]
GITHUB, BUILDKITE, SLURM = (
    ROOT / "ci" / name for name in ("github-actions.yml", "buildkite.yml", "slurm.sh")
)
SETUP = "python3 -m venv .venv && .venv/bin/pip install -q -e ."
TOOLS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def lint(tool, *args, script=None):
    """Run a linter, which is installed with the suite's `dev` extra or on the PATH."""
    found = shutil.which(tool, path=TOOLS)
    assert found, f"{tool} is missing: pip install -e '.[dev]'"
    told = subprocess.run([found, *map(str, args)], input=script, capture_output=True, text=True, check=False)
    return told.returncode, told.stdout + told.stderr


def scripts():
    """Yield the shell scripts of the definitions: name and text."""
    for name, job in yaml.safe_load(GITHUB.read_text())["jobs"].items():
        yield f"github {name}", "\n".join(step["run"] for step in job["steps"] if "run" in step)
    for step in yaml.safe_load(BUILDKITE.read_text())["steps"]:
        if "command" in step:
            yield f"buildkite {step['label']}", step["command"].replace("$$", "$")
    yield "slurm", SLURM.read_text()


SCRIPTS = dict(scripts())


@pytest.mark.parametrize(("file", "schema"), [(GITHUB, "github-workflows"), (BUILDKITE, "buildkite")])
def test_definitions_keep_their_schema(file, schema):
    code, told = lint("check-jsonschema", "--builtin-schema", f"vendor.{schema}", file)
    assert code == 0, told


@pytest.mark.parametrize("name", SCRIPTS)
def test_their_shell_has_no_fault(name):
    code, told = lint("shellcheck", "--shell=bash", "-", script=SCRIPTS[name])
    assert code == 0, told


def test_the_workflow_has_no_fault():
    if shutil.which("actionlint", path=TOOLS) is None:
        pytest.skip("no actionlint here: its package fetches the program from outside the package index")
    code, told = lint("actionlint", "-no-color", GITHUB)
    assert code == 0, told


@pytest.mark.parametrize("kind", ["github", "buildkite", "slurm"])
def test_they_call_the_suite_as_the_readme_does(kind):
    assert SETUP in (ROOT / "README.md").read_text()
    text = "\n".join(script for name, script in SCRIPTS.items() if name.startswith(kind))
    assert SETUP in text
    assert re.search(r"\.venv/bin/pytest -m vllm\s.*--vllm .*--shard ", text, re.DOTALL)


@pytest.mark.parametrize(
    ("name", "env", "ran"),
    [
        (
            "buildkite shard",
            {"BUILDKITE_PARALLEL_JOB": "1", "BUILDKITE_PARALLEL_JOB_COUNT": "4", "TARGET": "faux:"},
            "-m vllm --vllm faux: --shard 2/4",
        ),
        (
            "buildkite shard",
            {
                "BUILDKITE_PARALLEL_JOB": "0",
                "BUILDKITE_PARALLEL_JOB_COUNT": "1",
                "TARGET": "faux:",
                "TIMES": "a b",
            },
            "-m vllm --vllm faux: --shard 1/1 --shard-times=a b",
        ),
        ("github shard", {"SHARD": "3/4", "TARGET": "faux:"}, "-m vllm --vllm faux: --shard 3/4"),
    ],
)
def test_each_shard_asks_for_its_own(tmp_path, name, env, ran):
    script = SCRIPTS[name].replace(SETUP, "true")
    stand_in = tmp_path / ".venv" / "bin" / "pytest"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    told = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env={"PATH": os.environ["PATH"], **env},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == ran
    assert parse(ran.partition("--shard ")[2].split()[0])


def test_each_task_of_slurm_runs_its_shard_in_the_image(tmp_path):
    checkout, tools = tmp_path / "checkout", tmp_path / "tools"
    checkout.mkdir()
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tools / "srun").chmod(0o755)
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    (checkout / "times.json").write_text("{}")
    env = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(checkout), "TMPDIR": str(tmp_path),
        "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4", "TIMES": "times.json",
    }  # fmt: skip
    told = subprocess.run(["bash", SLURM], cwd=checkout, env=env, capture_output=True, text=True, check=True)
    assert "--container-image=vllm/vllm-openai:v0.33.0\n" in told.stdout
    assert f"{SETUP} && .venv/bin/pytest -m vllm" in told.stdout
    assert "--shard 2/4 --shard-times=before.json --evidence=/evidence" in told.stdout
    assert (checkout / "evidence").is_dir()
    assert not list(tmp_path.glob("tmp.*"))  # the clone is gone again
