"""Code of the application that is called beside its tasks, and raises: it stops nothing of the engine, and is told."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path

import pytest

from taskmanager import TaskError, TaskFailed, TaskManager, TaskResult, TaskStatus, current_task
from taskmanager.model.logger import Log, logger
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import FaultyStore, isolated

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

LOGGER = logging.getLogger("taskmanager")


class Odd(BaseException):
    """What nobody expects: no `Exception` at all."""


@contextmanager
def hostile_logging(raises: Callable[[], BaseException], where: str) -> Iterator[None]:
    """Every record of the library is refused by a filter, a handler or the factory of records."""

    def refuse(*_: object, **__: object) -> logging.LogRecord:
        raise raises()

    class Refusing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            refuse()

    handler, level, factory = Refusing(), LOGGER.level, logging.getLogRecordFactory()
    LOGGER.setLevel("DEBUG")
    if where == "filter":
        LOGGER.addFilter(refuse)
    elif where == "handler":
        LOGGER.addHandler(handler)
    else:
        logging.setLogRecordFactory(refuse)
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)
        LOGGER.removeFilter(refuse)
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        logger.lost_count, logger.fault = 0, None


@pytest.mark.parametrize("where", ["filter", "handler", "factory"])
@pytest.mark.parametrize("raises", [ZeroDivisionError, Odd, asyncio.CancelledError])
async def test_logging_that_raises_stops_nothing(
    raises: type[BaseException], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records are written in the middle of a dispatch, a commit, a look at the clock: none of these may break off."""
    manager = TaskManager("never-opened.db")

    @manager.task(persist=True, retries=2, retry_delay=1.0)
    async def fails() -> None:
        raise ValueError("no")

    @manager.task(persist=True)
    async def works(item: int) -> int:
        return item

    with hostile_logging(raises, where):
        async with isolated(manager) as world:
            failing, late = (
                fails.enqueue(),
                works.with_options(good_until=world.now + timedelta(seconds=5), delay=60).enqueue(0),
            )
            await world.advance(120)
            with pytest.raises(TaskFailed):
                await failing
            assert (await late.result()).is_err()
            assert await works.enqueue(7) == 7
            fault = manager.status().failing_duties["log"]
            assert raises.__name__ in fault
    assert capsys.readouterr().err.count("could not be logged") == 1, "once, however many records are lost"


def test_what_ends_the_process_is_let_through() -> None:
    """A signal handler that calls `sys.exit()` may come in the middle of a record."""
    for raises in (SystemExit, KeyboardInterrupt):
        with hostile_logging(raises, "filter"), pytest.raises(raises):
            logger.warning("x")


def test_a_record_names_the_line_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    """Through however many hands it goes; and what was lost is forgotten with the next one that gets through."""
    log = Log(LOGGER)
    log.fault = "ValueError"
    log.warning("hello %s", "there", extra={"task_id": "t1"})
    (record,) = caplog.records
    assert (record.funcName, record.getMessage()) == ("test_a_record_names_the_line_that_logged_it", "hello there")
    assert (record.pathname, record.__dict__["task_id"]) == (__file__, "t1")
    assert log.fault is None


# What a task leaves behind: values, errors, lines of its log.


@dataclass
class Touchy:
    """Comes back from the store, and cannot be compared with what was sent."""

    item: int = 1

    def __eq__(self, other: object) -> bool:
        raise SystemExit

    __hash__ = None  # type: ignore[assignment]


class Unreadable(Mapping[str, object]):
    def __getitem__(self, key: str) -> object:
        raise Odd

    def __iter__(self) -> Iterator[str]:
        raise Odd

    def __len__(self) -> int:
        return 1


class Mute:
    def __repr__(self) -> str:
        raise SystemExit


class Over(StopIteration):
    def __str__(self) -> str:
        raise RuntimeError


def touchy() -> Touchy:
    return Touchy()


def unreadable() -> TaskResult[int]:
    return TaskResult(err=TaskError("BAD", "words", Unreadable()))


def mute() -> TaskResult[int]:
    return TaskResult(err=TaskError("BAD", "words", {"x": Mute()}))


def over() -> None:
    raise Over


