import json

import pytest

from fixtures.judge import schema
from fixtures.judge.schema import Constraint, Outcome
from fixtures.model import Choice, Reply
from tests.harness.judge import strategies as make

PERSON = Constraint(
    "json_schema",
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "born": {"type": "string", "format": "date"}},
        "required": ["name"],
        "additionalProperties": False,
    },
)
OBJECT = Constraint("json_object")
REGEX = Constraint("regex", r"[0-9]{3}")
CHOICE = Constraint("choice", ["yes", "yellow", "no"])
PATTERN = Constraint("grammar", 'root ::= "a"+', pattern="a+")
PREDICATE = Constraint("grammar", "root ::= ...", accepts=lambda text: text == text[::-1])

REFUSAL = {"error": {"message": "Unsupported schema", "type": "BadRequestError", "code": 400}}


def reply(*texts, finish="stop"):
    choices = tuple(Choice(index, text, finish) for index, text in enumerate(texts))
    return Reply(make.exchange(body={}), choices, None)


def unanswered(**exchange):
    return Reply(make.exchange(**exchange), (), None)


def kind_and_text(value):
    """An id that every process gives alike: a function's repr has its address."""
    return value.kind if isinstance(value, Constraint) else str(value)


class TestOutcome:
    @pytest.mark.parametrize(
        ("constraint", "text"),
        [
            (PERSON, '{"name": "Ada"}'),
            (PERSON, ' {"born": "1815-12-10", "name": "Ada"}\n'),
            (OBJECT, "{}"),
            (OBJECT, '{"a": 1, "a": 1}'),  # still JSON, and no more was asked for
            (REGEX, "123"),
            (CHOICE, "yellow"),
            (PATTERN, "aaa"),
            (PREDICATE, "abba"),
        ],
        ids=kind_and_text,
    )
    @pytest.mark.parametrize("finish", ["stop", "length"])
    def test_a_text_that_keeps_the_constraint_is_valid(self, constraint, text, finish):
        assert schema.outcome(reply(text, finish=finish), constraint) is Outcome.VALID
        assert schema.problems(reply(text, finish=finish), constraint) == []

    @pytest.mark.parametrize(
        ("constraint", "text"),
        [
            (PERSON, ""),
            (PERSON, '{"name": "A'),
            (OBJECT, '{"a": [1, tr'),
            (REGEX, "12"),
            (CHOICE, "ye"),
            (PATTERN, ""),
            (PREDICATE, "ab"),
        ],
        ids=kind_and_text,
    )
    def test_a_text_cut_short_is_truncated_but_finished_is_weakened(self, constraint, text):
        assert schema.outcome(reply(text, finish="length"), constraint) is Outcome.TRUNCATED
        assert schema.outcome(reply(text, finish="stop"), constraint) is Outcome.WEAKENED

    @pytest.mark.parametrize(
        ("constraint", "text", "why"),
        [
            (PERSON, "{}", "'name' is a required property"),
            (PERSON, '{"name": 1}', "$.name"),
            (PERSON, '{"name": "Ada", "age": 1}', "'age' was unexpected"),
            (PERSON, '{"name": "Ada", "born": "soon"}', "is not a 'date'"),
            (PERSON, '{"name": "Ada", "name": "Bob"}', "same key twice: 'name'"),
            (PERSON, "Sure! Here it is", "no JSON"),
            (PERSON, '{"name": "Ada"} done', "no JSON"),
            (OBJECT, "[1]", "is not of type 'object'"),
            (OBJECT, '{"a": NaN}', "NaN is no JSON value"),
            (PERSON, '{"name": {"b": 1, "b": 1}}', "same key twice: 'b'"),
            (OBJECT, "[" * 100_000, "nested too deeply"),
            (REGEX, "1234", "no full match"),
            (CHOICE, "maybe", "expected one of"),
            (CHOICE, "yes.", "expected one of"),
            (PATTERN, "b", "no full match"),
            (PREDICATE, "ab", "the grammar does not derive it"),
            (Constraint("json_schema", {"type": "strnig"}), '"a"', "should have been refused"),
            (Constraint("json_schema", {"$ref": "http://localhost/x"}), '"a"', "should have been refused"),
            (Constraint("regex", "("), "(", "should have been refused"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_a_finished_text_that_misses_it_is_weakened(self, constraint, text, why):
        assert schema.outcome(reply(text), constraint) is Outcome.WEAKENED
        (found,) = schema.problems(reply(text), constraint)
        assert why in found.what

    @pytest.mark.parametrize(
        ("constraint", "text"),
        [(CHOICE, "may"), (PERSON, "Sure! Here"), (PERSON, '{"name" "A'), (PERSON, "[1,"), (OBJECT, "[")],
        ids=kind_and_text,
    )
    def test_a_cut_text_that_cannot_become_right_is_weakened(self, constraint, text):
        assert schema.outcome(reply(text, finish="length"), constraint) is Outcome.WEAKENED

    @pytest.mark.parametrize("finish", [None, "abort"])
    def test_a_text_that_breaks_off_is_broken(self, finish):
        assert schema.outcome(reply("{}", finish=finish), OBJECT) is Outcome.BROKEN

    def test_a_refusal_needs_a_client_error_and_a_proper_body(self):
        assert schema.outcome(unanswered(status=400, body=REFUSAL), PERSON) is Outcome.REFUSED
        assert schema.outcome(unanswered(status=400, body={"detail": "no"}), PERSON) is Outcome.BROKEN
        assert schema.outcome(unanswered(status=422, body=""), PERSON) is Outcome.BROKEN
        assert schema.outcome(unanswered(status=500, body=REFUSAL), PERSON) is Outcome.BROKEN
        assert schema.outcome(unanswered(status=200, body=""), PERSON) is Outcome.BROKEN
        assert schema.outcome(unanswered(status=0, body=""), PERSON) is Outcome.BROKEN

    def test_a_refusal_may_come_as_an_event(self):
        assert schema.outcome(unanswered(sent=make.events([REFUSAL])), PERSON) is Outcome.REFUSED
        died = {"error": {"message": "engine died", "code": 500}}
        assert schema.outcome(unanswered(sent=make.events([died])), PERSON) is Outcome.BROKEN
        assert schema.outcome(unanswered(sent=make.events([])), PERSON) is Outcome.BROKEN

    def test_the_worst_choice_decides(self):
        assert schema.outcome(reply("{}", "oops", "{}"), OBJECT) is Outcome.WEAKENED
        assert schema.problems(reply("{}", "oops"), OBJECT)[0].where == "choice 1"

    def test_honest_outcomes_pass_where_they_are_allowed(self):
        refused = unanswered(status=400, body=REFUSAL)
        assert len(schema.problems(refused, PERSON)) == 1
        assert schema.problems(refused, PERSON, allow={Outcome.VALID, Outcome.REFUSED}) == []

    @pytest.mark.parametrize(
        ("name", "good", "bad"),
        [
            ("date-time", "2024-02-29T12:00:00Z", "2023-02-29T12:00:00Z"),
            ("date-time", "2024-01-01T12:00:00.5+02:00", "2024-01-01 12:00"),
            ("time", "12:00:00Z", "25:00:00Z"),
            ("ipv4", "127.0.0.1", "127.0.0.256"),
            ("uuid", "12345678-1234-5678-1234-567812345678", "1234"),
            ("email", "a@b", "ab"),
        ],
    )
    def test_formats_are_checked(self, name, good, bad):
        constraint = Constraint("json_schema", {"type": "string", "format": name})
        assert schema.outcome(reply(json.dumps(good)), constraint) is Outcome.VALID
        assert schema.outcome(reply(json.dumps(bad)), constraint) is Outcome.WEAKENED

    def test_a_constraint_that_cannot_be_judged_is_the_callers_mistake(self):
        with pytest.raises(ValueError, match="needs `pattern` or `accepts`"):
            Constraint("grammar", "root ::= x")
        with pytest.raises(ValueError, match="no kind of constraint"):
            Constraint("xml", "x")
