"""What every store does with events: none is lost on its way to a task that goes to sleep, and none counts twice.

Going to sleep and sending are one transaction each. So there are two orders, and both must wake the task.
"""

from typing import Any

import pytest

from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.model.steps import EventRow, SendReport, StepRow, StoredEvent
from taskmanager.rules.steps import MAX_UNREAD
from taskmanager.store.protocol import CommitReport, Store, TaskFilter
from tests.contract.rows import expected, put, task, wants

pytestmark = pytest.mark.anyio

NOW, DUE = 125, 5_000
WAIT = StepRow("t1", "step", 1, "", "wait:go", None, 120, None, 1, None, None, None, 0, "go", DUE)
SLEEP = WAIT._replace(name="sleep", waits_for="")
TIMEOUT = WAIT._replace(ended_at=NOW, error_code="TASK_TIMEOUT", error_message="late", is_final=1)
STORED = SendReport("stored", "default", 50)
FIRST = NOW
"""The id of the first event."""


def event(name: str = "go", value: str = "1", task_id: str = "t1", **changes: Any) -> EventRow:
    return EventRow(task_id, name, f'{{"ok": {value}}}', None, NOW)._replace(**changes)


async def running(store: Store, task_id: str = "t1", **changes: Any) -> TaskRow:
    row = task(task_id, status="RUNNING", **changes)
    await put(store, row)
    return row


async def report(store: Store, row: TaskRow, *steps: StepRow) -> None:
    """The running task records these."""
    assert await store.commit(
        [TaskWrite(row._replace(updated_at=NOW), expected(row), (), True, steps)]
    ) == CommitReport({}, {})


async def fall_asleep(store: Store, row: TaskRow, *steps: StepRow, lost: bool = False) -> TaskRow:
    """The running task goes to sleep with these records, the last of which says when it wakes."""
    asleep = row._replace(
        status="PENDING", claimed_by_worker_id=None, started_at=None, enqueued_at=steps[-1].due_at or DUE,
        updated_at=NOW, snooze_count=1,
    )  # fmt: skip
    steps = tuple(each._replace(wakes_at=each.due_at or DUE, task_id=row.task_id) for each in steps)
    found = await store.commit([TaskWrite(asleep, expected(row), (), True, steps)])
    assert list(found.lost) == ([row.task_id] if lost else [])
    return asleep


async def due_at(store: Store, task_id: str = "t1") -> int:
    row = await store.fetch(task_id)
    assert row is not None
    return row.enqueued_at


async def is_awake(store: Store) -> bool:
    """Whether a claim takes it now, long before its time."""
    return [row.task_id for row in await store.claim(wants(now=NOW))] == ["t1"]


async def test_record_of_a_lost_database_receives_no_event_of_this_one(store: Store) -> None:
    """It comes from memory, and the event that it has received was lost. Ids begin anew: the same one is another event
    here, which would never be received.
    """
    row = await running(store)
    assert await store.send_event(event("on")) == STORED
    here = await store.fetch_event("t1", "on", ("step", 2, ""))
    assert here is not None
    await report(store, row, WAIT._replace(ended_at=NOW, result='{"ok": 1}', is_final=1, event_id=here.event_id))
    assert await store.fetch_event("t1", "on", ("step", 2, "")) == here
    await fall_asleep(store, row, WAIT._replace(number=2, name="wait:on", waits_for="on"))
    assert await is_awake(store)


@pytest.mark.parametrize("later_us", [0, 1, -10])
async def test_event_has_an_id_that_no_older_one_has_had(store: Store, later_us: int) -> None:
    """Nor any of a database whose place this one has taken: its ids end at the time at which it was lost. Ids have the
    order in which events were stored, whatever the clock says.
    """
    await running(store)
    await store.send_event(event(value="1"))
    await store.send_event(event(value="2", sent_at=NOW + later_us))
    assert await store.fetch_event("t1", "go", WAIT.identity, NOW - 1) == StoredEvent(NOW, '{"ok": 1}', False)
    assert await store.fetch_event("t1", "go", WAIT.identity, NOW) == StoredEvent(NOW + 1, '{"ok": 2}', False)


