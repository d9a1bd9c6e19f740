"""Topologies of `docker compose`: valid by its schema, started as one server, their end noticed, nothing left of them.

Most tests need a docker daemon with the image that `ci/image/build.sh base` makes, in which stand-ins play engine and
router, and `docker compose`.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.engines.fitting import Hardware
from fixtures.engines.rules import Catalog, NotApplicable, table
from fixtures.errors import HarnessError
from fixtures.launch import owner
from fixtures.launch.topology import Topology
from fixtures.model import Launch
from tests.harness.conftest import ROOT, STAND_IN
from tests.harness.stand_in_images import build, connect, needed

IMAGE = "dsv4-conformance/compose-stand-in"
LIMIT = 60  # seconds for anything that a test waits for
FILES = sorted((ROOT / "compose").rglob("*.yaml"))
COMPOSE = ["docker", "compose"]


def names(file):
    """A file as it is named in a test's id."""
    return str(file.relative_to(ROOT / "compose").with_suffix(""))


@pytest.fixture(scope="session")
def compose():
    """The command line of compose."""
    found = shutil.which("docker")
    if not found or subprocess.run([*COMPOSE, "version"], capture_output=True, check=False).returncode:
        needed("needs `docker compose`")
    return COMPOSE


@pytest.fixture(scope="session")
def client(compose):
    """A client of the daemon that compose speaks to."""
    assert compose
    return connect()


@pytest.fixture(scope="session")
def images(client):
    """Images in which stand-ins are the engine's interpreter and the router, by the engine's fault."""
    scripts = {"python3": STAND_IN, "haproxy": STAND_IN.with_name("haproxy")}
    return build(client, IMAGE, scripts, ("", "unknown_flag", "never_ready"))


@pytest.fixture
def run(suite, images):
    """Run the suite on a topology, on two stand-ins behind a router if no other is named."""

    def start(*args, file="dp-vllm", fault=""):
        names = {"DSV4_IMAGE": images[fault], "DSV4_ROUTER_IMAGE": images[""]}
        return suite.run(*args, target=("--vllm", f"compose:{file}"), **names)

    return start


def left(client, suite):
    """What there is of the suite's runs: containers, networks and volumes, by name."""
    found = []
    for folder in (suite.pytester.path / "evidence").glob("*"):
        mine = {"label": f"{owner.RUN}={folder.name}"}
        found += client.containers.list(all=True, filters=mine, ignore_removed=True)
        found += client.networks.list(filters=mine)
        found += client.volumes.list(filters=mine)
    return [one.name for one in found]


class TestFiles:
    @pytest.mark.parametrize("file", FILES, ids=names)
    def test_a_file_keeps_the_schema(self, file):
        tool = Path(sys.executable).with_name("check-jsonschema")
        command = [tool, "--builtin-schema", "vendor.compose-spec", file]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stdout + told.stderr

    @pytest.mark.parametrize("file", FILES, ids=names)
    def test_compose_understands_a_file(self, compose, file):
        command = [*compose, "--file", file, "config", "--quiet"]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (told.returncode, told.stderr) == (0, "")

    @pytest.mark.parametrize(
        "file", [file for file in FILES if file.parent.name != "base"], ids=lambda path: path.stem
    )
    def test_a_file_says_at_its_top_how_it_is_run(self, file):
        comment = re.match(r"(#.*\n)+", file.read_text())[0]
        assert f"docker compose -f compose/{file.name} up" in comment
        assert "# Needs " in comment

    @pytest.mark.parametrize("engine", ["vllm", "sglang"])
    def test_the_release_takes_what_its_engines_are_given(self, engine):
        given = [file for file in FILES if engine in file.stem and "${DSV4_COMMAND" in file.read_text()]
        assert len(given) == 3  # the common one, prefill and decode apart, and tiers; others add nothing
        (release,) = re.findall(r"DSV4_IMAGE:-\S+:v([\d.]+)}", given[0].read_text())
        for file in given:
            command = [sys.executable, "-m", "ci", "lint", f"--{engine}", release, file]
            told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert told.returncode == 0, told.stdout
            assert "0 errors, 0 warnings" in told.stdout

    @pytest.mark.parametrize("engine", ["vllm", "sglang"])
    def test_the_default_image_is_the_published_one(self, engine):
        image = table(engine)["engine"]["image"].partition("{")[0]
        assert f"${{DSV4_IMAGE:-{image}" in (ROOT / "compose" / "base" / f"{engine}.yaml").read_text()

    def test_the_readme_names_every_file_and_variable(self):
        told = (ROOT / "compose" / "README.md").read_text()
        variables = {name for file in FILES for name in re.findall(r"\$\{(\w+)", file.read_text())}
        assert {name for name in variables if f"`{name}`" not in told} == set()
        assert {
            file.name for file in FILES if file.parent.name != "base" and f"({file.name})" not in told
        } == set()


