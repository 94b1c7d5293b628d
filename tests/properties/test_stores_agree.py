"""The file against a model: the same calls give the same answers and leave the same rows, however often it is reopened.

The model is the specification in its shortest form. What both do wrong in the same way is the contract suite's.
"""

import asyncio
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from taskmanager.model.clock import SystemClock
from taskmanager.model.record import (
    AttemptRow,
    Expected,
    StartWrite,
    SuccessWrite,
    TaskRow,
    TaskWrite,
    Write,
    expected_of,
)
from taskmanager.model.states import TERMINAL, WAITING, AttemptOutcome, TaskStatus
from taskmanager.model.steps import StepRow
from taskmanager.rules.claims import Room, Starting
from taskmanager.rules.figures import Span
from taskmanager.store.protocol import ClaimRequest, CommitReport, InstanceRow, Store, TaskFilter
from taskmanager.store.sqlite import SqliteStore
from tests.properties.model_store import ModelStore

HAPPENED = ("started", "completed", "failed", "cancelled", "expired", "interrupted", "retried")
IDS = [f"t{number}" for number in range(6)]
NAMES, QUEUES, OWNERS = ["app:a", "app:b"], ["default", "mail"], ["i1", "i2"]
# A lone surrogate, a NUL, and text that a careless JSON round trip would change.
TEXTS = st.sampled_from([None, "[]", '{"a": 1.0}', "é\x00", "caf\udce9"])
# The columns that the library reads itself: what else stands there is a matter of one row, not of the store.
OBJECTS = st.sampled_from([None, "{}", '{"a": "é\\u0000"}', '{"a":"1"}'])
LOGS = st.sampled_from([None, "[]", '[{"a": 1.0}]'])
INSTANTS = st.integers(0, 9)  # and nothing ends before it was sent, which is at -3 to 0
STATUSES = st.sampled_from(TaskStatus)

STARTINGS = st.builds(
    lambda limit, rooms: Starting(limit, rooms, 7, "host", "main"),
    st.integers(0, 3),
    st.sampled_from(
        [
            (Room(frozenset(NAMES), 2),),
            (Room(frozenset(NAMES[:1]), 1), Room(frozenset(NAMES[1:]), 1)),
            (Room(frozenset(NAMES[1:]), 3),),
            (),
        ]
    ),
)
"""Slots of one lane, or of two, or for one function only."""

FOLLOWED = (
    '{"persist": true, "on_failure": {"task_name": "app:a", "queue_name": "mail", "priority": 7, "delay_s": 1e-06,'
    ' "options": {"persist": true}}}'
)
"""The options of a task whose failure enqueues another."""
FREE = {
    "queue_name": st.sampled_from(QUEUES),
    "priority": st.sampled_from([50, 1, 100]),
    "args": TEXTS,
    "enqueued_at": INSTANTS,
    "max_retries": st.integers(0, 2),
    "good_until": st.none() | INSTANTS,
    "task_options": st.sampled_from(["{}", '{"persist": true}', '{"persist": false}', FOLLOWED]),
    "tags": OBJECTS,
    "idempotency_key": TEXTS,
    "scheduled_for": st.none() | INSTANTS,
}
"""What stays as it is when a run starts or ends."""
CHANGING = {
    "result": TEXTS,
    "failed_reason": TEXTS,
    "retry_count": st.integers(0, 2),
    "next_retry_at": st.none() | INSTANTS,
    "crash_count": st.integers(0, 2),
    "snooze_count": st.integers(0, 2),
    "cancel_requested_at": st.none() | INSTANTS,
    "progress": OBJECTS,
    "log": LOGS,
    "worker_pid": st.sampled_from([None, 7]),
    "updated_at": INSTANTS,
}


SLIPS: list[dict[str, Any]] = [
    {"crash_count": -1},
    {"worker_pid": 2**63},
    {"status": "CLAIMED", "claimed_by_worker_id": None},
    {"status": "RUNNING", "started_at": None},
    {"status": "COMPLETED", "completed_at": None},
    {"status": "PENDING", "error_code": "BOOM"},
]
"""What no store takes, whatever else is in the row."""


def blank(task_id: str) -> TaskRow:
    """A row with nothing but its identity."""
    nothing: dict[str, Any] = dict.fromkeys(TaskRow._fields)
    empty = TaskRow(**nothing)._replace(task_id=task_id, task_name="app:a", kwargs="{}")
    return empty._replace(sent_at=0, enqueued_at=0, created_at=0, updated_at=0, is_workflow_task=0, start_count=0)


