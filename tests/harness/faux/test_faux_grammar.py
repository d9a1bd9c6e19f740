"""An answer of the fake keeps its constraint, or the request is refused."""

import json

import pytest

from fixtures.engines.rules import ENGINES
from fixtures.judge import schema
from fixtures.judge.schema import Constraint, Outcome

both = pytest.mark.parametrize("engine", ENGINES)
KEPT = {
    "json_schema": Constraint("json_schema", {"type": "object", "properties": {"a": {"type": "integer"}},
                                              "required": ["a"], "additionalProperties": False}),
    "json_object": Constraint("json_object"),
    "regex": Constraint("regex", r"(cat|dog)s?: (yes|no|\d{1,3}%)"),
    "choice": Constraint("choice", ['a"b', "是的", "a\nb"]),
    "grammar": Constraint("grammar", 'root ::= "(" item item? ")"\nitem ::= [a-c] | "-" [x-z]',
                          pattern=r"\(([a-c]|-[x-z]){1,2}\)"),
}  # fmt: skip


def asked(engine, constraint):
    """The fields of a request, as the catalog's client would write them."""
    kind, value = constraint.kind, constraint.value
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind == "json_schema":
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}}
    if engine == "vllm":
        return {"structured_outputs": {kind: value}}
    return {{"regex": "regex", "grammar": "ebnf"}[kind]: value}


@pytest.mark.parametrize(
    ("engine", "kind"),
    [(e, kind) for e in ENGINES for kind in KEPT if (e, kind) != ("sglang", "choice")],  # SGLang takes none
)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_constraints_are_kept(fake, engine, kind, temperature):
    server = fake(engine, "fuzz")
    for seed in range(4):
        ask = {"max_tokens": 400, "temperature": temperature, "seed": seed}
        reply = server.complete("Say: ", **ask, **asked(engine, KEPT[kind]))
        assert schema.problems(reply, KEPT[kind]) == []


@both
@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("json_schema", {"type": "array", "uniqueItems": True}),
        Constraint("json_schema", {"type": "nonsense"}),
        Constraint("json_schema", []),
        Constraint("json_schema", "{"),
        Constraint("regex", "[a-"),
        Constraint("regex", "(?=a)b"),
        Constraint("grammar", 'root ::= "a" (', pattern=""),
        Constraint("grammar", "root ::= other", pattern=""),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused(fake, engine, constraint):
    server = fake(engine, "fuzz")
    reply = server.complete("Say: ", max_tokens=20, **asked(engine, constraint))
    assert schema.outcome(reply, constraint) is Outcome.REFUSED
    assert server.counted("finished_requests") == 0


def test_a_library_refuses_what_the_catalog_says_that_it_lacks(fake):
    server = fake("vllm", "fuzz", grammar="outlines")
    for kind in ("json_object", "grammar"):
        reply = server.complete("Say: ", **asked("vllm", KEPT[kind]))
        assert "outlines" in json.loads(reply.exchange.body)["error"]["message"]
    assert server.complete("Say: ", **asked("vllm", KEPT["regex"])).status == 200


def test_removed_fields_and_two_constraints_are_refused(fake):
    server = fake("vllm", "fuzz")
    assert server.complete("Say: ", guided_regex="a").status == 400
    assert server.complete("Say: ", structured_outputs={"regex": "a", "choice": ["a"]}).status == 400
    assert server.complete("Say: ", structured_outputs={"nonsense": 1}).status == 400


@both
def test_drafts_do_not_lead_out_of_a_grammar(fake, engine):
    server = fake(engine, "mimo", mtp=3)
    constraint = Constraint("regex", "(alpha|beta): (true|false), [0-9]{12}")
    reply = server.complete([300, 301], max_tokens=60, **asked(engine, constraint))
    assert schema.problems(reply, constraint) == []
    assert server.counted("draft_steps") > 0


@both
def test_a_cut_answer_says_so(fake, engine):
    server = fake(engine, "fuzz")
    reply = server.complete("Say: ", max_tokens=3, **asked(engine, KEPT["json_schema"]))
    assert schema.outcome(reply, KEPT["json_schema"]) is Outcome.TRUNCATED
