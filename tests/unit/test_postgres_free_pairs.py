"""What a claimer is told that waits, also while nothing that was taken can be cleared away, on a real server."""

import random
import re
from collections.abc import Iterator

import pytest

from taskmanager.model.clock import SystemClock
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import connect, lead_to_schema
from taskmanager.store.postgresql.floors import LATE_US
from taskmanager.store.postgresql.free_pairs import ALL, KNOWN, MAX_KNOWN, FreePairs
from taskmanager.store.postgresql.seldom import ASK_S, SLOW_S
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.sql.claims import free_queues
from taskmanager.store.sql.session import Values
from tests.contract.rows import OTHER, task
from tests.unit.postgres_sessions import Connected, other, session

__all__ = ["other", "session"]  # fixtures

NOW = 10 * LATE_US


class Clock(SystemClock):
    """Time that passes only while somebody looks at it."""

    now_s = 1000.0
    step_s = 2 * SLOW_S

    def elapsed_s(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def now_us(self) -> int:
        return NOW


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looking(session: Connected, clock: Clock, schema_url: str) -> Iterator[PostgresSession]:
    """The session of a reader, which takes each look for a slow one."""
    made = connect(Address.of(schema_url))
    lead_to_schema(made)
    made._free_pairs = FreePairs(clock, slow_s=0.0)
    yield made
    made.raw.close()


def waiting(looking: PostgresSession) -> list[tuple[str, str, int]]:
    """Functions and queues, with the instant at which the first is due."""
    return [(each.task_name, each.queue_name, each.next_due_at) for each in looking.free_pairs()]


@pytest.mark.parametrize("seed", range(5))
def test_free_pairs_are_the_free_queues(session: Connected, looking: PostgresSession, seed: int) -> None:
    """At the first look, and just after it."""
    chance = random.Random(seed)
    rows = [
        task(
            f"t{number:02}",
            task_name=chance.choice(["app:job", "app:other", "app:é"]),
            queue_name=chance.choice(["default", "mail"]),
            priority=chance.randint(1, 3),
            enqueued_at=NOW + chance.randint(-3 * LATE_US, LATE_US),
            claimed_by_worker_id=chance.choice([None, OTHER]),
        )
        for number in range(chance.choice([0, 5, 30]))
    ]
    session.put(*rows)
    expected = free_queues(looking, 1)
    assert [looking.free_pairs(), looking.free_pairs()] == [expected, expected]


def test_free_pairs_are_not_looked_for_twice_in_a_second(
    session: Connected, looking: PostgresSession, clock: Clock
) -> None:
    """A bit late is seen; a row that comes back, or is the first of its function, when the second is over."""
    session.put(task("a", enqueued_at=NOW))
    assert waiting(looking) == [("app:job", "default", NOW)]
    session.put(task("late", enqueued_at=NOW - LATE_US))
    assert waiting(looking) == [("app:job", "default", NOW - LATE_US)]
    session.put(task("back", enqueued_at=1), task("first", enqueued_at=NOW, task_name="app:other"))
    assert waiting(looking) == [("app:job", "default", NOW - LATE_US)]
    clock.now_s += ASK_S
    assert waiting(looking) == [("app:job", "default", 1), ("app:other", "default", NOW)]


def test_free_pairs_need_a_look_after_one_that_passes_something_over(
    session: Connected, looking: PostgresSession, clock: Clock
) -> None:
    """Once, and when the second is over: else nobody would look again until somebody writes."""
    session.put(task("a", enqueued_at=NOW))
    assert waiting(looking) == [("app:job", "default", NOW)]
    clock.now_s += ASK_S
    assert not looking.take_needed_look()  # that look has passed nothing over
    assert len(waiting(looking)) == len(waiting(looking)) == 1
    assert not looking.take_needed_look()
    clock.now_s += ASK_S
    assert [looking.take_needed_look(), looking.take_needed_look()] == [True, False]


def test_free_pairs_are_not_looked_for_twice_where_nothing_has_waited(
    session: Connected, looking: PostgresSession, clock: Clock
) -> None:
    """An instance that has nothing to do would read all that others have taken at each of their writes."""
    assert waiting(looking) == []
    session.put(task("a", enqueued_at=NOW))
    assert waiting(looking) == []
    clock.now_s += ASK_S
    assert looking.take_needed_look()
    assert waiting(looking) == [("app:job", "default", NOW)]


def test_free_pairs_stay_known_when_nothing_waits(session: Connected, looking: PostgresSession, clock: Clock) -> None:
    """Of a function that has waited before, the next row is seen at once."""
    session.put(task("a", enqueued_at=NOW))
    assert waiting(looking) == [("app:job", "default", NOW)]
    session.take(now=NOW)
    clock.now_s += ASK_S
    assert waiting(looking) == []
    session.put(task("b", enqueued_at=NOW))
    assert waiting(looking) == [("app:job", "default", NOW)]


def test_free_pairs_are_looked_for_each_time_where_that_is_fast(
    session: Connected, looking: PostgresSession, clock: Clock
) -> None:
    """By the server: the way there may be long."""
    looking._free_pairs.slow_s, clock.step_s = 60, 120
    session.put(task("a", enqueued_at=NOW))
    assert waiting(looking) == [("app:job", "default", NOW)]
    session.put(task("back", enqueued_at=1))
    assert waiting(looking) == [("app:job", "default", 1)]


def test_free_pairs_of_very_many_functions_are_looked_for_each_time(
    session: Connected, looking: PostgresSession
) -> None:
    session.put(*(task(f"t{number}", task_name=f"app:f{number}", enqueued_at=NOW) for number in range(MAX_KNOWN + 1)))
    assert len(waiting(looking)) == MAX_KNOWN + 1
    session.put(task("back", task_name="app:f0", enqueued_at=1))
    assert waiting(looking)[0] == ("app:f0", "default", 1)


def test_free_pairs_step_over_what_was_taken(session: Connected, other: Connected, looking: PostgresSession) -> None:
    """The open transaction of another program keeps the entries of all rows that were free since it began."""
    other.raw.execute("COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class")
    session.put(*(task(f"old{number:04}", enqueued_at=1) for number in range(3_000)))
    assert len(session.take(3_000, now=NOW)) == 3_000
    session.put(task("new", enqueued_at=NOW))
    assert 3_000 < entries_read(looking, ALL) < 3_100  # once, and not for each column
    assert waiting(looking) == [("app:job", "default", NOW)]
    assert entries_read(looking, KNOWN, looking._free_pairs._given()) == 1


def entries_read(looking: PostgresSession, statement: str, values: Values = ()) -> int:
    """How many entries of indexes the server looks up in the table for it."""
    plan = looking.execute_by_indexes(f"EXPLAIN (ANALYZE) {statement}", values).fetchall()
    return sum(int(count) for (line,) in plan for count in re.findall(r"Heap Fetches: (\d+)", line))
