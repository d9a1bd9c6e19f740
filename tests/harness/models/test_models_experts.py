"""The families of experts: their closed form, their reference against `transformers`, and that each expert is loud."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.models.checkpoint import alter
from fixtures.models.experts import CLASSES, MARGIN
from fixtures.models.oracle import open_oracle
from fixtures.models.tokenizer import Tokenizer

TOKENS = st.integers(0, Tokenizer().size - 1)
NAMES = ["moe", "shared", "fine"]
SIZES = {"moe": (8, 2), "shared": (8, 2), "fine": (64, 8)}

THERE = """
import json, sys
import torch
import transformers

job = json.load(sys.stdin)
torch.set_num_threads(2)
kind = getattr(transformers, job["kind"])
model, told = kind.from_pretrained(job["path"], dtype=torch.float32, output_loading_info=True)
assert not told["missing_keys"] and not told["unexpected_keys"], told
with torch.no_grad():
    scores = model(torch.tensor([job["text"]])).logits[0].double().log_softmax(-1)
answer = [[float(row[token]) for token in tokens] for row, tokens in zip(scores, job["wanted"])]
json.dump(answer, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("name", NAMES)
class TestExperts:
    @settings(max_examples=5, deadline=None)
    @given(data=st.data())
    def test_the_next_token_is_as_told_for_any_context(self, name, data, oracle):
        known = oracle(name)
        ids = data.draw(st.lists(TOKENS, min_size=1, max_size=20))
        scores = np.sort(known.reference.logits(ids))
        assert known.reference.logits(ids).argmax(axis=1).tolist() == [known.next(token) for token in ids]
        assert (scores[:, -1] - scores[:, -2]).min() > MARGIN

    def test_cycles_use_all_experts_alike_or_a_few(self, name, oracle):
        known = oracle(name)
        count, active = SIZES[name]
        for layer in known.reference.routes(known.cycle("even")[: 2 * CLASSES]):
            assert set(np.bincount(layer.ravel(), minlength=count)) == {2 * CLASSES * active // count}
        for layer in known.reference.routes(known.cycle("one")):
            assert len(np.unique(layer)) == active
        for cycle in ("even", "one"):
            walked = known.cycle(cycle)
            assert [known.next(token) for token in walked] == [*walked[1:], walked[0]]

    def test_each_expert_is_loud(self, name, oracle):
        known = oracle(name)
        text = list(known.cycle("even")[:CLASSES])
        right = known.logprobs(text)
        parts = [f".experts.{expert}." for expert in range(SIZES[name][0])]
        parts += [".shared_expert."] if name == "shared" else []
        for layer in range(2):
            for part in parts:
                quiet = known.reference.without(f"layers.{layer}.mlp{part}").logprobs(text)
                assert np.abs(quiet - right)[np.arange(CLASSES), text].max() > 0.05

    def test_log_probabilities_are_those_of_transformers(self, name, oracle, in_engine):
        """With attention that adds something, so that its norms and biases matter."""
        known = oracle(name)

        def change(config, tensors):
            # The library stores experts otherwise than checkpoints do, and looks up how by the type.
            config["model_type"] = {"Qwen2": "qwen2_moe", "Qwen3": "qwen3_moe"}[
                config["architectures"][0][:5]
            ]
            rng = np.random.default_rng(3)
            for key, value in tensors.items():
                if key.endswith((".o_proj.weight", ".q_proj.bias", ".k_proj.bias")):
                    value[:] = rng.normal(0, 0.1, value.shape)
                if key.endswith(("q_norm.weight", "k_norm.weight")):
                    value[:] = rng.uniform(0.5, 2, value.shape)

        loud = open_oracle(
            alter(known.path, known.path.with_name(f"{known.path.name}-loud"), {"attention": "loud"}, change)
        )
        text = [int(n) for n in np.random.default_rng(12).permutation(known.tokenizer.words)[:80]]
        right = loud.logprobs(text)
        assert np.abs(right - known.logprobs(text)).max() > 0.1
        wanted = [row.argsort()[[-1, -2, 0, 700]].tolist() for row in right]
        kind = loud.reference.config["architectures"][0]
        there = in_engine(THERE, {"kind": kind, "path": str(loud.path), "text": text, "wanted": wanted})
        mine = [[row[token] for token in tokens] for row, tokens in zip(right, wanted, strict=True)]
        assert np.abs(np.array(mine) - np.array(there)).max() < 1e-3
