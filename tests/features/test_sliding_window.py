"""A token sees exactly the window that the model's config names, also where chunks, blocks and cached prompts end.

The answer of the windowed lookup model stands at a known distance: one token further back than the window reaches it
is not found. Proved apart from answers on vLLM only, by the resolved setting and by the capacity, which counts one
window for each text; SGLang tells neither, and keeps the keys of the whole text for this model.
"""

import numpy as np
import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, prefix, stream
from fixtures.models.windowreference import Windowed

WINDOWED = {"model": "window", "prefix_cache": True, "kv_tokens": 2176}
MIXED = {"model": "window_mixed", "prefix_cache": True, "chunk": 128}
pytestmark = [feature(11, "Sliding window"), serve(**WINDOWED, chunk=each(128, 1024))]

ANSWER = 6
# As for the lookup model: two layers of float32; scores of up to 160 nats instead of 130 are rounded by 1e-5 each.
TOLERANCE = 1e-3
CLEAR = 0.1  # nats between the first and the second candidate, a hundred times what rounding can do


@pytest.fixture
def window(oracle):
    return oracle.reference.config["sliding_window"]


def looking_back(oracle, distance, length=460, seed=1):
    """Return a prompt and its text; what followed the last word stands `distance` tokens before the prompt's end."""
    text = make.words(oracle, length - 1, seed)
    return [*text, text[length - 2 - distance]], text


def found(text, distance, tokens=ANSWER):
    """What a model answers that sees so far back."""
    start = len(text) - distance
    return text[start : start + tokens]


def problems(oracle, prompt, choice, answer):
    right = oracle.answer_logprobs(prompt, answer)
    return [
        *agree.problems(make.ids(oracle, choice.text), answer),
        *logprobs.compare(choice.logprobs, right, answer, TOLERANCE),
    ]


@proves
@serve(**WINDOWED, chunk=128)
@catches("window_ignored", "window_one_token_short", "window_one_token_long")
def test_the_window_is_reported_and_a_text_takes_the_room_of_one(server, window):
    assert server.fact("window") == window
    assert server.fact("windowed_kv_tokens") > dict(server.spec.knobs)["kv_tokens"]


@catches("window_one_token_short", "logprobs_off_by_1e-3")
@pytest.mark.parametrize("distance", [7, 127, 129, 198, 199])
def test_what_stands_within_the_window_is_found(client, oracle, window, distance):
    prompt, text = looking_back(oracle, distance)
    assert distance < window
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    assert problems(oracle, prompt, choice, found(text, distance)) == []


@catches("window_one_token_long", "window_ignored")
@pytest.mark.parametrize("distance", [200, 201, 330])
def test_what_stands_before_the_window_is_not_found(client, oracle, window, distance):
    prompt, text = looking_back(oracle, distance)
    answer = oracle.greedy(prompt, 1)
    assert distance >= window
    assert answer != found(text, distance, 1)
    assert oracle.margin(prompt, 1) > CLEAR
    choice = client.complete(prompt, max_tokens=1, temperature=0, logprobs=1).choice
    assert problems(oracle, prompt, choice, answer) == []


@catches("window_ignored", "prompt_logprobs_shifted", "echo_ignored")
def test_a_text_is_scored_as_by_full_attention_until_the_window_is_full(client, oracle, window):
    words = make.words(oracle, 420, seed=2)
    text = [*words, *words[50:90]]  # full attention knows each of the last 39, which stood 370 tokens before
    full = Windowed(oracle.path)
    full.config["sliding_window"] = len(text)
    unlimited = full.logprobs(text[:-1])
    choice = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    seen = choice.logprobs[1 : len(text)]
    assert logprobs.compare(seen, oracle.logprobs(text[:-1]), text[1:], TOLERANCE) == []
    assert logprobs.compare(seen[:window], unlimited[:window], text[1 : window + 1], TOLERANCE) == []
    known = np.arange(len(words), len(text) - 1)
    apart = [unlimited[place, text[place + 1]] - seen[place].logprob for place in known]
    assert min(apart) > 1  # nats


