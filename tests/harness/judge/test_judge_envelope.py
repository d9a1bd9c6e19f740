import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.judge import envelope
from tests.harness.judge import strategies as make

SCRIPT = make.Script(
    ((make.TokenLogprob("a", -0.5, {"a": -0.5, "b": -1.5}),), ()), ("stop", "length"), 3, True, True
)
MODELS = {
    "object": "list",
    "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "vllm", "root": "m"}],
}
OPENAI_ERROR = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
FLAT_ERROR = {"object": "error", "message": "no", "type": "BadRequestError", "param": None, "code": 400}


def example(kind):
    if kind in ("completion", "chat"):
        return make.whole(SCRIPT, kind)
    if kind.endswith("_chunk"):
        short = kind.removesuffix("_chunk")
        part = {"delta": {"role": "assistant", "content": ""}} if short == "chat" else {"text": ""}
        name = "chat.completion.chunk" if short == "chat" else "text_completion"
        return {**make.head(name), "choices": [{"index": 0, "finish_reason": None, **part}], "usage": None}
    return {"error": OPENAI_ERROR, "models": MODELS}[kind]


def changed(body, path, value):
    """Return a copy with the value at `path` replaced, or removed when it is Ellipsis."""
    body = copy.deepcopy(body)
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return body


class TestConforming:
    @pytest.mark.parametrize(
        "kind", ["completion", "completion_chunk", "chat", "chat_chunk", "error", "models"]
    )
    def test_examples_have_no_problems_and_may_have_extra_keys(self, kind):
        assert envelope.problems(example(kind), kind) == []
        assert envelope.problems({**example(kind), "engine_extra": [1]}, kind) == []

    @pytest.mark.parametrize("kind", ["completion", "chat"])
    @given(data=st.data())
    @settings(max_examples=40, deadline=None)
    def test_scripted_bodies_and_chunks_have_no_problems(self, kind, data):
        script, chunks = data.draw(make.streams(kind))
        assert envelope.problems(make.whole(script, kind), kind) == []
        assert [found for chunk in chunks for found in envelope.problems(chunk, f"{kind}_chunk")] == []

    def test_the_flat_error_of_sglang_is_accepted(self):
        assert envelope.problems(FLAT_ERROR, "error") == []

    @pytest.mark.parametrize(
        "reason", ["stop", "length", "tool_calls", "content_filter", "function_call", "abort"]
    )
    def test_every_documented_finish_reason_is_accepted(self, reason):
        body = changed(example("chat"), ["choices", 0, "finish_reason"], reason)
        assert envelope.problems(body, "chat") == []


class TestNoticed:
    @pytest.mark.parametrize("kind", ["completion", "chat"])
    @pytest.mark.parametrize("key", ["id", "object", "created", "model", "choices", "usage"])
    def test_a_missing_key_of_a_body(self, kind, key):
        (found,) = envelope.problems(changed(example(kind), [key], ...), kind)
        assert found.where == kind
        assert repr(key) in found.what

    @pytest.mark.parametrize("kind", ["completion_chunk", "chat_chunk"])
    @pytest.mark.parametrize("key", ["id", "object", "created", "model", "choices"])
    def test_a_missing_key_of_a_chunk(self, kind, key):
        (found,) = envelope.problems(changed(example(kind), [key], ...), kind)
        assert repr(key) in found.what

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (["id"], ""),
            (["object"], "chat.completion.chunk"),
            (["created"], "today"),
            (["choices"], []),
            (["choices", 0, "index"], "0"),
            (["choices", 0, "index"], -1),
            (["choices", 1, "index"], 0),
            (["choices", 0, "finish_reason"], "done"),
            (["choices", 0, "finish_reason"], None),
            (["choices", 0, "message"], ...),
            (["choices", 0, "message", "role"], "user"),
            (["choices", 0, "message", "content"], ["a"]),
            (
                ["choices", 0, "message", "tool_calls"],
                [{"id": "c", "function": {"name": "f", "arguments": {}}}],
            ),
            (["choices", 0, "logprobs", "content", 0, "logprob"], "low"),
            (["choices", 0, "logprobs", "content", 0, "top_logprobs", 0, "token"], ...),
            (["choices", 0, "token_ids"], ["a"]),
            (["usage", "prompt_tokens"], 1.5),
            (["usage", "completion_tokens"], -1),
            (["usage", "total_tokens"], 5),
            (["usage", "prompt_tokens_details", "cached_tokens"], 4),
        ],
        ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) and value else None,
    )
    def test_a_wrong_value_of_a_chat(self, path, value):
        found = envelope.problems(changed(example("chat"), path, value), "chat")
        assert len(found) == 1, found

    def test_parallel_lists_of_another_type_in_a_completion(self):
        body = changed(example("completion"), ["choices", 0, "logprobs", "token_logprobs", 0], "x")
        (found,) = envelope.problems(body, "completion")
        assert found.where == "completion.choices[0].logprobs.token_logprobs[0]"
        assert found.what == "is 'x', expected type ['number', 'null']"

    @pytest.mark.parametrize(
        "body",
        [
            None,
            [],
            {},
            "Internal Server Error",
            {"detail": "Not Found"},
            {"error": "no"},
            {"error": {}},
            {"error": {"message": ""}},
            {"error": {"message": None}},
            {"error": {"message": "x", "code": []}},
            {"object": "error", "message": ""},
            {"message": "no"},
        ],
        ids=repr,
    )
    def test_an_improper_error(self, body):
        assert envelope.problems(body, "error") != []

    def test_models_of_another_shape(self):
        assert envelope.problems({"object": "list"}, "models") != []
        assert envelope.problems(changed(MODELS, ["data", 0, "object"], "file"), "models") != []
        assert envelope.problems({**MODELS, "data": MODELS["data"] * 2}, "models") != []

    def test_an_unknown_kind_is_the_callers_mistake(self):
        with pytest.raises(ValueError, match="no kind of answer 'image'"):
            envelope.problems({}, "image")
