"""The tables, as anybody with `sqlite3` sees them: every column says what the list of promises says it does."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from taskmanager import (
    QueueConfig,
    RetryPolicy,
    TaskHandle,
    TaskManager,
    TaskStatus,
    Workflow,
    current_task,
    sleep,
    step,
    wait_for,
)
from taskmanager.store.sqlite import SqliteStore
from tests.unit.duties.scene import until

pytestmark = pytest.mark.anyio

Row = dict[str, Any]


class World:
    """A manager with a task that succeeds, one that fails after a retry, and one that waits to be told."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self.gate = asyncio.Event()
        self.manager = TaskManager(db, store_poll=0.02, drain_timeout=0.1)
        once_more = RetryPolicy.fixed([1], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False)

        async def succeeds(number: int) -> int:
            return number

        async def fails() -> None:
            raise ValueError("no")

        async def waits() -> None:
            await self.gate.wait()

        task: Any = self.manager.task
        self.succeeds = task(name="succeeds", persist=True, timeout=9)(succeeds)
        self.fails = task(name="fails", persist=True, retry_policy=once_more)(fails)
        self.waits = task(name="waits", persist=True)(waits)

    def rows(self, sql: str, *parameters: object) -> list[Row]:
        with closing(sqlite3.connect(self.db)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, parameters)]

    def row(self, handle: TaskHandle[Any]) -> Row:
        (row,) = self.rows("SELECT * FROM taskmanager_tasks WHERE id = ?", handle.task_id)
        return row

    def attempts(self, handle: TaskHandle[Any]) -> list[Row]:
        return self.rows("SELECT * FROM taskmanager_task_attempts WHERE task_id = ? ORDER BY attempt", handle.task_id)

    async def until(self, handle: TaskHandle[Any], holds: Callable[[Row], bool]) -> Row:
        """The row as soon as it says so."""
        await handle.saved()
        async with asyncio.timeout(10):
            while not holds(row := self.row(handle)):  # noqa: ASYNC110  # what is in the file has no event
                await asyncio.sleep(0.005)
        return row


def says(status: str) -> Callable[[Row], bool]:
    return lambda row: bool(row["status"] == status)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path / "tasks.db")
    async with made.manager:
        yield made
        made.gate.set()


NOTHING_ENDED = dict.fromkeys(("completed_at", "failed_at", "result", "failed_reason", "error_code"))


@pytest.mark.req(
    "DS-001", "DS-002", "DS-003", "DS-004", "DS-008", "DS-009", "DS-012", "DS-014", "DS-016", "DS-020", "DS-021",
    "DS-022", "DS-025", "DS-027", "DS-028", "DS-029", "DS-030", "DS-031", "DS-034", "DS-035", "DS-036", "DS-s5",
    "PR-46", "RP-50", "RP-52",
)  # fmt: skip
async def test_a_task_is_one_row_from_its_start_to_its_end(world: World) -> None:
    """Who runs it and since when; at the end what it gave; and in between nothing that is not so yet."""
    engine = world.manager._lifecycle.engine  # type: ignore[union-attr]
    who = engine.identity
    running = await world.until(world.waits.with_options(idempotency_key="k").enqueue(), says("RUNNING"))
    assert UUID(running["id"])
    assert len(running["id"]) == 36
    assert (running["task_name"], running["queue_name"]) == ("waits", "default")
    assert running.items() >= NOTHING_ENDED.items()
    assert (running["claimed"], running["claimed_by_worker_id"]) == (0, who.instance_id)
    assert running["claim_expires_at"] is None
    assert (running["worker_pid"], running["worker_hostname"]) == (who.pid, who.hostname)
    assert running["worker_process_name"] == who.process_name
    assert running["started_at"] >= running["sent_at"] == running["created_at"]
    assert running["updated_at"] >= running["started_at"]
    assert (running["start_count"], running["retry_count"], running["max_retries"]) == (1, 0, 0)
    assert running["is_workflow_task"] == 0
    assert len(running["enqueue_sha"]) == 64

    done = world.succeeds.enqueue(5)
    assert await done == 5
    completed = await world.until(done, says("COMPLETED"))
    assert completed["error_code"] is None
    assert json.loads(completed["task_options"])["timeout_s"] == 9
    assert completed["completed_at"] == completed["updated_at"] >= completed["started_at"]
    assert {row["status"] for row in world.rows("SELECT status FROM taskmanager_tasks")} <= set(TaskStatus)

    failed = world.fails.enqueue()
    assert (await failed.result()).is_err()
    ended = await world.until(failed, says("FAILED"))
    assert (ended["error_code"], ended["max_retries"], ended["retry_count"]) == ("UNHANDLED_EXCEPTION", 1, 1)
    assert ended["failed_at"] >= ended["started_at"]
    info = await failed.info()
    assert (info.retry_count, info.max_retries, info.next_retry_at) == (1, 1, None)


