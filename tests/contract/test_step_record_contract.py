"""What every store does with the records of steps: they go with a write of their task that wins, and with no other."""

import pytest

from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.model.steps import StepRow
from taskmanager.store.protocol import CommitReport, Store, TaskFilter
from tests.contract.rows import OTHER, attempt, expected, put, task

pytestmark = pytest.mark.anyio

STEP = StepRow("t1", "step", 1, "", "charge", "d1", 120, 125, 1, '{"ok": 7}', None, None, 0)
KEYED = STEP._replace(number=0, key="mail:ann", name="mail", digest=None)
PATCH = STEP._replace(kind="patch", number=0, key="v2", name="v2", digest=None, result="true", is_final=1)


def reported(row: TaskRow, *steps: StepRow, **changes: object) -> TaskWrite:
    """The write of a running task that has steps to record."""
    return TaskWrite(row._replace(updated_at=125), expected(row), (), True, steps)._replace(**changes)  # type: ignore[arg-type]


async def running(store: Store, task_id: str = "t1") -> TaskRow:
    row = task(task_id, status="RUNNING", args="[1]")
    await put(store, row)
    return row


async def test_steps_are_written_with_their_task(store: Store) -> None:
    """In the order of their first records; those of others are not seen."""
    row, other = await running(store), await running(store, "t2")
    writes = [reported(row, STEP, KEYED, PATCH), reported(other, STEP._replace(task_id="t2"))]
    assert await store.commit(writes) == CommitReport({}, {})
    assert await store.fetch_steps("t1") == [STEP, KEYED, PATCH]
    assert await store.fetch_steps("t2") == [STEP._replace(task_id="t2")]
    assert await store.fetch_steps("nobody") == []
    assert await store.fetch("t1") == row._replace(updated_at=125)


async def test_step_that_is_recorded_again_replaces_its_record(store: Store) -> None:
    """After another try, and when the code goes on after its error. A commit that is repeated changes nothing."""
    row = await running(store)
    tried = STEP._replace(ended_at=None, result=None, error_code="NO", error_message="no")
    failed = tried._replace(ended_at=130, attempts=2, result='{"err": {}}')
    for record in (tried, failed, failed, failed._replace(is_final=1)):
        assert await store.commit([reported(row, record, KEYED)]) == CommitReport({}, {})
        assert await store.fetch_steps("t1") == [record, KEYED]


async def test_report_changes_no_arguments_of_the_row(store: Store) -> None:
    """A step costs its own bytes, and not those of the task."""
    row = await running(store)
    sent = row._replace(args="?", kwargs="?", retry_count=0, crash_count=0, progress='{"done":1}')
    assert await store.commit([reported(sent, STEP)]) == CommitReport({}, {})
    found = await store.fetch("t1")
    assert found == row._replace(updated_at=125, progress='{"done":1}')


@pytest.mark.parametrize("wrong", [{"status": "PENDING"}, {"owner": OTHER}, {"start_count": 2}])
async def test_steps_of_a_write_that_loses_are_not_written(store: Store, wrong: dict[str, object]) -> None:
    """The task is another's: what was done here is not recorded. The others of the batch are."""
    row, other = await running(store), await running(store, "t2")
    lost = reported(row, STEP, expected=expected(row)._replace(**wrong))  # type: ignore[arg-type]
    report = await store.commit([lost, reported(other, STEP._replace(task_id="t2"))])
    assert report == CommitReport({"t1": row}, {})
    assert await store.fetch_steps("t1") == []
    assert len(await store.fetch_steps("t2")) == 1


async def test_step_that_cannot_be_stored_spoils_no_other(store: Store) -> None:
    """The write with it is rejected as a whole."""
    row, other = await running(store), await running(store, "t2")
    bad, good = STEP._replace(attempts=0), KEYED._replace(task_id="t2")
    report = await store.commit([reported(row, bad), reported(other, good)])
    assert (report.lost, list(report.rejected)) == ({}, ["t1"])
    assert await store.fetch_steps("t1") == []
    assert await store.fetch("t1") == row
    assert len(await store.fetch_steps("t2")) == 1