@pytest.mark.parametrize("order", ["send first", "sleep first"])
async def test_event_wakes_its_task_in_either_order(store: Store, order: str) -> None:
    """Of two transactions, the later one sees what the other has left."""
    row = await running(store)
    if order == "send first":
        assert await store.send_event(event()) == STORED
    await fall_asleep(store, row, WAIT)
    if order == "sleep first":
        assert not await is_awake(store)
        assert await store.send_event(event()) == STORED
    assert await is_awake(store)


@pytest.mark.parametrize("order", ["cancel first", "sleep first"])
async def test_request_to_cancel_wakes_a_task_in_either_order(store: Store, order: str) -> None:
    """Who has it then ends it. Nobody else would before its time."""
    row = await running(store)
    if order == "cancel first":
        assert await store.request_cancel(["t1"], NOW)
    await fall_asleep(store, row, SLEEP)
    if order == "sleep first":
        assert not await is_awake(store)
        assert await store.request_cancel(["t1"], NOW)
    (found,) = await store.claim(wants(now=NOW))
    assert (found.task_id, found.cancel_requested_at) == ("t1", NOW)


@pytest.mark.parametrize("order", ["send first", "sleep first"])
async def test_event_wakes_a_task_that_was_sent_by_a_clock_ahead(store: Store, order: str) -> None:
    """The clock was set back since. What is woken is due now, and not when the task was sent."""
    row = await running(store, sent_at=DUE)
    if order == "send first":
        await store.send_event(event())
    await fall_asleep(store, row, WAIT)
    if order == "sleep first":
        await store.send_event(event())
    assert await is_awake(store)


async def test_other_events_let_a_task_sleep(store: Store) -> None:
    """Those of another name, of another task, and what was received before."""
    row = await running(store)
    other = await running(store, "t2")
    for sent in (event(), event("stay"), event(task_id="t2")):
        assert await store.send_event(sent) == STORED
    received = WAIT._replace(number=7, ended_at=NOW, result='{"ok": 1}', event_id=FIRST)
    await report(store, row, received)
    await fall_asleep(store, row, WAIT)
    await fall_asleep(store, other, SLEEP)
    assert [await due_at(store), await due_at(store, "t2")] == [DUE, DUE]
    assert await store.send_event(event("stay")) == STORED
    assert await due_at(store) == DUE


async def test_event_of_another_wait_lets_a_task_sleep(store: Store) -> None:
    """It slept for that before, was woken, and has come to a sleep that stands in front: else it would never sleep."""
    row = await running(store)
    await fall_asleep(store, row, WAIT)
    await store.send_event(event())
    (again,) = await store.claim(wants(now=NOW))
    awake = again._replace(status="RUNNING", started_at=NOW, start_count=2)
    assert await store.commit([TaskWrite(awake, expected(again))]) == CommitReport({}, {})
    await fall_asleep(store, awake, SLEEP._replace(number=0, key="in front"))
    assert not await is_awake(store)


async def test_loser_does_not_fall_asleep(store: Store) -> None:
    """Its record is not written, and its task is not woken by what it waited for."""
    row = await running(store)
    await store.send_event(event())
    await fall_asleep(store, row._replace(start_count=9), WAIT, lost=True)
    assert (await store.fetch("t1"), await store.fetch_steps("t1")) == (row, [])


async def test_sleeper_goes_ahead_when_it_is_due(store: Store) -> None:
    """By the time at which it was sent, so that what has begun goes on before what has not."""
    row = await running(store, sent_at=50)
    await fall_asleep(store, row, SLEEP)
    await put(store, task("t2", sent_at=60, enqueued_at=60))
    assert [each.task_id for each in await store.claim(wants(now=DUE - 1, limit=1))] == ["t2"]
    await put(store, task("t3", sent_at=60, enqueued_at=60))
    assert [each.task_id for each in await store.claim(wants(now=DUE, limit=1))] == ["t1"]
    assert await due_at(store) == 50
    (step,) = await store.fetch_steps("t1")
    assert (step.due_at, step.wakes_at) == (DUE, None)


async def test_claim_of_what_has_slept_takes_nothing_else(store: Store) -> None:
    """Of the best rows only: it does not search behind them."""
    await put(store, task("t3", sent_at=60, enqueued_at=60))
    await fall_asleep(store, await running(store, sent_at=50), SLEEP)
    assert await store.claim(wants(now=DUE, better_than=1)) == []  # as in a full memory, which wakes it
    assert [each.task_id for each in await store.claim(wants(now=DUE, has_slept=True, limit=1))] == ["t1"]
    assert await store.claim(wants(now=DUE, has_slept=True)) == []