@st.composite
def moved(draw: st.DrawFn, row: TaskRow, status: TaskStatus, *, is_step: bool) -> TaskRow:
    """`row` in another status, with whatever else may change on the way; sometimes such that no store takes it."""
    strategies = CHANGING if is_step else CHANGING | FREE
    changes: dict[str, Any] = {name: draw(values) for name, values in strategies.items()}
    owner = (
        draw(st.sampled_from(OWNERS)) if status in ("CLAIMED", "RUNNING") else draw(st.sampled_from([None, *OWNERS]))
    )
    good = row._replace(
        **changes,
        status=status.value,
        claimed_by_worker_id=owner,
        claimed_at=draw(st.none() | INSTANTS),
        started_at=draw(INSTANTS) if status in ("RUNNING", *TERMINAL) else None,
        completed_at=draw(INSTANTS) if status is TaskStatus.COMPLETED else None,
        failed_at=draw(st.none() | INSTANTS),
        error_code=draw(st.sampled_from([None, "BOOM"])) if status in TERMINAL - {TaskStatus.COMPLETED} else None,
        start_count=row.start_count + (status is TaskStatus.RUNNING),
    )
    return good if draw(st.integers(0, 9)) else good._replace(**draw(st.sampled_from(SLIPS)))


@st.composite
def attempts_of(draw: st.DrawFn, task_id: str) -> tuple[AttemptRow, ...]:
    """Up to two attempts, whose numbers may be taken already."""
    numbers = draw(st.lists(st.integers(1, 4), max_size=2, unique=True))
    outcome = st.sampled_from([*(each.value for each in AttemptOutcome)] * 5 + ["SHRUG"])
    return tuple(
        AttemptRow(task_id, number, draw(outcome), draw(st.booleans()), 1, draw(INSTANTS), None, draw(TEXTS),
                   None, draw(st.sampled_from(OWNERS)), "host", 1, "main", 2)
        for number in sorted(numbers)
    )  # fmt: skip


@st.composite
def steps_of(draw: st.DrawFn, task_id: str) -> tuple[StepRow, ...]:
    """Up to two records of steps, which may be there already."""
    identities = st.sampled_from([("step", 1, ""), ("step", 2, ""), ("patch", 0, "v2")])
    places = draw(st.lists(identities, max_size=2, unique=True))
    return tuple(
        StepRow(task_id, *place, draw(st.sampled_from(NAMES)), draw(TEXTS), draw(INSTANTS), draw(st.none() | INSTANTS),
                draw(st.integers(1, 3)), draw(TEXTS), draw(st.sampled_from([None, "BOOM"])), draw(TEXTS),
                draw(st.integers(0, 1)))
        for place in sorted(places)
    )  # fmt: skip


@st.composite
def insertion(draw: st.DrawFn, task_id: str) -> TaskWrite:
    """A new row, whether the id is taken or not."""
    row = blank(task_id)._replace(task_name=draw(st.sampled_from(NAMES)), sent_at=draw(st.integers(-3, 0)))
    written = draw(moved(row, draw(STATUSES), is_step=False))
    return TaskWrite(written, None, draw(attempts_of(task_id)))


@st.composite
def free(draw: st.DrawFn, task_id: str) -> TaskWrite:
    """A new row that waits and is free, as nearly every task begins."""
    counts = dict.fromkeys(("retry_count", "max_retries", "crash_count", "snooze_count"), 0)
    named = {"task_name": draw(st.sampled_from(NAMES)), "queue_name": draw(st.sampled_from(QUEUES))}
    row = blank(task_id)._replace(**named, **counts, status="PENDING", task_options="{}")
    return TaskWrite(row._replace(priority=draw(FREE["priority"]), enqueued_at=draw(st.integers(0, 3))), None)


