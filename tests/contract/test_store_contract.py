"""One suite for every store: each verb's happy path, and each way to lose, which changes nothing."""

from typing import Any

import pytest

from taskmanager.model.record import Expected, StartWrite, SuccessWrite, TaskRow, TaskWrite
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.store.protocol import ClaimRequest, FreeQueue, InstanceRow, Store, TaskFilter
from tests.contract.rows import ME, OTHER, attempt, expected, put, task

pytestmark = pytest.mark.anyio

PERSISTED, MEMORY_ONLY = '{"persist": true}', "{}"
LONE_SURROGATE = "caf\udce9"


@pytest.mark.parametrize("status", list(TaskStatus))
async def test_a_row_comes_back_as_it_was_written(store: Store, status: TaskStatus) -> None:
    """Every column, in every status: nothing is dropped or changed by the store."""
    row = task(
        status=status.value,
        tags='{"user": "é\\u0000"}',
        progress='"\x00"',
        log="[]",
        scheduled_for=-5,
        worker_pid=2**62,
    )
    await put(store, row)
    assert await store.fetch("t1") == row
    assert await store.fetch_ids(["t1", "nobody"]) == {"t1": row}


async def test_what_does_not_exist_is_none(store: Store) -> None:
    """A question about an unknown id is not an error."""
    assert await store.fetch("nobody") is None
    assert await store.fetch_attempts("nobody") == []
    assert await store.fetch_ids([]) == {}


async def test_an_empty_batch_reports_nothing(store: Store) -> None:
    """No write, no loser."""
    assert await store.commit([]) == ({}, {})


async def test_a_state_change_that_wins_is_stored_with_its_attempts(store: Store) -> None:
    """State and attempt are one transaction."""
    running = task(status="RUNNING")
    await put(store, running)
    done = running._replace(status="COMPLETED", completed_at=130, result='{"ok": 1}', updated_at=130)
    assert await store.commit([TaskWrite(done, expected(running), (attempt(),))]) == ({}, {})
    assert await store.fetch("t1") == done
    assert await store.fetch_attempts("t1") == [attempt()]


async def test_a_lean_write_leaves_the_row_that_the_full_one_would(store: Store) -> None:
    """A first start and a success say only what they change; everything else stays as it was."""
    waiting = [task(each, claimed_by_worker_id=ME, tags="{}", good_until=500) for each in ("lean", "full")]
    await put(store, *waiting)
    for number, at, lean in (
        (0, 120, StartWrite("lean", "app:job", expected(waiting[0]), 120, 7, "host", "main")),
        (1, 130, SuccessWrite("lean", "app:job", Expected("RUNNING", ME, 1), 130, '{"ok": 1}', (attempt("lean"),))),
    ):
        before = await store.fetch("full")
        assert before is not None
        started = {"start_count": 1, "started_at": 120, "worker_pid": 7, "worker_hostname": "host"}
        changes = {"completed_at": 130, "result": '{"ok": 1}'} if number else started | {"worker_process_name": "main"}
        full = before._replace(status=lean.status, updated_at=at, **changes)
        write = TaskWrite(full, expected(before), (attempt("full"),) if number else ())
        assert await store.commit([lean, write]) == ({}, {})
        assert await store.fetch("full") == full
        assert await store.fetch("lean") == full._replace(task_id="lean")
        assert len(await store.fetch_attempts("lean")) == number


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
            StartWrite("a", "app:job", Expected("PENDING", ME, 0), 120, 7, "host", "main"),
            SuccessWrite("b", "app:job", Expected("RUNNING", ME, 1), 130, None, (attempt("b"),)),
            SuccessWrite("c", "app:job", Expected("RUNNING", ME, 1), 130, LONE_SURROGATE, (attempt("c"),)),
            StartWrite("nobody", "app:job", Expected("PENDING", ME, 0), 120, 7, "host", "main"),
        ]
    )
    assert report == ({"a": rows[0], "b": rows[1], "nobody": None}, {})
    assert [await store.fetch(each) for each in ("a", "b")] == rows[:2]
    assert await store.fetch_attempts("b") == []
    won = await store.fetch("c")
    assert won is not None
    assert (won.status, won.result) == ("COMPLETED", "caf\\udce9")


