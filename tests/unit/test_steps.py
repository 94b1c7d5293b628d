"""What `step`, `patched` and `current_step` promise: what runs, what is returned, and what a later run makes of it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from taskmanager import (
    BuiltInTaskCode,
    ConfigurationError,
    NotInTask,
    RetryPolicy,
    Snooze,
    StepFailed,
    StepInfo,
    Task,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TaskManager,
    TaskResult,
    current_step,
    current_task,
    patched,
    step,
    wait_for,
)
from taskmanager.testing import World

pytestmark = pytest.mark.anyio

Run = Callable[[], Awaitable[Any]]
QUICK: dict[str, Any] = {"persist": True, "retries": 3, "retry_delay": 0.01}


class Declined(Exception):
    """What the steps of these tests raise."""


@dataclass
class Receipt:
    """What a step may return."""

    number: int
    at: datetime


class Ran:
    """The steps whose functions have run, and how often each is still to fail."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failures: dict[str, int] = {}

    async def work(self, name: str) -> str:
        """Is a step."""
        self.names.append(name)
        if self.failures.get(name, 0) > 0:
            self.failures[name] -= 1
            raise Declined(name)
        return name.upper()

    def times(self, name: str) -> int:
        return self.names.count(name)


@pytest.fixture
def ran() -> Ran:
    return Ran()


