"""What a claim takes from PostgreSQL while others claim, and what it starts, by statements on a real server."""

import random
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from taskmanager.model.record import TaskRow
from taskmanager.rules.claims import Room, Starting, started
from taskmanager.store.postgresql import claims
from taskmanager.store.postgresql.session import _PLANS
from tests.contract.rows import ME, OTHER, task, wants
from tests.unit.postgres_sessions import Connected, other, session

__all__ = ["other", "session"]  # fixtures


def ids(rows: Sequence[TaskRow]) -> list[str]:
    """Which tasks these are."""
    return [row.task_id for row in rows]


def test_postgres_claim_takes_the_best_first(session: Connected) -> None:
    """Across functions and priorities; what it returns is what stands there then."""
    session.put(
        task("d", enqueued_at=100),
        task("c", enqueued_at=100, task_name="app:other"),
        task("b", enqueued_at=99),
        task("a", priority=1, enqueued_at=500),
        task("late", priority=1, enqueued_at=1_001),
        task("unknown", priority=1, task_name="app:unknown"),
        task("owned", priority=1, claimed_by_worker_id=OTHER),
    )
    found = session.take(3)
    assert ids(found) == ["a", "b", "c"]
    assert found[0] == task("a", priority=1, enqueued_at=500, status="CLAIMED", claimed_at=1_000, updated_at=1_000)
    assert ids(session.take(3)) == ["d"]
    assert session.take(3) == []


def test_postgres_claims_at_once_take_different_rows(session: Connected, other: Connected) -> None:
    """The second does not wait for the first, which has not committed, and gets the next best rows."""
    session.put(*(task(f"t{number}") for number in range(9)))
    assert ids(other.take(4)) == ["t0", "t1", "t2", "t3"]
    assert ids(session.take(4)) == ["t4", "t5", "t6", "t7"]
    other.raw.execute("ROLLBACK")
    assert ids(session.take(9)) == ["t0", "t1", "t2", "t3", "t8"]


def test_postgres_claim_locks_no_row_that_it_does_not_take(session: Connected, other: Connected) -> None:
    """Others would step over it, and take worse ones."""
    session.put(
        task("unknown", task_name="app:unknown"), *(task(f"t{number}", priority=number) for number in (1, 2, 3))
    )
    assert ids(other.take(1)) == ["t1"]
    assert ids(session.take(9)) == ["t2", "t3"]
    assert ids(session.take(9, task_names=["app:unknown"])) == ["unknown"]


@pytest.mark.parametrize(
    "statement", [claims.READY, claims.ABOVE_FLOORS, claims.SLEPT, claims.BY_FUNCTION, claims.OF_OTHERS]
)
def test_postgres_claim_looks_each_row_up_by_its_key(session: Connected, statement: str) -> None:
    """Also where nothing was free when the table was analyzed. An index of free rows would be read whole for each row,
    with all that was taken from it while another program has a transaction open.
    """
    session.put(*(task(f"t{number}", status="COMPLETED", completed_at=1) for number in range(2_000)))
    session.execute("ANALYZE taskmanager_tasks")
    session.put(*(task(f"new{number}") for number in range(30)))
    session.execute("BEGIN")
    for name, value in _PLANS.items():
        session.execute(f"SET LOCAL {name} = '{value}'")
    given = claims._given(wants(), 10) | {"due_at": 1_000, "floors": "{0}"}
    plan = [line for (line,) in session.execute(f"EXPLAIN (COSTS OFF) {statement}", given).fetchall()]
    session.execute("ROLLBACK")
    locking = next(number for number, line in enumerate(plan) if "LockRows" in line)
    assert "using taskmanager_tasks_pkey" in plan[locking + 1], "\n".join(plan)


@pytest.mark.parametrize("seed", range(5))
def test_postgres_claim_starts_what_the_rule_says(session: Connected, seed: int) -> None:
    """The rule is written twice: here it is a part of the statement, so that a claim is one question to the server."""
    chance = random.Random(seed)
    names = [f"app:f{number}" for number in range(5)]
    options: list[dict[str, Any]] = [{}, {}, {}, {"crash_count": 1}, {"good_until": 9_999}, {"cancel_requested_at": 5}]
    rows = [
        task(f"t{number:02}", task_name=chance.choice(names), priority=chance.randint(1, 3), **chance.choice(options))
        for number in range(40)
    ]
    session.put(*rows)
    rooms = tuple(Room(frozenset(lane), chance.randint(0, 5)) for lane in (names[:2], names[2:3], names[3:4]))
    starting = Starting(chance.randint(0, 9), rooms, 7, "host", "main")
    best = sorted(rows, key=lambda row: (row.priority, row.enqueued_at, row.task_id))[:30]
    plain = [row for row in best if not row.crash_count and row.good_until is None and row.cancel_requested_at is None]
    found = session.take(30, task_names=names, starting=starting)
    assert ids(found) == ids(best)
    assert [row.task_id for row in found if row.status == "RUNNING"] == [
        plain[each].task_id for each in started([row.task_name for row in plain], starting)
    ]


