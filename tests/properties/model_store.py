"""What the store answers, in its shortest form: dicts and plain Python, to hold the statements of SQLite against.

It has the verbs that deal with the rows of tasks, and those that they depend on.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from taskmanager.model.record import (
    AttemptRow,
    StartWrite,
    SuccessWrite,
    TaskRow,
    TaskWrite,
    Write,
    due_at,
    in_full,
)
from taskmanager.model.states import TERMINAL, WAITING, AttemptOutcome, TaskStatus
from taskmanager.rules.claims import Starting, started
from taskmanager.store.constraints import encodable, is_memory_only, row_faults, step_of
from taskmanager.store.protocol import (
    FREE_COUNT_CAP,
    ClaimRequest,
    CommitReport,
    FreeQueue,
    InstanceRow,
    TaskFilter,
    WaitingLevel,
)

_INT64: Final = 1 << 63
_OUTCOMES: Final = frozenset(AttemptOutcome)


class ModelStore:
    """The verbs as they are meant."""

    def __init__(self) -> None:
        self._live: dict[str, TaskRow] = {}
        self._ended: dict[str, TaskRow] = {}
        self._attempts: dict[str, dict[int, AttemptRow]] = {}
        self._instances: dict[str, InstanceRow] = {}
        self._paused: dict[str, int] = {}

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; what it holds stays."""

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        lost: dict[str, TaskRow | None] = {}
        rejected: dict[str, str] = {}
        for lean in writes:
            current = self._row(lean.task_id)
            write = _in_full(lean, current)
            if write is None or not _wins(write, current):
                lost[lean.task_id] = current
                continue
            clean = encodable(write)
            fault = write_fault(clean)
            if fault is not None:
                rejected[lean.task_id] = fault
            else:
                self._apply(clean, current)
        return CommitReport(lost, rejected)

    def _apply(self, write: TaskWrite, current: TaskRow | None) -> None:
        row = write.row
        if write.expected is not None and current is not None:
            row = row._replace(task_name=current.task_name, sent_at=current.sent_at, created_at=current.created_at)
            if row.cancel_requested_at is None and current.status not in TERMINAL:
                row = row._replace(cancel_requested_at=current.cancel_requested_at)
        self._put(row)
        attempts = self._attempts.setdefault(row.task_id, {})
        if write.expected is None and any(each.attempt in attempts for each in write.attempts):
            # An earlier task of the same key counted from the same number; what it left is not this one's history.
            first = min(each.attempt for each in write.attempts)
            for number in [number for number in attempts if number >= first]:
                del attempts[number]
        for each in write.attempts:
            attempts.setdefault(each.attempt, each._replace(will_retry=bool(each.will_retry)))

    def _row(self, task_id: str) -> TaskRow | None:
        return self._live.get(task_id) or self._ended.get(task_id)

    def _rows(self) -> Iterator[TaskRow]:
        yield from self._live.values()
        yield from self._ended.values()

    def _put(self, row: TaskRow) -> None:
        self._live.pop(row.task_id, None)
        self._ended.pop(row.task_id, None)
        (self._ended if row.status in TERMINAL else self._live)[row.task_id] = row

    def _remove(self, task_ids: Iterable[str]) -> int:
        gone = list(task_ids)
        for task_id in gone:
            del self._ended[task_id]
            self._attempts.pop(task_id, None)
        return len(gone)

    async def claim(self, request: ClaimRequest) -> list[TaskRow]:
        taken = claimed(self._live.values(), request)
        for row in taken:
            self._put(row)
        return taken

    async def fetch_claim(self, owner: str, claimed_at: int) -> list[TaskRow]:
        mine = [
            row for row in self._live.values() if row.claimed_by_worker_id == owner and row.claimed_at == claimed_at
        ]
        return sorted(mine, key=claim_order)

    async def waiting_levels(self, limit: int) -> list[WaitingLevel]:
        return waiting_levels(self._live.values())[:limit]

    async def fetch_taken(self, task_ids: Sequence[str], owner: str) -> dict[str, TaskRow]:
        rows = await self.fetch_ids(task_ids)
        return {each: row for each, row in rows.items() if row.claimed_by_worker_id not in (None, owner)}

    async def release(self, owner: str, now: int, unanswered: int | None = None) -> int:
        free = released(self._live.values(), owner, now, unanswered)
        for row in free:
            self._put(row)
        return len(free)

    async def free_waiting(self, owner: str, now: int, limit: int, per_queue: int | None = None) -> int:
        free = left_waiting(self._live.values(), owner, now, per_queue)[:limit]
        for row in free:
            self._put(row)
        return len(free)

    async def free_queues(self, count_cap: int = FREE_COUNT_CAP) -> list[FreeQueue]:
        found: dict[tuple[str, str], list[int]] = {}
        for row in free_rows(self._live.values()):
            found.setdefault((row.task_name, row.queue_name), []).append(row.enqueued_at)
        return [
            FreeQueue(name, queue, min(len(dues), count_cap), min(dues))
            for (name, queue), dues in sorted(found.items())
        ]

    async def fetch_attempts(self, task_id: str) -> list[AttemptRow]:
        return [attempt for _, attempt in sorted(self._attempts.get(task_id, {}).items())]

    async def fetch_ids(self, task_ids: Sequence[str]) -> dict[str, TaskRow]:
        return {task_id: row for task_id in task_ids if (row := self._row(task_id)) is not None}

    async def fetch_many(self, wanted: TaskFilter) -> list[TaskRow]:
        found = [row for row in self._rows() if _fits(row, wanted)]
        return [row.without_payload() for row in sorted(found, key=_age, reverse=True)[: wanted.limit]]

    async def find_ids(self, wanted: TaskFilter, statuses: Collection[TaskStatus]) -> list[str]:
        found = sorted(self._rows(), key=_age)
        return [row.task_id for row in found if row.status in statuses and _fits(row, wanted)]

    async def fetch_owned(
        self, owners: Collection[str], *, limit: int, after: str = "", is_running: bool = False
    ) -> list[TaskRow]:
        found = self._page(lambda owner: owner in owners, len(self._live), after)
        return [row for row in found if row.status == "RUNNING" or not is_running][:limit]

    async def fetch_orphans(
        self, live_owners: Collection[str], *, limit: int, after: str = "", is_summary: bool = False
    ) -> list[TaskRow]:
        found = self._page(lambda owner: owner not in live_owners, limit, after)
        return [row.without_payload() for row in found] if is_summary else found

    def _page(self, is_wanted: Callable[[str], bool], limit: int, after: str) -> list[TaskRow]:
        live = sorted((task_id, row) for task_id, row in self._live.items() if task_id > after)
        found = [row for _, row in live if (owner := row.claimed_by_worker_id) is not None and is_wanted(owner)]
        return found[:limit]

    async def fetch_expired(self, now: int, *, limit: int) -> list[TaskRow]:
        late = [(row.good_until, row) for row in free_rows(self._live.values()) if row.good_until is not None]
        return [row for good_until, row in sorted(late) if good_until <= now][:limit]

    async def fetch_cancel_requests(self, owner: str) -> list[str]:
        return sorted(
            row.task_id
            for row in self._live.values()
            if row.claimed_by_worker_id == owner and row.cancel_requested_at is not None
        )

    async def request_cancel(self, task_id: str, now: int) -> bool:
        row = self._live.get(task_id)
        if row is not None and row.cancel_requested_at is None:
            self._put(row._replace(cancel_requested_at=now, updated_at=now))
        return row is not None

    async def counts(self) -> dict[TaskStatus, int]:
        found = Counter(row.status for row in self._rows())
        return {status: found[status] for status in TaskStatus}

    async def purge(self, wanted: TaskFilter, older_than: int | None, limit: int) -> int:
        old = [
            row.task_id
            for row in self._ended.values()
            if _fits(row, wanted) and (older_than is None or _end(row) < older_than)
        ]
        return self._remove(old[:limit])

    async def save_instance(self, row: InstanceRow) -> None:
        self._instances[row.instance_id] = row

    async def instances(self) -> list[InstanceRow]:
        return sorted(self._instances.values(), key=lambda row: (row.started_at, row.instance_id))

    async def forget_instances(self, instance_ids: Collection[str]) -> None:
        for instance_id in instance_ids:
            self._instances.pop(instance_id, None)

    async def set_paused(self, queue_name: str, paused: bool, now: int) -> None:
        if paused:
            self._paused.setdefault(queue_name, now)
        else:
            self._paused.pop(queue_name, None)

    async def paused_queues(self) -> frozenset[str]:
        return frozenset(self._paused)


