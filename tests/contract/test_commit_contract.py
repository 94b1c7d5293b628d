"""What every store does with a batch of writes: who wins, who is fenced, what never changes, what cannot be stored."""

from typing import Any

import pytest

from taskmanager.model.record import Expected, StartWrite, SuccessWrite, TaskRow, TaskWrite
from taskmanager.model.states import WAITING, TaskStatus
from taskmanager.store.protocol import CommitReport, Store, TaskFilter
from tests.contract.rows import ME, OTHER, attempt, expected, keeps_nul, put, task

WORKER = (1, "host", "main")

pytestmark = pytest.mark.anyio

PERSISTED, MEMORY_ONLY = '{"persist": true}', "{}"

LONE_SURROGATE = "caf\udce9"


@pytest.mark.parametrize("status", list(TaskStatus))
async def test_a_row_comes_back_as_it_was_written(store: Store, status: TaskStatus) -> None:
    """Every column, in every status: nothing is dropped or changed by the store."""
    row = task(
        status=status.value,
        tags='{"user": "é\\u0000"}',
        progress='{"text": "é\\u0000"}',
        worker_process_name="a\x00b",
        log="[]",
        scheduled_for=-5,
        worker_pid=2**62,
    )
    await put(store, row)
    if not keeps_nul(store):
        row = row._replace(tags='{"user": "é\ufffd"}', worker_process_name="a\ufffdb")
    assert await store.fetch("t1") == row
    assert await store.fetch_ids(["t1", "nobody"]) == {"t1": row}


async def test_an_unknown_id_gives_none(store: Store) -> None:
    """A question about an unknown id is not an error."""
    assert await store.fetch("nobody") is None
    assert await store.fetch_attempts("nobody") == []
    assert await store.fetch_ids([]) == {}


async def test_an_empty_batch_reports_nothing(store: Store) -> None:
    """No write, no loser."""
    assert await store.commit([]) == CommitReport({}, {})


async def test_a_state_change_that_wins_is_stored_with_its_attempts(store: Store) -> None:
    """State and attempt are one transaction."""
    running = task(status="RUNNING")
    await put(store, running)
    done = running._replace(status="COMPLETED", completed_at=130, result='{"ok": 1}', updated_at=130)
    assert await store.commit([TaskWrite(done, expected(running), (attempt(),))]) == CommitReport({}, {})
    assert await store.fetch("t1") == done
    assert await store.fetch_attempts("t1") == [attempt()]


@pytest.mark.parametrize("status", sorted(WAITING))
async def test_a_lean_write_leaves_the_row_that_the_full_one_would(store: Store, status: TaskStatus) -> None:
    """A first start and a success say only what they change; everything else stays as it was."""
    kept = {
        "tags": "{}",
        "good_until": 500,
        "idempotency_key": "k",
        "enqueue_sha": "s",
        "scheduled_for": 90,
        "log": "[]",
    }
    counts = {"retry_count": 1, "max_retries": 2, "crash_count": 3, "snooze_count": 4, "priority": 7}
    row = {"status": status.value, "claimed_by_worker_id": ME, **kept, **counts}
    waiting = [task(each, **row) for each in ("lean", "full")]
    await put(store, *waiting)
    for number, at, lean in (
        (0, 120, StartWrite("lean", "app:job", expected(waiting[0]), 120, 7, "host", "main", "default", 100)),
        (
            1,
            130,
            SuccessWrite("lean", "app:job", Expected("RUNNING", ME, 1), 120, 130, '{"ok": 1}', *WORKER, "default"),
        ),
    ):
        before = await store.fetch("full")
        assert before is not None
        started = {"start_count": 1, "started_at": 120, "worker_pid": 7, "worker_hostname": "host"}
        changes = {"completed_at": 130, "result": '{"ok": 1}'} if number else started | {"worker_process_name": "main"}
        full = before._replace(status=lean.status, updated_at=at, **changes)
        write = TaskWrite(full, expected(before), (attempt("full"),) if number else ())
        assert await store.commit([lean, write]) == CommitReport({}, {})
        assert await store.fetch("full") == full
        assert await store.fetch("lean") == full._replace(task_id="lean")
        assert await store.fetch_attempts("lean") == [attempt("lean")] * number


