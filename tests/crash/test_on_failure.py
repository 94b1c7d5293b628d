"""What follows a failure is in the file with it, or neither is: wherever the process dies, whoever recovers the task.

The program encrypts what it stores. The command line has neither its functions nor its key.
"""

import json
import subprocess
import sys
from pathlib import Path

from tests.crash.harness import both, both_with, change
from tests.crash.stage import Stage, staged

PROGRAM = """
import asyncio, os, signal
from taskmanager import FailedTask, TaskManager
from taskmanager.store.sql import statements, transitions

class Sealed:
    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]

_, database, name, point, *jobs = sys.argv
manager = TaskManager(database, codec=Sealed(), store_poll=0.05, processes=1)

def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@manager.task(name="alert", persist=True)
async def alert(failed: FailedTask) -> None:
    note(f"{failed.task_name} {failed.error.error_code} {failed.attempts} {failed.tags}")

@manager.task(name="kills", persist=True, on_failure=alert)
async def kills() -> None:
    die()

@manager.task(name="fails", persist=True, on_failure=alert)
async def fails() -> None:
    raise OSError

@manager.task(name="child dies", persist=True, on_failure=alert, executor="process")
def child_dies() -> None:
    die()

def is_failure(writes) -> bool:
    return any(each.status == "FAILED" for each in writes)

real_commit, real_write, real_write_all = transitions.commit, Session.write, Session.write_all

def commit(connection, writes, counting=None):
    if point == "before" and is_failure(writes):
        die()
    report = real_commit(connection, writes, counting)
    if point == "after" and is_failure(writes):
        die()
    return report

def write(connection, kind, rows, changed_ids=None):
    if point == "inside" and kind is statements.ON_FAILURE:
        die()
    return real_write(connection, kind, rows, changed_ids)

def write_all(connection, batches):
    kinds = [kind for kind, rows in batches if rows]
    if point == "inside" and statements.ON_FAILURE in kinds:
        real_write_all(connection, batches[:kinds.index(statements.ON_FAILURE)])
        die()
    return real_write_all(connection, batches)

transitions.commit, Session.write = commit, write
if real_write_all is not None:
    Session.write_all = write_all

async def live_count() -> int:
    await manager.flush()  # an end that is not written yet has no alert yet
    counts = await manager.counts()
    return sum(counts[each] for each in ("PENDING", "CLAIMED", "RUNNING"))

async def main() -> None:
    for job in jobs:
        handle = manager.get_task(job).with_options(tags={"order": "7"}).enqueue()
        await handle.saved()
    # What a dead process has left is not this one's before it was found dead. And a failure may come between the flush
    # and the count: it is written by the second flush, and what it enqueues is counted then.
    while await live_count() or await live_count():
        await asyncio.sleep(0.02)

if __name__ == "__main__":
    manager.run(main)
"""


def end(stage: Stage, name: str, *words: str) -> int:
    """Run it to its end."""
    return stage.start(name, *words).wait(60)


def told(error_code: str, job: str = "kills") -> list[str]:
    """What the alert notes of one failure."""
    return [f"{job} {error_code} 1 {{'order': '7'}}"]


def statuses(stage: Stage) -> dict[object, object]:
    """By the names of the functions, of which each has one row."""
    rows = stage.rows("SELECT task_name, status FROM taskmanager_tasks")
    by_name = {name: status for name, status in rows}  # noqa: C416  # mypy does not know how many columns there are
    assert len(rows) == len(by_name)
    return by_name


@both
def test_death_that_another_process_recovers_enqueues_one(tmp_path: Path, database: str) -> None:
    with staged(tmp_path, PROGRAM, database) as stage:
        assert end(stage, "first", "", "kills") == -9
        assert end(stage, "second", "") == 0, stage.log_of("second")
        assert stage.lines() == told("WORKER_CRASHED")
        assert statuses(stage) == {"kills": "FAILED", "alert": "COMPLETED"}


@both
def test_death_that_the_command_line_recovers_enqueues_one(tmp_path: Path, database: str) -> None:
    """It waits in plain JSON until the application is up again, which reads it beside what it has encrypted."""
    with staged(tmp_path, PROGRAM, database) as stage:
        assert end(stage, "first", "", "kills") == -9
        # On a server the command believes in a death when the heart has been silent for a minute.
        change(stage.database, "UPDATE taskmanager_heartbeats SET sent_at = sent_at - 61000000")
        command = [sys.executable, "-m", "taskmanager", "recover", "--db", stage.database]
        for _ in range(2):
            subprocess.run(command, check=True, timeout=60, capture_output=True)
        assert statuses(stage) == {"kills": "FAILED", "alert": "PENDING"}
        ((args,),) = stage.rows("SELECT args FROM taskmanager_tasks WHERE task_name = 'alert'")
        assert json.loads(str(args))[0]["error"]["error_code"] == "WORKER_CRASHED"
        assert end(stage, "second", "") == 0, stage.log_of("second")
        assert stage.lines() == told("WORKER_CRASHED")
        assert statuses(stage) == {"kills": "FAILED", "alert": "COMPLETED"}


@both
def test_death_that_many_recover_at_once_enqueues_one(tmp_path: Path, database: str) -> None:
    with staged(tmp_path, PROGRAM, database) as stage:
        assert end(stage, "first", "", "kills") == -9
        started = [stage.start(name, "") for name in ("second", "third")]
        assert [each.wait(60) for each in started] == [0, 0], stage.log_of("second") + stage.log_of("third")
        assert stage.lines() == told("WORKER_CRASHED")


@both
def test_child_that_dies_is_a_failure_of_its_task(tmp_path: Path, database: str) -> None:
    with staged(tmp_path, PROGRAM, database) as stage:
        assert end(stage, "first", "", "child dies") == 0, stage.log_of("first")
        assert stage.lines() == told("WORKER_CRASHED", "child dies")


@both_with("point", ["before", "inside", "after"], "inside")
def test_failure_and_what_follows_it_are_written_together(tmp_path: Path, database: str, point: str) -> None:
    """Killed at the commit: the failure is in the file with the other task, or it is not there and is a crash."""
    is_there = point == "after"
    with staged(tmp_path, PROGRAM, database) as stage:
        assert end(stage, "first", point, "fails") == -9
        assert statuses(stage) == ({"fails": "FAILED", "alert": "PENDING"} if is_there else {"fails": "RUNNING"})
        assert end(stage, "second", "") == 0, stage.log_of("second")
        assert stage.lines() == told("UNHANDLED_EXCEPTION" if is_there else "WORKER_CRASHED", "fails")
        assert statuses(stage) == {"fails": "FAILED", "alert": "COMPLETED"}
