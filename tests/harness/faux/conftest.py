"""Fakes in memory, one for each test, and the checkpoints that they serve, built once."""

from dataclasses import dataclass
from functools import cache

import pytest

from fixtures.engines.rules import Catalog
from fixtures.faux import flags, serve
from fixtures.faux.scene import Ask
from fixtures.faux.scores import open_known
from fixtures.judge import counters
from fixtures.judge.reassembly import assemble
from fixtures.model import Event, Exchange, ServerSpec
from fixtures.models.locate import locate

VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.20"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Fake:
    """A fake and how a test talks to it: the server's own answers, read by the suite's own readers."""

    dialect: object
    catalog: Catalog

    @property
    def oracle(self):
        return self.dialect.oracle

    def ask(self, body, path=COMPLETIONS, method="POST"):
        answer = self.dialect.answer(Ask(method, path, body))
        events = tuple(Event(at, data) for at, data in answer.events)
        return assemble(Exchange(method, path, body, answer.status, answer.body, events, 0, 0))

    def complete(self, prompt, **ask):
        return self.ask({"model": "oracle", "prompt": prompt, "temperature": 0, **ask})

    def chat(self, text, **ask):
        messages = [{"role": "user", "content": text}]
        return self.ask({"model": "oracle", "messages": messages, "temperature": 0, **ask}, CHAT)

    def get(self, path, method="GET"):
        answer = self.dialect.answer(Ask(method, path))
        return answer.status, answer.body

    def scrape(self):
        return counters.parse(self.get("/metrics")[1])

    def counted(self, name, **labels):
        try:
            return self.scrape().value(self.catalog.metric(name), **labels)
        except LookupError:
            return 0


opened = cache(open_known)


@pytest.fixture
def fake(model_cache):
    """Start a fake in memory by the real engine's command line; knobs are those of `serve`."""

    def start(engine, model, **knobs):
        catalog = Catalog.bound(engine, VERSIONS[engine], "cpu")
        spec = ServerSpec(model, tuple(sorted(knobs.items())))
        launch = catalog.launch(spec, "python", str(locate(model, model_cache / "models")), 1)
        settings = flags.settings(engine, catalog.version, launch.argv[3:], launch.env)
        return Fake(serve.dialect(settings, opened(settings.model)), catalog)

    return start
