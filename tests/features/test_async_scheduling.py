"""The next step is scheduled while the last one runs, and no answer shows it.

A scheduler that runs ahead does not know the last token yet: what depends on it - penalties, stop strings, grammars,
the budget, a client that leaves - is where answers would differ. Not proved: that steps really overlap in time.
"""

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, penalties, schema, stream
from fixtures.judge.schema import Constraint

pytestmark = [feature(16, "Async scheduling"), serve(model="lookup", async_scheduling=each(True, False))]

ANSWER = 24
# Two layers of float32 with unit-size activations, as in test_prefix_caching.
TOLERANCE = 1e-3


@proves
@serve(model="lookup", async_scheduling=True)
@catches("other_settings")
def test_the_scheduler_runs_ahead(server):
    assert server.fact("async_scheduling") is True


@proves
@serve(model="lookup", async_scheduling=False)
@catches("other_settings")
def test_the_scheduler_can_be_kept_in_step(server):
    assert server.fact("async_scheduling") is False


@catches("requests_mixed_up", "drop_drafted_token")
@pytest.mark.parametrize("at_once", [1, 3, 12])
def test_answers_do_not_depend_on_the_crowd(client, oracle, at_once):
    asked = [make.question(oracle, 40 + 9 * n, seed=n, depth=0.3) for n in range(12)]
    for prompt, reply in zip(
        asked, client.each(asked, at_once=at_once, max_tokens=ANSWER, temperature=0), strict=True
    ):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []


@catches("penalties_ignored", "penalties_halved")
@pytest.mark.parametrize("penalty", [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}])
def test_penalties_count_the_token_of_the_step_before(client, oracle, penalty):
    """vllm#27878: they had no effect. The model would go round for ever; each round costs its words more."""
    loop = make.words(oracle, 3, seed=1)
    prompt = [*loop, loop[0]]
    answer, lead = penalties.greedy(lambda ids: oracle.logprobs(ids)[-1], prompt, ANSWER, **penalty)
    assert lead > 2 * TOLERANCE  # the errors of two candidates
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, token_ids=True, **penalty).choice
    assert agree.problems(choice.token_ids, answer) == []


@catches("answer_longer_than_asked")
@pytest.mark.parametrize("tokens", [1, 2, 3, 7])
def test_nothing_is_computed_beyond_the_budget(client, oracle, counters, tokens):
    prompt = make.question(oracle, 60, seed=2, depth=0.3)
    with counters() as seen:
        reply = client.complete(prompt, max_tokens=tokens, temperature=0)
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, tokens)) == []
    assert reply.usage["completion_tokens"] == seen["generated_tokens"] == tokens


@catches("stop_missed_inside_a_draft", "stop_string_shown")
@pytest.mark.parametrize("place", [0, 1, 5])
def test_a_stop_string_ends_the_answer_at_once(client, oracle, place):
    prompt = make.question(oracle, 60, seed=3, depth=0.3)
    answer = oracle.greedy(prompt, 12)
    reply = client.complete(
        prompt, max_tokens=12, temperature=0, stop=oracle.tokenizer.decode([answer[place]])
    )
    assert reply.text == oracle.tokenizer.decode(answer[:place])
    assert reply.choice.finish_reason == "stop"


@catches("grammar_skips_drafts", "constraint_ends_early")
def test_a_grammar_is_advanced_by_the_token_of_the_step_before(client, oracle):
    """vllm#26292, vllm#29379: every token came twice, and requests were cut short."""
    asked = [make.question(oracle, 80, seed=10 + n, depth=0.3) for n in range(6)]
    six_words = Constraint("regex", "(w[0-9]{3}){6}")
    for prompt, reply in zip(
        asked,
        client.each(asked, at_once=6, max_tokens=40, temperature=0, constraint=six_words),
        strict=True,
    ):
        assert schema.problems(reply, six_words) == []
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, 6)) == []


@catches("stream_loses_drafted_tokens", "done_missing", "logprobs_of_another_position")
def test_streamed_answers_and_their_logprobs_are_the_same(client, oracle):
    prompt = make.question(oracle, 90, seed=4, depth=0.3)
    ask = {"max_tokens": ANSWER, "temperature": 0, "logprobs": 1}
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    assert logprobs.compare(whole.choice.logprobs, right, answer, TOLERANCE) == []
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@catches("greedy_takes_the_second")
def test_a_client_that_leaves_harms_nobody(client, oracle):
    """vllm#30142: an abort in the wrong step ended the engine."""
    long = {"model": client.model, "prompt": make.question(oracle, 200, seed=5), "stream": True}
    asked = [make.question(oracle, 100, seed=30 + n, depth=0.3) for n in range(4)]
    for prompt in asked:
        with client.http.stream(
            "POST", "/v1/completions", json={**long, "max_tokens": 400, "temperature": 0}
        ) as left:
            next(left.iter_lines())
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0)
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