def topology(**changes):
    """A topology of two engines and a router, as compose prints it, with changes to its services."""
    services = {
        "engine-1": {"image": "i", "command": ["python3", "-m", "engine", "--role", "a$$b"]},
        "engine-2": {"image": "i", "command": ["python3", "-m", "engine"]},
        "router": {"ports": [{"host_ip": "127.0.0.1", "target": 80}], "depends_on": {}},
    }
    changed = {
        name: {**services.get(name, {}), **change} for name, change in changes.items() if change is not None
    }
    kept = {name: one for name, one in services.items() if name not in changes}
    return {"services": {**kept, **changed}, "networks": {"default": {}, "theirs": {"external": True}}}


class TestTopology:
    def test_engines_and_the_address_are_found(self):
        found = Topology.read("f", topology())
        assert (found.engines, found.entry, found.image) == (("engine-1", "engine-2"), ("router", 80), "i")

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"engine-1": None, "engine-2": None}, r"f has no service 'engine' .*Name the one so that runs"),
            ({"router": None}, r"f publishes 0 ports\. Publish one"),
            ({"engine-1": {"ports": [{"host_ip": "127.0.0.1", "target": 1}]}}, r"f publishes 2 ports"),
            ({"router": {"ports": [{"target": 80}]}}, r"the port of 'router' is open to other machines"),
            ({"engine-1": {"image": "other"}}, r"engine-1, engine-2 must have one and the same 'image'"),
        ],
    )
    def test_what_is_missing_is_one_sentence(self, changes, sentence):
        with pytest.raises(HarnessError, match=sentence):
            Topology.read("f", topology(**changes))

    def test_an_engine_has_the_command_that_is_asked_for_and_its_own_arguments_after_it(self):
        found = Topology.read("f", topology())
        found.check_command(("python3", "-m", "engine"))
        with pytest.raises(HarnessError, match="the command of 'engine-2' does not begin with"):
            found.check_command(("python3", "-m", "engine", "--role", "a$b"))

    def test_all_that_is_made_is_labelled_and_engines_get_what_they_need(self):
        launch = Launch((), {"A": "$b"}, {}, 1)
        added = Topology.read("f", topology()).added(launch, [{"source": "m"}], "1:2", {"whose": "mine"})
        assert [one["labels"] for one in added["services"].values()] == [{"whose": "mine"}] * 3
        assert added["networks"] == {"default": {"labels": {"whose": "mine"}}}
        assert added["services"]["engine-2"]["environment"]["A"] == "$$b"
        assert added["services"]["engine-2"]["user"] == "1:2"
        assert "volumes" not in added["services"]["router"]

    @pytest.mark.parametrize(("seen", "gpus"), [("all", 4), ("1,2", 2), ("", 0)])
    def test_an_engine_has_the_gpus_that_it_sees(self, seen, gpus):
        found = Topology.read(
            "f", topology(**{"engine-2": {"environment": {"NVIDIA_VISIBLE_DEVICES": seen}}})
        )
        assert found.gpus(("9.0",) * 4) == ("9.0",) * gpus


