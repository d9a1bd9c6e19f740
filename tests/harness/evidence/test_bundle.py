"""A bundle holds what was kept of a test, without secrets and paths, and can be used without the suite."""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.errors import HarnessError
from fixtures.evidence import bundle, issue, kept, redact
from fixtures.model import Event, Exchange
from tests.harness.evidence.samples import ARGV, about, exchange, keep

SECRET = "sk-live0123456789abcdef"
PLACES = {"/home/jo": "~", "/home/jo/suite": "~suite", "/home/jo/.cache/dsv4": "~cache"}


@pytest.fixture
def members(tmp_path):
    """Make a bundle and return its members as texts."""

    def make(*exchanges, **more):
        out = tmp_path / "b.zip"
        bundle.write(keep(tmp_path / "test", *exchanges, **more), out, PLACES)
        with zipfile.ZipFile(out) as packed:
            return {name: packed.read(name).decode() for name in packed.namelist()}

    return make


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
times = st.floats(0, 1e9)
exchanges = st.builds(
    Exchange,
    method=st.sampled_from(["GET", "POST"]),
    path=st.just("/v1/completions") | st.just("/server_info?a=b%20c"),
    request=st.none() | st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    status=st.integers(100, 599),
    body=st.text(max_size=30),
    events=st.lists(st.builds(Event, times, st.text(max_size=9)), max_size=3).map(tuple),
    started=times,
    elapsed=times,
)


@given(st.lists(exchanges, max_size=4))
def test_what_goes_into_a_bundle_comes_out_of_it(tmp_path_factory, said):
    folder = tmp_path_factory.mktemp("kept")
    (folder / "test.json").write_text(json.dumps(about()))
    kept.write_exchanges(folder, said)
    bundle.write(folder, folder / "b.zip", {})
    assert bundle.read(folder / "b.zip") == bundle.read(folder)
    assert list(bundle.read(folder / "b.zip").exchanges) == said


