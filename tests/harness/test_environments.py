"""Engines are installed from locks into environments of their own, once, completely, or not at all."""

import fcntl
import hashlib
import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fixtures.errors import HarnessError
from fixtures.launch import environments
from fixtures.launch.wheels import Pip, read

REPOSITORY = Path(__file__).parents[2]
LOCK_FILES = sorted(environments.LOCKS.glob("*.txt"))


class World:
    """A package index on the disk, locks to go with it, and what the suite said."""

    def __init__(self, home):
        self.links, self.locks, self.cache = home / "links", home / "locks", home / "cache"
        self.links.mkdir()
        self.locks.mkdir()
        self.said = []

    def offer(self, name, version, body="VALUE = 1\n"):
        """Put a wheel into the index and return its path."""
        wheel = self.links / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}.py", body)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        return wheel

    def lock(self, file, *wheels, notes="", marker=""):
        """Write a lock that pins the wheels by their hashes."""
        lines = []
        for wheel in wheels:
            name, version = wheel.name.split("-")[:2]
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            lines.append(f"{name}=={version}{marker} \\\n    --hash=sha256:{digest}\n")
        (self.locks / file).write_text(notes + "".join(lines))

    def ensure(self):
        return environments.ensure("demo", "1.0", say=self.said.append, locks_dir=self.locks)

    def find(self):
        return environments.find("demo", "1.0", locks_dir=self.locks)

    def script(self, say):
        """Return a command that does ensure() in another process, with `say` as Python source."""
        call = f"environments.ensure('demo', '1.0', say={say}, locks_dir=pathlib.Path({str(self.locks)!r}))"
        source = f"import os, pathlib\nfrom fixtures.launch import environments\n{call}"
        return [sys.executable, "-c", source]

    @property
    def text(self):
        return "\n".join(self.said)


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(world.links))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("DSV4_CACHE", str(world.cache))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    world.lock("demo-1.0.txt", world.offer("demo", "1.0"), notes="# torch 2.0\n")
    world.lock("torch-2.0+cpu.txt", world.offer("torch", "2.0+cpu"))
    return world


def test_first_use_installs_and_the_second_finds_it(world):
    assert world.find() is None
    made = world.ensure()
    assert made == world.find()
    assert (made.engine, made.version, made.torch) == ("demo", "1.0", "2.0+cpu")
    assert {"demo": "1.0", "torch": "2.0+cpu"}.items() <= made.packages.items()
    assert "pip" in made.packages  # engines ask for it when they report their environment
    for phase in (
        "checking",
        "downloading torch 2.0+cpu",
        "downloading, 1 of 2 packages",
        "installing, 0 of 2 packages",
        "compiling",
    ):
        assert f"demo 1.0: {phase}" in world.text
    assert list(
        made.python.parents[1].glob("lib/*/site-packages/__pycache__/demo.*.pyc")
    )  # bytecode is there
    assert not list(world.cache.glob("envs/*.wheels"))

    world.said.clear()
    assert world.ensure() == made
    assert world.said == []


def test_the_environment_runs_its_own_packages_while_its_python_exists(world):
    python = world.ensure().python
    command = [python, "-c", "import demo, torch; print(demo.__file__)"]
    where = subprocess.run(command, check=True, capture_output=True, text=True, env={}).stdout
    assert Path(where.strip()).is_relative_to(world.cache)

    python.unlink()
    python.symlink_to(world.cache / "no-such-python")
    assert world.find() is None


def test_a_killed_installation_is_noticed_and_made_again(world):
    killed = subprocess.run(
        world.script("lambda line: 'compiling' in line and os.kill(os.getpid(), 9)"), check=False
    )
    assert killed.returncode == -9
    assert world.find() is None
    assert world.ensure() == world.find()
    assert "was not finished, so it is removed and made again" in world.text


def test_another_lock_makes_the_environment_stale(world):
    world.ensure()
    lock = world.locks / "demo-1.0.txt"
    lock.write_text("# needs 1 MB\n" + lock.read_text())
    assert world.find() is not None  # a note is no other lock

    more = world.offer("more", "3.1")
    world.lock("demo-1.0.txt", world.links / "demo-1.0-py3-none-any.whl", more, notes="# torch 2.0\n")
    assert world.find() is None
    assert world.ensure().packages["more"] == "3.1"
    assert "was made from another lock" in world.text


def test_a_file_with_another_hash_is_named(world):
    world.offer("demo", "1.0", body="VALUE = 2\n")
    with pytest.raises(HarnessError, match=r"what pip finds as demo==1\.0 is not the file that was locked"):
        world.ensure()
    assert world.find() is None


def test_two_processes_install_once(world):
    command = world.script("lambda line: print(line, flush=True)")
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sum("compiling" in output for output in outputs) == 1