@st.composite
def change(draw: st.DrawFn, current: TaskRow) -> Write:
    """A change of what is there, with the right precondition most of the time; sometimes said in the lean way."""
    expected = expected_of(current)
    if draw(st.integers(0, 3)) == 0:
        wrong = Expected(draw(STATUSES).value, draw(st.sampled_from([None, *OWNERS])), draw(st.integers(0, 2)))
        expected = draw(st.sampled_from([wrong, expected._replace(owner=wrong.owner)]))
    name, kind = current.task_name, draw(st.sampled_from([TaskWrite, TaskWrite, StartWrite, SuccessWrite]))
    if kind is StartWrite:
        waiting = expected._replace(status=draw(st.sampled_from(sorted(WAITING))).value)
        worker = draw(CHANGING["worker_pid"]), "host", None
        return StartWrite(
            current.task_id, name, waiting, draw(INSTANTS), *worker, current.queue_name, current.enqueued_at
        )
    if kind is SuccessWrite:
        running = expected._replace(status="RUNNING")
        started, ended = draw(INSTANTS), draw(INSTANTS)
        said = current.task_id, name, running, started, ended, draw(TEXTS), 1, "host", draw(TEXTS)
        return SuccessWrite(*said, current.queue_name)
    status = draw(STATUSES)
    is_step = (status in TERMINAL) if current.status == "RUNNING" else current.status in WAITING and status == "RUNNING"
    row, keeps_call, forgets = draw(moved(current, status, is_step=is_step)), draw(st.booleans()), draw(st.booleans())
    attempts, steps = draw(attempts_of(current.task_id)), draw(steps_of(current.task_id))
    return TaskWrite(row, expected, attempts, keeps_call, steps, forgets)


def told(report: CommitReport) -> tuple[object, set[str]]:
    """A report without the words in which a store refuses a row."""
    return dict(report.lost), set(report.rejected)


async def picture(store: Store) -> tuple[list[TaskRow], list[Any]]:
    """Everything that a store can be asked."""
    found = await store.fetch_ids([*IDS, "nobody"])
    rows = [found[task_id] for task_id in sorted(found)]
    answers: list[Any] = [await store.fetch_attempts(row.task_id) for row in rows]
    answers += [await store.fetch_steps(row.task_id) for row in rows]
    answers += [await store.fetch_many(TaskFilter(limit=len(IDS))), await store.fetch_many(TaskFilter(task_id="t1"))]
    answers += [await store.counts(), await store.free_queues(), await store.instances(), await store.paused_queues()]
    answers += [await store.fetch_cancel_requests("i1"), await store.waiting_levels(9)]
    answers.append(await store.fetch_taken([*IDS, "nobody"], "i1"))
    for owners in (OWNERS[:1], OWNERS, []):
        answers.append(await store.fetch_owned(owners, limit=2, after="t1"))
        answers.append(await store.fetch_owned(owners, limit=2, after="t1", is_running=True))
        answers.append(await store.fetch_orphans(owners, limit=3))
    answers.append(await store.fetch_expired(2, limit=3))
    for wanted in (
        TaskFilter(queue_name="mail"),
        TaskFilter(TaskStatus.PENDING, "app:b"),
        TaskFilter(before=(-1, "t2")),
        TaskFilter(error_code="BOOM"),
        TaskFilter(since=1),
    ):
        answers.append(await store.fetch_many(wanted))
    return rows, answers


class Still(SystemClock):
    """A clock that stands at the last of the instants."""

    def now_us(self) -> int:
        return 9


