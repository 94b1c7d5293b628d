"""What `sleep` and `wait_for` promise: a task that waits holds nothing, and goes on where it was."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskmanager import (
    ArgumentError,
    BuiltInTaskCode,
    ConfigurationError,
    NotInTask,
    NotPersisted,
    QueueFull,
    StepFailed,
    Task,
    TaskError,
    TaskHandle,
    TaskManager,
    TaskStatus,
    UnknownTask,
    current_task,
    patched,
    sleep,
    step,
    wait_for,
)
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.testing import World, isolated
from tests.unit.duties.scene import until

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
Run = Callable[[], Awaitable[Any]]


@dataclass
class Approval:
    """What a person sends."""

    by: str


class Program:
    """One task whose code each test writes, and what its runs have noted."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world, self.manager = world, world.manager
        self.code: Run | None = None
        self.notes: list[Any] = []
        given = {"persist": True, "requeue_on_interrupt": True, **options}
        self.task: Task[[], Any] = world.manager.task(name="program", **given)(self._run)
        self.handle: TaskHandle[Any] | None = None

    async def _run(self) -> Any:
        assert self.code is not None
        return await self.code()

    async def note(self, what: str) -> str:
        """Is a step."""
        self.notes.append(what)
        return what.upper()

    async def begins(self, code: Run) -> TaskHandle[Any]:
        self.code, self.handle = code, self.task.enqueue()
        await self.world.idle()
        return self.handle

    async def send(self, name: str, value: object = None, *, key: str | None = None) -> bool:
        assert self.handle is not None
        return await self.manager.send(self.handle.task_id, name, value, key=key)

    async def comes_to(self) -> Any:
        """Its value, or its error."""
        assert self.handle is not None
        result = await self.handle.result()
        return result.ok_value if result.is_ok() else result.err_value

    async def status(self) -> TaskStatus:
        assert self.handle is not None
        return (await self.handle.info()).status


async def passes(seconds: float) -> None:
    """So much virtual time passes."""
    await asyncio.sleep(seconds)


@pytest.fixture
async def program(world: World) -> Program:
    return Program(world)


async def test_sleeping_task_goes_on_where_it_was(program: Program, world: World) -> None:
    """Its first step is not done twice, its slot and its memory are free, and no attempt has ended."""

    async def code() -> str:
        first = await step(program.note, "a")
        await sleep(DAY)
        return first + await step(program.note, "b")

    handle = await program.begins(code)
    began = world.now
    info = await handle.info(include_attempts=True)
    assert (info.status, info.claimed_by_worker_id, info.attempts) == (TaskStatus.PENDING, None, ())
    assert info.enqueued_at == began + DAY
    engine = world.manager._instance.needed().engine
    assert (engine.live, engine.runner.running) == ({}, {})
    assert await program.comes_to() == "AB"
    assert (program.notes, world.now - began >= DAY) == (["a", "b"], True)
    info = await handle.info(include_attempts=True)
    assert (info.start_count, info.retry_count, info.crash_count) == (2, 0, 0)
    assert info.steps is not None
    assert [(each.number, each.name) for each in info.steps] == [(1, "Program.note"), (2, "sleep"), (3, "Program.note")]


async def test_event_that_is_there_is_received_at_once(program: Program) -> None:
    """Sent before anybody waits; with the value's own type."""

    async def code() -> Any:
        await step(program.note, "a")
        await sleep(60)
        return await wait_for("approval", Approval)

    await program.begins(code)
    assert await program.send("approval", Approval("ann"))
    assert await program.comes_to() == Approval("ann")


async def test_event_wakes_the_task_that_waits_for_it(program: Program, world: World) -> None:
    """At once, and no other event does."""

    async def code() -> Any:
        return [await wait_for("go", int), current_task().attempt]

    await program.begins(code)
    assert await program.send("stay", 1)
    await world.idle()
    assert await program.status() == TaskStatus.PENDING
    assert await program.send("go", 7)
    assert await program.comes_to() == [7, 2]


