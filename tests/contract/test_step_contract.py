"""What every store does with a step of a claimed task: it changes the columns of that step, and no other one."""

import pytest

from taskmanager.model.record import HistoryWrite, NewWrite, PlainCall, TaskRow, TaskWrite
from taskmanager.store.constraints import STEPS, step_of
from taskmanager.store.protocol import CommitReport, Store
from tests.contract.rows import ME, attempt, expected, put, task, wants

pytestmark = pytest.mark.anyio

FULL = task(
    args='[1]', kwargs='{"a": 2}', good_until=5_000, retry_count=1, max_retries=3, next_retry_at=90, start_count=2,
    crash_count=1, snooze_count=1, tags='{"user": "1"}', idempotency_key="key", enqueue_sha="sha", scheduled_for=80,
    cancel_requested_at=95, progress='{"done": 1}', log='[{"text": "before"}]', failed_reason="a note",
    finalizing_at=70, finalizing_by_worker_id="another", claim_expires_at=6_000, is_workflow_task=1, priority=7,
)  # fmt: skip
"""A free row with every column set that it may have."""
STARTED = {
    "status": "RUNNING", "started_at": 120, "start_count": 3, "next_retry_at": None, "progress": None,
    "worker_pid": 1, "worker_hostname": "host", "worker_process_name": "main", "updated_at": 120,
}  # fmt: skip
SUCCESS = {
    "status": "COMPLETED", "completed_at": 130, "result": '{"ok": 1}', "failed_reason": None, "progress": '{"done": 2}',
    "log": "[]", "updated_at": 130,
}  # fmt: skip
FAILURE = {
    "status": "FAILED", "claimed_by_worker_id": None, "failed_at": 130, "result": '{"err": 1}', "error_code": "NO",
    "failed_reason": "no", "retry_count": 2, "crash_count": 2, "progress": '{"done": 2}', "log": "[]",
    "updated_at": 130,
}  # fmt: skip
CANCELLED = FAILURE | {"status": "CANCELLED", "cancel_requested_at": 125}
INTERRUPTED = FAILURE | {"status": "INTERRUPTED"}
AGAIN = {
    "status": "PENDING", "claimed_at": None, "started_at": None, "enqueued_at": 900,
    "next_retry_at": 900, "retry_count": 2, "snooze_count": 2, "crash_count": 2, "worker_pid": None,
    "worker_hostname": None, "worker_process_name": None, "failed_reason": None, "log": "[]", "updated_at": 130,
}  # fmt: skip
FREED = AGAIN | {"claimed_by_worker_id": None, "task_options": '{"persist":true,"sent_by":"me"}'}
REPORT = {
    "status": "RUNNING", "retry_count": 0, "crash_count": 0, "progress": '{"done": 2}', "updated_at": 125,
    "cancel_requested_at": 124,
}  # fmt: skip


def lost_sight_of(row: TaskRow, before: TaskRow) -> TaskRow:
    """The row as somebody sends it who knows nothing but what the step changes."""
    step = step_of(TaskWrite(row, None, (), keeps_call=True), expected(before))
    assert step is not None
    unknown = {name for name in TaskRow._fields if name not in step} - {"task_id", "start_count"}
    values = {name: "?" if isinstance(getattr(row, name), str) else 99 for name in unknown}
    return row._replace(**values)


async def claimed(store: Store) -> TaskRow:
    await put(store, FULL)
    (row,) = await store.claim(wants())
    assert row.claimed_by_worker_id == ME
    assert not [name for name, value in row._asdict().items() if value is None and name not in TO_COME]
    return row


TO_COME = {
    "started_at", "completed_at", "failed_at", "result", "error_code",
    "worker_pid", "worker_hostname", "worker_process_name",
}  # fmt: skip


@pytest.mark.parametrize(
    "end", [SUCCESS, FAILURE, CANCELLED, INTERRUPTED, AGAIN, FREED], ids=lambda end: str(end["status"])
)
async def test_step_changes_its_columns_and_leaves_all_others(store: Store, end: dict[str, object]) -> None:
    """Through a whole run of a claimed row, every column is what it was or what the step has made of it."""
    row = await claimed(store)
    for changes in (STARTED, REPORT, end):
        after = row._replace(**changes)
        sent = lost_sight_of(after, row)
        attempts = (attempt(number=3),) if changes is end else ()
        assert await store.commit([TaskWrite(sent, expected(row), attempts, keeps_call=True)]) == CommitReport({}, {})
        assert await store.fetch("t1") == after
        row = after
    assert await store.fetch_attempts("t1") == [attempt(number=3)]


async def test_step_does_not_clear_a_cancel_request_of_somebody_else(store: Store) -> None:
    """It was put into the row since the instance has read it."""
    row = await claimed(store)
    sent = row._replace(**STARTED)._replace(cancel_requested_at=None)
    assert await store.commit([TaskWrite(sent, expected(row))]) == CommitReport({}, {})
    found = await store.fetch("t1")
    assert found is not None
    assert found.cancel_requested_at == 95


def test_steps_differ_from_each_other() -> None:
    """A write is one step at most."""
    assert len({frozenset(step) for step in STEPS}) == len(STEPS) == 6


CALLS = (
    PlainCall("app:job", "default", 50, 3, '{"persist": true}', ME, 1, "host", "main"),
    PlainCall("app:other", "mail", 7, 0, "{}", ME, 1, "host", "main"),
)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("kinds", [(0,), (0, 1)])
async def test_lean_insert_leaves_the_row_that_the_full_one_would(
    store: Store, count: int, kinds: tuple[int, ...]
) -> None:
    """One alone, a few and many; of one function and of several; with tags and without."""
    writes: list[NewWrite | HistoryWrite] = []
    for number in range(count):
        call = CALLS[kinds[number % len(kinds)]]
        tags = '{"user": "1"}' if number % 3 == 1 else None
        said = (call, "[1]", None, tags, 100 + number)
        writes += [
            NewWrite(f"new-{number}", *said, None),
            NewWrite(f"started-{number}", *said, 120),
            HistoryWrite(f"ended-{number}", *said, 120, 130, '{"ok": 1}'),
        ]
    for batch in (writes[:1], writes[1:]):
        assert await store.commit(batch) == CommitReport({}, {})
    for write in writes:
        assert await store.fetch(write.task_id) == write.in_full().row
        is_ended = isinstance(write, HistoryWrite)
        assert await store.fetch_attempts(write.task_id) == [attempt(write.task_id)] * is_ended


async def test_lean_insert_of_an_id_that_exists_is_lost(store: Store) -> None:
    """Nothing of the row that stands there changes, and the others of the batch are stored."""
    await put(store, task("new"), task("started"))
    write = NewWrite("new", CALLS[0], "[1]", None, None, 500, None)
    started, other = write._replace(task_id="started", started_at=600), write._replace(task_id="other")
    report = await store.commit([write, started, other])
    assert report == CommitReport({"new": task("new"), "started": task("started")}, {})
    assert await store.fetch("new") == task("new")
    assert await store.fetch("other") == other.in_full().row


async def test_lean_history_replaces_history_of_the_same_id(store: Store) -> None:
    """As a full one does: a replay of a commit that seemed to fail, for example."""
    write = HistoryWrite("t1", CALLS[1], "[]", "{}", None, 100, 120, 130, '{"ok": 1}')
    assert await store.commit([write]) == CommitReport({}, {})
    again = write._replace(result='{"ok": 2}')
    assert await store.commit([again]) == CommitReport({}, {})
    assert await store.fetch("t1") == again.in_full().row
    assert await store.fetch_attempts("t1") == [attempt("t1")]
