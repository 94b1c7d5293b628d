"""What duties ask for again and again, while nothing that has ended can be cleared away, on a real server."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from taskmanager.model.workflows import HELD
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import connect, lead_to_schema
from taskmanager.store.postgresql.expired import EXPIRED, WHOLE_S, Expired
from taskmanager.store.postgresql.floors import LATE_US
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.sql import queries
from taskmanager.store.sql.claims import claim
from tests.contract.rows import ME, OTHER, task, wants
from tests.unit.postgres_sessions import Connected, StillClock, other, pages_read, session

__all__ = ["other", "session"]  # fixtures


NOW = 10 * LATE_US


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def reading(session: Connected, clock: StillClock) -> Iterator[PostgresSession]:
    """The session of a reader, which takes each look for a slow one."""
    made = connect(Address.of(session.url))
    lead_to_schema(made)
    made._expired = Expired(clock, slow_s=0.0)
    yield made
    made.raw.close()


class Counted:
    """A session that counts the pages that are read for each question of the verbs."""

    too_large = ()

    def __init__(self, reading: PostgresSession) -> None:
        self._reading = reading
        self.by_indexes = reading.by_indexes
        self.pages = 0

    def execute(self, sql: str, values: Any = ()) -> Any:
        """Do one statement, and count."""
        self.pages += pages_read(self._reading, sql, values)
        return self._reading.execute(sql, values)


def test_postgres_orphans_are_found_without_what_the_living_have_had(
    session: Connected, other: Connected, reading: PostgresSession
) -> None:
    """The open transaction of another program keeps the entries of all that they have run."""
    other.raw.execute("COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class")
    names = [f"{number:04}" for number in range(3_000)]
    random.Random(0).shuffle(names)  # neighbours in the index are on different pages
    owners = [ME, OTHER, HELD]
    session.put(*(task(f"t{name}", claimed_by_worker_id=owners[int(name) % 3]) for name in names))
    session.execute("UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = 1")
    session.put(task("orphan", claimed_by_worker_id="dead"), task("living", claimed_by_worker_id=ME))
    session.execute("ANALYZE taskmanager_tasks")
    counted: Any = Counted(reading)
    assert [row.task_id for row in queries.fetch_orphans(counted, [ME, OTHER], limit=9)] == ["orphan"]
    assert counted.pages < 100
    assert len(queries.fetch_orphans(counted, [OTHER], limit=9)) == 2
    assert counted.pages > 1_000


def expired(reading: PostgresSession, now: int = NOW, limit: int = 9) -> list[str]:
    return [row.task_id for row in reading.fetch_expired(now, limit)]


def test_postgres_expired_rows_are_found_without_what_was_taken_in_time(
    session: Connected, other: Connected, reading: PostgresSession
) -> None:
    """The open transaction of another program keeps the entries of all that had a time and were free."""
    other.raw.execute("COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class")
    times = random.Random(0).sample(range(3_000), 3_000)  # neighbours in the index are on different pages
    session.put(*(task(f"old{number:04}", good_until=time) for number, time in enumerate(times)))
    session.execute("UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = 1")
    session.execute("ANALYZE taskmanager_tasks")
    given = {"now": NOW, "limit": 9}
    with reading.by_indexes():
        assert pages_read(reading, EXPIRED, given | {"since": reading._expired.since(NOW)}) > 2_500
    assert expired(reading) == []
    session.put(task("new", good_until=NOW - 1))
    with reading.by_indexes():
        assert pages_read(reading, EXPIRED, given | {"since": reading._expired.since(NOW)}) < 30
    assert expired(reading) == ["new"]


def test_postgres_expired_rows_that_were_passed_over_are_seen_later(
    session: Connected, reading: PostgresSession, clock: StillClock
) -> None:
    """A bit late is seen at once, as is what comes after a clock was set back."""
    assert expired(reading) == []
    session.put(task("freed", good_until=1), task("late", good_until=NOW - LATE_US), task("set back", good_until=99))
    assert expired(reading) == ["late"]
    assert expired(reading, 99) == ["freed", "set back"]
    session.execute("DELETE FROM taskmanager_tasks WHERE id = 'set back'")
    assert [expired(reading), expired(reading)] == [["freed", "late"], ["late"]]
    clock.now_s += WHOLE_S
    assert expired(reading) == ["freed", "late"]


def test_postgres_expired_rows_are_read_page_by_page(session: Connected, reading: PostgresSession) -> None:
    """A look goes on where the page before has ended, though that is long ago."""
    session.put(*(task(f"t{number}", good_until=number * LATE_US) for number in range(7)))
    assert expired(reading, limit=3) == ["t0", "t1", "t2"]
    session.execute("DELETE FROM taskmanager_tasks WHERE id IN ('t0', 't1', 't2')")
    assert expired(reading, limit=3) == ["t3", "t4", "t5"]


class Full:
    """A session whose server refuses to put rows together into one text, as it does where that has more than 1 GB."""

    too_large = PostgresSession.too_large

    def __init__(self, reading: PostgresSession) -> None:
        self._reading = reading
        self.by_indexes = reading.by_indexes
        self.refused = 0

    def execute(self, sql: str, values: Any = ()) -> Any:
        """Do one statement."""
        if sql.lstrip().startswith("SELECT json_group_array"):
            self.refused += 1
            return self._reading.execute("SELECT repeat('x', 2000000000)")
        return self._reading.execute(sql, values)


def test_postgres_rows_too_large_for_one_text_are_read_one_by_one(session: Connected, reading: PostgresSession) -> None:
    """Or one page of orphans with large arguments would stop the recovery of all that has died."""
    session.put(task("orphan", claimed_by_worker_id="dead"), task("late", good_until=1))
    full: Any = Full(reading)
    assert [row.task_id for row in queries.fetch_orphans(full, [ME], limit=9)] == ["orphan"]
    assert [row.task_id for row in reading._expired.look(full, NOW, 9)] == ["late"]
    assert full.refused == 3
    assert not reading.in_transaction


def test_postgres_claim_of_rows_too_large_for_one_text_takes_fewer(
    session: Connected, reading: PostgresSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a queue with a thousand large tasks would stand still."""
    session.put(*(task(f"t{number:02}") for number in range(20)))
    execute, asked = reading.execute, []

    def full(sql: str, values: Any = ()) -> Any:
        if "json_group_array(row)" in sql:
            asked.append(values["limit"])
            if values["limit"] > 2:
                return execute("SELECT repeat('x', 2000000000)")
        return execute(sql, values)

    monkeypatch.setattr(reading, "execute", full)
    assert [row.task_id for row in claim(reading, [wants(now=NOW, limit=100)])] == ["t00"]
    assert asked == [100, 12, 1]
    assert [row.task_id for row in claim(reading, [wants(now=NOW, limit=2)])] == ["t01", "t02"]


def test_postgres_expired_rows_are_all_looked_for_where_that_is_fast(
    session: Connected, reading: PostgresSession
) -> None:
    reading._expired.slow_s = 60
    assert expired(reading) == []
    session.put(task("freed", good_until=1))
    assert expired(reading) == ["freed"]