async def test_clock_that_is_set_back_moves_no_sleep(store: Store) -> None:
    """Its time is an instant of the wall clock. What was woken before stays awake."""
    asleep, awake = await running(store), await running(store, "t2")
    await fall_asleep(store, asleep, SLEEP)
    await store.send_event(event(task_id="t2"))
    await fall_asleep(store, awake, WAIT)
    assert await store.make_due(50) == 1
    assert [await due_at(store), await due_at(store, "t2")] == [DUE, 50]


async def test_end_of_a_sleep_wakes_nobody_who_runs_or_has_ended(store: Store) -> None:
    """Their rows are left alone."""
    row = await running(store)
    ended = await running(store, "t2")
    await report(store, row, SLEEP._replace(wakes_at=DUE))
    end = ended._replace(status="CANCELLED", failed_at=NOW, claimed_by_worker_id=None, error_code="TASK_CANCELLED")
    asleep = SLEEP._replace(task_id="t2", wakes_at=DUE)
    assert await store.commit([TaskWrite(end, expected(ended), (), False, (asleep,))]) == CommitReport({}, {})
    assert await store.claim(wants(now=DUE)) == []
    assert [await due_at(store), await due_at(store, "t2")] == [100, 100]


async def test_events_are_received_in_their_order(store: Store) -> None:
    """An event is received when a record names it, and by one record only."""
    row = await running(store)
    for value in "123":
        await store.send_event(event(value=value))
    assert await store.fetch_event("t1", "go", WAIT.identity) == StoredEvent(FIRST, '{"ok": 1}', False)
    assert await store.fetch_event("t1", "go", WAIT.identity, FIRST) == StoredEvent(FIRST + 1, '{"ok": 2}', False)
    await report(store, row, WAIT._replace(ended_at=NOW, result='{"ok": 1}', event_id=FIRST))
    assert await store.fetch_event("t1", "go", WAIT.identity) == StoredEvent(FIRST, '{"ok": 1}', True)
    later = WAIT._replace(number=2)
    assert await store.fetch_event("t1", "go", later.identity) == StoredEvent(FIRST + 1, '{"ok": 2}', False)
    assert await store.fetch_event("t1", "nothing", later.identity) is None
    twice = TaskWrite(row, expected(row), (), True, (later._replace(event_id=FIRST),))
    assert list((await store.commit([twice])).rejected) == ["t1"]


async def test_timeout_yields_to_an_event_that_was_stored_before(store: Store) -> None:
    """The first one that is committed counts. It is received in place of the timeout."""
    row = await running(store)
    await store.send_event(event(value="1"))
    await store.send_event(event(value="2"))
    await report(store, row, TIMEOUT)
    (found,) = await store.fetch_steps("t1")
    assert (found.event_id, found.result, found.error_code, found.is_final) == (FIRST, '{"ok": 1}', None, 0)
    assert await store.fetch_event("t1", "go", WAIT.identity) == StoredEvent(FIRST, '{"ok": 1}', True)


async def test_timeout_that_is_committed_first_stays(store: Store) -> None:
    """The event is for the next wait."""
    row = await running(store)
    await report(store, row, TIMEOUT)
    await store.send_event(event())
    assert await store.fetch_steps("t1") == [TIMEOUT]
    assert await store.fetch_event("t1", "go", WAIT.identity) == StoredEvent(FIRST, '{"ok": 1}', False)


async def test_event_of_a_key_is_stored_once(store: Store) -> None:
    """Also after it was received. Each task has its own keys."""
    row = await running(store)
    await running(store, "t2")
    assert await store.send_event(event(key="k")) == STORED
    await report(store, row, WAIT._replace(ended_at=NOW, event_id=FIRST))
    assert await store.send_event(event(key="k", value="2")) == STORED
    assert await store.fetch_event("t1", "go", ("step", 2, "")) is None
    assert await store.send_event(event(key="k", task_id="t2")) == STORED
    assert await store.fetch_event("t2", "go", WAIT.identity) is not None


