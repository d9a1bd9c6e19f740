"""The fake says what the model says, in both dialects, whole and streamed."""

import json

import numpy as np
import pytest

from fixtures import prompts as make
from fixtures.engines.rules import ENGINES
from fixtures.faux.scene import Ask
from fixtures.judge import envelope, logprobs, stream

both = pytest.mark.parametrize("engine", ENGINES)
EXACT = 1e-9


@both
@pytest.mark.parametrize("model", ["chain", "lookup"])
def test_greedy_answers_are_those_of_the_reference(fake, engine, model):
    server = fake(engine, model)
    prompt = make.question(server.oracle, 40, seed=1)
    reply = server.complete(prompt, max_tokens=12, logprobs=2, return_token_ids=True)
    answer = server.oracle.greedy(prompt, 12)
    right = server.oracle.answer_logprobs(prompt, answer)
    assert list(reply.choice.token_ids) == answer
    assert reply.text == server.oracle.tokenizer.decode(answer)
    assert reply.choice.finish_reason == "length"
    assert logprobs.problems(reply.choice) == []
    assert logprobs.compare(reply.choice.logprobs, right, answer, EXACT) == []
    assert envelope.problems(json.loads(reply.exchange.body), "completion") == []
    assert reply.usage["prompt_tokens"] == 40
    assert reply.usage["completion_tokens"] == 12


@both
@pytest.mark.parametrize(
    "ask",
    [
        {},
        {"logprobs": 2},
        {"stop": "w1"},
        {"temperature": 2.0, "seed": 5, "logprobs": 1},
        {"n": 3, "temperature": 2.0, "seed": 5},
        {"echo": True, "logprobs": 1},
    ],
    ids=str,
)
def test_a_stream_tells_what_the_whole_answer_tells(fake, engine, ask):
    server = fake(engine, "chain")
    ask = {"max_tokens": 20, **ask}
    prompt = make.walk(server.oracle, "main", 10)
    whole = server.complete(prompt, **ask)
    streamed = server.complete(prompt, stream=True, stream_options={"include_usage": True}, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@both
def test_chat_is_answered_whole_and_streamed(fake, engine):
    server = fake(engine, "chain")
    whole = server.chat("w001w002", max_tokens=8, logprobs=True, top_logprobs=2)
    streamed = server.chat("w001w002", max_tokens=8, logprobs=True, top_logprobs=2, stream=True,
                           stream_options={"include_usage": True})  # fmt: skip
    prompt = server.oracle.tokenizer.chat([{"role": "user", "content": "w001w002"}])
    answer = server.oracle.greedy(prompt, 8)
    assert make.ids(server.oracle, whole.text) == answer
    assert envelope.problems(json.loads(whole.exchange.body), "chat") == []
    assert stream.problems(streamed.exchange.events, "chat") == []
    assert stream.parity(whole, streamed) == []
    assert whole.usage["prompt_tokens"] == len(prompt)


@both
def test_several_prompts_and_answers_are_numbered_through(fake, engine):
    server = fake(engine, "chain")
    a, b = make.walk(server.oracle, "main", 5), make.walk(server.oracle, "main", 9)
    reply = server.complete([a, b], n=2, max_tokens=2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.usage["prompt_tokens"] == 14
    assert reply.usage["completion_tokens"] == 8


@both
def test_the_end_token_ends_an_answer_unless_it_is_ignored(fake, engine):
    server = fake(engine, "chain")
    path = server.oracle.path_to_eos
    reply = server.complete([path[7]] * 2, max_tokens=9, return_token_ids=True)
    assert reply.choice.token_ids == path[8:]
    assert (reply.choice.finish_reason, reply.usage["completion_tokens"]) == ("stop", 3)
    assert server.oracle.tokenizer.decode(path[8:-1]) == reply.text
    longer = server.complete([path[7]] * 2, max_tokens=9, ignore_eos=True)
    assert (longer.choice.finish_reason, longer.usage["completion_tokens"]) == ("length", 9)


@both
def test_seeds_reproduce_and_their_lack_does_not(fake, engine):
    server = fake(engine, "chain")
    prompt, ask = make.walk(server.oracle, "main", 5), {"max_tokens": 20, "temperature": 2.0}
    assert server.complete(prompt, seed=1, **ask).text == server.complete(prompt, seed=1, **ask).text
    assert server.complete(prompt, seed=1, **ask).text != server.complete(prompt, seed=2, **ask).text
    assert server.complete(prompt, **ask).text != server.complete(prompt, **ask).text
    again = fake(engine, "chain")
    first = [again.complete(prompt, **ask).text for _ in range(2)]
    third = fake(engine, "chain")
    assert [third.complete(prompt, **ask).text for _ in range(2)] == first  # a run can be repeated


@both
def test_sampled_logprobs_are_what_the_engine_promises(fake, engine):
    server = fake(engine, "chain")
    prompt = make.walk(server.oracle, "main", 5)
    choice = server.complete(
        prompt, max_tokens=9, temperature=1.5, seed=3, logprobs=1, return_token_ids=True
    ).choice
    right = server.oracle.answer_logprobs(prompt, choice.token_ids)
    if server.catalog.promise("sampled_logprobs") == "scaled":
        right = logprobs.tempered(right, 1.5)
    assert logprobs.compare(choice.logprobs, right, choice.token_ids, EXACT) == []


@both
def test_biases_and_cuts_rule_the_choice(fake, engine):
    server = fake(engine, "chain")
    prompt = make.walk(server.oracle, "main", 5)
    best = np.argsort(-server.oracle.logprobs(prompt)[-1])
    pushed = server.complete(prompt, max_tokens=1, logit_bias={str(best[5]): 100}, return_token_ids=True)
    assert pushed.choice.token_ids == (best[5],)
    drawn = server.complete(prompt, max_tokens=1, n=50, temperature=3.0, top_k=2, return_token_ids=True)
    assert {choice.token_ids[0] for choice in drawn.choices} == {best[0], best[1]}
    drawn = server.complete(prompt, max_tokens=1, n=20, temperature=3.0, top_p=1e-6, return_token_ids=True)
    assert {choice.token_ids[0] for choice in drawn.choices} == {best[0]}


@both
@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"max_tokens": 0},
        {"max_tokens": "x"},
        {"max_tokens": 5000},
        {"n": 0},
        {"prompt": []},
        {"prompt": ""},
        {"prompt": [99999]},
        {"prompt": {}},
        {"logit_bias": {"99999": 1}},
        {"cache_salt": ""},
        {"stop": [""]},
        {"min_tokens": 3},
        {"response_format": {"type": "nonsense"}},
    ],
    ids=str,
)
def test_what_is_wrong_or_not_built_is_refused_in_the_dialects_words(fake, engine, wrong):
    server = fake(engine, "chain")
    reply = server.ask({"model": "oracle", "prompt": [300, 301], **wrong})
    assert reply.status == 400
    assert envelope.problems(json.loads(reply.exchange.body), "error") == []
    assert ("error" in json.loads(reply.exchange.body)) == (engine == "vllm")
    assert server.counted("finished_requests") == 0


@both
def test_unknown_routes_and_bodies_are_answered(fake, engine):
    server = fake(engine, "chain")
    assert server.get("/nope")[0] == 404
    assert server.get("/v1/completions")[0] == 405
    assert server.get("/health") == (200, "")
    assert server.dialect.unreadable("no JSON").status == 400
    assert server.dialect.answer(Ask("POST", "/v1/completions", [1])).status == 400
    assert envelope.problems(json.loads(server.get("/v1/models")[1]), "models") == []
