"""Loops that are closed without a stop, in a process that goes on: each leaves its tasks, and nothing else."""

import asyncio
import gc
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from taskmanager import TaskManager, step

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")]
DESCRIPTORS = Path("/proc/self/fd")
LOOPS = 50


def happens(condition: Callable[[], bool]) -> bool:
    """Whether it is so within some seconds: a thread does it."""
    ends = time.monotonic() + 20
    while not condition() and time.monotonic() < ends:
        time.sleep(0.02)
    return condition()


def held() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return threading.active_count(), len(list(DESCRIPTORS.iterdir()))


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """At the end there is no thread, and no descriptor, more than before."""
    if not DESCRIPTORS.exists():
        pytest.skip("the system does not show the descriptors of a process")
    before = held()
    yield
    assert happens(lambda: held() <= before), (before, held(), threading.enumerate())
    assert held()[1] <= before[1]


def statuses(database: Path) -> list[tuple[str, str | None]]:
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT status, claimed_by_worker_id FROM taskmanager_tasks").fetchall()
    connection.close()
    return rows


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("is_one_manager", [False, True])
def test_closed_loops_leave_no_thread_and_no_descriptor(tmp_path: Path, is_one_manager: bool) -> None:
    """Whether one manager is started again and again, or each loop has a manager of its own."""
    database = tmp_path / "tasks.db"

    def made() -> TaskManager:
        manager = TaskManager(database)

        @manager.task(name="work", persist=True)
        def work() -> None:
            """In the thread lane."""

        return manager

    only = made()

    async def main(manager: TaskManager) -> None:
        await manager.start()
        await manager.get_task("work").enqueue()
        manager.get_task("work").enqueue()

    for _ in range(LOOPS):
        asyncio.run(main(only if is_one_manager else made()))
    assert happens(lambda: not list(tmp_path.glob("*.lock")))
    rows = statuses(database)
    assert len(rows) == 2 * LOOPS
    assert all(status in ("COMPLETED", "INTERRUPTED") or owner is None for status, owner in rows)


@pytest.mark.usefixtures("nothing_is_left")
def test_loop_closed_in_the_middle_of_a_start_leaves_nothing_open(tmp_path: Path) -> None:
    """Wherever the start has got to: its manager is collected, and with it what has opened the file."""

    def begin_and_close(number: int) -> "weakref.ref[TaskManager]":
        manager = TaskManager(tmp_path / f"{number}.db")
        loop = asyncio.new_event_loop()
        loop.create_task(manager.start())  # noqa: RUF006  # nobody keeps it: that is what this is about
        for _ in range(number):
            loop.run_until_complete(asyncio.sleep(0.0005))
        loop.close()
        return weakref.ref(manager)

    def lets_go(before: tuple[int, int]) -> bool:
        gc.collect()
        return held() <= before

    before, begun = held(), []
    for number in range(1, LOOPS + 1):
        begun.append(begin_and_close(number))
        gc.collect()
    assert happens(partial(lets_go, before))
    assert not [each() for each in begun if each() is not None]


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("is_step", [False, True], ids=["task", "step"])
def test_closed_loop_is_survived_by_the_thread_of_a_task(tmp_path: Path, is_step: bool) -> None:
    """It keeps the lock of its instance until it ends, so that nobody runs its task beside it."""
    database, may_end = tmp_path / "tasks.db", threading.Event()
    manager = TaskManager(database)
    has_begun = threading.Event()

    def work() -> None:
        has_begun.set()
        may_end.wait(60)

    async def work_in_a_step() -> None:
        await step(work)

    task = manager.task(name="work", persist=True, requeue_on_interrupt=True)(work_in_a_step if is_step else work)

    async def main() -> None:
        await manager.start()
        task.enqueue()
        task.with_options(delay=60).enqueue()
        await asyncio.to_thread(has_begun.wait, 30)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()  # asyncio.run() would wait for the step
    assert happens(lambda: ("PENDING", None) in statuses(database))
    assert [status for status, owner in statuses(database) if owner is not None] == ["RUNNING"]
    assert len(list(tmp_path.glob("*.lock"))) == 1
    assert any(each.name == "taskmanager-heartbeat" for each in threading.enumerate())
    may_end.set()  # and then nothing is left


@pytest.mark.usefixtures("nothing_is_left")
def test_closed_loop_of_a_thread_that_has_ended(tmp_path: Path) -> None:
    """Its thread is gone too, and what it had accepted is written for the next start all the same."""
    database = tmp_path / "tasks.db"
    manager = TaskManager(database)

    @manager.task(name="work", persist=True)
    async def work() -> None:
        """Never begins."""

    async def main() -> None:
        await manager.start()
        work.with_options(delay=60).enqueue()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert happens(lambda: ("PENDING", None) in statuses(database))
    assert happens(lambda: not list(tmp_path.glob("*.lock")))
