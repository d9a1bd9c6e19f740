"""Weights that the engine rounds to 8 bits at load answer as the rounded weights do, and not as the stored ones.

What the format does to each weight is arithmetic, so that the rounded model's log-probabilities are known in float64.
What the engine adds to it by computing in bfloat16, and by rounding activations to 8 bits where its kernel takes two
8-bit operands, is smaller than what the format does to the weights: the answers are nearest to the right model.
Not decided: whether memory is saved, and formats that only experts are given (experts_int8, nvfp4_per_token).
"""

import numpy as np
import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, nearest, stream
from fixtures.models.quantised import SCHEMES, scored

pytestmark = [
    feature(1, "Dynamic quantization"),
    serve(
        model="loud",
        dtype="bfloat16",
        prefix_cache=True,
        quantization=each("fp8_per_channel", "fp8_per_block"),
    ),
]

TEXT = 300  # tokens of a scored text
WALKS = [
    (40, 48),
    (140, 48),
    (77, 48),
    (16, 48),
]  # tokens of a prompt and of its answer; 140 is more than a block


@pytest.fixture
def scheme(server):
    """What is done to the weights; the server without the feature has no such knob."""
    return dict(server.spec.knobs).get("quantization", "none")


@pytest.fixture(autouse=True)
def long_prompt_first(client, oracle):
    """On CPUs with AMX, vLLM's bfloat16 attention dies when the first prompt of a process is tiny."""
    client.complete(make.words(oracle, 64, seed=9), max_tokens=1, temperature=0)


def models(oracle, text):
    """Log-probabilities of a text's tokens but the first, by what was done to weights and activations."""
    known = {scheme: scored(oracle.path, tuple(text), scheme) for scheme in SCHEMES}
    both = {f"{s}, activations too": scored(oracle.path, tuple(text), s, s) for s in SCHEMES if s != "none"}
    return known | both


def judge(seen, known, scheme):
    """The values are those of the scheme's weights.

    The limit is how far any model of other weights is: rounding to 8 bits of mantissa, as bfloat16 does a few times,
    moves values less than rounding to 4 bits does, and so do activations that fall to the other side of a rounding.
    """
    mine = {name: values for name, values in known.items() if name.partition(",")[0] == scheme}
    own = next(iter(nearest.distances(seen, mine)))
    others = {name: values for name, values in known.items() if name not in mine}
    limit = min(nearest.distances(known[own], others).values())
    assert nearest.problems(seen, known, list(mine), limit) == []


def told(choice):
    """Log-probabilities of a choice's tokens, but the first of a text."""
    return np.array([entry.logprob for entry in choice.logprobs if entry.logprob is not None])


@proves
@catches("quantization_off")
def test_the_method_is_in_the_resolved_configuration(server, scheme):
    assert server.fact("quantization") == scheme


@proves
@catches("quantization_without_effect")
def test_every_projection_of_the_layers_is_quantised(server, oracle):
    """Query, key and value are one projection in the engine, and so are gate and up."""
    assert server.fact("quantized_layers") == 4 * oracle.reference.layers


@catches("quantization_without_effect", "scale_doubled", "block_scales_swapped", "weights_rounded_to_zero")
def test_a_texts_logprobs_are_those_of_the_rounded_weights(client, oracle, scheme, record):
    text = make.words(oracle, TEXT, seed=1)
    choice = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    seen, known = told(choice)[: TEXT - 1], models(oracle, text)
    for name, distance in nearest.distances(seen, known).items():
        record.number(
            f"distance to {name}", distance, unit="nats", origin="a text of 300 words against float64"
        )
    judge(seen, known, scheme)


@catches("quantization_without_effect", "accept_wrong_draft", "scale_doubled")
def test_greedy_answers_are_exact_and_carry_the_rounded_weights_logprobs(client, oracle, scheme):
    seen, known = [], []
    for length, tokens in WALKS:
        prompt = make.walk(oracle, "main", length)
        choice = client.complete(prompt, max_tokens=tokens, temperature=0, logprobs=1).choice
        answer = oracle.greedy(prompt, tokens)
        assert agree.problems(make.ids(oracle, choice.text), answer) == []
        seen.append(told(choice))
        known.append(
            {name: values[length - 1 :] for name, values in models(oracle, [*prompt, *answer]).items()}
        )
    judge(
        np.concatenate(seen),
        {name: np.concatenate([one[name] for one in known]) for name in known[0]},
        scheme,
    )


@catches("cache_off", "stale_block")
def test_a_cached_beginning_changes_no_answer(client, oracle, server, scheme):
    client.reset_prefix_cache()
    prompt = make.words(oracle, 300, seed=2)
    fresh, again = (client.complete(prompt, max_tokens=40, temperature=0, logprobs=1) for _ in range(2))
    assert again.cached_tokens == 299 // server.fact("block_size") * server.fact("block_size")
    answer = oracle.greedy(prompt, 40)
    known = {name: values[299:] for name, values in models(oracle, [*prompt, *answer]).items()}
    for reply in (fresh, again):
        assert agree.problems(make.ids(oracle, reply.text), answer) == []
        judge(told(reply.choice), known, scheme)


@catches("requests_mixed_up")
def test_a_crowd_of_requests_is_as_exact_as_each_alone(client, oracle):
    asked = [make.walk(oracle, "main", 20 + 30 * n)[: -n or None] for n in range(6)]
    for prompt, reply in zip(asked, client.each(asked, at_once=6, max_tokens=30, temperature=0), strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, 30)) == []


@catches("stream_drops_logprobs", "done_missing", "two_finish_reasons", "stream_without_usage")
def test_streamed_answers_are_the_same(client, oracle):
    prompt, ask = make.walk(oracle, "main", 40), {"max_tokens": 30, "temperature": 0, "logprobs": 1}
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@serve(model="loud", dtype="bfloat16", prefix_cache=True)
@catches("quantized_unasked", "scale_doubled")
def test_without_it_the_weights_are_the_stored_ones(client, oracle):
    text = make.words(oracle, TEXT, seed=1)
    choice = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    judge(told(choice)[: TEXT - 1], models(oracle, text), "none")
