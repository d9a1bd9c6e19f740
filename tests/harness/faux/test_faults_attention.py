"""Faults of attention: what they change of a start, of a checkpoint and of what the engine says of itself."""

import numpy as np
import pytest

from fixtures.faux.faults import FAULTS
from fixtures.faux.scene import Answer, Ask, Scene
from fixtures.models import RECIPES
from fixtures.models.locate import locate
from fixtures.models.mla import yarn
from fixtures.models.references import open_reference
from tests.harness.faux.fault_samples import CATALOGS

START = ["python", "-m", "server", "--kv-cache-dtype", "fp8", "--port", "1"]
PAGE = 'vllm:cache_config_info{block_size="128",cache_dtype="auto",kv_cache_size_tokens="2176"} 1.0\n'
INFO = '{"kv_cache_dtype":"auto","max_total_tokens":2176}'


def told(fault, engine):
    catalog = CATALOGS[engine]
    ask = Ask("GET", "/metrics" if engine == "vllm" else catalog.call("info")["path"])
    return FAULTS[fault].answer(Scene(catalog), ask, Answer(body=PAGE if engine == "vllm" else INFO)).body


def test_a_start_loses_the_format_or_gets_the_other_one():
    wide, other = list(START), list(START)
    FAULTS["kv_dtype_not_applied"].start(wide, {})
    FAULTS["kv_dtype_of_another"].start(other, {})
    assert wide == ["python", "-m", "server", "--port", "1"]
    assert other == [word.replace("fp8", "fp8_e5m2") for word in START]
    bare = ["python", "--port", "1"]
    for fault in ("kv_dtype_not_applied", "kv_dtype_of_another"):
        start = list(bare)
        FAULTS[fault].start(start, {})
        assert start == bare


def test_an_engine_that_does_not_apply_the_format_says_that_it_does():
    assert 'cache_dtype="fp8",kv_cache_size_tokens="8704"' in told("kv_dtype_not_applied", "vllm")
    assert '"kv_cache_dtype":"fp8"' in told("kv_dtype_not_applied", "sglang")
    assert 'kv_cache_size_tokens="544"' in told("kv_room_not_gained", "vllm")
    assert told("kv_dtype_not_told", "vllm") == PAGE


@pytest.mark.parametrize(
    ("fault", "model"),
    [
        ("values_scaled_twice", "gqa"),
        ("keys_not_scaled_back", "gqa"),
        ("kv_heads_swapped", "gqa"),
        ("kv_head_lost", "mha"),
        ("latent_row_wrong", "latent"),
        ("turned_part_lost", "latent"),
        ("positions_not_stretched", "latent"),
        ("latent_norm_left_out", "latent"),
    ],
)
def test_a_changed_checkpoint_moves_values_beyond_rounding(fault, model, model_cache):
    made = RECIPES[model].make()
    config, tensors = dict(made.config), {name: value.copy() for name, value in made.tensors.items()}
    FAULTS[fault].checkpoint(config, tensors)
    sound = open_reference(locate(model, model_cache / "models"))
    text = np.random.default_rng(1).integers(0, config["vocab_size"], 120).tolist()
    right = sound.logprobs(text)
    wrong = type(sound).__new__(type(sound))
    wrong.__dict__ |= sound.__dict__ | {"config": config}
    wrong.weights = {name: value.astype(np.float64) for name, value in tensors.items()}
    if fault == "positions_not_stretched":
        wrong.frequencies = yarn(config["qk_rope_head_dim"], config["rope_theta"], config["rope_scaling"])
    assert np.abs(wrong.logprobs(text) - right).max() > 0.01
