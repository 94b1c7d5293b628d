"""Several processes on one database: stopping, dying, starting and enqueueing at once lose and double nothing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import PATIENCE_S, ROOT, Line, Site, both, both_with, is_alive, killed_at_the_end, wait_for
from tests.crash.kinds import is_server

LONG_S = 30
IS_HELD = "SELECT 1 FROM taskmanager_tasks WHERE status = 'RUNNING' AND worker_pid = ?"


@pytest.mark.req("PR-37", "PR-38", "PR-60")
@both_with("how", ["one after the other", "at the same time"], "at the same time", is_long=True)
def test_two_instances_stop_and_a_third_goes_on_with_the_work_of_both(tmp_path: Path, database: str, how: str) -> None:
    """Nobody replaces the pending store of another: the union comes back, each task exactly once."""
    site = Site(tmp_path, database)
    labels = {name: [f"{name}{number}" for number in range(5)] for name in "ab"}
    # Each instance is full with its own tasks, so that neither takes what the other leaves.
    options: dict[str, Any] = {"manager": {"drain_timeout": 0.1, "concurrency": 5}}
    pair = [site.spawn(enqueue=[["safe", label, LONG_S, {}] for label in labels[name]], **options) for name in "ab"]
    with killed_at_the_end(*pair):
        for child in pair:
            child.until("ready")
            child.until("start", 5)
        for child in pair:
            child.send(signal.SIGTERM)
            if how == "one after the other":
                child.wait()
        for child in pair:
            assert child.wait() == -signal.SIGTERM, child.errors()
    everything = [*labels["a"], *labels["b"]]
    assert site.statuses() == dict.fromkeys(everything, "PENDING")
    third = site.finish()
    assert site.statuses() == dict.fromkeys(everything, "COMPLETED")
    by_third = [line.label for line in site.lines("start") if line.pid == third.pid]
    assert sorted(by_third) == sorted(everything), "each exactly once"
    site.assert_sound()
    site.assert_settled()


@pytest.mark.req("PR-36", "PR-37")
@both
def test_processes_that_start_at_once_share_what_was_left(tmp_path: Path, database: str) -> None:
    """A dead instance left 40 tasks; four processes start at the same moment, and each task runs once."""
    site = Site(tmp_path, database)
    labels = [f"t{number}" for number in range(40)]
    first = site.spawn(enqueue=[["once", label, 0.05, {"delay": 0.4}] for label in labels], bulk=True)
    with killed_at_the_end(first):
        first.until("ready")
        first.kill()
    others = [site.spawn(until="empty", manager={"concurrency": 3}) for _ in range(4)]
    with killed_at_the_end(*others):
        for child in others:
            assert child.wait() == 0, child.errors()
    assert site.statuses() == dict.fromkeys(labels, "COMPLETED")
    assert site.starts() == dict.fromkeys(labels, 1)
    site.assert_sound()
    site.assert_settled()


@pytest.mark.req("RC-42")
@both
def test_the_living_take_over_from_the_dead_and_not_from_each_other(tmp_path: Path, database: str) -> None:
    """Another instance that starts while tasks run judges only the dead: a long task of a living one is left alone."""
    site = Site(tmp_path, database)
    alive = site.spawn(enqueue=[["safe", "mine", LONG_S, {}]])
    dead = site.spawn(enqueue=[["safe", "orphan", LONG_S, {}]])
    with killed_at_the_end(alive, dead):
        for child in (alive, dead):
            child.until("ready")
        alive.until_starts(2)
        dead.kill()
        heir = site.spawn(until="signal")
        with killed_at_the_end(heir):
            wait_for(lambda: site.starts()["orphan"] == 2, lambda: f"{site.lines()}{heir.errors()}")
            assert site.statuses() == {"mine": "RUNNING", "orphan": "RUNNING"}
            assert site.starts()["mine"] == 1
    site.assert_sound()


CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def _has_containers() -> bool:
    if shutil.which(CONTAINER[0]) is None:
        return False
    return subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.req("RC-01", "RC-03", "HB-01")
@both
def test_two_containers_that_share_a_volume_tell_the_dead_from_the_living(tmp_path: Path, database: str) -> None:
    """In each the application is process 1, and none sees the processes of another: the lock alone says who lives."""
    if not _has_containers():
        pytest.skip("pid namespaces cannot be made here (`unshare --pid` needs the right to)")
    site = Site(tmp_path, database)
    alive = site.spawn(enqueue=[["safe", "mine", LONG_S, {}]], within=CONTAINER)
    dead = site.spawn(enqueue=[["safe", "orphan", LONG_S, {}], ["once", "lost", LONG_S, {}]], within=CONTAINER)
    with killed_at_the_end(alive, dead):
        alive.until_starts(3)
        dead.kill()
        heir = site.spawn(within=CONTAINER)
        with killed_at_the_end(heir):
            wait_for(lambda: site.starts()["orphan"] == 2, lambda: f"{site.lines()}{heir.errors()}")
            assert site.statuses() == {"mine": "RUNNING", "orphan": "RUNNING", "lost": "FAILED"}
            assert site.codes()["lost"] == "WORKER_CRASHED"
            assert site.starts()["mine"] == 1
            assert {line.pid for line in site.lines()} == {1}
    site.assert_sound()


@both
def test_one_idempotency_key_enqueued_by_four_processes_runs_once(tmp_path: Path, database: str) -> None:
    """The id follows from the key, so all four get the same task and the same result."""
    site = Site(tmp_path, database)
    enqueue = [["once", "keyed", 0.3, {"idempotency_key": "k"}]]
    children = [site.spawn(enqueue=enqueue, until="results") for _ in range(4)]
    with killed_at_the_end(*children):
        for child in children:
            assert child.wait() == 0, child.errors()
    results = site.lines("result keyed")
    assert len(results) == 4
    assert len({line.task_id for line in results}) == 1
    assert site.starts() == {"keyed": 1}
    assert site.query("SELECT count(*) FROM taskmanager_tasks") == [(1,)]
    site.assert_sound()


@pytest.mark.req("PR-36")
@both
def test_a_frozen_instance_that_wakes_up_does_not_overwrite_its_heirs(tmp_path: Path, database: str) -> None:
    """SIGSTOP is no death: the lock is held, so nobody takes the task; after SIGCONT it ends where it was."""
    site = Site(tmp_path, database)
    frozen = site.spawn(enqueue=[["safe", "a", 1.0, {}]])
    with killed_at_the_end(frozen):
        frozen.until_starts(1)
        frozen.send(signal.SIGSTOP)
        heir = site.spawn(enqueue=[["once", "b", 0, {}]], until="results")
        assert heir.wait() == 0, heir.errors()
        assert site.statuses() == {"a": "RUNNING", "b": "COMPLETED"}
        frozen.send(signal.SIGCONT)
        wait_for(lambda: site.statuses()["a"] == "COMPLETED", frozen.errors)
        frozen.stop()
    assert site.starts() == {"a": 1, "b": 1}
    site.assert_sound()


def test_a_timeout_counts_only_time_in_which_the_process_could_run(tmp_path: Path) -> None:
    """Stopped for longer than the timeout and continued, what had time left ends well, on the loop and in a thread.

    And the time that was left goes on to count: what is too slow still times out. No store has a part in this, so a
    file is enough.
    """
    site = Site(tmp_path)
    tasks = [["timed", "quick", 2, {}], ["thread_timed", "thread", 2, {}], ["timed", "slow", 60, {}]]
    child = site.spawn(enqueue=tasks, until="results")
    with killed_at_the_end(child):
        child.until("start", 3)
        child.send(signal.SIGSTOP)
        time.sleep(6)
        assert site.lines("finish") == [], "it was stopped in the middle"
        child.send(signal.SIGCONT)
        child.wait()
    assert site.codes() == {"quick": None, "thread": None, "slow": "TASK_TIMEOUT"}
    assert site.starts() == {"quick": 1, "thread": 1, "slow": 1}


@both
def test_a_limit_for_the_whole_file_outlasts_a_kill_and_a_freeze(tmp_path: Path, database: str) -> None:
    """What a dead instance held counts until it is recovered, what a frozen one holds as long as it is frozen."""
    site = Site(tmp_path, database)
    shared = {"queue_name": "shared"}
    doomed = site.spawn(enqueue=[["safe", f"doomed{number}", 0.7, shared] for number in range(4)])
    with killed_at_the_end(doomed):
        doomed.until_starts(2)
        tasks = {name: [["safe", f"{name}{number}", 0.1, shared] for number in range(8)] for name in "ab"}
        others = [site.spawn(enqueue=tasks[name]) for name in tasks]
        with killed_at_the_end(*others):
            for child in others:
                child.until("ready")
            doomed.kill()
            killed_at = len(site.lines())
            wait_for(lambda: site.lines("start")[-1].pid != doomed.pid, others[0].errors)
            # Whoever runs the tasks now holds the places, until it wakes up.
            frozen = next(each for each in others if each.pid == site.lines("start")[-1].pid)
            frozen.send(signal.SIGSTOP)
            time.sleep(0.5)
            frozen.send(signal.SIGCONT)
            wait_for(lambda: set(site.statuses().values()) == {"COMPLETED"}, others[1].errors)
            for child in others:
                child.stop()
    assert len(site.statuses()) == 20
    assert _most_at_once(site.lines(), doomed.pid, killed_at) == 2
    site.assert_sound()


def _most_at_once(lines: list[Line], dead: int, killed_at: int) -> int:
    """By the order of the journal, which is that of the events."""
    running: dict[str, int] = {}
    most = 0
    for number, line in enumerate(lines):
        if number == killed_at:
            running = {task_id: pid for task_id, pid in running.items() if pid != dead}
        if line.event == "start":
            running[line.task_id] = line.pid
        elif line.event == "finish":
            running.pop(line.task_id, None)
        most = max(most, len(running))
    return most


@both
def test_fork_of_a_running_manager_may_not_start_and_harms_nothing(tmp_path: Path, database: str) -> None:
    """In the child, `enqueue` raises `WrongProcess`, and so does every start on the file, whatever was stopped before:
    SQLite's record of its locks was copied with the fork. On a server only the start of the parent is not the child's.
    The exit of the child touches neither the database nor the lock of the parent, nor its sessions.
    """
    site = Site(tmp_path, database)
    child = site.spawn(program="forking")
    with killed_at_the_end(child):
        assert child.wait() == 0, child.errors()
    assert len(site.lines("WrongProcess")) == 2
    assert len(site.lines("child ended 0")) == 2
    assert len(site.lines("stopped in the child")) == 1
    assert len(site.lines("sessions kept")) == 1
    outcomes = [(line.event, line.label) for line in site.lines() if line.event in ("refused", "served")]
    other = "served" if is_server(database) else "refused"
    assert outcomes == [("refused", "its own"), (other, "a new one"), (other, "after a stop")]
    assert site.statuses() == dict.fromkeys(("before", "after"), "COMPLETED")
    site.assert_sound()


@both
def test_a_manager_that_was_made_before_the_fork_is_started_in_each_process(tmp_path: Path, database: str) -> None:
    """A server that loads the application before it forks: until its start a child refuses tasks rather than hold what
    nobody would run, and what was held in the parent is the parent's alone. After an orderly stop it is as before the
    start: nothing of the file is open, and no session on a server."""
    site = Site(tmp_path, database)
    child = site.spawn(program="forking", is_preloaded=True)
    with killed_at_the_end(child):
        assert child.wait() == 0, child.errors()
    assert len(site.lines("WrongProcess")) == len(site.lines("child ended 0")) == 3
    labels = ("held by the parent", "parent", "child 1", "child 2", "child after the stop")
    assert site.starts() == dict.fromkeys(labels, 1)
    assert len({line.pid for line in site.lines("start")}) == 4
    site.assert_sound()
    site.assert_settled()


@both
def test_forks_at_any_moment_damage_nothing_and_lose_no_task(tmp_path: Path, database: str) -> None:
    """A thread forks while the manager starts, works and stops. A child of a moment at which the file was open is
    refused, all others may start; none hangs, and every acknowledged task is in the file. On a server none is refused.
    """
    site = Site(tmp_path, database)
    child = site.spawn(program="forking", is_storm=True)
    with killed_at_the_end(child):
        assert child.wait() == 0, child.errors()
    assert site.lines("hangs") == []
    assert {line.event for line in site.lines() if line.event.startswith("child ended")} == {"child ended 0"}
    assert bool(site.lines("refused")) is not is_server(database)
    saved = {line.label for line in site.lines("saved")}
    assert len(saved) == 600
    assert saved <= site.statuses().keys()
    site.assert_sound()


_FORKS_IN_A_TASK = """
import asyncio, os, sys
from taskmanager import TaskManager

