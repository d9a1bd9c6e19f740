"""Conforming values for the judges: a scripted answer, and the wire formats that both engines give it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from hypothesis import strategies as st

from fixtures.model import Choice, DraftCounts, Event, Exchange, TokenLogprob

WORDS = ["a", " b", " cat", "\n", "é", "{", '"', " 12", "日本", "stop"]
words = st.lists(st.sampled_from(WORDS), max_size=8)
tokens = st.lists(st.integers(0, 5), max_size=40)


@dataclass(frozen=True)
class Script:
    """What an engine would say: the tokens of each choice with log-probabilities, calls, and a reason."""

    answers: tuple[tuple[TokenLogprob, ...], ...]
    reasons: tuple[str, ...]
    prompt_tokens: int
    with_logprobs: bool
    with_ids: bool
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""

    @property
    def usage(self):
        count = sum(map(len, self.answers))
        cached = {"cached_tokens": self.prompt_tokens // 2}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": count,
            "total_tokens": self.prompt_tokens + count,
            "prompt_tokens_details": cached,
        }


@st.composite
def entries(draw):
    """Draw a sampled token with alternatives, likeliest first, of a probability of at most 1 together."""
    names = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True))
    weights = sorted(
        draw(st.lists(st.integers(1, 1000), min_size=len(names), max_size=len(names))), reverse=True
    )
    rest = draw(st.integers(0, 1000))
    top = {
        name: math.log(weight / (sum(weights) + rest)) for name, weight in zip(names, weights, strict=True)
    }
    name = draw(st.sampled_from(names))
    return TokenLogprob(name, top[name], top)


@st.composite
def choices(draw):
    """Draw a Choice whose text, ids and log-probabilities belong together."""
    seen = draw(st.lists(entries(), max_size=6))
    return Choice(
        index=draw(st.integers(0, 3)),
        text="".join(entry.token for entry in seen),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        logprobs=tuple(seen),
        token_ids=tuple(range(len(seen))),
    )


@st.composite
def scripts(draw, kind="chat"):
    number = draw(st.integers(1, 3))
    answers = draw(st.lists(st.lists(entries(), max_size=6).map(tuple), min_size=number, max_size=number))
    reasons = draw(st.lists(st.sampled_from(["stop", "length"]), min_size=number, max_size=number))
    arguments = st.dictionaries(st.sampled_from("xyz"), st.integers()).map(json.dumps)
    calls = st.lists(st.tuples(st.sampled_from(["look", "add"]), arguments), max_size=2).map(tuple)
    return Script(
        tuple(answers),
        tuple(reasons),
        draw(st.integers(1, 500)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(calls) if kind == "chat" else (),
        draw(st.sampled_from(["", "so it is"])) if kind == "chat" else "",
    )


def whole(script: Script, kind: str):
    """Return the body of the unstreamed answer."""
    made = []
    for index, (answer, reason) in enumerate(zip(script.answers, script.reasons, strict=True)):
        choice = {"index": index, "finish_reason": reason, **extras(script, answer, 0, kind)}
        text = "".join(entry.token for entry in answer)
        if kind == "chat":
            calls = [
                {
                    "id": f"call_{place}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for place, (name, arguments) in enumerate(script.calls)
            ]
            choice["message"] = {"role": "assistant", "content": text, "tool_calls": calls}
            choice["message"]["reasoning_content"] = script.reasoning or None
        else:
            choice["text"] = text
        made.append(choice)
    name = "chat.completion" if kind == "chat" else "text_completion"
    return {**head(name), "choices": made, "usage": script.usage}


@st.composite
def chunks(draw, script: Script, kind: str):
    """Draw a split of the answer into chunks, the choices interleaved, usage last."""
    name = "chat.completion.chunk" if kind == "chat" else "text_completion"
    queues = [draw(parts(script, index, answer, kind)) for index, answer in enumerate(script.answers)]
    order = draw(st.permutations([index for index, queue in enumerate(queues) for _ in queue]))
    made = [{**head(name), "choices": [queues[index].pop(0)]} for index in order]
    return [*made, {**head(name), "choices": [], "usage": script.usage}]


@st.composite
def parts(draw, script: Script, index: int, answer, kind: str):
    """Draw one choice's chunks: a role, runs of tokens, pieces of reasoning and of tool calls, a finish."""
    made = []

    def add(delta, **more):
        part = {"delta": delta} if kind == "chat" else {"text": delta.get("content", "")}
        made.append({"index": index, "finish_reason": None, **part, **more})

    if kind == "chat":
        add({"role": "assistant", "content": ""})
        for piece in draw(pieces(script.reasoning)):
            add({"reasoning_content": piece})
    cuts = sorted(draw(st.sets(st.integers(1, max(len(answer) - 1, 1)), max_size=4)))
    for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        run = answer[start:end]
        add({"content": "".join(entry.token for entry in run)}, **extras(script, run, start, kind))
    for place, (name, arguments) in enumerate(script.calls):
        call = {"index": place, "id": f"other_{place}", "type": "function"}
        add({"tool_calls": [{**call, "function": {"name": name, "arguments": ""}}]})
        for piece in draw(pieces(arguments)):
            add({"role": None, "tool_calls": [{"index": place, "function": {"arguments": piece}}]})
    if draw(st.booleans()):
        add({})
    made[-1]["finish_reason"] = script.reasons[index]
    return made


