"""Images in which stand-ins play engines and routers, made on a docker daemon from `ci/image/build.sh base`."""

import io
import os
import tarfile

import docker
import pytest
from docker.errors import DockerException

from fixtures.launch import daemon

BASE = "dsv4-conformance/base:latest"


def needed(reason):
    """Skip what cannot be tested here, except where it must be."""
    if os.environ.get("DSV4_NEEDS_DOCKER"):
        pytest.fail(reason)
    pytest.skip(reason)


def connect():
    """A client of the daemon that has the base image."""
    try:
        found = docker.DockerClient(base_url=daemon.address())
        found.images.get(BASE)
    except DockerException as error:
        needed(f"needs a docker daemon with {BASE}: {error}")
    return found


def build(client, image, scripts, faults):
    """Make an image for each fault of the engine, in which these scripts are programs; return their names."""
    found = {}
    for fault in faults:
        found[fault] = f"{image}:{fault or 'sound'}"
        lines = [f"FROM {BASE}", f"COPY {' '.join(scripts)} /engine/", "ENV PATH=/engine:/usr/bin:/bin"]
        lines += [f"ENV STAND_IN_BOOK=/dev/null STAND_IN_FAULT={fault}"]
        texts = {"Dockerfile": "\n".join(lines), **{name: path.read_text() for name, path in scripts.items()}}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, text in texts.items():
                script = text.replace("#!/usr/bin/env python3", "#!/usr/bin/python3").encode()
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(script), 0o755
                archive.addfile(member, io.BytesIO(script))
        packed.seek(0)
        client.images.build(fileobj=packed, custom_context=True, tag=found[fault], rm=True)
    return found
