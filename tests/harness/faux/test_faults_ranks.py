"""The faults of ranks change the counters of several, by rank, and those of a window the checkpoint's config."""

import re

import pytest

from fixtures.faux.faults import FAULTS
from fixtures.faux.scene import Answer, Ask, Scene
from tests.harness.faux.fault_samples import CATALOGS, Dialect, words

PAGE = Ask("GET", "/metrics")
RANKED = ["one_rank_idle", "rank_not_counted", "ranks_share_a_cache"]


def page(*served):
    """The page of counters after each rank has served so many requests of 300 tokens, all but one from the cache."""
    lines = []
    for rank, n in enumerate(served):
        labels = f'{{engine="{rank}",model_name="oracle"}}'
        lines += [
            f'vllm:request_success_total{{engine="{rank}",finished_reason="length"}} {n}.0',
            f"vllm:prompt_tokens_total{labels} {300 * n}.0",
            f"vllm:prefix_cache_hits_total{labels} {256 * max(n - 1, 0)}.0",
        ]
    return Answer(kind="text/plain", body="\n".join(lines) + "\n")


def seen(fault, engine="vllm"):
    """What the page shows after the fault, by metric: the numbers of rank 0 and 1."""
    scene = Scene(CATALOGS[engine], ((PAGE, page(0, 0)),))
    body = FAULTS[fault].answer(scene, PAGE, page(4, 3)).body
    return {
        name: [float(n) for n in re.findall(rf"^vllm:{name}_total{{.*}} (\S+)$", body, re.MULTILINE)]
        for name in ("request_success", "prompt_tokens", "prefix_cache_hits")
    }


def test_each_fault_changes_one_counter():
    sound = {"request_success": [4, 3], "prompt_tokens": [1200, 900], "prefix_cache_hits": [768, 512]}
    assert seen("one_rank_idle") == sound | {"request_success": [7, 0]}
    assert seen("rank_not_counted") == sound | {"prompt_tokens": [1200, 0]}
    assert seen("ranks_share_a_cache") == sound | {"prefix_cache_hits": [1024, 768]}


@pytest.mark.parametrize("fault", RANKED)
def test_an_engine_that_keeps_no_ranks_apart_is_left_alone(fault):
    scene = Scene(CATALOGS["sglang"], ((PAGE, page(0, 0)),))
    assert FAULTS[fault].answer(scene, PAGE, page(4, 3)) == page(4, 3)


def test_every_other_answer_is_wrong():
    fault = FAULTS["one_rank_is_wrong"]
    told = [Dialect(CATALOGS["vllm"]).complete(words(1, 2)) for _ in range(4)]
    after = [
        fault.answer(Scene(CATALOGS["vllm"], tuple(told[:n])), *exchange) for n, exchange in enumerate(told)
    ]
    assert [new == old for new, (_, old) in zip(after, told, strict=True)] == [True, False, True, False]


@pytest.mark.parametrize(
    ("fault", "size"),
    [("window_one_token_short", 199), ("window_one_token_long", 201), ("window_ignored", 8192)],
)
def test_a_windows_size_is_changed_where_there_is_one(fault, size):
    config = {"sliding_window": 200, "max_position_embeddings": 8192}
    FAULTS[fault].checkpoint(config, {})
    assert config == {"sliding_window": size, "max_position_embeddings": 8192}
    plain = {"sliding_window": None, "max_position_embeddings": 8192}
    FAULTS[fault].checkpoint(plain, {})
    assert plain["sliding_window"] is None


def test_a_window_is_put_on_every_layer_of_a_model_that_has_one():
    config = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window_pattern": "LG"}
    FAULTS["window_on_every_layer"].checkpoint(config, {})
    assert config == {"layer_types": ["sliding_attention"] * 2, "sliding_window_pattern": "LLL"}
    plain = {"model_type": "llama"}
    FAULTS["window_on_every_layer"].checkpoint(plain, {})
    assert plain == {"model_type": "llama"}
