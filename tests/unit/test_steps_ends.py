"""When an attempt ends while its steps run, and what of them is recorded: limits, cancellations, stops, lost claims."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from taskmanager import StepFailed, StoreUnavailable, Task, TaskFailed, TaskManager, current_task, step
from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.model.steps import StepRow
from taskmanager.store.protocol import CommitReport
from taskmanager.testing import World

pytestmark = pytest.mark.anyio

LONG_S = 3_600.0


class Site:
    """What the steps of a test have begun and ended, and what keeps them."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.has_begun = asyncio.Event()
        self.gate = threading.Event()

    async def wait(self, name: str) -> str:
        """Is a step that is cancelled."""
        self.began.append(name)
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended.append(name)
        return name

    def block(self, name: str) -> str:
        """Is a step in a thread, which nobody can cancel."""
        self.began.append(name)
        assert self.gate.wait(60)
        self.ended.append(name)
        return name

    async def quick(self, name: str) -> str:
        self.began.append(name)
        self.ended.append(name)
        return name


@pytest.fixture
def site() -> Site:
    return Site()


SOON_S = 0.1
"""How long the clock waits for a thread that waits for the clock."""


@contextmanager
def opened_soon(site: Site) -> Iterator[None]:
    """Let the thread go on when the loop has had some turns to do something wrong."""
    loop = asyncio.get_running_loop()

    def turn(left: int) -> None:
        site.gate.set() if left == 0 else loop.call_soon(turn, left - 1)

    turn(50)
    yield


def stored(manager: TaskManager, task_id: str) -> Any:
    """The records of its steps, as the store has them."""
    return manager._instance.needed().engine.store.fetch_steps(task_id)


async def test_attempt_ends_after_the_steps_it_has_called(world: World, site: Site) -> None:
    """A step that runs beside the one that failed is cancelled, and has ended before the next run calls it again."""
    open_counts: list[int] = []

    async def fail() -> None:
        await site.has_begun.wait()
        raise OSError

    @world.manager.task(persist=True, retries=1, retry_delay=1)
    async def job() -> None:
        open_counts.append(len(site.began) - len(site.ended))
        await asyncio.gather(step(fail), step(site.wait, "b"))

    with pytest.raises(TaskFailed):
        await job.enqueue()
    assert open_counts == [0, 0]
    assert site.began == site.ended == ["b", "b"]


async def test_branch_that_goes_on_after_its_attempt_calls_no_step(world: World, site: Site) -> None:
    """It is told so, and records nothing."""
    told: list[str] = []
    branches: list[asyncio.Task[None]] = []
    has_ended = asyncio.Event()

    async def branch() -> None:
        await has_ended.wait()
        try:
            await step.with_options(key="late")(site.quick, "late")
        except LookupError as exc:
            told.append(str(exc))

    @world.manager.task(persist=True)
    async def job() -> str:
        branches.append(asyncio.get_running_loop().create_task(branch()))
        return await step(site.quick, "a")

    assert await job.enqueue() == "a"
    has_ended.set()
    await asyncio.wait(branches)
    assert "has ended" in told[0]
    assert site.began == ["a"]


@pytest.mark.parametrize("is_thread", [False, True])
async def test_timeout_of_a_step_is_an_outcome_that_is_kept(world: World, site: Site, is_thread: bool) -> None:
    """Its thread goes on, and the attempt ends after it. A limit of the caller's own leaves no outcome."""
    world.virtual.lane_patience_s = SOON_S
    seen: list[str] = []

    @world.manager.task(persist=True)
    async def job() -> str:
        try:
            await step.with_options(timeout=5)(site.block if is_thread else site.wait, "slow")
        except StepFailed as exc:
            seen.append(f"{exc.error.error_code} {exc.error.message}")
        with opened_soon(site):
            return await step(site.quick, "b")

    assert await job.enqueue() == "b"
    name = "Site.block" if is_thread else "Site.wait"
    assert seen == [f"TASK_TIMEOUT step {name} took longer than its timeout of 5 s"]
    assert sorted(site.ended) == ["b", "slow"]


async def test_next_try_waits_for_the_thread_of_the_one_before(world: World, site: Site) -> None:
    """Two tries never run side by side, whatever the second one comes to on a clock that jumps."""
    world.virtual.lane_patience_s = SOON_S
    events: list[str] = []

    def slow() -> None:
        events.append("began")
        assert site.gate.wait(60)
        events.append("ended")

    @world.manager.task(persist=True)
    async def job() -> None:
        asyncio.get_running_loop().call_later(20, site.gate.set)
        with suppress(StepFailed):
            await step.with_options(timeout=5, retries=1, retry_delay=0)(slow)

    await job.enqueue()
    assert events == ["began", "ended"] * 2


