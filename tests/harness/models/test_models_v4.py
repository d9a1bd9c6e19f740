"""DeepSeek V4's checkpoint: its closed form, its file, and what two libraries and vLLM's own loader make of it."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from scipy.special import log_softmax

from fixtures.errors import HarnessError
from fixtures.faux.scores import open_known
from fixtures.models import open_oracle, perturb
from fixtures.models.chain import LENGTH, MARGIN
from fixtures.models.drafts import simulate
from fixtures.models.store import BF16, E4M3, E8M0, decode, encode, load_file, save_file, unblock

GROUP = 128  # numbers that share a scale when engines round activations to E4M3


@pytest.fixture(scope="session")
def known(oracle):
    return oracle("v4")


@pytest.fixture(scope="session")
def tensors(known):
    return load_file(known.path / "model.safetensors")


class TestClosedForm:
    def test_what_follows_is_the_head_times_the_normalised_embedding(self, known, tensors):
        embedding = decode(tensors["embed.weight"]).astype(np.float64)
        rms = np.sqrt((embedding**2).mean(axis=1, keepdims=True))
        closed = log_softmax(embedding / rms @ decode(tensors["head.weight"]).astype(np.float64).T, axis=1)
        # What the streams' mixing leaves of E[t] differs from it by a factor, which eps lets through: 1e-6 of 12.
        assert np.abs(known.logprobs(range(known.vocab_size)) - closed).max() < 1e-4

    def test_the_next_token_is_as_told_for_every_token(self, known):
        scores = known.reference.logits(range(known.vocab_size))
        assert scores.argmax(axis=1).tolist() == [known.next(token) for token in range(known.vocab_size)]
        scores.sort(axis=1)
        assert (scores[:, -1] - scores[:, -2]).min() > MARGIN

    def test_the_path_ends_in_eos(self, known):
        path = list(known.path_to_eos)
        assert known.greedy(path[:3], 50) == path[3:]

    def test_the_fake_engine_has_it_as_a_table(self, known):
        scores = open_known(known.path).scores
        ids = tuple(known.cycle("half")[:40])
        assert np.array_equal(scores.rows(ids), known.logprobs(ids))
        assert np.array_equal(scores.row(ids), known.logprobs(ids)[-1])

    def test_a_negated_row_is_another_answer(self, known):
        cycle = known.cycle("always")
        wrong = open_oracle(perturb(known.path, cycle[7]))
        right = known.greedy(cycle[:1], 8)
        assert wrong.greedy(cycle[:1], 6) == right[:6]
        assert wrong.greedy(cycle[:1], 7)[6] != right[6]

    @pytest.mark.parametrize("name", ["layers.1.attn.wo_b.weight", "mtp.0.ffn.experts.0.w2.weight"])
    def test_a_layer_that_adds_something_is_refused(self, name, known, tensors, tmp_path):
        loud = tensors[name].copy()
        loud.view(np.uint8)[3, 3] = 1
        save_file({**tensors, name: loud}, tmp_path / "model.safetensors", {})
        for file in ("config.json", "oracle.json"):
            (tmp_path / file).write_bytes((known.path / file).read_bytes())
        with pytest.raises(HarnessError, match=f"{name} is not zero"):
            open_oracle(tmp_path).greedy([1], 1)


class TestPrediction:
    @pytest.mark.parametrize(
        ("cycle", "share"), [("always", 1), ("half", 1 / 2), ("three_quarters", 3 / 4), ("never", 0)]
    )
    def test_acceptance_is_exact_over_whole_periods(self, cycle, share, known):
        for periods in (1, 2, 10):
            seen = simulate(known.next, known.draft, known.cycle(cycle)[0], 1 + periods * LENGTH, 1)
            assert seen.accepted == share * seen.drafted

    @pytest.mark.parametrize("cycle", ["always", "half", "three_quarters", "never", "short", "rest"])
    def test_counts_are_those_of_mimo(self, cycle, known, oracle):
        mimo = oracle("mimo")
        for k in (1, 2, 3):
            mine = simulate(known.next, known.draft, known.cycle(cycle)[0], 300, k)
            assert mine == simulate(mimo.next, mimo.draft, mimo.cycle(cycle)[0], 300, k)

    def test_drafts_survive_inputs_rounded_to_eight_bits(self, known, tensors):
        # Engines multiply by e_proj in E4M3, with a power of two for each group of 128 inputs.
        tokens = decode(tensors["embed.weight"]).reshape(known.vocab_size, -1, GROUP)
        top = np.abs(tokens).max(axis=2, keepdims=True)
        scale = np.exp2(np.ceil(np.log2(top / 448)))
        rounded = (decode(encode(tokens / scale, E4M3)) * scale).reshape(known.vocab_size, -1)
        assert np.abs(rounded - tokens.reshape(rounded.shape)).max() > 0.05
        made = rounded @ unblock(tensors["mtp.0.e_proj.weight"], tensors["mtp.0.e_proj.scale"]).T
        made /= np.sqrt((made**2).mean(axis=1, keepdims=True))
        scores = made @ decode(tensors["head.weight"]).T
        assert scores.argmax(axis=1).tolist() == [known.draft(token) for token in range(known.vocab_size)]
        scores.sort(axis=1)
        assert (scores[:, -1] - scores[:, -2]).min() > 2


class TestStore:
    def test_every_code_of_eight_bits_is_its_own_nearest(self):
        codes = np.array([n for n in range(256) if n % 128 != 127], np.uint8)
        assert np.array_equal(encode(decode(codes.view(E4M3)), E4M3).view(np.uint8), codes)
        assert decode(np.array([0x38, 0x7E, 0x01, 0xC0], np.uint8).view(E4M3)).tolist() == [1, 448, 2**-9, -2]
        powers = np.exp2(np.arange(-126.0, 128))
        assert np.array_equal(decode(encode(powers, E8M0)), powers)

    def test_sixteen_bits_round_to_the_nearest(self):
        values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
        error = np.abs(decode(encode(values, BF16)) - values) / np.abs(values)
        assert 2**-10 < error.max() <= 2**-8
        assert decode(encode(np.array([1 + 2**-8, 1 + 3 * 2**-8]), BF16)).tolist() == [1, 1 + 2**-6]

    def test_a_file_comes_back_as_it_was_written(self, tensors, tmp_path):
        save_file(tensors, tmp_path / "x", {"format": "pt"})
        again = load_file(tmp_path / "x")
        assert again.keys() == tensors.keys()
        for name, array in tensors.items():
            assert (again[name].dtype, again[name].shape) == (array.dtype, array.shape)
            assert again[name].tobytes() == array.tobytes()

    def test_what_was_read_can_be_changed_without_the_file(self, known):
        path = known.path / "model.safetensors"
        one = load_file(path)
        one["head.weight"][5] = encode(np.zeros(256), BF16)
        assert decode(load_file(path)["head.weight"][5]).any()

    def test_the_header_names_the_published_formats(self, known):
        with (known.path / "model.safetensors").open("rb") as file:
            head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        kinds = {name: told["dtype"] for name, told in head.items() if name != "__metadata__"}
        assert {kinds[f"layers.1.attn.{n}.weight"] for n in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")} == {
            "F8_E4M3"
        }
        assert {kind for name, kind in kinds.items() if name.endswith(".scale") and "hc" not in name} == {
            "F8_E8M0"
        }
        assert {kind for name, kind in kinds.items() if ".experts." in name} == {"I8", "F8_E8M0"}
        assert kinds["embed.weight"] == kinds["head.weight"] == "BF16"
        assert kinds["layers.0.hc_attn_fn"] == kinds["layers.1.ffn.gate.bias"] == "F32"


WITH_TRANSFORMERS = """
import json, sys
import torch
import transformers.quantizers.quantizer_finegrained_fp8 as quantizer
from transformers import DeepseekV4ForCausalLM, FineGrainedFP8Config