def _in_full(lean: Write, current: TaskRow | None) -> TaskWrite | None:
    """A write with the row that it makes of the present one; None when there is none."""
    write = in_full(lean)
    if not isinstance(write, TaskWrite):
        return None if current is None else TaskWrite(_changed(write, current), write.expected, write.attempts)
    step = None if write.expected is None or current is None else step_of(write, write.expected)
    if step is None or current is None:
        return write
    return write._replace(row=current._replace(**{name: getattr(write.row, name) for name in step}))


def _changed(write: StartWrite | SuccessWrite, current: TaskRow) -> TaskRow:
    if isinstance(write, SuccessWrite):
        at = write.completed_at
        return current._replace(status=write.status, completed_at=at, updated_at=at, result=write.result)
    return current._replace(
        status=write.status,
        start_count=current.start_count + 1,
        started_at=write.started_at,
        updated_at=write.started_at,
        worker_pid=write.worker_pid,
        worker_hostname=write.worker_hostname,
        worker_process_name=write.worker_process_name,
    )


def _wins(write: TaskWrite, current: TaskRow | None) -> bool:
    if write.expected is None:
        return current is None or all(row.status in TERMINAL and is_memory_only(row) for row in (current, write.row))
    held = current and (current.status, current.claimed_by_worker_id, current.start_count)
    return write.expected == held


