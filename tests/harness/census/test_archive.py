"""Wheels, source archives and a package index as small as they can be; the index is a server on this machine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from fixtures.census import archive
from fixtures.errors import HarnessError

METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.9.0\n"
PACKAGE = {"vllm/envs.py": "A = 1\n", "vllm/config/__init__.py": ""}


def wheel(files, version="0.9.0", engine="vllm"):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in {**files, f"{engine}-{version}.dist-info/METADATA": METADATA}.items():
            file.writestr(zipfile.ZipInfo(name), text)
    return packed.getvalue()


def sdist(files, version="0.9.0", engine="vllm"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name, text in {**files, "PKG-INFO": METADATA}.items():
            content = text if isinstance(text, bytes) else text.encode()
            member = tarfile.TarInfo(f"{engine}-{version}/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def kept(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


class TestRead:
    def test_a_wheel_gives_the_modules_of_the_package_and_its_metadata(self, tmp_path):
        content = wheel(
            {**PACKAGE, "vllm/_C.abi3.so": "binary", "other/module.py": "", "vllm/data.json": "{}"}
        )
        path = kept(tmp_path, "vllm-0.9.0-cp38-abi3-manylinux1_x86_64.whl", content)
        source = archive.read(path)
        assert source.files == {**PACKAGE, "METADATA": METADATA}
        assert (source.engine, source.version, source.file) == ("vllm", "0.9.0", path.name)
        assert source.sha256 == hashlib.sha256(content).hexdigest()
        assert not source.uploaded

    @pytest.mark.parametrize("folder", ["", "python/"])
    def test_a_source_archive_has_the_same_paths_as_a_wheel(self, tmp_path, folder):
        files = {
            f"{folder}sglang/srt/environ.py": "B = 2\n",
            "sglang.egg-info/PKG-INFO": "no",
            "setup.py": "no",
        }
        path = kept(tmp_path, "sglang-0.5.1.post2.tar.gz", sdist(files, "0.5.1.post2", "sglang"))
        source = archive.read(path)
        assert source.files == {"sglang/srt/environ.py": "B = 2\n", "METADATA": METADATA}
        assert (source.engine, source.version) == ("sglang", "0.5.1.post2")

    def test_a_link_in_a_source_archive_is_left_out(self, tmp_path):
        packed = io.BytesIO(sdist(PACKAGE))
        with tarfile.open(fileobj=packed, mode="r:gz") as file:
            members = [(member, file.extractfile(member).read()) for member in file]
        path = tmp_path / "vllm-0.9.0.tar.gz"
        with tarfile.open(path, mode="w:gz") as file:
            for member, content in members:
                file.addfile(member, io.BytesIO(content))
            link = tarfile.TarInfo("vllm-0.9.0/vllm/link.py")
            link.type, link.linkname = tarfile.SYMTYPE, "nowhere.py"
            file.addfile(link)
        assert archive.read(path).files == {**PACKAGE, "METADATA": METADATA}

    def test_modules_over_five_megabytes_are_left_out(self, tmp_path):
        files = {**PACKAGE, "vllm/large.py": "#" * 5_000_001, "vllm/fits.py": "#" * 5_000_000}
        source = archive.read(kept(tmp_path, "vllm-0.9.0-py3-none-any.whl", wheel(files)))
        assert "vllm/large.py" not in source.files
        assert "vllm/fits.py" in source.files

    def test_bytes_that_are_no_text_are_replaced(self, tmp_path):
        path = kept(tmp_path, "vllm-0.9.0.tar.gz", sdist({"vllm/a.py": b"x = '\xff'"}))
        assert archive.read(path).files["vllm/a.py"] == "x = '\N{REPLACEMENT CHARACTER}'"

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("vllm-0.9.0.tar.gz", sdist({"vllm/a.py": "".join(map(str, range(9999)))})[:-4000]),
            ("vllm-0.9.0-py3-none-any.whl", wheel(PACKAGE)[:-40]),
            ("vllm-0.9.0.tar.gz", b""),
        ],
    )
    def test_an_archive_that_is_cut_short_is_named(self, tmp_path, name, content):
        path = kept(tmp_path, name, content)
        with pytest.raises(HarnessError, match=f"{name} is broken or cut short"):
            archive.read(path)

    def test_a_file_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(HarnessError, match=r"vllm-0\.9\.0\.tar\.gz is broken or cut short"):
            archive.read(tmp_path / "vllm-0.9.0.tar.gz")

    def test_a_name_that_is_no_release_is_refused(self, tmp_path):
        with pytest.raises(HarnessError, match=r"notes\.txt is not named like"):
            archive.read(kept(tmp_path, "notes.txt", b""))

    @pytest.mark.parametrize(
        ("files", "engine"), [({"other/envs.py": ""}, "vllm"), ({"vllm/envs.py": ""}, "vllm-0.9.0.data/no")]
    )
    def test_an_archive_without_the_package_or_its_metadata_is_refused(self, tmp_path, files, engine):
        path = kept(tmp_path, "vllm-0.9.0-py3-none-any.whl", wheel(files, engine=engine))
        with pytest.raises(HarnessError, match="does not hold the package vllm"):
            archive.read(path)


class Index:
    """What a package index serves, and which paths were asked for."""

    def __init__(self):
        self.pages = {}
        self.asked = []
        self.url = ""

    def offer(self, name, content, *, size=True, **more):
        """Offer a file of an engine, with its size unless an index does not tell."""
        self.pages[f"/files/{name}"] = (200, "application/octet-stream", content)
        entry = {
            "filename": name,
            "url": f"../../files/{name}",
            "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
            "upload-time": "2026-11-02T08:07:06.5Z",
            **({"size": len(content)} if size else {}),
            **more,
        }
        path = f"/simple/{name.split('-')[0]}/"
        files = json.loads(self.pages[path][2])["files"] if path in self.pages else []
        body = json.dumps({"files": [*files, entry]}).encode()
        self.pages[path] = (200, "application/vnd.pypi.simple.v1+json", body)


@pytest.fixture
def index(monkeypatch):
    """Serve an index from a thread, and make it the one that is asked."""
    index = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            index.asked.append(self.path)
            status, kind, body = index.pages.get(self.path, (404, "text/plain", b""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Say nothing."""

    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        index.url = f"http://127.0.0.1:{server.server_port}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index
        server.shutdown()
        thread.join()