def test_no_word_of_a_command_is_changed_on_its_way_through_a_file(compose):
    argv = (
        "python3",
        '{"a":"b c"}',
        "it's",
        "a$b",
        "${HOME}",
        "back\\slash",
        'q"q',
        "",
        "#h",
        "a;b",
        "*",
        "~",
        "…",
    )
    env = os.environ | {"DSV4_COMMAND": shlex.join(argv)}
    command = [*compose, "--file", ROOT / "compose" / "pd-vllm.yaml", "config", "--format", "json"]
    told = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found = Topology.read("f", json.loads(told.stdout))
    found.check_command(argv)
    roles = [json.loads(found.config["services"][name]["command"][-1])["kv_role"] for name in found.engines]
    assert roles == ["kv_consumer", "kv_producer"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_each_of_several_engines_has_for_itself_is_not_applicable(engine):
    version = table(engine)["engine"]["default"]
    one, two = (Catalog(engine, version, Hardware("cpu", engines=count), table(engine)) for count in (1, 2))
    assert one.metric("prompt_tokens")
    assert one.call("reset_prefix_cache")
    assert one.knob("prefix_cache", True) != two.knob("prefix_cache", False)
    for ask in (
        lambda: two.metric("prompt_tokens"),
        lambda: two.call("reset_prefix_cache"),
        lambda: two.knob("prefix_cache", True),
    ):
        with pytest.raises(
            NotApplicable, match="it needs an engine alone at its address, and 2 share this one"
        ):
            ask()


def test_two_engines_behind_a_router_are_one_server_that_is_gone_afterwards(suite, run, client):
    suite.write(
        test_a="""
import docker, httpx
from fixtures.launch import daemon
pytestmark = serve(model='chain')
def test_1(server):
    assert [httpx.get(server.url + '/health').status_code for _ in range(4)] == [200] * 4
    assert server.pid
def test_2(server):
    mine = {'label': f'dsv4-conformance.run={server.host.terms.folder.name}'}
    found = docker.DockerClient(base_url=daemon.address()).containers.list(filters=mine)
    seen = {one.labels['com.docker.compose.service']: one for one in found}
    assert sorted(seen) == ['engine-1', 'engine-2', 'router']
    (published,) = [p for one in found for ports in one.ports.values() for p in ports or ()]
    assert (published['HostIp'], published['HostPort']) == ('127.0.0.1', server.url.rpartition(':')[2])
    engine = seen['engine-2'].attrs
    assert int(engine['Config']['User'].partition(':')[0]) > 0
    assert not next(one for one in engine['Mounts'] if '/models/chain-' in one['Destination'])['RW']
def test_3(server, counters):
    with counters(): pass
"""
    )
    result = run("-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "vllm: compose:dp-vllm = vLLM 0.32.0, CPU build*",
            "1 configurations, 1 launches",
            "SKIPPED * not applicable: *an engine alone at its address, and 2 share this one*",
        ]
    )
    assert left(client, suite) == []
    (log,) = (suite.pytester.path / "evidence").rglob("*.log")
    assert "router | passing on to [['engine-1', '8000'], ['engine-2', '8000']]\n" in log.read_text()


def test_a_topology_of_the_fake_engine_is_never_taken_for_a_real_one(suite, run):
    suite.write(
        test_a="""
pytestmark = serve(model='chain')
def test_1(server): assert 'fixtures.faux' in server.host.process.launch.argv
"""
    )
    result = run(file="faux")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["vllm: compose:faux = FAKE vLLM 0.32.0*"])


def test_the_end_of_any_service_fails_its_test_with_its_name(suite, run):
    suite.write(
        test_a="""
import docker, httpx
from fixtures.launch import daemon
pytestmark = serve(model='chain')
def test_1(server):
    mine = {'label': f'dsv4-conformance.run={server.host.terms.folder.name}'}
    found = docker.DockerClient(base_url=daemon.address()).containers.list(filters=mine)
    next(one for one in found if one.labels['com.docker.compose.service'] == 'engine-2').kill()
    for _ in range(2):
        httpx.get(server.url + '/health').raise_for_status()
def test_2(server): assert httpx.get(server.url + '/health').status_code == 200
"""
    )
    result = run()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["EngineFault: vLLM 0.32.0, CPU build ended while serving (its service 'engine-2': killed (SIGKILL)*"]
    )
    result.stdout.fnmatch_lines(["*: ready in * s (it had died)"])


def test_a_failed_start_is_explained_and_leaves_nothing(suite, run, client):
    suite.write(test_a="pytestmark = serve(model='chain', prefix_cache=False)\ndef test_1(server): 0\n")
    result = run(fault="unknown_flag")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "EngineFault: vLLM 0.32.0, CPU build ended while starting (its service 'engine-?': exit code 2)*",
            "engine-? | api_server.py: error: unrecognized arguments: --enable-prefix-caching",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    assert left(client, suite) == []


def test_a_start_that_takes_too_long_is_ended(suite, run, client):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    result = run("--start-limit", "5", fault="never_ready")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["EngineFault: *dp-vllm.yaml was not up within 5 s. Give it more with *"])
    assert left(client, suite) == []


