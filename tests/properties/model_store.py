"""What the store answers, in its shortest form: dicts and plain Python, to hold the statements of SQLite against.

It has the verbs that deal with the rows of tasks, and those that these depend on.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from taskmanager.model.record import AttemptRow, StartWrite, SuccessWrite, TaskRow, TaskWrite, Write, due_at, in_full
from taskmanager.model.states import TERMINAL, WAITING, AttemptOutcome, TaskStatus
from taskmanager.model.steps import Identity, StepRow
from taskmanager.rules.claims import started
from taskmanager.store.constraints import encodable, is_memory_only, row_faults, step_of
from taskmanager.store.on_failure import enqueued_by
from taskmanager.store.protocol import ClaimRequest, CommitReport, FreeQueue, InstanceRow, TaskFilter, WaitingLevel

INT64: Final = 1 << 63
OUTCOMES: Final = frozenset(AttemptOutcome)


class ModelStore:
    """The verbs as they are meant."""

    def __init__(self) -> None:
        self.rows: dict[str, TaskRow] = {}
        self.attempts: dict[tuple[str, int], AttemptRow] = {}
        self.steps: dict[str, dict[Identity, StepRow]] = {}
        self.rows_of_instances: dict[str, InstanceRow] = {}
        self.paused: set[str] = set()
        self.counted: Counter[tuple[str, str, str]] = Counter()
        """By task, queue, and what has happened."""

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; what it holds stays."""

    def put(self, rows: Iterable[TaskRow]) -> None:
        self.rows.update((row.task_id, row) for row in rows)

    def live(self, is_wanted: Callable[[TaskRow], object] = bool) -> list[TaskRow]:
        return [row for row in self.rows.values() if row.status not in TERMINAL and is_wanted(row)]

    def owned(self, owner: str) -> list[TaskRow]:
        return self.live(lambda row: row.claimed_by_worker_id == owner)

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        lost: dict[str, TaskRow | None] = {}
        rejected: dict[str, str] = {}
        for each in writes:
            current, write = self.rows.get(each.task_id), encodable(in_full(each))
            if not wins(write, current):
                lost[each.task_id] = current
                continue
            row = written(write, current)
            if faults := [*value_faults(row, *write.attempts)] or [*row_faults(row)]:
                rejected[each.task_id] = "; ".join(faults)
            else:
                self.count(write, current, row)
                self.put([row])
                self.add_attempts(write)
                self.add_steps(write)
                self.follow(write)
        return CommitReport(lost, rejected)

    def follow(self, write: TaskWrite | StartWrite | SuccessWrite) -> None:
        if isinstance(write, TaskWrite) and write.row.status == "FAILED":
            then = enqueued_by(write.row, write.attempts)
            self.put([then] if then is not None and then.task_id not in self.rows else [])

    def count(self, write: TaskWrite | StartWrite | SuccessWrite, before: TaskRow | None, row: TaskRow) -> None:
        """Count what a row has gone through between two writes."""
        if write.expected is None:
            if before is not None and end_of(before) == end_of(row):
                return  # the same write once more
            before = None
        starts = row.start_count - (0 if before is None else before.start_count)
        has_ended = row.status in TERMINAL and (before is None or before.status != row.status)
        happened = ["started"] * starts + [row.status.lower()] * has_ended
        counted_before = 0 if before is None else before.start_count - (before.status == "RUNNING")
        for each in write.attempts:
            if each.attempt <= counted_before or (has_ended and each.attempt == row.start_count):
                continue
            if each.will_retry or (each.outcome == "WORKER_FAILURE" and row.status not in TERMINAL):
                happened.append("retried")
            elif each.outcome in ("COMPLETED", "FAILED"):
                happened.append(each.outcome.lower())
        said = write.row if isinstance(write, TaskWrite) else row
        self.counted.update((said.task_name, said.queue_name, what) for what in happened)

    def add_attempts(self, write: TaskWrite | StartWrite | SuccessWrite) -> None:
        keys = [(write.task_id, each.attempt) for each in write.attempts]
        if write.expected is None and any(key in self.attempts for key in keys):
            # An earlier task of the same key counted from the same number; what it left is not this one's history.
            self.forget_attempts(lambda key: key[0] == write.task_id and key >= min(keys))
        for each in write.attempts:
            self.attempts.setdefault((write.task_id, each.attempt), each._replace(will_retry=bool(each.will_retry)))

    def add_steps(self, write: TaskWrite | StartWrite | SuccessWrite) -> None:
        if not isinstance(write, TaskWrite):
            return
        if write.forgets_steps:
            self.steps.pop(write.task_id, None)
        self.steps.setdefault(write.task_id, {}).update((each.identity, each) for each in write.steps)

    def forget_attempts(self, is_over: Callable[[tuple[str, int]], bool]) -> None:
        self.attempts = {key: each for key, each in self.attempts.items() if not is_over(key)}

    async def claim(self, request: ClaimRequest) -> list[TaskRow]:
        found = sorted(filter(wanted_by(request), self.live()), key=claim_order)
        limit = max(0, request.limit)
        if request.others_due_at is None:
            claim: dict[str, Any] = {
                "status": "CLAIMED",
                "claimed_at": request.now,
                "claimed_by_worker_id": request.owner,
            }
            taken = [row._replace(**claim, updated_at=request.now) for row in found[:limit]]
        else:
            # One that has run before may have code that goes on there, in a thread that nobody can end.
            taken = [row for row in found if is_plain(row) and not row.start_count][: 2 * limit : 2]
        begun = start(taken, request)
        if request.others_due_at is None:
            taken = [begun.get(row.task_id, row) for row in taken]
        else:
            taken = list(begun.values())
        self.counted.update((row.task_name, row.queue_name, "started") for row in begun.values())
        self.put(taken)
        return taken

    async def fetch_claim(self, owner: str, claimed_at: int) -> list[TaskRow]:
        return sorted((row for row in self.owned(owner) if row.claimed_at == claimed_at), key=claim_order)

    async def release(self, owner: str, now: int, unanswered: int | None = None) -> int:
        free = [freed(row, now) for row in self.owned(owner) if row.status in WAITING]
        ran = [row for row in self.owned(owner) if row.status not in WAITING and unanswered is not None]
        free += [never_ran(row, now) for row in ran if row.claimed_at == row.started_at == unanswered]
        self.put(free)
        return len(free)

    async def free_waiting(self, owner: str, now: int, limit: int, per_queue: int | None = None) -> int:
        by_queue: dict[str, list[TaskRow]] = {}
        for row in sorted(self.owned(owner), key=claim_order):
            is_late = row.good_until is not None and row.good_until <= now
            if row.status in WAITING and row.cancel_requested_at is None and not is_late:
                by_queue.setdefault(row.queue_name, []).append(never_ran(row, now)._replace(failed_reason=None))
        free = [row for _, rows in sorted(by_queue.items()) for row in rows[:per_queue]][:limit]
        self.put(free)
        return len(free)

    async def waiting_levels(self, limit: int) -> list[WaitingLevel]:
        dues: dict[tuple[str, int], list[int]] = {}
        for row in self.live(lambda row: row.status in WAITING and row.claimed_by_worker_id is not None):
            dues.setdefault((row.queue_name, row.priority), []).append(row.enqueued_at)
        return sorted(WaitingLevel(*level, min(each)) for level, each in dues.items())[:limit]

    async def free_queues(self) -> list[FreeQueue]:
        dues: dict[tuple[str, str], list[int]] = {}
        for row in self.live(is_free):
            dues.setdefault((row.task_name, row.queue_name), []).append(row.enqueued_at)
        return sorted(FreeQueue(*names, len(each), min(each)) for names, each in dues.items())

    async def fetch_attempts(self, task_id: str) -> list[AttemptRow]:
        return [each for key, each in sorted(self.attempts.items()) if key[0] == task_id]

    async def fetch_steps(self, task_id: str) -> list[StepRow]:
        return list(self.steps.get(task_id, {}).values())

    async def fetch_ids(self, task_ids: Sequence[str]) -> dict[str, TaskRow]:
        return {task_id: self.rows[task_id] for task_id in task_ids if task_id in self.rows}

    async def fetch_taken(self, task_ids: Sequence[str], owner: str) -> dict[str, TaskRow]:
        rows = await self.fetch_ids(task_ids)
        return {each: row for each, row in rows.items() if row.claimed_by_worker_id not in (None, owner)}

    async def fetch_many(self, wanted: TaskFilter) -> list[TaskRow]:
        found = [row for row in self.rows.values() if fits(row, wanted)]
        return [row.without_payload() for row in sorted(found, key=age, reverse=True)[: wanted.limit]]

    async def find_ids(self, wanted: TaskFilter, statuses: Collection[TaskStatus]) -> list[str]:
        found = sorted(self.rows.values(), key=age)
        return [row.task_id for row in found if row.status in statuses and fits(row, wanted)]

    async def fetch_owned(
        self, owners: Collection[str], *, limit: int, after: str = "", is_running: bool = False
    ) -> list[TaskRow]:
        found = self.live(lambda row: row.claimed_by_worker_id in owners and row.task_id > after)
        return sorted(row for row in found if row.status == "RUNNING" or not is_running)[:limit]

    async def fetch_orphans(self, live_owners: Collection[str], *, limit: int, after: str = "") -> list[TaskRow]:
        found = self.live(lambda row: row.claimed_by_worker_id not in (None, *live_owners) and row.task_id > after)
        return sorted(found)[:limit]

    async def fetch_expired(self, now: int, *, limit: int) -> list[TaskRow]:
        late = [(row.good_until, row) for row in self.live(is_free) if row.good_until is not None]
        return [row for good_until, row in sorted(late) if good_until <= now][:limit]

    async def fetch_cancel_requests(self, owner: str) -> list[str]:
        return sorted(row.task_id for row in self.owned(owner) if row.cancel_requested_at is not None)

    async def request_cancel(self, task_ids: Collection[str], now: int) -> frozenset[str]:
        found = self.live(lambda row: row.task_id in task_ids)
        new = [row for row in found if row.cancel_requested_at is None]
        self.put(row._replace(cancel_requested_at=now, updated_at=now) for row in new)
        free = self.live(lambda row: row.task_id in task_ids and row.claimed_by_worker_id is None)
        self.put(row._replace(enqueued_at=min(row.enqueued_at, now)) for row in free)
        return frozenset(row.task_id for row in found)

    async def counts(self) -> dict[TaskStatus, int]:
        found = Counter(row.status for row in self.rows.values())
        return {status: found[status] for status in TaskStatus}

    async def purge(self, wanted: TaskFilter, older_than: int | None, limit: int) -> int:
        ended = [row for row in self.rows.values() if row.status in TERMINAL and fits(row, wanted)]
        gone = [row.task_id for row in ended if older_than is None or ended_at(row) < older_than][:limit]
        for task_id in gone:
            del self.rows[task_id]
            self.steps.pop(task_id, None)
        self.forget_attempts(lambda key: key[0] in gone)
        return len(gone)

    async def save_instance(self, row: InstanceRow) -> None:
        self.rows_of_instances[row.instance_id] = row

    async def instances(self) -> list[InstanceRow]:
        return sorted(self.rows_of_instances.values(), key=lambda row: (row.started_at, row.instance_id))

    async def forget_instances(self, instance_ids: Collection[str]) -> None:
        for instance_id in instance_ids:
            self.rows_of_instances.pop(instance_id, None)

    async def set_paused(self, queue_name: str, paused: bool, now: int) -> None:
        (self.paused.add if paused else self.paused.discard)(queue_name)

    async def paused_queues(self) -> frozenset[str]:
        return frozenset(self.paused)