class TestReleases:
    def test_they_ascend_with_post_releases_and_candidates(self, index):
        for version in ("0.10.0", "0.9.0", "0.9.0.post1", "0.10.0rc1", "0.11.0.dev1", "0.11.0a1"):
            index.offer(f"vllm-{version}.tar.gz", b"")
        index.offer("vllm-0.9.0-cp38-abi3-linux_x86_64.whl", b"")
        assert archive.releases("vllm") == ["0.9.0", "0.9.0.post1", "0.10.0rc1", "0.10.0"]

    def test_yanked_ones_forms_of_old_and_files_without_a_digest_are_left_out(self, index):
        index.offer("vllm-0.1.tar.gz", b"", yanked="broken")
        index.offer("vllm-0.2.egg", b"")
        index.offer("vllm-0.3.tar.gz", b"", yanked=False)
        index.offer("vllm-0.4.tar.gz", b"", hashes={"md5": "0"})
        assert archive.releases("vllm") == ["0.3"]

    @pytest.mark.usefixtures("index")
    def test_an_index_without_the_package_is_named(self):
        with pytest.raises(HarnessError, match=r"127\.0\.0\.1:\d+/simple has no package 'vllm'"):
            archive.releases("vllm")

    def test_an_index_in_html_only_is_told_apart(self, index):
        index.pages["/simple/vllm/"] = (200, "text/html", b"<a href=vllm-0.1.tar.gz>")
        with pytest.raises(HarnessError, match=r"does not answer in JSON .*PIP_INDEX_URL"):
            archive.releases("vllm")

    def test_an_index_that_fails_gives_its_status(self, index):
        index.pages["/simple/vllm/"] = (503, "text/plain", b"")
        with pytest.raises(HarnessError, match="answers with status 503 about vllm"):
            archive.releases("vllm")

    @pytest.mark.usefixtures("index")
    def test_an_index_out_of_reach_is_named_without_its_password(self, monkeypatch):
        monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:1/simple")
        with pytest.raises(HarnessError, match=r"127\.0\.0\.1:1/simple cannot be reached") as failure:
            archive.releases("vllm")
        assert "secret" not in str(failure.value)

    @pytest.mark.usefixtures("index")
    @pytest.mark.parametrize("name", ["PIP_CERT", "REQUESTS_CA_BUNDLE"])
    def test_certificates_that_cannot_be_read_are_named(self, monkeypatch, tmp_path, name):
        monkeypatch.setenv(name, str(tmp_path / "none.pem"))
        with pytest.raises(HarnessError, match=r"none\.pem cannot be read .*PIP_CERT"):
            archive.releases("vllm")