@pytest.mark.parametrize("actual", list(TaskStatus))
@pytest.mark.parametrize("wanted", ["PENDING", "CLAIMED", "RUNNING", "FAILED"])
async def test_a_wrong_source_state_loses_and_changes_nothing(store: Store, actual: TaskStatus, wanted: str) -> None:
    """The precondition is in the write itself: whoever read an older state is told the row as it stands."""
    if wanted == actual:
        return
    row = task(status=actual.value)
    await put(store, row)
    write = TaskWrite(task(status="CANCELLED"), expected(row)._replace(status=wanted), (attempt(),))
    assert await store.commit([write]) == ({"t1": row}, {})
    assert await store.fetch("t1") == row
    assert await store.fetch_attempts("t1") == []


@pytest.mark.parametrize("wrong", [{"owner": OTHER}, {"owner": None}, {"start_count": 0}, {"start_count": 2}], ids=str)
async def test_a_wrong_owner_or_generation_is_fenced(store: Store, wrong: dict[str, Any]) -> None:
    """A writer that lost its claim is refused, also when the task runs again for somebody else."""
    row = task(status="RUNNING")
    await put(store, row)
    write = TaskWrite(task(status="FAILED"), expected(row)._replace(**wrong), (attempt(),))
    assert await store.commit([write]) == ({"t1": row}, {})
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
    assert report == ({"t1": None}, {})
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
    assert await store.commit([TaskWrite(task(priority=1), None, (attempt(),))]) == ({"t1": row}, {})
    assert await store.fetch("t1") == row
    assert await store.fetch_attempts("t1") == []


async def test_an_ended_memory_only_task_replaces_its_predecessor(store: Store) -> None:
    """The next task of the same key has the same id; its record and attempts take the place of the older ones."""
    old = task(status="FAILED", task_options=MEMORY_ONLY, start_count=2)
    old_attempts = (attempt(number=1, outcome="FAILED"), attempt(number=2, outcome="FAILED"))
    await store.commit([TaskWrite(old, None, old_attempts)])
    new = task(status="COMPLETED", task_options=MEMORY_ONLY)
    assert await store.commit([TaskWrite(new, None, (attempt(started_at=500),))]) == ({}, {})
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
    assert (await store.commit([TaskWrite(new, None)])).lost == {"t1": old}
    assert await store.fetch("t1") == old


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
    assert await store.commit([TaskWrite(again, expected(row))]) == ({}, {})
    assert await store.fetch("t1") == again._replace(task_name="app:job", sent_at=100, created_at=100)


@pytest.mark.parametrize("target", ["RUNNING", "PENDING", "FAILED"])
async def test_a_cancel_request_of_somebody_else_is_not_wiped_out(store: Store, target: str) -> None:
    """The writer may not have seen it yet; its NULL says nothing."""
    row = task(status="RUNNING")
    await put(store, row)
    assert await store.request_cancel("t1", 777)
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
    assert report == ({}, {})
    assert (await store.fetch("t1") or row).failed_reason == "caf\\udce9"
    assert (await store.fetch_attempts("t1"))[0].error_message == "caf\\udce9"


def wants(**changes: Any) -> ClaimRequest:
    return ClaimRequest(ME, ["app:job", "app:other"], "default", 10, 1_000)._replace(**changes)


async def test_claim_takes_the_best_first(store: Store) -> None:
    """Best is (priority, enqueued_at, id), across functions."""
    rows = [
        task("d", priority=50, enqueued_at=100),
        task("c", priority=50, enqueued_at=100, task_name="app:other"),
        task("b", priority=50, enqueued_at=99, task_name="app:other"),
        task("a", priority=1, enqueued_at=500),
        task("z", priority=99, enqueued_at=1),
    ]
    await put(store, *rows)
    first = await store.claim(wants(limit=3))
    assert [row.task_id for row in first] == ["a", "b", "c"]
    assert [row.task_id for row in await store.claim(wants(limit=3))] == ["d", "z"]
    assert await store.claim(wants()) == []


async def test_a_claimed_row_names_its_owner(store: Store) -> None:
    """What claim returns is what stands in the store."""
    await put(store, task())
    (row,) = await store.claim(wants())
    assert row == task(status="CLAIMED", claimed_at=1_000, updated_at=1_000)
    assert await store.fetch("t1") == row