def end_of(row: TaskRow) -> tuple[Any, ...]:
    """Return what tells the ends of two runs apart."""
    at = next((at for at in (row.completed_at, row.failed_at, row.updated_at) if at is not None), None)
    return row.status, row.start_count, at


def wins(write: TaskWrite | StartWrite | SuccessWrite, current: TaskRow | None) -> bool:
    if isinstance(write, TaskWrite) and write.expected is None:
        return current is None or all(row.status in TERMINAL and is_memory_only(row) for row in (current, write.row))
    return current is not None and write.expected == (
        current.status,
        current.claimed_by_worker_id,
        current.start_count,
    )


def written(write: TaskWrite | StartWrite | SuccessWrite, current: TaskRow | None) -> TaskRow:
    """Return the row after a write that wins."""
    if isinstance(write, TaskWrite):
        if write.expected is None or current is None:
            return write.row
        never = {"task_name", "sent_at", "created_at"}
        step = step_of(write, write.expected) or set(TaskRow._fields) - never
        row = current._replace(**{name: getattr(write.row, name) for name in step})
        is_asked_for = row.cancel_requested_at is None and current.status not in TERMINAL
        return row._replace(cancel_requested_at=current.cancel_requested_at) if is_asked_for else row
    assert current is not None
    if isinstance(write, SuccessWrite):
        at = write.completed_at
        return current._replace(status=write.status, completed_at=at, updated_at=at, result=write.result)
    at, count = write.started_at, current.start_count + 1
    worker = {name: getattr(write, name) for name in ("worker_pid", "worker_hostname", "worker_process_name")}
    return current._replace(status=write.status, start_count=count, started_at=at, updated_at=at, **worker)