def test_postgres_claim_marks_what_it_starts(session: Connected) -> None:
    """Nothing of the wait before stays."""
    session.put(task("a", start_count=2, next_retry_at=90, progress="{}", retry_count=1))
    (row,) = session.take(starting=Starting(9, (Room(frozenset({"app:job"}), 9),), 7, "host", "main"))
    times = {"claimed_at": 1_000, "started_at": 1_000, "updated_at": 1_000}
    worker = {"worker_pid": 7, "worker_hostname": "host", "worker_process_name": "main"}
    assert row == task("a", status="RUNNING", start_count=3, retry_count=1, **times, **worker)


def test_postgres_claim_gets_past_rows_of_unknown_functions(session: Connected, other: Connected) -> None:
    """However many stand in front, and also beside a claim that does the same."""
    session.put(*(task(f"u{number:04}", priority=1, task_name="app:unknown") for number in range(1_100)))
    session.put(*(task(f"t{number}", task_name=f"app:{'job' if number % 2 else 'other'}") for number in range(5)))
    assert ids(other.take(2)) == ["t0", "t1"]
    assert ids(session.take(2)) == ["t2", "t3"]
    assert ids(session.take(2)) == ["t4"]


def test_postgres_claim_gets_past_many_rows_that_others_take(session: Connected, other: Connected) -> None:
    """Behind rows of unknown functions: the four times as many that it looks at first are all locked."""
    session.put(*(task(f"u{number:04}", priority=1, task_name="app:unknown") for number in range(1_100)))
    session.put(*(task(f"t{number:02}") for number in range(20)))
    assert len(other.take(18)) == 18
    assert ids(session.take(2)) == ["t18", "t19"]


def test_postgres_claim_wakes_who_has_slept(session: Connected, other: Connected) -> None:
    """What another claim is just waking, or taking, is left to that one."""
    session.put(*(task(f"t{number}", sent_at=10, enqueued_at=50) for number in range(3)))
    session.put(*(task(name, sent_at=number, enqueued_at=900, snooze_count=1) for number, name in enumerate("xy")))
    for name in "xy":
        session.execute(
            "INSERT INTO taskmanager_steps (task_id, kind, number, key, name, started_at, attempts, is_final, wakes_at)"
            " VALUES (?, 'step', 1, '', 'sleep', 1, 1, 0, 900)",
            (name,),
        )
    assert ids(other.take(1, has_slept=True)) == ["x"]
    assert ids(session.take(1)) == ["t0"]
    other.raw.execute("COMMIT")
    assert ids(session.take(2)) == ["y", "t1"]
    assert session.execute("SELECT count(*) FROM taskmanager_steps WHERE wakes_at IS NOT NULL").fetchone() == (0,)


def test_postgres_claim_takes_over_every_second_row(session: Connected, other: Connected) -> None:
    """As many as start; and none that another one is just taking over."""
    session.put(*(task(f"t{number}", claimed_by_worker_id=OTHER) for number in range(6)), task("free"))
    session.put(task("mine", claimed_by_worker_id=ME), task("ran", start_count=1, claimed_by_worker_id=OTHER))
    lanes = Starting(2, (Room(frozenset({"app:job"}), 9),), 7, "host", "main")
    wanted: dict[str, Any] = {"starting": lanes, "others_due_at": 900}
    assert [(row.task_id, row.status, row.claimed_by_worker_id) for row in other.take(2, **wanted)] == [
        ("t0", "RUNNING", ME),
        ("t2", "RUNNING", ME),
    ]
    assert session.take(2, **wanted) == []
    other.raw.execute("COMMIT")
    assert ids(session.take(2, **wanted)) == ["t1", "t4"]


def test_postgres_queues_are_held_one_by_one(session: Connected, other: Connected) -> None:
    """Who counts what a queue holds is alone with it until the commit; other queues, and other schemas, are free."""
    claims.hold_queue(other, "gpu", 7)  # type: ignore[arg-type]  # all that it needs
    claims.hold_queue(session, "mail", 7)  # type: ignore[arg-type]
    claims.hold_queue(session, "gpu", 8)  # type: ignore[arg-type]
    with pytest.raises(psycopg.errors.LockNotAvailable):
        claims.hold_queue(session, "gpu", 7)  # type: ignore[arg-type]