async def test_event_for_nobody_is_refused(store: Store) -> None:
    """And one too many, except of a key that is known."""
    assert await store.send_event(event()) == SendReport("unknown")
    await put(store, task("t2", status="COMPLETED"))
    assert await store.send_event(event(task_id="t2")) == SendReport("ended")
    row = await running(store)
    for number in range(MAX_UNREAD):
        assert await store.send_event(event(key=str(number))) == STORED
    assert (await store.send_event(event())).outcome == "full"
    assert await store.send_event(event(key="0")) == STORED
    await report(store, row, WAIT._replace(ended_at=NOW, event_id=FIRST))
    assert await store.send_event(event()) == STORED


async def test_forgotten_steps_give_their_events_back(store: Store) -> None:
    """A retry from the start receives them again, in the same order."""
    row = await running(store)
    for value in "12":
        await store.send_event(event(value=value))
    await report(store, row, WAIT._replace(ended_at=NOW, event_id=FIRST))
    assert await store.commit([TaskWrite(row, expected(row), (), True, (), True)]) == CommitReport({}, {})
    assert await store.fetch_event("t1", "go", WAIT.identity) == StoredEvent(FIRST, '{"ok": 1}', False)


async def test_events_go_with_the_record_of_their_task(store: Store) -> None:
    """A purge leaves nothing of them."""
    row = await running(store)
    await store.send_event(event())
    end = row._replace(status="COMPLETED", completed_at=130, updated_at=130, result='{"ok": 1}')
    assert await store.commit([TaskWrite(end, expected(row))]) == CommitReport({}, {})
    while await store.purge(TaskFilter(), None, 100):
        pass
    await running(store)
    assert await store.fetch_event("t1", "go", WAIT.identity) is None


@pytest.mark.parametrize("count", [2, 9, 40])
async def test_many_tasks_fall_asleep_and_time_out_at_once(store: Store, count: int) -> None:
    """In one statement, or in several; every third has an event already."""
    rows = [await running(store, f"t{number:02}") for number in range(count)]
    has_event = [number % 3 == 0 for number in range(count)]
    for row, has in zip(rows, has_event, strict=True):
        if has:
            await store.send_event(event(task_id=row.task_id))
    late = [TIMEOUT._replace(task_id=row.task_id) for row in rows]
    next_ = [WAIT._replace(task_id=row.task_id, number=2, wakes_at=DUE, waits_for="next") for row in rows]
    for row in rows:
        await store.send_event(event("next", task_id=row.task_id)) if int(row.task_id[1:]) % 2 else None
    asleep = [
        row._replace(status="PENDING", claimed_by_worker_id=None, enqueued_at=DUE, updated_at=NOW) for row in rows
    ]
    writes = [
        TaskWrite(new, expected(row), (), True, (record, wait))
        for new, row, record, wait in zip(asleep, rows, late, next_, strict=True)
    ]
    assert await store.commit(writes) == CommitReport({}, {})
    found = [(await store.fetch_steps(row.task_id))[0].event_id is not None for row in rows]
    assert found == has_event
    assert [await due_at(store, row.task_id) for row in rows] == [
        100 if int(row.task_id[1:]) % 2 else DUE for row in rows
    ]


async def test_end_of_a_sleep_cuts_no_pause_before_a_retry_short(store: Store) -> None:
    """The task was woken by an event, and failed: its wait is over, though nothing says so yet."""
    row = await fall_asleep(store, await running(store), WAIT)
    again = row._replace(enqueued_at=9_000, next_retry_at=9_000)
    await store.commit([TaskWrite(again, expected(row))])
    assert await store.claim(wants(now=DUE + 1)) == []
    assert await store.send_event(event()) == STORED
    assert await due_at(store) == 9_000


async def test_event_of_one_task_is_not_received_by_another(store: Store) -> None:
    """A task whose file was replaced names an event of the old one, whose number is that of another event now."""
    stranger = TIMEOUT._replace(task_id="t2", event_id=1, error_code=None, error_message=None, is_final=0)
    await report(store, await running(store, "t2"), stranger)
    row = await running(store)
    assert await store.send_event(event()) == STORED
    assert await store.fetch_event("t1", "go", WAIT.identity) == StoredEvent(FIRST, event().value, False)
    await report(store, row, WAIT._replace(ended_at=NOW, event_id=FIRST))
    assert await store.fetch_event("t1", "go", WAIT.identity) == StoredEvent(FIRST, event().value, True)
