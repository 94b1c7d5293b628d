"""The thread and the process lane: what the system does not give them, and what does not come through between them."""

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from taskmanager import ConfigurationError, TaskCancelled, TaskFailed, TaskInterrupted, TaskManager, current_task
from taskmanager.engine.run import lanes
from taskmanager.engine.run.child import find_function

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane is tried again soon."""
    monkeypatch.setattr(lanes, "FIRST_RETRY_S", 0.02)
    monkeypatch.setattr(lanes, "LAST_RETRY_S", 0.05)


async def happens(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # threads and processes do it
            await asyncio.sleep(0.005)


# The system gives no more.


class Threads:
    """How many more may be started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        self.refused = 0
        start = threading.Thread.start

        def start_if_allowed(thread: threading.Thread) -> None:
            if thread.name.startswith("taskmanager-thread"):
                if not self.left:
                    self.refused += 1
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_if_allowed)


@pytest.mark.parametrize("persist", [True, False])
async def test_a_task_for_which_there_is_no_thread_waits_and_has_not_failed(
    *, tmp_path: Path, persist: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code has not begun: no retry is spent, its time does not run, and it is told why nothing starts."""
    threads = Threads(monkeypatch, 0)
    manager = TaskManager(tmp_path / "tasks.db", threads=2)
    ran: list[int] = []

    @manager.task(persist=persist, timeout=0.3)
    def work(number: int) -> int:
        ran.append(number)
        return number

    async with manager:
        handles = [work.enqueue(number) for number in range(3)]
        await happens(lambda: threads.refused > 12)  # longer than the timeout, in tries
        assert ran == []
        status = manager.status()
        assert "can't start new thread" in status.failing_duties["thread lane"]
        assert {handle.status.value for handle in handles} <= {"PENDING", "RUNNING"}
        assert handles[2].cancel()
        with pytest.raises(TaskCancelled):
            await asyncio.wait_for(handles[2], 10)
        threads.left = 1
        assert await asyncio.wait_for(asyncio.gather(*handles[:2]), 10) == [0, 1]
        info = await handles[0].info(include_attempts=True)
        assert (info.retry_count, info.snooze_count, [each.outcome for each in info.attempts or ()]) == (
            0,
            0,
            ["COMPLETED"],
        )
        await happens(lambda: manager.status().failing_duties == {})


async def test_a_free_thread_takes_a_task_that_no_thread_could_be_started_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As soon as it is, and not at the next try."""
    monkeypatch.setattr(lanes, "FIRST_RETRY_S", 3600.0)
    monkeypatch.setattr(lanes, "LAST_RETRY_S", 3600.0)
    Threads(monkeypatch, 2)
    manager, gate = TaskManager(None, threads=5), threading.Event()

    @manager.task
    def work(number: int) -> int:
        gate.wait(30)
        return number

    async with manager:
        handles = [work.enqueue(number) for number in range(5)]
        await happens(lambda: "thread lane" in manager.status().failing_duties)
        gate.set()
        assert await asyncio.wait_for(asyncio.gather(*handles), 20) == list(range(5))


async def test_a_lane_that_is_short_for_long_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It runs what it can, as many at once as there are threads; the line would else come with every task that ends."""
    threads = Threads(monkeypatch, 2)
    manager, most, running, lock = TaskManager(None, threads=5), 0, 0, threading.Lock()

    @manager.task
    def work(number: int) -> int:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.002)
        with lock:
            running -= 1
        return number

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "lane" in record.getMessage()]

    async with manager:
        handles = [work.enqueue(number) for number in range(200)]
        assert await asyncio.wait_for(asyncio.gather(*handles), 30) == list(range(200))
        assert most == 2
        assert threads.refused < 100, "one is tried now and then, and not with every task that ends"
        threads.left = 10
        await happens(lambda: manager.status().failing_duties == {})
        assert ["starts no more tasks now" in line for line in lines()] == [True, False]


async def test_a_task_for_which_there_is_no_child_process_waits_and_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that was replaced by an update is back in a moment; so are memory and descriptors."""
    manager = TaskManager(tmp_path / "tasks.db", processes=1)
    task = manager.task(executor="process", persist=True)(doubled)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(tmp_path / "python"))
        async with manager:
            handle = task.enqueue(4)
            await happens(lambda: "process lane" in manager.status().failing_duties)
            assert "No such file" in manager.status().failing_duties["process lane"]
            patched.undo()
            assert await asyncio.wait_for(handle, 30) == 8
            info = await handle.info(include_attempts=True)
            assert (info.retry_count, info.crash_count, len(info.attempts or ())) == (0, 0, 1)
            await happens(lambda: manager.status().failing_duties == {})


