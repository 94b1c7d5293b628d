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

from taskmanager.console.document import NO_QUEUE, Document, QueueWord, parse
from taskmanager.console.picture import (
    Health,
    InstanceSight,
    Picture,
    QueueSight,
    RunningSight,
    StorageSight,
)
from taskmanager.console.problems import problems_of
from taskmanager.engine.instance import PUT_BACK_S, has_lock_file, is_dead
from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.states import TaskStatus
from taskmanager.store.protocol import FREE_COUNT_CAP, FreeQueue, InstanceRow
from taskmanager.store.sqlite.queries import counts as count_all
from taskmanager.store.sqlite.reading import snapshot
from taskmanager.store.sqlite.statistics import statistics
from taskmanager.store.statistics import Statistics

DEFAULT_HEARTBEAT_S: Final = 30.0
"""For an instance that has not said yet how often its heart beats."""
MISSED_BEATS: Final = 2.5
"""An instance is frozen when so many intervals have passed without a sign of life."""


class _Sign(NamedTuple):
    """The newest sign of life of one instance, and since when it has been the newest."""

    at: int
    since_s: float
    has_moved: bool


class Own(NamedTuple):
    """What an instance knows of itself, newer than its row. `counts` are all tasks by status, memory included, and more
    of those that are `capped`.
    """

    row: InstanceRow
    document: Document
    counts: Mapping[TaskStatus, int]
    capped: frozenset[TaskStatus] = frozenset()


