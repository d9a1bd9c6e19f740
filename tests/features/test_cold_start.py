"""The second start finds the code that the first one compiled, and answers the same with it.

Cold and warm are two servers of one run, one after the other, whose caches lie in a folder of the run: empty before the
first, as it was left before the second. How long each took is recorded and not judged: it is the machine's as well.
Not proved: how much of a warm start is saved. That nothing is compiled anew is read from the files of machine code.
"""

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.errors import Inconclusive
from fixtures.judge import agree, logprobs

pytestmark = feature(19, "Prebuilt kernels and cold start")

cold = serve(model="lookup", compile=True, caches="cold")
warm = serve(model="lookup", compile=True, caches="warm")
ANSWER = 6  # tokens asked for
TOLERANCE = 5e-4  # as in test_torch_compile


@pytest.fixture
def kept(server):
    """What the cold start left, for the warm one."""
    found = server.compiled()
    if not found.old:
        raise Inconclusive(
            "no cold start of this run has left code. Run the whole module, in one process: "
            "pytest tests/features/test_cold_start.py"
        )
    return found


def note(server, record):
    record.number(
        "time to ready", server.host.launched.seconds, unit="s", origin="clock, until /health answers"
    )
    record.number("engine's own start", server.fact("start_seconds"), unit="s", origin="start-up log")


@proves
@cold
@catches("compile_ignored", "compiled_code_not_kept")
def test_a_cold_start_finds_nothing_and_keeps_what_it_compiles(server, record):
    found = server.compiled()
    record.number("files of code", len(found.new), origin="the cache's folder")
    note(server, record)
    assert found.old == set()
    assert len(found.new) > 0
    assert server.fact("compile_saved")


@serve(model="lookup", compile=True, caches=each("cold", "warm"))
@catches("compiled_code_drifts", "specialised_to_odd_lengths")
@pytest.mark.parametrize("length", [1, 2, 9, 300])
def test_answers_after_a_cold_and_a_warm_start_are_exact(client, oracle, length):
    prompt = make.question(oracle, length, seed=length) if length > 1 else make.words(oracle, 1, seed=1)
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    assert agree.problems(make.ids(oracle, choice.text), answer) == []
    assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []


@warm
@catches("compiled_code_not_kept", "compile_ignored")
def test_a_warm_start_loads_the_code_that_the_cold_one_kept(server, kept, record):
    record.number("files of code found", len(kept.old), origin="the cache's folder")
    note(server, record)
    assert server.fact("compile_loaded")


@warm
@catches("compiled_code_not_kept")
def test_a_warm_start_compiles_nothing_anew(kept):
    assert kept.new == set()
