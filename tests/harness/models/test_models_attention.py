"""The references of attention: rounding is the formats' own, MLA and grouped heads agree with `transformers`."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.errors import HarnessError
from fixtures.models.rounded import FORMATS, TRUNCATED, rounded

THERE = """
import json, sys
import torch
from transformers import DeepseekV2ForCausalLM, LlamaForCausalLM

job = json.load(sys.stdin)
torch.set_num_threads(2)
kind = DeepseekV2ForCausalLM if job["mla"] else LlamaForCausalLM
model, told = kind.from_pretrained(job["path"], dtype=torch.float32, output_loading_info=True)
assert not told["missing_keys"] and not told["unexpected_keys"], told
with torch.no_grad():
    scores = [model(torch.tensor([ids])).logits[0].double().log_softmax(-1) for ids in job["texts"]]
answer = [
    [float(row[token]) for row, tokens in zip(score, wanted) for token in tokens]
    for score, wanted in zip(scores, job["wanted"])
]
json.dump(answer, open(sys.argv[1], "w"))
"""

CAST = """
import json, sys
import torch
values = torch.tensor(json.load(sys.stdin), dtype=torch.float32)
kinds = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
json.dump({name: values.to(kind).double().tolist() for name, kind in kinds.items()}, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("name", ["mha", "gqa", "mqa", "latent"])
def test_log_probabilities_are_those_of_transformers(name, oracle, in_engine):
    known = oracle(name)
    rng = np.random.default_rng(12)
    texts = [[int(n) for n in rng.integers(0, known.vocab_size, count)] for count in (60, 300)]
    scores = [known.logprobs(text) for text in texts]
    wanted = [
        [[*row.argsort()[-5:].tolist(), *rng.integers(0, len(row), 5).tolist()] for row in score]
        for score in scores
    ]
    job = {"path": str(known.path), "mla": name == "latent", "texts": texts, "wanted": wanted}
    for score, picks, theirs in zip(scores, wanted, in_engine(THERE, job), strict=True):
        mine = [row[token] for row, tokens in zip(score, picks, strict=True) for token in tokens]
        # Float32 rounding in two loud layers; a wrong head, pair or norm moves tenths of a nat.
        assert np.abs(np.array(mine) - np.array(theirs)).max() < 1e-3


def test_rounding_to_the_nearest_is_torchs_own_below_the_greatest_value(in_engine):
    rng = np.random.default_rng(13)
    steps = [2.0**n * (1 + m / 16) for n in range(-20, 8) for m in range(16)]  # all ties of both formats
    values = [*steps, *(-np.array(steps)), *rng.normal(0, 3, 2000), *rng.normal(0, 1e-3, 2000), 0.0, 448, 460]
    values = np.array(values, np.float32).astype(np.float64)
    there = in_engine(CAST, values.tolist())
    for dtype, cast in there.items():
        assert rounded(values, dtype).tolist() == cast


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_held_stays_and_what_is_too_large_becomes_the_greatest_value(dtype):
    values = np.random.default_rng(14).normal(0, 5, 1000)
    near, cut = rounded(values, dtype), rounded(values, dtype, TRUNCATED)
    assert np.array_equal(rounded(near, dtype, TRUNCATED), near)
    assert (np.abs(cut) <= np.abs(values)).all()
    assert np.abs(near - values).max() <= np.abs(cut - values).max()
    relative = np.abs(near / values - 1)[np.abs(values) > 0.1].max()
    assert 0 < relative <= 2.0 ** -(FORMATS[dtype].mantissa + 1)
    greatest = FORMATS[dtype].greatest
    assert rounded(np.array([1e6, -1e6, 0.0]), dtype).tolist() == [greatest, -greatest, 0]


def test_an_unknown_format_is_told_and_auto_changes_nothing(oracle):
    with pytest.raises(HarnessError, match="no cache format 'int3'"):
        rounded(np.ones(1), "int3")
    known = oracle("gqa")
    text = list(known.tokenizer.words[:50])
    assert np.array_equal(known.storing("auto").logprobs(text), known.logprobs(text))
    assert known.storing("fp8") is known.storing("fp8")


@pytest.mark.parametrize("name", ["gqa", "latent"])
def test_one_token_at_a_time_is_the_whole_text(name, oracle):
    known = oracle(name).storing("fp8")
    text = list(known.tokenizer.words[100:130])
    answer, _ = known.reference.path(text, 5)
    rows = known.answer_logprobs(text, answer)
    assert rows.argmax(axis=1).tolist() == answer