@pytest.mark.req("DS-s4", "RP-42", "RP-51", "RP-52", "PR-45", "DS-020")
async def test_a_task_that_waits_for_its_retry_says_so_and_nothing_else(world: World) -> None:
    """Claim, start, worker and error are cleared; it is due at `next_retry_at`, and not taken before."""
    handle = world.fails.enqueue()
    row = await world.until(handle, lambda each: bool(each["retry_count"]))
    assert row["status"] == "PENDING"
    cleared = ("claimed_at", "started_at", "worker_pid", "worker_hostname", "worker_process_name", "claim_expires_at")
    assert (
        row.items() >= (NOTHING_ENDED | dict.fromkeys((*cleared, "finalizing_at", "finalizing_by_worker_id"))).items()
    )
    assert row["claimed"] == 0
    (attempt,) = world.attempts(handle)
    assert row["enqueued_at"] == row["next_retry_at"] >= attempt["finished_at"] + 1_000_000
    assert (await handle.result()).is_err()
    second = world.attempts(handle)[1]
    assert second["started_at"] >= row["next_retry_at"]


@pytest.mark.req(
    "DS-039", "DS-042", "DS-045", "DS-047", "DS-048", "DS-051", "DS-052", "DS-053", "DS-054", "DS-055", "DS-056",
)  # fmt: skip
async def test_every_attempt_that_ended_leaves_one_row(world: World) -> None:
    """Its outcome, its times, who ran it; what befell the code is there for failures only."""
    who = world.manager._lifecycle.engine.identity  # type: ignore[union-attr]
    good, bad = world.succeeds.enqueue(1), world.fails.enqueue()
    await asyncio.gather(good.result(), bad.result())
    await world.manager.flush()
    (only,) = world.attempts(good)
    assert (only["outcome"], only["will_retry"], only["error_code"]) == ("COMPLETED", 0, None)
    assert (only["error_message"], only["failed_reason"]) == (None, None)
    first, second = world.attempts(bad)
    assert [(each["outcome"], each["will_retry"]) for each in (first, second)] == [("FAILED", 1), ("FAILED", 0)]
    assert "ValueError: no" in first["failed_reason"]
    for each in (only, first, second):
        assert each["started_at"] <= each["finished_at"] <= each["created_at"]
        assert (each["worker_id"], each["worker_hostname"]) == (who.instance_id, who.hostname)
        assert (each["worker_pid"], each["worker_process_name"]) == (who.pid, who.process_name)
    ids = [row["id"] for row in world.rows("SELECT id FROM taskmanager_task_attempts ORDER BY id")]
    assert ids == [1, 2, 3]


@pytest.mark.req("DS-013", "DS-021", "DS-022", "PR-41")
async def test_a_claimed_row_says_by_whom_and_when(tmp_path: Path) -> None:
    """What another start left is claimed before it runs, and then dispatched on the loop."""
    first = World(tmp_path / "tasks.db")
    async with first.manager:
        await first.waits.with_options(priority=1).enqueue().saved()
        left = [first.waits.enqueue() for _ in range(3)]
    again = World(first.db)
    again.manager._settings = replace(again.manager._settings, concurrency=1)
    async with again.manager:
        me = again.manager._lifecycle.engine.identity.instance_id  # type: ignore[union-attr]
        claimed = [row for row in map(again.row, left) if row["status"] == "CLAIMED"]
        assert len(claimed) >= 2
        assert all(row["claimed"] == 1 and row["claimed_by_worker_id"] == me for row in claimed)
        assert all(row["claimed_at"] >= row["sent_at"] for row in claimed)
        again.gate.set()
        await again.manager.join()
        assert {again.row(each)["status"] for each in left} == {"COMPLETED"}


