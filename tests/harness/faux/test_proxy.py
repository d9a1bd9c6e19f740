"""A proxy passes everything through as it is, or with one fault; what breaks behind it breaks before it."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fixtures.client.chat import Client
from fixtures.engines.rules import Catalog
from fixtures.faux import proxy as command
from fixtures.faux.faults import FAULTS
from fixtures.faux.proxy import Proxy
from fixtures.faux.scene import Answer, Ask, Fault
from fixtures.launch.process import free_port

VLLM = Catalog.bound("vllm", "0.32.0", "cpu")
BINARY = bytes(range(256)) * 10
WAIT = 10  # seconds, for what must come at once
CROWD = 32
ROOT = Path(__file__).parents[3]


class Upstream:
    """A small server whose streams wait for events that the test sets."""

    def __init__(self):
        self.go = threading.Event()
        self.left = threading.Event()
        self.here = 0
        self.all_here = anyio.Event()
        self.app = Starlette(routes=[
            Route("/echo", self.echo, methods=["GET", "POST", "PUT", "DELETE", "PATCH"]),
            Route("/binary", lambda _: Response(BINARY, 418, {"x-own": "1", "content-type": "application/x-odd"})),
            Route("/stream", self.stream), Route("/crowd", self.crowd), Route("/short", self.short),
            Route("/v1/completions", self.complete, methods=["POST"]),
        ])  # fmt: skip

    async def echo(self, request):
        seen = {
            name: request.headers.get(name)
            for name in ("authorization", "content-type", "accept-encoding", "user-agent")
        }
        path = request.scope["raw_path"].decode() + "?" + request.scope["query_string"].decode()
        return JSONResponse(
            {"method": request.method, "path": path, "headers": seen, "body": (await request.body()).hex()}
        )

    async def complete(self, request):
        body = await request.json()
        if body.get("stream"):
            return StreamingResponse(
                iter(["data: 1\n\nda", "ta: 2\n\n", "data: [DONE]\n\n"]), media_type="text/event-stream"
            )
        return JSONResponse({"asked": body})

    def stream(self, _request):
        return StreamingResponse(self.waiting(), media_type="text/event-stream")

    async def waiting(self):
        try:
            yield b"data: one\n\n"
            await anyio.to_thread.run_sync(self.go.wait, WAIT, abandon_on_cancel=True)
            yield b"data: two\n\n"
        finally:
            self.left.set()

    async def crowd(self, _request):
        self.here += 1
        if self.here == CROWD:
            self.all_here.set()
        with anyio.move_on_after(WAIT):
            await self.all_here.wait()
        return Response(str(self.here))

    def short(self, _request):
        """Promises more than it sends."""
        return Response(b"half", headers={"content-length": "100"})


@contextmanager
def serving(app):
    port = free_port(None)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def upstream():
    return Upstream()


@pytest.fixture
def proxy(upstream):
    with serving(upstream.app) as url, Proxy(url, VLLM) as one:
        yield one


def fault(**functions):
    return Fault("made_up", "Is made up.", **functions)


class TestPassingThrough:
    @pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
    def test_method_path_query_headers_and_body_are_as_sent(self, proxy, method):
        headers = {
            "authorization": "Bearer x",
            "content-type": "odd/type",
            "accept-encoding": "identity",
            "user-agent": "me",
        }
        content = b"" if method == "GET" else b'{"spaces" :  [1]}\xff'
        seen = httpx.request(
            method, f"{proxy.url}/echo?a=%2F&b=1&b=2", content=content, headers=headers
        ).json()
        expected = {
            "method": method,
            "path": "/echo?a=%2F&b=1&b=2",
            "headers": headers,
            "body": content.hex(),
        }
        assert seen == expected

    def test_status_headers_and_bytes_are_as_answered(self, proxy):
        answer = httpx.get(f"{proxy.url}/binary")
        assert (answer.status_code, answer.content) == (418, BINARY)
        assert answer.headers["x-own"] == "1"
        assert answer.headers["content-type"] == "application/x-odd"
        assert answer.headers["content-length"] == str(len(BINARY))

    def test_an_event_comes_before_the_next_one_is_sent(self, proxy, upstream):
        with httpx.stream("GET", f"{proxy.url}/stream", timeout=WAIT) as answer:
            chunks = answer.iter_raw()
            assert next(chunks) == b"data: one\n\n"
            upstream.go.set()
            assert b"".join(chunks) == b"data: two\n\n"

    def test_a_client_that_goes_away_is_gone_upstream_too(self, proxy, upstream):
        with httpx.stream("GET", f"{proxy.url}/stream", timeout=WAIT) as answer:
            chunks = answer.iter_raw()  # kept: a generator that is dropped closes the answer
            next(chunks)
            assert not upstream.left.is_set()
        assert upstream.left.wait(WAIT)

    def test_many_requests_are_upstream_at_once(self, proxy, upstream):
        with ThreadPoolExecutor(CROWD) as pool:
            seen = pool.map(lambda _: httpx.get(f"{proxy.url}/crowd", timeout=2 * WAIT).text, range(CROWD))
        assert set(seen) == {str(CROWD)}
        assert upstream.all_here.is_set()

    def test_nothing_is_recorded_or_wrong(self, proxy):
        httpx.get(f"{proxy.url}/echo")
        assert proxy.errors == []


class TestWithAFault:
    def test_what_is_asked_and_what_is_answered_change(self, proxy):
        proxy.inject(
            fault(
                ask=lambda _, ask: Ask(ask.method, ask.path, {**ask.body, "seed": None}),
                answer=lambda _, ask, answer: answer.but(body=f"{ask.body} {answer.body}", status=201),
            )
        )
        answer = httpx.post(f"{proxy.url}/v1/completions", json={"seed": 1})
        assert answer.status_code == 201
        assert answer.text == """{'seed': 1} {"asked":{"seed":null}}"""
        assert answer.headers["content-type"] == "application/json"

    def test_a_request_that_is_left_alone_keeps_its_bytes(self, proxy):
        proxy.inject(fault())
        content = b'{"spaces" :  [1]}'
        assert httpx.post(f"{proxy.url}/echo?x=1", content=content).json()["body"] == content.hex()
        assert httpx.get(f"{proxy.url}/echo?x=1").json()["path"] == "/echo?x=1"
        assert httpx.get(f"{proxy.url}/binary").content == BINARY

    def test_a_fault_may_answer_in_place_of_the_engine(self, proxy):
        proxy.inject(fault(ask=lambda _scene, _ask: Answer(503, "text/plain", "no")))
        answer = httpx.get(f"{proxy.url}/echo")
        assert (answer.status_code, answer.text, answer.headers["content-type"]) == (503, "no", "text/plain")

    def test_a_stream_stays_one_and_keeps_its_pauses(self, proxy, upstream):
        proxy.inject(
            fault(answer=lambda _scene, _ask, answer: answer.but(events=(*answer.events, (0.3, "new\nline"))))
        )
        upstream.go.set()
        times = []
        with httpx.stream("GET", f"{proxy.url}/stream", timeout=WAIT) as answer:
            chunks = [(chunk, times.append(time.monotonic())) for chunk in answer.iter_raw()]
        assert (
            b"".join(chunk for chunk, _ in chunks) == b"data: one\n\ndata: two\n\ndata: new\ndata: line\n\n"
        )
        assert times[-1] - times[-2] > 0.25

    def test_events_are_read_however_they_were_cut(self, proxy):
        seen = []
        proxy.inject(fault(answer=lambda _scene, _ask, answer: seen.append(answer) or answer))
        httpx.post(f"{proxy.url}/v1/completions", json={"stream": True})
        assert [data for _, data in seen[0].events] == ["1", "2", "[DONE]"]
        assert all(wait >= 0 for wait, _ in seen[0].events)

    def test_the_history_is_what_was_asked_and_truly_answered_since(self, proxy):
        told = []

        def note(scene, _ask, answer):
            told.append(scene.history)
            return answer.but(body="changed")

        one = fault(ask=lambda _, ask: Ask(ask.method, ask.path, {"changed": 1}), answer=note)
        for _ in range(2):
            proxy.inject(one)
            for n in range(2):
                httpx.post(f"{proxy.url}/v1/completions", json={"n": n})
        first = (Ask("POST", "/v1/completions", {"n": 0}), Answer(body='{"asked":{"changed":1}}'))
        assert told == [(), (first,), (), (first,)]

    def test_a_crowd_is_all_in_the_history(self, proxy):
        sizes = []
        proxy.inject(fault(answer=lambda scene, _, answer: sizes.append(len(scene.history)) or answer))
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda n: httpx.post(f"{proxy.url}/v1/completions", json={"n": n}), range(48)))
        assert sorted(sizes) == list(range(48))

    def test_a_fault_that_raises_is_a_mistake_of_ours(self, proxy):
        def wrong(_scene, _ask):
            raise KeyError("choices")

        proxy.inject(fault(ask=wrong))
        answer = httpx.get(f"{proxy.url}/echo")
        assert answer.status_code == 502
        (error,) = proxy.errors
        assert answer.json() == {"error": error}
        assert error == "the fault made_up cannot change the ask of GET /echo: KeyError('choices')"
        proxy.inject(None)
        assert proxy.errors == []
        assert httpx.get(f"{proxy.url}/echo").status_code == 200


class TestBreaking:
    @pytest.mark.parametrize("part", ["ask", "answer"])
    def test_a_broken_answer_is_a_broken_connection(self, proxy, part):
        proxy.inject(fault(**{part: lambda *_: Answer(broken=True)}))
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{proxy.url}/echo")
        proxy.inject(None)
        assert httpx.get(f"{proxy.url}/echo").status_code == 200

    def test_a_broken_answer_leaves_others_alone(self, proxy, upstream):
        with httpx.stream("GET", f"{proxy.url}/stream", timeout=WAIT) as answer:
            chunks = answer.iter_raw()
            next(chunks)
            proxy.inject(fault(ask=lambda *_: Answer(broken=True)))
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{proxy.url}/echo")
            upstream.go.set()
            assert b"".join(chunks) == b"data: two\n\n"

    @pytest.mark.parametrize("faulty", [False, True])
    def test_no_server_is_a_broken_connection(self, faulty):
        with Proxy(f"http://127.0.0.1:{free_port(None)}", VLLM) as proxy:
            proxy.inject(fault() if faulty else None)
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{proxy.url}/echo")

    @pytest.mark.parametrize("faulty", [False, True])
    def test_an_answer_that_breaks_off_breaks_off(self, proxy, faulty):
        proxy.inject(fault() if faulty else None)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{proxy.url}/short")

    def test_the_suites_client_sees_a_transport_error(self, proxy):
        proxy.inject(FAULTS["engine_dies_of_bad_input"])
        proxy.inject(fault(ask=lambda *_: Answer(broken=True)))
        with Client(proxy.url, "oracle", VLLM) as client, pytest.raises(httpx.TransportError):
            client.complete("x")

    def test_a_closed_proxy_does_not_answer(self, upstream):
        with serving(upstream.app) as url:
            proxy = Proxy(url, VLLM)
            proxy.close()
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{proxy.url}/echo")


class TestTheCommand:
    def test_it_lists_all_faults_with_their_sentences(self, capsys):
        assert command.main(["--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(FAULTS)
        assert lines[0].split(None, 1)[1] == FAULTS[min(FAULTS)].what

    @pytest.mark.parametrize(
        ("args", "sentence"),
        [
            (["vllm", "0.32.0", "http://x", "--fault", "seed_ignore"], "Did you mean 'seed_ignored'?"),
            (["vllm", "0.32.0", "http://x", "--fault", "zzz"], "--list shows all"),
            (["vllm", "0.32.0", "127.0.0.1:8000"], "Write it like http://127.0.0.1:8000"),
            (["vllm", "0.32.0", "http://"], "Write it like http://127.0.0.1:8000"),
            (["vllm", "zero", "http://x"], "'zero' is no release"),
            (["vllm"], "name the engine, its release and its URL"),
        ],
    )
    def test_a_mistake_is_one_sentence(self, args, sentence, capsys):
        assert command.main(args) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert sentence in err
        assert len(err.splitlines()) == 1

    def test_a_port_in_use_is_one_sentence(self, proxy, capsys):
        port = proxy.url.rpartition(":")[2]
        assert command.main(["vllm", "0.32.0", proxy.url, "--port", port]) == 2
        assert f"cannot serve on port {port}" in capsys.readouterr().err

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_it_serves_with_the_fault_until_it_is_stopped(self, upstream, number):
        with serving(upstream.app) as url:
            call = [
                sys.executable,
                "-m",
                "fixtures.faux.proxy",
                "vllm",
                "0.32.0",
                url,
                "--fault",
                "seed_ignored",
            ]
            with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
                try:
                    said = process.stdout.readline()
                    seen = httpx.post(f"{said.split()[0]}/v1/completions", json={"seed": 1}).json()
                finally:
                    process.send_signal(number)
            assert said.endswith(f" -> {url}: {FAULTS['seed_ignored'].what}\n")
        assert seen == {"asked": {}}
        assert process.returncode == 0