async def test_a_task_that_could_not_start_waits_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop finds it waiting: it was not interrupted."""
    Threads(monkeypatch, 0)
    manager = TaskManager(tmp_path / "tasks.db", drain_timeout=0.2)

    @manager.task(persist=True)
    def work() -> int:
        return 1

    async with manager:
        handle = work.enqueue()
        await happens(lambda: manager.status().failing_duties)
    monkeypatch.undo()
    async with manager:
        assert await asyncio.wait_for(manager.handle(handle.task_id), 20) == 1


async def test_a_stop_while_the_child_process_comes_up_interrupts_nothing(tmp_path: Path) -> None:
    """An application that takes seconds to import keeps its children waiting for it as long. A task that is not safe to
    repeat would be INTERRUPTED by each deploy, and looked at by a person, although none of its code had run.
    """
    manager = TaskManager(tmp_path / "tasks.db", processes=1, drain_timeout=0)
    task = manager.task(executor="process", persist=True)(doubled)
    async with manager:
        engine = manager._engine()
        assert engine is not None
        handle = task.enqueue(4)
        await happens(lambda: engine.runner.processes.is_coming_up)
    with pytest.raises(TaskInterrupted) as caught:
        await handle
    assert caught.value.requeued
    async with manager:
        assert await asyncio.wait_for(manager.handle(handle.task_id), 30) == 8
        info = await manager.get(handle.task_id, include_attempts=True)
    assert info is not None
    assert [each.outcome for each in info.attempts or ()] == ["COMPLETED"]


async def test_a_cancel_while_a_child_comes_up_leaves_no_child_behind() -> None:
    """One that nobody knows would live, and hold its memory, as long as this process."""
    psutil = pytest.importorskip("psutil")
    manager = TaskManager(None, processes=1)
    task = manager.task(executor="process")(doubled)
    before = {child.pid for child in psutil.Process().children()}
    async with manager:
        for pause_s in (0.0, 0.01, 0.05, 0.1):
            handle = task.enqueue(1)
            await asyncio.sleep(pause_s)
            handle.cancel()
            await asyncio.wait_for(handle.result(), 30)
        assert await asyncio.wait_for(task.enqueue(2), 30) == 4
        assert len({child.pid for child in psutil.Process().children()} - before) == 1


# A thread that nobody can end.


class Overlap:
    """A function for the thread lane that goes on until it may end, and how many of it ever ran at once."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began = threading.Event()
        self.started = self.running = self.most = 0

    def __call__(self) -> int:
        self.started += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.began.set()
        self.gate.wait(30)
        self.running -= 1
        return self.started


async def test_cancelling_every_task_of_the_loop_ends_no_thread(tmp_path: Path) -> None:
    """It goes on, so the attempt does: no second one begins beside it, and what it comes to counts."""
    manager, overlap = TaskManager(tmp_path / "tasks.db"), Overlap()
    options: Any = {"persist": True, "executor": "thread", "requeue_on_interrupt": True, "retries": 3}
    task = manager.task(name="work", retry_delay=0.0, **options)(overlap.__call__)
    of_the_test = asyncio.all_tasks()
    async with manager:
        handle = task.enqueue()
        await happens(overlap.began.is_set)
        for _ in range(3):
            for each in asyncio.all_tasks() - of_the_test:
                each.cancel()
            await happens(lambda: not manager.status().failing_duties)  # the loops have been begun again
        await asyncio.wait_for(task.with_options(delay=3600).enqueue().saved(), 20)
        overlap.gate.set()
        assert await asyncio.wait_for(handle, 20) == 1
        info = await handle.info(include_attempts=True)
        assert [each.outcome for each in info.attempts or ()] == ["COMPLETED"]
    assert overlap.most == 1


@pytest.mark.parametrize("persist", [True, False])
async def test_a_key_enqueued_again_waits_for_the_thread_of_its_last_attempt(*, tmp_path: Path, persist: bool) -> None:
    """That timed out, and goes on: the same work must not be done twice at once, whoever asks for it again."""
    manager, overlap = TaskManager(tmp_path / "tasks.db"), Overlap()
    task = manager.task(name="work", persist=persist, executor="thread", timeout=0.1)(overlap.__call__)
    another = manager.task(executor="thread")(doubled)
    async with manager:
        with pytest.raises(TaskFailed):
            await asyncio.wait_for(task.with_options(idempotency_key="k").enqueue(), 20)
        again = task.with_options(idempotency_key="k", timeout=30).enqueue()
        if persist:
            await asyncio.wait_for(again.saved(), 20)
        assert await asyncio.wait_for(another.enqueue(1), 20) == 2  # whoever may start has started by then
        assert (overlap.started, again.status.value) == (1, "PENDING")
        overlap.gate.set()
        assert await asyncio.wait_for(again, 20) == 2
    assert overlap.most == 1