@pytest.mark.req("DS-037", "DS-059", "DS-072")
async def test_every_search_has_an_index(world: World) -> None:
    """Those that serve few rows are partial: an index of all rows would cost every ended task a write."""
    sql = "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    indexes = " ".join(" ".join(str(row["sql"]) for row in world.rows(sql)).split())
    for wanted in (
        "taskmanager_tasks (queue_name, ",
        "taskmanager_tasks (status,",
        "taskmanager_tasks (claimed,",
        "taskmanager_tasks (good_until)",
        "taskmanager_tasks (next_retry_at)",
        "taskmanager_tasks (error_code) WHERE error_code IS NOT NULL",
        "taskmanager_task_attempts (error_code) WHERE error_code IS NOT NULL",
        "taskmanager_task_attempts (finished_at DESC)",
        "taskmanager_heartbeats (task_id, role, sent_at DESC)",
    ):
        assert wanted in indexes


@pytest.mark.req("DS-045", "DS-058")
async def test_the_file_itself_refuses_an_outcome_that_does_not_exist(world: World) -> None:
    """Whoever writes it, with whatever program."""
    handle = world.succeeds.enqueue(1)
    await handle.saved()
    sql = (
        "INSERT INTO taskmanager_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at, "
        "created_at) VALUES (?, 7, ?, 0, 1, 2, 3)"
    )
    with closing(sqlite3.connect(world.db)) as connection, connection:
        for outcome in ("COMPLETED", "FAILED", "WORKER_FAILURE", "INTERRUPTED"):
            connection.execute(sql, (handle.task_id, outcome))
            connection.rollback()
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            connection.execute(sql, (handle.task_id, "LOST"))


@pytest.mark.req("DS-060", "DS-061")
async def test_a_start_whose_row_was_taken_runs_nothing_and_leaves_no_attempt(world: World) -> None:
    """Ownership is confirmed by the write of the start itself: when it loses, there was no attempt."""
    handle = world.succeeds.with_options(delay=0.3).enqueue(1)
    await handle.saved()
    with closing(sqlite3.connect(world.db)) as thief, thief:
        thief.execute("UPDATE taskmanager_tasks SET claimed_by_worker_id = 'another' WHERE id = ?", (handle.task_id,))
    with pytest.raises(TimeoutError):
        await handle.result(timeout=1)
    row = world.row(handle)
    assert (row["status"], row["claimed_by_worker_id"], row["start_count"]) == ("PENDING", "another", 0)
    assert world.attempts(handle) == []


async def test_a_store_has_all_tables_of_the_list(tmp_path: Path) -> None:
    """Made on first use, with the version of the schema."""
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    await store.close()
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert connection.execute("SELECT max(version) FROM taskmanager_schema").fetchone() >= (2,)
    names = ("tasks", "task_attempts", "heartbeats", "worker_states", "schedule_state", "instances", "queues", "schema")
    assert found >= {f"taskmanager_{name}" for name in names}


ALWAYS_NULL: dict[tuple[str, str], str] = {
    ("tasks", "claim_expires_at"): "a claim is as good as the lock of its instance; no lease runs out",
    ("tasks", "finalizing_at"): "a task is RUNNING until its outcome is committed, in the same write",
    ("tasks", "finalizing_by_worker_id"): "its owner until then is claimed_by_worker_id",
    ("heartbeats", "task_id"): "one beat covers all tasks of its sender",
    ("workflows", "result"): "what a workflow comes to is read from its nodes",
    ("instances", "stopped_at"): "an orderly stop removes the row; who has died writes nothing",
}
"""Columns that nothing fills, each with the reason. Those who read the file from outside may rely on it."""


