"""Keys and values are cached in 8 bits: room for four times the tokens of float32, and only the drift of the format.

The oracle rounds what it caches as the format and this release do, so that values with an 8-bit cache are known, and
not only bounded: an engine that does not use the format, or another one, is told from a right one. The lookup model
answers from the cache, and its margins survive the rounding: its answers stay exact. Not proved: scales other than 1,
which these checkpoints do not carry.
"""

import random

import numpy as np
import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, stream

pytestmark = [
    feature(3, "FP8 KV cache"),
    serve(model="lookup", prefix_cache=True, kv_dtype=each("fp8", "fp8_e5m2")),
]

ANSWER = 6  # tokens asked for
GAIN = 4  # numbers of 8 bits in the room of one float32
# A number next to where rounding parts may fall to the other side in float32, which moves one entry of one key or
# value by a whole step. With a relative noise of 1e-6 before rounding (float32 sums of 256 products have less) the
# gqa model's values move by at most 0.05 nats, and by 0.01 on average over a text; the formats move them by 0.1
# to 0.3 on average.
SIDES = 0.05
MEAN_OF_SIDES = 0.01
TOLERANCE = 1e-3  # of float32 alone, see test_fp8_attention
values = serve(model="gqa", prefix_cache=True, kv_dtype=each("fp8", "fp8_e5m2"))


@pytest.fixture
def dtype(server):
    """The format that was asked for."""
    return dict(server.spec.knobs)["kv_dtype"]


@pytest.fixture
def held(oracle, client, dtype):
    """The oracle that rounds what it caches; by how much it drifts from the one that does not is arithmetic."""
    return oracle.storing(dtype, client.catalog.promise("kv_rounding"))


def long(oracle, n, seed, depth):
    """Return n tokens, as `prompts.question` does, of all that are no special ones: there are 1366."""
    plain = range(oracle.tokenizer.word(999) + 1)
    text = random.Random(seed).sample(plain, n - 1)
    return [*text, text[int(depth * (n - 2))]]


def answered(reply, oracle, prompt):
    """What is wrong with an answer: it must be what followed the prompt's last token when it first stood there."""
    return agree.problems(reply.choice.token_ids, oracle.copy(prompt, ANSWER))


def off(entries, oracle, text):
    """How far each of the last values of a text is from an oracle's, in nats."""
    seen = np.array([entry.logprob for entry in entries])
    return np.abs(seen - oracle.scored(text)[-len(seen) :])


@proves
@catches("kv_dtype_not_told", "kv_room_not_gained")
def test_the_format_is_reported_and_has_room_for_four_times_the_tokens(server, oracle, dtype):
    fields, block = oracle.reference.config, server.fact("block_size")
    numbers = 2 * fields["num_hidden_layers"] * fields["num_key_value_heads"] * fields["head_dim"]
    of_float32 = server.fact("kv_bytes") // (GAIN * numbers * block) * block
    assert server.fact("kv_dtype") == dtype
    assert server.fact("kv_tokens") == GAIN * of_float32


@catches("stale_block", "greedy_takes_the_second")
@pytest.mark.parametrize("length", [10, 128, 700, 1360])
@pytest.mark.parametrize("depth", [0.01, 0.5, 0.98])
def test_lookups_at_any_depth_and_length_stay_exact(client, oracle, length, depth):
    prompt = long(oracle, length, length, depth)
    for _ in range(2):  # computed, then read from the cache
        reply = client.complete(prompt, max_tokens=ANSWER, temperature=0, token_ids=True)
        assert answered(reply, oracle, prompt) == []


@values
@catches("kv_dtype_not_applied", "kv_dtype_of_another", "values_scaled_twice", "keys_not_scaled_back")
def test_values_are_those_of_the_model_with_such_a_cache(client, oracle, held, dtype, record):
    text = make.words(oracle, 200, seed=1)
    entries = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=20).choice.logprobs[
        1:200
    ]
    drift = np.abs(oracle.scored(text) - held.scored(text))
    rows, moved = oracle.logprobs(text[:-1]), []
    for entry, row in zip(entries, rows, strict=True):
        known = {
            token: make.ids(oracle, token)[0] for token in entry.top if len(make.ids(oracle, token)) == 1
        }
        moved.append(
            logprobs.kl(rest(row[list(known.values())]), rest([entry.top[token] for token in known]))
        )
    seen = logprobs.perplexity([entry.logprob for entry in entries])
    record.number(
        "perplexity, of the unrounded model's", seen / oracle.perplexity(text), unit="times", samples=199
    )
    record.number("mean KL from the unrounded model", float(np.mean(moved)), unit="nats", samples=199)
    record.series(
        f"Drift of {dtype}", enumerate(off(entries, oracle, text)), x="position", y="nats", kind="line",
        expected=enumerate(drift),
    )  # fmt: skip
    assert off(entries, held, text).mean() < MEAN_OF_SIDES
    assert off(entries, oracle, text).mean() == pytest.approx(drift.mean(), abs=MEAN_OF_SIDES)
    assert drift.mean() > 5 * MEAN_OF_SIDES  # so that a cache that is not rounded is told from this one