@catches("window_one_token_short", "window_ignored")
def test_the_window_slides_on_while_an_answer_grows(client, oracle, window):
    """Each token of the answer stands as far back as the first; they cross the ends of chunks and blocks."""
    for distance in (window - 1, window):
        prompt, text = looking_back(oracle, distance, seed=3)
        forced = found(text, distance, 60)
        scored = client.complete(
            [*prompt, *forced], max_tokens=1, temperature=0, echo=True, logprobs=1
        ).choice
        seen = scored.logprobs[len(prompt) : len(prompt) + len(forced)]
        right = oracle.answer_logprobs(prompt, forced)
        assert logprobs.compare(seen, right, forced, TOLERANCE) == []
    prompt, text = looking_back(oracle, window - 1, seed=3)
    choice = client.complete(prompt, max_tokens=60, temperature=0, logprobs=1).choice
    assert problems(oracle, prompt, choice, found(text, window - 1, 60)) == []


@catches("stale_block", "drift_when_cached", "cache_off", "window_one_token_short")
def test_a_cached_prompt_is_continued_with_the_window_over_it(client, oracle, server, window):
    client.reset_prefix_cache()
    block, history = server.fact("block_size"), []
    shared = make.words(oracle, 420, seed=4)
    for distance in (window - 1, window - 2, 150):
        prompt = [*shared, *make.words(oracle, 40, seed=distance, avoid=shared)]
        answer = prompt[len(prompt) - distance :][:ANSWER]
        prompt.append(prompt[-distance - 1])
        for _ in range(2):
            reply = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1)
            assert problems(oracle, prompt, reply.choice, answer) == []
            assert (reply.cached_tokens or 0) == prefix.cached(prompt, history, block)
            history.append(prefix.stored(prompt, answer))


@catches("eviction_corrupts")
def test_a_full_cache_gives_up_blocks_and_no_answer_changes(client, oracle, server, window):
    client.reset_prefix_cache()
    asked = [looking_back(oracle, window - 1, length=600, seed=10 + n) for n in range(5)]
    assert sum(len(prompt) for prompt, _ in asked) > dict(server.spec.knobs)["kv_tokens"]
    for prompt, text in [*asked, asked[0], asked[-1]]:
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0)
        assert agree.problems(make.ids(oracle, reply.text), found(text, window - 1)) == []


@catches("window_slots_leak")
def test_what_the_window_has_left_behind_is_free_again(client, oracle, counters):
    """The room in use after a request is the same before and after many others."""
    client.reset_prefix_cache()
    ask = {"max_tokens": ANSWER, "temperature": 0}
    last, _ = looking_back(oracle, 50, seed=20)
    with counters():
        client.complete(last, **ask)
    with counters() as seen:
        client.each([looking_back(oracle, 50, seed=21 + n)[0] for n in range(8)], at_once=4, **ask)
        client.reset_prefix_cache()
        client.complete(last, **ask)
    assert seen["kv_usage"] == 0


@catches("requests_mixed_up", "window_one_token_short")
def test_a_crowd_of_windows_gets_the_answers_of_each_alone(client, oracle, window):
    distances = [window - 1, 7, 150, window - 1, 60, 128]
    asked = [looking_back(oracle, d, length=400 + 30 * n, seed=30 + n) for n, d in enumerate(distances)]
    replies = client.each([prompt for prompt, _ in asked], at_once=6, max_tokens=ANSWER, temperature=0)
    for (_, text), distance, reply in zip(asked, distances, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), found(text, distance)) == []


@catches("done_missing", "two_finish_reasons", "stream_without_usage", "stream_changes_its_id")
def test_streamed_answers_are_the_same(client, oracle, window):
    prompt, _ = looking_back(oracle, window - 1, seed=5)
    ask = {"max_tokens": 20, "temperature": 0, "logprobs": 1}
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@serve(**MIXED)
@catches("window_on_every_layer", "logprobs_off_by_1e-3")
@pytest.mark.parametrize("distance", [7, 199, 200, 430])
def test_a_layer_without_a_window_sees_everything_beside_one_that_has_it(client, oracle, distance):
    prompt, text = looking_back(oracle, distance, seed=6)
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    assert problems(oracle, prompt, choice, found(text, distance)) == []


@serve(**MIXED)
@catches("stale_block", "drift_when_cached", "window_on_every_layer")
def test_cached_prompts_serve_both_kinds_of_layers(client, oracle):
    client.reset_prefix_cache()
    prompt, text = looking_back(oracle, 430, seed=7)
    for _ in range(2):
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1)
        assert problems(oracle, prompt, reply.choice, found(text, 430)) == []
    assert (reply.cached_tokens or 0) > 0
