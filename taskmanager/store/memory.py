"""The store without a file: the same answers from dicts, for one process, gone with it.

Ended tasks are kept in the order of their end, and the oldest leave when there are more than `max_history`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final

from taskmanager.model.clock import LAST_US
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.record import (
    AttemptRow,
    StartWrite,
    SuccessWrite,
    TaskRow,
    TaskWrite,
    Write,
    due_at,
    in_full,
    with_due,
)
from taskmanager.model.schedule import ScheduleDeclaration, ScheduleFire, ScheduleRow, busy_of
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.store.constraints import (
    check_fault,
    encodable_write,
    is_memory_only,
    is_plain_write,
    step_of,
    write_fault,
)
from taskmanager.store.memory_claims import (
    claim_order,
    claimed,
    due_rows,
    free_rows,
    left_waiting,
    released,
    waiting_levels,
)
from taskmanager.store.memory_statistics import overview_at
from taskmanager.store.protocol import (
    FREE_COUNT_CAP,
    ClaimRequest,
    CommitReport,
    FreeQueue,
    InstanceRow,
    TaskFilter,
    WaitingLevel,
    WorkerState,
)
from taskmanager.store.statistics import StoreOverview

MAX_HISTORY: Final = 10_000
MAX_WORKER_STATES: Final = 1_000


class MemoryStore:
    """Tasks in memory. `max_history` bounds the ended ones."""

    def __init__(self, *, max_history: int = MAX_HISTORY) -> None:
        self._max_history = max_history
        self._live: dict[str, TaskRow] = {}
        self._ended: dict[str, TaskRow] = {}
        self._attempts: dict[str, dict[int, AttemptRow]] = {}
        self._instances: dict[str, InstanceRow] = {}
        self._paused: dict[str, int] = {}
        self._schedules: dict[str, ScheduleRow] = {}
        self.worker_states: deque[WorkerState] = deque(maxlen=MAX_WORKER_STATES)

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._live)} live, {len(self._ended)} ended>"

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; what it holds stays for the next start."""

    works_in_thread = False

    def begin_commit(
        self, writes: Sequence[Write], loop: asyncio.AbstractEventLoop
    ) -> Coroutine[Any, Any, CommitReport]:
        raise StoreUnavailable("memory has no thread that works on it")

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        lost: dict[str, TaskRow | None] = {}
        rejected: dict[str, str] = {}
        for lean in writes:
            current = self._row(lean.task_id)
            write = _in_full(lean, current)
            if write is None or not _wins(write, current):
                lost[lean.task_id] = current
                continue
            if is_plain_write(write):
                clean, fault = write, check_fault(write)
            else:
                clean = encodable_write(write)
                fault = write_fault(clean)
            if fault is not None:
                rejected[lean.task_id] = fault
            else:
                self._apply(clean, current)
        self._evict()
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

    def _evict(self) -> None:
        surplus = len(self._ended) - self._max_history
        if surplus > 0:
            oldest = iter(list(self._ended))
            self._remove(next(oldest) for _ in range(surplus))

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

    async def best_waiting(self, task_names: Collection[str], queue_name: str, now: int) -> str | None:
        best = min(due_rows(self.free_rows(), task_names, queue_name, now), key=claim_order, default=None)
        return None if best is None else best.task_name

    def free_rows(self) -> Iterator[TaskRow]:
        """What waits unowned; the testing kit reads from it when the next one is due."""
        return free_rows(self._live.values())

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

    async def latest_stamp(self, until: int = LAST_US) -> int:
        stamps = [*(each.updated_at for each in self._instances.values()), *(row.sent_at for row in self._rows())]
        return max((each for each in stamps if each <= until), default=0)

    async def make_due(self, now: int) -> int:
        early = [row for row in self.free_rows() if row.enqueued_at != due_at(row, now)]
        for row in early:
            self._put(with_due(row, now)._replace(updated_at=now))
        return len(early)

    async def free_queues(self, count_cap: int = FREE_COUNT_CAP) -> list[FreeQueue]:
        return self._free_queues(count_cap)

    def _free_queues(self, count_cap: int = FREE_COUNT_CAP) -> list[FreeQueue]:
        found: dict[tuple[str, str], list[int]] = {}
        for row in self.free_rows():
            found.setdefault((row.task_name, row.queue_name), []).append(row.enqueued_at)
        return [
            FreeQueue(name, queue, min(len(dues), count_cap), min(dues))
            for (name, queue), dues in sorted(found.items())
        ]

    async def fetch(self, task_id: str) -> TaskRow | None:
        return self._row(task_id)

    async def fetch_attempts(self, task_id: str) -> list[AttemptRow]:
        return [attempt for _, attempt in sorted(self._attempts.get(task_id, {}).items())]

    async def fetch_ids(self, task_ids: Sequence[str]) -> dict[str, TaskRow]:
        return {task_id: row for task_id in task_ids if (row := self._row(task_id)) is not None}

    async def fetch_many(self, wanted: TaskFilter) -> list[TaskRow]:
        found = [
            row
            for row in self._rows()
            if (wanted.status is None or row.status == wanted.status)
            and (wanted.task_name is None or row.task_name == wanted.task_name)
            and (wanted.queue_name is None or row.queue_name == wanted.queue_name)
            and (wanted.task_id is None or row.task_id == wanted.task_id)
            and (wanted.before is None or _age(row) < wanted.before)
        ]
        return [row.without_payload() for row in sorted(found, key=_age, reverse=True)[: wanted.limit]]

    async def fetch_owned(
        self, owners: Collection[str], *, limit: int, after: str = "", is_running: bool = False
    ) -> list[TaskRow]:
        found = self._page(lambda owner: owner in owners, len(self._live), after)
        return [row for row in found if row.status == "RUNNING" or not is_running][:limit]

    async def fetch_owned_ids(self, owner: str, *, limit: int, after: str = "") -> list[str]:
        return [row.task_id for row in await self.fetch_owned([owner], limit=limit, after=after)]

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
        late = [(row.good_until, row) for row in self.free_rows() if row.good_until is not None]
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

    async def purge(self, status: TaskStatus | None, older_than: int | None, limit: int) -> int:
        old = [
            row.task_id
            for row in self._ended.values()
            if (status is None or row.status == status) and (older_than is None or _end(row) < older_than)
        ]
        return self._remove(old[:limit])

    async def save_instance(self, row: InstanceRow) -> None:
        self._instances[row.instance_id] = row

    async def instances(self) -> list[InstanceRow]:
        return sorted(self._instances.values(), key=lambda row: (row.started_at, row.instance_id))

    async def forget_instances(self, instance_ids: Collection[str]) -> None:
        for instance_id in instance_ids:
            self._instances.pop(instance_id, None)

    def work_inline(self) -> None: ...

    def end(self) -> None: ...

    def open_beater(self) -> None:
        return None

    async def heartbeats(self) -> list[tuple[str, str, int]]:
        return []

    async def prune_heartbeats(self, cutoff: int, limit: int) -> int:
        return 0

    async def save_worker_state(self, state: WorkerState) -> None:
        self.worker_states.append(state)

    async def prune_worker_states(self, cutoff: int, limit: int) -> int:
        gone = 0
        while gone < limit and self.worker_states and self.worker_states[0].snapshot_at < cutoff:
            self.worker_states.popleft()
            gone += 1
        return gone

    async def shrink(self) -> bool:
        return False

    async def upkeep(self, *, is_idle: bool) -> None:
        return None

    async def set_paused(self, queue_name: str, paused: bool, now: int) -> None:
        if paused:
            self._paused.setdefault(queue_name, now)
        else:
            self._paused.pop(queue_name, None)

    async def paused_queues(self) -> frozenset[str]:
        return frozenset(self._paused)

    def _schedule(self, name: str) -> ScheduleRow | None:
        row = self._schedules.get(name)
        return None if row is None else row._replace(is_declared=row.owner_id in self._instances)

    async def declare_schedules(self, declared: Sequence[ScheduleDeclaration], owner: str, now: int) -> frozenset[str]:
        owned = set()
        for each in declared:
            row = each.onto(self._schedule(each.schedule_name), owner, now)
            if row is not None:
                self._schedules[row.schedule_name] = row
                owned.add(row.schedule_name)
        return frozenset(owned)

    async def fire_schedules(self, fires: Sequence[ScheduleFire]) -> frozenset[str]:
        writes = {each.schedule_name: encodable_write(TaskWrite(each.task, None)) for each in fires if each.task}
        for write in writes.values():
            fault = write_fault(write)
            if fault is not None:
                raise StoreError(f"the run of a schedule cannot be stored: {fault}")
        lost, busy = set(), await self.busy_schedules([each.schedule_name for each in fires])
        for each in fires:
            row = self._schedules.get(each.schedule_name)
            if row is None or not each.wins(row, busy):
                lost.add(each.schedule_name)
                continue
            row = row._replace(next_run_at=each.next_run_at, updated_at=each.now)
            task = each.task and writes[each.schedule_name].row
            if task is not None and self._row(task.task_id) is None:
                self._put(task)
                row = row._replace(last_run_at=each.now, last_task_id=task.task_id, run_count=row.run_count + 1)
            self._schedules[each.schedule_name] = row
        return frozenset(lost)

    async def schedules(
        self, names: Collection[str] | None = None, *, limit: int | None = None, changed_since: int | None = None
    ) -> list[ScheduleRow]:
        found = [row for name in (self._schedules if names is None else names) if (row := self._schedule(name))]
        found = [row for row in found if changed_since is None or row.updated_at >= changed_since]
        found.sort(key=lambda row: (row.next_run_at is None, row.next_run_at or 0, row.schedule_name))
        return found if limit is None else found[:limit]

    async def busy_schedules(self, names: Collection[str]) -> frozenset[str]:
        return busy_of(self._live.values(), self._schedules, names)

    async def set_schedule_paused(self, name: str, paused: bool, now: int) -> bool:
        row = self._schedules.get(name)
        if row is None:
            return False
        if paused:
            row = row._replace(paused_at=now if row.paused_at is None else row.paused_at)
        elif row.paused_at is not None:
            row = row._replace(paused_at=None, next_run_at=None)
        self._schedules[name] = row._replace(updated_at=now)
        return True

    async def data_version(self) -> int:
        """Nobody else can write here."""
        return 0

    async def is_same_file(self) -> bool:
        return True

    async def has_its_log(self) -> bool:
        return True

    async def renew_log(self) -> None:
        """There is none."""

    def overview(self, now: int, *, counts_all: bool) -> StoreOverview:
        """Not from another thread while tasks run: unlike a file, it has no snapshots."""
        rows = {**self._live, **self._ended}
        attempts = (each for task_id, found in self._attempts.items() if task_id in rows for each in found.values())
        schedules = [row for name in self._schedules if (row := self._schedule(name)) is not None]
        instances, free = list(self._instances.values()), self._free_queues()
        return overview_at(now, rows, attempts, instances, free, frozenset(self._paused), schedules)


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


def _end(row: TaskRow) -> int:
    ends = (row.completed_at, row.failed_at, row.updated_at)
    # Nothing ended before it was sent, whatever a clock that was stepped back has stamped.
    return max(row.sent_at, next(each for each in ends if each is not None))
