"""A bundle may come from a stranger: whatever is wrong with it is one sentence, and nothing leaves it."""

import contextlib
import io
import json
import stat
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.errors import HarnessError
from fixtures.evidence import bundle, kept
from fixtures.evidence.case import Case
from fixtures.model import ServerSpec
from tests.harness.evidence.samples import about, exchange, keep


def packed(tmp_path, *members, **changes):
    """Write a zip from (name or ZipInfo, content) pairs beside those of a sound bundle."""
    sound = {
        "bundle.json": '{"format": "dsv4-bundle/1"}',
        "test.json": json.dumps(about()),
        "exchanges.jsonl": kept.line(exchange()),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in (sound | changes).items():
            if content is not None:
                out.writestr(name, content)
        for name, content in members:
            out.writestr(name, content)
    path = tmp_path / "b.zip"
    path.write_bytes(buffer.getvalue())
    return path


def member(name, mode=0, flags=0):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.flag_bits |= flags
    return info


def test_a_bundle_that_is_written_by_hand_can_be_read(tmp_path):
    assert bundle.read(packed(tmp_path)).exchanges == (exchange(),)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "..", ".x", "a\\b", "", "ü", "-x", "a\nb"])
def test_a_member_outside_of_the_bundle_is_refused(tmp_path, name):
    with pytest.raises(HarnessError, match=r"that no bundle has\. Do not trust it"):
        bundle.read(packed(tmp_path, (member(name), "x")))


@pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o755, stat.S_IFIFO])
def test_a_member_that_is_no_file_is_refused(tmp_path, mode):
    with pytest.raises(HarnessError, match="that no bundle has"):
        bundle.read(packed(tmp_path, (member("x", mode), "/etc/passwd")))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice_is_refused(tmp_path):
    with pytest.raises(HarnessError, match=r"test\.json' that no bundle has"):
        bundle.read(packed(tmp_path, (member("test.json"), "{}")))


def test_too_many_members_are_refused(tmp_path):
    with pytest.raises(HarnessError, match="has 53 members"):
        bundle.read(packed(tmp_path, *((member(f"x{n}"), "") for n in range(50))))


def test_a_bomb_is_refused(tmp_path):
    with pytest.raises(HarnessError, match="unpacks to more than"):
        bundle.read(packed(tmp_path, ("x", "0" * (bundle.MOST_BYTES + 1))))


def test_a_bomb_that_lies_about_its_size_is_refused(tmp_path):
    path = packed(tmp_path, ("x", "0" * (bundle.MOST_BYTES + 1)))
    told = (bundle.MOST_BYTES + 1).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(told, (10).to_bytes(4, "little")))
    with pytest.raises(HarnessError, match="no sound zip file"):
        bundle.read(path)


def test_a_file_that_is_too_big_is_not_opened(tmp_path):
    path = tmp_path / "b.zip"
    with path.open("wb") as file:
        file.truncate(bundle.MOST_PACKED + 1)
    with pytest.raises(HarnessError, match="a bundle has at most"):
        bundle.read(path)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_a_damaged_bundle_is_one_sentence_or_still_sound(tmp_path_factory, at, junk):
    path = packed(tmp_path_factory.mktemp("damaged"))
    content = bytearray(path.read_bytes())
    at %= len(content)
    content[at : at + len(junk)] = junk
    path.write_bytes(content)
    with contextlib.suppress(HarnessError):
        assert isinstance(bundle.read(path), Case)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"bundle.json": None}, "is no bundle: it holds no bundle.json"),
        ({"bundle.json": "["}, "bundle.json in .* cannot be read"),
        ({"bundle.json": "[" * 10_000}, "bundle.json in .* cannot be read"),
        ({"bundle.json": '{"format": "dsv4-bundle/2"}'}, "is of the form 'dsv4-bundle/2', this suite reads"),
        ({"test.json": None}, "holds no test.json"),
        ({"exchanges.jsonl": None}, "holds no exchanges.jsonl"),
        ({"test.json": "{}"}, "test.json in .* is not what this suite writes"),
        ({"test.json": "[" * 10_000}, "test.json in .* is not what this suite writes"),
        ({"test.json": json.dumps(about(url="file:///etc/passwd"))}, "is no address"),
        ({"exchanges.jsonl": "1"}, "line 1 of exchanges.jsonl .* is no exchange"),
        ({"exchanges.jsonl": "[" * 10_000}, "line 1 of exchanges.jsonl .* is no exchange"),
        ({"exchanges.jsonl": kept.line(exchange(path="@evil/"))}, "its path is '@evil/'"),
        ({"exchanges.jsonl": kept.line(exchange(started="x"))}, "its started is 'x'"),
        ({"exchanges.jsonl": kept.line(exchange(elapsed=float("nan")))}, "its elapsed is nan"),
        ({"exchanges.jsonl": kept.line(exchange(status=True))}, "its status is True"),
        ({"server.log": b"\xff\xfe"}, "no sound zip file"),
    ],
)
def test_what_is_wrong_with_a_bundle_is_one_sentence(tmp_path, changes, sentence):
    with pytest.raises(HarnessError, match=sentence):
        bundle.read(packed(tmp_path, **changes))


@pytest.mark.parametrize("engine", [{"name": "other"}, {"version": "new"}])
def test_an_engine_that_is_none_is_one_sentence(tmp_path, engine):
    told = about()
    told["engine"] |= engine
    with pytest.raises(HarnessError, match=r"test.json in .* \(engine: "):
        bundle.read(packed(tmp_path, **{"test.json": json.dumps(told)}))


def test_what_is_no_zip_is_one_sentence(tmp_path):
    (tmp_path / "b.zip").write_text("no zip")
    with pytest.raises(HarnessError, match="is no sound zip file"):
        bundle.read(tmp_path / "b.zip")
    with pytest.raises(HarnessError, match=r"cannot be read \(No such file or directory\)"):
        bundle.read(tmp_path / "c.zip")


def test_exchanges_that_were_not_kept_are_counted(tmp_path):
    folder = keep(tmp_path / "test")
    with (folder / "exchanges.jsonl").open("a") as file:
        file.write('{"left_out": 3, "why": "too many"}\n')
    assert bundle.read(folder).left_out == 3


def test_the_server_is_the_one_that_was_asked_for(tmp_path):
    case = bundle.read(keep(tmp_path / "test"))
    assert case.spec == ServerSpec("chain", (("mtp", 1), ("prefix_cache", True)))
    assert case.is_of(case.spec)
    assert not case.is_of(ServerSpec("chain", (("mtp", 1),)))
