import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.judge import stream
from tests.harness.judge import strategies as make

QUICK = settings(max_examples=60, deadline=None)


class TestParity:
    @pytest.fixture
    def pair(self):
        top = {"a": -0.5, "b": -1.0}
        script = make.Script(
            ((make.TokenLogprob("a", -0.5, top), make.TokenLogprob("b", -1.0, top)),),
            ("stop",),
            4,
            True,
            True,
            (("f", "{}"),),
            "since",
        )
        reply = stream.assemble(make.exchange(body=make.whole(script, "chat")))
        return reply, reply

    def changed(self, reply, **fields):
        return replace(reply, choices=(replace(reply.choices[0], **fields),))

    @pytest.mark.parametrize(
        "fields",
        [
            {"text": "ac"},
            {"finish_reason": "length"},
            {"token_ids": (0, 2)},
            {"token_ids": None},
            {"reasoning": None},
            {"tool_calls": ()},
            {"logprobs": None},
            {"index": 1},
        ],
        ids=lambda fields: next(iter(fields)) + str(next(iter(fields.values()))),
    )
    def test_a_changed_field_is_noticed(self, pair, fields):
        assert len(stream.parity(pair[0], self.changed(pair[1], **fields))) == 1

    @pytest.mark.parametrize(
        ("fields", "count"),
        [
            ({"logprob": -0.50005}, 0),
            ({"logprob": -0.5002}, 1),
            ({"logprob": None}, 1),
            ({"token": "A"}, 1),
            ({"top": {"a": -0.5}}, 1),
            ({"top": {"a": -0.5, "b": -1.001}}, 1),
            ({"top": {"a": -0.5, "c": -1.0}}, 0),
        ],
        ids=str,
    )
    def test_logprobs_agree_within_the_tolerance(self, pair, fields, count):
        first, second = pair[1].choices[0].logprobs
        other = self.changed(pair[1], logprobs=(replace(first, **fields), second))
        assert len(stream.parity(pair[0], other)) == count

    def test_usage_agrees_but_for_the_cache(self, pair):
        usage = dict(pair[0].usage)
        assert stream.parity(pair[0], replace(pair[1], usage={**usage, "prompt_tokens_details": None})) == []
        assert len(stream.parity(pair[0], replace(pair[1], usage={**usage, "completion_tokens": 3}))) == 1
        assert len(stream.parity(pair[0], replace(pair[1], usage=None))) == 1
        assert len(stream.parity(replace(pair[0], usage=None), pair[1])) == 1

    def test_usage_that_was_not_asked_for_may_be_absent(self, pair):
        quiet = replace(pair[1], usage=None, exchange=make.exchange(include_usage=False))
        assert stream.parity(pair[0], quiet) == []

    @given(data=st.data())
    @QUICK
    def test_a_lost_or_doubled_chunk_is_noticed(self, data):
        script, chunks = data.draw(make.streams("completion"))
        full = [place for place, one in enumerate(chunks) if any(choice["text"] for choice in one["choices"])]
        if not full:
            return
        place = data.draw(st.sampled_from(full))
        copies = data.draw(st.sampled_from([0, 2]))
        other = json.loads(json.dumps([*chunks[:place], *[chunks[place]] * copies, *chunks[place + 1 :]]))
        one = stream.assemble(make.exchange(body=make.whole(script, "completion")))
        assert stream.parity(one, stream.assemble(make.exchange(sent=make.events(other)))) != []
