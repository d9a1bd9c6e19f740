"""Queries read the keys and values of their own group, whole or made from latents, and every value is the model's.

Each KV head holds information of its own, and MLA's latents are expanded by another matrix for each head, so that a
head, a group or a rank that is mixed up moves all log-probabilities by tenths of a nat. What an 8-bit cache does to
values is test_fp8_kv_cache's; here it is what attention does to them. Not proved: which kernel ran, except by what it
caches; queries in 8 bits, which only GPU kernels have.
"""

from itertools import pairwise

import numpy as np
import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.engines.rules import NotApplicable
from fixtures.judge import logprobs, stream

pytestmark = [
    feature(5, "FP8 attention"),
    serve(model=each("gqa", "mqa"), prefix_cache=True, kv_dtype="auto"),
]

FLOAT = 4  # bytes
ANSWER = 12  # tokens asked for
# Two loud layers in float32: `transformers` in float32 is within 1e-4 of float64 on these models
# (tests/harness/models/test_models_attention.py), engines sum in other orders.
TOLERANCE = 1e-3
#: A kernel in bfloat16 rounds some twenty times to 2^-9 of a stream of size 1, under logits of 2 nats: on average
#: 2 * sqrt(20) * 2^-9 / sqrt(3) = 0.01; a wrong head moves tenths of a nat.
MEAN_OF_BFLOAT16 = 0.05


def room(server, position):
    """Tokens that the cache has room for when one takes `position` bytes."""
    block = server.fact("block_size")
    return server.fact("kv_bytes") // (position * block) * block


def echoed(client, text):
    """Log-probabilities of a text's tokens but the first, as the server computes them."""
    return client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice.logprobs[
        1 : len(text)
    ]


def generated(client, oracle, prompt):
    """Ask for an answer; return it with the reference's values after the same tokens."""
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1, token_ids=True).choice
    return choice, oracle.answer_logprobs(prompt, choice.token_ids)


@proves
@catches("kv_room_not_gained")
def test_the_cache_holds_a_key_and_a_value_for_each_kv_head(server, oracle):
    fields = oracle.reference.config
    heads = fields["num_hidden_layers"] * fields["num_key_value_heads"]
    assert server.fact("kv_tokens") == room(server, 2 * heads * fields["head_dim"] * FLOAT)


@pytest.fixture
def command(server):
    """The flags and values of the server's command line."""
    if server.host.launched is None:
        raise NotApplicable(f"{server.url} was not started here: its command line is unknown")
    told = dict(pairwise(server.host.launched.argv))
    if "--attention-backend" not in told:
        raise NotApplicable("the engine was left to choose its attention")
    return told


@proves
@pytest.mark.sglang
@catches("other_settings", "kernels_not_chosen")
def test_the_backend_is_the_one_that_was_asked_for(server, command):
    """SGLang does not tell the bytes of its cache, as the proof above needs, but which kernels compute attention."""
    assert server.fact("attention_backend") == command["--attention-backend"]


@catches("kv_heads_swapped", "kv_head_lost", "values_scaled_twice", "keys_not_scaled_back")
@pytest.mark.parametrize("length", [2, 33, 300])
def test_each_group_reads_its_own_head(client, oracle, length):
    text = make.words(oracle, length, seed=length)
    assert logprobs.compare(echoed(client, text), oracle.logprobs(text[:-1]), text[1:], TOLERANCE) == []


@catches("kv_heads_swapped", "logprobs_of_another_position")
@pytest.mark.parametrize("length", [5, 127, 128, 129, 400])
def test_values_of_generated_tokens_are_the_models(client, oracle, length):
    choice, right = generated(client, oracle, make.words(oracle, length, seed=length + 1))
    assert logprobs.compare(choice.logprobs, right, choice.token_ids, TOLERANCE) == []
    lead = right.max(axis=1) - right[np.arange(len(right)), choice.token_ids]
    assert lead.max() < 2 * TOLERANCE  # the likeliest, or one that rounding cannot tell from it


@catches("requests_mixed_up")
def test_a_crowd_of_different_lengths_is_as_exact(client, oracle):
    asked = [make.words(oracle, n, seed=n) for n in (3, 50, 128, 200, 311, 450)]
    replies = client.each(asked, at_once=6, max_tokens=ANSWER, temperature=0, logprobs=1, token_ids=True)
    for prompt, reply in zip(asked, replies, strict=True):
        ids = reply.choice.token_ids
        right = oracle.answer_logprobs(prompt, ids)
        assert logprobs.compare(reply.choice.logprobs, right, ids, TOLERANCE) == []


@proves
@serve(model="latent", attention="mla")
@catches("kv_room_not_gained")
def test_latent_attention_caches_latents_and_nothing_else(server, oracle):
    fields = oracle.reference.config
    row = fields["kv_lora_rank"] + fields["qk_rope_head_dim"]
    assert server.fact("kv_tokens") == room(server, fields["num_hidden_layers"] * row * FLOAT)


@serve(model="latent", attention=each("mla", "mha"))
@catches("latent_row_wrong", "turned_part_lost", "positions_not_stretched", "latent_norm_left_out")
@pytest.mark.parametrize("length", [2, 33, 300])
def test_latent_attention_has_the_models_values(client, oracle, length):
    text = make.words(oracle, length, seed=length)
    assert logprobs.compare(echoed(client, text), oracle.logprobs(text[:-1]), text[1:], TOLERANCE) == []


@serve(model="latent", attention=each("mla", "mha"))
@catches("latent_row_wrong", "turned_part_lost", "logprobs_of_another_position")
@pytest.mark.parametrize("length", [5, 16, 17, 400])
def test_absorbed_steps_have_the_values_of_expanded_ones(client, oracle, length):
    """A kernel decodes in the latent space, without ever expanding keys; the reference expands them all."""
    choice, right = generated(client, oracle, make.words(oracle, length, seed=length + 2))
    assert logprobs.compare(choice.logprobs, right, choice.token_ids, TOLERANCE) == []


@serve(model="latent", attention=each("mla", "mha"))
@catches("stream_drops_a_chunk", "done_missing", "stream_drops_logprobs")
def test_streamed_answers_of_latent_attention_are_the_same(client, oracle):
    prompt, ask = make.words(oracle, 60, seed=3), {"max_tokens": ANSWER, "temperature": 0, "logprobs": 1}
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@serve(model="latent", attention=each("flashmla", "fa3", "flashinfer", "cutlass", "trtllm"))
@catches("latent_row_wrong", "turned_part_lost")
def test_each_librarys_kernels_have_the_models_values(client, oracle, record):
    prompt = make.words(oracle, 300, seed=4)
    text = [*prompt, *generated(client, oracle, prompt)[0].token_ids]
    seen = np.array([entry.logprob for entry in echoed(client, text)])
    off = np.abs(seen - oracle.scored(text))
    record.series("Off the float64 value", enumerate(off), x="position", y="nats", kind="line")
    assert off.mean() < MEAN_OF_BFLOAT16
