"""What sleeps, waits and steps come to when something else happens in the same moment."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from taskmanager import (
    ArgumentError,
    TaskError,
    TaskHandle,
    TaskManager,
    TaskStatus,
    current_task,
    sleep,
    step,
    wait_for,
)
from taskmanager.model.clock import to_us
from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.model.steps import StepRow
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import World, isolated
from taskmanager.testing.faulty import Fault, FaultyStore
from tests.unit.duties.scene import until

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


class Program:
    """One task whose code each test writes, and what its runs have noted."""

    def __init__(self, manager: TaskManager, **options: Any) -> None:
        self.code: Callable[[], Awaitable[Any]] | None = None
        self.notes: list[str] = []
        self.task = manager.task(name="program", persist=True, requeue_on_interrupt=True, **options)(self._run)

    async def _run(self) -> Any:
        assert self.code is not None
        return await self.code()

    async def note(self, what: str) -> str:
        """Is a step."""
        self.notes.append(what)
        return what.upper()

    def begins(self, code: Callable[[], Awaitable[Any]]) -> TaskHandle[Any]:
        self.code = code
        return self.task.enqueue()


async def came_to(handle: TaskHandle[Any]) -> Any:
    """The value of a task, or its error."""
    async with asyncio.timeout(24 * 3_600):
        result = await handle.result()
    return result.ok_value if result.is_ok() else result.err_value


@pytest.fixture
def program(world: World) -> Program:
    return Program(world.manager)


# Callers that are cancelled while their write is on its way.


@pytest.mark.parametrize("verb", ["send", "cancel", "retry", "resume"])
async def test_write_of_a_cancelled_caller_has_its_consequences_here(manager: TaskManager, verb: str) -> None:
    """A web request ends while its write is at the store, which does it all the same. Nobody else would tell of it."""

    fault = Fault.hold(1, verb={"send": "send_event", "resume": "set_paused"}.get(verb, "commit"), after=True)
    store = FaultyStore(MemoryStore())
    async with isolated(manager, store=store.as_store()) as world:
        program = Program(manager)

        async def code() -> Any:
            if verb == "retry":
                return await step(program.note, "a") if current_task().attempt > 1 else 1 / 0
            return await wait_for("answer", str)

        if verb == "resume":
            await manager.pause("default")
            store.calls.clear()
        handle = program.begins(code)
        await manager.flush()
        await world.idle()
        store.calls.clear()
        store.plan.append(fault)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "send": lambda: manager.send(handle.task_id, "answer", "yes"),
            "cancel": lambda: manager.cancel(handle.task_id),
            "retry": lambda: manager.retry(handle.task_id),
            "resume": lambda: manager.resume("default"),
        }
        caller = asyncio.ensure_future(calls[verb]())
        await until(lambda: bool(store.held))
        caller.cancel()
        await asyncio.sleep(0)
        store.let_go()
        with suppress(asyncio.CancelledError):
            await caller
        if verb == "resume":
            await manager.send(handle.task_id, "answer", "yes")
        found = await came_to(handle)
        expected = {"send": "yes", "resume": "yes", "retry": "A"}
        assert found.error_code == "TASK_CANCELLED" if verb == "cancel" else found == expected[verb]


# Going to sleep while something else is under way.


async def test_task_does_not_sleep_while_another_step_is_under_way(world: World, program: Program) -> None:
    """To sleep would cancel that step, and the next run would call it again: its work would be done twice."""
    gate = asyncio.Event()

    async def charge() -> str:
        program.notes.append("charge")
        await gate.wait()
        return "receipt"

    async def code() -> str:
        charging = asyncio.create_task(step.with_options(key="charge")(charge))
        await step(program.note, "mail")
        await sleep(HOUR)
        program.notes.append("later")
        return await charging

    handle = program.begins(code)
    await world.advance(60)
    assert (await handle.info()).status is TaskStatus.RUNNING
    gate.set()
    await world.advance(60)
    info = await handle.info()
    assert (info.status, info.enqueued_at - info.sent_at) == (TaskStatus.PENDING, HOUR)  # nothing is under way now
    assert await came_to(handle) == "receipt"
    assert program.notes == ["mail", "charge", "later"]


async def test_sleeper_hears_what_another_branch_waits_for(world: World, program: Program) -> None:
    """A task that slept would be woken for its own time only."""

    async def branch() -> str:
        answer = await wait_for("answer", str, key="answer")
        return await step.with_options(key="note")(program.note, answer)

    async def code() -> str:
        answering = asyncio.create_task(branch())
        await step(program.note, "asked")
        await sleep(HOUR)
        program.notes.append("later")
        return await answering

    handle = program.begins(code)
    await world.advance(60)
    await world.manager.send(handle.task_id, "answer", "yes")
    await world.advance(60)
    assert program.notes == ["asked", "yes"]
    assert await came_to(handle) == "YES"


async def test_cancel_does_not_cut_the_clean_up_of_a_sleep_short(world: World, program: Program) -> None:
    """What is open is closed, and the task is cancelled: at its sleep, which runs no more code."""

    async def code() -> None:
        try:
            await sleep(HOUR)
        finally:
            program.notes.append(f"suspended: {current_task().is_suspended}")
            await asyncio.sleep(5)
            program.notes.append("closed")

    handle = program.begins(code)
    await until(lambda: bool(program.notes))
    assert handle.cancel()
    found = await came_to(handle)
    assert isinstance(found, TaskError)
    assert (found.error_code, program.notes) == ("TASK_CANCELLED", ["suspended: True", "closed"])
    await world.advance(2 * HOUR)
    assert (await handle.info()).start_count == 1


async def test_time_of_a_sleep_counts_from_its_call_after_a_long_clean_up(world: World, program: Program) -> None:
    """It is in the file before the clean-up: who dies in that does not sleep anew."""

    async def code() -> None:
        try:
            await sleep(HOUR)
        finally:
            if current_task().is_suspended:
                await asyncio.sleep(60)

    handle = program.begins(code)
    await world.advance(30)
    info = await handle.info()
    assert info.status is TaskStatus.RUNNING
    stored = await world.manager._instance.needed().engine.store.fetch_steps(handle.task_id)
    assert [(each.name, each.due_at) for each in stored] == [("sleep", to_us(info.sent_at + HOUR))]
    await handle
    assert world.now - info.sent_at == HOUR


async def test_step_whose_call_has_not_begun_at_the_end_never_runs(world: World, program: Program) -> None:
    """An attempt has ended when its steps have, also one that the loop had no turn for."""
    left: list[asyncio.Task[str]] = []

    async def code() -> str:
        left.append(asyncio.create_task(step.with_options(key="late")(program.note, "late")))
        return "done"

    handle = program.begins(code)
    assert await came_to(handle) == "done"
    await world.advance(60)
    assert program.notes == []


# Sleeping, and waiting for a retry.


async def test_event_does_not_cut_the_pause_before_a_retry_short(manager: TaskManager) -> None:
    """The task has slept for such an event before, and waits for its retry in the file since a restart."""

    async with isolated(manager) as world:
        program = Program(manager, retries=1, retry_delay=3_600, retry_backoff=1.0)

        async def code() -> str:
            run = current_task().attempt
            program.notes.append(f"run {run}")
            if run == 2:
                raise ConnectionError("the bank is down")
            return await wait_for("answer", str)

        handle = program.begins(code)
        await world.idle()
        await manager.send(handle.task_id, "answer", "yes")
        await world.idle()
        await manager.stop()
        await world.start()
        await manager.send(handle.task_id, "answer", "no")
        await world.advance(60)
        assert program.notes == ["run 1", "run 2"]
        assert await came_to(manager.handle(handle.task_id)) == "yes"


# A wait whose time is up while an event comes.


async def test_event_in_place_of_a_timeout_is_judged_by_the_next_run(world: World, program: Program) -> None:
    """The process died between the commit that gave the wait its event, and the look at what that is."""
    store = world.manager._instance.needed().engine.store

    async def code() -> str:
        if current_task().attempt == 1:
            await sleep(0, key="first")
            return await asyncio.Event().wait() and ""
        try:
            return str(await wait_for("answer", int, timeout=60))
        except ArgumentError:
            return await step(program.note, "refused")

    handle = program.begins(code)
    await world.idle()
    row = await store.fetch(handle.task_id)
    assert row is not None
    await world.manager.send(handle.task_id, "answer", "no number")
    late = StepRow(
        handle.task_id, "step", 1, "", "wait:answer", None, 1, 2, 1, None, "TASK_TIMEOUT", "late", 1, "answer", 2
    )
    await store.commit([TaskWrite(row, expected_of(row), (), True, (late,))])
    await world.restart()
    assert await came_to(world.manager.handle(handle.task_id)) == "REFUSED"
    await world.manager.retry(handle.task_id, force=True)
    assert await came_to(world.manager.handle(handle.task_id)) == "REFUSED"
    assert program.notes == ["refused"]


# A wait that its code cancels while its record is on its way.


class Branch:
    """A wait for `n` in an asyncio task of its own, and the store that holds its record."""

    def __init__(self, **options: Any) -> None:
        self.store, self.options = FaultyStore(MemoryStore()), options
        self.go = asyncio.Event()
        self.waiting: asyncio.Task[int] | None = None

    def begins(self) -> None:
        self.waiting = asyncio.create_task(wait_for("n", int, key="first", **self.options))

    async def is_cancelled(self) -> bool:
        assert self.waiting is not None
        self.waiting.cancel()
        with suppress(asyncio.CancelledError):
            await self.waiting
        return self.waiting.cancelled()

    def holds_next_commit(self, *, after: bool) -> None:
        self.store.calls.clear()
        self.store.plan.append(Fault.hold(1, verb="commit", after=after))
        self.go.set()


@pytest.mark.parametrize("after", [False, True], ids=["before its commit", "after its commit"])
async def test_event_of_a_cancelled_wait_is_for_the_next_one(manager: TaskManager, after: bool) -> None:
    """It is received once, and in its order. A wait that is cancelled has no outcome: a later run waits there again."""
    branch = Branch()
    async with isolated(manager, store=branch.store.as_store()) as world:
        program = Program(manager)

        async def code() -> list[int]:
            await branch.go.wait()
            branch.begins()
            if current_task().attempt == 1:
                await until(lambda: bool(branch.store.held))
                assert await branch.is_cancelled()
                branch.store.let_go()
            found = [await wait_for("n", int), await wait_for("n", int)]
            assert await branch.is_cancelled()
            return found

        handle = program.begins(code)
        for number in (1, 2):
            await manager.send(handle.task_id, "n", number)
        await world.idle()
        branch.holds_next_commit(after=after)
        assert await came_to(handle) == [1, 2]
        await manager.retry(handle.task_id, force=True)
        assert await came_to(manager.handle(handle.task_id)) == [1, 2]


async def test_event_of_a_cancelled_wait_goes_to_one_that_waits_already(manager: TaskManager) -> None:
    """Nothing else would tell that one of an event that has come before."""
    branch = Branch()
    async with isolated(manager, store=branch.store.as_store()) as world:
        program = Program(manager)

        async def code() -> int:
            branch.begins()
            await asyncio.sleep(0)
            second = asyncio.create_task(wait_for("n", int, key="second"))
            await until(lambda: bool(branch.store.held))
            assert await branch.is_cancelled()
            branch.store.let_go()
            return await second

        handle = program.begins(code)
        await world.idle()
        await manager.flush()
        branch.holds_next_commit(after=True)
        await manager.send(handle.task_id, "n", 1)
        assert await came_to(handle) == 1


async def test_event_in_place_of_the_timeout_of_a_cancelled_wait_is_kept(manager: TaskManager) -> None:
    """The store gives it to the wait that has timed out, and by then nobody waits there any more."""
    branch = Branch(timeout=10)
    async with isolated(manager, store=branch.store.as_store()) as world:
        program = Program(manager)

        async def code() -> int:
            branch.begins()
            await until(lambda: bool(branch.store.held))
            await manager.send(current_task().task_id, "n", 1)
            assert await branch.is_cancelled()
            branch.store.let_go()
            return await wait_for("n", int, key="second", timeout=60)

        handle = program.begins(code)
        await world.advance(5)
        await manager.flush()
        branch.holds_next_commit(after=False)
        assert await came_to(handle) == 1


async def test_event_of_a_wait_that_a_stop_ends_is_for_the_same_wait(manager: TaskManager) -> None:
    """Its record stays, and the next run returns what it says."""
    branch, stopped = Branch(), asyncio.Event()
    async with isolated(manager, store=branch.store.as_store()) as world:
        program = Program(manager)

        async def code() -> list[int]:
            await branch.go.wait()
            try:
                return [await wait_for("n", int), await wait_for("n", int)]
            except asyncio.CancelledError:
                stopped.set()
                raise

        handle = program.begins(code)
        for number in (1, 2):
            await manager.send(handle.task_id, "n", number)
        await world.idle()
        branch.holds_next_commit(after=True)
        await until(lambda: bool(branch.store.held))
        restarting = asyncio.ensure_future(world.restart())
        await stopped.wait()
        branch.store.let_go()
        await restarting
        assert await came_to(manager.handle(handle.task_id)) == [1, 2]
