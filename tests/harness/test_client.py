"""What goes over the wire is recorded as it was, and counters are read when they have settled."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.client import observe
from fixtures.client.chat import Client
from fixtures.client.wire import RecordingTransport, events
from fixtures.engines.rules import Catalog, NotApplicable, NotShown
from fixtures.errors import EngineFault
from fixtures.judge.schema import Constraint
from fixtures.model import DraftCounts

VLLM = Catalog.bound("vllm", "0.32.0", "cpu")
SGLANG = Catalog.bound("sglang", "0.5.20", "cpu")


class Parts(httpx.SyncByteStream):
    def __init__(self, *parts):
        self.parts = parts

    def __iter__(self):
        yield from self.parts


def client(handler, catalog=VLLM):
    """A client whose server is a function from request to response."""
    return Client("http://engine", "oracle", catalog, RecordingTransport(httpx.MockTransport(handler)))


class TestEvents:
    @given(
        data=st.lists(st.text(max_size=20).filter(lambda t: not set("\r\n") & set(t)), max_size=6),
        cuts=st.data(),
    )
    def test_however_the_stream_is_cut_the_events_are_the_same(self, data, cuts):
        wire = "".join(f"data: {text}\n\n" for text in data).encode()
        places = sorted(cuts.draw(st.sets(st.integers(0, len(wire)), max_size=8)) | {0, len(wire)})
        chunks = [(float(n), wire[a:b]) for n, (a, b) in enumerate(pairwise(places))]
        seen = events(chunks)
        assert [event.data for event in seen] == data
        end = 0
        for event, text in zip(seen, data, strict=True):  # the chunk with an event's last byte gives its time
            end += len(f"data: {text}\n\n".encode())
            assert event.at == next(
                at for at, a in zip(range(len(places)), places[1:], strict=False) if a >= end
            )

    def test_carriage_returns_comments_and_other_fields_are_no_data(self):
        wire = b": ping\r\nevent: x\r\ndata: a\r\ndata: b\r\n\r\ndata: unfinished"
        assert [event.data for event in events([(0.0, wire)])] == ["a\nb"]


class TestRecording:
    def test_an_exchange_has_what_was_sent_and_received(self):
        talk = client(lambda request: httpx.Response(418, json={"sent": json.loads(request.content)}))
        exchange = talk.send("POST", "/v1/completions?x=1", {"n": 1})
        assert (exchange.method, exchange.path, exchange.request) == ("POST", "/v1/completions?x=1", {"n": 1})
        assert exchange.status == 418
        assert exchange.json() == {"sent": {"n": 1}}
        assert exchange.events == ()
        assert talk.exchanges == [exchange]

    def test_a_stream_is_recorded_as_events(self):
        stream = Parts(b'data: {"a": 1}\n', b"\ndata: [DONE]\n\n")
        headers = {"content-type": "text/event-stream"}
        exchange = client(lambda _: httpx.Response(200, headers=headers, stream=stream)).send(
            "POST", "/x", {}
        )
        assert [event.data for event in exchange.events] == ['{"a": 1}', "[DONE]"]
        assert exchange.body == ""
        assert 0 <= exchange.events[0].at <= exchange.events[1].at <= exchange.elapsed

    def test_no_compression_is_asked_for(self):
        exchange = client(lambda r: httpx.Response(200, text=r.headers["accept-encoding"])).send("GET", "/x")
        assert exchange.body == "identity"

    def test_the_openai_sdk_is_recorded_too(self):
        body = {"id": "1", "object": "text_completion", "created": 1, "model": "oracle", "choices": []}
        talk = client(lambda _: httpx.Response(200, json=body))
        talk.openai.completions.create(model="oracle", prompt="x", extra_body={"salt": 1})
        (exchange,) = talk.exchanges
        assert exchange.request == {"model": "oracle", "prompt": "x", "salt": 1}

    def test_threads_keep_their_exchanges_apart(self):
        talk = client(lambda request: httpx.Response(200, content=request.content))
        with ThreadPoolExecutor(8) as pool:
            seen = list(pool.map(lambda n: talk.send("POST", "/x", {"n": n}), range(200)))
        assert [exchange.json()["n"] for exchange in seen] == list(range(200))
        assert len(talk.exchanges) == 200

    def test_a_broken_connection_is_the_transports_error(self):
        def refuse(request):
            raise httpx.ConnectError("refused", request=request)

        with pytest.raises(httpx.TransportError):
            client(refuse).send("GET", "/x")

    def test_closing_closes_the_connections(self):
        inner = httpx.MockTransport(lambda _: httpx.Response(200))
        closed = []
        inner.close = lambda: closed.append(True)
        RecordingTransport(inner).close()
        assert closed == [True]


class TestBodies:
    @pytest.mark.parametrize(
        ("catalog", "constraint", "expected"),
        [
            (VLLM, Constraint("regex", "a"), {"structured_outputs": {"regex": "a"}}),
            (SGLANG, Constraint("regex", "a"), {"regex": "a"}),
            (VLLM, Constraint("choice", ["a"]), {"structured_outputs": {"choice": ["a"]}}),
            (SGLANG, Constraint("grammar", "g", pattern="g"), {"ebnf": "g"}),
            (VLLM, Constraint("json_object"), {"response_format": {"type": "json_object"}}),
        ],
    )
    def test_a_constraint_is_said_in_the_releases_words(self, catalog, constraint, expected):
        body = client(None, catalog).body({"prompt": "x"}, constraint=constraint)
        assert body == {"model": "oracle", "prompt": "x", **expected}

    def test_a_schema_goes_into_the_response_format(self):
        body = client(None).body({}, constraint=Constraint("json_schema", {"type": "null"}))
        assert body["response_format"]["json_schema"]["schema"] == {"type": "null"}

    def test_what_a_release_cannot_be_asked_is_not_applicable(self):
        with pytest.raises(NotApplicable, match="choice"):
            client(None, SGLANG).body({}, constraint=Constraint("choice", ["a"]))

    def test_streams_are_asked_for_their_usage(self):
        assert client(None).body({}, stream=True)["stream_options"] == {"include_usage": True}

    def test_salts_and_token_ids_have_their_fields(self):
        assert client(None).body({}, salt="s", token_ids=True) == {
            "model": "oracle",
            "cache_salt": "s",
            "return_token_ids": True,
        }


def metrics(**counts):
    lines = [f'{name.replace("__", ":")}_total{{model="m"}} {value}' for name, value in counts.items()]
    return httpx.Response(200, text="\n".join([*lines, ""]))


class TestCounters:
    def engine(self, after, lag=0):
        """An engine whose counters come `lag` scrapes after its answer."""
        scrapes = iter([{"vllm__request_success": 5, "vllm__prefix_cache_hits": 7}])
        late = iter(range(lag))
        state = {"answered": False}

        def handler(request):
            if request.url.path == "/v1/completions":
                state["answered"] = True
                return httpx.Response(200, json={"choices": []})
            before = next(scrapes, None)
            if before is not None or next(late, None) is not None:
                return metrics(**(before or {"vllm__request_success": 5, "vllm__prefix_cache_hits": 7}))
            return metrics(**after)

        return client(handler)

    @pytest.mark.parametrize("lag", [0, 3])
    def test_a_block_sees_the_growth_of_counters_once_its_requests_are_booked(self, lag):
        talk = self.engine({"vllm__request_success": 6, "vllm__prefix_cache_hits": 107}, lag)
        with observe.watch(talk) as seen:
            talk.complete("x")
        assert seen["prefix_hits"] == 100

    def test_a_counter_that_was_never_touched_has_not_grown(self):
        talk = self.engine({"vllm__request_success": 6, "vllm__prefix_cache_hits": 7})
        with observe.watch(talk) as seen:
            talk.complete("x")
        assert seen["draft_steps"] == 0

    def test_requests_that_are_never_booked_are_the_engines_fault(self, monkeypatch):
        monkeypatch.setattr(observe, "_SETTLE_LIMIT", 0.2)
        talk = self.engine({"vllm__request_success": 5, "vllm__prefix_cache_hits": 7})
        with pytest.raises(EngineFault, match="1 requests were answered"), observe.watch(talk):
            talk.complete("x")

    def test_drafts_are_read_from_counters(self):
        after = {
            "vllm__request_success": 6,
            "vllm__spec_decode_num_drafts": 4,
            "vllm__spec_decode_num_draft_tokens": 12,
            "vllm__spec_decode_num_accepted_tokens": 5,
        }
        talk = self.engine(after)
        with observe.count_drafts(talk, 3) as seen:
            talk.complete("x")
        assert seen() == DraftCounts(4, 12, 5, (0, 0, 0))

    @pytest.mark.parametrize("stream", [False, True])
    def test_drafts_are_read_from_replies_where_a_release_tells_them(self, stream):
        told = {
            "spec_num_proposed_drafts": 12,
            "spec_num_correct_drafts": 5,
            "spec_correct_drafts_histogram": [1, 1, 2],  # four steps: none, one, two and two accepted
        }
        body = {"choices": [], "sglext": {"spec_tokens_details": told}}
        scrapes = iter([(5, 10), (6, 14)])

        def handler(request):
            if request.url.path == "/v1/completions":
                assert json.loads(request.content)["return_spec_tokens_details"] is True
                if not stream:
                    return httpx.Response(200, json=body)
                wire = f'data: {{"choices": []}}\n\ndata: {json.dumps(body)}\n\ndata: [DONE]\n\n'
                return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=wire)
            requests, steps = next(scrapes)
            return metrics(sglang__num_requests=requests, sglang__spec_verify_calls=steps)

        talk = client(handler, SGLANG)
        with observe.count_drafts(talk, 3) as seen:
            talk.complete("x", stream=stream)
        assert seen() == DraftCounts(4, 12, 5, (3, 2, 0))
        assert "return_spec_tokens_details" not in talk.body({})


class TestFacts:
    def facts(self, info=None, text="", status=200):
        def handler(request):
            if request.url.path == "/metrics":
                return httpx.Response(200, text=text)
            return httpx.Response(status, json=info)

        return client(handler)

    def test_a_fact_comes_from_a_metrics_label(self):
        text = 'vllm:cache_config_info{block_size="128",enable_prefix_caching="True"} 1.0\n'
        assert observe.fact(self.facts(text=text), "block_size") == 128
        assert observe.fact(self.facts(text=text), "prefix_cache") is True

    def test_a_fact_comes_from_the_servers_information(self):
        info = {
            "vllm_config": {"structured_outputs_config": {"backend": "guidance"}, "speculative_config": None}
        }
        assert observe.fact(self.facts(info), "grammar") == "llguidance"
        assert observe.fact(self.facts(info), "speculative_tokens") is None

    @pytest.mark.parametrize(("method", "facts"), [("mtp", (3, 0)), ("ngram", (0, 3))])
    def test_a_fact_of_one_method_is_zero_where_another_is_in_use(self, method, facts):
        info = {"vllm_config": {"speculative_config": {"method": method, "num_speculative_tokens": 3}}}
        assert tuple(observe.fact(self.facts(info), name) for name in ("mtp_tokens", "ngram_tokens")) == facts
        nothing = {"vllm_config": {"speculative_config": None}}
        assert observe.fact(self.facts(nothing), "mtp_tokens") == 0

    @pytest.mark.parametrize("answer", [{"info": {}, "status": 404}, {"info": {"vllm_config": {}}}])
    def test_a_fact_that_should_be_there_and_is_not_is_named(self, answer):
        with pytest.raises(NotShown, match=r"grammar|structured_outputs_config"):
            observe.fact(self.facts(**answer), "grammar")

    @pytest.mark.parametrize(
        ("text", "value"),
        [("True", True), ("none", None), ("12", 12), ("0.5", 0.5), ("fp8", "fp8"), ("", "")],
    )
    def test_words_are_read_as_values(self, text, value):
        assert observe.plain(text) == value
