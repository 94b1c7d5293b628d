"""Every lane on every kind of event loop that a program may have, from its first task on."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from taskmanager import TaskManager, current_task

HAS_UVLOOP = sys.platform != "win32" and sys.implementation.name == "cpython"  # as pyproject.toml says
LANES = ("async", "thread", "process")
log = logging.getLogger("app.in.loops")

Cell = Callable[[], Coroutine[Any, Any, Any]]


def of_lane(number: int) -> tuple[int, int]:
    current_task().progress(number, 2)
    log.warning("number %d", number)
    return 2 * number, os.getpid()


async def of_loop(number: int) -> tuple[int, int]:
    return of_lane(number)


# Each runs the cells one after the other on its loop, each in a task of its own that ends with it.


def with_asyncio_run(cells: list[Cell]) -> None:
    async def main() -> None:
        for cell in cells:
            await asyncio.create_task(cell())

    asyncio.run(main())


def in_a_thread(cells: list[Cell], new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
    """Flask, Django and Tornado programs have one like this."""
    loop = new_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for cell in cells:
            asyncio.run_coroutine_threadsafe(cell(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def call_by_call(cells: list[Cell]) -> None:
    loop = asyncio.new_event_loop()
    for cell in cells:
        loop.run_until_complete(cell())
    loop.close()


def thread_by_thread(cells: list[Cell]) -> None:
    """A server of threads may run the one loop in whatever thread has a request: none of them lives as long as it."""
    loop = asyncio.new_event_loop()
    for cell in cells:
        thread = threading.Thread(target=lambda run=cell: loop.run_until_complete(run()))  # type: ignore[misc]
        thread.start()
        thread.join()
    loop.close()


def as_in_a_notebook(cells: list[Cell]) -> None:
    """The loop of the kernel runs in the main thread for ever; what a user writes are tasks in it."""
    loop = asyncio.new_event_loop()
    done: list[asyncio.Task[Any]] = []

    def run_next(_: object = None) -> None:
        if len(done) == len(cells) or (done and done[-1].exception()):
            loop.stop()
            return
        done.append(loop.create_task(cells[len(done)]()))
        done[-1].add_done_callback(run_next)

    loop.call_soon(run_next)
    loop.run_forever()
    loop.close()
    for each in done:
        each.result()


def with_eager_tasks(cells: list[Cell]) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]  # 3.12
        for cell in cells:
            await asyncio.create_task(cell())

    asyncio.run(main())


def with_uvloop(cells: list[Cell]) -> None:
    import uvloop

    async def main() -> None:
        for cell in cells:
            await asyncio.create_task(cell())

    uvloop.run(main())


def with_uvloop_in_a_thread(cells: list[Cell]) -> None:
    import uvloop

    in_a_thread(cells, uvloop.new_event_loop)


def with_anyio_run(cells: list[Cell]) -> None:
    import anyio

    async def main() -> None:
        for cell in cells:
            async with anyio.create_task_group() as group:
                group.start_soon(cell)

    anyio.run(main)


KINDS = [
    with_asyncio_run,
    in_a_thread,
    call_by_call,
    thread_by_thread,
    as_in_a_notebook,
    with_anyio_run,
    pytest.param(with_eager_tasks, marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has them")),
    *(
        pytest.param(kind, marks=pytest.mark.skipif(not HAS_UVLOOP, reason="there is no uvloop for this platform"))
        for kind in (with_uvloop, with_uvloop_in_a_thread)
    ),
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("run", KINDS)
def test_every_lane_works_on_every_loop(
    run: Callable[[list[Cell]], None], tmp_path: Any, caplog: pytest.LogCaptureFixture, *, persist: bool
) -> None:
    """The first task of a lane, and a later one; from tasks that end at once; and again after a stop, on a new loop."""
    manager = TaskManager(tmp_path / "tasks.db" if persist else None, processes=1, requeue_pending=persist)
    tasks: list[Any] = [
        manager.task(name=lane, executor=lane)(of_loop if lane == "async" else of_lane) for lane in LANES
    ]
    pids: list[int] = []

    async def call() -> None:
        for task in tasks:
            for number in (1, 2):
                handle = task.enqueue(number)
                doubled, pid = await asyncio.wait_for(handle, 30)
                assert (doubled, (await handle.info()).progress["done"]) == (2 * number, number)
                pids.append(pid)

    for _ in range(2):
        run([manager.start, call, call, manager.stop])
    own, children = set(pids[0:4]), set(pids[4:6])
    assert own == {os.getpid()}
    assert len(children) == 1
    assert os.getpid() not in children
    assert len([each for each in caplog.records if each.name == log.name]) == 24
    assert len(set(pids)) == 3, "one child in each start, which ended with it"
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.WARNING] == []