lane, end = sys.argv[1:]
manager = TaskManager("tasks.db")

if lane == "surrounded":
    @manager.middleware
    async def around(context, go_on):
        return await go_on()

def fork():
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if end == "exit":
        sys.exit(3)
    if end == "raise":
        raise ValueError("in the copy")

async def on_the_loop():
    return fork()

work = manager.task(name="work", persist=True)(fork if lane == "thread" else on_the_loop)

async def main():
    async with manager:
        print(await work.enqueue())

asyncio.run(main())
"""


@pytest.mark.parametrize("lane", ["async", "surrounded", "thread"])
@pytest.mark.parametrize(("end", "status"), [("return", 0), ("raise", 1), ("exit", 3)])
def test_a_copy_that_a_task_forks_ends_with_the_code_of_the_task(
    tmp_path: Path, lane: str, end: str, status: int
) -> None:
    """It is no second application: it goes on with no loop, answers nobody, and its status is that of the code."""
    command = [sys.executable, "-c", _FORKS_IN_A_TASK, lane, end]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=PATIENCE_S, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{status}\n"), done.stderr


_FORKS_IN_A_LISTENER = """
import asyncio, os, sys
from taskmanager import TaskManager

kind, end = sys.argv[1:]
manager = TaskManager("tasks.db")