async def test_a_lean_write_loses_like_any_other(store: Store) -> None:
    """A start of what somebody else has, and a success that comes too late, change nothing and keep nobody else."""
    rows = [
        task("a", claimed_by_worker_id=OTHER),
        task("b", status="RUNNING", start_count=2),
        task("c", status="RUNNING"),
    ]
    await put(store, *rows)
    report = await store.commit(
        [
            StartWrite("a", "app:job", Expected("PENDING", ME, 0), 120, 7, "host", "main", "default", 100),
            SuccessWrite("b", "app:job", Expected("RUNNING", ME, 1), 120, 130, None, *WORKER, "default"),
            SuccessWrite("c", "app:job", Expected("RUNNING", ME, 1), 120, 130, LONE_SURROGATE, *WORKER, "default"),
            StartWrite("nobody", "app:job", Expected("PENDING", ME, 0), 120, 7, "host", "main", "default", 100),
        ]
    )
    assert report == CommitReport({"a": rows[0], "b": rows[1], "nobody": None}, {})
    assert [await store.fetch(each) for each in ("a", "b")] == rows[:2]
    assert await store.fetch_attempts("b") == []
    won = await store.fetch("c")
    assert won is not None
    assert (won.status, won.result) == ("COMPLETED", "caf\\udce9")


@pytest.mark.parametrize("instants", [1, 2])
async def test_many_starts_are_each_fenced_alone(store: Store, instants: int) -> None:
    """However much they have in common: who lost a task changes nothing of it, and all the others have begun."""
    rows = [task(f"t{each:02}", claimed_by_worker_id=OTHER if each % 9 == 5 else ME) for each in range(40)]
    await put(store, *rows)
    at = {row.task_id: 120 + number % instants for number, row in enumerate([*rows, task("gone")])}
    report = await store.commit(
        [
            StartWrite(each, "app:job", Expected("PENDING", ME, 0), now, 7, "host", "main", "default", 100)
            for each, now in at.items()
        ]
    )
    lost = {row.task_id: row for row in rows if row.claimed_by_worker_id == OTHER}
    assert report == CommitReport({**lost, "gone": None}, {})
    for row in rows:
        now = await store.fetch(row.task_id)
        assert now is not None
        if row.task_id in lost:
            assert now == row
        else:
            assert (now.status, now.started_at, now.start_count) == ("RUNNING", at[row.task_id], 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (task(status="RUNNING"), task(status="PENDING", start_count=1)),
        (task(status="RUNNING"), task(status="RUNNING", start_count=2)),
        (task(status="RUNNING"), task(status="FAILED", start_count=2)),
        (task(), task(status="CLAIMED")),
        (task(start_count=1), task(status="FAILED", start_count=1)),
        (task(), task(status="RUNNING", start_count=2)),
        (task(), task(status="FAILED", start_count=1)),
        (task(status="FAILED", start_count=1), task(status="RUNNING", start_count=2)),
    ],
    ids=lambda row: f"{row.status}-{row.start_count}",
)
async def test_changes_that_come_together_are_stored_whole(store: Store, before: TaskRow, after: TaskRow) -> None:
    """One write may hold a retry and all that led to it and came after it; when a retry is due is a part of it."""
    await put(store, before)
    after = after._replace(enqueued_at=500, max_retries=7)
    assert await store.commit([TaskWrite(after, expected(before))]) == CommitReport({}, {})
    assert await store.fetch("t1") == after


