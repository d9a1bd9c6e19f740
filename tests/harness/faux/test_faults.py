"""Each fault is a pure function that changes what its name says, in both dialects, and nothing else."""

import copy
import functools
import itertools
import json

import pytest

from fixtures.faux.faults import FAULTS, ranks
from fixtures.faux.scene import Answer, Ask, Scene
from fixtures.judge import envelope, logprobs, stream
from fixtures.model import Event
from tests.harness.faux.fault_samples import CATALOGS, CHAT, COMPLETIONS, Dialect, play, reply

#: Those with which a server is started change nothing that is said; those of ranks need several: test_faults_ranks.py.
SAID = {n: fault for n, fault in FAULTS.items() if not fault.planted and fault not in ranks.FAULTS}
each_fault = pytest.mark.parametrize("fault", SAID.values(), ids=SAID)
each_engine = pytest.mark.parametrize("engine", CATALOGS)
#: Faults whose very point is that a rule about shape, sums or agreement is broken, which judges then see.
UNSOUND = {
    "logprobs_scaled_by_temperature",
    "logprob_positive",
    "logprobs_all_zero",
    "logprobs_lack_the_last_token",
    "sdk_cannot_read_the_answer",
    "usage_total_wrong",
    "finish_reason_missing",
    "role_missing",
    "two_finish_reasons",
    "done_missing",
    "stream_changes_its_id",
    "stream_drops_logprobs",
}
ODD = [
    "",
    "null",
    "[]",
    "no JSON",
    "{}",
    '{"choices":[]}',
    '{"choices":null,"usage":null}',
    '{"error":{"message":"x"}}',
    '{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}',
    '{"choices":[{"index":0,"delta":{},"logprobs":{"content":null},"finish_reason":null}]}',
]


@functools.cache
def conversation(engine):
    return tuple(Dialect(CATALOGS[engine]).conversation())


@each_fault
def test_a_fault_says_what_is_wrong_in_a_sentence(fault):
    assert FAULTS[fault.name] is fault
    assert fault.what[0].isupper()
    assert fault.what.endswith(".")
    assert "\n" not in fault.what


@each_engine
@each_fault
def test_a_fault_changes_something_always_alike_and_not_its_inputs(fault, engine):
    told = conversation(engine)
    before = copy.deepcopy(told)
    seen = play(fault, CATALOGS[engine], told)
    assert told == before
    assert seen == play(fault, CATALOGS[engine], before)
    assert seen != list(told)


@each_engine
@each_fault
def test_a_fault_leaves_other_routes_alone(fault, engine):
    others = [
        (Ask("GET", "/v1/models"), Answer(body='{"object":"list","data":[]}')),
        (Ask("GET", "/health"), Answer(kind="")),
        (Ask("POST", "/tokenize", {"prompt": "w001", "stop": "w002"}), Answer(body='{"tokens":[1]}')),
        (Ask("POST", COMPLETIONS), Answer(status=422, body="no body")),
    ]
    history = tuple(pair for pair in conversation(engine) if pair[1].status == 200)
    for ask, answer in others:
        scene = Scene(CATALOGS[engine], history)
        assert fault.ask(scene, ask) == ask
        assert fault.answer(scene, ask, answer) == answer


@each_engine
@each_fault
def test_a_fault_can_read_whatever_an_engine_may_answer(fault, engine):
    told = conversation(engine)
    asks = [
        next(ask for ask, _ in told if ask.path == COMPLETIONS),
        next(ask for ask, _ in told if ask.path == COMPLETIONS and ask.body.get("echo")),
        next(ask for ask, _ in told if ask.path == CHAT),
        Ask("GET", "/metrics"),
        Ask("GET", CATALOGS[engine].call("info")["path"]),
    ]
    for ask, body in itertools.product(asks, ODD):
        for answer in (Answer(events=((0.0, body), (0.0, "[DONE]"))), Answer(body=body)):
            for history in ((), told[2:5], ((ask, answer),)):
                fault.answer(Scene(CATALOGS[engine], history), ask, answer)


@each_engine
@each_fault
def test_all_else_in_a_faulty_answer_agrees(fault, engine):
    """Text, ids, log-probabilities and counts still fit, unless the fault is that they do not."""
    told = conversation(engine)
    seen = [
        (ask, after)
        for (ask, before), (_, after) in zip(told, play(fault, CATALOGS[engine], told), strict=True)
        if before != after and ask.path in (COMPLETIONS, CHAT) and after.status == 200 and not after.broken
    ]
    found = []
    for ask, answer in seen:
        chat = ask.path == CHAT
        read = reply(ask, answer)
        if answer.events:
            events = [Event(n, data) for n, (_, data) in enumerate(answer.events)]
            found += stream.problems(events, "chat" if chat else "completion")
        elif read.choices:
            found += envelope.problems(json.loads(answer.body), "chat" if chat else "completion")
        for choice in read.choices:
            found += logprobs.problems(choice)
            if len(read.choices) == 1 and choice.token_ids is not None and "stream_" not in fault.name:
                assert read.usage["completion_tokens"] == len(choice.token_ids)
    assert bool(found) == (fault.name in UNSOUND), found
