"""Two instances on one database, in every order: each may take the other's work, die, or go on with work it has lost.

An owner here is as simple as an engine can be: it remembers each row as its own last write left it, and writes with
that as the precondition, however old it is. What must hold then is the store's and the recovery's doing alone.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from taskmanager.duties.recovery import Recovery
from taskmanager.model.record import AttemptRow, TaskRow, TaskWrite, expected_of
from taskmanager.model.states import TERMINAL, TaskStatus, can_move
from taskmanager.store.place import place_at
from taskmanager.store.protocol import ClaimRequest, CommitReport, InstanceRow, TaskFilter
from tests.conftest import EMPTY

REPEATABLE = '{"persist":true,"requeue_on_interrupt":true}'
RETRIED = (
    '{"persist":true,"retry":{"auto_retry_for":["WORKER_CRASHED"],"max_retries":2,"intervals":[0,0],'
    '"backoff_strategy":"fixed","jitter":false}}'
)
OPTIONS = ['{"persist":true}', REPEATABLE, RETRIED]
INSTANCES = st.sampled_from([0, 1])
NUMBERS = st.integers(0, 5)
NewDatabase = Callable[[], AbstractContextManager[str]]
"""Gives the path or the URL of a database without rows."""


class Ticks:
    """A clock that is a counter, so that no two events have one instant."""

    def __init__(self) -> None:
        self.count = 0

    def now_us(self) -> int:
        self.count += 1
        return self.count

    def elapsed_s(self) -> float:
        return float(self.count)


class Owner:
    """One instance: its connection to the database, and what it believes to own."""

    def __init__(self, database: str, number: int, clock: Ticks) -> None:
        self.store = place_at(database).new_store(synchronous="normal")
        self.number, self.clock, self.life = number, clock, 0
        self.held: dict[str, TaskRow] = {}

    @property
    def instance_id(self) -> str:
        return f"i{self.number}-{self.life}"

    def recovery(self) -> Recovery:
        """Takes every other instance for dead: the worst that a judge of the living can do."""
        who = InstanceRow(self.instance_id, None, "host", 1, "main", None, 0, None, None, 0)
        return Recovery(self.store, self.clock, who, None, random_01=lambda: 0.5)

    def begun(self, row: TaskRow) -> TaskWrite:
        """Start what waits, for this owner."""
        now = self.clock.now_us()
        started = row._replace(
            status="RUNNING", claimed_by_worker_id=self.instance_id, started_at=now, start_count=row.start_count + 1
        )
        return TaskWrite(started._replace(updated_at=now), expected_of(row))

    def ended(self, row: TaskRow, status: TaskStatus) -> TaskWrite:
        """End what runs, or let it wait again."""
        now = self.clock.now_us()
        is_success = status is TaskStatus.COMPLETED
        changed = row._replace(
            status=status.value,
            completed_at=now if is_success else None,
            failed_at=now if status in TERMINAL and not is_success else None,
            error_code="BOOM" if status in TERMINAL and not is_success else None,
            updated_at=now,
        )
        outcome = "COMPLETED" if is_success else "FAILED"
        attempt = AttemptRow(
            row.task_id, row.start_count, outcome, status is TaskStatus.PENDING, row.started_at or 0, now, None, None,
            None, self.instance_id, "host", 1, "main", now,
        )  # fmt: skip
        return TaskWrite(changed, expected_of(row), (attempt,))


class TwoInstances(RuleBasedStateMachine):
    """The database is the only thing that the two share."""

    def __init__(self, new_database: NewDatabase) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Ticks()
        self.leaving = ExitStack()
        database = self.leaving.enter_context(new_database())
        self.owners = [Owner(database, number, self.clock) for number in (0, 1)]
        self.rows: dict[str, TaskRow] = {}
        self.starters: dict[tuple[str, int], str] = {}
        self.successes: set[str] = set()
        for owner in self.owners:
            self.run(owner.store.open())

    def run(self, work: Awaitable[Any]) -> Any:
        """On the machine's own loop."""

        async def wait() -> Any:
            return await work

        return self.runner.run(wait())

    def write(self, owner: Owner, write: TaskWrite) -> None:
        """Commit one change of what the owner believes to hold; it wins exactly if the belief is right."""
        task_id = write.row.task_id
        current = self.rows[task_id]
        is_right = write.expected == expected_of(current)
        report = self.run(owner.store.commit([write]))
        assert not report.rejected
        assert (task_id not in report.lost) == is_right, "a fenced write won, or one that owns its row lost"
        if is_right:
            self.note_win(owner, write)
            return
        assert report.lost[task_id] == current
        assert self.run(owner.store.fetch(task_id)) == current
        del owner.held[task_id]

    def note_win(self, owner: Owner, write: TaskWrite) -> None:
        """What a win means: nobody else has started this generation, and nobody has succeeded before."""
        row = write.row
        owner.held[row.task_id] = row
        if row.status == "RUNNING":
            assert self.starters.setdefault((row.task_id, row.start_count), owner.instance_id) == owner.instance_id
            assert row.task_id not in self.successes
        if row.status == "COMPLETED":
            assert row.task_id not in self.successes
            self.successes.add(row.task_id)

    def pick(self, owner: Owner, number: int, *statuses: str) -> TaskRow | None:
        """One of the rows that the owner believes to have in one of these statuses."""
        rows = [row for row in owner.held.values() if row.status in statuses]
        return rows[number % len(rows)] if rows else None

    @precondition(lambda self: len(self.rows) < 5)
    @rule(number=INSTANCES, options=st.sampled_from(OPTIONS), is_free=st.booleans())
    def enqueue(self, number: int, options: str, is_free: bool) -> None:
        """A new task, of this instance or of nobody."""
        owner, now = self.owners[number], self.clock.now_us()
        nothing: dict[str, Any] = dict.fromkeys(TaskRow._fields)
        zeros = dict.fromkeys(["retry_count", "start_count", "crash_count", "snooze_count", "is_workflow_task"], 0)
        row = TaskRow(**(nothing | zeros))._replace(
            task_id=f"t{len(self.rows)}", task_name="app:job", queue_name="default", priority=50, args="[]",
            kwargs="{}", status="PENDING", sent_at=now, enqueued_at=now, max_retries=2, task_options=options,
            created_at=now, updated_at=now, claimed_by_worker_id=None if is_free else owner.instance_id,
        )  # fmt: skip
        assert self.run(owner.store.commit([TaskWrite(row, None)])) == CommitReport({}, {})
        if not is_free:
            owner.held[row.task_id] = row

    @rule(limits=st.tuples(st.integers(0, 3), st.integers(0, 3)))
    def claim(self, limits: tuple[int, int]) -> None:
        """Both at once: each free row goes to one of them."""

        async def both() -> list[list[TaskRow]]:
            now = self.clock.now_us()
            requests = [ClaimRequest(each.instance_id, ["app:job"], "default", limit, now)
                        for each, limit in zip(self.owners, limits, strict=True)]  # fmt: skip
            return await asyncio.gather(
                *[each.store.claim(request) for each, request in zip(self.owners, requests, strict=True)]
            )

        first, second = self.run(both())
        assert not {row.task_id for row in first} & {row.task_id for row in second}
        for owner, rows in zip(self.owners, (first, second), strict=True):
            owner.held.update((row.task_id, row) for row in rows)

    @rule(number=INSTANCES, which=NUMBERS)
    def start(self, number: int, which: int) -> None:
        """Start what it believes to hold."""
        owner = self.owners[number]
        if row := self.pick(owner, which, "PENDING", "CLAIMED"):
            self.write(owner, owner.begun(row))

    @rule(number=INSTANCES, which=NUMBERS, status=st.sampled_from(["COMPLETED", "COMPLETED", "FAILED", "PENDING"]))
    def end(self, number: int, which: int, status: str) -> None:
        """End what it believes to run."""
        owner = self.owners[number]
        if row := self.pick(owner, which, "RUNNING"):
            self.write(owner, owner.ended(row, TaskStatus(status)))

    @rule(which=NUMBERS)
    def race(self, which: int) -> None:
        """Both write on the same row at the same time, each with what stands there: one wins."""
        live = [row for row in self.rows.values() if row.status not in TERMINAL]
        if not live:  # as a precondition it would depend on who won an earlier race
            return
        row = live[which % len(live)]
        writes = [
            owner.ended(row, TaskStatus.FAILED) if row.status == "RUNNING" else owner.begun(row)
            for owner in self.owners
        ]

        async def both() -> list[Any]:
            return await asyncio.gather(
                *[owner.store.commit([write]) for owner, write in zip(self.owners, writes, strict=True)]
            )

        reports = self.run(both())
        assert sorted(len(report.lost) for report in reports) == [0, 1]
        for owner, write, report in zip(self.owners, writes, reports, strict=True):
            owner.held.pop(row.task_id, None)
            if not report.lost:
                self.note_win(owner, write)

    @rule(number=INSTANCES)
    def stop(self, number: int) -> None:
        """A graceful end: what waits is free; what runs stays as it is. It goes on believing."""
        owner = self.owners[number]
        self.run(owner.store.release(owner.instance_id, self.clock.now_us()))

    @rule(number=INSTANCES)
    def recover(self, number: int) -> None:
        """It takes the other one for dead, which that one may well not be."""
        self.run(self.owners[number].recovery().run_once())

    @rule(number=INSTANCES, forgets=st.booleans())
    def restart(self, number: int, forgets: bool) -> None:
        """A new life under a new id. One that forgets nothing goes on with the beliefs of the old one."""
        owner = self.owners[number]
        owner.life += 1
        if forgets:
            owner.held.clear()
        self.run(owner.store.close())
        self.run(owner.store.open())

    @invariant()
    def nothing_is_lost_or_undone(self) -> None:
        """Every task is still there, its generations only grow, its end is final, and both see the same."""
        first, second = (self.run(each.store.fetch_many(TaskFilter(limit=100))) for each in self.owners)
        assert first == second
        # A list carries no payloads, and a write that lost is answered with the whole row.
        now = self.run(self.owners[0].store.fetch_ids([row.task_id for row in first]))
        assert now.keys() >= self.rows.keys()
        for task_id, old in self.rows.items():
            new = now[task_id]
            assert new.start_count >= old.start_count
            assert new.crash_count >= old.crash_count
            if old.status != new.status:
                assert can_move(TaskStatus(old.status), TaskStatus(new.status))
            if old.status in TERMINAL:
                assert new == old
            if new.status == "RUNNING":
                assert self.starters[task_id, new.start_count] == new.claimed_by_worker_id
        self.rows = now
        self.check_attempts()

    def check_attempts(self) -> None:
        """At most one row per start, and a success exactly where the task succeeded."""
        for task_id, row in self.rows.items():
            attempts = self.run(self.owners[0].store.fetch_attempts(task_id))
            numbers = [each.attempt for each in attempts]
            assert numbers == sorted(set(numbers))
            assert not numbers or numbers[-1] <= row.start_count
            successes = [each for each in attempts if each.outcome == "COMPLETED"]
            assert len(successes) == (row.status == "COMPLETED") == (task_id in self.successes)

    def teardown(self) -> None:
        for owner in self.owners:
            self.run(owner.store.close())
        self.runner.close()
        self.leaving.close()


