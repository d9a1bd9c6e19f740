"""A constraint holds the answer and lets the model think, wherever in a draft its thinking ends.

The model says twelve words, the end of thinking, and ten words more; its own head drafts each of them right. Given
a thought's beginning it goes on from there, so that the end of thinking falls on each place of a draft.

Decides vllm#44993 and vllm#36138 (what is drafted after the end of thinking escapes the grammar), vllm#16182 and
vllm#41132 (the grammar holds the thoughts, so that the JSON stands among them).
"""

import pytest

from fixtures import catches, feature, proves, serve_pairs
from fixtures import prompts as make
from fixtures.engines.rules import NotApplicable
from fixtures.judge import agree, drafts, schema, stream
from fixtures.judge.schema import Constraint, Outcome

pytestmark = [
    feature("X", "Interactions: thinking"),
    serve_pairs(
        parser=[
            {"model": "thinker", "reasoning": "deepseek_r1", "mtp": 3},
            {"model": "thinker", "reasoning": "deepseek_v4"},
        ]
    ),
]

PET = {
    "type": "object",
    "properties": {"pet": {"enum": ["cat", "dog"]}, "tame": {"type": "boolean"}},
    "required": ["pet", "tame"],
    "additionalProperties": False,
}
# A schema lets white space stand between the marks of JSON, which a greedy answer may repeat for ever.
ENDS = [Outcome.VALID, Outcome.TRUNCATED]
HELD = {
    "pattern": (Constraint("regex", r'\{"pet": "(cat|dog)", "tame": (true|false)\}'), [Outcome.VALID]),
    "json_schema": (Constraint("json_schema", PET), ENDS),
    "json_object": (Constraint("json_object"), ENDS),
}

#: Words of the thought that the model is given: with three drafts a step its end is each of a step's four tokens.
places = pytest.mark.parametrize("place", [5, 6, 7, 8])
ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def think(client, oracle):
    """Ask for an answer whose thought has begun with so many words."""

    def ask(place, **fields):
        begun = oracle.tokenizer.decode(oracle.thought[:place])
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": begun}]
        goes_on = {"add_generation_prompt": False, "continue_final_message": True}
        return client.chat(
            messages,
            **goes_on,
            chat_template_kwargs={"thinking": True},
            max_tokens=60,
            temperature=0,
            **fields,
        )

    return ask


def thoughts(oracle, reply, place):
    """What is wrong with the words that were thought."""
    return agree.problems(make.ids(oracle, reply.choice.reasoning or ""), oracle.thought[place:-1])


@proves
@catches("another_parser")
def test_the_parser_is_the_one_asked_for(server):
    assert server.fact("reasoning") == dict(server.spec.knobs)["reasoning"]


@places
@ways
@catches("thoughts_in_the_answer", "drop_drafted_token", "stream_loses_drafted_tokens")
def test_what_is_thought_and_what_is_answered_are_told_apart(think, oracle, place, streamed):
    reply = think(place, stream=streamed)
    assert thoughts(oracle, reply, place) == []
    assert agree.problems(make.ids(oracle, reply.text), oracle.path_to_eos[:-1]) == []
    assert reply.choice.finish_reason == "stop"
    assert not streamed or stream.problems(reply.exchange.events, "chat") == []


@proves
@catches("speculation_off", "draft_counter_frozen")
def test_thoughts_are_drafted_as_answers_are(server, think, draft_counts):
    k = dict(server.spec.knobs).get("mtp")
    if k is None:
        raise NotApplicable("nothing drafts on this server")
    with draft_counts(k) as seen:
        think(5)
    assert drafts.problems(seen(), 0, k) == []
    assert seen().accepted > 0


@places
@ways
@pytest.mark.parametrize("held", HELD)
@catches(
    "constraint_dropped",
    "constraint_dropped_when_streaming",
    "grammar_skips_what_a_draft_has_after_the_thoughts",
    "json_in_the_wrong_field",
    "thoughts_in_the_answer",
)
def test_the_answer_is_held_to_its_form_and_the_thoughts_are_free(think, oracle, place, streamed, held):
    constraint, ends = HELD[held]
    reply = think(place, stream=streamed, constraint=constraint)
    assert thoughts(oracle, reply, place) == []
    assert schema.problems(reply, constraint, allow=ends) == []
    assert schema.outcome(reply, constraint) is Outcome.TRUNCATED or reply.choice.finish_reason == "stop"
