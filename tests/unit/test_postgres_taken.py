"""How many rows of a queue with a limit are taken, also while nothing that has ended can be cleared away."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import connect, lead_to_schema
from taskmanager.store.postgresql.seldom import ASK_S
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.postgresql.taken import ALL, KNOWN, LATE_US, MAX_KNOWN, Taken
from taskmanager.store.sql.claims import claim
from tests.contract.rows import ME, OTHER, task, wants
from tests.unit.postgres_sessions import Connected, StillClock, other, pages_read, session

__all__ = ["other", "session"]  # fixtures

NOW = 10 * LATE_US
GPU = "gpu"


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def claiming(session: Connected, clock: StillClock) -> Iterator[PostgresSession]:
    """The session of an instance, which takes each count for a slow one."""
    made = slow_session(session, clock)
    yield made
    made.raw.close()


def slow_session(session: Connected, clock: StillClock) -> PostgresSession:
    made = connect(Address.of(session.url))
    lead_to_schema(made)
    made._taken[GPU] = Taken(clock, slow_s=0.0)
    return made


def count(claiming: PostgresSession, now: int = NOW) -> int:
    """Count as a claim does."""
    with claiming.transaction(is_beside=True):
        return claiming.count_taken(GPU, now)


def running(task_id: str, **columns: Any) -> Any:
    return task(task_id, **{"queue_name": GPU, "status": "RUNNING", "claimed_at": NOW, "started_at": NOW, **columns})


def end(session: Connected, which: str = "true") -> None:
    session.execute(f"UPDATE taskmanager_tasks SET status = 'COMPLETED', claimed = 0, completed_at = 1 WHERE {which}")


def test_postgres_count_of_places_steps_over_what_has_ended(
    session: Connected, other: Connected, claiming: PostgresSession
) -> None:
    """The open transaction of another program keeps the entries of all. One task that runs for long changes nothing."""
    other.raw.execute("COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class")
    session.put(running("long", claimed_at=1))
    stamps = random.Random(0).sample(range(3_000), 3_000)  # neighbours in the index are on different pages
    session.put(*(running(f"old{number:04}", claimed_at=at, sent_at=at) for number, at in enumerate(stamps)))
    end(session, "id <> 'long'")
    session.execute("ANALYZE taskmanager_tasks")
    assert count(claiming) == 1
    session.put(running("new"))
    with claiming.transaction(is_beside=True):
        assert pages_read(claiming, ALL, {"queue_name": GPU}) > 2_500
        assert pages_read(claiming, KNOWN, claiming._taken[GPU].given(GPU, NOW)) < 30
    assert count(claiming) == 2


@pytest.mark.parametrize("seed", range(5))
def test_postgres_limit_holds_where_not_all_is_counted(
    session: Connected, claiming: PostgresSession, clock: StillClock, seed: int
) -> None:
    """Two instances claim in turn; what they take is what a count of all would have granted."""
    chance, limit, now = random.Random(seed), 4, NOW
    second = slow_session(session, clock)
    session.put(*(task(f"t{number:03}", queue_name=GPU) for number in range(200)))
    for _ in range(60):
        now += chance.randint(0, LATE_US)
        clock.now_s += chance.choice([0, 0, 0, ASK_S])
        taken = {
            task_id for (task_id,) in session.execute(f"SELECT id FROM taskmanager_tasks WHERE {TAKEN}").fetchall()
        }
        stamp = now - chance.randint(0, LATE_US)  # it has waited for its turn
        request = wants(owner=ME, queue_name=GPU, limit=chance.randint(1, 3), file_limit=limit, now=stamp)
        rows = claim(chance.choice([claiming, second]), [request])
        assert len(rows) == min(request.limit, limit - len(taken))
        for each in taken | {row.task_id for row in rows}:
            if chance.random() < 0.3:
                end(session, f"id = '{each}'")
    second.raw.close()


TAKEN = "status IN ('CLAIMED', 'RUNNING')"


def test_postgres_count_of_places_sees_what_others_have_claimed(session: Connected, claiming: PostgresSession) -> None:
    """Rows of every owner, started by the claim, later or not yet, also by a clock that was set back."""
    assert count(claiming) == 0
    session.put(
        task("claimed", queue_name=GPU, status="CLAIMED", claimed_at=NOW, claimed_by_worker_id=OTHER),
        running("started", claimed_by_worker_id=OTHER),
        running("late", claimed_at=NOW - LATE_US),
        running("of another queue", queue_name="default"),
        task("waits", queue_name=GPU, claimed_at=NOW, claimed_by_worker_id=ME),
        running("ended", status="COMPLETED", completed_at=NOW),
    )
    assert count(claiming) == 3
    session.put(running("set back", claimed_at=1))
    assert count(claiming, 1) == count(claiming) == 4


def test_postgres_count_of_places_gives_back_what_has_ended_or_moved(
    session: Connected, claiming: PostgresSession
) -> None:
    session.put(*(running(f"t{number}") for number in range(4)))
    assert count(claiming) == 4
    end(session, "id = 't0'")
    session.execute("UPDATE taskmanager_tasks SET status = 'PENDING', claimed_by_worker_id = NULL WHERE id = 't1'")
    session.execute("UPDATE taskmanager_tasks SET queue_name = 'default' WHERE id = 't2'")
    session.execute("DELETE FROM taskmanager_tasks WHERE id = 't3'")
    assert count(claiming, 100 * NOW) == 0


def test_postgres_count_of_places_counts_all_after_a_second(
    session: Connected, claiming: PostgresSession, clock: StillClock
) -> None:
    """So what was stamped too early, or started without a claim, is missed no longer than that."""
    assert count(claiming) == 0
    session.put(running("late", claimed_at=NOW - LATE_US - 1), running("unclaimed", claimed_at=None))
    clock.now_s += ASK_S / 2
    assert count(claiming) == 0
    clock.now_s += ASK_S / 2
    assert count(claiming) == count(claiming, 100 * NOW) == 2


def test_postgres_count_of_places_counts_all_where_that_is_fast(session: Connected, claiming: PostgresSession) -> None:
    claiming._taken[GPU].slow_s = 60
    assert count(claiming) == 0
    session.put(running("late", claimed_at=1))
    assert count(claiming) == 1


def test_postgres_count_of_places_counts_all_where_very_many_are_taken(
    session: Connected, claiming: PostgresSession
) -> None:
    session.put(*(running(f"t{number}") for number in range(MAX_KNOWN + 1)))
    assert count(claiming) == MAX_KNOWN + 1
    session.put(running("late", claimed_at=1))
    assert count(claiming) == MAX_KNOWN + 2
