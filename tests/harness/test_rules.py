"""Catalogs are sound in every release, and a rule means what it says."""

import json
import re
from dataclasses import replace
from string import printable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from fixtures.engines import rules
from fixtures.engines.fitting import Hardware
from fixtures.engines.rules import Catalog, NotApplicable
from fixtures.errors import HarnessError
from fixtures.model import ServerSpec
from fixtures.versions import admits

VERSIONS = {
    "vllm": ["0.8.0", *(f"0.{n}.{p}" for n in range(9, 34) for p in (0, 1)), "0.33.1.dev5+g1234567"],
    "sglang": ["0.4.6", "0.5.4.post1", *(f"0.5.{n}" for n in range(8, 24)), "0.5.24rc1"],
}
TABLES = ("knobs", "fields", "calls", "metrics", "promises", "facts")
RULE_KEYS = {
    "base": {"args", "env", "unless"},
    "label": {"parts"},
    "models": {"args", "env"},
    "knobs": {"apart", "args", "env", "fresh", "lacks", "type", "value", "values"},
    "fields": {"path", "wrap", "reply"},
    "calls": {"method", "path", "needs"},
    "metrics": {"name"},
    "promises": {"is"},
    "facts": {"metric", "label", "call", "info", "log", "as", "not", "only"},
}

catalogs = st.sampled_from([(e, v) for e, vs in VERSIONS.items() for v in vs]).flatmap(
    lambda ev: st.sampled_from(["cpu", "cuda"]).map(lambda device: Catalog.bound(*ev, device))
)


def all_rules(engine):
    table = rules.table(engine)
    for kind in ("base", "label"):
        yield from ((kind, kind, rule) for rule in table[kind])
    for kind in (*TABLES, "models"):
        for name, found in table.get(kind, {}).items():
            listed = found["rules"] if kind == "knobs" else found
            yield from ((kind, name, rule) for rule in listed)


def values(engine, knob):
    """Values that a knob's rules name, and a number, a truth and a word that they may not."""
    named = [1, 3, True, False, "some word"]  # a list: in a set, True is 1
    for rule in rules.table(engine)["knobs"].get(knob, {}).get("rules", []):
        named += rule.get("values", [rule["value"]] if "value" in rule else [])
    return named


knobs = sorted({knob for engine in rules.ENGINES for knob in rules.table(engine)["knobs"]})


class TestCatalogs:
    @pytest.mark.parametrize("engine", rules.ENGINES)
    def test_every_rule_has_known_keys_and_a_readable_range(self, engine):
        for kind, name, rule in all_rules(engine):
            assert rule.keys() <= RULE_KEYS[kind] | {
                "when",
                "device",
                "gpus",
                "capability",
                "processor",
                "untried",
                "alone",
            }, (
                kind,
                name,
                rule,
            )
            assert rule.get("device") in (None, "cpu", "cuda")
            SpecifierSet(rule.get("when", ""))
            SpecifierSet(rule.get("capability", ""))

    @pytest.mark.parametrize("engine", rules.ENGINES)
    def test_every_rule_applies_to_some_release(self, engine):
        for kind, name, rule in all_rules(engine):
            fitting = [v for v in VERSIONS[engine] if admits(rule.get("when", ""), v)]
            assert fitting, (kind, name, rule)

    @pytest.mark.parametrize("engine", rules.ENGINES)
    def test_knobs_are_explained_and_name_facts_that_exist(self, engine):
        table = rules.table(engine)
        for name, knob in table["knobs"].items():
            assert knob["doc"].endswith(".")
            assert knob.get("fact") in {None, *table["facts"]}, name

    @given(catalog=catalogs, knob=st.sampled_from(knobs), data=st.data())
    def test_a_knob_becomes_complete_arguments_or_is_not_applicable(self, catalog, knob, data):
        value = data.draw(st.sampled_from(values(catalog.engine, knob)))
        spec = ServerSpec("chain", ((knob, value),))
        try:
            catalog.knob(knob, value)
        except NotApplicable:
            with pytest.raises(NotApplicable, match=re.escape(catalog.version)):
                catalog.launch(spec, "/bin/python", "/models/chain", 8000)
            return
        launch = catalog.launch(spec, "/bin/python", "/models/chain", 8000)
        assert all(isinstance(arg, str) and arg for arg in launch.argv)
        assert not re.search(
            r"\{(value|model|python|port|catalog|scratch)\}", " ".join([*launch.argv, *launch.env.values()])
        )
        assert launch.argv[0] == "/bin/python"
        assert {"/models/chain", "8000"} <= set(launch.argv)
        for arg in launch.argv:
            if arg.startswith("{"):
                json.loads(arg)
        flags = {arg for arg in launch.argv if arg.startswith("--")}
        assert set(launch.origins) <= flags

    @given(catalog=catalogs)
    def test_a_label_names_release_and_device(self, catalog):
        assert catalog.label.startswith(f"{catalog.title} {catalog.version}")
        assert ("CPU" in catalog.label) == (catalog.device == "cpu")

    def test_sglang_on_a_cpu_says_that_its_kernels_are_stood_in_for(self):
        assert Catalog.bound("sglang", "0.5.20", "cpu").label == "SGLang 0.5.20, CPU engine, stand-in kernels"