async def test_a_column_that_is_always_null_is_in_this_list(tmp_path: Path) -> None:
    """A busy day fills every other column: what is NULL for no reason is a promise that nobody keeps."""
    path = tmp_path / "tasks.db"
    queue = QueueConfig("mail", max_concurrency=2, scope="file")
    manager = TaskManager(path, instance_name="web", queues=[queue], store_poll=0.02)
    much_later = RetryPolicy.fixed([3_600], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False)
    started = asyncio.Event()

    @manager.task(persist=True, retry_policy=much_later)
    async def fails() -> None:
        raise ValueError("no")

    def loads(text: str) -> int:
        return int(text)

    @manager.task(persist=True)
    async def fails_at_once() -> None:
        await step(loads, "1")
        await step(loads, "no")

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def sleeps() -> None:
        await wait_for("go", object)
        await sleep(3_600)

    @manager.task(persist=True, queue_name="mail")
    async def waits() -> None:
        current_task().progress(1, 2, "half")
        current_task().log("here")
        started.set()
        await asyncio.Event().wait()

    @manager.schedule(every=3_600, name="hourly", run_on_startup=True)
    @manager.task(name="tick")
    async def tick() -> int:
        return 1

    filled: set[tuple[str, str]] = set()
    async with manager:
        soon = datetime.now(UTC) + timedelta(hours=1)
        options = {"tags": {"user": "1"}, "idempotency_key": "k", "good_until": soon}
        await fails.enqueue().saved()
        failing, waiting = fails_at_once.enqueue(), waits.with_options(**options).enqueue()  # type: ignore[arg-type]
        await asyncio.wait_for(started.wait(), 10)
        await manager.send(sleeps.enqueue().task_id, "go", key="click")
        await until(lambda: {("tasks", "next_retry_at"), ("steps", "wakes_at")} <= filled_columns(path))
        filled |= filled_columns(path)
        await manager.cancel(waiting.task_id)
        await asyncio.gather(failing.result(), waiting.result(), manager.flush())
        await run_workflows(manager)
        await manager.pause("mail")
        await manager.pause_schedule("hourly")
        lifecycle = manager._lifecycle
        assert lifecycle is not None
        duties: Any = lifecycle.duties
        await duties._reports.add_worker_state()
        await duties._show()
        filled |= filled_columns(path)
    with closing(sqlite3.connect(path)) as connection:
        assert {each for each in columns(connection) if each not in filled} == ALWAYS_NULL.keys()


async def run_workflows(manager: TaskManager) -> None:
    """One whose child fails, one that succeeds, and one that is cancelled."""

    @manager.task(persist=True)
    async def fails_with(text: str) -> None:
        raise ValueError(text)

    @manager.task(persist=True)
    async def ident(text: str) -> str:
        return text

    wf, child, other = Workflow("outer"), Workflow("inner"), Workflow("cancelled")
    child.add(fails_with, "no")
    inner = wf.add_workflow(child)
    first = wf.add(ident.with_options(tags={"user": "1"}), "a")
    last = wf.add(ident, first.value).after(first, join="quorum", min_success=1)
    assert (await (await manager.start_workflow(wf.output(last).succeeds_if([inner, last]))).result()).is_err()
    good = Workflow("good")
    assert await (await manager.start_workflow(good.output(good.add(ident, "a")))) == "a"
    other.add(ident.with_options(delay=3_600), "b")
    handle = await manager.start_workflow(other)
    await handle.cancel()
    await handle.result()


def columns(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Every column of our tables, by table and name."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'taskmanager@_%' ESCAPE '@'"
    tables = [name for (name,) in connection.execute(query)]
    return [
        (table.removeprefix("taskmanager_"), name)
        for table in tables
        for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")
    ]


def filled_columns(path: Path) -> set[tuple[str, str]]:
    """Those that some row has a value in."""
    with closing(sqlite3.connect(path)) as connection:
        return {
            (table, name)
            for table, name in columns(connection)
            if connection.execute(f"SELECT count({name}) FROM taskmanager_{table}").fetchone() != (0,)
        }