class Program:
    """One task whose code each test writes, and writes anew between two runs."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.code: Run | None = None
        self.task: Task[[], Any] = world.manager.task(name="program", **{"persist": True, **options})(self._run)
        self.task_id = ""

    async def _run(self) -> Any:
        assert self.code is not None
        return await self.code()

    async def ends(self, code: Run, *, again: bool = False, from_start: bool = False) -> Any:
        """What a run comes to: its value, or its error."""
        self.code = code
        if again:
            assert await self.world.manager.retry(self.task_id, force=True, from_start=from_start)
        else:
            self.task_id = self.task.enqueue().task_id
        await self.world.manager.join()
        info = await self.world.manager.get(self.task_id)
        assert info is not None
        assert info.result is not None
        return info.result.ok_value if info.result.is_ok() else info.result.err_value

    async def steps(self) -> tuple[StepInfo, ...]:
        info = await self.world.manager.get(self.task_id, include_attempts=True)
        assert info is not None
        assert info.steps is not None
        return info.steps


@pytest.fixture
async def program(world: World) -> Program:
    return Program(world)


async def test_finished_steps_return_what_was_recorded(program: Program, ran: Ran) -> None:
    """A retry goes on with the step that failed; one from the start does all of them again."""

    async def code() -> list[str]:
        return [await step(ran.work, each) for each in ("a", "b", "c")]

    ran.failures = {"c": 1}
    error = await program.ends(code)
    assert (error.error_code, ran.names) == ("UNHANDLED_EXCEPTION", ["a", "b", "c"])
    assert await program.ends(code, again=True) == ["A", "B", "C"]
    assert ran.names == ["a", "b", "c", "c"]
    assert await program.ends(code, again=True, from_start=True) == ["A", "B", "C"]
    assert [ran.times(each) for each in "abc"] == [2, 2, 3]


async def test_value_comes_back_by_the_return_annotation(program: Program, world: World) -> None:
    """As arguments and results of tasks do."""
    seen: list[Receipt] = []

    async def charge(number: int) -> Receipt:
        return Receipt(number, world.now)

    async def code() -> None:
        seen.append(await step(charge, number=7))
        if len(seen) == 1:
            raise Declined

    await program.ends(code)
    await program.ends(code, again=True)
    assert seen[0] == seen[1]
    assert seen[0] is not seen[1]


async def test_records_tell_number_name_tries_and_error(program: Program, ran: Ran) -> None:
    """With `include_attempts`, in the order in which they were first recorded."""

    async def code() -> None:
        await step(ran.work, "a")
        await step.with_options(name="mail", retries=1, retry_delay=0)(ran.work, "b")
        await step.with_options(key="last:1")(ran.work, "c")

    ran.failures = {"b": 1, "c": 1}
    error = await program.ends(code)
    first, second, third = await program.steps()
    assert error == TaskError(BuiltInTaskCode.UNHANDLED_EXCEPTION, "Declined: c")
    assert (first.number, first.key, first.name, first.attempts, first.error) == (1, None, "Ran.work", 1, None)
    assert (second.number, second.name, second.attempts, second.error) == (2, "mail", 2, None)
    assert (third.number, third.key, third.error) == (None, "last:1", error)
    assert all(each.ended_at is not None and each.started_at <= each.ended_at for each in (first, second, third))
    assert (await program.world.manager.list())[0].steps is None


async def test_key_of_the_running_step_is_the_same_in_all_runs(program: Program) -> None:
    """It is what to give to a service that takes idempotency keys."""
    seen: list[tuple[str, int | None, str]] = []

    def blocking() -> None:
        context = current_step()
        seen.append((context.key, context.number, context.name))
        if len(seen) % 2 == 0:
            raise Declined

    async def code() -> None:
        await step(blocking)
        await step.with_options(key="k", name="other")(blocking)

    await program.ends(code)
    await program.ends(code, again=True)
    task_id, name = program.task_id, blocking.__qualname__
    assert seen == [(f"{task_id}:1", 1, name), (f"{task_id}:k", None, "other"), (f"{task_id}:k", None, "other")]


async def test_sync_functions_run_in_threads_with_the_context_of_the_task(program: Program) -> None:
    """A result that is awaitable is awaited."""
    threads: list[threading.Thread] = []

    def blocking(number: int) -> str:
        threads.append(threading.current_thread())
        return f"{current_task().task_id} {number}"

    async def fetch() -> int:
        return 3

    async def code() -> list[Any]:
        return [await step(blocking, 7), await step(lambda: fetch())]

    assert await program.ends(code) == [f"{program.task_id} 7", 3]
    assert threads[0] is not threading.main_thread()


async def test_task_as_a_step_is_its_function(world: World, program: Program) -> None:
    """Without its retries and its queue; enqueueing one is a step too."""
    runs: list[int] = []

    @world.manager.task(persist=True, retries=5)
    async def child(number: int) -> int:
        runs.append(number)
        if number < 0:
            raise Declined
        return number + 1

    async def code() -> int:
        with pytest.raises(StepFailed):
            await step(child, -1)
        return await step(child, 1) + await step(child.enqueue, 5)

    assert await program.ends(code) == 8
    assert await program.ends(code, again=True) == 8
    assert runs == [-1, 1, 5]
    assert [each.name.rpartition(".")[2] for each in await program.steps()] == ["child", "child", "enqueue"]


async def test_gather_numbers_its_calls_and_branches_need_keys(program: Program, ran: Ran) -> None:
    """A branch has no order, so that two of them could swap what they get."""

    async def branch(name: str) -> list[str]:
        return [await step.with_options(key=f"{kind}:{name}")(ran.work, kind + name) for kind in ("open", "close")]

    async def code() -> list[Any]:
        both = await asyncio.gather(step(ran.work, "x"), step(ran.work, "y"))
        branches = await asyncio.gather(branch("A"), branch("B"))
        await step(ran.work, "last")
        return [*both, *branches]

    ran.failures = {"last": 1}
    await program.ends(code)
    expected = ["X", "Y", ["OPENA", "CLOSEA"], ["OPENB", "CLOSEB"]]
    assert await program.ends(code, again=True) == expected
    assert sorted(ran.names) == sorted(["x", "y", "openA", "closeA", "openB", "closeB", "last", "last"])


async def test_branch_without_a_key_is_told_how_to_name_its_call(program: Program, ran: Ran) -> None:
    async def branch() -> str:
        return await step(ran.work, "a")

    async def code() -> list[str]:
        return await asyncio.gather(branch())

    error = await program.ends(code)
    assert "step Ran.work is called in another asyncio task" in error.message
    assert "with_options(key=" in error.message
    assert ran.names == []


async def test_key_is_used_once_in_a_run(program: Program, ran: Ran) -> None:
    async def code() -> None:
        for _ in range(2):
            await step.with_options(key="k")(ran.work, "a")

    assert "the key 'k' was used before" in (await program.ends(code)).message


async def test_loop_over_changed_data_is_a_mismatch_that_can_be_mended(program: Program, ran: Ran) -> None:
    """Nobody is skipped silently. The records stay, so that the task goes on when the code is put right."""
    names = ["ann", "bob", "cyd"]

    async def code() -> None:
        for each in names:
            await step(ran.work, each)

    ran.failures = {"cyd": 1}
    await program.ends(code)
    names[:] = ["bob", "cyd"]
    error = await program.ends(code, again=True)
    assert error.error_code == "STEP_MISMATCH"
    assert "step 1 was recorded as Ran.work and is called with other arguments; see docs/steps.md" in error.message
    names[:] = ["ann", "bob", "dan"]
    assert await program.ends(code, again=True) is None
    assert ran.names == ["ann", "bob", "cyd", "dan"]


async def test_other_step_at_a_number_is_a_mismatch_that_nothing_swallows(world: World, ran: Ran) -> None:
    """No policy retries it either, though it is named there."""
    policy = RetryPolicy.fixed([1, 1], auto_retry_for=["STEP_MISMATCH"])
    program = Program(world, retry_policy=policy)

    async def before() -> None:
        await step.with_options(name="load")(ran.work, "a")
        raise Declined

    async def after() -> None:
        try:
            await step.with_options(name="save")(ran.work, "a")
        except StepFailed:
            await step(ran.work, "b")

    await program.ends(before)
    error = await program.ends(after, again=True)
    assert error.error_code == "STEP_MISMATCH"
    assert "step 1 was recorded as load and is called as save" in error.message
    assert ran.names == ["a"]
    assert [each.name for each in await program.steps()] == ["load"]


async def test_arguments_of_a_step_with_a_key_are_not_compared(program: Program, ran: Ran) -> None:
    """A clock, or a token, differs between runs on purpose."""
    tokens = ["t1", "t2"]

    async def code() -> str:
        found = await step.with_options(key="call")(ran.work, tokens.pop(0))
        if tokens:
            raise Declined
        return found

    await program.ends(code)
    assert await program.ends(code, again=True) == "T1"


async def test_error_that_the_code_has_seen_is_raised_again_without_running(program: Program, ran: Ran) -> None:
    """The customer was told that the charge was declined, so that it is never tried again."""

    async def code() -> str:
        try:
            await step(ran.work, "charge")
        except StepFailed as exc:
            await step(ran.work, f"tell {exc.error.message}")
        return await step(ran.work, "end")

    ran.failures = {"charge": 1, "end": 1}
    await program.ends(code)
    assert await program.ends(code, again=True) == "END"
    assert ran.names == ["charge", "tell Declined: charge", "end", "end"]
    first = (await program.steps())[0]
    assert first.error == TaskError(BuiltInTaskCode.UNHANDLED_EXCEPTION, "Declined: charge")


async def test_error_is_final_before_the_next_step_runs(program: Program, ran: Ran) -> None:
    """Killed in the middle of the next step, it is final all the same."""
    finals: list[int] = []

    async def look() -> None:
        rows = await program.world.manager._instance.needed().engine.store.fetch_steps(program.task_id)
        finals.extend(row.is_final for row in rows)

    async def code() -> None:
        with pytest.raises(StepFailed):
            await step(ran.work, "charge")
        await step(look)

    ran.failures = {"charge": 1}
    await program.ends(code)
    assert finals == [1]


async def test_error_beside_a_call_that_came_before_it_is_not_final(program: Program, ran: Ran) -> None:
    """In gather, the second step was called before the first one failed: the next run tries both."""

    async def code() -> list[str]:
        return await asyncio.gather(step(ran.work, "a"), step(ran.work, "b"))

    ran.failures = {"a": 1}
    await program.ends(code)
    assert await program.ends(code, again=True) == ["A", "B"]
    assert ran.times("a") == 2


async def test_error_in_one_branch_is_not_final_by_calls_of_another(program: Program, ran: Ran) -> None:
    """The other branch knows nothing of it."""
    has_failed = asyncio.Event()

    async def first() -> str:
        try:
            return await step.with_options(key="a")(ran.work, "a")
        finally:
            has_failed.set()

    async def second() -> str:
        await has_failed.wait()
        return await step.with_options(key="b")(ran.work, "b")

    async def code() -> list[Any]:
        found = await asyncio.gather(first(), second(), return_exceptions=True)
        if isinstance(found[0], Exception):
            raise found[0]
        return found

    ran.failures = {"a": 1}
    await program.ends(code)
    assert await program.ends(code, again=True) == ["A", "B"]
    assert sorted(ran.names) == ["a", "a", "b"]


async def test_step_failed_has_its_cause_in_the_first_run_only(program: Program, ran: Ran) -> None:
    causes: list[BaseException | None] = []
    words: list[str] = []

    async def code() -> None:
        try:
            await step(ran.work, "a")
        except StepFailed as exc:
            causes.append(exc.__cause__)
            words.append(str(exc))
        await step(ran.work, "b")

    ran.failures = {"a": 1, "b": 1}
    await program.ends(code)
    await program.ends(code, again=True)
    assert [type(each) for each in causes] == [Declined, type(None)]
    assert words == ["UNHANDLED_EXCEPTION: Declined: a"] * 2


@pytest.mark.parametrize("exc", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_step_of_a_branch_that_exits_has_failed_and_the_loop_goes_on(
    program: Program, exc: BaseException, is_async: bool
) -> None:
    """A branch is a task of asyncio, and one that raises these ends the loop, with all that runs on it."""

    async def leaves() -> None:
        raise exc

    def leaves_in_a_thread() -> None:
        raise exc

    async def code() -> list[str]:
        steps = [step(leaves if is_async else leaves_in_a_thread) for _ in range(2)]
        found = await asyncio.gather(*steps, return_exceptions=True)
        return [f"{type(each).__name__} {each}" for each in found]

    words = f"StepFailed UNHANDLED_EXCEPTION: {type(exc).__name__}{': 3' if exc.args else ''}"
    assert await program.ends(code) == [words] * 2


@pytest.mark.parametrize("is_branch", [True, False])
async def test_exit_in_the_cleanup_of_a_cancelled_step_ends_no_loop(world: World, is_branch: bool) -> None:
    """What is raised after a cancellation is a part of it."""

    async def leaves() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise SystemExit(3)

    @world.manager.task(persist=True)
    async def job() -> None:
        await (asyncio.gather(step(leaves), step(leaves)) if is_branch else step(leaves))

    handle = job.enqueue()
    await world.idle()
    assert await world.manager.cancel(handle.task_id)
    with pytest.raises(TaskCancelled):
        await handle


async def test_error_code_of_a_task_is_that_of_the_step_that_left_it(world: World, ran: Ran) -> None:
    """By the mapper of the task; its retries go by it too."""
    program = Program(
        world, exception_mapper={Declined: "DECLINED"}, retry_policy=RetryPolicy.fixed([1], auto_retry_for=["DECLINED"])
    )

    async def code() -> str:
        return await step(ran.work, "a")

    ran.failures = {"a": 1}
    assert await program.ends(code) == "A"
    ran.failures = {"a": 2}
    assert (await program.ends(code)).error_code == "DECLINED"


async def test_step_is_tried_again_in_place(program: Program, ran: Ran) -> None:
    """Each run of the task has all tries anew."""

    async def code() -> str:
        return await step.with_options(retries=2, retry_delay=10, retry_backoff=1)(ran.work, "a")

    ran.failures = {"a": 2}
    assert await program.ends(code) == "A"
    assert ran.times("a") == 3
    ran.failures = {"a": 4}
    assert (await program.ends(code)).message == "Declined: a"
    assert await program.ends(code, again=True) == "A"
    assert ran.times("a") == 3 + 5


async def test_result_that_cannot_be_stored_is_an_error_of_its_step(program: Program, ran: Ran) -> None:
    """It is not tried again in place: the work was done."""

    async def opened() -> object:
        ran.names.append("opened")
        return object()

    async def code() -> None:
        await step.with_options(retries=3)(opened)

    error = await program.ends(code)
    assert error.error_code == "RESULT_NOT_AVAILABLE"
    assert "step test_result_that_cannot_be_stored_is_an_error_of_its_step.<locals>.opened" in error.message
    assert ran.names == ["opened"]


@pytest.mark.parametrize("wrong", [Snooze(5), TaskResult(ok=1), TaskError("NO")])
async def test_step_returns_a_value_and_no_outcome(program: Program, wrong: Any) -> None:
    async def code() -> None:
        async def outcome() -> Any:
            return wrong

        await step(outcome)

    assert (await program.ends(code)).message.startswith("TypeError: ")


async def test_recorded_value_that_no_longer_fits_fails_the_task(program: Program) -> None:
    """Whatever the code makes of it. The record stays, for when the code is put right."""

    async def number() -> int:
        return 7

    async def text() -> str:
        return "7"

    async def before() -> None:
        await step.with_options(name="load")(number)
        raise Declined

    async def after() -> None:
        with pytest.raises(StepFailed):
            await step.with_options(name="load")(text)

    await program.ends(before)
    error = await program.ends(after, again=True)
    assert (error.error_code, "cannot be read" in error.message) == ("RESULT_NOT_AVAILABLE", True)
    assert (await program.steps())[0].error is None


async def test_run_that_has_called_a_step_does_not_snooze(program: Program, ran: Ran) -> None:
    """The next run would be told the same, for ever."""

    async def code() -> Any:
        if await step(ran.work, "state") != "DONE":
            return Snooze(60)
        return None

    error = await program.ends(code)
    assert error.error_code == "STEP_SNOOZE"
    assert ran.names == ["state"]


async def test_run_that_asks_for_less_than_is_recorded_is_logged(
    program: Program, ran: Ran, caplog: pytest.LogCaptureFixture
) -> None:
    async def before() -> None:
        for each in "abc":
            await step(ran.work, each)
        await step.with_options(key="k")(ran.work, "d")
        raise Declined

    async def after() -> str:
        return await step(ran.work, "a")

    await program.ends(before)
    assert await program.ends(after, again=True) == "A"
    (record,) = [each for each in caplog.records if "without asking" in each.message]
    assert record.levelname == "WARNING"
    assert "recorded steps: 2 (Ran.work), 3 (Ran.work), k (Ran.work); see docs/steps.md" in record.message


async def test_new_record_gives_retries_and_crashes_back(world: World, ran: Ran) -> None:
    """A task that gets on is not what kills the process, however often it was interrupted."""
    program = Program(world, retries=1, retry_delay=0.01)

    async def code() -> None:
        for each in "abc":
            await step(ran.work, each)

    ran.failures = dict.fromkeys("abc", 1)
    assert await program.ends(code) is None
    assert ran.names == ["a", "a", "b", "b", "c", "c"]


async def test_too_many_steps_end_the_task(program: Program, monkeypatch: pytest.MonkeyPatch, ran: Ran) -> None:
    """Also when some of them are of an earlier run."""
    monkeypatch.setattr("taskmanager.engine.steps.records.MAX_RECORDS", 3)
    many = [2, 9]

    async def code() -> None:
        for number in range(many.pop(0)):
            await step(ran.work, str(number))
        if many:
            raise Declined

    await program.ends(code)
    error = await program.ends(code, again=True)
    assert error.error_code == "STEP_LIMIT"
    assert ran.names == ["0", "1", "2"]


async def test_too_long_results_end_the_task(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmanager.engine.steps.records.MAX_RECORDED_CHARS", 1_000)

    async def page() -> str:
        return "x" * 400

    async def code() -> None:
        for _ in range(3):
            await step(page)

    assert (await program.ends(code)).error_code == "STEP_LIMIT"


async def test_patched_is_decided_once_by_what_is_recorded_behind_it(program: Program, ran: Ran) -> None:
    """A task past that place goes on with the code that made its records, a new one takes the new code."""

    async def before() -> None:
        await step(ran.work, "a")
        await step(ran.work, "b")
        raise Declined

    async def after() -> list[bool]:
        await step(ran.work, "a")
        answers = [await patched("v2"), await patched("v2")]
        await step(ran.work, "new" if answers[0] else "b")
        return [*answers, await patched("v3")]

    await program.ends(before)
    assert await program.ends(after, again=True) == [False, False, True]
    assert await program.ends(after, again=True) == [False, False, True]
    assert ran.names == ["a", "b"]
    assert await program.ends(after) == [True, True, True]
    assert await program.ends(after, again=True) == [True, True, True]
    assert ran.names == ["a", "b", "a", "new"]
    assert [each.number for each in await program.steps()] == [1, 2]


async def test_step_inside_a_step_is_part_of_it(program: Program, ran: Ran) -> None:
    """A step is the smallest unit: what is inside is not recorded, takes no number, and sees the step around it."""
    keys: list[str] = []

    async def outer() -> str:
        keys.append(current_step().key)
        inner = await asyncio.gather(step(ran.work, "a"), step(ran.work, "b"))
        assert await patched("v2")
        return "".join(inner)

    async def code() -> list[str]:
        return [await step(outer), await step(ran.work, "c")]

    assert await program.ends(code) == ["AB", "C"]
    assert [each.number for each in await program.steps()] == [1, 2]
    assert keys == [f"{program.task_id}:1"]


async def test_outside_of_a_task_a_step_runs_its_function(world: World, ran: Ran) -> None:
    """So functions that call steps can be tested like any others; a task that is called directly is no task."""
    keys: list[str] = []

    def blocking() -> int:
        keys.append(current_step().key)
        return threading.get_ident()

    @world.manager.task(persist=True)
    async def fulfil(name: str) -> str:
        return await step.with_options(retries=3)(ran.work, name)

    assert await step(ran.work, "a") == "A"
    assert await fulfil("b") == "B"
    assert await step(blocking) != threading.get_ident()
    assert await step(fulfil, "c") == "C"
    assert await patched("v2") is True
    assert keys == ["detached:0"]
    ran.failures = {"d": 1}
    with pytest.raises(Declined):
        await step(ran.work, "d")


async def test_current_step_of_a_function_that_is_no_step_has_no_key(program: Program) -> None:
    """A key that many tasks share would make a service take their calls for one."""

    async def code() -> str:
        return current_step().key

    assert "use step(fn, ...)" in (await program.ends(code)).message
    with pytest.raises(NotInTask):
        current_task()


@pytest.mark.parametrize("call", [lambda: step(threading.get_ident), lambda: patched("v2")])
async def test_steps_need_a_persisted_task_in_the_async_lane(world: World, call: Callable[[], Any]) -> None:
    async def memory_only() -> None:
        await call()

    def in_thread() -> None:
        call()

    with pytest.raises(TaskFailed, match="NotPersisted: .* is memory-only; give it persist=True"):
        await world.manager.task(memory_only).enqueue()
    with pytest.raises(TaskFailed, match="ConfigurationError: .* runs in the thread lane"):
        await world.manager.task(persist=True)(in_thread).enqueue()


async def test_step_that_nobody_awaits_does_nothing(program: Program, ran: Ran) -> None:
    """Python says so, as of any coroutine, and names the step."""

    async def code() -> None:
        with pytest.warns(RuntimeWarning, match=r"'step Ran.work of task program' was never awaited"):
            step(ran.work, "a")
        await step(ran.work, "b")

    await program.ends(code)
    assert ran.names == ["b"]
    assert [each.number for each in await program.steps()] == [2]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"key": ""}, "key must be text"),
        ({"name": "x" * 1_000}, "name must be text"),
        ({"retries": -1}, "retries must be"),
        ({"retry_delay": -1}, "retry_delay"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_options_of_a_step_are_checked_where_they_are_given(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        step.with_options(**options)


def test_step_takes_a_function_and_its_arguments() -> None:
    with pytest.raises(ConfigurationError, match="step takes a function"):
        step(5)  # type: ignore[call-overload]  # a mistake
    with pytest.raises(TypeError, match="retry"):
        step.with_options(retry=3)  # type: ignore[call-arg]  # a mistake
    with pytest.raises(TypeError, match="'type'"):
        wait_for("approval")  # type: ignore[call-overload]  # a mistake


async def test_middleware_calls_no_steps(tmp_path: Path, ran: Ran) -> None:
    """One in it would take the first number of every task. The function inside of it calls them as without."""
    told: list[str] = []
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.middleware
    async def around(context: Any, call: Run) -> Any:
        with pytest.raises(ConfigurationError, match="a middleware calls"):
            step(ran.work, "x")
        found = await call()
        with pytest.raises(ConfigurationError, match="a middleware calls"):
            step(ran.work, "x")
        told.append(context.task_name)
        return found

    @manager.task(name="job", **QUICK)
    async def job() -> str:
        return await step(ran.work, "a")

    ran.failures = {"a": 1}
    async with manager:
        assert await job.enqueue() == "A"
    assert ran.names == ["a", "a"]
    assert told == ["job"]
