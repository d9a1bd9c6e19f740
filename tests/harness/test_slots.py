"""Slots are taken all at once or not at all, by one server each, and nobody waits for ever."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import pytest

from fixtures.errors import HarnessError
from fixtures.launch import slots
from fixtures.launch.slots import PAUSE, USED_LIMIT, Clock, Holder, Queue

LIMIT = 120  # seconds for anything that a test waits for
START = multiprocessing.get_context("forkserver")  # no child inherits a lock of the test's


class Time:
    """A clock that only moves when somebody sleeps, and then does what is due."""

    def __init__(self, *due):
        self.at, self.due = 0.0, list(due)

    def sleep(self, seconds):
        self.at += seconds
        if self.due:
            self.due.pop(0)()

    @property
    def clock(self):
        return Clock(lambda: self.at, self.sleep)


def queue(folder, server="vllm-chain", **more):
    who = Holder(server, "run-1", os.getpid())
    return Queue(folder, who, **{"what": "GPU", "limit": 0, "say": lambda _: None, **more})


def give_back(taken):
    for handle in taken.values():
        os.close(handle)


def test_the_first_slots_that_are_free_are_taken_and_given_back(tmp_path):
    first = queue(tmp_path).take(["b", "a", "c"], 2)
    assert list(first) == ["b", "a"]
    second = queue(tmp_path).take(["b", "a", "c"], 1)
    assert list(second) == ["c"]
    give_back(first)
    assert list(queue(tmp_path).take(["b", "a", "c"], 2)) == ["b", "a"]


def test_more_slots_than_there_are_is_one_sentence(tmp_path):
    with pytest.raises(HarnessError, match="vllm-chain needs 3 GPUs, and this run may use 2 of this machine"):
        queue(tmp_path, limit=100).take(["a", "b"], 3)


def test_who_does_not_get_all_keeps_nothing_and_says_who_has_them(tmp_path):
    queue(tmp_path, "vllm-small").take(["c"], 1)
    with pytest.raises(HarnessError) as refused:
        queue(tmp_path, "vllm-large").take(["a", "b", "c"], 3)
    assert str(refused.value) == (
        "vllm-large needs 3 GPUs and did not get that within 0 s: "
        f"c is held by vllm-small of run run-1 (process {os.getpid()}). "
        "Let that end or stop it, or allow more time with --lease-limit SECONDS."
    )
    assert list(queue(tmp_path).take(["a", "b", "c"], 2)) == ["a", "b"]


def test_a_wait_is_told_once_and_ends_at_its_limit(tmp_path):
    queue(tmp_path, "vllm-small").take(["a"], 1)
    told, passing = [], Time()
    with pytest.raises(HarnessError, match="did not get that within 30 s"):
        queue(tmp_path, limit=30, say=told.append, clock=passing.clock).take(["a"], 1)
    holder = f"a is held by vllm-small of run run-1 (process {os.getpid()})"
    assert told == [f"vllm-chain needs 1 GPU and waits: {holder}"]
    assert passing.at == pytest.approx(30, abs=2 * PAUSE)


def test_only_a_wait_stops_the_tests_time(tmp_path):
    steps = []

    @contextmanager
    def pause():
        steps.append("stopped")
        yield
        steps.append("set anew")

    told = []
    taken = queue(tmp_path, pause=pause, say=told.append).take(["a"], 1)
    assert (steps, told) == ([], [])
    passing = Time(lambda: steps.append("waiting"), partial(give_back, taken))
    waiting = queue(tmp_path, limit=30, pause=pause, say=told.append, clock=passing.clock)
    assert list(waiting.take(["a"], 1)) == ["a"]
    assert steps == ["stopped", "waiting", "set anew"]
    assert told[1:] == ["vllm-chain goes on after a wait of 0 s"]


def test_a_small_server_does_not_pass_a_large_one_that_waits(tmp_path):
    """While one waits for both slots, the free one is not given to another; afterwards the other has its turn."""
    taken = queue(tmp_path, "vllm-first").take(["a"], 1)
    passed = []

    def try_to_pass():
        with pytest.raises(HarnessError, match=r"it is the turn of vllm-large of run run-1 \(process"):
            queue(tmp_path, "vllm-small").take(["a", "b"], 1)
        passed.append(False)

    passing = Time(try_to_pass, partial(give_back, taken))
    large = queue(tmp_path, "vllm-large", limit=30, clock=passing.clock).take(["a", "b"], 2)
    assert passed == [False]
    give_back(large)
    assert list(queue(tmp_path, "vllm-small").take(["a", "b"], 1)) == ["a"]


def test_runs_with_other_slots_do_not_wait_for_each_other(tmp_path):
    queue(tmp_path).take(["a"], 1)
    got = []
    passing = Time(lambda: got.append(list(queue(tmp_path).take(["b", "c"], 2))))
    with pytest.raises(HarnessError):
        queue(tmp_path, limit=1, clock=passing.clock).take(["a"], 1)
    assert got == [["b", "c"]]


def test_what_somebody_else_uses_is_left_alone_while_others_are_free(tmp_path):
    used = {"a": "a is used by somebody else"}
    assert list(queue(tmp_path, unfit=lambda _: used).take(["a", "b", "c"], 2)) == ["b", "c"]


def test_what_stays_in_use_by_somebody_else_is_not_waited_for_long(tmp_path):
    used, passing = {"a": "a is used by somebody else: process 7"}, Time()
    with pytest.raises(HarnessError) as refused:
        queue(tmp_path, limit=3600, unfit=lambda _: used, clock=passing.clock).take(["a", "b"], 2)
    assert str(refused.value) == (
        "vllm-chain needs 2 GPUs: a is used by somebody else: process 7. "
        "Stop what uses it, or name other GPUs in CUDA_VISIBLE_DEVICES."
    )
    assert passing.at == pytest.approx(USED_LIMIT, abs=2 * PAUSE)


def test_what_a_killed_engine_still_uses_is_waited_for(tmp_path):
    used = {"a": "a is used by somebody else: process 7"}
    passing = Time(lambda: None, used.clear)
    assert list(queue(tmp_path, limit=3600, unfit=lambda _: used, clock=passing.clock).take(["a"], 1)) == [
        "a"
    ]


def test_only_what_no_run_holds_is_asked_for_its_use(tmp_path):
    queue(tmp_path).take(["a"], 1)
    asked = []
    queue(tmp_path, unfit=lambda names: asked.append(names) or {}).take(["a", "b"], 1)
    assert asked == [("b",)]


def hold(folder, pipe):
    """Take both slots, say so, and never give them back."""
    queue(folder, "vllm-held").take(["a", "b"], 2)
    pipe.send(os.getpid())
    pipe.recv()


def test_what_a_killed_process_held_is_free(tmp_path):
    ours, theirs = START.Pipe()
    child = START.Process(target=hold, args=(tmp_path, theirs))
    child.start()
    assert ours.poll(LIMIT)
    pid = ours.recv()
    with pytest.raises(
        HarnessError, match=rf"a is held by vllm-held of run run-1 \(process {pid}\); b is held"
    ):
        queue(tmp_path).take(["a", "b"], 1)
    os.kill(pid, signal.SIGKILL)
    child.join(LIMIT)
    assert child.exitcode == -signal.SIGKILL
    assert list(queue(tmp_path).take(["a", "b"], 2)) == ["a", "b"]


def test_a_process_that_inherits_a_lease_holds_it(tmp_path):
    """As the supervisor of an engine does: the engine of a killed run ends before its GPUs are anybody's."""
    taken = queue(tmp_path).take(["a"], 1)
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=tuple(taken.values())) as heir:
        give_back(taken)
        with pytest.raises(HarnessError, match="a is held by"):
            queue(tmp_path).take(["a"], 1)
    assert heir.returncode == 0
    assert list(queue(tmp_path).take(["a"], 1)) == ["a"]


