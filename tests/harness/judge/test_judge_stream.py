from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.judge import stream
from fixtures.model import Event
from tests.harness.judge import strategies as make

QUICK = settings(max_examples=60, deadline=None)
KINDS = pytest.mark.parametrize("kind", ["completion", "chat"])


def chunk(delta=None, index=0, finish=None, **head):
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return {**make.head("chat.completion.chunk"), "choices": [choice], **head}


ROLE = chunk({"role": "assistant", "content": ""})
WORD = chunk({"content": "a"})
END = chunk(finish="stop")
USAGE = {
    **make.head("chat.completion.chunk"),
    "choices": [],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
}


def complaints(*chunks, done=True):
    return [str(one) for one in stream.problems(make.events(chunks, done), "chat")]


class TestProblems:
    @KINDS
    @given(data=st.data())
    @QUICK
    def test_any_split_of_a_scripted_answer_conforms(self, kind, data):
        _, chunks = data.draw(make.streams(kind))
        assert stream.problems(make.events(chunks), kind) == []

    def test_usage_may_be_left_out_and_the_role_repeated(self):
        assert complaints(ROLE, chunk({"role": "assistant", "content": "b"}), END) == []

    def test_sglang_may_send_its_own_chunk_before_usage(self):
        assert complaints(ROLE, END, {**USAGE, "usage": None, "sglext": {"routed_experts": "x"}}, USAGE) == []

    @pytest.mark.parametrize(
        ("chunks", "complaint"),
        [
            ([ROLE, chunk({"content": "a"}, id="other"), END], "id is 'other', expected 'cmpl-1'"),
            ([ROLE, chunk({"content": "a"}, model="n"), END], "model is 'n', expected 'm'"),
            ([ROLE, WORD], "choice 0 has no finish_reason"),
            ([ROLE, END, END], "a second finish_reason 'stop' for choice 0"),
            ([ROLE, END, WORD], "more content for choice 0 after its finish_reason 'stop'"),
            ([WORD, END], "first delta's role of choice 0 is None"),
            ([chunk({"role": "user"}), END], "first delta's role of choice 0 is 'user'"),
            ([ROLE, chunk({"role": "tool", "content": "a"}), END], "later role of choice 0 is 'tool'"),
            ([ROLE, USAGE, END], "usage in event 1, expected once, in the last chunk"),
            ([ROLE, END, USAGE, USAGE], "usage in event 2, event 3, expected once"),
            ([ROLE, chunk(finish="stop", usage=USAGE["usage"])], "usage beside 1 choice(s)"),
            ([ROLE, {**USAGE, "usage": None}, END], "neither choices nor usage"),
            ([USAGE], "no choice in any chunk"),
            ([ROLE, {"error": {"message": "engine died"}}], "an error within the stream"),
            ([ROLE, {**WORD, "object": "x"}, END], "expected 'chat.completion.chunk'"),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )
    def test_a_broken_order_is_noticed(self, chunks, complaint):
        assert any(complaint in found for found in complaints(*chunks))

    @pytest.mark.parametrize("places", [[], [1, 3], [0], [2]], ids=["never", "twice", "first", "early"])
    def test_the_terminator_comes_once_and_last(self, places):
        sent = list(make.events([ROLE, WORD, END], done=False))
        for place in places:
            sent.insert(place, Event(sent[max(place - 1, 0)].at, "[DONE]"))
        assert [one.where for one in stream.problems(sent, "chat")] == ["stream"]

    @pytest.mark.parametrize("data", ["", "{", '{"a": NaN}', "[DONE] "])
    def test_data_that_is_no_json_is_noticed(self, data):
        sent = make.events([ROLE, WORD, END])
        sent = (sent[0], replace(sent[1], data=data), *sent[2:])
        (found,) = stream.problems(sent, "chat")
        assert found.where == "event 1"

    def test_time_that_runs_backwards_is_noticed(self):
        sent = make.events([ROLE, WORD, END])
        (found,) = stream.problems((sent[0], replace(sent[1], at=0.0005), *sent[2:]), "chat")
        assert found.what == "came at 0.0005 s, expected no earlier than 0.001 s"

    def test_an_empty_stream_is_noticed(self):
        assert len(stream.problems([], "chat")) == 1

    def test_an_unknown_kind_is_the_callers_mistake(self):
        with pytest.raises(ValueError, match="no kind of stream"):
            stream.problems([], "chat_chunk")

    @given(data=st.data())
    @QUICK
    def test_any_lost_finish_is_noticed(self, data):
        _, chunks = data.draw(make.streams("chat"))
        ends = [
            place for place, one in enumerate(chunks) if one["choices"] and one["choices"][0]["finish_reason"]
        ]
        chunks[data.draw(st.sampled_from(ends))]["choices"][0]["finish_reason"] = None
        assert stream.problems(make.events(chunks), "chat") != []


class TestAssemble:
    @KINDS
    @given(data=st.data())
    @QUICK
    def test_any_split_reassembles_to_the_whole_answer(self, kind, data):
        script, chunks = data.draw(make.streams(kind))
        one = stream.assemble(make.exchange(body=make.whole(script, kind)))
        other = stream.assemble(make.exchange(sent=make.events(chunks)))
        assert stream.parity(one, other) == []
        assert other.usage == script.usage
        assert [choice.text for choice in one.choices] == [
            "".join(entry.token for entry in answer) for answer in script.answers
        ]
        if script.with_logprobs:
            assert [choice.logprobs for choice in one.choices] == list(script.answers)
            assert [choice.logprobs for choice in other.choices] == list(script.answers)

    def test_tool_calls_are_joined_by_index(self):
        deltas = [
            {
                "role": "assistant",
                "tool_calls": [{"index": 0, "id": "c0", "function": {"name": "f", "arguments": ""}}],
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
            {"tool_calls": [{"index": 1, "id": "c1", "function": {"name": "g", "arguments": "{}"}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        ]
        reply = stream.assemble(
            make.exchange(sent=make.events([*map(chunk, deltas), chunk(finish="tool_calls")]))
        )
        assert reply.choices[0].tool_calls == (
            {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "c1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        )

    @pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
    def test_reasoning_is_read_under_both_names(self, key):
        sent = make.events([chunk({"role": "assistant", key: "be"}), chunk({key: "cause"}), END])
        assert stream.assemble(make.exchange(sent=sent)).choices[0].reasoning == "because"

    def test_an_echoed_prompt_begins_without_a_logprob(self):
        parallel = {"tokens": ["a", "b"], "token_logprobs": [None, -1], "top_logprobs": [None, {"b": -1}]}
        choice = {"index": 0, "text": "ab", "finish_reason": "length", "logprobs": parallel}
        reply = stream.assemble(make.exchange(body={**make.head("text_completion"), "choices": [choice]}))
        assert [(one.token, one.logprob) for one in reply.choices[0].logprobs] == [("a", None), ("b", -1)]

    @pytest.mark.parametrize(
        "body",
        [
            "",
            "oops",
            "[1]",
            "null",
            "[" * 100_000,
            '{"error": {"message": "no"}}',
            '{"object": "error", "message": "no"}',
        ],
        ids=lambda body: body[:20],
    )
    def test_an_error_or_unreadable_body_gives_no_choices(self, body):
        reply = stream.assemble(make.exchange(body=body, status=400))
        assert (reply.choices, reply.usage, reply.status) == ((), None, 400)

    @given(body=make.json_values)
    @QUICK
    def test_no_json_makes_it_fail(self, body):
        for choice in (
            body,
            {"index": 0, "delta": body, "logprobs": body},
            {"message": {"tool_calls": [body]}},
        ):
            stream.assemble(make.exchange(body={"choices": [choice], "usage": body}))
            stream.assemble(make.exchange(sent=make.events([{"choices": [choice]}])))
