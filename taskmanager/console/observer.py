"""Looks at a database, once or again and again, and puts together what there is to see.

Who lives is told by the lock files, never by the database, and who is frozen by a heartbeat that does not move: at the
first look by its age, from then on by the observer's own clock, so that a clock that jumps makes nobody look frozen.
"""

import shutil
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from taskmanager.console.overview import Health, InstanceView, Overview, QueueView, StorageView
from taskmanager.console.problems import problems_of
from taskmanager.engine.instance import PUT_BACK_S, has_lock_file, is_dead
from taskmanager.engine.report import MAX_SHOWN_TASKS
from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.report import InstanceReport, QueueReport, RunningTask
from taskmanager.model.states import TaskStatus
from taskmanager.store.protocol import FREE_COUNT_CAP, FreeQueue, InstanceRow
from taskmanager.store.sqlite.queries import counts as count_all
from taskmanager.store.sqlite.reading import snapshot
from taskmanager.store.sqlite.statistics import statistics
from taskmanager.store.statistics import Held, Started, Statistics, said_by

DEFAULT_HEARTBEAT_S: Final = 30.0
"""For an instance that has not said yet how often its heart beats."""
MISSED_BEATS: Final = 2.5
"""An instance is frozen when so many intervals have passed without a sign of life."""


class _Sign(NamedTuple):
    """The newest sign of life of one instance, and since when it has been the newest."""

    at: int
    since_s: float
    has_moved: bool


class Oneself(NamedTuple):
    """What an instance knows of itself, newer than its row. `counts` are all tasks by status, memory included."""

    row: InstanceRow
    report: InstanceReport
    counts: Mapping[TaskStatus, int]
    capped: frozenset[TaskStatus] = frozenset()


class Observer:
    """Looks at one file, and remembers what it saw for the next look. Without a file, the instance is all there is."""

    def __init__(self, database: Path | None, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._signs: dict[str, _Sign] = {}
        self._alive_s: dict[str, float] = {}

    def overview(self, found: Statistics, counts: Mapping[TaskStatus, int], oneself: Oneself | None = None) -> Overview:
        """Put together what was found, and what the lock files, the disk and the instances say."""
        reports = {row.instance_id: _as_in_file(said_by(row), found) for row in found.instances}
        if oneself is not None:
            own_id = oneself.row.instance_id
            others = tuple(row for row in found.instances if row.instance_id != own_id)
            found = replace(found, instances=(oneself.row, *others))
            reports[own_id] = oneself.report
        instances = [self._instance(row, reports[row.instance_id], found) for row in found.instances]
        self._forget({row.instance_id for row in found.instances})
        alive = {each.row.instance_id: each.report for each in instances if each.health is not Health.DEAD}
        told = [report for name, report in alive.items() if oneself is None or name != oneself.row.instance_id]
        if oneself is None:
            counts, capped = _live_counts(counts, found), frozenset[TaskStatus]()
        else:
            counts, capped = oneself.counts, oneself.capped
        overview = Overview(
            taken_at=found.taken_at,
            counts=_with_memory(counts, told),
            capped=capped,
            instances=tuple(sorted(instances, key=_by_importance)),
            queues=queues_of([*(each.queues for each in alive.values()), _of_the_gone(alive, found)], found),
            minute=found.minute,
            hour=found.hour,
            running=running_of(alive.values()),
            slowest=found.slowest,
            most_failing=found.most_failing,
            failures=found.failures,
            schedules=found.schedules,
            storage=self._storage(found),
            last_activity_at=found.last_activity_at,
        )
        return replace(overview, problems=problems_of(overview, found.owned, unknown_in(alive.values(), found.free)))

    def _instance(self, row: InstanceRow, report: InstanceReport, found: Statistics) -> InstanceView:
        seen_at = max(row.updated_at, found.beats.get(row.instance_id, 0))
        silent_s = self._silent_s(row.instance_id, seen_at)
        health = Health.ALIVE
        if self._is_dead(row.instance_id):
            health = Health.DEAD  # what it said of itself is true no more
            report = replace(said_by(row._replace(live_tasks=None)), is_stopping=report.is_stopping)
        elif silent_s > MISSED_BEATS * (report.heartbeat_s or DEFAULT_HEARTBEAT_S):
            health = Health.FROZEN
        return InstanceView(
            row=row,
            report=report,
            health=health,
            seen_at=seen_at,
            silent_s=silent_s,
            held_count=found.owned.get(row.instance_id, 0),
        )

    def _is_dead(self, instance_id: str) -> bool:
        """Whether its lock is free. One that was seen alive is not dead as soon as its lock file is missing: a living
        instance puts it back within `PUT_BACK_S`.
        """
        if self._database is None:
            return False
        now_s = self._clock.elapsed_s()
        if not is_dead(self._database, instance_id):
            self._alive_s[instance_id] = now_s
            return False
        was_alive_s = self._alive_s.get(instance_id, -PUT_BACK_S)
        return now_s - was_alive_s >= PUT_BACK_S or has_lock_file(self._database, instance_id)

    def _silent_s(self, instance_id: str, seen_at: int) -> float:
        now_s = self._clock.elapsed_s()
        sign = self._signs.get(instance_id)
        if sign is None or sign.at != seen_at:
            sign = self._signs[instance_id] = _Sign(seen_at, now_s, has_moved=sign is not None)
        observed_s = now_s - sign.since_s
        if sign.has_moved:
            return observed_s
        return max(observed_s, (self._clock.now_us() - seen_at) / SECOND_US)

    def _forget(self, known: set[str]) -> None:
        for instance_id in set(self._signs) - known:
            del self._signs[instance_id]
            self._alive_s.pop(instance_id, None)

    def _storage(self, found: Statistics) -> StorageView:
        if self._database is None:
            return StorageView(path=None)
        return StorageView(
            path=str(self._database),
            file_bytes=found.size.total_bytes,
            unused_bytes=found.size.free_bytes,
            log_bytes=_log_size(self._database),
            disk_free_bytes=_disk_free(self._database),
            schema_version=found.size.schema_version,
        )


def look(database: Path, connection: sqlite3.Connection, clock: Clock) -> Overview:
    """Look at a file once."""
    with snapshot(connection):
        found, counts = statistics(connection, clock.now_us()), count_all(connection)
    return Observer(database, clock).overview(found, counts)


# What the file knows better than the instances, whose reports may be a second old.


def _as_in_file(report: InstanceReport, found: Statistics) -> InstanceReport:
    """Return the report with the persisted tasks as the file has them. An instance that cannot write knows better."""
    if found.held is None or report.degraded_since is not None:
        return report
    held = {each.queue_name: each for each in found.held if each.owner == report.instance_id}
    names = [*report.queues, *(name for name in held if name not in report.queues and not report.unlisted_queue_count)]
    queues = {name: _queue_in_file(report.queues.get(name, QueueReport()), held.get(name)) for name in names}
    runs = {(each.task_id, each.attempt): each for each in found.started if each.owner == report.instance_id}
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
        tasks=(*told, *map(_just_started, runs.values()))[:MAX_SHOWN_TASKS],
    )


