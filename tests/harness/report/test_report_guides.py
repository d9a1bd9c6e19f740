"""What the guides claim stands in the report, for the features and engines that have results."""

import re

import pytest

from fixtures.claims import ledger
from fixtures.claims.ledger import Claim
from fixtures.evidence.results import Feature
from fixtures.report import render
from fixtures.report.guides import guides
from fixtures.report.matrix import matrix
from tests.harness.report.hostile import EVIL
from tests.harness.report.values import result, small

CACHE = Feature(number="25a", title="Prefix caching")


def claim(number, verdict, engine="vllm", feature="25a", right=""):
    return Claim(
        id=f"v{feature}.{number}",
        feature=feature,
        engine=engine,
        where="line 1 title",
        kind="flag",
        claim=f"Claim {number}.",
        item=f"flag --flag-{number}",
        claimed="",
        verdict=verdict,
        evidence="census",
        right=right,
    )


@pytest.fixture
def ledger_of(monkeypatch):
    return lambda *claims: monkeypatch.setattr(ledger, "read", lambda: claims)


def told(*results):
    return small(*(results or [result(feature=CACHE)]))


class TestWhichClaims:
    def test_they_are_those_of_the_feature_and_of_engines_with_results_for_it(self):
        claims = [
            claim(1, "true"),
            claim(2, "true", engine="sglang"),
            claim(3, "false", feature="3"),
            claim(4, "renamed"),
        ]
        (one,) = guides(matrix(told()), claims)
        assert [c.id for c in one.claims] == ["v25a.1", "v25a.4"]
        assert [c.id for c in one.wrong] == ["v25a.4"]
        assert one.counts == {"true": 1, "false": 0, "outdated": 0, "renamed": 1, "untested": 0}

    def test_tests_without_a_feature_have_none(self):
        assert guides(matrix(told(result())), [claim(1, "true")]) == ()


class TestPage:
    def test_wrong_claims_are_folded_away_with_their_right_form_and_evidence(self, ledger_of):
        ledger_of(claim(1, "true"), claim(2, "false", right="--better"))
        page = render.html(told(), None)
        section = page[page.index('<section id="guides"') : page.index('<section id="run"')]
        (folded,) = re.findall(r"<details>.*?</details>", section, re.DOTALL)
        for text in ("1 claim to correct", "Claim 2.", "--better", "census flag --flag-2"):
            assert text in folded
        assert "Claim 1." not in section
        assert 'href="#guides"' in page

    def test_without_claims_there_is_no_such_part(self, ledger_of):
        ledger_of()
        assert "guides" not in re.sub(r"<style>.*?</style>", "", render.html(told(), None), flags=re.DOTALL)
        assert "guides" not in render.markdown(told())

    @pytest.mark.parametrize("kind", EVIL)
    def test_a_claim_is_text(self, kind, ledger_of):
        wrong = claim(1, "false", right=EVIL[kind])
        ledger_of(wrong)
        ours = render.html(told(), None)
        ledger_of(claim(1, "false", right="harmless"))
        assert re.findall(r"<[a-z]+", ours) == re.findall(r"<[a-z]+", render.html(told(), None))


class TestSummary:
    def test_counts_and_wrong_claims(self, ledger_of):
        ledger_of(claim(1, "true"), claim(2, "false", right="better"))
        text = render.markdown(told())
        assert "- 25a Prefix caching: 1 true, 1 false, 0 outdated, 0 renamed, 0 untested\n" in text
        assert "<details><summary>25a Prefix caching: 1 claim to correct</summary>\n\n- v25a.2 false" in text
        assert "Right: better (`census flag --flag-2`)\n\n</details>" in text
        assert "Claim 1." not in text