@pytest.mark.parametrize("actual", list(TaskStatus))
@pytest.mark.parametrize("wanted", ["PENDING", "CLAIMED", "RUNNING", "FAILED"])
async def test_a_wrong_source_state_loses_and_changes_nothing(store: Store, actual: TaskStatus, wanted: str) -> None:
    """The precondition is in the write itself: whoever read an older state is told the row as it stands."""
    if wanted == actual:
        return
    row = task(status=actual.value)
    await put(store, row)
    write = TaskWrite(task(status="CANCELLED"), expected(row)._replace(status=wanted), (attempt(),))
    assert await store.commit([write]) == CommitReport({"t1": row}, {})
    assert await store.fetch("t1") == row
    assert await store.fetch_attempts("t1") == []


@pytest.mark.parametrize("wrong", [{"owner": OTHER}, {"owner": None}, {"start_count": 0}, {"start_count": 2}], ids=str)
async def test_a_wrong_owner_or_generation_is_fenced(store: Store, wrong: dict[str, Any]) -> None:
    """A writer that lost its claim is refused, also when the task runs again for somebody else."""
    row = task(status="RUNNING")
    await put(store, row)
    write = TaskWrite(task(status="FAILED"), expected(row)._replace(**wrong), (attempt(),))
    assert await store.commit([write]) == CommitReport({"t1": row}, {})
    assert await store.fetch("t1") == row
    assert await store.fetch_attempts("t1") == []


async def test_an_owner_that_appeared_fences_a_writer_that_saw_none(store: Store) -> None:
    """No owner is compared like any other value."""
    row = task(claimed_by_worker_id=ME)
    await put(store, row)
    report = await store.commit([TaskWrite(task(status="CANCELLED"), Expected("PENDING", None, 0))])
    assert report.lost == {"t1": row}


async def test_a_change_of_a_missing_row_is_lost(store: Store) -> None:
    """A record that was purged meanwhile is reported as none."""
    report = await store.commit([TaskWrite(task(status="FAILED"), Expected("RUNNING", ME, 1), (attempt(),))])
    assert report == CommitReport({"t1": None}, {})
    assert await store.fetch("t1") is None
    assert await store.fetch_attempts("t1") == []


async def test_losers_do_not_keep_winners_from_winning(store: Store) -> None:
    """In a large batch of inserts and updates, exactly those whose precondition fails are reported."""
    running = [task(f"u{i:03}", status="RUNNING") for i in range(300)]
    await put(store, *running)
    updates = [
        TaskWrite(
            row._replace(status="COMPLETED", completed_at=5),
            expected(row) if i % 7 else Expected("RUNNING", OTHER, 1),
            (attempt(row.task_id),),
        )
        for i, row in enumerate(running)
    ]
    inserts = [TaskWrite(task(f"n{i:03}" if i % 5 else f"u{i:03}"), None) for i in range(1, 100)]
    taken = {write.row.task_id for write in inserts if write.row.task_id.startswith("u")}
    updates = [write for write in updates if write.row.task_id not in taken]
    report = await store.commit([*inserts, *updates])
    fenced = {write.row.task_id for write in updates if write.expected and write.expected.owner == OTHER}
    assert report.lost.keys() == taken | fenced
    assert not report.rejected
    for write in (*inserts, *updates):
        stored = await store.fetch(write.row.task_id)
        has_won = write.row.task_id not in report.lost
        assert (stored == write.row) == has_won
        assert await store.fetch_attempts(write.row.task_id) == (list(write.attempts) if has_won else [])


async def test_an_insert_never_replaces_a_row(store: Store) -> None:
    """A repeated insert is lost and shows what is there, which is how a replay is recognised."""
    row = task()
    await put(store, row)
    assert await store.commit([TaskWrite(task(priority=1), None, (attempt(),))]) == CommitReport({"t1": row}, {})
    assert await store.fetch("t1") == row
    assert await store.fetch_attempts("t1") == []