@pytest.mark.parametrize(
    "row",
    [
        task(enqueued_at=1_001),
        task(queue_name="mail"),
        task(task_name="app:unknown"),
        task(claimed_by_worker_id=OTHER),
        *[task(status=status.value) for status in TaskStatus if status != TaskStatus.PENDING],
    ],
    ids=lambda row: f"{row.status} {row.task_name} {row.queue_name} {row.enqueued_at}",
)
async def test_claim_leaves_what_is_not_for_it(store: Store, row: TaskRow) -> None:
    """Only free, due, PENDING rows of known functions in the asked queue."""
    await put(store, row)
    assert await store.claim(wants()) == []
    assert await store.fetch("t1") == row


async def test_claim_steps_over_delayed_rows_to_due_ones_of_lower_priority(store: Store) -> None:
    """A better row that is not due yet hides nothing."""
    await put(store, *[task(f"late{i}", priority=1, enqueued_at=2_000) for i in range(20)], task("due", priority=90))
    assert [row.task_id for row in await store.claim(wants(limit=1))] == ["due"]


async def test_claim_can_ask_for_better_rows_only(store: Store) -> None:
    """`better_than` is a priority number that must be undercut."""
    await put(store, *[task(f"p{priority}", priority=priority) for priority in (10, 20, 30)])
    assert [row.task_id for row in await store.claim(wants(better_than=20))] == ["p10"]


@pytest.mark.parametrize("nothing", [{"limit": 0}, {"task_names": []}], ids=str)
async def test_claim_of_nothing_is_nothing(store: Store, nothing: dict[str, Any]) -> None:
    """An empty wish is no error."""
    await put(store, task())
    assert await store.claim(wants(**nothing)) == []


async def test_what_was_due_stays_due_when_the_clock_goes_back(store: Store) -> None:
    """Rows that were due when they were last written are due now; a moment still to come is a promise, and waits on."""
    was_due = task("due", enqueued_at=5_000, updated_at=5_000)
    promised = task("promised", enqueued_at=9_000, updated_at=5_000)
    owned = task("owned", enqueued_at=5_000, updated_at=5_000, claimed_by_worker_id=ME)
    await put(store, was_due, promised, owned, task("old"))
    assert await store.make_due(1_000) == 1
    assert await store.make_due(1_000) == 0
    found = await store.fetch_ids(["due", "promised", "owned", "old"])
    assert found == {
        "due": task("due", enqueued_at=1_000, updated_at=1_000),
        "promised": promised,
        "owned": owned,
        "old": task("old"),
    }
    assert await store.release(ME, 2_000) == 1
    assert await store.fetch("owned") == task("owned", enqueued_at=2_000, updated_at=2_000)


async def test_a_release_keeps_a_moment_that_is_still_to_come(store: Store) -> None:
    """A retry that waits in memory is released with its delay."""
    await put(store, task("later", enqueued_at=9_000, claimed_by_worker_id=ME))
    await store.release(ME, 2_000)
    assert await store.fetch("later") == task("later", enqueued_at=9_000, updated_at=2_000)


async def test_a_pause_before_another_attempt_is_as_long_as_it_was_when_the_clock_goes_back(store: Store) -> None:
    """A retry or a snooze waits for some seconds, not for a moment: free, or freed when its owner stops or has died."""
    pause = {"start_count": 2, "enqueued_at": 9_500, "updated_at": 9_000}
    owned = [task(name, **pause, claimed_by_worker_id=name) for name in ("stops", "died")]
    before = task("before", start_count=2, enqueued_at=9_500, updated_at=900)
    await put(store, task("free", **pause), *owned, before)
    assert await store.make_due(1_000) == 1
    assert await store.make_due(1_000) == 0
    assert await store.release("stops", 1_000) == 1
    assert await store.free_waiting("died", 1_000, 9) == 1
    found = await store.fetch_ids(["free", "stops", "died", "before"])
    assert {name: row.enqueued_at for name, row in found.items()} == {
        "free": 1_500,
        "stops": 1_500,
        "died": 1_500,
        "before": 9_500,
    }


