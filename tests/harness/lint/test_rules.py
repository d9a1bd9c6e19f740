"""The rules beside the census are held against the census: what they speak of is so, and what they advise is there."""

from functools import cache

import pytest

from fixtures.census.tables import table
from fixtures.lint import rules
from fixtures.lint.options import spellings
from fixtures.lint.rules import Conflict, Replaced
from fixtures.lint.values import object_to
from fixtures.versions import admits

REPLACED = rules.replaced_names()
CONFLICTS = [rule for engine in ("vllm", "sglang") for rule in rules.conflicts(engine)]


def releases(rule):
    """Return the releases for which a rule holds."""
    known = table(rule.engine)
    return [known.release(version) for version in known.versions if admits(rule.when, version)]


@cache
def spelled(engine, version):
    """Return the flag for each spelling of a release; asked for by every rule."""
    return {name: option.flag for name, option in spellings(table(engine).release(version)).items()}


def has(release, name):
    return facts(release, name) is not None


def facts(release, name):
    return release.get("flag", spelled(release.engine, release.version).get(name, name))


def speaks(rule, release):
    """Whether a release lacks the name, is about to lose it, or refuses the value that the rule is about."""
    if rule.kind == "field":
        return not any(name.split(" ", 1)[1] == rule.name for name in release.names["field"])
    known = facts(release, rule.name) if rule.kind == "flag" else release.get(rule.kind, rule.name)
    if rule.only is not None:
        return known is not None and object_to(known, rule.only) is not None
    return known is None or not {"deprecated", "refused", "old", "unread"}.isdisjoint(known)


def written(by):
    """Yield kind, name and value of what a rule says to write."""
    words = by.split()
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if words[0] == "env" and place:
            yield "env", name, value
        elif word.startswith("--"):
            following = words[place + 1] if place + 1 < len(words) else ""
            yield "flag", name, value or ("" if following.startswith("--") else following)


def lacks(release, kind, name, value):
    """Say what a release lacks of an advice, "" when it would take it."""
    known = facts(release, name) if kind == "flag" else release.get(kind, name)
    if known is None and "extra" not in (facts(release, name.partition(".")[0]) or {"extra": ""}):
        return ""  # a JSON flag whose keys the release does not list
    if known is None:
        return f"{release.version} has no {name}"
    if value not in ("", "{value}") and (problem := object_to(known, value)):
        return f"{release.version}: {name} {value}: {problem.text}"
    return ""


def named(rule):
    name = rule.name if isinstance(rule, Conflict) else f"{rule.name}={rule.only}" if rule.only else rule.name
    return f"{rule.engine}:{name}{rule.when}"


@pytest.mark.parametrize("rule", REPLACED, ids=named)
class TestReplaced:
    def test_some_release_needs_the_rule(self, rule):
        assert any(speaks(rule, release) for release in releases(rule))

    def test_what_it_says_to_write_is_there(self, rule):
        missing = [
            problem
            for release in releases(rule)
            if speaks(rule, release)
            for kind, name, value in written(rule.by or "")
            if (problem := lacks(release, kind, name, value))
        ]
        assert missing == []

    def test_it_says_something(self, rule):
        assert rule.advice().endswith(".")
        assert rule.by is not None or rule.say


@pytest.mark.parametrize("rule", CONFLICTS, ids=named)
class TestConflicts:
    def test_its_flags_are_in_a_release_and_take_its_values(self, rule):
        given = [(name, value) for name, values in rule.given.items() for value in values]
        for name, value in [*given, *((name, "*") for name in rule.absent)]:
            problems = [lacks(release, "flag", name, value.strip("*")) for release in releases(rule)]
            assert "" in problems, problems

    def test_it_says_how_bad_it_is(self, rule):
        assert rule.level in ("error", "warning")
        assert rule.say.endswith(".")


