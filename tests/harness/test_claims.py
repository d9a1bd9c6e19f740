"""The ledger of the guides' claims: how it is read, what holds it to the census, and how it is shown."""

from dataclasses import astuple, replace
from pathlib import Path

import pytest

from ci import claims as command
from ci.__main__ import main
from fixtures.census import tables
from fixtures.claims import check, items, ledger
from fixtures.claims.ledger import COLUMNS, Claim
from fixtures.errors import HarnessError

ROOT = Path(__file__).parents[2]
TABLE = tables.parse(
    "vllm",
    "\n".join(
        "\t".join(cells)
        for cells in [
            *(("release", f"0.{minor}.0", "", "", "") for minor in (1, 2, 3)),
            ("flag", "--all", "0.1.0..0.3.0", "{}"),
            ("flag", "--new", "0.2.0..0.3.0", '{"also":["--nu"],"choices":["a","B"],"lower":"case"}'),
            ("flag", "--new-name", "0.1.0", '{"also":["--renamed"]}'),
            ("flag", "--renamed", "0.2.0..0.3.0", "{}"),
            ("flag", "--gone", "0.1.0..0.2.0", "{}"),
            ("flag", "--gone", "0.3.0", '{"refused":"use --new"}'),
            ("flag", "--json.key", "0.3.0", '{"known":["x_y"],"lower":"case and dashes"}'),
            ("env", "NEW_ENV", "0.3.0", "{}"),
            ("model", "OldModel", "0.3.0", '{"removed":"0.2.0"}'),
        ]
    ),
)
CLAIM = Claim(
    id="v3.1",
    feature="3",
    engine="vllm",
    where="line 5 title",
    kind="flag",
    claim="There is a flag --all.",
    item="flag --all",
    claimed="",
    verdict="true",
    evidence="census",
    right="",
)
ASKED = ("--engine", "sglang", "--feature", "17", "--verdict", "false", "--format", "tsv")
TEST = "tests/features/test_x.py::test_y"


def claim(**changes):
    return replace(CLAIM, **({"right": "--all"} | changes))


def problems(*claims):
    return check.problems(claims, {"vllm": TABLE}, {TEST})


def written(folder, *claims):
    path = folder / "claims.tsv"
    path.write_text("".join("\t".join(cells) + "\n" for cells in (COLUMNS, *map(astuple, claims))))
    return path


class TestReading:
    def test_claims_come_as_they_are_written_and_in_order(self, tmp_path):
        claims = (claim(id="v3.2"), claim(id="v3.1", item="", claimed=">=0.2.0"))
        assert ledger.read(written(tmp_path, *claims)) == claims

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"verdict": "maybe"}, "column verdict: 'maybe' is none of true, false,"),
            ({"feature": "25"}, "column feature: '25' is none of 1, 2,"),
            ({"claim": ""}, "column claim: it is empty"),
            ({"right": "two  blanks"}, "column right: blanks stand at an end or side by side"),
            ({"item": "flags --all"}, "column item: 'flags --all' is nothing to look up"),
            ({"claimed": "0.11.0"}, "column claimed: '0.11.0' is no range of versions"),
            ({"claimed": "a\tb"}, " has 12 columns in place of 11"),
        ],
    )
    def test_a_cell_that_is_wrong_is_named_by_line_and_column(self, tmp_path, changes, sentence):
        with pytest.raises(HarnessError) as raised:
            ledger.read(written(tmp_path, CLAIM, claim(**changes)))
        assert ", line 3" in str(raised.value)
        assert sentence in str(raised.value)

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"id\tfeature\n", "line 1 is to name the columns"),
            (b"", "line 1 is to name the columns"),
            (b"\xff", "cannot be read"),
            (None, "cannot be read"),
        ],
    )
    def test_a_file_that_is_no_ledger_is_refused(self, tmp_path, content, sentence):
        path = tmp_path / "claims.tsv"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(HarnessError, match=sentence):
            ledger.read(path)


class TestItems:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "flag",
            "flag x",
            "key --x",
            "value --x",
            "value --x=",
            "thing --x",
            "--x",
        ],
    )
    def test_what_names_nothing_is_refused(self, text):
        with pytest.raises(ValueError, match="is nothing to look up"):
            items.parse(text)

    @pytest.mark.parametrize(
        ("text", "places"),
        [
            ("flag --all", {0, 1, 2}),
            ("flag --nu", {1, 2}),
            ("flag --renamed", {0, 1, 2}),
            ("flag --gone", {0, 1}),
            ("flag --never", set()),
            ("value --new=A", {1, 2}),
            ("value --new=b", {1, 2}),
            ("value --new=c", set()),
            ("value --all=a", set()),
            ("key --json.key", {2}),
            ("value --json.key=X-Y", {2}),
            ("value --json.key=x", set()),
            ("env NEW_ENV", {2}),
            ("model OldModel", set()),
        ],
    )
    def test_the_releases_that_have_an_item(self, text, places):
        assert items.places(TABLE, items.parse(text)) == places


