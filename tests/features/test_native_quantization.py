"""A checkpoint that is stored quantised answers as the numbers do that its codes and scales stand for.

The same weights are stored in each format's own tensors: E4M3 in blocks of 128 by 128 (DeepSeek's own), E4M3 or 8-bit
integers with a scale for each output (compressed-tensors), 4-bit integers with scales and zero points (AWQ).
Not decided here: FP4 experts and FP4 caches, which need a GPU.
"""

import numpy as np
import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, nearest, stream
from fixtures.models import build
from fixtures.models.quantised import scored

pytestmark = [
    feature(13, "Native quantization"),
    serve(
        model="loud_{native_quantization}",
        dtype="bfloat16",
        native_quantization=each("fp8_blocks", "fp8_channels", "int8_channels", "awq"),
    ),
]

TEXT = 300  # tokens of a scored text
STORED, BOTH, ORIGINAL = (
    "the stored weights",
    "the stored weights, activations rounded too",
    "the original weights",
)


@pytest.fixture
def stored(server):
    """The format of the checkpoint."""
    return dict(server.spec.knobs)["native_quantization"]


@pytest.fixture(autouse=True)
def long_prompt_first(client, oracle):
    """On CPUs with AMX, vLLM's bfloat16 attention dies when the first prompt of a process is tiny."""
    client.complete(make.words(oracle, 64, seed=9), max_tokens=1, temperature=0)


def models(oracle, text, stored):
    """Log-probabilities of a text's tokens but the first, by the weights that they come from."""
    text = tuple(text)
    return {
        STORED: scored(oracle.path, text),
        BOTH: scored(oracle.path, text, "none", stored),
        ORIGINAL: scored(build("loud", oracle.path.parent), text),
    }


def judge(seen, known):
    """The values are those of the stored weights, with activations left alone or rounded as the format allows.

    The limit is how far the model of the original weights is: rounding to bfloat16 moves the values less.
    """
    mine = {name: known[name] for name in (STORED, BOTH)}
    own = next(iter(nearest.distances(seen, mine)))
    limit = nearest.distances(known[own], {ORIGINAL: known[ORIGINAL]})[ORIGINAL]
    assert nearest.problems(seen, known, list(mine), limit) == []


def told(choice):
    """Log-probabilities of a choice's tokens, but the first of a text."""
    return np.array([entry.logprob for entry in choice.logprobs if entry.logprob is not None])


@proves
@catches("quantization_off")
def test_the_method_is_that_of_the_checkpoint(server, oracle):
    asked = oracle.reference.config["quantization_config"]["quant_method"]
    assert server.fact("stored_format") == asked


@catches("scale_doubled", "block_scales_swapped", "scale_inverted", "blocks_transposed", "zero_point_off")
def test_a_texts_logprobs_are_those_of_the_stored_weights(client, oracle, stored, record):
    text = make.words(oracle, TEXT, seed=1)
    choice = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    seen, known = told(choice)[: TEXT - 1], models(oracle, text, stored)
    for name, distance in nearest.distances(seen, known).items():
        record.number(
            f"distance to {name}", distance, unit="nats", origin="a text of 300 words against float64"
        )
    judge(seen, known)


@catches("scale_doubled", "scale_inverted", "accept_wrong_draft")
def test_greedy_answers_are_exact_and_carry_the_stored_weights_logprobs(client, oracle, stored):
    seen, known = [], []
    for length in (16, 40, 77, 140):
        prompt = make.walk(oracle, "main", length)
        choice = client.complete(prompt, max_tokens=48, temperature=0, logprobs=1).choice
        answer = oracle.greedy(prompt, 48)
        assert agree.problems(make.ids(oracle, choice.text), answer) == []
        seen.append(told(choice))
        known.append(
            {name: v[length - 1 :] for name, v in models(oracle, [*prompt, *answer], stored).items()}
        )
    judge(np.concatenate(seen), {name: np.concatenate([one[name] for one in known]) for name in known[0]})


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
