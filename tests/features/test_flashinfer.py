"""FlashInfer's attention reads the cache page by page, and no answer depends on where pages begin."""

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs

pytestmark = [
    feature(10, "FlashInfer kernels"),
    serve(model="lookup", prefix_cache=True, flashinfer=each(16, 64, 256)),
]

ANSWER = 8
# Two layers of float32 with unit-size activations, as in test_prefix_caching.
TOLERANCE = 1e-3


@proves
@catches("kernels_not_chosen")
def test_the_backend_is_flashinfer(server):
    assert str(server.fact("attention_backend")).lower() == "flashinfer"


@catches("greedy_takes_the_second", "logprobs_off_by_0.2")
@pytest.mark.parametrize("pages", [1, 3])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_answers_at_the_edge_of_a_page_are_exact(server, client, oracle, pages, more):
    """flashinfer#4347: pages of more than 128 tokens gave wrong attention."""
    length = pages * dict(server.spec.knobs)["flashinfer"] + more
    for depth in (0.02, 0.98):
        prompt = make.question(oracle, length, seed=length, depth=depth)
        answer = oracle.greedy(prompt, ANSWER)
        choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
        right = oracle.answer_logprobs(prompt, answer)
        assert agree.problems(make.ids(oracle, choice.text), answer) == []
        assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []


@catches("cached_tokens_off_by_one", "greedy_takes_the_second")
def test_a_page_that_was_computed_before_is_read_whole(server, client, oracle):
    client.reset_prefix_cache()
    page = server.fact("block_size")
    prompt = make.question(oracle, 3 * page + page // 2, seed=5, depth=0.1)
    answer = oracle.greedy(prompt, ANSWER)
    for cached in (0, (len(prompt) - 1) // page * page):
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0)
        assert agree.problems(make.ids(oracle, reply.text), answer) == []
        assert (reply.cached_tokens or 0) == cached


@catches("requests_mixed_up")
def test_texts_of_different_lengths_at_once_are_kept_apart(client, oracle):
    asked = [make.question(oracle, 17 + 41 * n, seed=200 + n, depth=0.3) for n in range(8)]
    replies = client.each(asked, at_once=8, max_tokens=ANSWER, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []


@serve(model="window", flashinfer=64, ngram=7)
@catches("accept_wrong_draft", "greedy_takes_the_second")
def test_eight_queries_at_once_see_no_further_than_the_window(client, oracle):
    """flashinfer#3864: with eight rows a request and a window, single rows were wrong beyond the window."""
    for n in (150, 400):
        prompt = make.question(oracle, n, seed=300 + n, depth=0.9)
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0)
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
