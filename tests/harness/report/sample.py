"""Realistic results: two engines in two versions, as a nightly job would merge them, with all states."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

from fixtures.evidence.results import Feature, Kill, Launched, Results, Setting
from tests.harness.report import sample_numbers
from tests.harness.report.values import BEGAN, VLLM, result, run

if TYPE_CHECKING:
    from pathlib import Path

FEATURES = {
    "9": ("Streaming", "streaming", 7),
    "17": ("Speculative decoding", "speculative_decoding", 17),
    "18": ("Structured output", "structured_output", 24),
    "21": ("Tool calls", "tool_calls", 8),
    "24": ("KV cache in FP8", "kv_fp8", 5),
    "25a": ("Prefix caching", "prefix_caching", 13),
}
TESTS = {
    "streaming": [
        "streamed_answers_are_the_same",
        "usage_comes_last_and_once",
        "a_client_that_leaves_frees_its_place",
    ],
    "speculative_decoding": [
        "greedy_answers_and_draft_counts_are_exact",
        "a_crowd_of_requests_is_as_exact_as_each_alone",
        "a_stop_string_ends_the_answer_wherever_in_a_draft_it_falls",
        "logprobs_are_the_models_own",
    ],
    "structured_output": [
        "no_keyword_is_silently_ignored",
        "answers_keep_the_constraint",
        "what_cannot_be_kept_is_refused_and_the_next_request_served",
        "many_constraints_at_once_are_each_kept",
    ],
    "tool_calls": ["arguments_are_json_of_the_schema", "parallel_calls_have_distinct_ids"],
    "kv_fp8": ["answers_stay_within_the_bound_of_rounding", "capacity_doubles"],
    "prefix_caching": [
        "a_repeated_prompt_hits_its_whole_blocks",
        "salts_keep_tenants_apart",
        "eviction_loses_hits_and_never_answers",
        "cached_and_uncached_answers_are_the_same",
    ],
}
CASES = [
    "one_of",
    "not",
    "unique_items",
    "contains",
    "all_of",
    "min_properties",
    "format_and_length",
    "crossed_bounds",
]
DETAIL = """oracle = Oracle('lookup'), client = <Client http://127.0.0.1:41327>

    def test_salts_keep_tenants_apart(talk, oracle):
        prompt = make.question(oracle, 600, seed=5)
        talk.ask(prompt, salt="a")
>       assert saved(talk.ask(prompt, salt="b")[0]) == 0
E       assert 512 == 0
E        +  where 512 = saved(Reply(choices=(Choice(index=0, text=' k17 k3', finish_reason='length'),), cached=512))

