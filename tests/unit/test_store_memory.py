"""What only the memory store does."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import TaskFilter
from tests.contract.rows import FREE_ROW, attempt, expected, task
from tests.crash.harness import ROOT

pytestmark = pytest.mark.anyio


def ended(task_id: str, status: str = "FAILED") -> TaskRow:
    return FREE_ROW._replace(task_id=task_id, status=status, task_options="{}")


async def test_the_oldest_ended_tasks_leave_when_the_history_is_full() -> None:
    """Live tasks are never evicted, however many there are."""
    store = MemoryStore(max_history=2)
    await store.commit([TaskWrite(ended(f"live{i}", "PENDING"), None) for i in range(4)])
    for name in ("c", "a", "b"):
        await store.commit([TaskWrite(ended(name), None)])
    left = {row.task_id for row in await store.fetch_many(TaskFilter())}
    assert left == {"live0", "live1", "live2", "live3", "a", "b"}


async def test_ended_tasks_of_workflows_stay_with_these() -> None:
    """Their nodes may be asked for, and retried."""
    store = MemoryStore(max_history=1)
    of_node = ended("node")._replace(is_workflow_task=1)
    await store.commit([TaskWrite(each, None) for each in (of_node, ended("a"), ended("b"))])
    assert {row.task_id for row in await store.fetch_many(TaskFilter())} == {"node", "b"}


async def test_the_oldest_end_leaves_and_not_the_oldest_task() -> None:
    """A task that has waited for a year and has just ended stays, and so do its attempts."""
    store = MemoryStore(max_history=1)
    await store.commit([TaskWrite(task("waited"), None)])
    await store.commit([TaskWrite(ended("before")._replace(failed_at=500), None, (attempt("before"),))])
    over = task("waited", status="FAILED", failed_at=900)
    await store.commit([TaskWrite(over, expected(task("waited")), (attempt("waited"),))])
    assert list(await store.fetch_ids(["waited", "before"])) == ["waited"]
    assert len(await store.fetch_attempts("waited")) == 1
    assert await store.fetch_attempts("before") == []


async def test_history_grows_by_a_fiftieth_at_most_before_it_is_cut() -> None:
    """It is counted so seldom. In one batch it may be more, which the same commit cuts."""
    store = MemoryStore(max_history=100)
    for number in range(150):
        await store.commit([TaskWrite(ended(f"t{number}"), None)])
        assert sum((await store.counts()).values()) <= 102
    await store.commit([TaskWrite(ended(f"more{number}"), None) for number in range(300)])
    assert sum((await store.counts()).values()) == 100


async def test_repr_tells_the_state() -> None:
    """One line for a debugger."""
    store = MemoryStore()
    await store.commit([TaskWrite(ended("a"), None)])
    assert repr(store) == "<MemoryStore 0 live, 1 ended>"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_child_of_a_fork_in_the_middle_of_a_call_may_use_memory() -> None:
    """Another thread is in a statement. The fork waits for that: the child would never get the locks of SQLite."""
    store = MemoryStore()
    is_inside, forks = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> None:
        def wait() -> None:
            is_inside.set()
            assert forks.wait(20)

        connection.create_function("wait", 0, wait)
        connection.execute("SELECT wait()").fetchall()

    working = threading.Thread(target=lambda: asyncio.run(store._read(slow)))
    working.start()
    assert is_inside.wait(20)
    forks.set()
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            os._exit(sum(asyncio.run(store.counts()).values()))
        finally:
            os._exit(1)
    working.join()
    assert os.waitpid(pid, 0)[1] == 0


def test_memory_store_can_be_made_while_the_program_ends() -> None:
    """The empty database of which each is a copy is closed by then. It is made anew."""
    program = f"""
import atexit
made = []
atexit.register(lambda: print(made))
atexit.register(lambda: made.append(MemoryStore()))
from {MemoryStore.__module__} import MemoryStore
MemoryStore()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[<MemoryStore 0 live, 0 ended>]\n", "")
