"""`taskmanager.console.acts`: what people do to the tasks of a file from outside of its application."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.codec.values import MAX_ENCODED_BYTES
from taskmanager.console import acts
from taskmanager.console.acts import Answer
from taskmanager.engine.words.definition import options_of
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import ArgumentError, StoreError, StoreUnavailable
from taskmanager.model.record import TaskRow, UnreadableRow
from taskmanager.store.file_place import FilePlace
from taskmanager.store.sqlite import SqliteStore
from taskmanager.testing import FaultyStore
from tests.contract.rows import put, task

pytestmark = pytest.mark.anyio
CLOCK = SystemClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(path)
    await made.open()
    yield made
    await made.close()


async def fetched(store: SqliteStore, *task_ids: str) -> list[TaskRow]:
    rows = await store.fetch_ids(task_ids)
    return [rows[task_id] for task_id in task_ids]


async def test_retry_says_of_each_task_whether_it_waits_now(store: SqliteStore) -> None:
    """In the order in which they were given; by force also those that are COMPLETED."""
    later = CLOCK.now_us() + 300_000_000
    rows = [
        task("failed", status="FAILED", error_code="E", failed_at=5),
        task("done", status="COMPLETED"),
        task("later", enqueued_at=later),
    ]
    await put(store, *rows)
    failed, done, waits = await acts.retry(store, rows, CLOCK)
    assert failed == Answer("failed", True, "waiting", "it runs as soon as an instance has room")
    assert (done.done, done.remark) == (False, "it is COMPLETED, and runs again only by force")
    assert waits.remark is not None
    assert waits.remark.startswith("it is PENDING and has not ended; it runs in ")
    assert [row.status for row in await fetched(store, "failed", "done")] == ["PENDING", "COMPLETED"]
    assert [each.done for each in await acts.retry(store, rows[1:2], CLOCK, force=True)] == [True]
    assert await acts.retry(store, rows[:1], CLOCK) == [Answer("failed", False, "refused", acts.CHANGED)]


async def test_cancel_says_of_each_task_what_became_of_it(store: SqliteStore, path: Path) -> None:
    """A free one is cancelled; one of a dead instance has been asked, and recovery ends it."""
    rows = [task("free"), task("lost", status="RUNNING"), task("done", status="COMPLETED")]
    await put(store, *rows)
    free, lost, done = await acts.cancel(store, rows, CLOCK, FilePlace(path))
    assert free == Answer("free", True, "cancelled")
    assert lost == Answer("lost", True, "asked", "its instance is dead; a start, or `taskmanager recover`, ends it")
    assert done == Answer("done", False, "refused", "it is COMPLETED already")
    assert (await fetched(store, "free"))[0].status == "CANCELLED"


async def test_cancel_of_what_runs_commits_nothing_but_the_request(store: SqliteStore, path: Path) -> None:
    """An empty commit would be news on a server: every instance there would look what it is."""
    rows = [task("lost", status="RUNNING")]
    await put(store, *rows)
    watched = FaultyStore(store)
    await acts.cancel(watched.as_store(), rows, CLOCK, FilePlace(path))
    assert set(watched.calls) == {"request_cancel"}


async def test_a_cancel_waits_for_the_end_of_what_runs(path: Path, store: SqliteStore) -> None:
    """So that the answer tells whether it has stopped."""
    manager, runs = TaskManager(path), asyncio.Event()

    @manager.task(persist=True)
    async def work() -> None:
        runs.set()
        await asyncio.Event().wait()

    async with manager:
        handle = work.enqueue()
        await handle.saved()
        await runs.wait()
        await manager.flush()
        answers = await acts.cancel(store, await fetched(store, handle.task_id), CLOCK, FilePlace(path))
        assert answers == [Answer(handle.task_id, True, "cancelled")]


async def test_acts_in_pages_tell_of_records_that_are_gone(store: SqliteStore) -> None:
    """Each id gets one answer, in pages of rows that are read anew."""
    await put(store, *(task(f"t{number:04d}") for number in range(acts.PAGE + 2)))
    sizes = []

    async def act(rows: Any) -> list[Answer]:
        sizes.append(len(rows))
        return [Answer(row.task_id, True, "seen") for row in rows]

    task_ids = [f"t{number:04d}" for number in range(acts.PAGE + 2)] + ["gone"]
    answers = await acts.in_pages(store, act, task_ids)
    assert sizes == [acts.PAGE, 2]
    assert sorted(answer.task_id for answer in answers) == sorted(task_ids)
    assert [answer.task_id for answer in answers if not answer.done] == ["gone"]


async def test_a_locked_file_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the patience ends: then the fault is raised."""
    monkeypatch.setattr(acts, "WRITE_PAUSE_S", 0.0)
    tries = iter([StoreUnavailable("locked"), StoreUnavailable("locked"), None])

    async def step() -> str:
        if (fault := next(tries)) is not None:
            raise fault
        return "done"

    assert await acts.patiently(step) == "done"
    monkeypatch.setattr(acts, "WRITE_PATIENCE_S", 0.0)
    tries = iter([StoreUnavailable("locked")])
    with pytest.raises(StoreUnavailable):
        await acts.patiently(step)