@pytest.mark.parametrize("rule", CONFLICTS, ids=named)
def test_what_a_conflict_says_to_write_is_taken(rule):
    possible = [release for release in releases(rule) if all(has(release, name) for name in rule.given)]
    words = rule.fix.split()
    value = words[1] if len(words) == 2 else ""  # more are a sentence
    flags = [word for word in words if word.startswith("--")]
    assert [
        problem for release in possible for flag in flags if (problem := lacks(release, "flag", flag, value))
    ] == []


def test_no_two_rules_speak_of_the_same():
    seen = [
        (rule.engine, rule.kind, rule.name, rule.only, release.version)
        for rule in REPLACED
        for release in releases(rule)
    ]
    assert len(seen) == len(set(seen))
    names = [(rule.engine, rule.name) for rule in CONFLICTS]
    assert len(names) == len(set(names))


class TestReading:
    OLD = Replaced("vllm", "flag", "--old", by="--new {value}", when="<0.20")
    VALUE = Replaced("vllm", "flag", "--dtype", by="--dtype fp8", only="e8m0")

    @pytest.fixture(autouse=True)
    def _rules(self, monkeypatch):
        monkeypatch.setattr(rules, "_rules", lambda: ([self.OLD, self.VALUE], []))

    @pytest.mark.parametrize(
        ("asked", "rule"),
        [
            (("vllm", "0.19.1", "flag", "--old"), OLD),
            (("vllm", "0.19.2rc1", "flag", "--old"), OLD),
            (("vllm", "0.20.0", "flag", "--old"), None),
            (("sglang", "0.19.1", "flag", "--old"), None),
            (("vllm", "0.19.1", "env", "--old"), None),
            (("vllm", "0.19.1", "flag", "--old", "x"), None),
            (("vllm", "0.19.1", "flag", "--dtype", "e8m0"), VALUE),
            (("vllm", "0.19.1", "flag", "--dtype"), None),
        ],
    )
    def test_a_rule_is_found_by_all_that_it_names(self, asked, rule):
        assert rules.replacement(*asked) is rule

    @pytest.mark.parametrize(
        ("by", "say", "near", "expected"),
        [
            ("--new {value}", "", "--near", (" Write --new … in its place.", "--new {value}")),
            ("--new", "Because.", "", (" Because.", "--new")),
            ("env NEW={value}", "", "", (" Set NEW=… in its place.", "env NEW={value}")),
            ("", "", "", (" Leave it out.", "")),
            (None, "Because.", "", (" Because.", "")),
            (None, "", "", ("", "")),
        ],
    )
    def test_advice_comes_from_the_rule_first(self, by, say, near, expected):
        assert rules.advise(Replaced("vllm", "flag", "--old", by=by, say=say), near) == expected

    @pytest.mark.parametrize(
        ("near", "expected"), [("--near", (" Did you mean --near?", "--near")), ("", ("", ""))]
    )
    def test_advice_is_what_is_near_without_a_rule(self, near, expected):
        assert rules.advise(None, near) == expected

    @pytest.mark.parametrize(
        ("model", "values", "holds"),
        [
            ("org/V4", {"--a": ["1"]}, True),
            ("org/v4-mini", {"--a": ["2", "1"], "--c": []}, True),
            ("org/v3", {"--a": ["1"]}, False),
            ("org/v4", {"--a": ["3"]}, False),
            ("org/v4", {}, False),
            ("org/v4", {"--a": ["1"], "--b": []}, False),
        ],
    )
    def test_a_conflict_holds_where_all_of_it_does(self, model, values, holds):
        rule = Conflict("vllm", "x", "No.", "error", ">=0.20", "v4", {"--a": ["1", "2"]}, ("--b",))
        assert rule.holds("0.20.1", model, values) is holds
        assert not rule.holds("0.19.0", model, values)

    def test_any_value_will_do_for_a_star(self):
        rule = Conflict("vllm", "x", "No.", "error", given={"--a": ["*"]})
        assert rule.holds("0.1", "", {"--a": []})
        assert not rule.holds("0.1", "", {})
