"""A table gives back what was written, for each release, and says when it cannot."""

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.census import tables
from fixtures.census.tables import Line, Origin
from fixtures.errors import HarnessError

VERSIONS = ["0.9.0", "0.10.0", "0.10.0.post1", "0.11.0"]
PORT, DTYPE = ("flag", "--port"), ("flag", "--dtype")
ROWS = {
    "0.9.0": {PORT: {"takes": "one"}, ("env", "A"): {}},
    "0.10.0": {PORT: {"takes": "one"}, DTYPE: {"takes": "one", "choices": ["é", "fp8"], "also": ["-d"]}},
    "0.10.0.post1": {
        PORT: {"takes": "one", "default": None},
        DTYPE: {"takes": "none", "off": ["--no-dtype"]},
    },
    "0.11.0": {PORT: {"takes": "one"}, ("model", "M"): {}, ("pin", "torch"): {"spec": "==2.11"}},
}


def origins(versions):
    return [Origin(version, f"vllm-{version}.whl", "ab" * 32, "2026-01-02") for version in versions]


def made(folder, rows, versions=None):
    path = tables.write("vllm", rows, origins(versions or list(rows)), folder)
    return tables.parse("vllm", gzip.decompress(path.read_bytes()).decode())


@pytest.fixture
def table(tmp_path):
    return made(tmp_path, ROWS)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Return the path of the table that counts as shipped; nothing is kept from it or for others."""
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    tables.table.cache_clear()
    yield tmp_path / "vllm.tsv.gz"
    tables.table.cache_clear()


class TestRoundTrip:
    def test_each_release_has_its_rows_again(self, table):
        assert {version: table.release(version).rows() for version in VERSIONS} == ROWS

    def test_releases_are_in_order_whatever_order_they_came_in(self, tmp_path):
        assert made(tmp_path, ROWS, VERSIONS[::-1]).versions == VERSIONS

    def test_the_archives_are_kept(self, table):
        assert list(table.origins) == origins(VERSIONS)

    def test_a_row_is_one_line_for_each_stretch_in_which_it_is_the_same(self, table):
        lines = [(json.loads(line.facts), table.spans([line])) for line in table.where(*PORT)]
        assert sorted(lines, key=str) == [
            ({"default": None, "takes": "one"}, [("0.10.0.post1", "0.10.0.post1")]),
            ({"takes": "one"}, [("0.9.0", "0.10.0"), ("0.11.0", "0.11.0")]),
        ]
        assert table.spans(table.where(*PORT)) == [("0.9.0", "0.11.0")]
        assert table.where("flag", "--other") == []

    def test_the_same_rows_are_the_same_bytes(self, tmp_path):
        turned = {version: dict(reversed(rows.items())) for version, rows in reversed(ROWS.items())}
        folders = [tmp_path / "a", tmp_path / "b"]
        written = [
            tables.write("vllm", rows, origins(rows), folder).read_bytes()
            for rows, folder in zip((ROWS, turned), folders, strict=True)
        ]
        assert written[0] == written[1]

    @given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.lists(st.text())))
    def test_facts_come_back_whatever_they_hold(self, tmp_path_factory, facts):
        table = made(tmp_path_factory.getbasetemp() / "facts", {"0.9.0": {PORT: facts}})
        assert table.release("0.9.0").get(*PORT) == facts

    def test_other_spellings_lead_to_their_flags(self, table):
        spelled = {
            "-d": ["--dtype"],
            "--no-dtype": ["--dtype"],
        }
        assert {name: [line.name for line in table.where("flag", name)] for name in spelled} == spelled
        assert table.where("env", next(iter(spelled))) == []


class TestRelease:
    def test_names_are_by_kind(self, table):
        names = table.release("0.11.0").names
        assert {kind: list(named) for kind, named in names.items() if named} == {
            "flag": ["--port"], "model": ["M"], "pin": ["torch"],
        }  # fmt: skip
        assert set(names) == set(tables.KINDS)

    def test_what_is_not_there_is_none(self, table):
        release = table.release("0.9.0")
        assert (release.get("env", "A"), release.get("env", "B"), release.get(*DTYPE)) == ({}, None, None)

    def test_what_is_returned_is_the_callers(self, table):
        release = table.release("0.9.0")
        release.get(*PORT)["takes"] = "none"
        assert release.get(*PORT) == {"takes": "one"}

    @pytest.mark.parametrize("version", ["0.10.0.post1", "v0.10.0.post1", "0.10.0-post1"])
    def test_a_release_is_found_by_any_writing_of_its_version(self, table, version):
        assert table.release(version).version == "0.10.0.post1"

    @pytest.mark.parametrize(
        ("version", "words"),
        [
            ("0.12.0", "The census has no vllm 0.12.0. It knows vllm 0.9.0, 0.10.0, 0.10.0.post1, 0.11.0. "),
            ("latest", "'latest' is no version. It knows vllm 0.9.0, "),
            ("", "'' is no version. "),
        ],
    )
    def test_a_release_that_it_does_not_have_is_named_with_those_that_it_has(self, table, version, words):
        with pytest.raises(HarnessError) as error:
            table.release(version)
        assert str(error.value).startswith(words)
        assert str(error.value).endswith("python -m ci census vllm VERSION --add")


class TestShipped:
    @pytest.mark.parametrize("engine", ["vllm", "sglang"])
    def test_both_engines_have_a_table_with_flags_of_each_release(self, engine):
        table = tables.table(engine)
        assert len(table.versions) > 20
        assert all(len(table.release(version).names["flag"]) > 100 for version in table.versions)

    def test_it_is_read_once(self, shipped):
        tables.write("vllm", ROWS, origins(ROWS), shipped.parent)
        assert tables.table("vllm") is tables.table("vllm")

    @pytest.mark.parametrize(
        "content",
        [
            b"no gzip at all",
            gzip.compress(b"release\t0.9.0\ta.whl\tab\t2026-01-02\n")[:-9],
            gzip.compress(b"\xff\xfe"),
            gzip.compress(b""),
            gzip.compress(b"release\t0.9.0\ta.whl\tab\t2026-01-02\nflag\t--port\n"),
            gzip.compress(b"release\t0.9.0\ta.whl\tab\t2026-01-02\nflag\t--port\t0.8.0\t{}\n"),
            gzip.compress(b"release\t0.9.0\n"),
            gzip.compress(b"release\t0.9.0\ta.whl\tab\t2026-01-02\nflags\t--port\t0.9.0\t{}\n"),
            gzip.compress(b"release\tmain\ta.whl\tab\t2026-01-02\n"),
        ],
        ids=["no gzip", "cut", "no text", "empty", "no facts", "other release", "no file", "other kind", "no version"],
    )  # fmt: skip
    def test_a_damaged_one_is_an_error_that_says_how_to_make_it(self, shipped, content):
        shipped.write_bytes(content)
        with pytest.raises(
            HarnessError, match=r"vllm\.tsv\.gz cannot be read .*python -m ci census vllm --all"
        ):
            tables.table("vllm")

    @pytest.mark.usefixtures("shipped")
    def test_a_missing_one_is_as_well(self):
        with pytest.raises(HarnessError, match=r"vllm\.tsv\.gz cannot be read .*--all"):
            tables.table("vllm")


# Which of six releases have each of three variables, with one of two facts.
present = st.lists(
    st.lists(st.sampled_from([None, {}, {"unread": True}]), min_size=6, max_size=6), min_size=3, max_size=3
)


class TestSpans:
    @given(present)
    def test_every_release_has_exactly_its_rows(self, tmp_path_factory, present):
        releases = {
            f"0.{place + 5}.0": {
                ("env", f"V{n}"): held[place] for n, held in enumerate(present) if held[place] is not None
            }
            for place in range(6)
        }
        table = made(tmp_path_factory.getbasetemp() / "spans", releases)
        assert {version: table.release(version).rows() for version in table.versions} == releases

    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).map(sorted), max_size=4))
    def test_stretches_are_joined_and_as_long_as_they_can_be(self, ends):
        table = tables.Table("vllm", tuple(origins([f"0.{n}.0" for n in range(6)])), ())
        lines = [Line("env", "A", (tuple(pair),), "{}") for pair in ends]
        order = {version: place for place, version in enumerate(table.versions)}
        spans = [(order[first], order[last]) for first, last in table.spans(lines)]
        covered = [place for first, last in spans for place in range(first, last + 1)]
        assert covered == sorted({place for first, last in ends for place in range(first, last + 1)})
        assert all(before[1] + 1 < after[0] for before, after in pairwise(spans))
        assert all(any(line.holds(place) for line in lines) == (place in covered) for place in range(6))
