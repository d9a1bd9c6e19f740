"""Compiled code gives the very answers of the model, also at lengths and batches that it was not made for.

The known answers are the model's own, the same to which other modules hold the engine without compilation; so compiled
and not compiled agree. The lookup model answers from its keys and values: a wrong shape, position or page moves nats.
The server is that of a cold start, see test_cold_start.
Not proved: CUDA graphs, which a CPU does not have; and that nothing is compiled while serving is read from the files
of the cache, so that code which is not kept would not be seen.
"""

import pytest

from fixtures import catches, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, schema, stream
from fixtures.judge.schema import Constraint

pytestmark = [feature(20, "torch.compile"), serve(model="lookup", compile=True, caches="cold")]

ANSWER = 6  # tokens asked for
# Two layers of float32 with unit-size activations: rounding stays under 1e-4 in whatever order a kernel adds up.
TOLERANCE = 5e-4
# One; around the sizes that graphs are captured at or specialised for (powers of two, pages); and odd ones between.
LENGTHS = [1, 2, 3, 7, 8, 9, 16, 31, 33, 64, 65, 127, 128, 129, 255, 257, 512, 513, 777]


def text(oracle, length, seed=0):
    return (
        make.question(oracle, length, seed=length + seed) if length > 1 else make.words(oracle, 1, seed=seed)
    )


def judged(oracle, prompt, choice):
    """Return what is wrong with a greedy answer and its log-probabilities."""
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    found = agree.problems(make.ids(oracle, choice.text), answer)
    return found or logprobs.compare(choice.logprobs, right, answer, TOLERANCE)


@proves
@catches("compile_ignored")
def test_the_engine_resolved_to_compile(server):
    assert server.fact("compile") is True
    assert server.fact("compile_mode") != 0
    assert server.fact("compile_backend") == "inductor"


@proves
@catches("compile_ignored")
def test_code_was_compiled_before_the_first_request(server):
    assert server.compiled().new > set()


@catches("specialised_to_odd_lengths", "compiled_code_drifts")
@pytest.mark.parametrize("length", LENGTHS)
def test_answers_are_exact_at_any_length(client, oracle, length):
    prompt = text(oracle, length)
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    assert judged(oracle, prompt, choice) == []


@catches("requests_mixed_up", "answers_depend_on_others")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_answers_are_exact_in_a_batch_of_any_size(client, oracle, size):
    asked = [
        text(oracle, 20 + 23 * n, seed=size) for n in range(size + 1)
    ]  # one more than run at once: they change
    replies = client.each(asked, at_once=size, max_tokens=ANSWER, temperature=0, logprobs=1)
    for prompt, reply in zip(asked, replies, strict=True):
        assert judged(oracle, prompt, reply.choice) == []


@catches("answers_depend_on_others", "compiled_code_drifts")
def test_answers_are_exact_where_prompts_are_computed_in_parts(client, oracle):
    """Together they are longer than any step of an engine with room for 2048 tokens."""
    asked = [text(oracle, 850 + n, seed=5) for n in range(6)]
    replies = client.each(asked, at_once=6, max_tokens=ANSWER, temperature=0, logprobs=1)
    for prompt, reply in zip(asked, replies, strict=True):
        assert judged(oracle, prompt, reply.choice) == []


@catches("stale_block", "drift_when_cached")
@pytest.mark.parametrize("length", [300, 385])
def test_answers_are_exact_with_and_without_a_cached_beginning(client, oracle, length):
    prompt = text(oracle, length, seed=9)
    replies = [client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1) for _ in range(2)]
    assert [judged(oracle, prompt, reply.choice) for reply in replies] == [[], []]
    assert replies[1].cached_tokens > 0


@catches("stream_drops_a_chunk", "stream_drops_logprobs", "done_missing")
@pytest.mark.parametrize("length", [5, 200])
def test_streamed_answers_are_the_same(client, oracle, length):
    ask = {"max_tokens": 20, "temperature": 0, "logprobs": 1}
    prompt = text(oracle, length, seed=3)
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@catches("constraint_dropped")
def test_a_grammar_is_kept(client, oracle):
    kept = Constraint("regex", "(alpha|beta|gamma): [0-9]{8}")
    for length in (3, 200):
        reply = client.complete(text(oracle, length), max_tokens=40, temperature=0, constraint=kept)
        assert schema.problems(reply, kept) == []


@catches("compile_ignored")
def test_new_lengths_compile_nothing(server, client, oracle):
    """The first request may compile what no model has a part in, such as sampling."""
    client.complete(text(oracle, 40, seed=1), max_tokens=ANSWER, temperature=0)
    before = server.compiled().new
    assert before > set()
    for length in (1, 2, 11, 22, 44, 88, 176, 352, 704):
        client.complete(text(oracle, length, seed=2), max_tokens=ANSWER, temperature=0)
    assert server.compiled().new - before == set()
