"""Which items exist, what -m selects, what is not applicable, and how mistakes in options and markers read."""

import pytest

from fixtures.launch.process import Process, free_port
from fixtures.launch.ready import wait_until_ready
from fixtures.model import Launch
from fixtures.models import build
from tests.harness.conftest import STAND_IN

BOTH = "pytestmark = serve(model='chain')\ndef test_1(server): 0\n"


def collected(result):
    return [line for line in result.outlines if "::" in line and " " not in line]


def test_engine_marks_select_exactly_their_items(suite):
    suite.write(
        features__test_a="""
pytestmark = [serve(model='chain'), pytest.mark.vllm(">=0.1"), pytest.mark.sglang(">=0.1")]
def test_both(server): 0
@pytest.mark.vllm
def test_one(server): 0
""",
        perf__test_b=BOTH,
        harness__test_c="def test_none(): 0\n",
    )
    engines = ["--vllm", "venv:0.32.0", "--sglang", "venv:0.5.20"]
    vllm = ["features/test_a.py::test_both[vllm-chain]", "features/test_a.py::test_one[vllm-chain]"]
    perf = "perf/test_b.py::test_1[vllm-chain]"
    expected = {
        "vllm": [*vllm, perf],
        "vllm and perf": [perf],
        "vllm and not perf": vllm,
        "sglang and features": ["features/test_a.py::test_both[sglang-chain]"],
        "vllm and sglang": [],
        "harness": ["harness/test_c.py::test_none"],
    }
    for words, items in expected.items():
        result = suite.run("--collect-only", "-q", "-m", words, *engines)
        assert [line.removeprefix("tests/") for line in collected(result)] == items, words


def test_an_engine_that_was_not_named_has_no_items(suite):
    suite.write(
        test_a=BOTH,
        test_b=f"@pytest.mark.vllm\n{BOTH.splitlines()[1]}",
        test_c=f"{BOTH}test_2 = pytest.mark.vllm(test_1)",
    )
    assert collected(suite.run("--collect-only", "-q", "--sglang", "venv:0.5.20")) == [
        "tests/test_a.py::test_1[sglang-chain]"
    ]


def test_without_targets_both_engines_run_in_their_pinned_releases(suite):
    suite.write(test_a=BOTH)
    result = suite.run("--collect-only", target=())
    result.stdout.fnmatch_lines(
        [
            "vllm: venv:0.32.0 = vLLM 0.32.0, CPU build (from: default)",
            "sglang: venv:0.5.20 = SGLang 0.5.20, CPU engine, stand-in kernels (from: default)",
            "vllm servers: 1 (chain)",
            "sglang servers: 1 (chain)",
        ]
    )


def test_outside_its_range_a_test_is_not_applicable(suite):
    suite.write(
        test_a="""
pytestmark = [serve(model='chain'), pytest.mark.vllm(">=0.20")]
def test_1(server): 0
@pytest.mark.vllm("<0.32")
def test_2(server): 0
@serve(model='chain', kv_tokens=17)
def test_3(server): 0
"""
    )
    result = suite.run("-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "vllm servers: 1 (chain)",
            "*not applicable: needs vLLM <0.32, this is 0.32.0",
            "*not applicable: vLLM 0.32.0 on cpu has no kv_tokens=17",
        ]
    )


def test_a_development_build_counts_as_its_release(suite):
    suite.write(test_a="@serve(model='chain')\n@pytest.mark.vllm('>=0.32')\ndef test_1(server): 0\n")
    suite.run(STAND_IN_VERSION="0.32.1.dev5+g1234567").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("@serve(model='chain', prefx_cache=True)", "*no knob 'prefx_cache'. Did you mean 'prefix_cache'? *"),
        (
            "@serve(model='chain')\n@pytest.mark.vllm('0.22 or newer')",
            "*'0.22 or newer' is not a version specifier.*",
        ),
        ("", "*needs a server but has no serve(...) marker*"),
    ],
)
def test_a_mistake_in_a_marker_is_one_sentence(suite, text, sentence):
    suite.write(test_a=f"{text}\ndef test_1(server): 0\n")
    result = suite.run()
    assert result.ret != 0
    (result.stdout if result.ret == pytest.ExitCode.INTERRUPTED else result.stderr).fnmatch_lines([sentence])
    for output in (result.stdout, result.stderr):
        output.no_fnmatch_line("*Traceback*")
        output.no_fnmatch_line("*INTERNALERROR*")
    assert suite.launches == []


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--vllm", "nonsense"], "ERROR: --vllm nonsense: this is no target. Use venv:VERSION, *"),
        (
            ["--vllm", "0.32.0"],
            "ERROR: --vllm 0.32.0: say how it is to run, as venv:0.32.0 or docker:0.32.0.",
        ),
        (
            ["--vllm", "attach:http://127.0.0.1:9"],
            "ERROR: no vllm server answers at http://127.0.0.1:9/version*",
        ),
        (["--vllm", "process:/no/python"], "ERROR: 'process:/no/python': /no/python cannot be run*"),
        (["--assume", "mtp"], "ERROR: --assume mtp: write it as knob=value*"),
    ],
)
def test_a_mistake_in_an_option_is_one_sentence(suite, args, sentence):
    suite.write(test_a=BOTH)
    result = suite.run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([sentence])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_a_release_without_a_lock_is_one_sentence(suite):
    suite.write(test_a=BOTH)
    result = suite.run("--vllm", "venv:0.1.0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "There is no lock for vllm 0.1.0; the releases that have one are: "
        in result.stdout.str() + result.stderr.str()
    )