def test_the_second_process_says_that_it_waits(world):
    place = environments.folder("demo", "1.0")
    place.parent.mkdir(parents=True)
    with place.with_name(f"{place.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = world.script("lambda line: print(line, flush=True)")
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert "another process is at work on it, waiting" in other.stdout.readline()
    assert "installed in" in other.communicate()[0]  # closing the file let the lock go


def test_a_disk_without_room_is_refused_with_numbers(world):
    lock = world.locks / "demo-1.0.txt"
    lock.write_text("# needs 90000000000 MB\n" + lock.read_text())
    with pytest.raises(HarnessError, match=r"needs 90000000\.0 GB in .*, where [\d.]+ GB are free"):
        world.ensure()


def test_a_cache_that_cannot_be_written_is_one_sentence(world, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSV4_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(HarnessError, match=r"cannot be installed in .* DSV4_CACHE name a folder") as raised:
        world.ensure()
    assert "\n" not in str(raised.value)


def test_no_network_is_one_sentence(world, monkeypatch):
    with socket.socket() as unused:  # bound, but not listening: a connection is refused
        unused.bind(("127.0.0.1", 0))
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_RETRIES", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unused.getsockname()[1]}/simple")
        with pytest.raises(HarnessError, match="pip reaches no package index") as raised:
            world.ensure()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("lost", ["not offered", "of another Python", "without a lock"])
def test_torch_falls_back_to_the_build_of_the_main_index(world, lost):
    world.lock("torch-2.0.txt", world.offer("torch", "2.0"), notes="# downloads 2600 MB\n")
    cpu = world.links / "torch-2.0+cpu-py3-none-any.whl"
    if lost == "of another Python":
        world.lock("torch-2.0+cpu.txt", cpu, marker=' ; python_version < "3"')
    if lost == "without a lock":
        (world.locks / "torch-2.0+cpu.txt").unlink()
    cpu.unlink()
    assert world.ensure().torch == world.find().torch == "2.0"
    reason = {
        "not offered": "pip finds no torch 2.0+cpu",
        "of another Python": "the lock has no torch 2.0+cpu for this Python and platform",
        "without a lock": "there is no lock for torch 2.0+cpu",
    }[lost]
    assert f"{reason}, so it takes torch 2.0: 2.6 GB to download" in world.text


def test_without_any_torch_the_next_command_is_named(world):
    (world.links / "torch-2.0+cpu-py3-none-any.whl").unlink()
    with pytest.raises(HarnessError, match=r"there is no other build. To make a lock: .* torch 2\.0"):
        world.ensure()


def test_a_broken_off_download_goes_on_where_it_was(world):
    engine, torch = world.links / "demo-1.0-py3-none-any.whl", world.links / "torch-2.0+cpu-py3-none-any.whl"
    kept = engine.read_bytes()
    engine.unlink()
    with pytest.raises(HarnessError, match=r"pip's indexes offer no wheel of demo==1\.0"):
        world.ensure()  # torch is downloaded by now

    torch.unlink()
    engine.write_bytes(kept)
    (cut,) = world.cache.glob("envs/*.wheels")
    (cut / engine.name).write_bytes(kept[:100])  # a wheel that was being written
    assert world.ensure().packages["torch"] == "2.0+cpu"
    assert "downloading, 1 of 2 packages" in world.text


@pytest.mark.usefixtures("world")
def test_removal_takes_the_environment_and_its_downloads():
    place = environments.folder("demo", "1.0")
    for folder in (place, place.with_name(f"{place.name}.wheels")):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    environments.remove("demo", "1.0")
    assert [path.name for path in place.parent.iterdir()] == [f"{place.name}.lock"]
    with pytest.raises(HarnessError, match=r"demo 1\.0 is not installed: there is no /"):
        environments.remove("demo", "1.0")


def test_a_release_without_a_lock_gets_the_ones_that_have_one(world):
    with pytest.raises(
        HarnessError, match=r"no lock for demo 2\.0; .*: demo 1\.0\. .*python -m ci lock demo 2"
    ):
        environments.ensure("demo", "2.0", locks_dir=world.locks)


def test_names_cannot_leave_the_cache():
    with pytest.raises(HarnessError, match="is no engine and version"):
        environments.remove("vllm", "/../../x")


def test_an_interrupt_leaves_no_child():
    seen = []

    def interrupt(line):
        seen.append(int(line))
        raise KeyboardInterrupt

    command = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    with pytest.raises(KeyboardInterrupt):
        Pip("demo 1.0", seen.append).run(command, environ=os.environ, each=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("DSV4_CACHE", str(tmp_path / "one"))
    assert environments.root() == tmp_path / "one"
    monkeypatch.delenv("DSV4_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.root() == tmp_path / "dsv4-conformance"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert environments.root() == Path.home() / ".cache" / "dsv4-conformance"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("demo==1.0\n", "pins demo without a hash"),
        ("demo>=1.0 \\\n    --hash=sha256:00\n", "without a hash or an exact version"),
        ("demo at home\n", "a line that is no requirement: 'demo at home'"),
        ("# needs much MB\n", "a size that is no number"),
    ],
)
def test_a_broken_lock_is_named(tmp_path, text, problem):
    (tmp_path / "lock.txt").write_text(text)
    with pytest.raises(HarnessError, match=problem):
        read(tmp_path / "lock.txt")


@pytest.mark.parametrize("path", LOCK_FILES, ids=lambda path: path.stem)
def test_locks_of_the_repository_are_sound(path):
    lock = read(path)  # refuses a requirement without a hash
    assert lock.pins
    assert lock.needs > lock.download > 0
    assert "://" not in path.read_text()
    assert not re.search(r"^[^#\n]*(\.org|\.com|\.io)\b", path.read_text(), re.MULTILINE)
    if not path.name.startswith("torch-"):
        assert re.fullmatch(r"\d+\.\d+\.\d+", lock.torch)
        assert "torch" not in {pin.name for pin in lock.pins}
        assert (path.parent / f"torch-{lock.torch}.txt").exists()


def test_each_engine_has_a_lock():
    assert {engine for engine, _ in environments.locked()} == {"sglang", "vllm"}