tests/features/test_prefix_caching.py:109: AssertionError"""
OUTCOMES = {
    ("prefix_caching", 5, "0.5.20"): {
        "state": "fail",
        "sentence": "assert 512 == 0: a prompt with salt b took 512 tokens that were computed under salt a",
        "detail": DETAIL,
        "evidence": "evidence/salts-keep-tenants-apart",
    },
    ("structured_output", 11, "0.31.0"): {
        "state": "error",
        "sentence": "the engine died: exit code -11 (SIGSEGV) while 8 requests ran",
        "detail": "EngineFault: the engine died\n--- last lines of the engine's log ---\n"
        "INFO 11-30 16:47:02 Avg prompt throughput: 41.2 tokens/s\n!!!!!!! Segfault encountered !!!!!!!",
        "evidence": "evidence/engine-died",
    },
    ("streaming", 4, "0.5.19"): {
        "state": "flaky",
        "sentence": "passed 2 of 3 times: the second event came after the last",
    },
    ("tool_calls", 0, "0.5.20"): {
        "state": "not_applicable",
        "sentence": "the server does not report its tool parser",
    },
    ("speculative_decoding", 6, "0.32.0"): {
        "state": "inconclusive",
        "sentence": "12 of 400 samples differ; 500 more samples would decide whether the frequencies do",
    },
}


def realistic(folder: Path | None = None) -> Results:
    """Return the results; one run was killed. Evidence is written below `folder`."""
    dice = random.Random(7)
    runs = []
    for name, version in (("vllm", "0.31.0"), ("vllm", "0.32.0"), ("sglang", "0.5.19"), ("sglang", "0.5.20")):
        results = [
            *_features(name, version, dice),
            *sample_numbers.results(name, version, dice),
        ]
        planned = len(results)
        killed = version == "0.5.19"
        runs.append(
            run(
                *(results[:-11] if killed else results),
                id=f"{name}-{version}",
                began=BEGAN + 3000 * len(runs),
                ended=None if killed else BEGAN + 3000 * len(runs) + 1311,
                exit_code=None if killed else 1,
                command=("pytest", "-m", name, f"--{name}", f"venv:{version}"),
                planned=planned,
                engines=(_engine(name, version),),
                settings=(
                    Setting(name="engine", value=f"venv:{version}", origin="command line"),
                    Setting(name="evidence", value="evidence", origin="default"),
                ),
                launches=_launches(name),
                kills=tuple(_kills(name)) if name == "vllm" and version == "0.32.0" else (),
            )
        )
    if folder:
        _write(runs, folder)
    return Results(runs=tuple(runs))


def _engine(name, version):
    label = (
        f"vLLM {version}, CPU build"
        if name == "vllm"
        else f"SGLang {version} with stand-ins for nine kernels"
    )
    fields = {"target": f"venv:{version}", "version": version, "label": label, "origin": "command line"}
    return VLLM.model_copy(
        update={"name": name, **fields, "digest": f"sha256:{hashlib.sha256(label.encode()).hexdigest()}"}
    )


def _features(name, version, dice):
    for number, (title, module, total) in FEATURES.items():
        feature = Feature(number=number, title=title)
        absent = module == "kv_fp8"  # not on a CPU
        for place in range(total):
            test = "the_feature_is_on" if place == 0 else TESTS[module][place % len(TESTS[module])]
            case = CASES[place % len(CASES)]
            slug = f"{name}:{module.split('_')[0]}-{place % 3}"
            fields = {
                "item": f"{slug.replace(':', '-')}-{case}-{place}",
                "server": slug,
                "engine": name,
                "version": version,
                "feature": feature,
                "parameters": {"case": case} if place else {},
                "proves": place == 0,
                "seconds": round(dice.lognormvariate(0, 1), 2),
                "at": BEGAN + place,
            }
            if absent:
                fields["sentence"] = "not applicable: the device is a CPU, and kv_dtype=fp8 needs a GPU"
            told = _outcome(name, version, module, place)
            yield result(
                f"features/test_{module}.py::test_{test}",
                **{
                    **fields,
                    "engine": name,
                    "version": version,
                    "state": "not_applicable" if absent else "pass",
                    **told,
                },
            )


def _outcome(name, version, module, place):
    """Return what is unlike a pass, at fixed places."""
    if module == "structured_output" and place in {1, 4, 5, 8} and (name == "sglang" or place < 6):
        return {
            "state": "known",
            "link": "vllm-project/vllm#12131"
            if place < 5
            else "https://github.com/mlc-ai/xgrammar/issues/800",
            "sentence": "xgrammar takes oneOf for anyOf and drops not and dependentRequired",
        }
    return OUTCOMES.get((module, place, version), {})


def _launches(name):
    whys = {
        "chain": "first use",
        "lookup": "first use",
        "lookup-small": "another kv_tokens",
        "mimo": "first use",
    }
    return tuple(
        Launched(
            server=f"{name}:{slug}",
            engine=name,
            why=why,
            seconds=None if slug == "lookup-small" else 21.5 + 7 * place,  # it never got ready
            at=BEGAN + 100 * place,
            argv=("python", "-m", f"{name}.server", "--model", "/cache/models/lookup", "--port", "41327"),
            env={"VLLM_CPU_KVCACHE_SPACE": "1"},
            origins={"--enable-prefix-caching": "serve(prefix_cache=True)", "--port": "the suite"},
            log=f"evidence/{name}-{slug}.log",
        )
        for place, (slug, why) in enumerate(whys.items())
    )


FAULTS = {
    "prefix_caching": ["cache_off", "hit_counter_frozen", "stale_block", "salt_ignored", "eviction_corrupts"],
    "structured_output": ["constraint_dropped", "truncated_json", "wrong_library", "keyword_ignored"],
}


def _kills(name):
    for module, faults in FAULTS.items():
        for place, test in enumerate(TESTS[module]):
            for fault in faults[place % 2 : place % 2 + 4]:
                state = {("stale_block", 1): "survived", ("wrong_library", 2): "error"}.get(
                    (fault, place), "noticed"
                )
                sentence = {"survived": "all 3 items passed", "error": "the engine did not start"}.get(
                    state, ""
                )
                test_id = f"features/test_{module}.py::test_{test}"
                yield Kill(test=test_id, engine=name, fault=fault, state=state, sentence=sentence)


def _write(runs, folder):
    for one in (told for each in runs for told in each.results if told.evidence):
        place = folder / one.evidence
        place.mkdir(parents=True, exist_ok=True)
        for name in ("exchanges.jsonl", "server.log", "test.json"):
            (place / name).write_text("{}\n")
