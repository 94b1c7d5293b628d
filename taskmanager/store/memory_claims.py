"""Claims on the rows of the store in memory: what is free, what is taken, what may be started at once."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from taskmanager.model.record import TaskRow, with_due
from taskmanager.model.states import WAITING, TaskStatus
from taskmanager.rules.claims import Starting, started
from taskmanager.store.protocol import ClaimRequest, WaitingLevel

_TAKEN: Final = (TaskStatus.CLAIMED, TaskStatus.RUNNING)


def claimed(rows: Collection[TaskRow], request: ClaimRequest) -> list[TaskRow]:
    """Return what `Store.claim` makes of these live rows: the rows that it takes, as they are then."""
    found = sorted(_wanted(rows, request), key=claim_order)
    limit = max(0, request.limit)
    if request.file_limit is not None:
        limit = min(limit, _places(rows, request, request.file_limit))
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


def _places(rows: Iterable[TaskRow], request: ClaimRequest, file_limit: int) -> int:
    taken = [row for row in rows if row.queue_name == request.queue_name and row.status in _TAKEN]
    lenders = frozenset(request.lenders)
    lent = sum(
        row.task_id in lenders and row.status == TaskStatus.RUNNING and row.claimed_by_worker_id == request.owner
        for row in taken
    )
    return max(0, lent - request.borrowed) + max(0, file_limit - len(taken))


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
