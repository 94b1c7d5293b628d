"""What every store enqueues in the commit of a failure: one task for each, whoever writes it and however often."""

from typing import Any

import pytest

from taskmanager import FailedTask, TaskError
from taskmanager.codec.arguments import ArgumentCodec
from taskmanager.codec.results import encode_error_text
from taskmanager.codec.values import dumps
from taskmanager.model.ids import failure_task_id
from taskmanager.model.record import NewWrite, PlainCall, TaskRow, TaskWrite
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.store.protocol import CommitReport, Store, TaskFilter
from tests.contract.rows import ME, OTHER, attempt, expected, put, task, wants

pytestmark = pytest.mark.anyio

ALERT = {"task_name": "app:alert", "queue_name": "alerts", "priority": 3, "options": {"persist": True}}
TWICE = 2


def declared(**changes: Any) -> str:
    """The options of a task whose failure enqueues the alert."""
    return dumps({"persist": True, "on_failure": ALERT | changes})


def running(task_id: str = "t1", **changes: Any) -> TaskRow:
    return task(task_id, **{"status": "RUNNING", "task_options": declared(), **changes})


def failed(row: TaskRow, message: str = "no route") -> TaskWrite:
    """The write that ends it, as the engine makes it."""
    error = TaskError("OFFLINE", message)
    end = row._replace(
        status="FAILED",
        failed_at=130,
        updated_at=130,
        error_code=error.error_code,
        failed_reason=f"Traceback\n{message}",
        result=encode_error_text(error),
    )
    last = attempt(row.task_id, row.start_count, outcome="FAILED", error_code="OFFLINE", error_message=message)
    return TaskWrite(end, expected(row), (last,))


async def enqueued(store: Store, row: TaskRow) -> TaskRow | None:
    return await store.fetch(failure_task_id(row.task_id, row.sent_at, row.start_count))


async def count(store: Store) -> int:
    return sum((await store.counts()).values())


async def test_failure_enqueues_the_task_that_its_row_names(store: Store) -> None:
    """It is free, and holds what its own enqueue would have written. Its options carry no `on_failure`."""
    row = running(tags='{"user":"7"}')
    await put(store, row)
    assert await store.commit([failed(row)]) == CommitReport({}, {})
    found = await enqueued(store, row)
    assert found is not None
    call = PlainCall("app:alert", "alerts", 3, 0, '{"persist":true}', None, None, None, None)
    assert found == NewWrite(found.task_id, call, found.args, "{}", None, 130, None).in_full().row


async def test_argument_is_stored_as_a_call_would_store_it(store: Store) -> None:
    """The error comes without its data, which may be a secret of the application."""
    row = running(tags='{"user":"7"}', start_count=TWICE)
    await put(store, row)
    await store.commit([failed(row, "café")])
    found = await enqueued(store, row)

    def alert(failed: FailedTask) -> None: ...

    codec = ArgumentCodec(alert, task_name="app:alert")
    sent = FailedTask("t1", "app:job", TaskError("OFFLINE", "café"), TWICE, {"user": "7"})
    assert found is not None
    assert (found.args, found.kwargs) == codec.encode((sent,), {})
    assert codec.decode(found.args or "", found.kwargs or "") == ((sent,), {})


async def test_options_of_the_following_task_are_those_of_its_row(store: Store) -> None:
    """A delay counts from the failure, and is a span of time that a step of the clock does not change."""
    then = {"max_retries": 5, "delay_s": 60.0, "tags": {"kind": "alert"}, "options": {"persist": True, "timeout_s": 9}}
    row = running(task_options=declared(**then))
    await put(store, row)
    await store.commit([failed(row)])
    found = await enqueued(store, row)
    assert found is not None
    assert (found.sent_at, found.enqueued_at, found.max_retries) == (130, 130 + 60_000_000, 5)
    assert (found.tags, found.task_options) == ('{"kind":"alert"}', '{"persist":true,"timeout_s":9,"is_delay":true}')


async def test_failure_that_is_written_again_enqueues_nothing(store: Store) -> None:
    """The answer to its commit was lost, or two instances judge the same death: one of them wins."""
    row, other = running(), running("t2")
    await put(store, row, other)
    await store.commit([failed(row)])
    found = await enqueued(store, row)
    report = await store.commit([failed(row), failed(other)])
    assert ([*report.lost], [*report.rejected]) == (["t1"], [])
    assert await enqueued(store, row) == found
    assert await count(store) == TWICE * 2


