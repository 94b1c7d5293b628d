"""A manager looks at itself: `console()` and `live()`, with a file and without one."""

import asyncio
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from taskmanager import TaskManager, TaskStatus, current_task
from taskmanager.console.oneself import InstanceObserver
from taskmanager.console.overview import Overview
from taskmanager.console.terminal.live import Region
from taskmanager.console.terminal.screen import Focus, Screen, screen_lines
from taskmanager.model.clock import HOUR_US, MINUTE_US, SystemClock
from taskmanager.model.record import TaskWrite
from taskmanager.model.schedule import ScheduleDeclaration
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import CommitReport, FreeQueue, Store
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.statistics import (
    MAX_MESSAGE_CHARS,
    Failure,
    FileSize,
    Held,
    NextRun,
    Pace,
    Started,
    Statistics,
    StoreOverview,
    TaskFailures,
    TaskPace,
)
from tests.contract.rows import ME, OTHER, attempt, task
from tests.unit.console_overviews import BUSY

pytestmark = pytest.mark.anyio


def shown(view: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def portrait(manager: TaskManager) -> Overview:
    engine = manager._engine()
    assert engine is not None
    return InstanceObserver(engine).overview()


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("persist", [True, False])
async def test_it_knows_at_once_what_has_ended(tmp_path: Path, has_file: bool, persist: bool) -> None:
    """Memory is newer than the file: memory-only history gets there once a minute, the console does not wait for it."""
    if persist and not has_file:
        return
    manager = TaskManager(tmp_path / "tasks.db" if has_file else None)
    go = asyncio.Event()

    @manager.task(name="job", persist=persist)
    async def job(number: int) -> None:
        current_task().progress(number, 4, "halfway")
        if number == 1:
            raise ValueError("one")
        if number == 2:
            await go.wait()

    assert "not running" in shown(manager.console())
    async with manager:
        ended = [job.enqueue(0), job.enqueue(1)]
        running, waiting = job.enqueue(2), job.with_options(delay=3600).enqueue(3)
        await asyncio.gather(*(handle.result() for handle in ended))
        if persist:
            await manager.flush()  # the file is read while no commit is under way
        for _ in range(2):  # before and after memory-only history is in the store
            overview = portrait(manager)
            assert {status: count for status, count in overview.counts.items() if count} == {
                TaskStatus.COMPLETED: 1,
                TaskStatus.FAILED: 1,
                TaskStatus.RUNNING: 1,
                TaskStatus.PENDING: 1,
            }
            assert (overview.hour.ended_count, overview.hour.failed_count) == (2, 1)
            assert [(each.task_name, each.error_code) for each in overview.failures] == [("job", "UNHANDLED_EXCEPTION")]
            assert [(each.task_id, each.fraction) for each in overview.running] == [(running.task_id, 0.5)]
            assert overview.unwritten_count == 0
            await manager.flush()
        text = shown(manager.console())
        assert " 50%" in text
        assert "1 running  1 waiting  1 completed  1 failed" in text
        go.set()
        waiting.cancel()
        await running


async def test_of_very_many_tasks_in_memory_the_queues_counts_must_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting a million one by one, twice a second, would be felt by the tasks."""
    monkeypatch.setattr("taskmanager.duties.reports.MAX_COUNTED", 2)
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(name="job")
    async def job() -> None: ...

    async with manager:
        waiting = [job.with_options(delay=3600).enqueue() for _ in range(3)]
        overview = portrait(manager)
        assert (overview.waiting_count, overview.running_count) == (3, 0)
        for handle in waiting:
            handle.cancel()


async def test_a_file_that_cannot_be_read_is_a_problem_and_memory_is_shown(tmp_path: Path) -> None:
    """What runs is worth more on a bad day than on a good one."""
    manager = TaskManager(tmp_path / "tasks.db")
    go = asyncio.Event()

    @manager.task(name="job")
    async def job() -> None:
        await go.wait()

    async with manager:
        handle = job.enqueue()
        (tmp_path / "tasks.db").rename(tmp_path / "away.db")
        overview = portrait(manager)
        (tmp_path / "away.db").rename(tmp_path / "tasks.db")
        assert overview.problems[0].severity == "error"
        assert "tasks.db" in overview.problems[0].text
        assert overview.queues[0].waiting_count + overview.queues[0].running_count == 1
        go.set()
        await handle


async def test_live_shows_the_end_and_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where stdout is no terminal, the last overview is printed, and that is all."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(name="job")
    async def job() -> None: ...

    async with manager:
        assert capsys.readouterr() == ("", "")
        async with manager.live():
            await job.enqueue()
        out, err = capsys.readouterr()
        assert "1 completed" in out
        assert err == ""


NOW = 10 * HOUR_US


async def overview_of(store: Store) -> StoreOverview:
    await store.open()
    done = {"status": "COMPLETED", "claimed_by_worker_id": OTHER, "start_count": 1}
    failed = {**done, "status": "FAILED", "error_code": "BOOM"}
    writes = [
        TaskWrite(task("free", enqueued_at=NOW - 5), None),
        TaskWrite(task("owned", status="RUNNING"), None),
        TaskWrite(task("old", **done, completed_at=5, sent_at=1), None, (attempt("old", 1, finished_at=5),)),
        TaskWrite(
            task("new", **done, completed_at=NOW - 9),
            None,
            (attempt("new", 1, started_at=NOW - 19, finished_at=NOW - 9),),
        ),
        TaskWrite(
            task("bad", **failed, failed_at=NOW - 7),
            None,
            tuple(
                attempt(
                    "bad",
                    n,
                    outcome="FAILED",
                    error_code=code,
                    error_message=code.lower() * 99,
                    started_at=NOW - 99,
                    finished_at=NOW - 9 + n,
                )
                for n, code in [(1, "FIRST"), (2, "BOOM")]
            ),
        ),
        TaskWrite(
            task("stopped", **{**failed, "status": "INTERRUPTED", "error_code": "TASK_INTERRUPTED"}, failed_at=NOW - 1),
            None,
            (attempt("stopped", 1, outcome="INTERRUPTED", error_code="TASK_INTERRUPTED", finished_at=NOW - 1),),
        ),
    ]
    report = await store.commit(writes)
    assert report == CommitReport({}, {})
    await store.set_paused("mail", True, NOW)
    await store.declare_schedules([ScheduleDeclaration("s", "h", "job", "every 5 s", "{}", NOW + 5)], OTHER, NOW)
    await store.add_figures()
    found = store.overview(NOW, counts_all=True)
    await store.close()
    return found


class Late(SystemClock):
    """A clock that stands at the moment of the look."""

    def now_us(self) -> int:
        return NOW


MINUTE, HOUR = Pace(NOW - MINUTE_US, 4, 2), Pace(NOW - HOUR_US, 4, 2)
TOLD = Statistics(
    taken_at=NOW,
    beats={},
    owned={ME: 1},
    held=(Held(ME, "default", 0, 0, 1),),
    started=(Started("owned", "app:job", "default", ME, 1, 120),),
    free=(FreeQueue("app:job", "default", 1, NOW - 5),),
    paused=frozenset({"mail"}),
    minute=MINUTE,
    hour=HOUR,
    # From 120 to NOW - 1; 10; and two that began at NOW - 99.
    slowest=(TaskPace("app:job", 4, 2, (NOW - 121 + 10 + 91 + 92) // 4, NOW - 121),),
    most_failing=(TaskFailures("app:job", 2, "BOOM", ("boom" * 99)[:MAX_MESSAGE_CHARS]),),
    failures=(
        Failure("bad", "app:job", 2, "FAILED", "BOOM", "boom" * 99, NOW - 7, False),
        Failure("bad", "app:job", 1, "FAILED", "FIRST", "first" * 99, NOW - 8, False),
    ),
    schedules=(NextRun("s", "job", "every 5 s", NOW + 5, None, False, False),),
    last_activity_at=NOW - 1,
    size=FileSize(0, 0, 0),
)
"""Windows, failures (an interruption is none), what is free and what is owned."""


async def test_both_stores_tell_the_same(tmp_path: Path) -> None:
    """All that the console asks. Only a file has a size, and a schema that another version may have made."""
    memory = await overview_of(MemoryStore(clock=Late()))
    file = await overview_of(SqliteStore(tmp_path / "tasks.db", clock=Late()))
    size, figures = file.statistics.size, file.statistics.figures
    assert size.schema_version >= 1
    assert figures is not None
    # Of the last hour: one has completed before, and one has failed twice, without a retry in between.
    assert (figures.completed, figures.failed, figures.interrupted, figures.ended_count) == (1, 2, 1, 4)
    told = replace(TOLD, figures=figures)
    assert memory.statistics == told
    assert replace(file.statistics, size=TOLD.size) == told
    assert file.counts == memory.counts
    assert {status: count for status, count in file.counts.items() if count} == {
        TaskStatus.PENDING: 1,
        TaskStatus.RUNNING: 1,
        TaskStatus.COMPLETED: 2,
        TaskStatus.FAILED: 1,
        TaskStatus.INTERRUPTED: 1,
    }


@pytest.mark.parametrize("status", [TaskStatus.PENDING, TaskStatus.FAILED, TaskStatus.COMPLETED])
async def test_console_on_the_loop_counts_no_more_than_a_cap(
    tmp_path: Path, status: TaskStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million rows that wait or have failed would take half a second. What is shown then is true: "3+ waiting"."""
    monkeypatch.setattr("taskmanager.store.sql.statistics.COUNT_CAP", 3)
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    ended = {TaskStatus.FAILED: {"failed_at": NOW}, TaskStatus.COMPLETED: {"completed_at": NOW}}.get(status, {})
    rows = [task(f"t{n}", status=status.value, **ended) for n in range(5)]
    rows.append(task("cancelled", status="CANCELLED", failed_at=NOW))
    assert await store.commit([TaskWrite(row, None) for row in rows]) == CommitReport({}, {})
    few, all_of_them = store.overview(NOW, counts_all=False), store.overview(NOW, counts_all=True)
    await store.close()
    assert (all_of_them.counts[status], all_of_them.capped) == (5, frozenset())
    assert few.counts[TaskStatus.CANCELLED] == 1
    if status is TaskStatus.COMPLETED:
        assert (few.counts[status], few.capped) == (5, frozenset())
    else:
        assert (few.counts[status], few.capped) == (3, {status, TaskStatus.COMPLETED})


async def test_counts_are_right_also_between_two_looks_at_the_file(tmp_path: Path) -> None:
    """What was committed since is no more what the file said: nothing is counted twice, nothing is missing."""
    manager = TaskManager(tmp_path / "tasks.db")
    go, started = asyncio.Event(), asyncio.Event()

    @manager.task(name="job", persist=True)
    async def job(number: int) -> None:
        if number == 2:
            started.set()
        await go.wait()
        if number == 0:
            raise ValueError("zero")

    async with manager:
        handles = [job.enqueue(number) for number in range(3)]
        await started.wait()
        engine = manager._engine()
        assert engine is not None
        kept = InstanceObserver(engine)
        for is_old in (False, True):
            counts = kept.overview().counts
            assert (counts[TaskStatus.RUNNING], counts[TaskStatus.PENDING]) == (3, is_old)
            kept._next_look_s = math.inf  # from now on the file is not looked at
            await job.with_options(delay=3600).enqueue(9).saved()
        go.set()
        await asyncio.gather(*(handle.result() for handle in handles))
        for _ in range(2):
            counts = kept.overview().counts
            assert {status.value: number for status, number in counts.items() if number} == {
                "COMPLETED": 2,
                "FAILED": 1,
                "PENDING": 2,
            }
            await manager.flush()
            assert (await manager.counts()) == counts


def test_live_view_leaves_no_line_behind_on_a_narrower_terminal() -> None:
    """The terminal wraps the lines that stand there, so the view begins further up than it has lines."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, force_interactive=True, width=100, height=50, color_system=None)
    with Region(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        live.show(Screen(BUSY, Focus.RUNNING))
        widths = [line.cell_len for line in screen_lines(BUSY, 100, 49, Focus.RUNNING)]
        console.width = 60
        wrapped = sum(-(-max(1, width) // 60) for width in widths)
        for expected in (wrapped, len(screen_lines(BUSY, 60, 49, Focus.RUNNING))):
            drawn = len(file.getvalue())
            live.show(Screen(BUSY, Focus.RUNNING))
            assert file.getvalue()[drawn:].count("\x1b[1A") == expected - 1