class Observer:
    """Looks at one file, and remembers what it saw for the next look. Without a file, the instance is all there is."""

    def __init__(self, database: Path | None, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._signs: dict[str, _Sign] = {}
        self._alive_s: dict[str, float] = {}

    def counts(self, connection: sqlite3.Connection) -> Mapping[TaskStatus, int]:
        """Rows by status: the one question that costs by the length of the history, some 10 ms per million rows."""
        return count_all(connection)

    def statistics(self, connection: sqlite3.Connection) -> Statistics:
        """All the rest. In one snapshot with the counts, so that the numbers of a screen fit together."""
        return statistics(connection, self._clock.now_us())

    def picture(self, found: Statistics, counts: Mapping[TaskStatus, int], own: Own | None = None) -> Picture:
        """What was found, with what the lock files, the disk and the instances say of themselves."""
        documents = {row.instance_id: parse(row.live_tasks, row.instance_id) for row in found.instances}
        if own is not None:
            others = tuple(row for row in found.instances if row.instance_id != own.row.instance_id)
            found = replace(found, instances=(own.row, *others))
            documents[own.row.instance_id] = own.document
        if found.held is not None:
            others_words = documents.keys() - ({own.row.instance_id} if own is not None else set())
            documents |= {name: _as_in_file(name, documents[name], found) for name in others_words}
        instances = tuple(self._instance(row, documents[row.instance_id], found) for row in found.instances)
        self._forget({row.instance_id for row in found.instances})
        alive = [each.instance_id for each in instances if each.health is not Health.DEAD]
        words = [documents[instance_id] for instance_id in alive]
        of_others = [word for word in words if own is None or word is not own.document]
        drawn = Picture(
            taken_at=found.taken_at,
            counts=_with_memory(_live_counts(counts, found) if own is None else own.counts, of_others),
            capped=frozenset() if own is None else own.capped,
            instances=tuple(sorted(instances, key=_by_importance)),
            queues=queues_of([*words, _of_the_gone(alive, found)], found.free, found.paused, found.taken_at),
            minute=found.minute,
            hour=found.hour,
            running=running_of(words),
            slowest=found.slowest,
            most_failing=found.most_failing,
            failures=found.failures,
            schedules=found.schedules,
            storage=self._storage(found),
            last_activity_at=found.last_activity_at,
        )
        return replace(drawn, problems=problems_of(drawn, found.owned, _unknown(words, found.free)))

    def _instance(self, row: InstanceRow, document: Document, found: Statistics) -> InstanceSight:
        seen_at = max(row.updated_at, found.beats.get(row.instance_id, 0))
        silent_s = self._silent_s(row.instance_id, seen_at)
        if self._is_dead(row.instance_id):
            health = Health.DEAD
        elif silent_s > MISSED_BEATS * (document.heartbeat_s or DEFAULT_HEARTBEAT_S):
            health = Health.FROZEN
        else:
            health = Health.ALIVE
        is_dead_now = health is Health.DEAD
        return InstanceSight(
            instance_id=row.instance_id,
            instance_name=row.instance_name,
            hostname=row.hostname,
            pid=row.pid,
            health=health,
            started_at=row.started_at,
            seen_at=seen_at,
            silent_s=silent_s,
            held_count=found.owned.get(row.instance_id, 0),
            running_count=0 if is_dead_now else document.running_count,
            waiting_count=0 if is_dead_now else _waiting_in(document),
            stuck_count=0 if is_dead_now else document.stuck_count,
            unwritten_count=0 if is_dead_now else document.unwritten_count,
            unsaved_count=0 if is_dead_now else document.unsaved_count,
            unsaved_since=None if is_dead_now else document.unsaved_since,
            degraded_since=None if is_dead_now else document.degraded_since,
            failing_duties={} if is_dead_now else document.failing_duties,
            is_stopping=document.is_stopping,
            lanes={} if is_dead_now else document.lanes,
            unlisted_queue_count=0 if is_dead_now else document.unlisted_queue_count,
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

    def _storage(self, found: Statistics) -> StorageSight:
        if self._database is None:
            return StorageSight(path=None)
        return StorageSight(
            path=str(self._database),
            file_bytes=found.size.total_bytes,
            unused_bytes=found.size.free_bytes,
            log_bytes=_log_size(self._database),
            disk_free_bytes=_disk_free(self._database),
            schema_version=found.size.schema_version,
        )


def look(database: Path, connection: sqlite3.Connection, clock: Clock) -> Picture:
    """One look at a file."""
    observer = Observer(database, clock)
    with snapshot(connection):
        found, counts = observer.statistics(connection), observer.counts(connection)
    return observer.picture(found, counts)


def _as_in_file(instance_id: str, document: Document, found: Statistics) -> Document:
    held = [each for each in found.held or () if each.owner == instance_id]
    return document.as_in_file(instance_id, held, (each for each in found.started if each.owner == instance_id))


def _of_the_gone(alive: Iterable[str], found: Statistics) -> Document:
    """What belongs to nobody who lives: it waits and runs in the file, and nowhere else."""
    gone = Document()
    known = frozenset(alive)
    for each in found.held or ():
        if each.owner not in known:
            word = gone.queues.get(each.queue_name, NO_QUEUE)
            waiting, running = word.waiting_count + each.waiting_count, word.running_count + each.running_count
            word = word._replace(waiting_count=waiting, running_count=running)
            gone = gone._replace(queues={**gone.queues, each.queue_name: word})
    return gone


def _live_counts(counts: Mapping[TaskStatus, int], found: Statistics) -> Mapping[TaskStatus, int]:
    """The counts with what has not ended as the tables have it. They may be older: to count all is dear."""
    if found.held is None or any(each.count >= FREE_COUNT_CAP for each in found.free):
        return counts
    return {
        **counts,
        TaskStatus.PENDING: sum(each.count for each in found.free) + sum(each.pending_count for each in found.held),
        TaskStatus.CLAIMED: sum(each.claimed_count for each in found.held),
        TaskStatus.RUNNING: sum(each.running_count for each in found.held),
    }


def _unknown(words: Sequence[Document], free: Iterable[FreeQueue]) -> Mapping[str, int]:
    """How many tasks wait for which function that no living instance has; none where one of them does not say."""
    names = [word.task_names for word in words]
    if not names or None in names:
        return {}
    known = frozenset[str]().union(*(each for each in names if each is not None))
    found: dict[str, int] = {}
    for each in free:
        if each.task_name not in known:
            found[each.task_name] = found.get(each.task_name, 0) + each.count
    return found


def _waiting_in(document: Document) -> int:
    return document.unlisted_waiting_count + sum(each.waiting_count for each in document.queues.values())


def _by_importance(instance: InstanceSight) -> tuple[int, int]:
    return (Health.DEAD, Health.FROZEN, Health.ALIVE).index(instance.health), -instance.started_at


def _with_memory(counts: Mapping[TaskStatus, int], words: Iterable[Document]) -> Mapping[TaskStatus, int]:
    """The rows of the file, and what living instances have in memory only."""
    together = dict(counts)
    for word in words:
        together[TaskStatus.RUNNING] += word.memory_only_running
        together[TaskStatus.PENDING] += word.memory_only_waiting
    return together


def queues_of(
    words: Sequence[Document], free: Iterable[FreeQueue], paused: frozenset[str], now: int
) -> tuple[QueueSight, ...]:
    """Every queue that an instance has, that something waits in, or that is paused; the fullest first."""
    rows: dict[str, list[FreeQueue]] = {}
    for row in free:
        rows.setdefault(row.queue_name, []).append(row)
    names = {name for word in words for name in word.queues} | rows.keys() | paused
    found = [
        _queue(name, [word.queues[name] for word in words if name in word.queues], rows.get(name, []), paused, now)
        for name in names
    ]
    return tuple(sorted(found, key=lambda each: (-each.waiting_count - each.running_count, each.queue_name)))


def _queue(
    name: str, words: Sequence[QueueWord], free: Sequence[FreeQueue], paused: frozenset[str], now: int
) -> QueueSight:
    limits = [word.limit for word in words if word.limit is not None]
    is_shared = any(word.is_shared_limit for word in words)
    oldest = [word.oldest_waiting_since for word in words if word.oldest_waiting_since is not None]
    oldest += [row.next_due_at for row in free if row.next_due_at <= now]
    return QueueSight(
        queue_name=name,
        running_count=sum(word.running_count for word in words),
        waiting_count=sum(word.waiting_count for word in words) + sum(row.count for row in free),
        is_waiting_capped=any(row.count >= FREE_COUNT_CAP for row in free),
        limit=(max(limits) if is_shared else sum(limits)) if limits else None,
        oldest_waiting_since=min(oldest, default=None),
        is_paused=name in paused,
    )


def running_of(words: Iterable[Document]) -> tuple[RunningSight, ...]:
    """What runs, those that report progress first, then the longest."""
    running = [task for word in words for task in word.tasks]
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