async def test_loser_of_a_failure_enqueues_nothing(store: Store) -> None:
    """The row is another's by now, and has not failed."""
    row = running()
    await put(store, row._replace(claimed_by_worker_id=OTHER))
    assert (await store.commit([failed(row)])).lost.keys() == {"t1"}
    assert await count(store) == 1


async def test_each_final_failure_enqueues_one_of_its_own(store: Store) -> None:
    """A retry that fails again has another start count; what was enqueued may have ended meanwhile, and stays."""
    row = running()
    await put(store, row)
    await store.commit([failed(row)])
    found = await store.fetch("t1")
    assert found is not None
    again = row._replace(start_count=TWICE)
    await store.commit([TaskWrite(again, expected(found)), failed(again)])
    assert await count(store) == TWICE + 1


async def test_task_sent_anew_under_its_key_enqueues_one_of_its_own(store: Store) -> None:
    """The record of the first was purged, what it had enqueued was not: the id and the start count are the same."""
    row = running()
    await put(store, row)
    await store.commit([failed(row)])
    assert await store.purge(TaskFilter(TaskStatus.FAILED), None, 10) == 1
    anew = row._replace(sent_at=row.sent_at + 1)
    await put(store, anew)
    await store.commit([failed(anew)])
    assert await enqueued(store, row) is not None
    assert await enqueued(store, anew) is not None


@pytest.mark.parametrize("status", [each for each in TaskStatus if each != "FAILED"])
async def test_no_other_end_enqueues_anything(store: Store, status: TaskStatus) -> None:
    """Nor does a failed attempt that is tried again."""
    row = running()
    await put(store, row)
    end = failed(row)
    changes: dict[str, Any] = {"status": status.value}
    if status not in TERMINAL:
        changes |= {"error_code": None}
    if status is TaskStatus.COMPLETED:
        changes |= {"error_code": None, "completed_at": 130, "failed_at": None}
    assert await store.commit([end._replace(row=end.row._replace(**changes))]) == CommitReport({}, {})
    assert await count(store) == 1


async def test_first_write_that_is_a_failure_enqueues_too(store: Store) -> None:
    """It ran while the store took no writes."""
    row = running()
    assert await store.commit([failed(row)._replace(expected=None)]) == CommitReport({}, {})
    assert await enqueued(store, row) is not None


async def test_row_that_cannot_be_read_enqueues_where_a_claim_ends_it(store: Store) -> None:
    """Nobody would run it, and its options can be read."""
    row = task("t1", task_options=declared(), tags="[]")
    await put(store, row)
    (ended,) = await store.claim(wants())
    assert ended.status == "FAILED"
    found = await enqueued(store, ended)
    assert found is not None
    assert "the record cannot be read" in (found.args or "")


@pytest.mark.parametrize(
    "options",
    [
        dumps({"persist": True, "on_failure": 7}),
        dumps({"persist": True, "on_failure": {}}),
        declared(priority=101),
        declared(priority="1"),
        declared(task_name=None),
        declared(max_retries=-1),
        declared(delay_s=1e300),
        declared(delay_s=-1),
        declared(tags={"a": 1}),
        declared(options=[]),
    ],
)
async def test_options_that_somebody_has_edited_let_the_task_fail(store: Store, options: str) -> None:
    """What cannot be enqueued must not keep the failure from being written."""
    row = running(task_options=options)
    await put(store, row)
    assert await store.commit([failed(row)]) == CommitReport({}, {})
    assert await count(store) == 1


async def test_text_that_is_no_utf8_is_shown_as_far_as_it_can_be(store: Store) -> None:
    row = running()
    await put(store, row)
    assert await store.commit([failed(row, "caf\udce9")]) == CommitReport({}, {})
    found = await enqueued(store, row)
    assert found is not None
    assert "caf\\\\udce9" in (found.args or "")


async def test_row_that_is_refused_beside_a_failure_takes_nothing_from_it(store: Store) -> None:
    """The batch is written with care then, in halves."""
    rows = [running(f"t{number}") for number in range(9)]
    await put(store, *rows)
    bad = task("bad", status="COMPLETED", completed_at=None, claimed_by_worker_id=ME)
    report = await store.commit([TaskWrite(bad, None), *map(failed, rows)])
    assert ([*report.lost], [*report.rejected]) == ([], ["bad"])
    assert await count(store) == len(rows) * 2