async def test_a_task_enqueued_again_is_like_the_first(store: SqliteStore) -> None:
    """What was declared stays; what belongs to the one call, its key, its schedule and its workflow does not."""
    options = {"persist": True, "lane": "thread", "retry": {"max_retries": 3}, "is_delay": True, "sent_by": "x"}
    first = task(
        "first",
        status="FAILED",
        queue_name="mail",
        priority=7,
        max_retries=3,
        retry_count=3,
        start_count=4,
        crash_count=1,
        error_code="E",
        failed_at=5,
        failed_reason="no",
        tags='{"customer":"42"}',
        task_options=json.dumps(options),
        idempotency_key="key",
        enqueue_sha="sha",
        scheduled_for=9,
        is_workflow_task=1,
        good_until=50,
        log="[]",
    )
    await put(store, first._replace(good_until=None, is_workflow_task=0))
    task_id = await acts.enqueue_again(store, first, ' [1,\n "ü"]', '{"to": "x"}\n', 1_000)
    (new,) = await fetched(store, task_id)
    declared = json.dumps({"persist": True, "lane": "thread", "retry": {"max_retries": 3}})
    same = ("task_name", "queue_name", "priority", "max_retries", "tags")
    assert [getattr(new, name) for name in same] == [getattr(first, name) for name in same]
    assert options_of(new.task_options) == json.loads(declared)
    assert (json.loads(new.args or ""), json.loads(new.kwargs or "")) == ([1, "ü"], {"to": "x"})
    assert (new.status, new.sent_at, new.enqueued_at, new.created_at, new.updated_at) == ("PENDING", *[1_000] * 4)
    counts = (new.retry_count, new.start_count, new.crash_count, new.snooze_count, new.is_workflow_task)
    assert counts == (0, 0, 0, 0, 0)
    empty = {name for name, value in new._asdict().items() if value is None}
    assert {"idempotency_key", "enqueue_sha", "scheduled_for", "good_until", "log", "error_code", "result"} <= empty


async def test_a_memory_only_task_enqueued_again_is_persisted(store: SqliteStore) -> None:
    """The file is all there is of it."""
    task_id = await acts.enqueue_again(store, task("first", task_options="{}"), "[]", "{}", 1_000)
    assert options_of((await fetched(store, task_id))[0].task_options) == {"persist": True}


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ("", "{}", "args must be an array in JSON: not JSON"),
        ("[1", "{}", "args must be an array in JSON: not JSON"),
        ("[NaN]", "{}", "args must be an array in JSON: not JSON"),
        ("{}", "{}", "args must be an array in JSON, not dict: {}"),
        ("[]", "[]", "kwargs must be an object in JSON, not list: []"),
        ("[]", "null", "kwargs must be an object in JSON, not None: null"),
        ("[]", "{1: 2}", "kwargs must be an object in JSON: not JSON"),
        ('["\ud800"]', "{}", "args must be an array in JSON: "),
        ("[" * 5_000 + "]" * 5_000, "{}", "args must be an array in JSON: not JSON"),
        (f'["{"x" * MAX_ENCODED_BYTES}"]', "{}", "the arguments take 16,777,222 bytes as JSON; 16,777,216 are allowed"),
    ],
)
async def test_arguments_in_other_text_are_refused(store: SqliteStore, args: str, kwargs: str, reason: str) -> None:
    """The message says which of both, and why; nothing is stored."""
    with pytest.raises(ArgumentError) as refused:
        await acts.enqueue_again(store, task("first"), args, kwargs, 1_000)
    assert str(refused.value).startswith(reason)
    assert sum((await store.counts()).values()) == 0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (task("first", args="QUJD", kwargs="REVG"), "sealed by the application"),
        (task("first", args=None, kwargs=None), "could not be stored"),
        (UnreadableRow._make(task("first", failed_reason="tags is not UTF-8")), "tags is not UTF-8"),
    ],
)
async def test_a_task_without_readable_arguments_is_not_enqueued_again(
    store: SqliteStore, row: TaskRow, reason: str
) -> None:
    """A person would write into the dark."""
    assert reason in (acts.why_not_enqueued_again(row) or "")
    with pytest.raises(ArgumentError, match=reason):
        await acts.enqueue_again(store, row, "[]", "{}", 1_000)


async def test_a_row_that_the_store_refuses_is_not_enqueued_again(store: SqliteStore) -> None:
    """Its reason is told."""
    with pytest.raises(StoreError, match="the task cannot be stored"):
        await acts.enqueue_again(store, task("first", priority=500), "[]", "{}", 1_000)


async def test_a_running_application_takes_what_is_enqueued_again(path: Path, store: SqliteStore) -> None:
    """It notices the row, and judges the arguments at the start."""
    manager = TaskManager(path, store_poll=0.05)

    @manager.task(persist=True)
    async def double(number: int) -> int:
        return 2 * number

    async with manager:
        handle = double.enqueue(1)
        await handle.saved()
        (row,) = await fetched(store, handle.task_id)
        again = await acts.enqueue_again(store, row, "[21]", "{}", CLOCK.now_us())
        assert await manager.handle(again) == 42
        wrong = await acts.enqueue_again(store, row, '["x"]', "{}", CLOCK.now_us())
        result = await manager.handle(wrong).result()
        assert "the stored argument 'number' does not fit the function" in (result.err_value.message or "")