async def test_the_latest_stamp_tells_of_a_clock_that_went_back(store: Store) -> None:
    """The last task sent, or instance that wrote its row; nothing in an empty store."""
    assert await store.latest_stamp() == 0
    await put(store, task("a", sent_at=300), task("b", sent_at=200))
    assert await store.latest_stamp() == 300
    await store.save_instance(InstanceRow("i1", None, "host", 1, "main", None, 100, None, None, 400))
    assert await store.latest_stamp() == 400


async def test_the_best_that_waits_is_what_a_claim_would_take_first(store: Store) -> None:
    """By priority, then by age, among what is due; nothing is taken by it."""
    rows = [
        task("a", task_name="app:a", priority=2, enqueued_at=300),
        task("b", task_name="app:b", priority=2, enqueued_at=200),
        task("c", task_name="app:c", priority=1, enqueued_at=900),
        task("d", task_name="app:d", priority=1, status="CLAIMED"),
        task("e", task_name="app:e", priority=1, queue_name="mail"),
    ]
    await put(store, *rows)
    names = [row.task_name for row in rows]
    assert await store.best_waiting(names, "default", 899) == "app:b"
    assert await store.best_waiting(names, "default", 900) == "app:c"
    assert await store.best_waiting(["app:a", "app:none"], "default", 899) == "app:a"
    assert await store.best_waiting(["app:d"], "default", 899) is None
    assert await store.best_waiting([], "default", 899) is None
    assert list((await store.fetch_ids(["a", "b", "c", "d", "e"])).values()) == rows


async def test_release_frees_the_waiting_rows_of_one_owner(store: Store) -> None:
    """PENDING and CLAIMED rows of the owner; running ones and those of others stay."""
    mine = [task("m1", claimed_by_worker_id=ME), task("m2", status="CLAIMED")]
    others = [
        task("o1", status="CLAIMED", claimed_by_worker_id=OTHER),
        task("o2", status="RUNNING"),
        task("o3", status="FAILED", claimed_by_worker_id=ME),
    ]
    await put(store, *mine, *others)
    assert await store.release(ME, 900) == 2
    assert await store.fetch_ids(["m1", "m2"]) == {name: task(name, updated_at=900) for name in ("m1", "m2")}
    assert list((await store.fetch_ids([row.task_id for row in others])).values()) == others
    assert await store.release(ME, 901) == 0


async def test_what_waited_at_a_dead_owner_is_freed_a_page_at_a_time(store: Store) -> None:
    """All that may still run, with its delay and its history; nothing stays of the claim, nor of who made it."""
    claim = {"claimed_by_worker_id": ME, "claimed_at": 300, "claim_expires_at": 400, "started_at": 200}
    worker = {"worker_pid": 7, "worker_hostname": "host", "worker_process_name": "main", "failed_reason": "stopping"}
    kept = {"retry_count": 2, "next_retry_at": 9_000, "start_count": 3, "crash_count": 1, "good_until": 901}
    waits = [task("m1", **claim, **worker), task("m2", **kept, enqueued_at=9_000, claimed_by_worker_id=ME)]
    waits += [task("m3", **{**claim, "status": "CLAIMED"}), task("m4", updated_at=5_000, enqueued_at=4_000, **claim)]
    ran = task("o1", status="RUNNING", claimed_by_worker_id=ME)
    others = [task("o2", status="CLAIMED", claimed_by_worker_id=OTHER), task("o3", status="FAILED"), task("o4"), ran]
    await put(store, *waits, *others)
    counts = [await store.free_waiting(ME, 900, 3) for _ in range(3)]
    assert counts == [3, 1, 0]
    assert await store.fetch_ids([row.task_id for row in waits]) == {
        "m1": task("m1", updated_at=900),
        "m2": task("m2", **kept, enqueued_at=9_000, updated_at=900),
        "m3": task("m3", updated_at=900),
        "m4": task("m4", enqueued_at=900, updated_at=900),
    }
    assert list((await store.fetch_ids([row.task_id for row in others])).values()) == others