def value_faults(row: TaskRow, *attempts: AttemptRow) -> Iterable[str]:
    for value in (value for values in (row, *attempts) for value in values):
        if value is not None and not isinstance(value, str | int):
            yield f"{value!r} cannot be stored"
        elif isinstance(value, int) and not -INT64 <= value < INT64:
            yield f"{value} does not fit into 64 bits"
    for attempt in attempts:
        if attempt.outcome not in OUTCOMES or attempt.attempt < 1:
            yield f"attempt {attempt.attempt} with outcome {attempt.outcome!r}"


def wanted_by(request: ClaimRequest) -> Callable[[TaskRow], bool]:
    def is_wanted(row: TaskRow) -> bool:
        if request.others_due_at is None:
            is_there, due = is_free(row), request.now
        else:
            is_there = row.status in WAITING and row.claimed_by_worker_id not in (None, request.owner)
            due = request.others_due_at
        is_fit = row.task_name in request.task_names and row.queue_name == request.queue_name
        is_better = request.better_than is None or row.priority < request.better_than
        return is_there and is_fit and is_better and row.enqueued_at <= due

    return is_wanted


def start(rows: Sequence[TaskRow], request: ClaimRequest) -> dict[str, TaskRow]:
    """Return those of the rows that the claim starts, as they are then."""
    if request.starting is None:
        return {}
    plain = [row for row in rows if is_plain(row)]
    names = ("worker_pid", "worker_hostname", "worker_process_name")
    changes: dict[str, Any] = {name: getattr(request.starting, name) for name in names}
    changes |= dict.fromkeys(("claimed_at", "started_at", "updated_at"), request.now)
    changes |= {"status": "RUNNING", "claimed_by_worker_id": request.owner, "next_retry_at": None, "progress": None}
    chosen = [plain[place] for place in started([row.task_name for row in plain], request.starting)]
    return {row.task_id: row._replace(start_count=row.start_count + 1, **changes) for row in chosen}