async def test_wait_times_out_the_same_in_every_run(program: Program, world: World) -> None:
    """A late event is for the next wait."""
    began = world.now

    async def code() -> str:
        try:
            await wait_for("go", int, timeout=DAY)
        except TimeoutError as exc:
            program.notes.append(str(exc))
        await sleep(1)
        return await step(program.note, f"then {await wait_for('go', int)}")

    await program.begins(code)
    await passes(DAY.total_seconds())
    await world.idle()
    assert await program.send("go", 7)
    assert await program.comes_to() == "THEN 7"
    assert set(program.notes[:-1]) == {"wait:go: no such event has come in time"}
    assert world.now - began >= DAY


async def test_event_counts_that_came_before_the_timeout_was_recorded(program: Program, world: World) -> None:
    """Its time was up while nobody ran it: what was sent meanwhile is there first."""

    async def code() -> int:
        return await wait_for("go", int, timeout=60)

    handle = await program.begins(code)
    await world.manager.pause("default")
    await passes(600)
    assert await program.send("go", 7)
    await world.manager.resume("default")
    assert await handle == 7


async def test_events_of_one_name_are_received_once_and_in_order(program: Program, world: World) -> None:
    """A name of its own has its own line. A value that was received is the same in each run."""

    async def code() -> list[int]:
        got = [await wait_for("n", int), await wait_for("other", int), await wait_for("n", int)]
        await sleep(1)
        return [*got, await wait_for("n", int)]

    await program.begins(code)
    for value in (1, 2, 3):
        assert await program.send("n", value)
    await world.idle()
    assert await program.send("other", 9)
    assert await program.comes_to() == [1, 9, 2, 3]


async def test_event_with_a_key_is_stored_once(program: Program) -> None:
    """A second click does not approve the next thing."""

    async def code() -> list[int]:
        return [await wait_for("n", int), await wait_for("n", int)]

    await program.begins(code)
    assert await program.send("n", 1, key="click")
    assert await program.send("n", 2, key="click")
    assert await program.send("n", 3, key="other")
    assert await program.comes_to() == [1, 3]


async def test_value_that_does_not_fit_is_received_and_refused(program: Program, world: World) -> None:
    """Else it would be refused in each run, for ever."""

    async def code() -> str:
        try:
            await wait_for("n", int)
        except ArgumentError as exc:
            program.notes.append(str(exc))
        await sleep(1)
        return f"{await wait_for('n', str)}"

    await program.begins(code)
    assert await program.send("n", "seven")
    assert await program.send("n", "eight")
    assert await program.comes_to() == "eight"
    assert len(program.notes) > 1
    assert len(set(program.notes)) == 1
    assert program.notes[0].startswith("wait:n: the event does not fit its type: Expected `int`, got `str`")


async def test_retry_from_the_start_gives_received_events_back(program: Program, world: World) -> None:
    """Nobody sends them again. A plain retry keeps what was received."""
    fails = [True, True]

    async def code() -> int:
        value = await wait_for("n", int)
        await step(program.note, str(value))
        if fails and fails.pop():
            raise OSError
        return value

    handle = await program.begins(code)
    assert await program.send("n", 7)
    assert await program.comes_to() == TaskError(BuiltInTaskCode.UNHANDLED_EXCEPTION, "OSError")
    assert await program.send("n", 8) is False
    assert await program.manager.retry(handle.task_id)
    assert await program.comes_to() == TaskError(BuiltInTaskCode.UNHANDLED_EXCEPTION, "OSError")
    assert await program.manager.retry(handle.task_id, from_start=True)
    assert await program.comes_to() == 7
    assert program.notes == ["7", "7"]


async def test_event_can_be_sent_right_after_the_enqueue(program: Program) -> None:
    """It is written behind the row of its task."""

    async def code() -> int:
        return await wait_for("n", int)

    program.code, program.handle = code, program.task.enqueue()
    assert await program.send("n", 7)
    assert await program.comes_to() == 7


