"""Where claims begin while nothing that was taken can be cleared away, on a real server."""

import random
import re

import pytest

from taskmanager.model.clock import SECOND_US, SystemClock
from taskmanager.store.postgresql import claims
from taskmanager.store.postgresql.floors import LATE_US, Floors
from taskmanager.store.postgresql.seldom import ASK_S, ASK_SHARE, SLOW_S
from tests.contract.rows import task, wants
from tests.unit.postgres_sessions import Connected, other, session

__all__ = ["other", "session"]  # fixtures

NOW = 10 * LATE_US


class Slow(SystemClock):
    """Elapsed time that passes only while somebody looks at it."""

    now_s = 1000.0
    step_s = 2 * SLOW_S

    def elapsed_s(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def clock() -> Slow:
    return Slow()


@pytest.fixture
def slow(session: Connected, clock: Slow) -> Connected:
    """A session for which all takes long, and whose last claim did."""
    session.floors = Floors(clock, quick_s=0.0)
    session.floors.note(SLOW_S * SECOND_US, 0)
    return session


def ids(session: Connected, limit: int = 10) -> list[str]:
    """What a claim takes."""
    return [row.task_id for row in session.take(limit, now=NOW)]


def entries_read(session: Connected, statement: str) -> int:
    """How many entries of indexes the server looks up in the table for a claim of ten rows, which it takes."""
    given = claims._given(wants(now=NOW), 10)
    known = given | {"floors": session.floors.given(session, given)}  # type: ignore[arg-type]  # all that it needs
    plan = session.execute(f"EXPLAIN (ANALYZE) {statement}", known).fetchall()
    return sum(int(count) for (line,) in plan for count in re.findall(r"Heap Fetches: (\d+)", line))


def test_postgres_floors_step_over_what_was_taken(slow: Connected, other: Connected, clock: Slow) -> None:
    """The open transaction of another program keeps the entries of all rows that were free since it began."""
    other.raw.execute("COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class")
    slow.execute("SET enable_sort = off; SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")
    slow.put(*(task(f"old{number:04}", enqueued_at=1) for number in range(3_000)))
    assert len(slow.take(3_000, now=NOW)) == 3_000
    clock.now_s += ASK_S
    slow.put(*(task(f"new{number:02}", enqueued_at=NOW) for number in range(30)))
    assert entries_read(slow, claims.ABOVE_FLOORS) < 100
    slow.floors = Floors()
    assert 3_000 < entries_read(slow, claims.READY) < 3_100  # once, and not twice
    assert len(slow.take(1, now=NOW)) == 1


def test_postgres_claim_above_floors_sees_rows_that_are_a_bit_late(slow: Connected) -> None:
    """They were sent before the question, and committed after it."""
    slow.put(task("a", enqueued_at=NOW))
    assert ids(slow) == ["a"]
    slow.put(task("late", enqueued_at=NOW - LATE_US))
    assert ids(slow) == ["late"]


def test_postgres_claim_above_floors_sees_all_others_later(slow: Connected, clock: Slow) -> None:
    """A row that comes back waits for the next question, the first one of a priority does not."""
    slow.put(task("a", enqueued_at=NOW))
    assert ids(slow) == ["a"]
    slow.put(task("back", enqueued_at=1), task("first", priority=1, enqueued_at=NOW), task("b", enqueued_at=NOW))
    assert ids(slow) == ["first", "b"]
    clock.now_s += ASK_S
    assert ids(slow) == ["back"]


def test_postgres_claim_above_floors_needs_another_one(slow: Connected, clock: Slow) -> None:
    """Once, and when the next question may be asked: else nobody would claim again until somebody writes."""
    assert ids(slow) == []
    assert not slow.floors.take_needed_look()
    clock.now_s += ASK_S
    assert [slow.floors.take_needed_look(), slow.floors.take_needed_look()] == [True, False]


def test_postgres_woken_rows_are_looked_for_seldom_where_that_is_slow(slow: Connected, clock: Slow) -> None:
    """They stand below all floors. A look that was left out is needed, once, when the next one may be made."""
    clock.step_s = 0.0
    asleep = task("woken", enqueued_at=1, snooze_count=1)
    slow.floors.note_none_woken(SLOW_S * SECOND_US / 2)
    slow.put(asleep)
    assert [row.task_id for row in slow.take(has_slept=True, now=NOW)] == ["woken"]
    slow.floors.note_none_woken(1.0 * SECOND_US)
    slow.put(asleep._replace(task_id="again"))
    assert slow.take(has_slept=True, now=NOW) == []
    clock.now_s += ASK_SHARE / 2
    assert not slow.floors.take_needed_look()
    clock.now_s += ASK_SHARE / 2
    assert [slow.floors.take_needed_look(), slow.floors.take_needed_look()] == [True, False]
    assert [row.task_id for row in slow.take(has_slept=True, now=NOW)] == ["again"]
    assert not slow.floors.take_needed_look()


def test_postgres_floors_are_given_up_where_they_are_found_fast(slow: Connected, clock: Slow) -> None:
    """By the server: the way there may be long."""
    slow.put(task("a", enqueued_at=NOW))
    assert ids(slow) == ["a"]
    clock.now_s += ASK_S
    slow.floors.quick_s, clock.step_s = 60, 120
    for name, due_at in {"back": 2, "earlier": 1}.items():
        slow.put(task(name, enqueued_at=due_at))
        assert ids(slow) == [name]


@pytest.mark.parametrize("seed", range(10))
def test_postgres_claim_above_floors_takes_what_any_claim_does(slow: Connected, seed: int) -> None:
    """Just after the question there is no difference."""
    chance = random.Random(seed)
    rows = [
        task(
            f"t{number:02}",
            task_name=chance.choice(["app:job", "app:other", "app:unknown"]),
            queue_name=chance.choice(["default", "default", "mail"]),
            priority=chance.randint(1, 4),
            enqueued_at=NOW + chance.randint(-3 * LATE_US, LATE_US),
        )
        for number in range(60)
    ]
    slow.put(*rows)
    wanted = {"now": NOW, "better_than": chance.choice([None, 3])}
    slow.raw.execute("BEGIN")
    above = slow.take(7, **wanted)
    assert slow.floors._given is not None
    slow.raw.execute("ROLLBACK")
    slow.floors = Floors()
    assert slow.take(7, **wanted) == above
