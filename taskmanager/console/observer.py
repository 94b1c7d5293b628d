"""Looks at a database, once or again and again, and makes the overview of it.

The place tells which instances live; the rows do not. An instance is frozen when its heartbeat stops moving. The first
look judges by the age of the heartbeat. Later looks use the observer's own clock, because a wall clock that jumps would
make living instances look frozen.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, NamedTuple

from taskmanager.console.overview import Durations, Health, InstanceView, Overview, QueueView, StorageView
from taskmanager.console.problems import problems_of
from taskmanager.duties.reports import MAX_SHOWN_TASKS
from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.errors import StoreError
from taskmanager.model.report import InstanceReport, QueueReport, RunningTask
from taskmanager.model.states import TaskStatus
from taskmanager.store.place import Place
from taskmanager.store.presence import Presence
from taskmanager.store.protocol import FREE_COUNT_CAP, FreeQueue, InstanceRow
from taskmanager.store.sql.queries import counts as count_all
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statistics import statistics
from taskmanager.store.statistics import Held, Statistics, said_by

DEFAULT_HEARTBEAT_S: Final = 30.0  # for an instance that has not said yet how often its heart beats
MISSED_BEATS: Final = 2.5  # an instance is frozen when so many intervals have passed without a sign of life


READ_S: Final = 1.0  # the least time between two looks with queries
COST_FACTOR: Final = 50.0
"""Queries that took so long are made again after so many times as long, so that they take 2 % of a core at most."""
TICK_S: Final = 1.0  # how often what runs is drawn anew, for its elapsed time
SLOW_S: Final = 10.0  # how often the file is read although nobody wrote, so that ages and windows of time go on

Opener = Callable[[], AbstractContextManager[Session]]


class _Sign(NamedTuple):
    """The newest sign of life of one instance, and when this observer first saw it."""

    at: int
    since_s: float
    has_moved: bool


class Observer:
    """Looks at one database, and remembers the signs of life. `place` is None for a store in memory.

    An instance that looks at itself has a `presence`, which knows who is dead without a look.
    """

    def __init__(self, place: Place | None, clock: Clock, presence: Presence | None = None) -> None:
        self._place = place
        self._presence = presence
        self._clock = clock
        self._signs: dict[str, _Sign] = {}
        self._alive_s: dict[str, float] = {}

    def overview(
        self,
        found: Statistics,
        counts: Mapping[TaskStatus, int],
        own: InstanceReport | None = None,
        capped: frozenset[TaskStatus] = frozenset(),
    ) -> Overview:
        """Make the overview from what the store, the lock files, the disk and the reports of the instances say.

        An instance that looks at itself passes its `own` report, which is newer than its row. Its `counts` then include
        its memory, and there are more tasks than were counted of the statuses in `capped`.
        """
        reports = {row.instance_id: _as_in_file(said_by(row), found) for row in found.instances}
        if own is not None:
            reports[own.instance_id] = own
        instances = [self._instance(row, reports[row.instance_id], found) for row in found.instances]
        self._forget(reports.keys())
        alive = {each.row.instance_id: each.report for each in instances if each.health is not Health.DEAD}
        stored = counts if own is not None else _live_counts(counts, found)
        running = [task for report in alive.values() for task in report.tasks]
        overview = Overview(
            taken_at=found.taken_at,
            counts=_with_memory(stored, (each for each in alive.values() if each is not own)),
            capped=capped,
            instances=tuple(sorted(instances, key=_by_importance)),
            queues=_queues(alive, found),
            minute=found.minute,
            hour=found.hour,
            waited=Durations.of(() if found.figures is None else found.figures.waited),
            ran=Durations.of(() if found.figures is None else found.figures.ran),
            running=tuple(sorted(running, key=lambda task: (task.done is None, task.started_at, task.task_id))),
            slowest=found.slowest,
            most_failing=found.most_failing,
            failures=found.failures,
            schedules=found.schedules,
            workflows=found.workflows,
            workflow_count=found.workflow_count,
            workflow_of=found.workflow_of,
            storage=self._storage(found),
            last_activity_at=found.last_activity_at,
        )
        unknown, unrun = unknown_in(alive.values(), found.free), unrun_in(alive.values(), found.free)
        return replace(overview, problems=problems_of(overview, found.owned, unknown, unrun))

    def _instance(self, row: InstanceRow, report: InstanceReport, found: Statistics) -> InstanceView:
        seen_at = max(row.updated_at, found.beats.get(row.instance_id, 0))
        silent_s = self._silent_s(row.instance_id, seen_at)
        health = Health.ALIVE
        if self._is_dead(row.instance_id):
            health = Health.DEAD  # what it said of itself is true no more
            report = replace(said_by(row._replace(live_tasks=None)), is_stopping=report.is_stopping)
        elif silent_s > MISSED_BEATS * (report.heartbeat_s or DEFAULT_HEARTBEAT_S):
            health = Health.FROZEN
        return InstanceView(row, report, health, seen_at, silent_s, found.owned.get(row.instance_id, 0))

    def _is_dead(self, instance_id: str) -> bool:
        """Return whether the lock of the instance is free.

        If its lock file is missing, an instance that was seen alive gets `put_back_s` to put the file back.
        """
        place = self._place
        if place is None:
            return False
        now_s, proof = self._clock.elapsed_s(), self._presence or place
        if not proof.is_dead(instance_id):
            self._alive_s[instance_id] = now_s
            return False
        was_alive_s = self._alive_s.get(instance_id, -place.put_back_s)
        return now_s - was_alive_s >= place.put_back_s or not proof.is_missing(instance_id)

    def _silent_s(self, instance_id: str, seen_at: int) -> float:
        now_s = self._clock.elapsed_s()
        sign = self._signs.get(instance_id)
        if sign is None or sign.at != seen_at:
            sign = self._signs[instance_id] = _Sign(seen_at, now_s, has_moved=sign is not None)
        observed_s = now_s - sign.since_s
        if sign.has_moved:
            return observed_s
        return max(observed_s, (self._clock.now_us() - seen_at) / SECOND_US)

    def _forget(self, known: Collection[str]) -> None:
        for instance_id in self._signs.keys() - known:
            del self._signs[instance_id]
            self._alive_s.pop(instance_id, None)

    def _storage(self, found: Statistics) -> StorageView:
        if self._place is None:
            return StorageView(path=None)
        size, room = found.size, self._place.room()
        return StorageView(
            str(self._place),
            size.total_bytes,
            size.free_bytes,
            room.log_bytes,
            room.disk_free_bytes,
            size.schema_version,
        )


def _with_memory(counts: Mapping[TaskStatus, int], others: Iterable[InstanceReport]) -> Mapping[TaskStatus, int]:
    """Return the counts with the memory-only tasks of other instances."""
    found = Counter(counts)
    for report in others:
        found[TaskStatus.RUNNING] += report.memory_only_running
        found[TaskStatus.PENDING] += report.memory_only_waiting
    return found


def look(place: Place, connection: Session, clock: Clock) -> Overview:
    """Look at a database once."""
    with connection.snapshot():
        found, counts = statistics(connection, clock.now_us()), count_all(connection)
    return Observer(place, clock).overview(found, counts)


class Watch:
    """Looks at a database whenever something was written to it.

    The sizes and times of the file and its log tell whether something was written. Only then the file is opened, by
    `opener`, at most once a second, and less often if its queries are slow. The connection is closed after each look.
    If it stayed open, the application could not remove the log when it stops, and people forget the log when they copy
    the file. `fault` says why the file cannot be read now. `last` is the overview of the last look.
    """

    def __init__(self, place: Place, clock: Clock, opener: Opener) -> None:
        self._place = place
        self._clock = clock
        self._opener = opener
        self._observer = Observer(place, clock)
        self._traces: Hashable = None
        self._read_s = self._next_read_s = self._next_count_s = self._drawn_s = 0.0
        self._found: Statistics | None = None
        self._counts: Mapping[TaskStatus, int] = {}
        self._is_busy = False
        self.fault: str | None = None
        self.last: Overview | None = None

    def look_again(self) -> None:
        """Read the file at the next look, however new the last one is."""
        self._traces, self._next_read_s, self._next_count_s = None, 0.0, 0.0

    def look(self) -> Overview | None:
        """Return the overview if there is something new to draw, else None. Raises no `StoreError`: see `fault`."""
        now_s = self._clock.elapsed_s()
        try:
            has_read = self._read_if_due(now_s)
        except StoreError as exc:
            self._found = None
            self.fault = str(exc)
            return None
        self.fault = None
        assert self._found is not None
        if not has_read and not (self._is_busy and now_s - self._drawn_s >= TICK_S):
            return None
        self._drawn_s = now_s
        self.last = self._observer.overview(replace(self._found, taken_at=self._clock.now_us()), self._counts)
        self._is_busy = bool(self.last.running)
        return self.last

    def _read_if_due(self, now_s: float) -> bool:
        traces = self._place.traces()
        is_quiet = now_s < self._next_read_s or traces == self._traces
        if self._found is not None and is_quiet and now_s - self._read_s < SLOW_S:
            return False
        with self._opener() as connection, connection.snapshot():
            self._found = statistics(connection, self._clock.now_us())
            read_s = self._clock.elapsed_s()
            if read_s >= self._next_count_s:
                self._counts = count_all(connection)
                counted_s = self._clock.elapsed_s()
                self._next_count_s = counted_s + (counted_s - read_s) * COST_FACTOR
        self._traces, self._read_s = traces, now_s
        self._next_read_s = now_s + max(READ_S, (read_s - now_s) * COST_FACTOR)
        return True


# The file is newer than the reports of the instances, which may be a second old.


def _as_in_file(report: InstanceReport, found: Statistics) -> InstanceReport:
    """Return the report with the persisted tasks as the file has them, unless the instance cannot write the file."""
    if found.held is None or report.degraded_since is not None:
        return report
    held = {each.queue_name: each for each in found.held if each.owner == report.instance_id}
    names = [*report.queues, *(name for name in held if name not in report.queues and not report.unlisted_queue_count)]
    queues = {name: _queue_in_file(report.queues.get(name, QueueReport()), held.get(name)) for name in names}
    runs = {(each.task_id, each.attempt): each for each in found.started if each.owner == report.instance_id}
    suspect = report.suspect
    if suspect is not None and suspect.task.is_persisted and (suspect.task.task_id, suspect.task.attempt) not in runs:
        suspect = None  # it has ended since
    told = [task for task in report.tasks if not task.is_persisted or (task.task_id, task.attempt) in runs]
    for task in told:
        runs.pop((task.task_id, task.attempt), None)
    unlisted = sum(each.waiting_count for each in held.values() if each.queue_name not in queues)
    return replace(
        report,
        running_count=report.memory_only_running + sum(each.running_count for each in held.values()),
        waiting_count=unlisted + sum(each.waiting_count for each in queues.values()),
        queues=queues,
        unlisted_waiting_count=unlisted,
        suspect=suspect,
        tasks=(*told, *(RunningTask(*run, is_persisted=True) for run in runs.values()))[:MAX_SHOWN_TASKS],
    )


def _queue_in_file(queue: QueueReport, held: Held | None) -> QueueReport:
    waiting, running = (0, 0) if held is None else (held.waiting_count, held.running_count)
    return queue._replace(
        waiting_count=queue.memory_only_waiting + waiting, running_count=queue.memory_only_running + running
    )


def _live_counts(counts: Mapping[TaskStatus, int], found: Statistics) -> Mapping[TaskStatus, int]:
    """Return the counts with newer numbers of unfinished tasks. `counts` may be old, because counting all is slow."""
    if found.held is None or found.is_free_cut or any(each.count >= FREE_COUNT_CAP for each in found.free):
        return counts
    return {
        **counts,
        TaskStatus.PENDING: sum(each.count for each in found.free) + sum(each.pending_count for each in found.held),
        TaskStatus.CLAIMED: sum(each.claimed_count for each in found.held),
        TaskStatus.RUNNING: sum(each.running_count for each in found.held),
    }


# All instances together.


def unknown_in(reports: Collection[InstanceReport], free: Iterable[FreeQueue]) -> Mapping[str, int]:
    """Return how many tasks wait for each function that no living instance knows of those that run its queue.

    Left out are the tasks of a queue if an instance that runs it does not say which functions it knows.
    """
    found: dict[str, int] = {}
    for each in free:
        names = [report.task_names for report in reports if report.runs(each.queue_name)]
        if names and not any(known is None or each.task_name in known for known in names):
            found[each.task_name] = found.get(each.task_name, 0) + each.count
    return found


def unrun_in(reports: Collection[InstanceReport], free: Iterable[FreeQueue]) -> Mapping[str, int]:
    """Return how many tasks wait in each queue that no living instance runs; none if no instance lives."""
    found: dict[str, int] = {}
    for each in free if reports else ():
        if not any(report.runs(each.queue_name) for report in reports):
            found[each.queue_name] = found.get(each.queue_name, 0) + each.count
    return found


def _by_importance(instance: InstanceView) -> tuple[int, int]:
    return (Health.DEAD, Health.FROZEN, Health.ALIVE).index(instance.health), -instance.row.started_at


def _queues(alive: Mapping[str, InstanceReport], found: Statistics) -> tuple[QueueView, ...]:
    """Return every queue that an instance has, that something waits in, or that is paused; the fullest first."""
    free: dict[str, list[FreeQueue]] = {name: [] for name in found.paused}
    reports: dict[str, list[QueueReport]] = {}
    for row in found.free:
        free.setdefault(row.queue_name, []).append(row)
    for name, queue in (each for report in alive.values() for each in report.queues.items()):
        reports.setdefault(name, []).append(queue)
    for held in found.held or ():
        if held.owner not in alive:  # what belongs to nobody who lives waits and runs in the file, and nowhere else
            reports.setdefault(held.queue_name, []).append(QueueReport(held.waiting_count, held.running_count))
    views = [_queue(name, reports.get(name, []), free.get(name, []), found) for name in free.keys() | reports.keys()]
    return tuple(sorted(views, key=lambda each: (-each.waiting_count - each.running_count, each.queue_name)))


def _queue(name: str, reports: Sequence[QueueReport], free: Sequence[FreeQueue], found: Statistics) -> QueueView:
    limits = [each.limit for each in reports if each.limit is not None]
    is_shared = any(each.is_shared_limit for each in reports)
    oldest = [each.oldest_waiting_since for each in reports if each.oldest_waiting_since is not None]
    oldest += [row.next_due_at for row in free if row.next_due_at <= found.taken_at]
    return QueueView(
        queue_name=name,
        running_count=sum(each.running_count for each in reports),
        waiting_count=sum(each.waiting_count for each in reports) + sum(row.count for row in free),
        is_waiting_capped=any(row.count >= FREE_COUNT_CAP or found.is_free_cut for row in free),
        limit=(max(limits) if is_shared else sum(limits)) if limits else None,
        oldest_waiting_since=min(oldest, default=None),
        is_paused=name in found.paused,
    )
