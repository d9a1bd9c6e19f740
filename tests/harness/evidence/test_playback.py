"""A recording answers in the place of its server: each answer once, as it was, to whoever asks the same again."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.client import observe
from fixtures.client.chat import Client
from fixtures.client.playback import PlaybackTransport, Recording
from fixtures.engines.rules import Catalog, NotApplicable
from fixtures.errors import HarnessError
from fixtures.launch import targets
from fixtures.launch.host import Host
from fixtures.launch.recorded import RecordedTarget
from fixtures.launch.server import Terms
from fixtures.model import Event, Exchange, ServerSpec
from tests.harness.evidence.samples import about, exchange, keep

CATALOG = Catalog.bound("vllm", "0.32.0", "cpu")
URL = "http://127.0.0.1:1"  # nobody listens there
PATH = "/v1/completions"


def client(*exchanges, recording=None):
    return Client(URL, "oracle", CATALOG, PlaybackTransport(recording or Recording(exchanges)))


def get(path, body="{}", **changes):
    return exchange(body, method="GET", path=path, request=None, **changes)


def test_the_exchange_is_the_recorded_one_with_its_times():
    said = exchange('{"a": 1}', started=12.0, elapsed=34.0)
    with client(said) as talk:
        assert talk.send("POST", PATH, said.request) is said
        assert talk.exchanges == [said]


def test_events_have_the_recorded_times_and_are_not_waited_for():
    events = (Event(1.0, '{"a": 1}'), Event(1000.0, "two\nlines"), Event(2000.0, "[DONE]"))
    with client(exchange("", events=events, elapsed=2000.0)) as talk:
        assert talk.send("POST", PATH, {"prompt": "it's"}).events == events


@given(st.lists(st.text(max_size=10).filter(lambda text: "\r" not in text), min_size=1, max_size=4))
def test_the_bytes_of_a_stream_are_those_of_its_events(texts):
    events = tuple(Event(float(at), text) for at, text in enumerate(texts))
    http = httpx.Client(transport=PlaybackTransport(Recording([exchange("", events=events)])))
    received = http.post(URL + PATH, json={"prompt": "it's"}).content.decode()
    parts = [[line[6:] for line in part.split("\n")] for part in received.split("\n\n")[:-1]]
    assert ["\n".join(lines) for lines in parts] == texts


def test_the_openai_sdk_reads_what_was_recorded():
    answer = {"id": "x", "object": "text_completion", "created": 1, "model": "oracle"}
    answer["choices"] = [{"index": 0, "text": "hi", "finish_reason": "stop", "logprobs": None}]
    whole = exchange(json.dumps(answer), request={"model": "oracle", "prompt": "a"})
    events = (Event(1.0, json.dumps(answer)), Event(2.0, "[DONE]"))
    asked = {"model": "oracle", "prompt": "a", "stream": True}
    streamed = exchange("", request=asked, events=events)
    with client(whole, streamed) as talk:
        assert talk.openai.completions.create(model="oracle", prompt="a").choices[0].text == "hi"
        chunks = talk.openai.completions.create(model="oracle", prompt="a", stream=True)
        assert [chunk.choices[0].text for chunk in chunks] == ["hi"]
        assert talk.exchanges == [whole, streamed]


def test_the_order_of_a_requests_fields_does_not_matter():
    with client(exchange("1", request={"a": {"b": 1, "c": 2}, "d": 3})) as talk:
        assert talk.send("POST", PATH, {"d": 3, "a": {"c": 2, "b": 1}}).body == "1"


def test_equal_requests_get_their_answers_in_recorded_order():
    late, early = get("/metrics", "late", started=2.0), get("/metrics", "early", started=1.0)
    with client(late, early) as talk:
        assert [talk.send("GET", "/metrics").body for _ in range(2)] == ["early", "late"]


def test_equal_requests_at_once_get_each_answer_once():
    said = [exchange(str(n), started=float(n)) for n in range(40)]
    barrier = threading.Barrier(8)

    def ask(talk):
        barrier.wait()
        return [talk.send("POST", PATH, {"prompt": "it's"}).body for _ in range(5)]

    with client(*said) as talk, ThreadPoolExecutor(8) as pool:
        answers = [body for bodies in pool.map(ask, [talk] * 8) for body in bodies]
        assert sorted(map(int, answers)) == list(range(40))
        assert sorted(talk.exchanges, key=lambda e: e.started) == said


def test_clients_share_a_recording_and_have_exchanges_of_their_own():
    recording = Recording([get("/a", "1"), get("/a", "2")])
    with client(recording=recording) as one, client(recording=recording) as other:
        assert (one.send("GET", "/a").body, other.send("GET", "/a").body) == ("1", "2")
        assert (len(one.exchanges), len(other.exchanges)) == (1, 1)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (("GET", "/a"), r"holds no further answer to GET /a: the test now asks something else than when"),
        (("GET", "/b"), r"holds no answer to GET /b: "),
        (("POST", "/a", {"n": 1}), r'holds no answer to POST /a \{"n": 1\}: '),
        (("POST", "/a", {"n": "x" * 9999}), r"x{200,300}: the test"),
    ],
)
def test_what_was_not_recorded_is_one_sentence(ask, sentence):
    with client(get("/a")) as talk:
        talk.send("GET", "/a")
        with pytest.raises(HarnessError, match=sentence):
            talk.send(*ask)


def test_what_was_too_much_to_be_kept_is_said():
    with pytest.raises(HarnessError, match="3 exchanges were too many to be kept"):
        Recording([], left_out=3).take("GET", "/a", None)


def test_a_query_is_part_of_the_request():
    with client(get("/a?b=1", "1"), get("/a?b=2", "2")) as talk:
        assert [talk.send("GET", f"/a?b={n}").body for n in (2, 1)] == ["2", "1"]


def test_a_request_with_a_secret_finds_its_answer(tmp_path):
    asked = {"prompt": "sk-0123456789abcdef", "n": 1}
    case = RecordedTarget("vllm", keep(tmp_path / "t", exchange("1", request=asked))).case
    assert "sk-" not in repr(case.exchanges)
    with client(*case.exchanges) as talk:
        assert talk.send("POST", PATH, asked).body == "1"


@given(st.permutations(range(12)))
def test_any_order_of_different_requests_is_answered(order):
    with client(*(exchange(str(n), request={"n": n}) for n in range(12))) as talk:
        assert [talk.send("POST", PATH, {"n": n}).body for n in order] == [str(n) for n in order]


# --- the target ---


SPEC = ServerSpec("chain", (("mtp", 1), ("prefix_cache", True)))


@pytest.fixture
def target(tmp_path, monkeypatch, model_cache):
    """Make a target of a recording."""
    monkeypatch.setenv("DSV4_CACHE", str(model_cache))

    def make(*exchanges, **more):
        return targets.parse("vllm", f"recorded:{keep(tmp_path / 'test', *exchanges, **more)}")

    return make


@pytest.fixture
def recalled(target, tmp_path):
    """Recall the server of a recording."""

    def recall(*exchanges, spec=SPEC, **more):
        host = Host(target(*exchanges, **more), spec, Terms(tmp_path))
        return host, host.ready()

    return recall


def test_a_recorded_server_answers_and_has_its_known_answers(recalled):
    host, server = recalled(get("/health", "fine"))
    assert host.catalog.label == "vLLM 0.32.0, CPU build"
    assert (server.oracle.name, server.pid, server.url) == ("chain", None, "http://127.0.0.1:21234")
    with server.client() as talk:
        assert talk.send("GET", "/health").body == "fine"


def test_a_recorded_server_is_asked_nothing_beside_the_test(recalled):
    host, _ = recalled(get("/metrics", "a 1\n"))
    host.begin(None)
    assert host.counters() == ""


def test_facts_are_those_of_the_recording(recalled, monkeypatch):
    metrics = 'vllm:cache_config_info{enable_prefix_caching="True"} 1.0\n'
    _, server = recalled(get("/metrics", metrics), log="kernel: eager\n")
    assert server.fact("prefix_cache") is True
    monkeypatch.setattr(Catalog, "fact", lambda *_: {"log": "kernel: (.*)"})
    assert server.fact("anything") == "eager"


def test_another_server_is_not_applicable(recalled):
    with pytest.raises(NotApplicable, match="is of the server chain-mtp1-prefix_cache, this needs chain"):
        recalled(spec=ServerSpec("chain"))


def test_a_checkpoint_that_is_missing_here_is_not_looked_for(recalled):
    told = about(spec={"model": "~/models/big"})
    assert recalled(spec=ServerSpec("/data/big"), told=told)[1].client()


def test_only_the_recorded_test_is_judged(target):
    recorded = about()["result"]["id"]
    assert target().refuses(recorded) is None
    assert f"holds the answers to {recorded} alone" in target().refuses(
        "tests/features/test_a.py::test_other"
    )


def test_the_recording_of_the_other_engine_is_one_sentence(target):
    told = about()
    told["engine"]["name"] = "sglang"
    with pytest.raises(HarnessError, match="was recorded from sglang, not from vllm"):
        _ = target(told=told).version


def test_a_server_that_never_answered_cannot_be_judged(target):
    made = target(told=about(url=None, served=None))
    (made.path / "exchanges.jsonl").write_text("")
    with pytest.raises(HarnessError, match="holds no answer of a server"):
        _ = made.version


def test_waiting_for_counters_ends_as_it_was_recorded():
    def metrics(done, at):
        return get("/metrics", f'vllm:request_success_total{{reason="stop"}} {done}\n', started=at)

    said = [metrics(0, 1.0), exchange(started=2.0), metrics(0, 3.0), metrics(1, 4.0)]
    with client(*said) as talk:
        with observe.watch(talk) as seen:
            talk.send("POST", PATH, {"prompt": "it's"})
        assert seen["finished_requests"] == 1
        assert isinstance(talk.exchanges[0], Exchange)