# What does not come through.


def doubled(number: int) -> int:
    return 2 * number


def what_no_pickle_holds() -> object:
    current_task().log("seen", by=lambda: None)
    current_task().progress(1, 2, "half")
    return lambda: None


class OnlyThere:
    """Can be pickled, and not read."""

    def __reduce__(self) -> Any:
        return (refuse, ("value",))


class OnlyThereError(Exception):
    def __reduce__(self) -> Any:
        return (refuse_in_parent, (self.args[0],))


def refuse(what: str) -> None:
    raise SystemExit(what)


def refuse_in_parent(what: str) -> Exception:
    from taskmanager.engine.run import child

    if not child.is_lane_child:
        raise SystemExit(what)
    return OnlyThereError(what)


def what_cannot_be_read_here() -> object:
    return OnlyThere()


def an_exception_that_cannot_be_read_here() -> None:
    raise OnlyThereError("words")


async def test_a_value_that_stays_in_its_child_is_a_success_without_a_result(tmp_path: Path) -> None:
    """The work is done, and is not done again; whoever waits is told that nobody has the value."""
    manager = TaskManager(tmp_path / "tasks.db", processes=1)
    bound = [
        manager.task(executor="process", persist=True, retries=2)(fn)
        for fn in (what_no_pickle_holds, what_cannot_be_read_here)
    ]
    fails = manager.task(executor="process", persist=True)(an_exception_that_cannot_be_read_here)
    async with manager:
        for task in bound:
            handle = task.enqueue()
            with pytest.raises(TaskFailed) as caught:
                await asyncio.wait_for(handle, 30)
            assert caught.value.error.error_code == "RESULT_NOT_AVAILABLE"
            info = await handle.info(include_attempts=True)
            assert info.status.value == "COMPLETED"
            assert [each.outcome for each in info.attempts or ()] == ["COMPLETED"]
            if task is bound[0]:
                assert info.log is not None
                assert "seen" in str(info.log)
        with pytest.raises(TaskFailed, match="OnlyThereError: words"):
            await asyncio.wait_for(fails.enqueue(), 30)


class Refused(Exception):
    """As many are written: what it is made with is not what it says."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")


class Locked(Exception):
    def __init__(self, status: int) -> None:
        self.status, self.lock = status, threading.Lock()

    def __str__(self) -> str:
        return f"status {self.status}"


def comes_to(what: str) -> object:
    async def forgotten() -> None: ...

    if what == "coroutine":
        return forgotten()
    raise {"refused": Refused(503, "later"), "locked": Locked(423)}[what]


async def test_a_child_comes_to_the_same_outcome_as_a_thread() -> None:
    """An exception that no pickle can hold as it is keeps its class, so its code, and its words; and a coroutine that
    nobody has awaited is no success there either.
    """
    manager = TaskManager(None, processes=1, exception_mapper={Refused: "REFUSED", Locked: "LOCKED"})
    lanes: list[Any] = [manager.task(name=lane, executor=lane)(comes_to) for lane in ("thread", "process")]
    async with manager:
        for what, code in (("refused", "REFUSED"), ("locked", "LOCKED"), ("coroutine", "UNHANDLED_EXCEPTION")):
            here, there = [(await asyncio.wait_for(task.enqueue(what).result(), 30)).err_value for task in lanes]
            assert (there.error_code, there.message) == (code, here.message)


async def test_an_argument_that_cannot_go_to_a_child_is_named(tmp_path: Path) -> None:
    """A memory-only task may carry any object, but not into another process."""
    manager = TaskManager(None)
    task = manager.task(executor="process")(doubled)
    async with manager:
        with pytest.raises(TaskFailed, match=r"argument 'number' \(\w+\) cannot be sent to a child process"):
            await task.enqueue(number=threading.Lock())  # type: ignore[arg-type]  # on purpose


def test_a_child_does_not_run_the_program_again_to_find_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main module of an archive can be found by its name, which would begin the whole program inside the child."""
    (tmp_path / "__main__.py").write_text("raise SystemExit('the program runs again')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "__main__")
    with pytest.raises(ConfigurationError, match="top level of a module that can be imported"):
        find_function("__main__", "work")
