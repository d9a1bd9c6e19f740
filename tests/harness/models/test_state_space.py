"""The float64 recurrence of Mamba-2 agrees with `transformers`, and its state is what the answers depend on."""

from __future__ import annotations

import numpy as np

from fixtures import prompts as make

THERE = """
import json, sys
import torch
from transformers import Mamba2ForCausalLM

job = json.load(sys.stdin)
torch.set_num_threads(2)
model, told = Mamba2ForCausalLM.from_pretrained(job["path"], dtype=torch.float32, output_loading_info=True)
assert not told["missing_keys"], told
with torch.no_grad():
    scores = [model(torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1) for ids in job["texts"]]
json.dump([score[:, job["tokens"]].tolist() for score in scores], open(sys.argv[1], "w"))
"""


def test_log_probabilities_are_those_of_transformers(oracle, in_engine):
    known = oracle("mamba")
    rng = np.random.default_rng(5)
    texts = [[int(n) for n in rng.integers(0, known.vocab_size, n)] for n in (1, 31, 33, 200)]
    tokens = [int(n) for n in rng.integers(0, known.vocab_size, 50)]
    there = in_engine(THERE, {"path": str(known.path), "texts": texts, "tokens": tokens})
    for text, theirs in zip(texts, there, strict=True):
        assert np.abs(known.logprobs(text)[:, tokens] - np.array(theirs)).max() < 1e-4  # float32


def test_the_state_continues_where_it_was_left(oracle):
    model = oracle("mamba").reference
    text = make.words(oracle("mamba"), 70, seed=1)
    state = model.empty()
    parts = np.concatenate([model.stream(part, state) for part in (text[:1], text[1:33], text[33:])])
    assert np.abs(parts - model.stream(text, model.empty())).max() < 1e-12


def test_the_first_word_of_a_long_prompt_decides_numbers_at_its_end(oracle):
    known = oracle("mamba")
    text = make.words(known, 400, seed=2)
    other = [make.words(known, 1, seed=3, avoid=text)[0], *text[1:]]
    seen = [known.logprobs(one)[-1] for one in (text, other)]
    assert np.abs(seen[0] - seen[1]).max() > 0.01  # ten times what tests admit