async def test_send_refuses_what_cannot_be_received(program: Program, world: World) -> None:
    """By what is wrong."""

    async def code() -> None:
        await sleep(DAY)

    @world.manager.task(persist=False)
    async def in_memory() -> None:
        await asyncio.sleep(3600)

    handle = await program.begins(code)
    with pytest.raises(UnknownTask):
        await world.manager.send("nobody", "n")
    with pytest.raises(NotPersisted):
        await world.manager.send(in_memory.enqueue().task_id, "n")
    with pytest.raises(ArgumentError, match="event n"):
        await program.send("n", object())
    for wrong in ("", "x" * 256, 7, "\udce9"):
        with pytest.raises(ConfigurationError, match="send: name"):
            await program.send(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="send: key"):
            await program.send("n", key=wrong)  # type: ignore[arg-type]
    assert await handle_is_cancelled(program, handle)
    assert await program.send("n") is False


async def handle_is_cancelled(program: Program, handle: TaskHandle[Any]) -> bool:
    return await program.manager.cancel(handle.task_id) and await program.status() == TaskStatus.CANCELLED


async def test_thousand_unread_events_are_enough(program: Program) -> None:
    """What is received makes room."""

    async def code() -> int:
        await wait_for("go", object)
        return await wait_for("n", int)

    await program.begins(code)
    for number in range(1_000):
        assert await program.send("n", number, key=str(number))
    with pytest.raises(QueueFull, match="1_000"):
        await program.send("go")
    assert await program.send("n", 0, key="0")


# How it falls asleep.


async def test_clean_up_runs_at_a_sleep_and_knows_that_it_is_one(program: Program, world: World) -> None:
    """A step in it is part of no order: it raises again, and nothing of it is recorded."""

    async def code() -> str:
        context = current_task()
        try:
            await sleep(DAY)
        except asyncio.CancelledError:
            program.notes.append((context.is_suspended, context.is_cancelled))
            with pytest.raises(asyncio.CancelledError):
                await step(program.note, "refund")
            raise
        finally:
            program.notes.append("closed")
        return await step(program.note, "b")

    handle = await program.begins(code)
    assert program.notes == [(True, False), "closed"]
    assert await program.comes_to() == "B"
    assert program.notes[2:] == ["closed", "b"]
    steps = (await handle.info(include_attempts=True)).steps or ()
    assert [(each.number, each.name) for each in steps] == [(1, "sleep"), (2, "Program.note")]


@pytest.mark.parametrize("instead", ["returns", "raises", "goes on"])
async def test_task_sleeps_whatever_its_code_makes_of_that(program: Program, instead: str) -> None:
    """It cannot know that its run has ended."""

    async def code() -> str:
        try:
            await sleep(DAY)
        except asyncio.CancelledError:
            if instead == "returns":
                return "not this"
            if instead == "raises":
                raise OSError("nor this") from None
            await asyncio.sleep(10)
            with pytest.raises(asyncio.CancelledError):
                await step(program.note, "never")
        return await step(program.note, "b")

    await program.begins(code)
    await passes(20)
    assert await program.status() == TaskStatus.PENDING
    assert await program.comes_to() == "B"
    assert program.notes == ["b"]


async def test_event_during_the_clean_up_of_a_wait_wakes_the_task(program: Program) -> None:
    """The record of the wait may be in the file before that. The end of the run looks for events once more."""

    async def code() -> int:
        try:
            return await wait_for("go", int)
        finally:
            if current_task().is_suspended:
                await asyncio.sleep(10)

    await program.begins(code)
    await passes(5)
    assert await program.status() == TaskStatus.RUNNING
    assert await program.send("go", 7)
    assert await program.comes_to() == 7


async def test_error_before_a_sleep_stays_as_it_was(program: Program) -> None:
    """The customer was told that the charge was declined: it is not tried again after the sleep."""

    async def charge() -> None:
        program.notes.append("charge")
        raise OSError("declined")

    async def code() -> str:
        try:
            await step(charge)
        except StepFailed as exc:
            await sleep(DAY)
            return await step(program.note, exc.error.message)
        return "paid"

    await program.begins(code)
    assert await program.comes_to() == "OSERROR: DECLINED"
    assert program.notes == ["charge", "OSError: declined"]