@values
@catches("kv_dtype_of_another", "kv_dtype_not_applied")
def test_the_format_with_fewer_bits_of_mantissa_drifts_more(client, oracle, dtype):
    text, how = make.words(oracle, 200, seed=2), client.catalog.promise("kv_rounding")
    entries = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice.logprobs[1:200]
    drift = {
        kind: np.abs(oracle.scored(text) - oracle.storing(kind, how).scored(text)).mean() for kind in KINDS
    }
    assert drift["fp8_e5m2"] > 1.5 * drift["fp8"]
    nearest = min(KINDS, key=lambda kind: abs(drift[kind] - off(entries, oracle, text).mean()))
    assert nearest == dtype


KINDS = ("auto", "fp8", "fp8_e5m2")


@values
@catches("stale_block", "drift_when_cached")
def test_values_read_from_the_cache_are_those_computed(client, oracle, held):
    client.reset_prefix_cache()
    prompt, ask = make.words(oracle, 300, seed=3), {"max_tokens": ANSWER, "temperature": 0, "logprobs": 1}
    cold, warm = (client.complete(prompt, token_ids=True, **ask).choice for _ in range(2))
    assert cold.token_ids == warm.token_ids
    for one, other in zip(cold.logprobs, warm.logprobs, strict=True):
        assert other.logprob == pytest.approx(one.logprob, abs=TOLERANCE)
    assert off(warm.logprobs, held, [*prompt, *warm.token_ids]).max() < 2 * SIDES


@catches("cache_off", "cached_tokens_off_by_one")
def test_hits_are_those_of_a_cache_that_is_not_rounded(client, oracle, server):
    client.reset_prefix_cache()
    prompt, block = make.question(oracle, 600, seed=4), server.fact("block_size")
    saved = [client.complete(prompt, max_tokens=1, temperature=0).cached_tokens or 0 for _ in range(2)]
    assert saved == [0, 599 // block * block]


@catches("stale_block")
def test_each_turn_of_a_conversation_is_answered_from_all_before(client, oracle, server):
    """vllm#38652: right for one turn, garbage after it."""
    client.reset_prefix_cache()
    text, block = make.words(oracle, 900, seed=5), server.fact("block_size")
    turn, known = [], 0
    for start in (0, 300, 600):
        turn = [*turn, *text[start : start + 300], text[start + 100]]
        answer = text[start + 101 : start + 101 + ANSWER]
        reply = client.complete(turn, max_tokens=ANSWER, temperature=0)
        assert agree.problems(make.ids(oracle, reply.text), answer) == []
        assert (reply.cached_tokens or 0) == known // block * block
        turn = [*turn, *answer]
        known = len(turn) - 1  # the last token of an answer has not been through the model


@catches("requests_mixed_up")
def test_a_crowd_whose_prompts_are_cut_into_steps_is_answered_exactly(client, oracle):
    """Together they are more than any step takes, so that prompts are computed in chunks."""
    asked = [long(oracle, 1200 + 20 * n, 60 + n, n / 10) for n in range(8)]
    replies = client.each(asked, at_once=8, max_tokens=ANSWER, temperature=0, token_ids=True)
    assert [answered(reply, oracle, prompt) for prompt, reply in zip(asked, replies, strict=True)] == [[]] * 8


@catches("stream_drops_a_chunk", "done_missing", "stream_drops_logprobs")
def test_streamed_answers_are_the_same(client, oracle):
    prompt, ask = make.question(oracle, 300, seed=7), {"max_tokens": ANSWER, "temperature": 0, "logprobs": 1}
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@serve(model="lookup", prefix_cache=True, kv_dtype="fp8", ngram=3)
@catches("accept_wrong_draft", "drop_drafted_token")
def test_drafts_that_are_checked_against_the_cache_change_no_answer(client, oracle, draft_counts):
    text = make.words(oracle, 400, seed=8)
    prompt = [*text, *text[100:104]]
    with draft_counts(3) as seen:
        reply = client.complete(prompt, max_tokens=40, temperature=0)
    assert agree.problems(make.ids(oracle, reply.text), text[104:144]) == []
    assert seen().accepted > 0


@serve(model="gqa", prefix_cache=True, kv_dtype="auto")
@catches("logprobs_off_by_1e-3", "values_scaled_twice")
def test_without_the_flag_nothing_is_rounded(server, client, oracle):
    text = make.words(oracle, 200, seed=1)
    entries = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice.logprobs[1:200]
    assert server.fact("kv_dtype") == "auto"
    assert off(entries, oracle, text).max() < TOLERANCE


def rest(some):
    """Complete some log-probabilities, [k], to a distribution by one outcome for all others, [k + 1]."""
    return np.append(some, np.log(max(1 - np.exp(some).sum(), np.finfo(np.float32).tiny)))