def _queue_in_file(queue: QueueReport, held: Held | None) -> QueueReport:
    waiting, running = (0, 0) if held is None else (held.waiting_count, held.running_count)
    return queue._replace(
        waiting_count=queue.memory_only_waiting + waiting, running_count=queue.memory_only_running + running
    )


def _just_started(run: Started) -> RunningTask:
    return RunningTask(
        task_id=run.task_id,
        task_name=run.task_name,
        queue_name=run.queue_name,
        instance_id=run.owner,
        attempt=run.attempt,
        started_at=run.started_at,
        is_persisted=True,
    )


def _of_the_gone(alive: Iterable[str], found: Statistics) -> Mapping[str, QueueReport]:
    """Return what belongs to nobody who lives: it waits and runs in the file, and nowhere else."""
    queues: dict[str, QueueReport] = {}
    known = frozenset(alive)
    for each in found.held or ():
        if each.owner not in known:
            before = queues.get(each.queue_name, QueueReport())
            queues[each.queue_name] = before._replace(
                waiting_count=before.waiting_count + each.waiting_count,
                running_count=before.running_count + each.running_count,
            )
    return queues


def _live_counts(counts: Mapping[TaskStatus, int], found: Statistics) -> Mapping[TaskStatus, int]:
    """Return the counts with what has not ended as the tables have it. They may be older: to count all is dear."""
    if found.held is None or any(each.count >= FREE_COUNT_CAP for each in found.free):
        return counts
    return {
        **counts,
        TaskStatus.PENDING: sum(each.count for each in found.free) + sum(each.pending_count for each in found.held),
        TaskStatus.CLAIMED: sum(each.claimed_count for each in found.held),
        TaskStatus.RUNNING: sum(each.running_count for each in found.held),
    }


def _with_memory(counts: Mapping[TaskStatus, int], reports: Iterable[InstanceReport]) -> Mapping[TaskStatus, int]:
    """Return the rows of the file, and what living instances have in memory only."""
    together = dict(counts)
    for report in reports:
        together[TaskStatus.RUNNING] += report.memory_only_running
        together[TaskStatus.PENDING] += report.memory_only_waiting
    return together


# What the parts come to.


def unknown_in(reports: Iterable[InstanceReport], free: Iterable[FreeQueue]) -> Mapping[str, int]:
    """Return how many tasks wait for which function that no living instance has; none where one does not say."""
    names = [report.task_names for report in reports]
    if not names or None in names:
        return {}
    known = frozenset[str]().union(*(each for each in names if each is not None))
    found: dict[str, int] = {}
    for each in free:
        if each.task_name not in known:
            found[each.task_name] = found.get(each.task_name, 0) + each.count
    return found


def _by_importance(instance: InstanceView) -> tuple[int, int]:
    return (Health.DEAD, Health.FROZEN, Health.ALIVE).index(instance.health), -instance.row.started_at


def queues_of(reports: Sequence[Mapping[str, QueueReport]], found: Statistics) -> tuple[QueueView, ...]:
    """Return every queue that an instance has, that something waits in, or that is paused; the fullest first."""
    free: dict[str, list[FreeQueue]] = {}
    for row in found.free:
        free.setdefault(row.queue_name, []).append(row)
    names = {name for queues in reports for name in queues} | free.keys() | found.paused
    views = [
        _queue(name, [each[name] for each in reports if name in each], free.get(name, []), found) for name in names
    ]
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
        is_waiting_capped=any(row.count >= FREE_COUNT_CAP for row in free),
        limit=(max(limits) if is_shared else sum(limits)) if limits else None,
        oldest_waiting_since=min(oldest, default=None),
        is_paused=name in found.paused,
    )


def running_of(reports: Iterable[InstanceReport]) -> tuple[RunningTask, ...]:
    """Return what runs, those that report progress first, then the longest."""
    running = [task for report in reports for task in report.tasks]
    return tuple(sorted(running, key=lambda task: (task.done is None, task.started_at, task.task_id)))


def _log_size(database: Path) -> int:
    try:
        file = database.resolve()
        return file.with_name(f"{file.name}-wal").stat().st_size
    except OSError:
        return 0


def _disk_free(database: Path) -> int | None:
    try:
        return shutil.disk_usage(database.parent).free
    except OSError:
        return None