@manager.task(persist=True)
async def work():
    return "done"

def fork(event):
    if pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    elif end == "raise":
        raise ValueError("in the copy")

async def on_the_loop(event):
    fork(event)

manager.on("completed")(on_the_loop if kind == "async" else fork)

async def main():
    async with manager:
        print(await work.enqueue(), flush=True)

asyncio.run(main())
print("end")
"""


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(("end", "status"), [("return", 0), ("raise", 1)])
def test_a_copy_that_a_listener_forks_ends_with_the_listener(tmp_path: Path, kind: str, end: str, status: int) -> None:
    """It does not wait for events for ever, and is no second application."""
    command = [sys.executable, "-c", _FORKS_IN_A_LISTENER, kind, end]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=PATIENCE_S, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, sorted(done.stdout.split())) == (0, [str(status), "done", "end"]), done.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@both
def test_a_forked_child_that_outlives_its_parent_does_not_keep_it_alive(tmp_path: Path, database: str) -> None:
    """The lock of a dead instance can be taken although a forked child of it still runs: its tasks are recovered."""
    site = Site(tmp_path, database)
    parent = site.spawn(program="forking", is_child_lasting=True)
    with killed_at_the_end(parent):
        parent.until("start", label="long")
        wait_for(lambda: bool(site.lines("forked")), parent.errors)
        pid = site.lines("forked")[0].pid
        parent.kill()
    try:
        assert is_alive(pid)
        site.finish()
        assert site.statuses()["long"] == "COMPLETED"
    finally:
        os.kill(pid, signal.SIGKILL)
    site.assert_sound()


@pytest.mark.req("PR-37")
@both
def test_waiting_tasks_are_shared_with_an_idle_process(tmp_path: Path, database: str) -> None:
    """One worker has accepted 40 tasks, and can run one at a time. The idle one runs many of them, each task runs once,
    and the busy one gets all results, though it is killed for none of them.
    """
    site = Site(tmp_path, database)
    labels = [f"t{number}" for number in range(40)]
    idle = site.spawn(manager={"concurrency": 4})
    with killed_at_the_end(idle):
        idle.until("ready")
        tasks = [["once", label, 0.1, {}] for label in labels]
        busy = site.spawn(enqueue=tasks, bulk=True, until="results", manager={"concurrency": 1})
        with killed_at_the_end(busy):
            assert busy.wait() == 0, busy.errors()
    results = [line for line in site.lines() if line.event.startswith("result ") and line.pid == busy.pid]
    assert sorted(line.label for line in results) == sorted(labels)
    runners = {line.label: line.pid for line in site.lines("start")}
    assert 20 <= sum(pid == idle.pid for pid in runners.values()) < 40
    assert site.starts() == dict.fromkeys(labels, 1)
    site.assert_sound()
    site.assert_settled()


@pytest.mark.req("PR-37", "RC-42")
@both
def test_tasks_that_a_dead_process_took_over_run_again(tmp_path: Path, database: str) -> None:
    """It took tasks from a busy one and is killed while it runs them. What is safe to repeat starts again, the rest is
    reported, and the one that had it before does neither.
    """
    site = Site(tmp_path, database)
    thief = site.spawn(manager={"concurrency": 4})
    with killed_at_the_end(thief):
        thief.until("ready")
        tasks = [[name, f"{name}{number}", LONG_S, {}] for number in range(4) for name in ("safe", "once")]
        busy = site.spawn(enqueue=tasks, manager={"concurrency": 1})
        with killed_at_the_end(busy):
            busy.until("ready")
            thief.until("start", 4)
            taken = {line.label for line in site.lines("start") if line.pid == thief.pid}
            thief.kill()
            wait_for(lambda: not site.query(IS_HELD, thief.pid), lambda: f"{site.statuses()}{busy.errors()}")
            assert {label for label in taken if site.statuses()[label] == "FAILED"} == {
                label for label in taken if label.startswith("once")
            }
            busy.kill()
    site.finish()
    starts = site.starts()
    assert {label: starts[label] for label in taken} == {label: 1 + label.startswith("safe") for label in taken}
    site.assert_sound()
    site.assert_settled()
