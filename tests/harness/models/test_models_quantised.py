"""Number formats are those of torch; checkpoints stored in them stand for what they were made from."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from fixtures import prompts as make
from fixtures.models import formats, loud, store
from fixtures.models.quantised import SCHEMES, Quantised, is_projection, scored
from fixtures.models.stored import widened

RNG = np.random.default_rng(3)
THERE = """
import json, sys
import torch
from safetensors.torch import load_file

job = json.load(sys.stdin)
values = torch.tensor(job["values"], dtype=torch.float32)
codes = values.clamp(-448, 448).to(torch.float8_e4m3fn)
file = {
    name: [str(value.dtype), value.double().flatten().tolist()]
    for name, value in load_file(job["file"]).items()
}
json.dump({
    "e4m3": codes.view(torch.uint8).tolist(),
    "back": codes.double().tolist(),
    "bfloat16": values.to(torch.bfloat16).double().tolist(),
    "file": file,
}, open(sys.argv[1], "w"))
"""


def test_codes_and_files_are_read_alike_by_torch(in_engine, tmp_path):
    steps = formats.MAGNITUDES
    halves = (steps[1:] + steps[:-1]) / 2  # ties
    values = np.concatenate(
        [steps, -steps, halves, -halves, RNG.normal(size=500) * 30, [448, 460, 1e6, -1e9]]
    )
    values = values.astype(np.float32)
    codes = formats.to_e4m3(values)
    held = {
        "fp8": codes[:128].reshape(32, 4).view(store.E4M3),
        "bf16": store.encode(values, store.BF16),
        "odd": np.arange(3, dtype=np.int8),
        "i32": np.arange(4, dtype=np.int32).reshape(2, 2),
        "f16": np.arange(5, dtype=np.float16),
    }
    store.save_file(held, tmp_path / "file", {"format": "pt"})
    there = in_engine(THERE, {"values": values.tolist(), "file": str(tmp_path / "file")})
    assert codes.tolist() == there["e4m3"]
    assert formats.from_e4m3(codes).tolist() == there["back"]
    assert formats.bfloat16(values).astype(np.float64).tolist() == there["bfloat16"]
    kinds = {name: kind for name, (kind, _) in there["file"].items()}
    expected = {"fp8": "float8_e4m3fn", "bf16": "bfloat16", "odd": "int8", "i32": "int32", "f16": "float16"}
    assert kinds == {name: f"torch.{kind}" for name, kind in expected.items()}
    mine = widened({f"layer.{name}": value for name, value in held.items() if name != "fp8"})
    assert all(
        mine[f"layer.{name}"].ravel().tolist() == there["file"][name][1] for name in held if name != "fp8"
    )
    assert formats.from_e4m3(held["fp8"]["F8_E4M3"]).ravel().tolist() == there["file"]["fp8"][1]


def test_files_are_read_back_as_they_were_written_and_may_be_changed(oracle, tmp_path):
    path = oracle("chain").path / "model.safetensors"
    held = store.load_file(path)
    with safe_open(path, "numpy") as theirs:
        assert theirs.metadata() == {"format": "pt"}
        assert set(theirs.keys()) == set(held)
        assert all((theirs.get_tensor(name) == value).all() for name, value in held.items())
    held["lm_head.weight"][0] *= 2
    store.save_file(held, tmp_path / "copy", {"format": "pt"})
    again = store.load_file(tmp_path / "copy")
    assert all(
        again[name].dtype == value.dtype and (again[name] == value).all() for name, value in held.items()
    )


def test_4_bit_codes_are_packed_in_awqs_order():
    codes = RNG.integers(0, 16, (3, 16)).astype(np.int32)
    packed = formats.pack(codes)
    assert (formats.unpack(packed) == codes).all()
    # The order of the AutoAWQ project: columns 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits upwards.
    assert packed[0, 0] & 0xFF == codes[0, 0] | codes[0, 2] << 4
    assert packed.view(np.uint32)[0, 1] >> 28 == codes[0, 15]


@pytest.mark.parametrize(
    ("kind", "step"), [("fp8_blocks", 2**-4), ("fp8_channels", 2**-4), ("int8_channels", 0), ("awq", 0)]
)
def test_stored_weights_are_within_half_a_step_of_the_original(oracle, kind, step):
    """E4M3 is off by a sixteenth of the value at most, or by half of its smallest step; integers by half a scale."""
    original, stored = oracle("loud").reference.weights, oracle(f"loud_{kind}").reference.weights
    assert set(original) == set(stored)
    for name, value in original.items():
        if not is_projection(name):
            assert (stored[name] == value).all()
            continue
        largest = np.abs(value).max()
        flat = {"awq": 2 * largest / 15 * 1.01, "int8_channels": largest / 127 / 2}.get(
            kind, largest / 448 * 2**-10
        )
        assert (np.abs(stored[name] - value) <= step * np.abs(value) * 1.001 + flat * 1.001).all()
        assert (stored[name] != value).any()


@pytest.mark.parametrize(
    ("kind", "scheme"), [("fp8_blocks", "fp8_per_block"), ("fp8_channels", "fp8_per_channel")]
)
def test_rounding_at_load_gives_what_is_stored_rounded(oracle, kind, scheme):
    made, stored = Quantised(oracle("loud").path, scheme), oracle(f"loud_{kind}").reference
    assert all((made.weights[name] == value).all() for name, value in stored.weights.items())
    assert len(made.rounded) == 4


def test_every_format_gives_another_answer_and_the_same_greedy_tokens(oracle):
    known = oracle("loud")
    text = tuple(make.words(known, 200, seed=4))
    scores = [scored(known.path, text, scheme) for scheme in SCHEMES]
    scores += [scored(known.path, text, s, s) for s in SCHEMES if s != "none"]
    scores += [scored(oracle(f"loud_{kind}").path, text) for kind in ("int8_channels", "awq")]
    apart = [np.sqrt(((a - b) ** 2).mean()) for n, a in enumerate(scores) for b in scores[:n]]
    assert min(apart) > 0.015  # nats; bfloat16 activations are worth 0.01
    walk = make.walk(known, "main", 200)
    for kind in loud.FORMATS:
        best = oracle(f"loud_{kind}").reference.logits(walk).argmax(axis=1)
        assert [known.next(token) for token in walk] == best.tolist()
    assert known.margin(walk, 48) > 1


def test_each_format_says_what_it_is(oracle):
    told = {
        kind: json.loads((oracle(f"loud_{kind}").path / "config.json").read_text()) for kind in loud.FORMATS
    }
    assert [config["quantization_config"]["quant_method"] for config in told.values()] == [
        "fp8", "compressed-tensors", "compressed-tensors", "awq",
    ]  # fmt: skip
