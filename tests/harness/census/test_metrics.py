"""Declarations of metrics made up here; prometheus_client itself says under which names they are shown."""

from __future__ import annotations

import prometheus_client
import pytest

from fixtures.census import metrics
from fixtures.census.archive import Source
from fixtures.errors import HarnessError

MUST = """
from prometheus_client import Counter, Gauge, Histogram
Counter("vllm:must_c", "", [])
Gauge("vllm:must_g", "", [])
Histogram("vllm:must_h", "", [])
"""


def rows(must=MUST, engine="vllm", **modules):
    """Return the rows of a package with the modules given by name, without those that every release must have."""
    files = {
        f"{engine}/{name.replace('__', '/')}.py": text for name, text in {"must": must, **modules}.items()
    }
    found = metrics.rows(Source(engine, "1.0", "", "", "", {"METADATA": "", **files}))
    return {name: facts for name, facts in found.items() if ":must_" not in name}


class TestNames:
    @pytest.mark.parametrize("kind", ["Counter", "Gauge", "Histogram", "Summary", "Info"])
    @pytest.mark.parametrize("name", ["tokens", "tokens_total", "tokens_info"])
    def test_they_are_those_of_the_library(self, kind, name):
        registry = prometheus_client.CollectorRegistry()
        getattr(prometheus_client, kind)(f"vllm:{name}", "", registry=registry)
        text = prometheus_client.generate_latest(registry).decode()
        (shown,) = [
            line.split()[2]
            for line in text.splitlines()
            if line.startswith("# TYPE") and "_created" not in line
        ]
        assert list(rows(a=f"{kind}('vllm:{name}', '')")) == [shown]

    def test_names_of_other_things_are_left_out(self):
        code = "Counter(words)\nGauge('vllm::operator', '')\nGauge('other:tokens', '')\nopen('vllm:tokens')\n"
        assert rows(a=code) == {}

    def test_each_engine_has_its_own_prefix(self):
        code = (
            MUST.replace("vllm:", "sglang:") + "Gauge('vllm:tokens', '', [])\nGauge('sglang:tokens', '', [])"
        )
        assert rows(code, engine="sglang") == {"sglang:tokens": {"type": "gauge", "labels": []}}

    def test_what_only_tests_declare_is_left_out(self):
        assert rows(tests__a="Gauge('vllm:tokens', '')") == {}


class TestDeclarations:
    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("prometheus_client.Counter('vllm:tokens', '')", "counter"),
            ("ray_metrics.Gauge(name='vllm:tokens', documentation='')", "gauge"),
            ("self._counter_cls(name='vllm:tokens')", "counter"),
            ("self._gauge_cls(name='vllm:tokens')", "gauge"),
            ("cls._histogram_cls(name='vllm:tokens')", "histogram"),
            ("Summary(documentation='', name='vllm:tokens')", "summary"),
            ("{'vllm:tokens': MoveCounterMetadata(documentation='')}", "counter"),
            ("table['vllm:tokens'] = MoveHistogramMetadata(documentation='')", "histogram"),
        ],
    )
    def test_the_function_says_the_kind(self, code, kind):
        ((name, facts),) = rows(a=code).items()
        assert (name.removesuffix("_total"), facts["type"]) == ("vllm:tokens", kind)

    @pytest.mark.parametrize(
        "code",
        [
            "NAME = 'vllm:tokens'\nGauge(NAME, '')",
            "class Names:\n    TOKENS = 'vllm:tokens'\nGauge(Names.TOKENS, '')",
            "from vllm.names import Names\n{Names.TOKENS: MoveGaugeMetadata(), **more}",
            "def f():\n    specs = [('vllm:tokens', 'text')]\n    for name, text in specs:\n        Gauge(name, text)",
            "specs = []\nif a:\n    specs = [('vllm:tokens', 1)]\nx = [_gauge_cls(name=name) for name, y in specs]",
            "def f(kind):\n    name = None\n    if kind:\n        name = 'vllm:tokens'\n    Gauge(name=name)",
        ],
    )
    def test_names_may_be_constants_or_run_through_them(self, code):
        assert list(rows(a=code, names="class Names:\n    TOKENS = 'vllm:tokens'\n")) == ["vllm:tokens"]


class TestLabels:
    @pytest.mark.parametrize(
        ("code", "labels"),
        [
            ("Gauge('vllm:tokens', '')", []),
            ("Gauge('vllm:tokens', '', ['model', 'engine'])", ["model", "engine"]),
            ("Gauge('vllm:tokens', labelnames=('model',))", ["model"]),
            (
                "def f():\n    names = ['model']\n    Gauge('vllm:tokens', labelnames=names + ['reason'])",
                ["model", "reason"],
            ),
            ("GaugeHistogram(name='vllm:tokens', labelnames=['model'])", ["model", "gt", "le"]),
        ],
    )
    def test_those_that_are_all_written_down_are_listed(self, code, labels):
        assert rows(a=code) == {"vllm:tokens": {"type": "gauge", "labels": labels}}

    @pytest.mark.parametrize(
        "code",
        [
            "Gauge('vllm:tokens', labelnames=labels.keys())",
            "Gauge('vllm:tokens', labelnames=[self.model])",
            "{'vllm:tokens': MoveGaugeMetadata(labelnames=['tier'])}",
        ],
    )
    def test_others_are_not(self, code):
        assert rows(a=code) == {"vllm:tokens": {"type": "gauge"}}


@pytest.mark.parametrize("kind", ["counter", "gauge", "histogram"])
def test_a_release_without_a_kind_is_read_incompletely(kind):
    less = "\n".join(line for line in MUST.splitlines() if not line.startswith(kind.capitalize()))
    with pytest.raises(HarnessError, match=rf"census of vllm 1\.0 found no {kind} among its metrics"):
        rows(less)