def test_the_same_test_gives_the_same_bytes(tmp_path):
    folder = keep(tmp_path / "test")
    bundle.write(folder, tmp_path / "b.zip", PLACES)
    first = (tmp_path / "b.zip").read_bytes()
    os.utime(folder / "test.json", (1, 1))
    bundle.write(folder, tmp_path / "b.zip", PLACES)
    assert (tmp_path / "b.zip").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "b.zip") as packed:
        assert packed.namelist() == sorted(packed.namelist())
        assert {info.date_time for info in packed.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_no_secret_and_no_path_of_the_machine_is_in_any_member(members, monkeypatch):
    monkeypatch.setenv("DSV4_API_KEY", "hush-hush-hush")
    told = json.loads(json.dumps(about()).replace("one is not two", f"{SECRET} hush-hush-hush /home/jo/x"))
    told["launch"]["env"]["KEY"] = SECRET
    found = members(
        exchange(body=f"{SECRET} hush-hush-hush /home/jo/suite/a", request={SECRET: [SECRET, "/home/jo"]}),
        log=f"{SECRET} Bearer hush-hush-hush in /home/jo/.cache/dsv4/models",
        told=told,
    )
    for name, text in found.items():
        for word in (SECRET, "hush-hush", "/home/jo"):
            assert word not in text, (name, word)
    assert "~suite/a" in found["exchanges.jsonl"]
    assert "~cache/models" in found["server.log"]


def test_only_whole_parts_of_a_path_are_replaced():
    hidden = bundle.hide({"/root": "~", "/root/x": "~suite"})
    assert (
        hidden("/root/x /root/xy /rooted '/root' /root/x.log /root.")
        == "~suite ~/xy /rooted '~' ~suite.log ~."
    )


def test_replay_py_needs_no_hiding():
    text = Path(bundle.__file__).with_name("replay.py").read_text()
    assert redact.text(text, ()) == text
    assert "fixtures" not in text


@pytest.fixture
def launched(members, tmp_path):
    """Run launch.sh of a bundle with a stand-in for the interpreter; return the environment and the arguments."""

    def run(told=None, **env):
        script = tmp_path / "launch.sh"
        script.write_text(members(told=told)["launch.sh"])
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
        python = tmp_path / "python"
        python.write_text('#!/bin/sh\nenv -0\nprintf "ARGV\\0"\nprintf "%s\\0" "$@"\n')
        python.chmod(0o755)
        told = subprocess.run(
            ["sh", script], env={"PATH": os.environ["PATH"], "PYTHON": str(python)} | env, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        settings, _, arguments = told.stdout.partition("ARGV\0")
        return told, settings.split("\0"), arguments.split("\0")[:-1]

    return run


def test_launch_sh_starts_the_same_server_elsewhere(launched):
    _, settings, arguments = launched(MODEL="/models/it's here", PORT="9")
    assert arguments == [*ARGV[1:3], "--model", "/models/it's here", "--port", "9"]
    assert "DO_NOT_TRACK=1" in settings


def test_launch_sh_asks_for_the_model(launched):
    told, _, arguments = launched()
    assert (told.returncode, arguments) == (2, [])
    assert "name the folder of the model chain" in told.stderr


@pytest.mark.parametrize(
    "word", ["$(touch hacked)", "`id`", "a'b\"c", "${HOME}", "x;y&z|w", "*", "\\", "new\nline", ""]
)
def test_launch_sh_takes_every_word_literally(launched, word):
    told = about()
    told["launch"]["argv"] = [*ARGV, "--x", word]
    told["launch"]["env"] = {"GIVEN": word}
    _, settings, arguments = launched(told, MODEL="/m")
    assert arguments[-2:] == ["--x", word]
    assert f"GIVEN={word}" in settings


def test_launch_sh_refuses_a_name_that_is_none(tmp_path):
    told = about()
    told["launch"]["env"] = {"A=1; touch hacked; B": "1"}
    with pytest.raises(HarnessError, match="is no name of an environment variable"):
        bundle.write(keep(tmp_path / "test", told=told), tmp_path / "b.zip", {})


def test_launch_sh_names_the_stand_ins_of_sglang_by_the_checkout(launched):
    told = about()
    told["engine"] |= {"name": "sglang", "version": "0.5.20"}
    told["launch"]["argv"] = ["/p", "-m", "sglang.launch_server", "--model-path", "/home/jo/m", "--port", "1"]
    told["launch"]["env"] = {"PYTHONPATH": "/home/jo/suite/fixtures/engines/sglang_cpu"}
    _, settings, arguments = launched(told, MODEL="/m", SUITE="/a checkout")
    assert "PYTHONPATH=/a checkout/fixtures/engines/sglang_cpu" in settings
    assert arguments == ["-m", "sglang.launch_server", "--model-path", "/m", "--port", "8000"]
    missing, _, _ = launched(told, MODEL="/m")
    assert "SUITE: name the folder of a checkout" in missing.stderr


def test_launch_sh_of_an_attached_server_says_that_there_is_no_command(launched):
    told = about(launch=None)
    told["engine"]["target"] = "attach:http://h:1'; touch hacked; '"
    ended, _, _ = launched(told)
    assert ended.returncode == 2
    assert "did not start this server: it was given as attach:http://h:1" in ended.stderr


def test_the_recipe_says_how_to_build_the_model(members):
    told = json.loads(members()["recipe.json"])
    assert (told["name"], told["family"], told["seed"]) == ("chain", "chain", 1)
    assert "python -m ci model chain" in told["how"]


def test_of_another_checkpoint_only_the_name_is_told(members):
    found = members(told=about(spec={"model": "/home/jo/private/my-model"}))
    assert json.loads(found["recipe.json"])["name"] == "my-model"
    assert "private" not in found["recipe.json"] + found["issue.md"] + found["launch.sh"]


def test_the_issue_says_what_upstream_asks_for(members):
    told = about()
    told["result"]["link"] = "vllm-project/vllm#1"
    told["machine"]["gpus"] = ["H200"]
    text = members(
        exchange(status=500, body="Internal"), exchange(), log="PyTorch version: 2.13.0+cpu\n", told=told
    )
    text = text["issue.md"]
    for part in (
        '# [Bug]: vLLM 0.32.0, CPU build: "salts keep apart" does not hold (chain, mtp=1, prefix_cache=True)',
        "| PyTorch | 2.13.0+cpu |",
        "| GPU | H200 |",
        "status 500",
        "one is not two",
        "python -m ci judge b.zip",
        "Known as: vllm-project/vllm#1",
        "--model '~cache/models/chain-1'",
    ):
        assert part in text, part


def test_what_is_quoted_in_the_issue_cannot_leave_its_block(members):
    text = members()["issue.md"]
    assert "````\nassert 1 == 2\n```\nin ~suite" in text


def test_an_issue_of_the_fake_engine_says_so(members):
    told = about()
    told["engine"]["fake"] = True
    assert "fake engine" in members(told=told)["issue.md"]


def test_the_curl_command_sends_the_request_as_it_was(tmp_path):
    shown = tmp_path / "curl"
    shown.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    shown.chmod(0o755)
    asked = exchange(request={"prompt": "it's $HOME `x`\n"})
    words = subprocess.check_output(
        ["/bin/sh", "-c", issue.curl(asked)], env={"PATH": str(tmp_path)}, text=True
    ).split("\0")
    assert json.loads(words[words.index("-d") + 1]) == asked.request
    assert words[1] == "http://127.0.0.1:8000/v1/completions"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([exchange("a"), exchange("b", status=503), exchange("c")], "b"),
        ([exchange("a"), exchange("b"), exchange("c", method="GET")], "b"),
        ([exchange("a", method="GET"), exchange("b", method="GET")], "b"),
    ],
)
def test_the_request_that_shows_it_best_is_shown(tmp_path, said, expected):
    assert issue.failing(bundle.read(keep(tmp_path / "test", *said))).body == expected


def test_a_folder_that_holds_no_test_is_one_sentence(tmp_path):
    with pytest.raises(HarnessError, match=r"holds no test.json. Name the folder of a kept test"):
        bundle.write(tmp_path, tmp_path / "b.zip", {})


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(HarnessError, match=r"cannot be written .* --out"):
        bundle.write(keep(tmp_path / "test"), tmp_path / "none" / "b.zip", {})