NAMES = ["a", "b", "c", "d"]


def race(folder, count, rounds, told):
    """Take slots again and again; a mark in each, which nobody else may have set, shows that they are ours alone."""
    clock = Clock(sleep=lambda _: time.sleep(0.001))
    clashes = 0
    for _ in range(rounds):
        taken = queue(folder, f"vllm-{count}", limit=LIMIT, clock=clock).take(NAMES, count)
        assert len(taken) == count
        for name in taken:
            try:
                os.close(os.open(folder / f"{name}.mark", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                clashes += 1
        for name in taken:
            (folder / f"{name}.mark").unlink(missing_ok=True)
        give_back(taken)
    told.put((count, rounds, clashes))


def test_racing_servers_of_all_sizes_get_what_they_need_alone_and_none_is_stuck(tmp_path):
    told = START.Queue()
    wanted = [1, 1, 2, 3, 3, 4]
    children = [START.Process(target=race, args=(tmp_path, count, 40, told)) for count in wanted]
    for child in children:
        child.start()
    ended = sorted(told.get(timeout=LIMIT) for _ in children)
    for child in children:
        child.join(LIMIT)
    assert ended == [(count, 40, 0) for count in wanted]
    assert [child.exitcode for child in children] == [0] * len(children)


def test_the_folder_is_the_users_own_and_made_when_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("DSV4_LEASES", str(tmp_path / "deep" / "leases"))
    assert slots.folder() == tmp_path / "deep" / "leases"
    assert slots.folder().is_dir()
    monkeypatch.delenv("DSV4_LEASES")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert str(os.getuid()) in slots.folder().name
    assert not slots.folder().is_relative_to(tmp_path)


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSV4_LEASES", str(tmp_path / "file" / "leases"))
    with pytest.raises(
        HarnessError, match=r"cannot be used \(Not a directory\). Let DSV4_LEASES name one that can.$"
    ):
        slots.folder()
    monkeypatch.setenv("DSV4_LEASES", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(HarnessError, match=r"\(it is somebody else's\)"):
        slots.folder()
