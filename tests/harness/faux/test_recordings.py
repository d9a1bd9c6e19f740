"""The fake answers as real engines did, by their recordings; a fake that no longer does is noticed.

And the judges find nothing wrong with what real engines answered.
"""

import gzip
import json
import re
from dataclasses import dataclass
from functools import cache

import pytest

from fixtures.engines.rules import ENGINES, Catalog
from fixtures.errors import HarnessError
from fixtures.faux import likeness, recordings
from fixtures.faux.faults import FAULTS
from fixtures.faux.recordings import told
from fixtures.faux.scene import Scene, as_answered
from fixtures.faux.scores import Known, open_known
from fixtures.judge import counters, envelope, logprobs, stream
from fixtures.judge.reassembly import DONE, assemble
from fixtures.models.locate import locate

FILES = sorted(recordings.FOLDER.glob("*.jsonl.gz"))
SESSIONS = {f"{one.engine}-{n}": one for file in FILES for n, one in enumerate(recordings.read(file))}
TESTS = {name: one.test.partition("::")[2] for name, one in SESSIONS.items()}
KINDS = {"/v1/completions": "completion", "/v1/chat/completions": "chat", "/v1/models": "models"}
CROWD = "It is about requests at once; a recording has one after the other."
SETTING = "It is about a setting that no recorded server had."
OFTEN = [
    "kv_dtype_of_another",
    "kv_dtype_not_told",
    "quantization_off",
    "one_rank_idle",
    "rank_not_counted",
    "external_hits_not_counted",
    "speculation_off_with_logprobs",
    "tokens_burn_unseen",
    "another_parser",
    "thoughts_in_the_answer",
]
UNSEEN = {
    **{(name, engine): SETTING for name in OFTEN for engine in ENGINES},
    **{
        (name, "vllm"): SETTING for name in ("tier_off", "external_hits_counted_as_local", "tier_block_stale")
    },
    ("logprobs_scaled_by_temperature", "vllm"): "It is about samples, which are compared by their shape.",
    ("logprobs_scaled_by_temperature", "sglang"): "It is about samples, which are compared by their shape.",
    ("stream_changes_its_id", "vllm"): "Ids are each server's own; the judge of streams looks at them.",
    ("stream_changes_its_id", "sglang"): "Ids are each server's own; the judge of streams looks at them.",
    ("grammars_mixed_up", "vllm"): CROWD,
    ("grammars_mixed_up", "sglang"): CROWD,
}

each_session = pytest.mark.parametrize("name", SESSIONS, ids=TESTS.get)
each_fault = pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS.values() if fault.answer is not as_answered], ids=lambda one: one.name
)


@dataclass
class Played:
    """A recording, and what a fake answers to the same requests."""

    catalog: Catalog
    oracle: Known
    recorded: tuple
    given: tuple

    def problems(self, fault=None):
        """Compare them; with a fault in the fake's answers, if there is one and it changes any."""
        said = list(self.given)
        if fault:
            for n, (ask, answer) in enumerate(self.given):
                said[n] = ask, fault.answer(Scene(self.catalog, self.given[:n]), ask, answer)
            if said == list(self.given):
                return []
        return likeness.problems(self.recorded, self.exchanges(said), self.catalog)

    def exchanges(self, said=None):
        return [recordings.exchange(*pair) for pair in said or self.given]


@pytest.fixture(scope="module")
def play(model_cache):
    opened = cache(lambda model: open_known(locate(model, model_cache / "models")))

    @cache
    def played(name):
        session = SESSIONS[name]
        oracle = opened(session.model)
        recorded = session.served(oracle.path)
        given = tuple(recordings.replay(session.fake(oracle), recorded))
        return Played(Catalog.bound(session.engine, session.version, "cpu"), oracle, recorded, given)

    return played


@each_session
def test_the_fake_answers_as_the_engine_did(play, name):
    assert play(name).problems() == []


def test_every_known_difference_is_one(play):
    seen = set()
    for played in map(play, SESSIONS):
        found = likeness.differences(played.recorded, played.exchanges(), played.catalog)
        seen |= {(played.catalog.engine, one.where) for one in found}
    assert seen == {(one.engine, one.where) for one in likeness.DIFFERENCES}
    assert all(one.why.endswith(".") for one in likeness.DIFFERENCES)


@each_fault
@pytest.mark.parametrize("engine", ENGINES)
def test_a_fake_that_drifts_is_noticed(play, fault, engine):
    """Unless nothing recorded can show it, which is then said above."""
    noticed = any(play(name).problems(fault) for name in SESSIONS if name.startswith(engine))
    assert noticed == ((fault.name, engine) not in UNSEEN)


@each_session
def test_judges_find_nothing_wrong_with_real_answers(play, name):
    played, found = play(name), []
    for one in played.recorded:
        kind = KINDS.get(one.path)
        refused = one.status != 200 or any("error" in json.loads(e.data) for e in one.events[:1])
        if refused:
            found += envelope.problems(json.loads(one.events[0].data if one.events else one.body), "error")
            assert not one.events or [event.data for event in one.events[1:]] == [DONE]
        elif one.events:
            found += stream.problems(one.events, kind)
        elif kind:
            found += envelope.problems(one.json(), kind)
        for choice in assemble(one).choices:
            found += logprobs.problems(choice, hidden=played.oracle.tokenizer.specials)
    pages = [counters.parse(one.body) for one in played.recorded if one.path == told.METRICS]
    found += counters.problems(counters.delta(pages[0], pages[-1])) if pages else []
    assert found == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_small_and_tells_nothing_of_a_machine(file, tmp_path):
    content = gzip.decompress(file.read_bytes()).decode()
    assert file.stat().st_size <= recordings.MOST
    assert re.findall(r"/(?:home|root|tmp|work|Users)\b|\b(?:localhost|[0-9]+\.local)\b", content) == []
    assert recordings.write(tmp_path / "again", recordings.read(file)) == file.stat().st_size
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("engine", ENGINES)
def test_all_servers_and_kinds_of_requests_are_recorded(engine):
    """What is not recorded can drift."""
    mine = [one for one in SESSIONS.values() if one.engine == engine]
    exchanges = [exchange for one in mine for exchange in one.exchanges]
    asked = [one.request for one in exchanges if one.request]
    assert {one.model for one in mine} == {"chain", "lookup", "mimo", "fuzz"}
    knobs = {(name, value) for one in mine for name, value in one.spec["knobs"].items()}
    assert {("prefix_cache", True), ("prefix_cache", False), ("kv_tokens", 2176), ("mtp", 1)} <= knobs
    assert {one.path for one in exchanges} >= {"/v1/completions", "/v1/chat/completions", told.METRICS}
    assert {
        "logprobs",
        "top_logprobs",
        "echo",
        "stop",
        "cache_salt",
        "return_token_ids",
        "response_format",
    } <= {key for one in asked for key in one}
    streams = [one for one in asked if one.get("stream")]
    assert {one.get("logprobs") is None for one in streams} == {True, False}
    assert {one.status for one in exchanges} >= {200, 400}


def test_a_file_that_holds_no_recordings_is_a_sentence(tmp_path):
    for content in (
        b"",
        b"no gzip",
        gzip.compress(b"{}\n"),
        gzip.compress(b"no JSON\n"),
        gzip.compress(b"[]\n"),
    ):
        (tmp_path / "a").write_bytes(content)
        if content:
            with pytest.raises(HarnessError, match="holds no recordings"):
                recordings.read(tmp_path / "a")
