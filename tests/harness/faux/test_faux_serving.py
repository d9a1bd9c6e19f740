"""The fake as a process and behind HTTP: flags, the target, a whole run of the suite."""

import os
import subprocess
import sys

import pytest
from starlette.testclient import TestClient

from fixtures.engines.rules import Catalog
from fixtures.errors import HarnessError
from fixtures.faux import flags, serve
from fixtures.judge.stream import problems
from fixtures.launch import faux, targets
from fixtures.model import Event, ServerSpec


@pytest.fixture
def http(fake):
    server = fake("vllm", "chain")
    with TestClient(serve.app(server.dialect), base_url="http://faux") as client:
        yield client


def test_answers_are_carried_over_http(http):
    body = {"model": "oracle", "prompt": [300, 301], "max_tokens": 3}
    whole = http.post("/v1/completions", json=body)
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["usage"]["completion_tokens"] == 3
    streamed = http.post("/v1/completions", json={**body, "stream": True})
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line]
    assert problems([Event(0, line) for line in lines], "completion") == []
    assert http.get("/server_info?config_format=json").status_code == 200
    assert http.post("/v1/completions", content=b"{bad").status_code == 400
    assert http.get("/metrics").headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(("engine", "model"), [("vllm", "--model"), ("sglang", "--model-path")])
def test_an_unknown_flag_ends_the_start_as_in_the_real_engine(engine, model, capsys):
    with pytest.raises(SystemExit) as end:
        flags.settings(engine, "1.0", [model, "/nowhere", "--port", "1", "--nonsense"], {})
    assert end.value.code == 2
    assert "error: unrecognized arguments: --nonsense" in capsys.readouterr().err


def test_a_model_that_is_none_ends_the_process_with_a_sentence(tmp_path):
    command = [
        sys.executable,
        "-m",
        "fixtures.faux",
        "vllm",
        "0.32.0",
        "--model",
        str(tmp_path),
        "--port",
        "1",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert ended.returncode == 1
    assert "no oracle checkpoint" in ended.stderr


def test_what_a_server_is_started_without_it_does_not_serve(fake):
    open_server = fake("vllm", "chain")
    argv = ["--model", str(open_server.oracle.path), "--port", "1"]
    closed = serve.dialect(flags.settings("vllm", "0.32.0", argv, {}), open_server.oracle)
    with TestClient(serve.app(closed)) as client:
        assert client.get("/server_info").status_code == 404
        assert client.post("/reset_prefix_cache").status_code == 404
        body = {"prompt": [300, 301], "max_tokens": 1}
        assert client.post("/v1/completions", json=body).json()["usage"]["prompt_tokens_details"] is None


def test_the_target_is_read_and_starts_the_fake_with_the_real_flags():
    assert targets.parse("vllm", "faux:").text == "faux:0.32.0"
    target = targets.parse("sglang", "faux:0.5.19")
    assert (target.version, target.device, target.fake) == ("0.5.19", "cpu", True)
    with pytest.raises(HarnessError, match="is no version"):
        targets.parse("vllm", "faux:latest")
    real = Catalog.bound("sglang", "0.5.19", "cpu").launch(ServerSpec("chain"), "python", "/model", 5)
    launch = target.launch(real)
    assert launch.argv[:5] == (sys.executable, "-m", "fixtures.faux", "sglang", "0.5.19")
    assert launch.argv[5:] == real.argv[3:]
    assert "sglang_cpu" not in launch.env["PYTHONPATH"]  # its sitecustomize is for the real engine


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(faux, "find_spec", lambda _: None)
    with pytest.raises(HarnessError, match=r"needs llguidance, .*pip install -e '\.\[faux\]'"):
        targets.parse("vllm", "faux:").prepare(print)


def test_a_test_passes_on_the_fake(suite):
    suite.write(
        features__test_fake="""
@serve(model="chain")
@pytest.mark.vllm
def test_answers(client, oracle, counters):
    with counters() as seen:
        reply = client.complete([300, 301], max_tokens=4, temperature=0)
    assert oracle.tokenizer.encode(reply.text) == oracle.greedy([300, 301], 4)
    assert seen["finished_requests"] == 1
"""
    )
    result = suite.run("--vllm", "faux:")
    result.assert_outcomes(passed=1)