@contextmanager
def new_file() -> Iterator[str]:
    """A file in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="two-instances-") as folder:
        yield str(Path(folder) / "tasks.db")


# The other Pythons and `make quick` leave the server out, as they do in the contract suite. Each step of an example
# asks it some ten times, so it sees fewer of them.
@pytest.mark.req("PR-36", "PR-37", "PR-38", "HB-21", "DS-060")
@pytest.mark.parametrize(("kind", "share"), [("sqlite", 5), pytest.param("postgresql", 10, marks=pytest.mark.slow)])
def test_two_instances_lose_nothing_and_undo_nothing(request: pytest.FixtureRequest, kind: str, share: int) -> None:
    """The same examples, on two stores of one file and on two stores of one schema."""
    new_database: NewDatabase = new_file
    if kind == "postgresql":
        url, cluster = request.getfixturevalue("empty_url"), request.getfixturevalue("cluster")

        @contextmanager
        def emptied() -> Iterator[str]:
            """The one schema again. To make another one takes half a second."""
            yield url
            cluster.psql(EMPTY)

        new_database = emptied
    few = settings(max_examples=settings().max_examples // share, stateful_step_count=25)
    run_state_machine_as_test(lambda: TwoInstances(new_database), settings=few)  # type: ignore[arg-type]  # takes both
