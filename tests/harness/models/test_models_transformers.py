"""The float64 reference agrees with `transformers`, which runs in an engine's environment."""

from __future__ import annotations

import numpy as np
import pytest

THERE = """
import json, sys
import torch
from transformers import LlamaForCausalLM, Qwen2ForCausalLM

def make_exact(model):
    # The library computes rotary angles and norms in float32 whatever the model's type is, which alone costs 1e-6.
    def angles(x, position_ids):
        size = model.config.hidden_size // model.config.num_attention_heads
        base = model.config.rope_parameters["rope_theta"]
        turn = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        turned = position_ids[..., None].double() * torch.cat([turn, turn])
        return turned.cos(), turned.sin()

    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    model.model.rotary_emb.forward = angles
    for part in model.modules():
        if hasattr(part, "variance_epsilon"):
            part.forward = norm.__get__(part)


job = json.load(sys.stdin)
torch.set_num_threads(2)
answer = {}
for dtype in (torch.float64, torch.float32):
    kind = Qwen2ForCausalLM if job["qwen"] else LlamaForCausalLM
    model, told = kind.from_pretrained(job["path"], dtype=dtype, output_loading_info=True)
    assert not told["missing_keys"], told
    if dtype == torch.float64:
        make_exact(model)
    with torch.no_grad():
        scores = [model(torch.tensor([ids])).logits[0].double().log_softmax(-1) for ids in job["texts"]]
    answer[str(dtype)] = [
        [float(row[token]) for row, tokens in zip(score, wanted) for token in tokens]
        for score, wanted in zip(scores, job["wanted"])
    ]
json.dump(answer, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("name", ["chain", "mimo", "lookup", "fuzz"])
def test_log_probabilities_are_those_of_transformers(name, oracle, in_engine):
    known = oracle(name)
    rng = np.random.default_rng(11)
    words = [int(word) for word in rng.permutation(known.tokenizer.words)]
    texts = [[int(n) for n in rng.integers(0, known.vocab_size, 60)], [*words[:400], *words[50:90]]]
    # At each place: the ten likeliest tokens and ten at random, which keeps what is sent small.
    scores = [known.logprobs(text) for text in texts]
    wanted = [
        [[*row.argsort()[-10:].tolist(), *rng.integers(0, len(row), 10).tolist()] for row in score]
        for score in scores
    ]
    job = {"path": str(known.path), "qwen": name == "mimo", "texts": texts, "wanted": wanted}
    there = in_engine(THERE, job)
    for dtype, tolerance in (("torch.float64", 1e-6), ("torch.float32", 1e-3)):
        for score, picks, theirs in zip(scores, wanted, there[dtype], strict=True):
            mine = [row[token] for row, tokens in zip(score, picks, strict=True) for token in tokens]
            assert np.abs(np.array(mine) - np.array(theirs)).max() < tolerance