class TestVerdicts:
    @pytest.mark.parametrize(
        ("item", "claimed", "fitting"),
        [
            ("flag --all", "", {"true"}),
            ("flag --new", "", {"true"}),
            ("flag --gone", "", {"outdated", "renamed"}),
            ("flag --never", "", {"false", "outdated", "renamed"}),
            ("flag --all", ">=0.1.0", {"true"}),
            ("flag --new", ">=0.1.0", {"false", "outdated", "renamed"}),
            ("flag --new", ">=0.2.0", {"true"}),
            ("flag --new", ">=0.3.0", {"false", "outdated", "renamed"}),
            ("flag --gone", ">=0.1.0", {"false", "outdated", "renamed"}),
            ("flag --never", ">=0.1.0", {"false", "outdated", "renamed"}),
        ],
    )
    def test_the_census_admits_only_what_it_bears_out(self, item, claimed, fitting):
        verdicts = ("true", "false", "outdated", "renamed")
        found = {
            verdict
            for verdict in verdicts
            if not problems(claim(item=item, claimed=claimed, verdict=verdict))
        }
        assert found == fitting

    def test_only_releases_with_things_of_the_kind_count(self):
        assert problems(claim(item="env NEW_ENV", claimed=">=0.1.0")) == []

    def test_a_kind_that_the_census_does_not_have_decides_nothing(self):
        assert problems(claim(item="metric vllm:x")) == [
            "v3.1: the census has nothing of the kind of metric vllm:x."
        ]

    def test_items_in_the_evidence_decide_in_place_of_the_claims_own(self):
        named = claim(item="flag --never", verdict="renamed", evidence="census flag --new; value --new=a")
        assert problems(named) == []
        assert problems(replace(named, evidence="census flag --new; flag --gone")) == [
            "v3.1: it is renamed, but flag --new is in 0.2.0 to 0.3.0, flag --gone is in 0.1.0 to 0.2.0."
        ]

    def test_a_claimed_range_is_held_against_the_releases_that_have_all_items(self):
        both = claim(evidence="census flag --all; flag --new", claimed=">=0.2.0")
        assert problems(both) == []
        assert problems(replace(both, claimed=">=0.1.0")) != []


class TestEvidence:
    @pytest.mark.parametrize(
        "evidence",
        [
            "config",
            "source vllm/a.py (0.1.0)",
            "source csrc/a/b.cuh (0.1.0, 0.3.0)",
            "source METADATA (0.2.0)",
            f"test {TEST}",
        ],
    )
    def test_its_forms(self, evidence):
        assert problems(claim(evidence=evidence)) == []

    @pytest.mark.parametrize(
        ("evidence", "sentence"),
        [
            ("", "'' is no form of evidence"),
            ("rumour", "'rumour' is no form of evidence"),
            ("config, probably", "'config, probably' is no form of evidence"),
            ("source vllm/a.py", "is not 'source PATH (RELEASES)'"),
            ("source vllm/a (0.1.0)", "is not 'source PATH (RELEASES)'"),
            ("source vllm/a.py (0.9.0)", "the census has no vllm 0.9.0"),
            ("test tests/features/test_x.py::test_z", "there is no test tests/features/test_x.py::test_z"),
            ("census flag all", "'flag all' is nothing to look up"),
            ("untested: needs a GPU", "the verdict is true, the evidence 'untested: needs a GPU'"),
        ],
    )
    def test_what_is_none_is_told(self, evidence, sentence):
        (problem,) = problems(claim(evidence=evidence))
        assert sentence in problem

    def test_untested_needs_a_reason_and_nothing_else_does(self):
        assert problems(claim(verdict="untested", evidence="untested: needs a GPU")) == []
        assert len(problems(claim(verdict="untested", evidence="untested:"))) == 1
        assert len(problems(claim(verdict="untested", evidence="config"))) == 1

    def test_census_without_an_item_is_told(self):
        assert len(problems(claim(item=""))) == 1

    def test_what_does_not_hold_needs_the_right_form(self):
        assert problems(claim(item="flag --never", verdict="false", right="")) == [
            "v3.1: it is false, and the right form is missing."
        ]

    def test_an_id_is_used_once_and_names_its_feature(self):
        assert problems(CLAIM, claim()) == ["v3.1: 2 claims have this id."]
        assert len(problems(claim(id="v4.1"))) == 1

    def test_tests_are_found_by_file_and_name(self, tmp_path):
        folder = tmp_path / "tests" / "features"
        folder.mkdir(parents=True)
        (folder / "test_x.py").write_text("def test_y(): ...\ndef helper(): ...\n")
        assert check.defined(tmp_path) == {TEST}


def test_the_shipped_ledger_holds():
    shipped = {engine: tables.table(engine) for engine in ("vllm", "sglang")}
    assert check.problems(ledger.read(), shipped, check.defined(ROOT)) == []


class TestCommand:
    def test_lines_fit_in_the_terminal(self, monkeypatch, capsys):
        monkeypatch.setenv("COLUMNS", "60")
        assert main(["claims"]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 60
        assert f"\n{len(ledger.read())} claims: " in shown

    def test_a_claim_is_shown_with_verdict_right_form_and_evidence(self):
        wrong = claim(verdict="renamed", item="flag --never", right="--new")
        assert list(command.text([wrong], 80)) == [
            "3 FP8 KV cache: 1 renamed",
            "",
            "v3.1 renamed of vLLM: There is a flag --all.",
            "    right: --new",
            "    census flag --never",
            "",
            "1 claim: 1 renamed",
        ]

    def test_only_what_is_asked_for_is_shown(self, tmp_path, capsys):
        assert main(["claims", *ASKED]) == 0
        path = tmp_path / "claims.tsv"
        path.write_text(capsys.readouterr().out)
        told = ledger.read(path)
        assert told == tuple(
            one
            for one in ledger.read()
            if (one.engine, one.feature, one.verdict) == ("sglang", "17", "false")
        )
        assert told

    def test_markdown_shows_claims_as_text(self):
        lines = "\n".join(command.markdown([claim(claim="<b>a|b</b>")]))
        assert "## 3 FP8 KV cache" in lines
        assert r"&lt;b&gt;a\|b&lt;/b&gt;" in lines

    def test_no_claim_is_no_mistake(self):
        assert list(command.text([], 80)) == ["0 claims: none"]