async def test_an_ended_memory_only_task_replaces_its_predecessor(store: Store) -> None:
    """The next task of the same key has the same id; its record and attempts take the place of the older ones."""
    old = task(status="FAILED", task_options=MEMORY_ONLY, start_count=2)
    old_attempts = (attempt(number=1, outcome="FAILED"), attempt(number=2, outcome="FAILED"))
    await store.commit([TaskWrite(old, None, old_attempts)])
    new = task(status="COMPLETED", task_options=MEMORY_ONLY)
    beside = TaskWrite(task("t2", status="CANCELLED", task_options=MEMORY_ONLY), None)
    assert await store.commit([beside, TaskWrite(new, None, (attempt(started_at=500),))]) == CommitReport({}, {})
    assert await store.fetch("t1") == new
    assert await store.fetch_attempts("t1") == [attempt(started_at=500)]


async def test_attempts_of_one_life_add_up(store: Store) -> None:
    """A retried memory-only task goes on counting, so its earlier attempts stay."""
    await store.commit(
        [TaskWrite(task(status="FAILED", task_options=MEMORY_ONLY), None, (attempt(number=1, outcome="FAILED"),))]
    )
    await store.commit([TaskWrite(task(status="COMPLETED", task_options=MEMORY_ONLY), None, (attempt(number=2),))])
    assert [each.attempt for each in await store.fetch_attempts("t1")] == [1, 2]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (task(status="FAILED"), task(status="COMPLETED", task_options=MEMORY_ONLY)),
        (task(status="FAILED", task_options="{"), task(status="COMPLETED", task_options=MEMORY_ONLY)),
        (task(status="FAILED", task_options=MEMORY_ONLY), task(status="COMPLETED", task_options="{")),
        (task(status="FAILED", task_options=MEMORY_ONLY), task(status="COMPLETED")),
        (task(task_options=MEMORY_ONLY), task(status="COMPLETED", task_options=MEMORY_ONLY)),
        (task(status="FAILED", task_options=MEMORY_ONLY), task(task_options=MEMORY_ONLY)),
    ],
    ids=[
        "persisted before",
        "unreadable before",
        "unreadable now",
        "persisted now",
        "not ended before",
        "not ended now",
    ],
)
async def test_nothing_else_is_ever_replaced(store: Store, old: TaskRow, new: TaskRow) -> None:
    """Replacement is for two ended memory-only rows; every other insert of a taken id is lost."""
    await put(store, old)
    before = await store.fetch("t1")
    assert (await store.commit([TaskWrite(new, None)])).lost == {"t1": before}
    assert await store.fetch("t1") == before
    assert before is not None
    assert before.status == old.status


async def test_attempts_are_never_changed(store: Store) -> None:
    """An attempt that was written stays; writing it again with a later change is no error."""
    row = task(status="RUNNING")
    await store.commit([TaskWrite(row, None, (attempt(outcome="FAILED"),))])
    ended = row._replace(status="FAILED")
    await store.commit([TaskWrite(ended, expected(row), (attempt(), attempt(number=2)))])
    assert await store.fetch_attempts("t1") == [attempt(outcome="FAILED"), attempt(number=2)]


async def test_call_site_facts_never_change(store: Store) -> None:
    """`sent_at`, `created_at` and the name belong to the first write; a retry with new arguments changes the rest."""
    row = task(status="FAILED", error_code="X")
    await put(store, row)
    again = task(
        task_name="other",
        sent_at=1,
        created_at=1,
        args="[9]",
        kwargs='{"a": 1}',
        tags="{}",
        priority=3,
        queue_name="mail",
        task_options='{"persist": true, "timeout": 3}',
        good_until=900,
        enqueue_sha="f" * 64,
    )
    assert await store.commit([TaskWrite(again, expected(row))]) == CommitReport({}, {})
    assert await store.fetch("t1") == again._replace(task_name="app:job", sent_at=100, created_at=100)


@pytest.mark.parametrize("target", ["RUNNING", "PENDING", "FAILED"])
async def test_a_cancel_request_of_somebody_else_is_not_wiped_out(store: Store, target: str) -> None:
    """The writer may not have seen it yet; its NULL says nothing."""
    row = task(status="RUNNING")
    await put(store, row)
    assert await store.request_cancel(["t1"], 777)
    await store.commit([TaskWrite(task(status=target), expected(row))])
    assert (await store.fetch("t1") or row).cancel_requested_at == 777