def is_free(row: TaskRow) -> bool:
    return row.status == "PENDING" and row.claimed_by_worker_id is None


def is_plain(row: TaskRow) -> bool:
    return row.crash_count == 0 and row.good_until is None and row.cancel_requested_at is None


def claim_order(row: TaskRow) -> tuple[int, int, str]:
    return row.priority, row.enqueued_at, row.task_id


def age(row: TaskRow) -> tuple[int, str]:
    return row.sent_at, row.task_id


def fits(row: TaskRow, wanted: TaskFilter) -> bool:
    names = ("status", "task_name", "queue_name", "task_id", "error_code")
    is_alike = all(getattr(wanted, name) in (None, getattr(row, name)) for name in names)
    is_there = wanted.before is None or age(row) < wanted.before
    is_recent = wanted.since is None or row.updated_at >= wanted.since
    return is_alike and is_there and is_recent and dict(wanted.tags).items() <= json.loads(row.tags or "{}").items()


def ended_at(row: TaskRow) -> int:
    ends = (row.completed_at, row.failed_at, row.updated_at)
    # Nothing ended before it was sent, whatever a clock that was stepped back has stamped.
    return max(row.sent_at, next(each for each in ends if each is not None))


def freed(row: TaskRow, now: int) -> TaskRow:
    """The row without its owner. `next_retry_at` is when it is due, if it waits for another attempt."""
    due = due_at(row, now)
    return row._replace(
        status="PENDING",
        enqueued_at=due,
        next_retry_at=None if row.next_retry_at is None else due,
        claimed_at=None,
        claimed_by_worker_id=None,
        claim_expires_at=None,
        updated_at=now,
    )


def never_ran(row: TaskRow, now: int) -> TaskRow:
    """The row without its owner and without the start, but for the count of that."""
    return freed(row, now)._replace(started_at=None, worker_pid=None, worker_hostname=None, worker_process_name=None)
