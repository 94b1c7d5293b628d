"""What a store counts of its commits, when it adds that to the figures, and what is never counted."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.record import HistoryWrite, NewWrite, PlainCall, SuccessWrite, TaskRow, TaskWrite, expected_of
from taskmanager.rules.claims import Room, Starting
from taskmanager.rules.figures import Span
from taskmanager.store.memory import MemoryStore
from taskmanager.store.noted import COUNTS, WAITED, Noted
from taskmanager.store.protocol import ClaimRequest
from taskmanager.store.sql import transitions
from taskmanager.store.sql.counting import MAX_KEPT, MAX_NAMES, Counting, add_counted
from taskmanager.store.sql.figures import series
from taskmanager.store.sql.rows import Undecodable
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.store.statistics import Figures
from tests.contract.rows import ME, attempt, task
from tests.sessions import connect

pytestmark = pytest.mark.anyio

NOW = 1_796_000_400_000_000
NOW -= NOW % HOUR_US
WORKER = (7, "host", "main")


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = NOW

    def now_us(self) -> int:
        return self.now

    def elapsed_s(self) -> float:
        return 0.0


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


def history(
    task_id: str, *, sent: int = 0, started: int = 0, completed: int = 0, name: str = "app:job"
) -> HistoryWrite:
    """A memory-only task that has succeeded; the instants are from `NOW` on."""
    call = PlainCall(name, "default", 50, 0, "{}", ME, *WORKER)
    return HistoryWrite(task_id, call, None, None, None, NOW + sent, NOW + started, NOW + completed, None)


def begun(task_id: str, *, sent: int = 0, started: int = 0, name: str = "app:job") -> NewWrite:
    """A persisted task that starts as it is accepted."""
    call = PlainCall(name, "default", 50, 0, '{"persist": true}', ME, *WORKER)
    return NewWrite(task_id, call, None, None, None, NOW + sent, NOW + started)


def read(path: Path, span: Span = Span.MINUTE) -> list[Figures]:
    with closing(connect(path)) as connection:
        return series(connection, span, 0, 1 << 62)


async def opened(path: Path, clock: Hands) -> SqliteStore:
    store = SqliteStore(path, synchronous="normal", clock=clock)
    await store.open()
    return store


async def test_counts_wait_in_memory_and_are_added_once(path: Path, clock: Hands) -> None:
    """A commit leaves the figures alone. Whoever adds twice adds nothing more, and a close adds what is left."""
    store = await opened(path, clock)
    for each in ("a", "b"):
        await store.commit([history(each)])
    assert read(path) == []
    for _ in range(2):
        await store.add_figures()
        assert [(each.started, each.completed) for each in read(path)] == [(2, 2)]
    await store.commit([history("c")])
    await store.close()
    assert [each.completed for each in read(path)] == [3]
    assert [each.completed for each in read(path, Span.HOUR)] == [3]


async def test_runs_that_differ_are_worked_out_when_they_are_many(path: Path, clock: Hands) -> None:
    """They are kept as they are up to a bound, however long nobody adds them."""
    store = await opened(path, clock)
    differing = {
        (f"job {number}", "default", NOW // MINUTE_US, NOW // MINUTE_US, 5, 5): 1 for number in range(MAX_KEPT)
    }
    store._counting.runs.update(differing)
    await store.commit([history("t")])
    assert not store._counting.runs
    await store.close()
    assert [(each.started, each.completed) for each in read(path)] == [(MAX_KEPT + 1, MAX_KEPT + 1)]


async def test_each_event_is_counted_in_its_own_minute(path: Path, clock: Hands) -> None:
    """The record of a memory-only task comes up to a minute late, and its start may have been in another hour."""
    store = await opened(path, clock)
    start, end = -5_000_000, 61_000_000
    clock.now = NOW + 2 * MINUTE_US
    await store.commit([history("t", sent=start - 3_000, started=start, completed=end)])
    await store.close()
    minutes = [(each.at, each.started, each.completed) for each in read(path)]
    assert minutes == [(NOW - MINUTE_US, 1, 0), (NOW + MINUTE_US, 0, 1)]
    assert [(each.at, each.started) for each in read(path, Span.HOUR)] == [(NOW - HOUR_US, 1), (NOW, 0)]
    assert read(path)[0].waited[1] == 1
    assert read(path)[1].ran[8] == 1, "66 seconds are more than 4 ** 7 * 1.024 ms, and less than four times that"


async def test_a_commit_that_rolls_back_counts_nothing(path: Path, clock: Hands) -> None:
    """Its batch comes again. What was counted before is not lost with it."""
    store = await opened(path, clock)
    await store.commit([history("a")])
    with closing(connect(path, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON taskmanager_tasks BEGIN SELECT raise(ABORT, 'full'); END")
        report = await store.commit([history("c")])
        assert set(report.rejected) == {"c"}
        other.execute("DROP TRIGGER full")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await store.commit([history("c")])
        with pytest.raises(StoreUnavailable):
            await store.add_figures()
        other.execute("ROLLBACK")
    await store.commit([history("c")])
    await store.close()
    assert [each.completed for each in read(path)] == [2]


class Failing:
    """A connection whose next commit arrives, and says that it has not."""

    def __init__(self, connection: SqliteSession) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    transaction = SqliteSession.transaction

    def commit(self) -> None:
        self._connection.commit()
        raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("what", ["commit", "figures"])
async def test_a_commit_of_unknown_fate_counts_nothing_twice(path: Path, clock: Hands, what: str) -> None:
    """What has perhaps arrived is not counted again. So there may be too few, and never too many."""
    store = await opened(path, clock)
    await store.commit([begun("a")])
    writer = store._writer
    assert writer is not None

    def fails(connection: SqliteSession) -> None:
        failing: Any = Failing(connection)
        if what == "commit":
            transitions.commit(failing, [begun("b")], store._counting)
        else:
            add_counted(failing, store._counting)

    with pytest.raises(StoreError, match="disk I/O error"):
        await writer.hop(fails)
    assert set((await store.commit([begun("b")])).lost) == ({"b"} if what == "commit" else set())
    await store.close()
    assert [each.started for each in read(path)] == [1 if what == "commit" else 2]


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED"])
async def test_history_that_is_written_twice_is_counted_once(path: Path, clock: Hands, status: str) -> None:
    """Its commit arrived, and whoever waited for that was cancelled: it is sent again, and replaces itself."""
    write = history("t", started=5, completed=9).in_full()
    if status == "FAILED":
        row = write.row._replace(status=status, completed_at=None, failed_at=NOW + 9, error_code="BOOM")
        write = TaskWrite(row, None, (write.attempts[0]._replace(outcome=status),))
    store = await opened(path, clock)
    for writes in ([write], [write], [history("other"), write]):
        await store.commit(writes)
    await store.close()
    (found,) = read(path)
    assert (found.started, found.ended_count) == (2, 2)


async def test_losers_are_not_counted_and_winners_beside_them_are(path: Path, clock: Hands) -> None:
    """A start of what somebody else has, and a success that comes too late, were never so."""
    store = await opened(path, clock)
    await store.commit([begun("a"), begun("b")])
    running = ("RUNNING", ME, 1)

    def ends(task_id: str, start_count: int) -> SuccessWrite:
        row = TaskRow(*[None] * len(TaskRow._fields))  # type: ignore[arg-type]
        row = row._replace(status=running[0], claimed_by_worker_id=running[1], start_count=start_count)
        said = task_id, "app:job", expected_of(row), NOW, NOW + 5, None
        return SuccessWrite(*said, *WORKER, "default")

    report = await store.commit([ends("a", 1), ends("b", 2), ends("nobody", 1)])
    assert set(report.lost) == {"b", "nobody"}
    await store.close()
    assert [(each.started, each.completed) for each in read(path)] == [(2, 1)]


async def test_two_stores_add_to_the_same_minute(path: Path, clock: Hands) -> None:
    """Each adds what it has done itself."""
    stores = [await opened(path, clock) for _ in range(2)]
    for number in range(6):
        await stores[number % 2].commit([history(f"t{number}")])
        await stores[number % 2].add_figures()
    for each in stores:
        await each.close()
    assert [each.completed for each in read(path)] == [6]


async def test_starts_and_ends_of_claims_and_cancels_are_counted(path: Path, clock: Hands) -> None:
    """A claim starts rows by itself. A cancel ends a waiting task, which has not run."""
    store = await opened(path, clock)
    waits = task("a", claimed_by_worker_id=None, enqueued_at=NOW - 5_000, sent_at=NOW - 5_000, updated_at=NOW - 5_000)
    await store.commit([TaskWrite(waits, None), TaskWrite(waits._replace(task_id="b"), None)])
    room = Room(frozenset({"app:job"}), 1)
    starting = Starting(1, (room,), *WORKER)
    await store.claim(ClaimRequest(ME, ["app:job"], "default", 1, NOW, starting=starting))
    row = await store.fetch("b")
    assert row is not None
    gone = row._replace(status="CANCELLED", failed_at=NOW + 1, updated_at=NOW + 1, error_code="TASK_CANCELLED")
    await store.commit([TaskWrite(gone, expected_of(row))])
    await store.close()
    (found,) = read(path)
    assert (found.started, found.cancelled, found.ended_count) == (1, 1, 1)
    assert (sum(found.waited), found.waited[2], sum(found.ran)) == (1, 1, 0)


@pytest.mark.parametrize(
    ("end", "attempts", "counts"),
    [
        ({"status": "PENDING", "started_at": None}, [("FAILED", 1)], {"retried": 1}),
        ({"status": "PENDING", "started_at": None}, [("WORKER_FAILURE", 0)], {"retried": 1}),
        ({"status": "PENDING", "started_at": None}, [("INTERRUPTED", 0)], {}),
        ({"status": "PENDING", "started_at": None}, [("FAILED", 0)], {"failed": 1}),
        ({"status": "FAILED", "failed_at": NOW}, [("FAILED", 0)], {"failed": 1}),
        ({"status": "FAILED", "failed_at": NOW}, [("WORKER_FAILURE", 0)], {"failed": 1}),
        ({"status": "INTERRUPTED", "failed_at": NOW}, [("INTERRUPTED", 0)], {"interrupted": 1}),
        ({"status": "EXPIRED", "failed_at": NOW, "started_at": None}, [], {"expired": 1}),
        ({"status": "RUNNING"}, [], {}),
    ],
)
def test_outcome_of_a_run_is_counted_once(
    end: dict[str, Any], attempts: list[tuple[str, int]], counts: dict[str, int]
) -> None:
    """Whoever writes it: the instance that ran it, another that recovers it, or a person who puts it back at once.
    Where a commit had seemed to fail, its row is found, and written again with its attempts.
    """
    running = task("t", status="RUNNING", start_count=2, started_at=NOW - 9_000)
    rows = tuple(
        attempt("t", 2, outcome=outcome, will_retry=will_retry, started_at=NOW - 9_000, finished_at=NOW)
        for outcome, will_retry in attempts
    )
    noted = Noted()
    ended = running._replace(**{"updated_at": NOW, **end})
    noted.note_write(TaskWrite(ended, expected_of(running), rows))
    noted.note_write(TaskWrite(ended, expected_of(ended), rows))
    assert happened(noted) == counts
    assert len(noted.changes) == len(set(noted.changes))


def happened(noted: Noted) -> dict[str, int]:
    return {COUNTS[place]: count for (_, _, _, place), count in noted.changes if place < WAITED}


def test_a_record_with_all_of_its_attempts_tells_of_each_start() -> None:
    """A memory-only task is written once, at its end. A run that was snoozed has left nothing but the count."""
    ended = task("t", status="COMPLETED", start_count=3, started_at=NOW, completed_at=NOW + 5, task_options="{}")
    first = attempt("t", 1, outcome="FAILED", will_retry=1, started_at=NOW - MINUTE_US, finished_at=NOW - MINUTE_US)
    last = attempt("t", 3, started_at=NOW, finished_at=NOW + 5)
    noted = Noted()
    noted.note_write(TaskWrite(ended._replace(updated_at=NOW + 5), None, (first, last)))
    minutes = [(minute * MINUTE_US - NOW, count) for (_, _, minute, place), count in noted.changes if place == 0]
    assert sorted(minutes) == [(-MINUTE_US, 1), (0, 1), (0, 1)]
    assert sum(count for (_, _, _, place), count in noted.changes if 7 <= place < 23) == 1, "the last wait is known"


def test_a_task_that_slept_has_waited_for_a_time_that_nobody_knows() -> None:
    """It is due at once when it wakes, and its row says only when it was sent."""
    waiting = task("t", start_count=1, snooze_count=1, sent_at=NOW - HOUR_US, enqueued_at=NOW - HOUR_US)
    running = waiting._replace(status="RUNNING", start_count=2, started_at=NOW, updated_at=NOW)
    noted = Noted()
    noted.note_write(TaskWrite(running, expected_of(waiting)))
    assert [place for (_, _, _, place), _ in noted.changes] == [0]


@pytest.mark.parametrize(
    ("at", "minutes", "hours"),
    [(0, 1, 1), (59_000_000, 1, 1), (121_000_000, 0, 1), (2 * HOUR_US, 0, 0), (-49 * HOUR_US, 0, 1),
     (-31 * 24 * HOUR_US, 0, 0), (200_000_000_000_000_000, 0, 0), (-(2**62), 0, 0)],
)  # fmt: skip
def test_instants_long_past_or_to_come_are_not_counted(clock: Hands, at: int, minutes: int, hours: int) -> None:
    """A clock that jumps must not leave rows that nobody ever deletes."""
    counting, noted = Counting(clock), Noted()
    noted.note("app:job", "default", NOW + at, 0)
    counting.keep(noted)
    spans = [place.span for place in counting.figures()]
    assert (spans.count(60), spans.count(3600)) == (minutes, hours)


def test_names_that_are_too_many_are_counted_together(clock: Hands) -> None:
    """So many names for each hour, by which those come first that come first. Names that cannot be read have none."""
    counting, noted = Counting(clock), Noted()
    for number in range(MAX_NAMES + 5):
        noted.note(f"job {number}", "default", NOW, 0)
    noted.note(Undecodable(b"\xff"), "default", NOW, 0)
    noted.note("job 0", "default", NOW, 0)
    counting.keep(noted)
    found = {place.task_name: counts[0] for place, counts in counting.figures().items() if place.span == 60}
    assert len(found) == MAX_NAMES + 1
    assert (found["job 0"], found[""]) == (2, 6)
    later = Noted()
    later.note("job 1004", "default", NOW + HOUR_US, 0)
    clock.now = NOW + HOUR_US
    counting.forget()
    counting.keep(later)
    assert {place.task_name for place in counting.figures()} == {"job 1004"}


async def test_memory_counts_as_a_file_does_and_forgets_what_is_old(clock: Hands) -> None:
    """An application without a file runs for months."""
    store = MemoryStore(max_history=50, clock=clock)
    for day in range(40):
        clock.now = NOW + day * 24 * HOUR_US
        at = clock.now - NOW
        await store.commit([history(f"{day} {each}", started=at, completed=at) for each in range(2)])
    store.overview(clock.now, counts_all=False)
    hours = series(store._connection, Span.HOUR, 0, 1 << 62)
    minutes = series(store._connection, Span.MINUTE, 0, 1 << 62)
    assert sum(each.completed for each in hours) == 2 * len(hours) <= 2 * 31
    assert len(minutes) <= 3
    assert hours[-1].at == clock.now
    await store.close()