async def test_cancel_ends_a_sleeping_task_at_once(program: Program, world: World) -> None:
    """And one that still cleans up, when it has."""

    async def code() -> None:
        try:
            await sleep(DAY)
        finally:
            if program.notes:
                await asyncio.sleep(60)
                program.notes.append("clean")

    handle = await program.begins(code)
    assert await handle_is_cancelled(program, handle)
    program.notes.append("slow")
    handle = await program.begins(code)
    assert await program.manager.cancel(handle.task_id)
    assert (await program.comes_to()).error_code == "TASK_CANCELLED"


async def test_sleeping_task_has_begun_and_does_not_expire(program: Program, world: World) -> None:
    """Neither while it sleeps nor when it waits for a slot behind its sleep."""

    async def code() -> str:
        await sleep(DAY)
        return await step(program.note, "b")

    program.code = code
    program.handle = program.task.with_options(good_until=world.now + timedelta(hours=1)).enqueue()
    await world.idle()
    await world.manager.pause("default")
    await passes(DAY.total_seconds() * 2)
    assert await program.status() in (TaskStatus.PENDING, TaskStatus.CLAIMED)
    await world.manager.resume("default")
    assert await program.comes_to() == "B"


async def test_restart_changes_nothing_for_a_sleeper(program: Program, world: World) -> None:
    """The instant was promised when it fell asleep."""
    began = world.now

    async def code() -> str:
        await sleep(DAY)
        return await step(program.note, "b")

    handle = await program.begins(code)
    await passes(DAY.total_seconds() / 2)
    await world.restart()
    assert await world.manager.handle(handle.task_id) == "B"
    assert DAY <= world.now - began < DAY + timedelta(seconds=5)


async def test_events_tell_that_it_snoozed_and_started(program: Program, world: World) -> None:
    """As of any task that waits for its next run."""
    heard: list[str] = []

    @world.manager.on()
    async def hear(event: Any) -> None:
        heard.append(event.kind)

    async def code() -> None:
        await sleep(DAY)

    await program.begins(code)
    await program.comes_to()
    await world.idle()
    assert heard == ["enqueued", "started", "snoozed", "started", "completed"]


async def test_sleepers_cost_no_memory(tmp_path: Path) -> None:
    """However many they are: only handles that somebody holds are left of them."""
    manager = TaskManager(tmp_path / "tasks.db", commit_interval=0.001)
    handles: list[TaskHandle[None]] = []

    @manager.task(name="sleeper", persist=True, requeue_on_interrupt=True)
    async def sleeper() -> None:
        await sleep(DAY)

    def held() -> int:
        gc.collect()
        return sum(isinstance(each, LiveTask) and each.definition.name == "sleeper" for each in gc.get_objects())

    async with manager:
        engine = manager._instance.needed().engine
        handles += [sleeper.enqueue() for _ in range(1_000)]
        await until(lambda: not engine.live)
        await until(lambda: held() <= len(handles))
        handles.clear()
        await until(lambda: not held())
        assert (await manager.counts())[TaskStatus.PENDING] == 1_000
        assert engine.dispatcher.queue("default").stored_waiting == 0


# In another asyncio task than that of the task.


async def test_branches_wait_in_place_and_lend_their_slot(program: Program, world: World) -> None:
    """Other code may be under way there. The task is RUNNING, with room for others."""

    async def late(key: str) -> str:
        await sleep(60, key=key)
        return await step.with_options(key=f"note {key}")(program.note, key)

    async def code() -> list[str]:
        return [*await asyncio.gather(late("x"), late("y"))]

    handle = await program.begins(code)
    assert await program.status() == TaskStatus.RUNNING
    assert world.manager._instance.needed().engine.dispatcher.lanes["async"].running == 0
    assert await program.comes_to() == ["X", "Y"]
    assert (await handle.info()).start_count == 1


