"""A field of a request that a release refuses, or takes and does not read, is found."""

import pytest

from fixtures.lint import rules
from fixtures.lint.inputs.values import Request
from fixtures.lint.requests import fields
from fixtures.lint.rules import Replaced
from tests.harness.lint.made import rows, table

CHAT, GENERATE = "/v1/chat/completions", "/generate"
EARLY = {f"{CHAT} messages": {}, f"{CHAT} guided_json": {}}
LATE = {
    f"{CHAT} messages": {},
    f"{CHAT} temperature": {},
    f"{CHAT} response_format": {},
    f"{CHAT} response_format.type": {},
    f"{CHAT} response_format.*": {"extra": "forbid"},
    f"{GENERATE} text": {},
    f"{GENERATE} sampling_params": {},
    f"{GENERATE} sampling_params.n": {},
    f"{GENERATE} *": {"extra": "forbid"},
}
RULES = [Replaced("vllm", "field", "guided_json", say="Use response_format.")]


@pytest.fixture(autouse=True)
def _rules(monkeypatch):
    monkeypatch.setattr(rules, "_rules", lambda: (RULES, []))


@pytest.fixture
def found(tmp_path):
    releases = {"0.19.0": rows(field=EARLY), "0.20.0": rows(field=LATE)}
    release = table("vllm", tmp_path, releases).release("0.20.0")
    return lambda path, body: list(fields(release, Request(path, body, "ask.sh:4", 5)))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"anything": 1}], "temperature": 0, "response_format": {"type": "text"}}),
        (CHAT, {"response_format": "text"}),
        (GENERATE, {"text": "x", "sampling_params": {"n": 1}}),
        ("/v2/other", {"whatever": 1}),
        (CHAT, [1, 2]),
        (CHAT, None),
    ],
)
def test_what_is_read_or_is_not_known_is_left_alone(found, path, body):
    assert found(path, body) == []


@pytest.mark.parametrize(
    ("path", "body", "expected", "texts"),
    [
        (CHAT, {"guided_json": {}}, ("ignored", "guided_json", ""),
         ["guided_json in /v1/chat/completions is ignored: vllm 0.20.0 does not have it; 0.19.0 was the last",
          "Use response_format."]),
        (CHAT, {"temprature": 1}, ("ignored", "temprature", "temperature"), ["Did you mean temperature?"]),
        (CHAT, {"response_format": {"typ": 1}}, ("unknown", "response_format.typ", "response_format.type"),
         ["response_format.typ in /v1/chat/completions is refused: no release from 0.19.0 to 0.20.0 has it."]),
        (GENERATE, {"txt": 1}, ("unknown", "txt", "text"), ["txt in /generate is refused"]),
        (GENERATE, {"sampling_params": {"m": 1}}, ("ignored", "sampling_params.m", ""), ["is ignored"]),
    ],
)  # fmt: skip
def test_a_field_that_nothing_reads_is_refused_or_ignored(found, path, body, expected, texts):
    (finding,) = found(path, body)
    assert (finding.code, finding.what, finding.fix) == expected
    assert all(text in finding.text for text in texts)
    assert (finding.level, finding.where, finding.line) == ("error", "ask.sh:4", 5)


def test_each_field_is_looked_at(found):
    body = {"zig": 1, "messages": [], "response_format": {"zag": 1}, "zog": 2}
    assert [finding.what for finding in found(CHAT, body)] == ["zig", "response_format.zag", "zog"]