KNOWN = """
[[known]]
test = "test_a.py::test_1"
where = {{ prefix_cache = {where} }}
when = "{when}"
match = "seven"
upstream = "vllm-project/vllm#1"
why = "it cannot count"
since = 2026-11-30
"""


@pytest.mark.parametrize(
    ("where", "when", "raised", "outcome"),
    [
        ("true", "", "seven", {"xfailed": 1}),
        ("true", "<0.32", "seven", {"failed": 1}),
        ("false", "", "seven", {"failed": 1}),
        ("true", "", "eight", {"failed": 1}),
        ("true", "", None, {"failed": 1}),
    ],
    ids=["known", "other release", "other knob", "other failure", "passes again"],
)
def test_a_known_failure_is_expected_exactly_as_written(suite, where, when, raised, outcome):
    folder = suite.pytester.path / "tests" / "expectations"
    folder.mkdir(parents=True)
    (folder / "vllm.toml").write_text(KNOWN.format(where=where, when=when))
    body = "0" if raised is None else f"raise AssertionError({raised!r})"
    suite.write(test_a=f"@serve(model='chain', prefix_cache=True)\ndef test_1(server): {body}\n")
    suite.run().assert_outcomes(**outcome)


def test_an_incomplete_expectation_is_one_sentence(suite):
    folder = suite.pytester.path / "tests" / "expectations"
    folder.mkdir(parents=True)
    (folder / "vllm.toml").write_text("[[known]]\ntest = 'a'\nmatch = 'b'\nwhy = 'c'\n")
    suite.write(test_a=BOTH)
    result = suite.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*vllm.toml: entry 1 lacks since, upstream"])


@pytest.fixture
def attached(suite, model_cache):
    """A stand-in that serves the chain model with the prefix cache on, started by hand."""

    path = build("chain", model_cache / "models")
    port = free_port()
    argv = (
        str(STAND_IN),
        "-m",
        "x",
        "--model",
        str(path),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--enable-prefix-caching",
    )
    with Process(Launch(argv, suite.env, {}, port), suite.pytester.path / "attached.log") as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready("the stand-in", "/health", process, 60)
        yield url


def test_an_attached_server_is_never_asked_to_be_another(suite, attached):
    suite.write(
        test_a="""
@serve(model='chain', prefix_cache=True)
def test_same(server):
    assert server.pid is None
@serve(model='chain')
def test_no_more_said(server): 0
@serve(model='chain', prefix_cache=False)
def test_other_setting(server): 0
@serve(model='lookup')
def test_other_model(server): 0
@serve(model='chain', mtp=1)
def test_not_shown(server): 0
@serve(model='chain', extra={'vllm': ['--seed', '1']})
def test_extra(server): 0
@serve(model='chain')
def test_call(client): client.reset_prefix_cache()
@serve(model='chain')
def test_fact(server): server.fact("grammar")
"""
    )
    target = ["--vllm", f"attach:{attached}"]
    result = suite.run("-rs", *target)
    result.assert_outcomes(passed=2, skipped=6)
    result.stdout.fnmatch_lines_random(
        [
            "*not applicable: * runs with prefix_cache=True, this needs prefix_cache=False",
            "*not applicable: * serves chain, this needs the model lookup",
            "*not applicable: *say what it is with --assume mtp=VALUE",
            "*not applicable: */reset_prefix_cache answered 501 (needs VLLM_SERVER_DEV_MODE=1)*",
            "*not applicable: * does not show grammar *",
            "*not applicable: * is attached; flags given by serve(extra=…) cannot be checked",
        ]
    )
    assert len(suite.launches) == 1  # the one that was started by hand
    suite.run(*target, "--assume", "mtp=1").assert_outcomes(passed=3, skipped=5)


def test_what_our_own_server_should_show_and_does_not_is_a_failure(suite):
    suite.write(
        test_a="""
pytestmark = serve(model='chain')
def test_fact(server): server.fact("grammar")
@pytest.fixture
def emptied(client): client.reset_prefix_cache()
def test_call(emptied): 0
"""
    )
    result = suite.run()
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["E *Nonconformance: * does not show grammar *"])


def test_an_attached_server_that_stops_answering_is_the_engines_fault(suite, attached):
    suite.write(
        test_a="""
@serve(model='chain', prefix_cache=True)
def test_1(client):
    client.http.base_url = "http://127.0.0.1:9"
    client.send("GET", "/health")
"""
    )
    result = suite.run("--vllm", f"attach:{attached}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["EngineFault: vLLM 0.32.0*broke off or did not answer: ConnectError*at attach:http*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