async def test_what_is_to_be_cancelled_or_has_expired_is_not_freed(store: Store) -> None:
    """It must not run, so it is left to those who judge row by row; and it is in the way of no other."""
    asked = [task(f"a{i}", status="CLAIMED", cancel_requested_at=500) for i in range(3)]
    expired = [task("e1", claimed_by_worker_id=ME, good_until=900), task("e2", claimed_by_worker_id=ME, good_until=8)]
    await put(store, *asked, *expired, task("z", claimed_by_worker_id=ME, good_until=901))
    assert await store.free_waiting(ME, 900, 2) == 1
    assert [row.task_id for row in await store.fetch_owned([ME], limit=9)] == ["a0", "a1", "a2", "e1", "e2"]


async def test_what_expires_in_the_store_is_free_and_past_its_time(store: Store) -> None:
    """The longest past first; what an instance holds, runs or has ended is not meant."""
    free = [task(f"t{i}", good_until=good_until) for i, good_until in enumerate((900, 901, 7, 0))]
    held = [task("o1", claimed_by_worker_id=ME, good_until=8), task("o2", status="CLAIMED", good_until=8)]
    await put(store, *free, *held, task("o3", status="RUNNING", good_until=8), task("o4"))
    await put(store, task("o5", status="EXPIRED", good_until=8))
    assert await store.fetch_expired(900, limit=9) == [free[3], free[2], free[0]]
    assert await store.fetch_expired(900, limit=2) == [free[3], free[2]]
    assert await store.fetch_expired(-1, limit=9) == []


async def test_free_queues_shows_what_waits_unowned(store: Store) -> None:
    """Per function and queue: how many, and the earliest due time of any priority."""
    await put(
        store,
        task("a", enqueued_at=300, priority=1),
        task("b", enqueued_at=200, priority=2),
        task("c", queue_name="mail", enqueued_at=400),
        task("d", task_name="app:other", enqueued_at=500),
        task("e", task_name="app:owned", claimed_by_worker_id=ME),
        task("f", task_name="app:done", status="COMPLETED"),
    )
    assert await store.free_queues() == [
        FreeQueue("app:job", "default", 2, 200),
        FreeQueue("app:job", "mail", 1, 400),
        FreeQueue("app:other", "default", 1, 500),
    ]


async def test_free_queues_of_an_empty_store_is_empty(store: Store) -> None:
    """Nothing waits."""
    assert await store.free_queues() == []


