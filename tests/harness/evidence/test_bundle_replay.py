"""replay.py of a bundle needs no suite: it sends the requests again and says which answers are not as recorded."""

import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fixtures.evidence import kept, replay
from fixtures.model import Event
from tests.harness.evidence.samples import exchange

SCRIPT = replay.__file__


@pytest.fixture
def server():
    """Give a server whose answers a test sets: `server.answers[path]` is (status, type, text) or a function."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            made.asked.append((self.command, self.path, json.loads(body) if body else None))
            made.keys.append(self.headers.get("authorization"))
            answer = made.answers.get(self.path, (404, "text/plain", "nothing"))
            status, kind, text = answer() if callable(answer) else answer
            if status == 0:
                return
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815 - the name is http.server's

        def log_message(self, *args):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.answers, made.asked, made.keys = {}, [], []
    made.url = f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def replayed(tmp_path, server):
    """Run replay.py in a folder that holds it and a recording, and nothing of the suite."""

    def run(*exchanges, url=None, **env):
        folder = tmp_path / "unpacked"
        folder.mkdir(exist_ok=True)
        shutil.copy(SCRIPT, folder)
        kept.write_exchanges(folder, exchanges)
        clean = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "DSV4_API_KEY"}}
        return subprocess.run(
            [sys.executable, folder / "replay.py", url or server.url], cwd=folder, env=clean | env,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return run


def body(text="hi", **more):
    return json.dumps({"choices": [{"index": 0, "text": text}], "usage": {"completion_tokens": 1}} | more)


def asked(server):
    return [one for one in server.asked if one[:2] != ("GET", "/")]  # the look whether somebody is there


PATH = "/v1/completions"
JSON = "application/json"


def test_the_same_answers_are_as_recorded(replayed, server):
    server.answers[PATH] = (200, JSON, body(id="2", created=2, system_fingerprint="b"))
    result = replayed(
        exchange(body(id="1", created=1), request={"n": 1}), exchange(body(), request={"n": 2}, started=200.0)
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "1. POST /v1/completions: as recorded",
        "2. POST /v1/completions: as recorded",
        "all 2 answers are as recorded",
    ]
    assert asked(server) == [("POST", PATH, {"n": 1}), ("POST", PATH, {"n": 2})]


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        ((200, JSON, body("ho")), ['-   "text": "hi"', '+   "text": "ho"']),
        ((500, JSON, body()), ["-status 200", "+status 500"]),
        (
            (200, JSON, body(usage={"completion_tokens": 2})),
            ['-  "completion_tokens": 1', '+  "completion_tokens": 2'],
        ),
        ((200, "text/plain", "no JSON"), ["+no JSON"]),
        ((0, "", ""), ["+status 0", "+no answer: RemoteProtocolError*"]),
    ],
)
def test_what_differs_is_shown(replayed, server, answer, lines):
    server.answers[PATH] = answer
    result = replayed(exchange(body()))
    assert (result.returncode, result.stderr) == (1, "")
    assert "1. POST /v1/completions: DIFFERENT\n" in result.stdout
    for line in lines:
        assert line.rstrip("*") in result.stdout
    assert result.stdout.endswith("1 of 1 answers differ\n")


def test_requests_that_did_not_overlap_go_out_in_order(replayed, server):
    server.answers[PATH] = (200, JSON, "{}")
    replayed(*(exchange(request={"n": n}, started=float(n), elapsed=0.999) for n in (3, 1, 2)))
    assert [one[2]["n"] for one in asked(server)] == [1, 2, 3]


def test_requests_that_overlapped_overlap_again(replayed, server):
    barrier = threading.Barrier(3, timeout=20)

    def together():
        barrier.wait()
        return 200, JSON, "{}"

    server.answers[PATH] = together
    result = replayed(*(exchange(request={"n": n}, started=100 + n / 10, elapsed=0.5) for n in range(3)))
    assert result.returncode == 0, result.stdout


def test_one_that_ended_before_is_waited_for_though_others_run(replayed, server):
    """A ran all the time; B ended before C began."""
    gone = threading.Event()
    order = []

    def slow():
        gone.wait(20)
        return 200, JSON, "{}"

    def note(name):
        def answer():
            order.append(name)
            if name == "C":
                gone.set()
            return 200, JSON, "{}"

        return answer

    server.answers = {"/a": slow, "/b": note("B"), "/c": note("C")}
    said = [("/a", 100.0, 9.0), ("/b", 101.0, 1.0), ("/c", 103.0, 1.0)]
    result = replayed(*(exchange(path=path, started=started, elapsed=e) for path, started, e in said))
    assert (result.returncode, order) == (0, ["B", "C"])


def test_a_stream_is_compared_by_what_it_adds_up_to(replayed, server):
    def chunk(text, finish=None, **more):
        delta = {"content": text, "tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} | more)

    events = (Event(1.0, chunk("ab")), Event(2.0, chunk("c", "stop", usage={"n": 1})), Event(3.0, "[DONE]"))
    now = [
        chunk("a", id="new"),
        chunk("b"),
        chunk("c", "stop"),
        json.dumps({"choices": [], "usage": {"n": 1}}),
    ]
    text = "".join(f"data: {part}\n\n" for part in [*now, "[DONE]"])
    server.answers[PATH] = (200, "text/event-stream; charset=utf-8", text)
    result = replayed(exchange("", events=events))
    assert result.returncode == 0, result.stdout
    server.answers[PATH] = (200, "text/event-stream", text.replace('"c"', '"d"'))
    result = replayed(exchange("", events=events))
    assert result.returncode == 1
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["-", '"content":', '"abc",'] in lines
    assert ["+", '"content":', '"abd",'] in lines


def test_numbers_are_compared_to_four_digits(replayed, server):
    server.answers[PATH] = (200, JSON, '{"logprob": -0.123449}')
    assert replayed(exchange('{"logprob": -0.12341}')).returncode == 0
    assert replayed(exchange('{"logprob": -0.1239}')).returncode == 1


def test_counters_are_compared_by_their_status_alone(replayed, server):
    said = exchange("a 1\n", path="/metrics", method="GET", request=None)
    server.answers["/metrics"] = (200, "text/plain", "a 2\n")
    assert replayed(said).returncode == 0
    server.answers["/metrics"] = (404, "text/plain", "a 1\n")
    assert replayed(said).returncode == 1


def test_the_key_of_the_environment_goes_along(replayed, server):
    replayed(exchange(), DSV4_API_KEY="the-key")
    assert set(server.keys) == {"Bearer the-key"}
    server.keys.clear()
    replayed(exchange())
    assert set(server.keys) == {None}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:8000", "ftp://x", "http://[x"])
def test_no_server_is_one_sentence(replayed, url):
    result = replayed(exchange(), url=url)
    assert (result.returncode, result.stderr) == (2, "")
    assert result.stdout.startswith(f"error: no server answers at {url} (")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"path": "@evil/", "started": 1}', '{"path": 1}'])
def test_a_recording_that_is_none_is_one_sentence(replayed, server, tmp_path, text):
    replayed(exchange())
    server.asked.clear()
    recording = tmp_path / "other.jsonl"
    recording.write_text(text)
    command = [sys.executable, SCRIPT, server.url, recording]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "")
    assert result.stdout.startswith("error: ")
    assert server.asked == []