async def test_retrying_a_terminal_task_clears_its_cancel_request(store: Store) -> None:
    """Otherwise the retried task would be cancelled at once."""
    row = task(status="CANCELLED", cancel_requested_at=5)
    await put(store, row)
    await store.commit([TaskWrite(task(), expected(row))])
    assert await store.fetch("t1") == task()


POISON = {
    "priority": {"priority": 500},
    "huge integer": {"retry_count": 1 << 70},
    "status": {"status": "LIMBO"},
    "error code of a live task": {"error_code": "X"},
    "running without owner": {"status": "RUNNING", "claimed_by_worker_id": None},
    "completed_at of a failure": {"status": "FAILED", "completed_at": 1},
    "a type without a column": {"result": object()},
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
@pytest.mark.parametrize("place", [0, 20, 40])
async def test_a_row_that_cannot_be_stored_spoils_no_other(store: Store, poison: dict[str, Any], place: int) -> None:
    """The guilty row is reported with a reason, everything else of the batch is stored, attempts included."""
    writes = [TaskWrite(task(f"t{i}", status="FAILED"), None, (attempt(f"t{i}"),)) for i in range(40)]
    writes.insert(place, TaskWrite(task("bad", **poison), None, (attempt("bad"),)))
    writes.append(TaskWrite(task("surrogate", failed_reason=LONE_SURROGATE), None))
    report = await store.commit(writes)
    assert report.lost == {}
    assert report.rejected.keys() == {"bad"}
    assert report.rejected["bad"]
    assert len(await store.fetch_many(TaskFilter(limit=100))) == 41
    assert await store.fetch("bad") is None
    assert await store.fetch_attempts("bad") == []
    assert await store.fetch_attempts("t39") == [attempt("t39")]


async def test_a_poisoned_change_leaves_the_row_as_it_was(store: Store) -> None:
    """Rejected is not lost: the row stands, and so does its precondition."""
    row = task(status="RUNNING")
    await put(store, row)
    report = await store.commit([TaskWrite(row._replace(priority=500), expected(row), (attempt(),))])
    assert report.rejected.keys() == {"t1"}
    assert await store.fetch("t1") == row
    assert await store.fetch_attempts("t1") == []


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
async def test_a_poisoned_write_that_loses_is_lost(store: Store, poison: dict[str, Any]) -> None:
    """Whoever has lost follows the row that stands there. What it would have written is of no interest any more."""
    row = task(status="RUNNING")
    await put(store, row, task("t2"))
    behind = expected(row)._replace(start_count=row.start_count + 1)
    report = await store.commit(
        [TaskWrite(task("t1", **poison), behind), TaskWrite(task("t2", **poison), None), TaskWrite(task("t3"), None)]
    )
    assert report == CommitReport({"t1": row, "t2": task("t2")}, {})
    assert await store.fetch("t3") == task("t3")


async def test_a_poisoned_attempt_takes_only_its_task_along(store: Store) -> None:
    """State and attempts are stored together or not at all."""
    report = await store.commit(
        [
            TaskWrite(task("bad", status="FAILED"), None, (attempt("bad", outcome="SHRUG"),)),
            TaskWrite(task("good", status="FAILED"), None, (attempt("good"),)),
        ]
    )
    assert report.rejected.keys() == {"bad"}
    assert await store.fetch("bad") is None
    assert await store.fetch_attempts("good") == [attempt("good")]


async def test_text_that_is_no_utf8_is_stored_escaped(store: Store) -> None:
    """Lone surrogates occur in file names and must not cost a record."""
    row = task(status="FAILED", failed_reason=LONE_SURROGATE)
    report = await store.commit([TaskWrite(row, None, (attempt(error_message=LONE_SURROGATE),))])
    assert report == CommitReport({}, {})
    assert (await store.fetch("t1") or row).failed_reason == "caf\\udce9"
    assert (await store.fetch_attempts("t1"))[0].error_message == "caf\\udce9"