def logs() -> None:
    current_task().log("x", y=Mute())


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("executor", ["async", "thread"])
@pytest.mark.parametrize("leaves", [touchy, unreadable, mute, over, logs])
async def test_what_a_task_leaves_behind_ends_that_task_only(
    leaves: Callable[[], object], executor: str, retries: int
) -> None:
    """Its result is compared, its error copied, its log written, after it has ended: by code of the application."""
    manager = TaskManager("never-opened.db", concurrency=1, threads=1)

    @wraps(leaves)
    async def leaves_in_loop() -> object:
        return leaves()

    fn: Callable[..., object] = leaves if executor == "thread" else leaves_in_loop
    options = {"retries": retries, "retry_delay": 0.0} if retries else {}
    task = manager.task(name="leaves", persist=True, **options)(fn)
    async with isolated(manager) as world:
        for _ in range(2):
            handle = task.enqueue()
            await world.advance(1)
            assert handle.status.is_terminal
            info = await handle.info()
            assert (info.status.value, manager.status().running_count) == (
                "COMPLETED" if leaves is touchy else "FAILED",
                0,
            )


async def test_a_field_that_cannot_be_read_costs_the_line_that_field_and_nothing_else() -> None:
    """News are for people: they lose detail, never the task."""

    class Torn(Mapping[str, object]):
        def __getitem__(self, key: str) -> object:
            raise KeyError(key)

        def __iter__(self) -> Iterator[str]:
            raise RuntimeError

        def __len__(self) -> int:
            return 1

    manager = TaskManager(None)

    @manager.task
    async def talks() -> int:
        current_task().log("look", torn=Torn(), whole=1)
        return 7

    async with isolated(manager):
        handle = talks.enqueue()
        assert await handle == 7
        assert "could not be read: RuntimeError" in str((await handle.info()).log)
        assert "'whole': 1" in str((await handle.info()).log)


async def test_a_codec_that_raises_ends_no_loop(tmp_path: Path) -> None:
    """The result is kept in memory only, as any other that cannot be stored."""

    class Broken:
        has_begun = False

        def encode(self, data: bytes) -> bytes:
            if self.has_begun:
                raise Odd
            return data

        def decode(self, data: bytes) -> bytes:
            return data

    codec = Broken()
    manager = TaskManager(tmp_path / "tasks.db", codec=codec)

    @manager.task(persist=True)
    async def works() -> int:
        codec.has_begun = True
        return 7

    async with manager:
        handle = works.enqueue()
        assert await asyncio.wait_for(handle, 10) == 7
        result = (await handle.info()).result
        assert result is not None
        assert result.err_value.error_code == "RESULT_NOT_AVAILABLE"