async def test_cancelled_step_has_no_outcome_and_runs_again(world: World, site: Site) -> None:
    """Under a time limit of the caller's own, for example."""
    limits = [1.0, LONG_S]

    async def some() -> str:
        return await (site.wait("some") if limits else site.quick("done"))

    @world.manager.task(persist=True, retries=1, retry_delay=1)
    async def job() -> str:
        async with asyncio.timeout(limits.pop(0)):
            return await step(some)

    assert await job.enqueue() == "done"
    assert site.began == ["some", "done"]


@pytest.mark.parametrize("is_thread", [False, True])
async def test_timeout_of_the_task_ends_its_steps(world: World, site: Site, is_thread: bool) -> None:
    """A finished step stays recorded. What cleans up calls no steps: they would shift the numbers of the next run."""
    refused: list[str] = []

    @world.manager.task(persist=True, timeout=5)
    async def job() -> None:
        await step(site.quick, "a")
        try:
            await step(site.block if is_thread else site.wait, "b")
        finally:
            with suppress(asyncio.CancelledError):
                await step(site.quick, "refund")
                refused.append("it ran")

    if is_thread:
        asyncio.get_running_loop().call_later(20, site.gate.set)
    handle = job.enqueue()
    while len(site.began) < 2:  # noqa: ASYNC110  # the clock does not wait for a thread to begin
        await asyncio.sleep(0)
    world.virtual.lane_patience_s = SOON_S
    with pytest.raises(TaskFailed, match="TASK_TIMEOUT"):
        await handle
    await world.advance(30)
    assert (site.began, refused) == (["a", "b"], [])
    assert [each.number for each in await stored(world.manager, handle.task_id)] == [1]


async def test_cancelled_task_keeps_its_records(world: World, site: Site) -> None:
    @world.manager.task(persist=True)
    async def job() -> None:
        await step(site.quick, "a")
        await step(site.wait, "b")

    handle = job.enqueue()
    await site.has_begun.wait()
    handle.cancel()
    await world.manager.join()
    assert (handle.status, site.ended) == ("CANCELLED", ["a", "b"])
    assert [each.number for each in await stored(world.manager, handle.task_id)] == [1]


async def test_mismatch_is_told_though_a_timeout_came_while_its_code_went_on(world: World, site: Site) -> None:
    """Its code has swallowed both."""
    names = ["a", "b"]

    @world.manager.task(persist=True, timeout=5)
    async def job() -> None:
        with suppress(StepFailed):
            await step.with_options(name=names.pop(0))(site.quick, "x")
            raise OSError
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    handle = job.enqueue()
    with pytest.raises(TaskFailed, match="OSError"):
        await handle
    assert await world.manager.retry(handle.task_id)
    with pytest.raises(TaskFailed, match="STEP_MISMATCH"):
        await handle


def declared(manager: TaskManager, site: Site, plan: list[Callable[..., Any]]) -> Task[[], Any]:
    @manager.task(name="job", persist=True, requeue_on_interrupt=True)
    async def job() -> list[str]:
        return [await step(each, str(number)) for number, each in enumerate(plan)]

    return job


async def test_stop_and_start_go_on_behind_the_last_record(tmp_path: Path, site: Site) -> None:
    """The step under way is interrupted by the stop, and runs again at the next start."""
    plan = [site.quick, site.quick, site.wait]
    async with TaskManager(tmp_path / "tasks.db") as manager:
        handle = declared(manager, site, plan).enqueue()
        await site.has_begun.wait()
        await manager.stop(timeout=0)
    plan[2] = site.quick
    second = TaskManager(tmp_path / "tasks.db")
    declared(second, site, plan)
    async with second:
        await second.join()
        info = await second.get(handle.task_id, include_attempts=True)
    assert info is not None
    assert info.steps is not None
    assert (info.status, [each.number for each in info.steps]) == ("COMPLETED", [1, 2, 3])
    assert site.began == ["0", "1", "2", "2"]