async def test_many_are_listed_newest_first_and_paged_by_place(store: Store) -> None:
    """Order is (sent_at, id) descending; `before` goes on after the last record seen, also within one instant, and
    whether that one is in the store or not.
    """
    rows = [task(f"t{i}", sent_at=100 + i // 2) for i in range(6)]
    await put(store, *rows)
    listed = [row.task_id for row in await store.fetch_many(TaskFilter())]
    assert listed == ["t5", "t4", "t3", "t2", "t1", "t0"]
    assert [row.task_id for row in await store.fetch_many(TaskFilter(limit=2, before=(101, "t3")))] == ["t2", "t1"]
    assert [row.task_id for row in await store.fetch_many(TaskFilter(limit=2, before=(101, "t25")))] == ["t2", "t1"]
    assert await store.fetch_many(TaskFilter(before=(100, "t0"))) == []


async def test_many_are_filtered(store: Store) -> None:
    """By status, function and queue, together."""
    await put(
        store, task("a", status="FAILED"), task("b", queue_name="mail"), task("c", task_name="app:x", queue_name="mail")
    )

    async def ids(**wanted: Any) -> list[str]:
        return [row.task_id for row in await store.fetch_many(TaskFilter(**wanted))]

    assert await ids(status=TaskStatus.FAILED) == ["a"]
    assert await ids(queue_name="mail") == ["c", "b"]
    assert await ids(queue_name="mail", task_name="app:x", status=TaskStatus.PENDING) == ["c"]


async def test_rows_of_owners_and_orphans_are_complementary(store: Store) -> None:
    """Every live row with an owner is in one of the two, ended and free rows in neither."""
    await put(
        store,
        task("a", claimed_by_worker_id=ME),
        task("b", status="CLAIMED", claimed_by_worker_id="dead-1"),
        task("c", status="RUNNING", claimed_by_worker_id="dead-2"),
        task("d", status="RUNNING", claimed_by_worker_id=OTHER),
        task("e", status="FAILED", claimed_by_worker_id="dead-1"),
        task("f"),
    )
    living = {ME, OTHER}
    assert [row.task_id for row in await store.fetch_owned(living, limit=9)] == ["a", "d"]
    assert [row.task_id for row in await store.fetch_orphans(living, limit=9)] == ["b", "c"]
    assert [row.task_id for row in await store.fetch_orphans([], limit=9)] == ["a", "b", "c", "d"]
    assert await store.fetch_owned([], limit=9) == []


async def test_pages_go_on_after_an_id(store: Store) -> None:
    """Pages by id cannot starve, whatever happens to rows already seen."""
    await put(store, *[task(f"t{i}", claimed_by_worker_id=ME if i % 2 else OTHER) for i in range(6)])
    assert [row.task_id for row in await store.fetch_owned([ME, OTHER], limit=2, after="t1")] == ["t2", "t3"]
    assert [row.task_id for row in await store.fetch_orphans([], limit=2, after="t3")] == ["t4", "t5"]


async def test_a_cancel_request_is_recorded_once(store: Store) -> None:
    """The first instant counts; asking again is still a yes."""
    await put(store, task(status="RUNNING"))
    assert await store.request_cancel("t1", 500)
    assert await store.request_cancel("t1", 600)
    assert await store.fetch("t1") == task(status="RUNNING", cancel_requested_at=500, updated_at=500)


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_an_ended_task_cannot_be_asked_to_cancel(store: Store, status: TaskStatus) -> None:
    """False, and the record stays as it is; so for an id that does not exist."""
    row = task(status=status.value)
    await put(store, row)
    assert not await store.request_cancel("t1", 500)
    assert not await store.request_cancel("nobody", 500)
    assert await store.fetch("t1") == row


async def test_cancel_requests_are_found_by_owner(store: Store) -> None:
    """Only live rows of that owner that were asked."""
    await put(
        store,
        task("a", status="RUNNING", cancel_requested_at=5),
        task("b", claimed_by_worker_id=ME, cancel_requested_at=5),
        task("c", status="RUNNING"),
        task("d", status="RUNNING", claimed_by_worker_id=OTHER, cancel_requested_at=5),
        task("e", status="CANCELLED", claimed_by_worker_id=ME, cancel_requested_at=5),
    )
    assert await store.fetch_cancel_requests(ME) == ["a", "b"]


async def test_counts_name_every_status(store: Store) -> None:
    """Zeros included."""
    await put(store, task("a"), task("b"), task("c", status="FAILED"))
    zeros = dict.fromkeys(TaskStatus, 0)
    assert await store.counts() == zeros | {TaskStatus.PENDING: 2, TaskStatus.FAILED: 1}


async def test_purge_deletes_ended_rows_only(store: Store) -> None:
    """Live rows stay at any age; attempts go with their task."""
    await store.commit(
        [
            TaskWrite(task(f"t{i}", status=status.value), None, (attempt(f"t{i}"),))
            for i, status in enumerate(TaskStatus)
        ]
    )
    assert await store.purge(None, None, 100) == len(TERMINAL)
    left = await store.fetch_many(TaskFilter())
    assert {row.status for row in left} == {"PENDING", "CLAIMED", "RUNNING"}
    gone = [f"t{i}" for i, status in enumerate(TaskStatus) if status in TERMINAL]
    assert [await store.fetch_attempts(task_id) for task_id in gone] == [[]] * len(gone)


async def test_purge_is_bounded_by_age_status_and_batch(store: Store) -> None:
    """Strictly older than the given instant, of the given status, at most `limit` at once: a slow disk gets fewer."""
    await put(
        store,
        task("old", status="COMPLETED", completed_at=500),
        task("edge", status="COMPLETED", completed_at=600),
        task("failed", status="FAILED", failed_at=500),
        *[task(f"x{i}", status="CANCELLED", updated_at=10, sent_at=10) for i in range(5)],
    )
    assert await store.purge(TaskStatus.COMPLETED, 600, 100) == 1
    gone = await store.purge(TaskStatus.CANCELLED, 600, 3)
    assert 1 <= gone <= 3
    assert await store.purge(TaskStatus.PENDING, None, 100) == 0
    while page := await store.purge(None, 600, 100):
        gone += page
    assert gone == 6
    assert [row.task_id for row in await store.fetch_many(TaskFilter())] == ["edge"]


async def test_instances_are_saved_replaced_and_forgotten(store: Store) -> None:
    """Oldest start first."""
    young = InstanceRow("b", None, "host", 1, "main", None, 200, None, None, 200)
    old = InstanceRow("a", "web", "host", 2, "main", "boot", 100, None, "[]", 100)
    await store.save_instance(young)
    await store.save_instance(old)
    assert await store.instances() == [old, young]
    stopped = young._replace(stopped_at=300, updated_at=300)
    await store.save_instance(stopped)
    assert await store.instances() == [old, stopped]
    await store.forget_instances(["a", "nobody"])
    assert await store.instances() == [stopped]


async def test_queues_pause_and_resume(store: Store) -> None:
    """Both are idempotent."""
    assert await store.paused_queues() == frozenset()
    for _ in range(2):
        await store.set_paused("mail", True, 1)
    assert await store.paused_queues() == {"mail"}
    for _ in range(2):
        await store.set_paused("mail", False, 2)
    assert await store.paused_queues() == frozenset()


async def test_own_writes_do_not_change_the_data_version(store: Store) -> None:
    """Only somebody else's writes are news."""
    before = await store.data_version()
    await put(store, task())
    await store.claim(wants())
    assert await store.data_version() == before
    assert await store.is_same_file()


async def test_what_was_stored_is_there_after_closing_and_opening(store: Store) -> None:
    """Closing twice is fine, too."""
    await put(store, task())
    await store.close()
    await store.close()
    await store.open()
    assert await store.fetch("t1") == task()


# A limit for all instances.


def _places(owner: str, limit: int, **changes: Any) -> ClaimRequest:
    return ClaimRequest(owner, ["app:job"], "gpu", 100, 200, file_limit=limit, **changes)


async def test_a_claim_counts_what_every_owner_holds_of_the_queue(store: Store) -> None:
    """The count and the claim are one: no two instances together take more than the limit."""
    await put(store, *(task(f"t{number}", queue_name="gpu") for number in range(6)))
    await put(store, task("elsewhere", status="RUNNING"), task("waits", queue_name="gpu", claimed_by_worker_id=ME))
    first = await store.claim(_places(ME, 3)._replace(limit=2))
    assert [row.task_id for row in first] == ["t0", "t1"]
    running = first[0]._replace(status="RUNNING", started_at=210, start_count=1)
    assert await store.commit([TaskWrite(running, expected(first[0]))]) == ({}, {})
    second = await store.claim(_places(OTHER, 3))
    assert [row.task_id for row in second] == ["t2"]
    assert await store.claim(_places(ME, 3)) == []
    assert await store.claim(_places(OTHER, 2)) == [], "a lower limit than what runs takes nothing"
    done = running._replace(status="COMPLETED", completed_at=220)
    assert await store.commit([TaskWrite(done, expected(running))]) == ({}, {})
    assert [row.task_id for row in await store.claim(_places(OTHER, 3))] == ["t3"]


async def test_a_task_that_waits_lends_its_place_to_its_own_instance(store: Store) -> None:
    """To nobody else, not twice, and only as long as its row says that it runs."""
    await put(store, task("parent", queue_name="gpu", status="RUNNING"), *(task(n, queue_name="gpu") for n in "abcd"))
    lent: dict[str, Any] = {"lenders": ["parent"]}
    assert await store.claim(_places(OTHER, 1)) == []
    assert await store.claim(_places(OTHER, 1, **lent)) == []
    assert await store.claim(_places(ME, 1, **lent, borrowed=1)) == []
    assert [row.task_id for row in await store.claim(_places(ME, 1, **lent))] == ["a"]
    assert [row.task_id for row in await store.claim(_places(ME, 3, **lent))] == ["b", "c"]
    parent = await store.fetch("parent")
    assert parent is not None
    done = parent._replace(status="COMPLETED", completed_at=220)
    assert await store.commit([TaskWrite(done, expected(parent))]) == ({}, {})
    assert await store.claim(_places(ME, 3, **lent)) == []
