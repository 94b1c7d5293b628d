"""Waits for a manager that does not run: a forgotten start is said, once, and never where there is none."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from taskmanager import ManagerStopped, StoreError, TaskHandle, TaskManager, WrongProcess, current_instance
from taskmanager.current_instance import CurrentInstance, Hint
from taskmanager.engine.words import loops
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import FaultyStore, isolated
from tests.unit.engine_worlds import happens

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

Wait = Callable[[TaskHandle[Any]], Awaitable[Any]]

WAITS: list[Wait] = [
    lambda handle: handle.result(),
    lambda handle: handle.saved(),
    lambda handle: asyncio.gather(handle),
]


async def work(number: int) -> int:
    return number


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes three seconds takes a moment."""
    monkeypatch.setattr(current_instance, "HINT_AFTER_S", 0.01)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


async def wait_long(*waits: Awaitable[Any]) -> None:
    """Wait, and give up after several times what the hint takes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await asyncio.gather(*waits)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("wait", WAITS)
async def test_a_wait_for_a_manager_that_nobody_started_is_said(caplog: pytest.LogCaptureFixture, wait: Wait) -> None:
    """It looks like a task that hangs. The line names the task and all ways to start; of a timer, so one call is
    enough."""
    manager = TaskManager("never-opened.db", requeue_pending=True)
    handle = manager.task(name="work")(work).enqueue(1)
    await wait_long(wait(handle))
    (line,) = said(caplog)
    assert f"task work ({handle.task_id}) is waited for" in line
    for way in ("manager.lifespan", "async with manager", "manager.run(main)"):
        assert way in line
    handle.cancel()


@pytest.mark.usefixtures("soon")
async def test_it_is_said_once_per_manager(caplog: pytest.LogCaptureFixture) -> None:
    """However many wait, for whatever, now or later; another manager has a line of its own."""
    manager, other = (TaskManager("never-opened.db", requeue_pending=True) for _ in range(2))
    for each in (manager, manager, other):
        handles = [each.task(name=name)(work).enqueue(1) for name in (f"work-{len(caplog.records)}-{n}" for n in "ab")]
        await wait_long(*handles, *(handle.saved() for handle in handles))
        for handle in handles:
            handle.cancel()
    assert len(said(caplog)) == 2


@pytest.mark.usefixtures("soon")
async def test_the_hint_ends_with_its_waiter(caplog: pytest.LogCaptureFixture) -> None:
    """Whether that was answered, or cancelled, or gave up."""
    manager = TaskManager("never-opened.db", requeue_pending=True)
    handle = manager.task(name="work")(work).enqueue(1)
    for wait in (handle.result, handle.saved):
        with pytest.raises(TimeoutError):
            await wait(timeout=0)
    cancelled = asyncio.ensure_future(handle.result())
    await asyncio.sleep(0)
    cancelled.cancel()
    answered = asyncio.ensure_future(handle.result())
    await asyncio.sleep(0)
    handle.cancel()
    assert (await answered).is_err()
    await wait_long(asyncio.Event().wait())
    assert said(caplog) == []


@pytest.mark.usefixtures("soon")
async def test_a_start_that_came_meanwhile_ends_the_hint(caplog: pytest.LogCaptureFixture) -> None:
    """The task may still take long."""
    manager = TaskManager(None)
    gate = asyncio.Event()

    @manager.task(name="long")
    async def long() -> None:
        await gate.wait()

    waiting = asyncio.ensure_future(long.enqueue().result())
    await asyncio.sleep(0)
    async with manager:
        await wait_long(asyncio.Event().wait())
        gate.set()
        await waiting
    assert said(caplog) == []


@pytest.mark.usefixtures("soon")
async def test_a_start_under_way_is_not_a_forgotten_one(caplog: pytest.LogCaptureFixture) -> None:
    """It may wait long for a locked file. When it has failed, nobody has started the manager after all."""
    manager = TaskManager("never-opened.db", requeue_pending=True)
    store = FaultyStore(MemoryStore())
    handle = manager.task(name="work")(work).enqueue(1)

    async def open_late() -> None:
        await gate.wait()
        raise StoreError("cannot be opened")

    gate = asyncio.Event()
    store.inner.open = open_late  # type: ignore[method-assign]
    manager._make_store = store.as_store
    starting = asyncio.ensure_future(manager.start())
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(handle.result())
    await wait_long(asyncio.Event().wait())
    assert said(caplog) == []
    gate.set()
    with pytest.raises(StoreError):
        await starting
    await happens(lambda: bool(said(caplog)))
    handle.cancel()
    await waiting


@pytest.mark.parametrize("hint_after_s", [3.0, 0.0])
async def test_virtual_time_never_fires_the_hint(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hint_after_s: float
) -> None:
    """It jumps; nobody has waited for three seconds. Nor where the test has really taken so long."""
    monkeypatch.setattr(current_instance, "HINT_AFTER_S", hint_after_s)
    manager = TaskManager("never-opened.db", requeue_pending=True)
    handle = manager.task(name="work")(work).enqueue(1)
    async with isolated(TaskManager(None)) as world:
        waiting = [asyncio.ensure_future(each) for each in (handle.result(), handle.saved())]
        await world.advance(3600)
        for each in waiting:
            each.cancel()
    handle.cancel()
    assert said(caplog) == []


@pytest.mark.usefixtures("soon")
async def test_two_managers_on_one_file_are_named(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """As when a module is imported as `__main__` and by its name, the one manager is started, and the other waited for.

    By whatever path they lead to the file. A manager that was not started either is none of them.
    """
    file, link = tmp_path / "tasks.db", tmp_path / "link.db"
    link.symlink_to(file)
    lone = TaskManager(tmp_path / "other.db")
    started, forgotten = TaskManager(file), TaskManager(link)
    async with started:
        for manager in (forgotten, lone):
            handle = manager.task(name="work")(work).enqueue(1)
            await wait_long(handle.result())
            handle.cancel()
    of_two, of_one = said(caplog)
    assert "was never started, while another one on the same file" in of_two
    assert str(link) in of_two
    assert "__main__" in of_two
    assert "another" not in of_one


@pytest.mark.usefixtures("soon")
async def test_a_loop_that_does_not_run_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """`loop.run_until_complete(manager.start())` in another thread starts a manager that runs nothing."""
    manager = TaskManager(None)
    job = manager.task(name="work")(work)
    loop = asyncio.new_event_loop()
    await asyncio.to_thread(loop.run_until_complete, manager.start())
    waiting = asyncio.ensure_future(job.enqueue(1).result())
    await happens(lambda: bool(said(caplog)))
    assert "does not run" in said(caplog)[0]
    runs = threading.Thread(target=loop.run_forever)
    runs.start()
    assert (await waiting).unwrap() == 1
    asyncio.run_coroutine_threadsafe(manager.stop(), loop).add_done_callback(
        lambda _: loop.call_soon_threadsafe(loop.stop)
    )
    await asyncio.to_thread(runs.join)
    loop.close()


@pytest.mark.parametrize(
    "wait", [lambda _, handle: handle.wait(timeout=0.1), lambda m, _: m.call(m.counts(), timeout=0.1)]
)
def test_a_call_in_the_thread_of_a_loop_that_does_not_run_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, wait: Callable[[TaskManager, Any], object]
) -> None:
    """As between the cells of a notebook: the thread that waits is the one that would have to run the loop."""
    monkeypatch.setattr(loops, "LOOK_AROUND_S", 0.001)
    manager = TaskManager(None)
    job = manager.task(name="work")(work)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(manager.start())
    handle = job.enqueue(1)
    with pytest.raises(TimeoutError):
        wait(manager, handle)
    (line,) = said(caplog)
    assert "does not run; await it in that loop" in line
    assert loop.run_until_complete(handle.result()).unwrap() == 1
    loop.run_until_complete(manager.stop())
    loop.close()


@pytest.mark.parametrize("wait", WAITS)
async def test_a_wait_is_answered_by_a_start_that_comes_up_beside_it(
    monkeypatch: pytest.MonkeyPatch, wait: Wait
) -> None:
    """The loop of another thread may run the task to its end while this one is about to wait for the start."""
    manager = TaskManager("never-opened.db", requeue_pending=True)
    manager._make_store = MemoryStore
    handle = manager.task(name="work")(work).enqueue(1)
    has_ended, may_stop, hint = threading.Event(), threading.Event(), CurrentInstance.hint_of_no_start

    async def serve() -> None:
        async with manager:
            await manager.join()
            await manager.flush()
            has_ended.set()
            await asyncio.to_thread(may_stop.wait)

    runs = threading.Thread(target=asyncio.run, args=(serve(),))

    def hint_late(instance: CurrentInstance, live: LiveTask) -> Hint | None:
        made = hint(instance, live)
        if not has_ended.is_set():
            runs.start()
            assert has_ended.wait(20)
        return made

    monkeypatch.setattr(CurrentInstance, "hint_of_no_start", hint_late)
    try:
        async with asyncio.timeout(5):
            await wait(handle)
    finally:
        may_stop.set()
        await asyncio.to_thread(runs.join)


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_that_nobody_can_ever_answer_raises(wait: Wait) -> None:
    """The loop of the manager is closed, or it runs in the process that this one was forked from."""
    manager = TaskManager("never-opened.db", requeue_pending=True)
    manager._make_store = MemoryStore
    handles: list[TaskHandle[Any]] = []

    @manager.task(name="long")
    async def long() -> None:
        await asyncio.Event().wait()

    async def begin() -> None:
        await manager.start()
        handles.append(long.enqueue())
        if hasattr(os, "fork"):
            await asyncio.to_thread(in_a_child)

    def in_a_child() -> None:
        pid = os.fork()
        if not pid:
            try:
                asyncio.run(waits())
            except WrongProcess:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0

    async def waits() -> None:
        async with asyncio.timeout(5):
            await wait(handles[0])

    asyncio.run(begin())
    with pytest.raises(ManagerStopped, match="is closed"):
        asyncio.run(waits())
    asyncio.run(manager.stop())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("in_child", ["as it is", "stopped there", "started there"])
@pytest.mark.parametrize("in_parent", ["held", "running"])
@pytest.mark.parametrize("use", [WAITS[0], WAITS[2], lambda handle: asyncio.to_thread(handle.cancel)])
def test_a_task_in_memory_at_a_fork_is_refused_in_the_child(use: Wait, in_parent: str, in_child: str) -> None:
    """Nobody works on it there, whatever became of the manager: it is its parent's, and so are its handles."""
    manager = TaskManager("never-opened.db", requeue_pending=True)
    manager._make_store = MemoryStore

    @manager.task(name="long")
    async def long() -> None:
        await asyncio.Event().wait()

    async def in_the_child(handle: TaskHandle[Any]) -> None:
        if in_child != "as it is":
            await manager.stop()
        if in_child == "started there":
            await manager.start()
        async with asyncio.timeout(5):
            await use(handle)

    def fork(handle: TaskHandle[Any]) -> None:
        pid = os.fork()
        if not pid:
            try:
                asyncio.run(in_the_child(handle))
            except WrongProcess:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0

    async def begin() -> None:
        async with manager:
            handle = long.enqueue()
            await asyncio.to_thread(fork, handle)
            assert handle.cancel()

    if in_parent == "held":
        fork(long.enqueue())
    else:
        asyncio.run(begin())