async def test_stop_is_no_failure_of_a_step_that_enqueues(tmp_path: Path, site: Site) -> None:
    """A step that awaits another task is interrupted with it."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(name="child", persist=True, requeue_on_interrupt=True)
    async def child() -> str:
        return await site.wait("child")

    @manager.task(name="parent", persist=True, requeue_on_interrupt=True)
    async def parent() -> str:
        return await step(child.enqueue)

    async with manager:
        handle = parent.enqueue()
        await site.has_begun.wait()
        await manager.stop(timeout=0)
    assert handle.status == "PENDING"
    async with manager:
        assert await stored(manager, handle.task_id) == []
        await manager.stop(timeout=0)


async def test_claim_that_is_lost_in_a_step_records_nothing(tmp_path: Path, site: Site) -> None:
    """Another instance has the task: what was done here is not written over what is done there."""
    manager, go_on = TaskManager(tmp_path / "tasks.db"), asyncio.Event()
    after: list[str] = []

    async def slow() -> str:
        site.has_begun.set()
        await go_on.wait()
        return "here"

    @manager.task(name="job", persist=True, requeue_on_interrupt=True)
    async def job() -> None:
        await step(site.quick, "a")
        after.append(await step(slow))

    async with manager:
        handle = job.enqueue()
        await site.has_begun.wait()
        store = manager._instance.needed().engine.store
        row = await store.fetch(handle.task_id)
        assert row is not None
        taken = row._replace(claimed_by_worker_id="another", start_count=row.start_count + 1)
        there = StepRow(handle.task_id, "step", 2, "", "slow", None, 10, 20, 1, '{"ok":"there"}', None, None, 0)
        assert await store.commit([TaskWrite(taken, expected_of(row), steps=(there,))]) == CommitReport({}, {})
        go_on.set()
        while handle.task_id in manager._instance.needed().engine.live:  # noqa: ASYNC110  # a commit is to fail
            await asyncio.sleep(0)
        first, second = await store.fetch_steps(handle.task_id)
        end = taken._replace(status="FAILED", failed_at=1, error_code="NO", claimed_by_worker_id=None)
        await store.commit([TaskWrite(end, expected_of(taken))])
    assert (first.number, second, after) == (1, there, [])


async def test_step_waits_for_a_store_that_takes_no_writes(world: World, site: Site) -> None:
    """The code goes on when the record is committed, and never before."""
    manager, went_on = world.manager, asyncio.Event()

    @manager.task(persist=True)
    async def job() -> str:
        found = await step(site.quick, "a")
        went_on.set()
        return found

    engine = manager._instance.needed().engine
    commit, is_down = engine.store.commit, [False]

    async def failing(writes: Any) -> Any:
        if is_down[0] or any(getattr(each, "steps", ()) for each in writes):
            is_down[0] = True
            raise StoreUnavailable("the disk is full")
        return await commit(writes)

    engine.store.commit = failing  # type: ignore[method-assign]  # a disk that is full for a while
    handle = job.enqueue()
    await world.advance(20)
    assert (site.ended, went_on.is_set()) == (["a"], False)
    engine.store.commit = commit  # type: ignore[method-assign]
    await world.advance(20)
    assert await handle == "a"
    assert len(await stored(manager, handle.task_id)) == 1


async def test_record_that_the_store_refuses_is_an_error_of_its_step(world: World, site: Site) -> None:
    """For good: the step fails, and the task goes on in the file."""
    engine = world.manager._instance.needed().engine
    commit = engine.store.commit

    async def refusing(writes: Any) -> Any:
        bad = [each for each in writes if any(row.error_code is None for row in getattr(each, "steps", ()))]
        report = await commit([each for each in writes if each not in bad])
        return report._replace(rejected={each.task_id: "string or blob too big" for each in bad})

    engine.store.commit = refusing  # type: ignore[method-assign]  # what SQLite does with a gigabyte

    @world.manager.task(persist=True)
    async def job() -> None:
        await step(site.quick, "a")

    handle = job.enqueue()
    with pytest.raises(TaskFailed, match="RESULT_NOT_AVAILABLE: the record of the step cannot be stored"):
        await handle
    assert [each.error_code for each in await stored(world.manager, handle.task_id)] == ["RESULT_NOT_AVAILABLE"]


async def test_key_with_other_arguments_forgets_the_records(world: World, site: Site) -> None:
    """With the same ones, it goes on behind them. Nothing is shipped for the payment of another amount."""
    failures = [1]

    @world.manager.task(persist=True)
    async def job(amount: int) -> str:
        found = await step.with_options(key="charge")(site.quick, f"charge {amount}")
        if failures:
            raise OSError(failures.pop())
        return found

    for amount in (10, 10):
        handle = job.with_options(idempotency_key="order-7").enqueue(amount)
        with suppress(TaskFailed):
            assert await handle == "charge 10"
    await world.manager.purge()
    failures.append(1)
    for amount in (10, 20):
        handle = job.with_options(idempotency_key="order-7").enqueue(amount)
        with suppress(TaskFailed):
            assert await handle == "charge 20"
    assert site.began == ["charge 10", "charge 10", "charge 20"]


async def test_progress_beside_a_step_does_not_release_it_early(world: World, site: Site) -> None:
    """A commit that was under way before the step had ended says nothing of its record."""
    seen: list[int] = []

    async def busy() -> str:
        current_task().progress(1)
        await asyncio.sleep(2)
        current_task().progress(2)
        return "b"

    @world.manager.task(persist=True)
    async def job() -> None:
        await step(busy)
        seen.append(len(await stored(world.manager, current_task().task_id)))

    await job.enqueue()
    assert seen == [1]