class TestRules:
    def catalog(self, *listed, version="0.32.0", device="cpu"):
        return Catalog(
            "vllm", version, Hardware(device), {"engine": {"title": "vLLM"}, "metrics": {"m": list(listed)}}
        )

    def test_the_first_rule_that_fits_wins(self):
        first, second = {"when": ">=0.9", "name": "new"}, {"name": "old"}
        assert self.catalog(first, second).metric("m") == "new"
        assert self.catalog(first, second, version="0.8.5").metric("m") == "old"
        assert self.catalog(second, first).metric("m") == "old"

    def test_a_rule_may_be_for_one_device(self):
        only = {"device": "cuda", "name": "n"}
        assert self.catalog(only, device="cuda").metric("m") == "n"
        with pytest.raises(NotApplicable, match=r"vLLM 0.32.0 on cpu has no metric m"):
            self.catalog(only).metric("m")

    @pytest.mark.parametrize(
        ("gpus", "why"),
        [
            (("9.0", "9.0"), None),
            (None, None),
            (("9.0",), "it needs 2 GPUs"),
            (("8.0", "8.0", "8.0"), "it needs GPUs of compute capability >=9.0"),
            (("9.0", "8.9"), "it needs GPUs of compute capability >=9.0"),
            (("8.0",), "it needs 2 GPUs and GPUs of compute capability >=9.0"),
        ],
    )
    def test_a_rule_may_need_gpus_of_a_kind(self, gpus, why):
        rule = {"device": "cuda", "gpus": 2, "capability": ">=9.0", "name": "n"}
        catalog = replace(self.catalog(rule, device="cuda"), hardware=Hardware("cuda", gpus))
        if why is None:
            assert catalog.metric("m") == "n"
        else:
            with pytest.raises(NotApplicable, match=f"on cuda has no metric m: {why}$"):
                catalog.metric("m")

    def test_a_rule_may_need_an_extension_of_the_processor(self):
        catalog = self.catalog({"device": "cpu", "processor": "avx512f", "name": "n"})
        assert catalog.metric("m") == "n"  # not known, not asked for
        able = replace(catalog, hardware=Hardware("cpu", (), frozenset({"avx2", "avx512f"})))
        assert able.metric("m") == "n"
        with pytest.raises(NotApplicable, match=r"m: it needs a processor with avx512f$"):
            replace(catalog, hardware=Hardware("cpu", (), frozenset({"avx2"}))).metric("m")

    def test_what_is_absent_says_what_it_would_need(self):
        rules = [{"when": ">=0.33", "device": "cuda", "name": "n"}, {"when": "<0.8", "name": "o"}]
        with pytest.raises(NotApplicable, match=r"m: it needs vLLM >=0.33 and a GPU, or vLLM <0.8$"):
            self.catalog(*rules).metric("m")
        with pytest.raises(NotApplicable, match=r"ngram=3: its compiled kernel package"):
            Catalog.bound("sglang", "0.5.20", "cpu").knob("ngram", 3)

    def test_true_is_not_one(self):
        vllm = Catalog.bound("vllm", "0.32.0", "cpu")
        assert vllm.knob("prefix_cache", True)["args"] == ["--enable-prefix-caching"]
        with pytest.raises(NotApplicable):
            vllm.knob("prefix_cache", 1)

    def test_a_knob_that_no_engine_has_is_a_mistake_with_a_suggestion(self):
        with pytest.raises(HarnessError, match=r"no knob 'prefixcache'. Did you mean 'prefix_cache'\?"):
            Catalog.bound("vllm", "0.32.0", "cpu").knob("prefixcache", True)

    def test_a_flag_knows_where_it_came_from(self):
        spec = ServerSpec("chain", (("mtp", 1),), (("vllm", ("--seed", "7")),))
        origins = Catalog.bound("vllm", "0.32.0", "cpu").launch(spec, "p", "m", 1).origins
        assert origins["--speculative-config"] == "knob mtp"
        assert origins["--dtype"] == "base"
        assert origins["--seed"] == "serve(extra=…)"

    @given(text=st.text(printable, max_size=12))
    def test_any_text_is_a_range_or_a_sentence(self, text):
        try:
            expected = SpecifierSet(text).contains(Version("0.32.0"), prereleases=True)
        except InvalidSpecifier:
            with pytest.raises(HarnessError, match="is not a version specifier"):
                admits(text, "0.32.0")
        else:
            assert admits(text, "0.32.0") is expected

    @pytest.mark.parametrize(
        ("specifier", "version", "fits"),
        [
            (">=0.22", "0.22.0", True),
            (">=0.22", "0.22.1.dev5+g12", True),
            (">=0.22", "0.22.0rc1", False),
            ("<0.5.20", "0.5.19.post1", True),
            ("", "0.1", True),
        ],
    )
    def test_development_builds_and_candidates_are_versions_too(self, specifier, version, fits):
        assert admits(specifier, version) is fits