def _age(row: TaskRow) -> tuple[int, str]:
    return row.sent_at, row.task_id


def _fits(row: TaskRow, wanted: TaskFilter) -> bool:
    names = ("status", "task_name", "queue_name", "task_id", "error_code")
    is_alike = all(getattr(wanted, name) in (None, getattr(row, name)) for name in names)
    is_there = wanted.before is None or _age(row) < wanted.before
    is_recent = wanted.since is None or row.updated_at >= wanted.since
    return is_alike and is_there and is_recent and dict(wanted.tags).items() <= json.loads(row.tags or "{}").items()


def _end(row: TaskRow) -> int:
    ends = (row.completed_at, row.failed_at, row.updated_at)
    # Nothing ended before it was sent, whatever a clock that was stepped back has stamped.
    return max(row.sent_at, next(each for each in ends if each is not None))


def claimed(rows: Collection[TaskRow], request: ClaimRequest) -> list[TaskRow]:
    """Return what `Store.claim` makes of these live rows: the rows that it takes, as they are then."""
    found = sorted(_wanted(rows, request), key=claim_order)
    limit = max(0, request.limit)
    if request.others_due_at is not None:
        # One that has run before may have code that goes on there, in a thread that nobody can end.
        found = [row for row in found if _is_plain(row) and not row.start_count][: 2 * limit : 2]
        return [_started(found[each], request, request.starting) for each in _positions(found, request)]
    taken = [
        row._replace(
            status=TaskStatus.CLAIMED.value,
            claimed_at=request.now,
            claimed_by_worker_id=request.owner,
            updated_at=request.now,
        )
        for row in found[:limit]
    ]
    for each in _positions(taken, request):
        taken[each] = _started(taken[each], request, request.starting)
    return taken


def _wanted(rows: Iterable[TaskRow], request: ClaimRequest) -> Iterator[TaskRow]:
    if request.others_due_at is not None:
        others = (
            row for row in rows if row.status in WAITING and row.claimed_by_worker_id not in (None, request.owner)
        )
        due = due_rows(others, request.task_names, request.queue_name, request.others_due_at)
    else:
        due = due_rows(free_rows(rows), request.task_names, request.queue_name, request.now)
    return (row for row in due if request.better_than is None or row.priority < request.better_than)


def _positions(rows: list[TaskRow], request: ClaimRequest) -> list[int]:
    """The positions of those that start."""
    if request.starting is None:
        return []
    plain = [position for position, row in enumerate(rows) if _is_plain(row)]
    return [plain[each] for each in started([rows[each].task_name for each in plain], request.starting)]


def _is_plain(row: TaskRow) -> bool:
    return row.crash_count == 0 and row.good_until is None and row.cancel_requested_at is None


def _started(row: TaskRow, request: ClaimRequest, starting: Starting | None) -> TaskRow:
    assert starting is not None
    return row._replace(
        status=TaskStatus.RUNNING.value,
        start_count=row.start_count + 1,
        claimed_at=request.now,
        claimed_by_worker_id=request.owner,
        started_at=request.now,
        updated_at=request.now,
        next_retry_at=None,
        progress=None,
        worker_pid=starting.worker_pid,
        worker_hostname=starting.worker_hostname,
        worker_process_name=starting.worker_process_name,
    )


