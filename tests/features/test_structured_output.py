"""An answer held to a schema, pattern, choice or grammar keeps it, or the request is refused in words.

The fuzz model says every token with a known chance whatever came before, so that the grammar alone makes an answer
valid: a constraint that is dropped shows within a few samples. Each library has a server of its own, so that no
case depends on what another library compiled.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures.judge import envelope, schema, stream
from fixtures.judge.schema import Constraint, Outcome

pytestmark = [
    feature(18, "Structured output"),
    serve(model="fuzz", grammar=each("xgrammar", "llguidance", "outlines")),
]

PROMPT = "Answer: "
SEEDS = range(6)
MANY = range(16)
BUDGET = 1000  # tokens; of 600 open objects from the fuzz model the longest had 239


def json_schema(value):
    return Constraint("json_schema", value)


def record(**properties):
    return json_schema(
        {
            "type": "object",
            "properties": properties,
            "required": sorted(properties),
            "additionalProperties": False,
        }
    )


ITEM = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
KEPT = {
    "record": record(
        name={"type": "string"},
        member={"type": "boolean"},
        tags={"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 3},
    ),
    "reference": json_schema(
        {
            "$defs": {"item": {**ITEM, "additionalProperties": False}},
            "type": "object",
            "properties": {"first": {"$ref": "#/$defs/item"}, "second": {"$ref": "#/$defs/item"}},
            "required": ["first", "second"],
            "additionalProperties": False,
        }
    ),
    "any_of": record(value={"anyOf": [{"type": "boolean"}, {"type": "null"}, {"const": "none"}]}),
    "unicode": record(answer={"enum": ["是", "不是", "naïve"]}),
    "object": Constraint("json_object"),
    "date": Constraint("regex", "[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "branches": Constraint("regex", r"(cat|dog)s?: (yes|no|\d{1,3}%)"),
    "choice": Constraint("choice", ["yes", "no", "maybe"]),
    "nested_choice": Constraint("choice", ["a", "ab", "abc", "是的"]),
    "grammar": Constraint(
        "grammar",
        'root ::= "(" item more? more? ")"\nmore ::= "," item\nitem ::= [a-c] | "(" [x-z] ")"\n',
        pattern=r"\(([a-c]|\([x-z]\))(,([a-c]|\([x-z]\))){0,2}\)",
    ),
}
# Keywords that a library may not know. Refusing is honest; answering against them is not. Each is made so that an
# ignored keyword shows in at least half of the answers: it stays unseen in MANY of them once in 65536 runs.
HARD = {
    "bounds": record(x={"type": "integer", "minimum": 3, "maximum": 99}),
    "bounds_in_a_decade": record(x={"type": "integer", "minimum": 115, "maximum": 120}),
    "pattern_and_length": record(x={"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}),
    "format_and_length": record(x={"type": "string", "format": "uuid", "maxLength": 5}),
    "all_of": json_schema({"allOf": [record(a={"type": "integer"}).value, {"required": ["a"]}]}),
    "all_of_bounds": json_schema({"allOf": [{"type": "integer"}, {"minimum": 10}, {"maximum": 20}]}),
    "one_of": record(
        x={
            "oneOf": [
                {"type": "integer", "minimum": 5, "maximum": 8},
                {"type": "integer", "minimum": 6, "maximum": 9},
            ]
        }
    ),
    "not": record(x={"enum": [1, 2, 3], "not": {"enum": [1, 2]}}),
    "unique_items": record(
        x={"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 4, "uniqueItems": True}
    ),
    "contains": record(
        x={"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 3, "contains": {"const": 3}}
    ),
    "multiple_of": record(x={"type": "integer", "minimum": 0, "maximum": 999, "multipleOf": 7}),
    "dependent_required": json_schema(
        {
            "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}},
            "required": ["a"],
            "dependentRequired": {"a": ["b"]},
            "additionalProperties": False,
        }
    ),
    "property_names": json_schema(
        {
            "type": "object",
            "propertyNames": {"enum": ["k", "l"]},
            "additionalProperties": {"const": 1},
            "minProperties": 2,
            "maxProperties": 2,
        }
    ),
    "min_properties": json_schema(
        {
            "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
            "additionalProperties": False,
            "minProperties": 2,
        }
    ),
    "prefix_items": record(
        x={"type": "array", "prefixItems": [{"const": 1}, {"const": "b"}], "items": False, "minItems": 2}
    ),
    "exclusive_bounds": record(x={"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6}),
}
BOUNDED = {"open": {}, "at_most": {"maxLength": 8}, "at_least": {"minLength": 2}}
# What nothing can satisfy, or nobody can read.
INVALID = {
    "unknown_type": json_schema({"type": "nonsense"}),
    "empty_enum": record(x={"enum": []}),
    "crossed_bounds": record(x={"type": "integer", "minimum": 5, "maximum": 1}),
    "missing_reference": json_schema({"$ref": "#/$defs/nowhere"}),
    "open_bracket": Constraint("regex", "[a-c"),
    "empty_choice": Constraint("choice", []),
    "broken_grammar": Constraint("grammar", 'root ::= "a" (', pattern="a"),
}


def by_name(cases):
    return pytest.mark.parametrize("case", cases)


@pytest.fixture
def due(server):
    """What must become of a constraint: a library that lacks a kind of it says so."""
    return lambda constraint: Outcome.REFUSED if constraint.kind in server.lacks else Outcome.VALID


def sample(client, constraint, seeds=SEEDS, **ask):
    """One answer at temperature 1 for each seed."""
    return [
        client.complete(PROMPT, max_tokens=BUDGET, temperature=1, seed=seed, constraint=constraint, **ask)
        for seed in seeds
    ]


@proves
@catches("backend_replaced")
def test_the_named_library_is_in_use(server):
    assert server.fact("grammar") == dict(server.spec.knobs)["grammar"]


@by_name(KEPT)
@catches(
    "constraint_dropped",
    "constraint_ends_early",
    "json_key_twice",
    "usage_total_wrong",
    "finish_reason_missing",
)
def test_answers_keep_the_constraint(client, due, case):
    for reply in sample(client, KEPT[case]):
        assert schema.problems(reply, KEPT[case], allow=[due(KEPT[case])]) == []
        assert envelope.problems(reply.exchange.json(), "completion" if reply.choices else "error") == []


@by_name(["record", "unicode", "object"])
@catches("constraint_dropped", "json_in_the_wrong_field", "role_missing", "usage_total_wrong")
def test_chat_answers_keep_the_constraint(client, due, case):
    for seed in SEEDS:
        reply = client.chat("Answer.", max_tokens=BUDGET, temperature=1, seed=seed, constraint=KEPT[case])
        assert schema.problems(reply, KEPT[case], allow=[due(KEPT[case])]) == []
        assert envelope.problems(reply.exchange.json(), "chat" if reply.choices else "error") == []


@by_name(KEPT)
@catches(
    "stream_drops_a_chunk",
    "constraint_dropped_when_streaming",
    "done_missing",
    "two_finish_reasons",
    "stream_without_usage",
    "stream_changes_its_id",
    "stream_splits_characters",
)
def test_streamed_answers_are_the_same(client, due, case):
    ask = {"max_tokens": BUDGET, "temperature": 0, "constraint": KEPT[case]}
    whole, streamed = client.complete(PROMPT, **ask), client.complete(PROMPT, stream=True, **ask)
    assert schema.problems(streamed, KEPT[case], allow=[due(KEPT[case])]) == []
    if due(KEPT[case]) is Outcome.VALID:
        assert stream.parity(whole, streamed) == []
        assert stream.problems(streamed.exchange.events, "completion") == []


@catches("grammars_mixed_up", "constraint_dropped")
def test_many_constraints_at_once_are_each_kept(client, due):
    cases = [c for c in KEPT.values() if due(c) is Outcome.VALID and client.catalog.takes(c.kind)]
    for reply, case in crowd(client, cases * 2):
        assert schema.problems(reply, case) == []


@catches("grammar_leaks_into_others")
def test_unconstrained_requests_beside_constrained_ones_stay_free(client):
    free = client.complete(PROMPT, max_tokens=30, temperature=0, ignore_eos=True).text
    cases = [KEPT["record"], None, KEPT["date"], None, KEPT["branches"], None]
    for reply, case in crowd(client, cases, temperature=0):
        if case is None:
            assert reply.text == free
        else:
            assert schema.problems(reply, case) == []


def crowd(client, cases, *, temperature=1):
    """Ask all cases at once, None being an unconstrained request; return each reply with its case."""

    def one(case):
        if case is None:
            return client.complete(PROMPT, max_tokens=30, temperature=temperature, ignore_eos=True)
        return client.complete(PROMPT, max_tokens=BUDGET, temperature=temperature, constraint=case)

    with ThreadPoolExecutor(len(cases)) as pool:
        return list(zip(pool.map(one, cases), cases, strict=True))


@catches("stops_at_the_budget_unmarked")
def test_an_answer_cut_by_the_budget_says_so(client):
    constraint = KEPT["record"]
    reply = client.complete(PROMPT, max_tokens=3, temperature=0, constraint=constraint)
    assert schema.outcome(reply, constraint) is Outcome.TRUNCATED
    assert reply.choice.finish_reason == "length"


@by_name(HARD)
@catches("keyword_ignored")
def test_no_keyword_is_silently_ignored(client, case):
    honest = [Outcome.VALID, Outcome.REFUSED, Outcome.TRUNCATED]
    for reply in sample(client, HARD[case], MANY):
        assert schema.problems(reply, HARD[case], allow=honest) == []


@by_name(BOUNDED)
@catches("control_characters_in_strings")
def test_strings_hold_no_raw_control_characters(client, oracle, case):
    """RFC 8259 wants them escaped. The request prefers them to anything else that the grammar admits."""
    asked = record(x={"type": "string", **BOUNDED[case]})
    likes = {str(oracle.tokenizer.encode(raw)[0]): 8 for raw in ("\a", "\v", "\x1b")}
    for reply in sample(client, asked, logit_bias=likes):
        assert schema.problems(reply, asked) == []


@by_name(INVALID)
@catches(
    "invalid_accepted",
    "engine_dies_of_bad_input",
    "error_without_words",
    "refusal_with_status_200",
    "refusal_with_status_500",
)
def test_what_cannot_be_kept_is_refused_and_the_next_request_served(client, case):
    refused = client.complete(PROMPT, max_tokens=BUDGET, temperature=0, constraint=INVALID[case])
    assert schema.problems(refused, INVALID[case], allow=[Outcome.REFUSED]) == []
    assert envelope.problems(json.loads(refused.exchange.body), "error") == []
    healthy = client.complete(PROMPT, max_tokens=BUDGET, temperature=0, constraint=KEPT["date"])
    assert schema.problems(healthy, KEPT["date"]) == []


@pytest.mark.vllm(">=0.11")
@serve(model="fuzz", grammar="xgrammar")
@pytest.mark.parametrize(
    "field", [{"guided_regex": "[a-c]{3}"}, {"guided_choice": ["yes", "no"]}, {"guided_json": {"type": "integer"}}],
    ids=["guided_regex", "guided_choice", "guided_json"],
)  # fmt: skip
@catches("removed_field_ignored")
def test_a_removed_constraint_field_is_not_silently_ignored(client, field):
    """These fields were renamed in 0.11; a client that still sends them believes that it is served."""
    ((name, value),) = field.items()
    kind = {"guided_regex": "regex", "guided_choice": "choice", "guided_json": "json_schema"}[name]
    asked = Constraint(kind, value)
    for seed in SEEDS:
        reply = client.complete(PROMPT, max_tokens=40, temperature=1, seed=seed, **field)
        assert schema.problems(reply, asked, allow=[Outcome.VALID, Outcome.REFUSED]) == []


@pytest.mark.vllm(">=0.11")
@serve(model="fuzz", grammar="lm-format-enforcer")
@catches("backend_broken")
def test_a_library_that_can_be_chosen_serves(client):
    for reply in sample(client, KEPT["date"]):
        assert schema.problems(reply, KEPT["date"]) == []
