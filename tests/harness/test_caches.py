"""Caches of compiled code last for a run, a cold start empties them, and a fault gets a copy of its own."""

import pytest

from fixtures.engines import rules
from fixtures.engines.fitting import Hardware
from fixtures.engines.rules import Catalog, NotApplicable
from fixtures.faux.faults import FAULTS
from fixtures.launch.compiled import Caches
from fixtures.model import Launch, ServerSpec


@pytest.fixture
def folder(tmp_path):
    caches = tmp_path / "engine"
    (caches / "deep").mkdir(parents=True)
    (caches / "deep" / "a.so").write_bytes(b"code")
    (caches / "notes.json").write_bytes(b"{}")
    return caches


def test_code_that_came_since_the_start_is_told_from_what_was_there(folder):
    caches = Caches(folder, None)
    caches.open(fresh=False)
    (folder / "b.cubin").write_bytes(b"code")
    assert caches.compiled().old == {"deep/a.so"}
    assert caches.compiled().new == {"b.cubin"}


def test_a_fresh_start_finds_nothing(folder):
    caches = Caches(folder, None)
    caches.open(fresh=True)
    assert caches.compiled().old == caches.compiled().new == set()


def test_a_fault_reads_what_was_left_and_changes_nothing_of_it(folder):
    fault = FAULTS["compiled_code_not_kept"]
    caches = Caches(folder, fault)
    caches.open(fresh=False)
    assert caches.compiled().old == {"deep/a.so"}
    Caches(folder, fault).open(fresh=True)
    assert (folder / "deep" / "a.so").exists()


def test_a_start_fault_changes_the_command_and_not_the_launch_that_it_was_made_of():
    launch = Launch(("python", "--no-enforce-eager"), {}, {}, 1)
    assert launch.changed(FAULTS["compile_ignored"].start).argv == ("python",)
    assert launch.changed(None) is launch
    assert launch.argv == ("python", "--no-enforce-eager")
    assert FAULTS["compile_ignored"].planted


def test_cold_is_fresh_and_warm_has_the_same_folders():
    catalog = Catalog.bound("vllm", "0.32.0", "cpu")
    cold, warm = (
        catalog.launch(ServerSpec("lookup", (("caches", value),)), "python", "none", 1, {"caches": "/here"})
        for value in ("cold", "warm")
    )
    assert (cold.fresh, warm.fresh) == (True, False)
    assert cold.env == warm.env
    assert cold.env["VLLM_CACHE_ROOT"] == "/here/vllm"


@pytest.mark.parametrize("engine", rules.ENGINES)
def test_a_model_is_not_applicable_where_none_of_its_rules_fits(engine):
    limited = {**rules.table(engine), "models": {"odd": [{"device": "cuda"}]}}
    on = {device: Catalog(engine, "1.0", Hardware(device), limited) for device in ("cpu", "cuda")}
    on["cuda"].model("odd")
    on["cpu"].model("chain")
    with pytest.raises(NotApplicable, match="on cpu has no kernels for the model odd"):
        on["cpu"].model("odd")