def due_rows(rows: Iterable[TaskRow], task_names: Collection[str], queue_name: str, now: int) -> Iterator[TaskRow]:
    """Those of these functions, in this queue, that are due."""
    names = frozenset(task_names)
    return (row for row in rows if row.task_name in names and row.queue_name == queue_name and row.enqueued_at <= now)


def free_rows(rows: Iterable[TaskRow]) -> Iterator[TaskRow]:
    """Those that wait and that nobody has."""
    return (row for row in rows if row.status == TaskStatus.PENDING and row.claimed_by_worker_id is None)


def waiting_levels(rows: Iterable[TaskRow]) -> list[WaitingLevel]:
    """What waits at instances, by queue and priority."""
    found: dict[tuple[str, int], int] = {}
    for row in rows:
        if row.status in WAITING and row.claimed_by_worker_id is not None:
            key = row.queue_name, row.priority
            found[key] = min(row.enqueued_at, found.get(key, row.enqueued_at))
    return [WaitingLevel(*key, due_at) for key, due_at in sorted(found.items())]


def claim_order(row: TaskRow) -> tuple[int, int, str]:
    """The best first."""
    return row.priority, row.enqueued_at, row.task_id


def freed(row: TaskRow, now: int) -> TaskRow:
    """The row without its owner."""
    return with_due(row, now)._replace(
        status=TaskStatus.PENDING.value,
        claimed_at=None,
        claimed_by_worker_id=None,
        claim_expires_at=None,
        updated_at=now,
    )


def never_ran(row: TaskRow, now: int) -> TaskRow:
    """The row without its owner and without the start, but for the count of that."""
    return freed(row, now)._replace(started_at=None, worker_pid=None, worker_hostname=None, worker_process_name=None)


def released(rows: Iterable[TaskRow], owner: str, now: int, unanswered: int | None) -> list[TaskRow]:
    """Return the waiting rows of an owner as free rows, and those that its claim at `unanswered` has started."""
    mine = [row for row in rows if row.claimed_by_worker_id == owner]
    free = [freed(row, now) for row in mine if row.status in WAITING]
    if unanswered is not None:
        ran = (row for row in mine if row.status not in WAITING)
        free += [never_ran(row, now) for row in ran if row.claimed_at == row.started_at == unanswered]
    return free


def left_waiting(rows: Iterable[TaskRow], owner: str, now: int, per_queue: int | None) -> list[TaskRow]:
    """Return what waited at a dead owner and may run, as free rows: all, or the best of each queue."""
    by_queue: dict[str, list[TaskRow]] = {}
    for row in sorted((row for row in rows if row.claimed_by_worker_id == owner), key=claim_order):
        is_late = row.good_until is not None and row.good_until <= now
        if row.status in WAITING and row.cancel_requested_at is None and not is_late:
            by_queue.setdefault(row.queue_name, []).append(never_ran(row, now)._replace(failed_reason=None))
    return [row for name in sorted(by_queue) for row in by_queue[name][:per_queue]]


def write_fault(write: TaskWrite) -> str | None:
    """Why no store will ever take this write, or None."""
    for values in (write.row, *write.attempts):
        for value in values:
            if isinstance(value, int) and not -_INT64 <= value < _INT64:
                return "OverflowError: an integer does not fit into 64 bits"
            if value is not None and not isinstance(value, str | int):
                return f"a value of type {type(value).__name__} cannot be stored"
    return check_fault(write)


def check_fault(write: TaskWrite) -> str | None:
    """What the `CHECK`s of the schema say against a write whose values can be stored, or None."""
    faults = [*row_faults(write.row)]
    for attempt in write.attempts:
        if attempt.outcome not in _OUTCOMES or attempt.attempt < 1:
            faults.append(f"attempt {attempt.attempt} with outcome {attempt.outcome!r}")
    return "; ".join(faults) or None


def with_due(row: TaskRow, now: int) -> TaskRow:
    """Return the row with its due time for a new write. `next_retry_at` is the same instant, if there is one."""
    due = due_at(row, now)
    return row._replace(enqueued_at=due, next_retry_at=None if row.next_retry_at is None else due)