async def test_branches_receive_one_event_each(program: Program, world: World) -> None:
    """Two that wait for the same name do not get the same one."""

    async def code() -> list[int]:
        return sorted(await asyncio.gather(*[wait_for("n", int, key=each) for each in "abc"]))

    await program.begins(code)
    assert await program.status() == TaskStatus.RUNNING
    for number in (1, 2, 3):
        await program.send("n", number)
    assert await program.comes_to() == [1, 2, 3]


async def test_wait_of_a_branch_times_out(program: Program, world: World) -> None:
    """In place, and in every run."""

    async def code() -> list[Any]:
        found = await asyncio.gather(
            wait_for("n", int, key="a", timeout=60), wait_for("m", int, key="b"), return_exceptions=True
        )
        await sleep(1)
        return [type(each).__name__ for each in found]

    await program.begins(code)
    await passes(120)
    await program.send("m", 1)
    assert await program.comes_to() == ["TimeoutError", "int"]


async def test_wait_without_a_key_is_refused_in_a_branch(program: Program) -> None:
    """As steps are."""

    async def branch() -> None:
        await sleep(1)

    async def code() -> None:
        await asyncio.gather(branch())

    await program.begins(code)
    error = await program.comes_to()
    assert "sleep is called in another asyncio task" in error.message


# What it needs.


async def test_waits_are_refused_where_no_run_could_go_on(world: World) -> None:
    """At the call, with what to do."""
    found: list[Exception] = []

    def wants(make: Callable[[], Any]) -> None:
        try:
            make().close()
        except Exception as exc:
            found.append(exc)

    async def code() -> None:
        wants(lambda: sleep(1))
        wants(lambda: wait_for("n", int))

    await world.manager.task(name="a", persist=False)(code).enqueue()
    await world.manager.task(name="b", persist=True)(code).enqueue()
    assert [type(each) for each in found] == [NotPersisted] * 2 + [ConfigurationError] * 2
    assert "requeue_on_interrupt=True" in str(found[-1])


async def test_waits_outside_of_a_task(program: Program, world: World) -> None:
    """A sleep is asyncio's, and nobody could send anything. Inside of a step it is the same."""
    began = world.now
    await sleep(60)
    assert world.now - began == timedelta(seconds=60)
    with pytest.raises(NotInTask):
        await wait_for("n", int)

    async def inner() -> None:
        await sleep(60)
        with pytest.raises(NotInTask):
            await wait_for("n", int)

    async def code() -> None:
        await step(inner)

    handle = await program.begins(code)
    await handle
    steps = (await handle.info(include_attempts=True)).steps or ()
    assert [each.name.rpartition(".")[2] for each in steps] == ["inner"]


async def test_wrong_options_are_refused_at_the_call() -> None:
    """Also outside of a task, where a test would find them."""
    wrong: Any
    for wrong in (-1, "1", None, float("nan")):
        with pytest.raises(ConfigurationError, match="delay"):
            await sleep(wrong)
    with pytest.raises(ConfigurationError, match="key"):
        await sleep(1, key="")
    with pytest.raises(ConfigurationError, match="timeout"):
        await wait_for("n", int, timeout=-1)
    with pytest.raises(ConfigurationError, match="name"):
        await wait_for("", int)


async def test_type_that_cannot_be_read_is_refused_at_the_call(program: Program) -> None:
    """And not when the event comes, a week later."""

    async def code() -> None:
        await wait_for("n", 7)

    await program.begins(code)
    assert "values of this type cannot be stored" in (await program.comes_to()).message


# The code is changed meanwhile.


async def test_other_delay_is_no_mismatch_and_changes_nothing(program: Program, world: World) -> None:
    """The recorded time counts."""
    began, delay = world.now, [DAY]

    async def code() -> None:
        await sleep(delay[0])

    await program.begins(code)
    delay[0] = timedelta(days=9)
    await program.comes_to()
    assert DAY <= world.now - began < 2 * DAY