quantizer.is_accelerate_available = lambda: True  # which only placing a model on several devices needs
job = json.load(sys.stdin)
torch.set_num_threads(2)
model, told = DeepseekV4ForCausalLM.from_pretrained(
    job["path"],
    dtype=torch.float32,
    quantization_config=FineGrainedFP8Config(dequantize=True),
    output_loading_info=True,
)
model.float()
with torch.no_grad():
    scores = [model(torch.tensor([ids])).logits[0].double().log_softmax(-1) for ids in job["texts"]]
values = dict(model.named_parameters())
json.dump({
    "told": {kind: sorted(str(name) for name in names) for kind, names in told.items()},
    "rows": [score[:: job["every"]].tolist() for score in scores],
    "values": {name: values[name][tuple(place)].tolist() for name, place in job["values"].items()},
}, open(sys.argv[1], "w"))
"""


def test_log_probabilities_and_weights_are_those_of_transformers(known, tensors, in_engine):
    """The library reads the file by its own names for it; nothing is missing and nothing is left over."""
    rng = np.random.default_rng(11)
    lengths, every = (3, 40, 300), 7
    texts = [[int(n) for n in rng.integers(0, known.vocab_size, length)] for length in lengths]
    values = {
        "model.layers.1.self_attn.q_b_proj.weight": ([200], "layers.1.attn.wq_b"),
        "model.layers.2.self_attn.kv_proj.weight": ([100], "layers.2.attn.wkv"),
        "model.layers.3.mlp.experts.gate_up_proj": ([2, 7], "layers.3.ffn.experts.2.w1"),
        "model.layers.0.mlp.shared_experts.up_proj.weight": ([9], "layers.0.ffn.shared_experts.w3"),
    }
    places = {name: place for name, (place, _) in values.items()}
    job = {"path": str(known.path), "texts": texts, "every": every, "values": places}
    there = in_engine(WITH_TRANSFORMERS, job)
    assert not any(there["told"].values())
    for ids, theirs in zip(texts, there["rows"], strict=True):
        assert np.abs(known.logprobs(ids)[::every] - np.array(theirs)).max() < 1e-4  # float32: 1e-5 of 12
    for name, (place, stored) in values.items():
        row = unblock(tensors[f"{stored}.weight"], tensors[f"{stored}.scale"])[place[-1]]
        assert there["values"][name] == row.tolist()


WITH_VLLM = """
import copy, glob, json, sys
from unittest.mock import MagicMock