@pytest.mark.parametrize("raises", [Odd, SystemExit, asyncio.CancelledError])
async def test_a_row_of_another_instance_that_cannot_be_read_ends_no_loop(
    raises: type[BaseException], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The claimer reads what others ended, the writer what was called with plain values: by code of the application."""

    class Codec:
        is_broken = False

        def encode(self, data: bytes) -> bytes:
            if self.is_broken:
                raise raises
            return data

        def decode(self, data: bytes) -> bytes:
            return self.encode(data)

    codec, gate = Codec(), asyncio.Event()
    here, there = (TaskManager(tmp_path / "tasks.db", codec=each) for each in (codec, Codec()))

    async def work() -> int:
        await gate.wait()
        return 7

    async def plain(item: int) -> int:
        return item

    there.task(name="work", persist=True)(work)
    light = here.task(name="light", persist=False)(plain)
    waiting = here.task(name="work", persist=True)(work)
    async with there:
        handle = there.enqueue("work")
        await handle.saved()
        async with here:
            codec.is_broken = True
            followed = asyncio.ensure_future(here.handle(handle.task_id).result())
            assert await light.enqueue(3) == 3
            await asyncio.wait_for(here.flush(), 10)
            gate.set()
            result = await asyncio.wait_for(followed, 10)
            assert result.err_value.error_code == "RESULT_NOT_AVAILABLE"
            assert raises.__name__ in result.err_value.message
            codec.is_broken = False
            free = waiting.with_options(delay=3600).enqueue()
            await free.saved()
            codec.is_broken = True
            assert await here.cancel(free.task_id)
            assert here.status().failing_duties == {}
    assert not [record for record in caplog.records if record.levelname == "CRITICAL"]


# The loops.


async def test_who_waits_for_a_task_of_another_instance_is_told_whoever_cancels_what(tmp_path: Path) -> None:
    """Waiters that came before the task went elsewhere are told by a task of ours, which somebody may cancel."""
    manager = TaskManager(tmp_path / "tasks.db", max_in_memory=1, concurrency=2)
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def works(item: int) -> int:
        await gate.wait()
        return item

    async with manager:
        handles = [works.enqueue(item) for item in range(10)]
        waiting = asyncio.ensure_future(handles[-1].result())
        followers: set[asyncio.Task[object]] = set()
        async with asyncio.timeout(10):
            while not followers:  # the writer does it
                await asyncio.sleep(0)
                followers = {task for task in asyncio.all_tasks() if task.get_name() == "taskmanager-follower"}
        for task in followers:
            task.cancel()
        gate.set()
        assert (await asyncio.wait_for(waiting, 20)).ok_value == 9


async def test_a_loop_that_somebody_cancels_is_begun_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A program that cancels every task it finds means its own; what it enqueues afterwards is kept, too."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(persist=True)
    async def works(item: int) -> int:
        return item

    async with manager:
        assert await works.enqueue(1) == 1
        ours = {task for task in asyncio.all_tasks() if task.get_name().startswith("taskmanager-")}
        names = {task.get_name().removeprefix("taskmanager-") for task in ours} - {"host"}  # which only holds them
        assert names >= {"writer", "claimer", "schedules", "reaper", "retention", "upkeep"}
        for task in ours:
            task.cancel()
        await asyncio.wait(ours)
        handle = works.enqueue(2)
        await asyncio.sleep(0)
        assert manager.status().failing_duties == dict.fromkeys(names, "cancelled by somebody else")
        await asyncio.wait_for(handle.saved(), 10)
        assert await asyncio.wait_for(handle, 10) == 2
        await asyncio.wait_for(manager.flush(), 10)
        assert manager.status().failing_duties == {}
        assert sum(record.levelname == "CRITICAL" for record in caplog.records) == len(names)


async def test_a_task_that_is_cancelled_together_with_the_engine_is_interrupted_and_has_not_failed(
    tmp_path: Path,
) -> None:
    """An event loop that is ended without a stop cancels everything in it; a slow end leaves time to write that down.

    Whatever a task does to clean up meanwhile: what is safe to repeat runs again, and the rest is reported as it was.
    """
    manager = TaskManager(tmp_path / "tasks.db")
    running, gate = asyncio.Semaphore(0), asyncio.Event()

    async def wait_for_ever() -> int:
        if current_task().attempt > 1:
            return 7
        running.release()
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()
        return 0

    safe = manager.task(name="safe", persist=True, requeue_on_interrupt=True)(wait_for_ever)
    plain = manager.task(name="plain", persist=True, retries=3)(wait_for_ever)
    light = manager.task(name="light", persist=False)(wait_for_ever)

    of_the_test = asyncio.all_tasks()
    async with manager:
        handles = [each.enqueue() for each in (safe, plain, light)]
        for _ in handles:
            await asyncio.wait_for(running.acquire(), 10)
        for task in asyncio.all_tasks() - of_the_test:
            task.cancel()
        later = safe.with_options(delay=3600).enqueue()
        await asyncio.wait_for(later.saved(), 10)  # the engine goes on
        gate.set()
        first, *others = [await asyncio.wait_for(handle.result(), 10) for handle in handles]
        assert [result.err_value.error_code for result in others] == ["TASK_INTERRUPTED"] * 2
        assert first.err_value.error_code == "TASK_INTERRUPTED"
        again = manager.handle(handles[0].task_id)
        assert await asyncio.wait_for(again, 10) == 7
        later.cancel()
        await asyncio.wait_for(manager.join(), 10)  # nothing has stopped


async def test_join_waits_for_what_was_interrupted_while_the_store_was_down() -> None:
    """It goes on as soon as its row can be written: until then it is neither in memory nor in the store."""
    manager, store = TaskManager("never-opened.db"), FaultyStore(MemoryStore())
    running = asyncio.Event()
    attempts: list[int] = []

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def work() -> None:
        attempts.append(current_task().attempt)
        if current_task().attempt == 1:
            running.set()
            await asyncio.Event().wait()

    of_the_test = asyncio.all_tasks()
    async with isolated(manager, store=store.as_store()) as world:
        handle = work.enqueue()
        await running.wait()
        store.is_down = True
        work.with_options(delay=1).enqueue()
        await world.advance(5)
        assert manager.status().storage_degraded_since is not None
        for task in asyncio.all_tasks() - of_the_test:
            task.cancel()
        assert (await handle.result()).err_value.error_code == "TASK_INTERRUPTED"
        joining = asyncio.ensure_future(manager.join())
        await world.advance(60)
        assert not joining.done()
        assert attempts[0] == 1
        store.is_down = False
        await joining
        assert (await manager.handle(handle.task_id).info()).status is TaskStatus.COMPLETED
