"""Registries of models made up here, in the two engines' manners."""

from __future__ import annotations

import pytest

from fixtures.census import models
from fixtures.census.archive import Source
from fixtures.errors import HarnessError

VLLM = """
_TEXT_GENERATION_MODELS = {
    "RoundForCausalLM": ("round", "RoundForCausalLM"),
    "SquareForCausalLM": ("vllm.models.square", "Square"),
    OTHER: ("other", "Other"),
}
_SPECULATIVE_DECODING_MODELS: dict = {"RoundMTP": ("round_mtp", "RoundMTP")}
_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_SPECULATIVE_DECODING_MODELS}
_PREVIOUSLY_SUPPORTED_MODELS = {"OldForCausalLM": "0.10.2"}
_OOT_SUPPORTED_MODELS = {"MovedModel": "https://example.org/plugin"}
_OTHER_TABLE = {"NotAModel": ("no", "No")}
"""


def rows(engine, files):
    return models.rows(Source(engine, "1.0", "", "", "", {"METADATA": "", **files}))


def test_vllm_registers_in_dictionaries_by_topic():
    assert rows("vllm", {"vllm/model_executor/models/registry.py": VLLM}) == {
        "MovedModel": {"plugin": "https://example.org/plugin"},
        "OldForCausalLM": {"removed": "0.10.2"},
        "RoundForCausalLM": {"module": "round", "kind": "text generation"},
        "RoundMTP": {"module": "round_mtp", "kind": "speculative decoding"},
        "SquareForCausalLM": {"module": "vllm.models.square", "kind": "text generation"},
    }


def test_sglang_takes_the_entry_class_of_each_module():
    found = rows(
        "sglang",
        {
            "sglang/srt/models/round.py": "class A(:\n    EntryClass = No\n\nEntryClass = RoundForCausalLM\n",
            "sglang/srt/models/square.py": "EntryClass = [\n    SquareForCausalLM,\n    CubeForCausalLM,\n]\nx = No\n",
            "sglang/srt/models/nothing.py": "class Helper: pass\n",
            "sglang/srt/models/odd.py": "EntryClass = [Broken\n",
            "sglang/srt/models/deep/below.py": "EntryClass = TooDeep\n",
            "sglang/other/models/pipeline.py": "EntryClass = Pipeline\n",
        },
    )
    assert found == {
        "CubeForCausalLM": {"module": "square"},
        "RoundForCausalLM": {"module": "round"},
        "SquareForCausalLM": {"module": "square"},
    }


@pytest.mark.parametrize(
    ("engine", "files"),
    [
        ("vllm", {"vllm/registry.py": VLLM}),
        ("vllm", {"vllm/model_executor/models/registry.py": '_PREVIOUSLY_SUPPORTED_MODELS = {"Old": "0.1"}'}),
        ("sglang", {"sglang/models/round.py": "EntryClass = RoundForCausalLM\n"}),
    ],
)
def test_a_release_without_registered_models_is_read_incompletely(engine, files):
    with pytest.raises(HarnessError, match=rf"census of {engine} 1\.0 found no registered models"):
        rows(engine, files)
