"""`python -m ci record` picks what a fake can be held to, and hides what is of one machine."""

import gzip
import json

import pytest

from ci.__main__ import main
from fixtures.faux import recordings
from fixtures.model import Event
from tests.harness.evidence.samples import about, exchange, keep

MODEL = "/home/jo/.cache/dsv4/models/chain-1"
GREEDY = {"model": "oracle", "prompt": [300, 301], "temperature": 0}
PAGE = """\
# HELP vllm:prompt_tokens_total Tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} 7.0
vllm:prompt_tokens_created{engine="0"} 1.0
vllm:cache_config_info{block_size="128"} 1.0
process_open_fds 3.0
"""


def passed(test="tests/features/test_a.py::test_it[vllm-chain]", **changes):
    made = about(**changes)
    made["result"] |= {"state": "pass", "server": "vllm-chain", "id": test, "test": test.partition("[")[0]}
    return made


def get(path, body, started=100.0):
    return exchange(body, started, method="GET", path=path, request=None)


@pytest.fixture
def record(tmp_path, capsys):
    """Keep tests, by name, as (told, exchanges), and record them; return the sessions and what was said."""

    def run(**tests):
        for name, (test, exchanges) in tests.items():
            (tmp_path / "run" / "tests").mkdir(parents=True, exist_ok=True)
            keep(tmp_path / "run" / "tests" / name, *exchanges, told=test)
        code = main(["record", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
        told = capsys.readouterr()
        file = tmp_path / "out" / "vllm-0.32.0.jsonl.gz"
        return code, recordings.read(file) if file.exists() else [], told.out + told.err

    return run


def test_a_session_tells_the_server_and_what_was_said(record, tmp_path):
    stream = exchange(
        "", 101.0, request=GREEDY, events=(Event(0.01234, '{"id": "a"}'), Event(0.02, "[DONE]"))
    )
    models = get("/v1/models", json.dumps({"data": [{"root": MODEL, "log": "/home/jo/x"}]}))
    code, (session,), said = record(a=(passed(), [models, stream]))
    assert code == 0
    assert said == f"{tmp_path}/out/vllm-0.32.0.jsonl.gz: 1 of 1 tests, {_size(tmp_path)} bytes\n"
    assert (session.engine, session.version, session.model) == ("vllm", "0.32.0", "chain")
    assert session.spec["knobs"] == {"mtp": 1, "prefix_cache": True}
    assert session.argv == ("--model", "{model}", "--port", "{port}")
    assert session.env == {"DO_NOT_TRACK": "1"}
    assert session.exchanges[0].json()["data"][0]["root"] == "{model}"
    assert session.exchanges[1].request == GREEDY
    assert session.exchanges[1].events[0] == Event(0.012, '{"id": "a"}')
    assert session.served("/elsewhere")[0].json()["data"][0]["root"] == "/elsewhere"


def _size(folder):
    return (folder / "out" / "vllm-0.32.0.jsonl.gz").stat().st_size


def test_paths_and_secrets_stay_at_home(record, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/jo")
    monkeypatch.setenv("MY_API_KEY", "hush-hush-hush")
    body = json.dumps(
        {"model": MODEL, "log": "/home/jo/x", "run": f"{tmp_path}/run/y", "k": "hush-hush-hush"}
    )
    record(a=(passed(), [exchange(body, request=GREEDY)]))
    content = gzip.decompress((tmp_path / "out" / "vllm-0.32.0.jsonl.gz").read_bytes()).decode()
    assert all(hidden not in content for hidden in ("/home/jo", str(tmp_path), "hush"))


def test_of_pages_only_what_the_catalog_names_is_kept(record):
    config = {"vllm_config": {"speculative_config": {"method": "mtp", "x": 1}}, "env": {"SECRET": "1"}}
    pages = [get("/metrics", PAGE.replace("7.0", f"{n}.0"), 100.0 + n) for n in range(4)]
    info = get("/server_info", json.dumps(config), 110)
    _, (session,), _ = record(a=(passed(), [*pages, exchange(started=105, request=GREEDY), info]))
    kept = [one.body for one in session.exchanges]
    assert [one.started for one in session.exchanges] == [100, 103, 105, 110]
    assert [line.partition("{")[0] for line in kept[0].splitlines()] == [
        "# TYPE vllm:prompt_tokens_total counter",
        "vllm:prompt_tokens_total",
        "vllm:cache_config_info",
    ]
    assert json.loads(kept[3]) == {"vllm_config": {"speculative_config": {"method": "mtp"}}}


@pytest.mark.parametrize(
    ("told", "exchanges"),
    [
        (about(), [exchange(request=GREEDY)]),
        (passed(launch=None), [exchange(request=GREEDY)]),
        (passed(engine=about()["engine"] | {"fake": True}), [exchange(request=GREEDY)]),
        (passed(engine=about()["engine"] | {"tampered": "a row"}), [exchange(request=GREEDY)]),
        (passed(), [exchange(request=GREEDY, started=n / 10) for n in range(2)]),
        (passed(), [exchange(request={"prompt": [1], "seed": n}, started=n) for n in range(7)]),
    ],
    ids=["failed", "attached", "fake", "tampered", "at once", "chance"],
)
def test_what_a_fake_cannot_be_held_to_is_left_out(record, told, exchanges):
    code, sessions, said = record(a=(told, exchanges))
    assert (code, sessions) == (2, [])
    assert said.startswith("error: no test in ")
    assert said.count("\n") == 1


def test_of_tests_that_are_alike_a_few_are_kept(record):
    tests = {f"t{n}": (passed(f"tests/a.py::test_it[{n}]"), [exchange(request=GREEDY)]) for n in range(9)}
    tests["u"] = (passed("tests/a.py::test_other"), [exchange(request=GREEDY)])
    _, sessions, said = record(**tests)
    assert [one.test.partition("::")[2] for one in sessions] == [
        "test_it[0]", "test_it[4]", "test_it[8]", "test_other",
    ]  # fmt: skip
    assert "4 of 10 tests" in said


def test_what_had_filled_the_cache_comes_before(record):
    def ask(started, *prompt):
        return exchange(request={**GREEDY, "prompt": list(prompt)}, started=started)

    reset = exchange(path="/reset_prefix_cache", request=None, started=2)
    elsewhere = passed("tests/a.py::test_c", launch=about()["launch"] | {"at": 60.0})
    _, sessions, _ = record(
        a=(passed("tests/a.py::test_a"), [ask(1, 5, 6, 7), reset, ask(3, 5, 6), ask(4, 5), ask(5, 9)]),
        b=(passed("tests/a.py::test_b"), [ask(10, 5, 6, 7), ask(11, 5, 6, 8), ask(12, 4)]),
        c=(elsewhere, [ask(20, 5, 6, 7)]),
    )
    assert [[ask.body["prompt"] for ask in one.before] for one in sessions] == [[], [[5, 6]], []]


def test_the_same_run_gives_the_same_bytes(record, tmp_path):
    test = (passed(), [exchange(request=GREEDY)])
    _, first, _ = record(a=test)
    before = (tmp_path / "out" / "vllm-0.32.0.jsonl.gz").read_bytes()
    assert record(a=test)[1] == first
    assert (tmp_path / "out" / "vllm-0.32.0.jsonl.gz").read_bytes() == before


def test_a_mistake_is_one_sentence(record, tmp_path, monkeypatch):
    code, _, said = record()
    assert (code, said) == (
        2,
        f"error: {tmp_path}/run holds no kept tests. Name the folder of a run with --keep.\n",
    )
    monkeypatch.setattr(recordings, "MOST", 100)
    code, _, said = record(a=(passed(), [exchange(request=GREEDY)]))
    assert code == 2
    assert "more than 100. Keep a run of fewer tests" in said
    monkeypatch.setattr(recordings, "MOST", 10_000)
    (tmp_path / "out").write_text("")
    code, _, said = record(a=(passed(), [exchange(request=GREEDY)]))
    assert code == 2
    assert "cannot be written" in said