import torch
import vllm.model_executor.layers.quantization.fp8 as fp8
import vllm.model_executor.layers.quantization.mxfp4 as mxfp4
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator
from vllm.models.deepseek_v4.nvidia import flashmla

# What needs a GPU chooses kernels; parameters and their loading do not depend on the choice.
marlin = mxfp4.Mxfp4MoeBackend.MARLIN
fp8.init_fp8_linear_kernel = lambda **_: MagicMock()
mxfp4.select_deepseek_v4_mxfp4_moe_backend = lambda _: (marlin, mxfp4.backend_to_kernel_cls(marlin)[0])
flashmla.compute_fp8_einsum_recipe = lambda: (None, False)
torch.cuda.Stream = torch.cuda.Event = MagicMock

job = json.load(sys.stdin)
whole = EngineArgs(
    model=job["path"], max_model_len=512, max_num_seqs=2, enforce_eager=True, tokenizer_mode="hf",
    kv_cache_dtype="fp8", speculative_config={"method": "mtp", "num_speculative_tokens": 1},
).create_engine_config()
answer = {}
with set_current_vllm_config(whole):
    init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
    initialize_model_parallel(1, 1)
    from vllm.models.deepseek_v4.nvidia.model import DeepseekV4ForCausalLM
    from vllm.models.deepseek_v4.nvidia.mtp import DeepSeekV4MTP

    torch.set_default_dtype(torch.bfloat16)
    drafts = copy.copy(whole)
    drafts.model_config = whole.speculative_config.draft_model_config
    for kind, config in ((DeepseekV4ForCausalLM, whole), (DeepSeekV4MTP, drafts)):
        model = kind(vllm_config=config)
        loaded = model.load_weights(safetensors_weights_iterator(glob.glob(job["path"] + "/*.safetensors"), False))
        params = dict(model.named_parameters())
        answer[kind.__name__] = {
            "missing": sorted(params.keys() - loaded),
            "types": {name: str(param.dtype).removeprefix("torch.") for name, param in params.items()},
            "bytes": {
                name: params[name].view(torch.uint8).flatten()[:64].tolist() for name in job["bytes"] if name in params
            },
        }