def until(process, condition):
    """Wait until something holds, while a process runs."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline, "waited in vain"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)


def test_an_interrupted_start_leaves_nothing(suite, images, client):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    env = os.environ | suite.env | {"DSV4_IMAGE": images["never_ready"], "DSV4_ROUTER_IMAGE": images[""]}
    command = suite.command(target=("--vllm", "compose:dp-vllm"))
    process = subprocess.Popen(command, env=env, cwd=suite.pytester.path, stdout=subprocess.DEVNULL)
    try:
        until(process, lambda: any("engine-2" in name for name in left(client, suite)))
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == pytest.ExitCode.INTERRUPTED
        assert left(client, suite) == []
    finally:
        process.kill()
        process.wait()


MINE = """
services:
  engine:
    image: ${DSV4_IMAGE}
    init: true
    entrypoint: [env]
    command: ${DSV4_COMMAND:-python3}
    ports: ["127.0.0.1:${DSV4_PORT:-8000}:8000"]
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (MINE.replace("entrypoint", "entry"), "*mine.yaml is no topology: *property entry is not allowed*"),
        (MINE.replace("  engine:", "  server:"), "*mine.yaml has no service 'engine'*"),
        (MINE.replace("127.0.0.1:", ""), "*the port of 'engine' is open to other machines*"),
        (
            None,
            "*compose:mine.yaml: there is no file *mine.yaml. Name a compose file, or one of dp-sglang, dp-vllm*",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(suite, run, text, sentence):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    if text:
        (suite.pytester.path / "mine.yaml").write_text(text)
    result = run(file="mine.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {sentence}"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("${DSV4_COMMAND:-python3}", "python3 -m other"), "*'engine' does not begin with ${DSV4_COMMAND}*"),
        (("ports:", "networks: [none-such]\n    ports:"), "*none-such*"),
    ],
)
def test_a_topology_that_cannot_be_started_is_one_sentence(suite, run, client, change, sentence):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    outside = "networks:\n  none-such: {external: true}\n"
    (suite.pytester.path / "mine.yaml").write_text(MINE.replace(*change) + outside)
    result = run(file="mine.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"HarnessError: {sentence}"])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert left(client, suite) == []


def test_a_service_that_is_meant_to_end_does_not_end_the_topology(suite, run):
    suite.write(
        test_a="""
import httpx
pytestmark = serve(model='chain')
def test_1(server):
    assert server.host.death(wait=1) is None
    assert 'first | done' in server.host.log_text()
"""
    )
    first = "  first: {image: '${DSV4_IMAGE}', entrypoint: [echo, done]}\n"
    waits = "    depends_on: {first: {condition: service_completed_successfully}}\n"
    (suite.pytester.path / "mine.yaml").write_text(MINE + waits + first)
    run(file="mine.yaml").assert_outcomes(passed=1)


def test_compose_that_is_missing_is_one_sentence(suite, tmp_path):
    suite.write(test_a="pytestmark = serve(model='chain')\ndef test_1(server): 0\n")
    result = suite.run(target=("--vllm", "compose:vllm"), PATH=str(tmp_path))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: there is no `docker compose` here (*Install docker's compose plugin*"]
    )


def test_what_a_killed_run_leaves_is_reaped_and_nothing_else(suite, images, client):
    suite.write(
        test_a="""
import time
pytestmark = serve(model='chain')
def test_1(server):
    open('here', 'w').close()
    time.sleep(600)
"""
    )
    (suite.pytester.path / "mine.yaml").write_text(
        f"{MINE}    volumes: ['kept:/kept']\nvolumes: {{kept: }}\n"
    )
    labels = {owner.LABEL: owner.mine(), owner.RUN: "mine"}
    others = [client.networks.create("other"), client.networks.create("living", labels=labels)]
    env = os.environ | suite.env | {"DSV4_IMAGE": images[""]}
    command = suite.command(target=("--vllm", "compose:mine.yaml"))
    process = subprocess.Popen(command, env=env, cwd=suite.pytester.path, stdout=subprocess.DEVNULL)
    try:
        until(process, (suite.pytester.path / "here").exists)
        process.send_signal(signal.SIGKILL)
        process.wait()
        stay = left(client, suite)
        assert [re.sub("dsv4-[0-9a-f]+", "", name) for name in stay] == ["-engine-1", "_default", "_kept"]
        reaped = subprocess.run(
            [sys.executable, "-m", "ci", "reap"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for kind, name in zip(("container", "network", "volume"), stay, strict=True):
            assert f"removed {kind} {name} of run " in reaped.stdout
        assert left(client, suite) == []
        assert {one.id for one in others} <= {one.id for one in client.networks.list()}
    finally:
        process.kill()
        process.wait()
        for one in others:
            one.remove()
