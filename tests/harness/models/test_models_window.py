"""The windowed reference agrees with `transformers`, and with the full one as far as a window reaches."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures import prompts as make
from fixtures.models.reference import Reference
from fixtures.models.windowreference import Windowed

THERE = """
import json, sys
import torch
from transformers import Exaone4ForCausalLM

def make_exact(model):
    # As in test_models_transformers: angles and norms are float32 there, whatever the model's type is.
    def angles(x, position_ids):
        size = model.config.head_dim
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
    model, told = Exaone4ForCausalLM.from_pretrained(job["path"], dtype=dtype, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"], told
    if dtype == torch.float64:
        make_exact(model)
    with torch.no_grad():
        score = model(torch.tensor([job["text"]])).logits[0].double().log_softmax(-1)
    answer[str(dtype)] = [[float(row[token]) for token in tokens] for row, tokens in zip(score, job["wanted"])]
json.dump(answer, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("name", ["window", "window_mixed"])
def test_log_probabilities_are_those_of_transformers(name, oracle, in_engine):
    known = oracle(name)
    assert isinstance(known.reference, Windowed)
    words = make.words(known, 400, seed=5)
    text = [
        *words,
        *words[50:90],
        *words[300:340],
    ]  # found by full attention only, then within the window too
    scores = known.logprobs(text)
    wanted = [[*row.argsort()[-10:].tolist(), *range(300, 310)] for row in scores]
    there = in_engine(THERE, {"path": str(known.path), "text": text, "wanted": wanted})
    mine = [[row[token] for token in tokens] for row, tokens in zip(scores, wanted, strict=True)]
    for dtype, tolerance in (("torch.float64", 1e-6), ("torch.float32", 1e-3)):
        assert np.abs(np.array(mine) - np.array(there[dtype])).max() < tolerance


@pytest.mark.parametrize("distance", [1, 199, 200, 300])
def test_an_answer_is_found_as_far_back_as_the_window_reaches(distance, oracle):
    known = oracle("window")
    text = make.words(known, 420, seed=6)
    right = text[420 - distance]  # the last token of the prompt stands at 420
    prompt = [*text, text[420 - distance - 1]]
    assert (known.greedy(prompt, 1) == [right]) == (distance < known.reference.config["sliding_window"])
    assert oracle("window_mixed").greedy(prompt, 1) == [right]


def test_a_cached_text_is_continued_as_the_whole_text(oracle):
    known = oracle("window").reference
    assert isinstance(known, Reference)
    text = make.words(oracle("window"), 300, seed=7)
    caches = known.empty()
    parts = [known.stream(text[:170], caches), known.stream(text[170:], caches)]
    assert np.abs(np.concatenate(parts) - known.stream(text, known.empty())).max() < 1e-9