json.dump(answer, open(sys.argv[1], "w"))
"""


def test_the_loader_of_vllm_finds_every_parameter(known, tensors, in_engine):
    """vLLM 0.32.0's NVIDIA model and prediction layer, made on the CPU, are filled from the file by their own code."""
    same = {
        "model.layers.1.ffn.experts.routed_experts.w13_weight": "layers.1.ffn.experts.0.w1.weight",
        "model.layers.1.ffn.experts.routed_experts.w13_weight_scale": "layers.1.ffn.experts.0.w1.scale",
        "model.layers.3.attn.wq_b.weight": "layers.3.attn.wq_b.weight",
        "model.layers.4.e_proj.weight_scale_inv": "mtp.0.e_proj.scale",
        "model.layers.4.mtp_block.attn.wq_b.weight": "mtp.0.attn.wq_b.weight",
    }
    there = in_engine(WITH_VLLM, {"path": str(known.path), "bytes": list(same)})
    model, head = there["DeepseekV4ForCausalLM"], there["DeepSeekV4MTP"]
    assert model["missing"] == []
    # These two are the model's own: the engine lets the prediction layer share them.
    assert head["missing"] == ["model.embed_tokens.weight", "model.layers.4.shared_head.head.weight"]
    assert model["types"]["model.layers.1.attn.wo_a.weight_scale_inv"] == "float8_e8m0fnu"
    assert model["types"]["model.layers.1.attn.wo_a.weight"] == "float8_e4m3fn"
    found = {**model["bytes"], **head["bytes"]}
    assert found.keys() == same.keys()
    for name, first in found.items():
        stored = tensors[same[name]].view(np.uint8).reshape(-1)
        assert first[: len(stored)] == stored[:64].tolist()


WITH_SGLANG = """
import glob, json, logging, sys
from unittest.mock import MagicMock

import torch
from safetensors.torch import load_file
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.models import deepseek_v2, deepseek_v4
from sglang.srt.models.deepseek_v4_nextn import DeepseekV4ForCausalLMNextN
from sglang.srt.configs.deepseek_v4 import try_detect_fp4_experts
from sglang.srt.runtime_context import get_context
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.hf_transformers_utils import get_config

job = json.load(sys.stdin)
get_context().set_server_args(ServerArgs(model_path=job["path"], device="cpu", context_length=512))
init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
initialize_model_parallel(1, 1, 1, backend="gloo")
config = get_config(job["path"], trust_remote_code=False)
quantization = Fp8Config.from_config(config.quantization_config)
quantization.is_fp4_experts = try_detect_fp4_experts(job["path"])
# Decided by the server before a model is made, and after it is loaded: neither names nor shapes depend on it.
deepseek_v4.get_rope_wrapper = lambda *_, **__: MagicMock()
for module in (deepseek_v2, deepseek_v4):
    module.is_shared_experts_fusion_disabled = lambda: True
for kind in (deepseek_v4.DeepseekV4ForCausalLM, DeepseekV4ForCausalLMNextN):
    kind.post_load_weights = lambda *_, **__: None
    kind._prewarm_mhc_kernels = lambda _: None
said = []
logging.getLogger(deepseek_v4.__name__).addFilter(lambda record: said.append(record.getMessage()))

torch.set_default_dtype(torch.bfloat16)
tensors = load_file(glob.glob(job["path"] + "/*.safetensors")[0])
answer = {"fp4": quantization.is_fp4_experts}
for kind in (deepseek_v4.DeepseekV4ForCausalLM, DeepseekV4ForCausalLMNextN):
    for lost in (None, job["lost"][kind.__name__]):
        model = kind(config, quantization)
        model.load_weights((name, value) for name, value in tensors.items() if name != lost)
        answer[f"{kind.__name__} {lost}"], said[:] = said[:], []
json.dump(answer, open(sys.argv[1], "w"))
"""


def test_the_loader_of_sglang_finds_every_parameter(known, in_engine):
    """SGLang 0.5.20 says what it misses and what it does not know: nothing, unless a tensor is taken away."""
    lost = {
        "DeepseekV4ForCausalLM": ("layers.2.hc_ffn_fn", "model.layers.2.hc_ffn_fn"),
        "DeepseekV4ForCausalLMNextN": ("mtp.0.enorm.weight", "model.enorm.weight"),
    }
    taken = {kind: name for kind, (name, _) in lost.items()}
    there = in_engine(WITH_SGLANG, {"path": str(known.path), "lost": taken}, engine="sglang")
    assert there["fp4"] is True
    for kind, (name, parameter) in lost.items():
        assert there[f"{kind} None"] == []
        assert there[f"{kind} {name}"] == [
            f"Some weights are not initialized from checkpoints: {{'{parameter}'}}"
        ]