@st.composite
def pieces(draw, text: str):
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def extras(script: Script, run, start: int, kind: str):
    """Return log-probabilities and token ids of a run of tokens, where the script has them."""
    made = {}
    if script.with_ids:
        made["token_ids"] = list(range(start, start + len(run)))
    if script.with_logprobs and kind == "chat":
        content = [
            {
                "token": entry.token,
                "logprob": entry.logprob,
                "top_logprobs": [{"token": name, "logprob": value} for name, value in entry.top.items()],
            }
            for entry in run
        ]
        made["logprobs"] = {"content": content}
    elif script.with_logprobs:
        made["logprobs"] = {
            "tokens": [entry.token for entry in run],
            "token_logprobs": [entry.logprob for entry in run],
            "top_logprobs": [dict(entry.top) for entry in run],
            "text_offset": [0] * len(run),
        }
    return made


def head(name: str):
    return {"id": "cmpl-1", "object": name, "created": 1_700_000_000, "model": "m"}


def events(bodies, done=True):
    """Send the bodies a millisecond apart."""
    data = [*map(json.dumps, bodies), *(["[DONE]"] if done else [])]
    return tuple(Event(0.001 * (place + 1), text) for place, text in enumerate(data))


def exchange(*, body=None, sent=(), status=200, include_usage=True):
    text = body if isinstance(body, str) else "" if body is None else json.dumps(body)
    request = {"stream_options": {"include_usage": True}} if include_usage else {}
    return Exchange("POST", "/v1/completions", request, status, text, tuple(sent), 0.0, 1.0)


@st.composite
def streams(draw, kind: str):
    """Draw (script, chunks) that belong together."""
    script = draw(scripts(kind))
    return script, draw(chunks(script, kind))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def draft_counts(draw):
    """Simulate steps: each drafts up to k tokens and accepts a leading run. Return (counts, k)."""
    k = draw(st.integers(1, 5))
    steps = draw(
        st.lists(st.integers(0, k).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=20)
    )
    per_position = tuple(sum(accepted > place for _, accepted in steps) for place in range(k))
    drafted, accepted = (sum(step[part] for step in steps) for part in (0, 1))
    return DraftCounts(len(steps), drafted, accepted, per_position), k


@st.composite
def scrapes(draw, names=("a_total", "b_total")):
    """Draw the text of a scrape: counters with a label, and a gauge."""
    lines = []
    for name in names:
        lines.append(f"# TYPE {name} counter")
        values = draw(st.dictionaries(st.sampled_from(["x", "y", "z"]), st.integers(0, 10**6)))
        lines += [f'{name}{{engine="{label}"}} {value}' for label, value in values.items()]
    lines += ["# TYPE load gauge", f"load {draw(st.integers(-100, 100))}"]
    return "\n".join(lines) + "\n"