@pytest.mark.parametrize("change", ["step for sleep", "sleep for step", "wait for sleep"])
async def test_step_in_the_place_of_a_wait_is_a_mismatch(program: Program, change: str) -> None:
    """Else the task would sleep twice, or not at all."""
    before, after = change.split(" for ")[::-1]

    async def do(kind: str) -> None:
        if kind == "sleep":
            await sleep(60)
        elif kind == "wait":
            await wait_for("go", int)
        else:
            await step(program.note, "x")

    async def first() -> None:
        await do(before)
        await sleep(DAY)

    await program.begins(first)

    async def second() -> None:
        await do(after)
        await sleep(DAY)

    program.code = second
    assert (await program.comes_to()).error_code == "STEP_MISMATCH"


async def test_patch_before_a_sleep_is_not_for_who_sleeps_there(program: Program) -> None:
    """It is past that place."""

    async def first() -> str:
        await sleep(DAY)
        return "old"

    async def second() -> str:
        if await patched("v2"):
            await step(program.note, "new")
        await sleep(DAY)
        return "new" if await patched("v2") else "old"

    await program.begins(first)
    program.code = second
    assert await program.comes_to() == "old"
    await program.begins(second)
    assert await program.comes_to() == "new"


# Tries.


async def test_step_sleeps_before_another_try(program: Program, world: World) -> None:
    """Its task is not in memory meanwhile, and its tries go on behind a restart."""

    async def flaky() -> str:
        program.notes.append("try")
        if len(program.notes) < 3:
            raise OSError
        return "done"

    async def code() -> str:
        return await step.with_options(retries=5, retry_delay=DAY, retry_backoff=1.0)(flaky)

    handle = await program.begins(code)
    assert await program.status() == TaskStatus.PENDING
    await world.restart()
    assert await world.manager.handle(handle.task_id) == "done"
    info = await program.manager.get(handle.task_id, include_attempts=True)
    assert info is not None
    assert info.steps is not None
    assert ([each.attempts for each in info.steps], info.start_count, info.retry_count) == ([3], 3, 0)


async def test_step_waits_in_place_where_its_task_may_not_run_again(world: World) -> None:
    """Without `requeue_on_interrupt`, as in a branch."""
    program = Program(world, requeue_on_interrupt=False)

    async def flaky() -> str:
        program.notes.append("try")
        if len(program.notes) < 3:
            raise OSError
        return "done"

    async def code() -> str:
        return await step.with_options(retries=5, retry_delay=60)(flaky)

    handle = await program.begins(code)
    assert await program.status() == TaskStatus.RUNNING
    assert (await handle, (await handle.info()).start_count) == ("done", 1)


async def test_woken_task_goes_ahead_of_those_that_have_not_begun(world: World) -> None:
    """Else what was half done would wait behind a queue."""
    program = Program(world)
    order: list[str] = []

    async def code() -> None:
        order.append(f"run {current_task().attempt}")
        await sleep(60)

    @world.manager.task(persist=True, requeue_on_interrupt=True)
    async def plain(number: int) -> None:
        order.append(f"plain {number}")
        await asyncio.sleep(50)

    await program.begins(code)
    await passes(1)
    for number in range(250):
        plain.enqueue(number)
    await world.manager.join()
    assert order.index("run 2") == 201


async def test_woken_task_comes_to_memory_that_is_full() -> None:
    """It does not wait in the file until what memory is full of has begun."""
    order: list[str] = []
    small = TaskManager("tasks.db", concurrency=1, max_in_memory=4)

    @small.task(persist=True, requeue_on_interrupt=True)
    async def plain(number: int) -> None:
        order.append(f"plain {number}")
        await asyncio.sleep(50)

    @small.task(persist=True, requeue_on_interrupt=True)
    async def saga() -> None:
        order.append(f"saga {current_task().attempt}")
        await sleep(60)

    async with isolated(small) as world:
        saga.enqueue()
        await world.advance(1)
        for number in range(20):
            plain.enqueue(number)
        await small.join()
    assert order.index("saga 2") == 3