class StoresAgree(RuleBasedStateMachine):
    """One sequence of calls, made to both."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="stores-agree-"))
        self.model = ModelStore()
        self.file = SqliteStore(self.folder / "tasks.db", synchronous="normal", clock=Still())
        self.rows: dict[str, TaskRow] = {}
        self.both(lambda store: store.open())

    def both(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Make the call to both; the answer, which is one."""

        async def make() -> tuple[Any, Any]:
            return await call(self.model), await call(self.file)

        wanted, answer = self.runner.run(make())
        if isinstance(wanted, CommitReport):
            wanted, answer = told(wanted), told(answer)
        assert answer == wanted
        return wanted

    @rule(data=st.data(), ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=4, unique=True))
    def commit(self, data: st.DataObject, ids: list[str]) -> None:
        """Inserts and changes in one batch, some of which lose or cannot be stored."""
        writes = []
        for task_id in ids:
            current = self.rows.get(task_id)
            is_new = current is None or data.draw(st.integers(0, 4)) == 0
            writes.append(data.draw(insertion(task_id) if is_new or current is None else change(current)))
        self.both(lambda store: store.commit(writes))

    @rule(writes=st.tuples(*map(free, IDS)))
    def accept(self, writes: tuple[TaskWrite, ...]) -> None:
        """Tasks as they are sent. The other steps need many that are free. Those that are there lose nothing."""
        self.both(lambda store: store.commit(writes))

    @rule(
        owner=st.sampled_from(OWNERS),
        names=st.lists(st.sampled_from([*NAMES, "app:none"]), max_size=2),
        queue=st.sampled_from(QUEUES),
        limit=st.integers(0, 3),
        now=INSTANTS,
        better_than=st.sampled_from([None, None, 2, 100]),
        starting=st.none() | STARTINGS,
    )
    def claim(
        self,
        owner: str,
        names: list[str],
        queue: str,
        limit: int,
        now: int,
        better_than: int | None,
        starting: Starting | None,
    ) -> None:
        """Free rows, best first; some may start at once."""
        request = ClaimRequest(owner, names, queue, limit, now, better_than, starting=starting)
        self.both(lambda store: store.claim(request))

    @rule(
        owner=st.sampled_from(OWNERS),
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=2),
        queue=st.sampled_from(QUEUES),
        limit=st.integers(0, 3),
        now=INSTANTS,
        starting=STARTINGS,
    )
    def take_over(self, owner: str, names: list[str], queue: str, limit: int, now: int, starting: Starting) -> None:
        """Rows that wait at the other instance."""
        request = ClaimRequest(owner, names, queue, limit, now, starting=starting, others_due_at=now)
        self.both(lambda store: store.claim(request))

    @rule(owner=st.sampled_from(OWNERS), now=INSTANTS, unanswered=st.none() | INSTANTS)
    def release(self, owner: str, now: int, unanswered: int | None) -> None:
        """An instance stops."""
        self.both(lambda store: store.release(owner, now, unanswered))

    @rule(owner=st.sampled_from(OWNERS), claimed_at=INSTANTS)
    def fetch_claim(self, owner: str, claimed_at: int) -> None:
        """An answer was lost."""
        self.both(lambda store: store.fetch_claim(owner, claimed_at))

    @rule(owner=st.sampled_from(OWNERS), now=INSTANTS, per_queue=st.none() | st.integers(1, 2))
    def free_waiting(self, owner: str, now: int, per_queue: int | None) -> None:
        """An instance has died. Which rows go first is promised within a queue, so the limit is above them all."""
        self.both(lambda store: store.free_waiting(owner, now, 100, per_queue))

    @rule(task_ids=st.lists(st.sampled_from(IDS), min_size=1, unique=True), now=INSTANTS)
    def request_cancel(self, task_ids: list[str], now: int) -> None:
        """Somebody asks for a cancel of these."""
        self.both(lambda store: store.request_cancel(task_ids, now))

    @rule(status=st.none() | STATUSES, older_than=st.none() | INSTANTS)
    def purge(self, status: TaskStatus | None, older_than: int | None) -> None:
        """History is deleted, to the end: which rows go first, and how many in one call, is not promised."""

        async def purge_all(store: Store) -> int:
            gone = 0
            while page := await store.purge(TaskFilter(status), older_than, len(IDS)):
                gone += page
            return gone

        self.both(purge_all)

    @rule(owner=st.sampled_from(OWNERS), at=INSTANTS, queue=st.sampled_from(QUEUES), flag=st.booleans())
    def notes(self, owner: str, at: int, queue: str, flag: bool) -> None:
        """Instances and pauses."""
        row = InstanceRow(owner, None, "host", 1, "main", None, at, None, None, at)
        self.both(lambda store: store.save_instance(row) if flag else store.forget_instances([owner]))
        self.both(lambda store: store.set_paused(queue, flag, at))

    @rule()
    def reopen(self) -> None:
        """Nothing that was answered depends on the connection."""
        self.both(lambda store: store.close())
        self.both(lambda store: store.open())

    @invariant()
    def everything_read_is_the_same(self) -> None:
        """Every row with its attempts, and each way to search and to sum them up."""
        seen = self.both(picture)
        self.rows = {row.task_id: row for row in seen[0]}

    @rule()
    def figures(self) -> None:
        """Each start and each end was counted once, in the minute and in the hour, and nothing that lost."""
        self.runner.run(self.file.add_figures())
        with closing(sqlite3.connect(self.folder / "tasks.db")) as connection:
            connection.row_factory = sqlite3.Row
            rows = connection.execute("SELECT * FROM taskmanager_figures").fetchall()
        for span in Span:
            found: Counter[tuple[str, str, str]] = Counter()
            for row in rows:
                named = ((row["task_name"], row["queue_name"], what) for what in HAPPENED)
                found.update({each: row[each[2]] for each in named if row["span"] == span})
            assert +found == self.model.counted, span

    def teardown(self) -> None:
        self.figures()
        self.both(lambda store: store.close())
        self.runner.close()
        shutil.rmtree(self.folder)


TestStoresAgree = pytest.mark.req("DS-038", "DS-040", "DS-043", "DS-057", "DS-120")(StoresAgree.TestCase)
TestStoresAgree.settings = settings(max_examples=settings.default.max_examples // 5, stateful_step_count=20)
