"""Facts about releases that were looked up by hand: the shipped tables say the same."""

import gzip
import re
from pathlib import Path

import pytest
from packaging.version import Version

from fixtures.census.tables import KINDS, table
from fixtures.faux import recordings

# engine, kind, name, first and last release of the tables that have it ("" for none)
SPANS = [
    ("vllm", "flag", "--kv-cache-dtype", "0.8.0", "0.33.0"),
    ("vllm", "flag", "--enable-dsa-cp", "", ""),
    ("vllm", "flag", "--enable-eplb", "0.9.2", "0.33.0"),
    ("vllm", "flag", "--eplb-config", "0.10.2", "0.33.0"),
    ("vllm", "flag", "--num-redundant-experts", "0.9.2", "0.11.2"),
    ("vllm", "flag", "--guided-decoding-backend", "0.8.0", "0.11.2"),
    ("vllm", "flag", "--structured-outputs-config", "0.11.0", "0.33.0"),
    ("vllm", "flag", "--all2all-backend", "0.11.1", "0.33.0"),
    ("vllm", "flag", "--moe-backend", "0.17.0", "0.33.0"),
    ("vllm", "flag", "--linear-backend", "0.22.0", "0.33.0"),
    ("vllm", "flag", "--attention-backend", "0.13.0", "0.33.0"),
    ("vllm", "flag", "--async-scheduling", "0.10.0", "0.33.0"),
    ("vllm", "flag", "--kv-offloading-size", "0.11.1", "0.33.0"),
    ("vllm", "flag", "--prefill-context-parallel-size", "0.12.0", "0.33.0"),
    ("vllm", "flag", "--per-request-spec-decode-metrics", "0.29.0", "0.33.0"),
    ("vllm", "flag", "--compilation-config.pass_config.fuse_allreduce_rms", "0.12.0", "0.33.0"),
    ("vllm", "flag", "--compilation-config.pass_config.enable_fi_allreduce_fusion", "0.10.0", "0.12.0"),
    ("vllm", "flag", "--attention-config.use_fp4_indexer_cache", "0.20.0", "0.29.0"),
    ("vllm", "flag", "--attention-config.indexer_kv_dtype", "0.24.0", "0.33.0"),
    ("vllm", "env", "VLLM_MOE_BACKEND", "", ""),
    ("vllm", "env", "VLLM_TRITON_FORCE_FIRST_CONFIG", "0.24.0", "0.33.0"),
    ("vllm", "env", "VLLM_ENGINE_READY_TIMEOUT_S", "0.14.0", "0.33.0"),
    ("vllm", "env", "VLLM_SERVER_DEV_MODE", "0.8.0", "0.33.0"),
    ("vllm", "env", "FLASHINFER_AUTOTUNE", "", ""),
    ("vllm", "metric", "vllm:prefix_cache_hits_total", "0.9.2", "0.33.0"),
    ("vllm", "metric", "vllm:spec_decode_num_accepted_tokens_per_pos_total", "0.8.5", "0.33.0"),
    ("vllm", "metric", "vllm:kv_offload_load_bytes_total", "0.24.0", "0.33.0"),
    ("vllm", "field", "/v1/chat/completions guided_json", "0.8.0", "0.11.2"),
    ("vllm", "field", "/v1/chat/completions structured_outputs.regex", "0.11.0", "0.33.0"),
    ("vllm", "field", "/v1/completions cache_salt", "0.9.0", "0.33.0"),
    ("vllm", "model", "DeepseekV4ForCausalLM", "0.20.0", "0.33.0"),
    ("vllm", "model", "DeepseekV41ForCausalLM", "0.30.0", "0.33.0"),
    ("sglang", "flag", "--enable-expert-parallel", "", ""),
    ("sglang", "flag", "--enable-deepep", "", ""),
    ("sglang", "flag", "--attention-dp-size", "", ""),
    ("sglang", "flag", "--attn-dp-size", "0.5.22", "0.5.23"),
    ("sglang", "flag", "--moe-dp-size", "0.5.9", "0.5.23"),
    ("sglang", "flag", "--speculative-eagle-model-path", "", ""),
    ("sglang", "flag", "--cuda-graph-max-bs", "0.4.6", "0.5.19"),
    ("sglang", "flag", "--enable-deepseek-v4-fp4-indexer", "0.5.13", "0.5.23"),
    ("sglang", "flag", "--enable-nsa-prefill-context-parallel", "0.5.6", "0.5.19"),
    ("sglang", "env", "SGLANG_ELASTIC_MEMORY_POOL", "", ""),
    ("sglang", "env", "SGLANG_TORCH_COMPILE_MODE", "0.4.6", "0.5.23"),
    ("sglang", "env", "SGLANG_HICACHE_L3_URL", "", ""),
    ("sglang", "metric", "sglang:cached_tokens_total", "0.4.6", "0.5.23"),
    ("sglang", "metric", "sglang:startup_time_seconds", "0.5.17", "0.5.23"),
    ("sglang", "field", "/generate json_schema", "", ""),
    ("sglang", "field", "/generate sampling_params.json_schema", "0.4.6", "0.5.23"),
    ("sglang", "model", "DeepseekV4ForCausalLM", "0.5.12", "0.5.23"),
]
# engine, release, kind, name, fact, value
FACTS = [
    ("vllm", "0.19.1", "flag", "--gpu-memory-utilization", "default", 0.9),
    ("vllm", "0.33.0", "flag", "--gpu-memory-utilization", "default", 0.92),
    ("vllm", "0.33.0", "flag", "--tensor-parallel-size", "also", ["-tp"]),
    ("vllm", "0.33.0", "flag", "--max-model-len", "type", "size"),
    ("vllm", "0.33.0", "flag", "--scheduling-policy", "choices", ["fcfs", "priority"]),
    ("vllm", "0.33.0", "flag", "--enable-prefix-caching", "takes", "pair"),
    ("vllm", "0.31.0", "flag", "--mamba-cache-mode", "choices", ["align", "all", "none"]),
    ("vllm", "0.32.0", "flag", "--mamba-cache-mode", "choices", ["align", "none"]),
    ("vllm", "0.33.0", "flag", "--structured-outputs-config", "extra", "forbid"),
    ("vllm", "0.32.0", "metric", "vllm:time_to_first_token_seconds", "type", "histogram"),
    ("vllm", "0.24.0", "pin", "torch", "requires", "==2.11.0"),
    ("vllm", "0.33.0", "pin", "torch", "requires", "==2.14.0"),
    ("vllm", "0.33.0", "field", "/v1/chat/completions *", "extra", "allow"),
    ("sglang", "0.5.16", "flag", "--kv-cache-dtype", "default", "auto"),
    ("sglang", "0.5.8", "flag", "--kv-cache-dtype", "choices",
     ["auto", "bf16", "bfloat16", "fp4_e2m1", "fp8_e4m3", "fp8_e5m2"]),
    ("sglang", "0.5.23", "flag", "--grammar-backend", "choices", ["llguidance", "none", "outlines", "xgrammar"]),
    ("sglang", "0.5.23", "flag", "--model-path", "required", True),
    ("sglang", "0.5.23", "flag", "--tp-size", "type", "int"),
    ("sglang", "0.5.23", "pin", "torch", "requires", "==2.14.1"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "kind", "name", "first", "last"), SPANS)