async def test_retry_from_start_forgets_the_steps_of_its_task(store: Store) -> None:
    """A plain retry keeps them, one that loses keeps them too, and another task has its own."""
    row, other = await running(store), await running(store, "t2")
    await store.commit([reported(row, STEP, KEYED, PATCH), reported(other, STEP._replace(task_id="t2"))])
    end = row._replace(status="FAILED", failed_at=130, claimed_by_worker_id=None, error_code="NO")
    failed = TaskWrite(end, expected(row), (attempt(outcome="FAILED", error_code="NO"),))
    assert await store.commit([failed]) == CommitReport({}, {})
    again = task("t1", start_count=1)
    await store.commit([TaskWrite(again, expected(row), forgets_steps=True)])
    assert len(await store.fetch_steps("t1")) == 3
    anew = TaskWrite(again, expected(end), forgets_steps=True, steps=(KEYED,))
    assert await store.commit([anew]) == CommitReport({}, {})
    assert await store.fetch_steps("t1") == [KEYED]
    assert len(await store.fetch_steps("t2")) == 1


@pytest.mark.parametrize("count", [2, 9, 40])
async def test_steps_of_many_tasks_are_written_and_forgotten_at_once(store: Store, count: int) -> None:
    """In one statement, or in several."""
    rows = [await running(store, f"t{number}") for number in range(count)]
    mine = [tuple(each._replace(task_id=row.task_id) for each in (STEP, KEYED)) for row in rows]
    assert await store.commit([reported(row, *steps) for row, steps in zip(rows, mine, strict=True)]) == CommitReport(
        {}, {}
    )
    for row, steps in zip(rows, mine, strict=True):
        assert await store.fetch_steps(row.task_id) == list(steps)
    kept, *gone = rows
    assert await store.commit([reported(row, forgets_steps=True) for row in gone]) == CommitReport({}, {})
    assert [len(await store.fetch_steps(row.task_id)) for row in rows] == [2, *[0] * len(gone)]
    assert kept.task_id == "t0"


async def test_steps_go_with_the_record_of_their_task(store: Store) -> None:
    """A purge leaves nothing of them."""
    row = await running(store)
    end = row._replace(status="COMPLETED", completed_at=130, updated_at=130, result='{"ok": 1}')
    assert await store.commit([TaskWrite(end, expected(row), (attempt(),), steps=(STEP, KEYED))]) == CommitReport(
        {}, {}
    )
    assert await store.fetch_steps("t1") == [STEP, KEYED]
    while await store.purge(TaskFilter(), None, 100):
        pass
    await put(store, task())
    assert await store.fetch_steps("t1") == []


async def test_text_that_is_no_utf8_is_stored_in_escapes(store: Store) -> None:
    """A message may hold the name of a file."""
    row = await running(store)
    assert await store.commit(
        [reported(row, STEP._replace(error_code="NO", error_message="caf\udce9"))]
    ) == CommitReport({}, {})
    (found,) = await store.fetch_steps("t1")
    assert found.error_message == "caf\\udce9"


async def test_steps_are_forgotten_before_new_ones_are_written_beside_a_loser(store: Store) -> None:
    """A batch that is done again with care does the same things in the same order."""
    first, second, third = [await running(store, task_id) for task_id in ("t1", "t2", "t3")]
    anew = KEYED._replace(task_id="t2")
    lost = TaskWrite(third, expected(third)._replace(start_count=9))
    report = await store.commit([reported(first, STEP), reported(second, anew, forgets_steps=True), lost])
    assert list(report.lost) == ["t3"]
    assert (await store.fetch_steps("t1"), await store.fetch_steps("t2")) == ([STEP], [anew])