class TestIndex:
    def test_pip_configuration_names_it_when_the_environment_does_not(self, index, monkeypatch, tmp_path):
        monkeypatch.delenv("PIP_INDEX_URL")
        configuration = kept(tmp_path, "pip.conf", f"[global]\nindex-url = {index.url}\n".encode())
        monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
        index.offer("vllm-0.3.tar.gz", b"")
        assert archive.releases("vllm") == ["0.3"]

    def test_it_is_that_of_python_where_nothing_names_one(self, monkeypatch):
        asked = []

        def answer(request):
            asked.append(str(request.url))
            return httpx.Response(200, json={"files": []})

        client = httpx.Client(transport=httpx.MockTransport(answer))
        monkeypatch.setattr(archive.httpx, "Client", lambda **_: client)
        monkeypatch.delenv("PIP_INDEX_URL", raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        assert archive.releases("vllm") == []
        assert asked == ["https://pypi.org/simple/vllm/"]


class TestFetch:
    def test_the_smallest_file_of_a_release_is_taken(self, index):
        index.offer("vllm-0.9.0.tar.gz", sdist({**PACKAGE, "vllm/x.py": "".join(map(str, range(2000)))}))
        index.offer("vllm-0.9.0-py3-none-any.whl", wheel(PACKAGE))
        index.offer("vllm-0.9.1-py3-none-any.whl", b"")
        source = archive.fetch("vllm", "0.9.0")
        assert source.file == "vllm-0.9.0-py3-none-any.whl"
        assert source.uploaded == "2026-11-02"
        assert source.files == {**PACKAGE, "METADATA": METADATA}

    def test_any_file_is_taken_where_the_index_tells_no_sizes(self, index):
        index.offer("vllm-0.9.0-py3-none-any.whl", wheel(PACKAGE), size=False)
        assert archive.fetch("vllm", "0.9.0").file == "vllm-0.9.0-py3-none-any.whl"

    def test_an_archive_in_the_folder_is_not_fetched_again(self, index, tmp_path):
        index.offer("vllm-0.9.0.tar.gz", sdist(PACKAGE))
        first = archive.fetch("vllm", "0.9.0", tmp_path / "kept")
        assert archive.fetch("vllm", "0.9.0", tmp_path / "kept") == first
        assert index.asked.count("/files/vllm-0.9.0.tar.gz") == 1
        assert [path.name for path in (tmp_path / "kept").iterdir()] == ["vllm-0.9.0.tar.gz"]

    def test_another_file_of_that_name_in_the_folder_is_replaced(self, index, tmp_path):
        content = sdist(PACKAGE)
        index.offer("vllm-0.9.0.tar.gz", content)
        path = kept(tmp_path, "vllm-0.9.0.tar.gz", content[:99])
        archive.fetch("vllm", "0.9.0", tmp_path)
        assert path.read_bytes() == content

    def test_a_file_that_is_not_the_listed_one_is_refused_and_not_kept(self, index, tmp_path):
        index.offer("vllm-0.9.0.tar.gz", sdist(PACKAGE), hashes={"sha256": "0" * 64})
        with pytest.raises(HarnessError, match=r"sent another vllm-0\.9\.0\.tar\.gz than it lists"):
            archive.fetch("vllm", "0.9.0", tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_the_index_lists_and_has_not_is_named(self, index, tmp_path):
        index.offer("vllm-0.9.0.tar.gz", sdist(PACKAGE), url="/gone")
        with pytest.raises(HarnessError, match=r"vllm-0\.9\.0\.tar\.gz cannot be downloaded"):
            archive.fetch("vllm", "0.9.0", tmp_path)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("version", "near"),
        [("0.9.5", "0.9.0 and 0.10.0"), ("0.1", "0.9.0"), ("7", "0.10.0"), ("newest", "0.10.0")],
    )
    def test_a_release_that_is_not_there_comes_with_its_neighbours(self, index, version, near):
        for known in ("0.10.0", "0.9.0"):
            index.offer(f"vllm-{known}.tar.gz", b"")
        with pytest.raises(HarnessError) as failure:
            archive.fetch("vllm", version)
        assert f"no release {version} of vllm; the nearest are {near}. `pip index" in str(failure.value)

    def test_a_package_without_releases_has_no_neighbours(self, index):
        index.offer("vllm-0.9.0.tar.gz", b"", yanked=True)
        with pytest.raises(HarnessError, match="the nearest are none"):
            archive.fetch("vllm", "0.9.0")

    def test_nothing_is_left_where_no_folder_is_given(self, index, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        index.offer("vllm-0.9.0.tar.gz", sdist(PACKAGE))
        archive.fetch("vllm", "0.9.0")
        assert list(Path(tmp_path).iterdir()) == []