def test_a_thing_is_there_from_its_first_to_its_last_release(engine, kind, name, first, last):
    known = table(engine)
    read = known.read_for(kind)
    first = max(first, read[0], key=Version) if first else ""
    assert known.spans(known.where(kind, name)) == ([(first, last)] if first else [])


@pytest.mark.parametrize(("engine", "version", "kind", "name", "fact", "value"), FACTS)
def test_a_fact_is_known(engine, version, kind, name, fact, value):
    assert table(engine).release(version).get(kind, name)[fact] == value


def test_the_speculative_methods_are_keys_with_choices():
    methods = {
        v: table("vllm").release(v).get("flag", "--speculative-config.method")["choices"]
        for v in ("0.24.0", "0.33.0")
    }
    assert {"mtp", "eagle", "eagle3", "ngram", "suffix", "dflash"} <= set(methods["0.24.0"])
    assert "medusa" in methods["0.24.0"]
    assert "medusa" not in methods["0.33.0"]
    assert ("dspark" in methods["0.24.0"], "dspark" in methods["0.33.0"]) == (False, True)


@pytest.mark.parametrize(
    ("engine", "first", "last", "least"),
    [("vllm", "0.19.0", "0.33.0", 21), ("sglang", "0.5.8", "0.5.23", 21)],
)
def test_every_release_is_there_with_every_kind_of_row(engine, first, last, least):
    known = table(engine)
    span = known.versions[known.versions.index(first) : known.versions.index(last) + 1]
    assert len(span) >= least
    assert {kind: [version for version in span if version not in known.read_for(kind)] for kind in KINDS} == {
        kind: [] for kind in KINDS
    }
    assert known.read_for("flag") == known.versions
    for origin in known.origins:
        assert len(origin.sha256) == 64
        assert origin.version in origin.file


@pytest.mark.parametrize(("engine", "version", "least"), [("vllm", "0.32.0", 11), ("sglang", "0.5.20", 5)])
def test_every_metric_that_a_real_engine_showed_is_known(engine, version, least):
    recorded = Path(recordings.__file__).with_name(f"{engine}-{version}.jsonl.gz")
    shown = set(re.findall(rf"{engine}:[a-z_]+", gzip.decompress(recorded.read_bytes()).decode()))
    assert len(shown) >= least
    assert shown <= set(table(engine).release(version).names["metric"])
