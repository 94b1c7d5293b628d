"""One instance at one moment, in frozen values: what `status()`, its row in the file, the console and the router show.

In reports, instants are microseconds since 1970 UTC; None is "never" or "not known". `status()` says the same in aware
datetimes and in seconds.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from taskmanager.model.clock import SECOND_US, from_us
from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.record import AttemptRow
from taskmanager.model.states import TaskStatus

UNSAVED_SHOWN_US: Final = 2 * SECOND_US
"""A change that waits longer than this for its commit is worth a word; all others wait for some milliseconds."""
MAX_REASON_CHARS: Final = 200
"""How much other processes see of the reason why a duty fails."""
_ROUNDED_US: Final = 100_000
MAX_HELD: Final = 1_000
"""Tasks that wait for a suspect to end are counted up to here."""


class LaneReport(NamedTuple):
    """One lane of one instance."""

    running_count: int = 0
    limit: int | None = None


class QueueReport(NamedTuple):
    """One queue of one instance. `limit` is what may run at once, in all instances together where it is shared."""

    waiting_count: int = 0
    running_count: int = 0
    limit: int | None = None
    is_shared_limit: bool = False
    oldest_waiting_since: int | None = None
    memory_only_waiting: int = 0
    memory_only_running: int = 0
    is_paused: bool = False
    priority: int | None = None


class RunningTask(NamedTuple):
    """One task that runs now. `done`, `total` and `text` are what it reported last, None without a report."""

    task_id: str
    task_name: str
    queue_name: str
    instance_id: str
    attempt: int
    started_at: int
    is_persisted: bool
    done: float | None = None
    total: float | None = None
    text: str = ""

    @property
    def fraction(self) -> float | None:
        """Return how much is done, from 0 to 1; None when nobody knows, as when more was done than there is."""
        if self.done is None or not self.total or not 0 <= self.done <= self.total:
            return None
        return self.done / self.total

    def left_us(self, now_us: int) -> int | None:
        """Return how long it will go on at the speed it had so far; None when nobody knows."""
        fraction, elapsed_us = self.fraction, now_us - self.started_at
        if not fraction or elapsed_us <= 0:
            return None
        return round(elapsed_us * (1 - fraction) / fraction)


class Suspect(NamedTuple):
    """A task that runs alone because its process died when it ran before, and how many tasks wait until it ends.

    These may not start beside it. At most `MAX_HELD` are counted.
    """

    task: RunningTask
    held_count: int


class TaskInMemory(NamedTuple):
    """One task in memory: its status here, its status in the store (None without a row), and when it was sent."""

    status: TaskStatus
    stored: str | None
    sent_at: int


class MemoryReport(NamedTuple):
    """Every task in memory by its id, and the attempts that no store has yet, each with the name of its task."""

    tasks: Mapping[str, TaskInMemory]
    attempts: tuple[tuple[str, AttemptRow], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReport:
    """What one instance says of itself. Two reports are equal when they say the same, whenever they were made.

    `queues` may be the fullest only; of the others there are `unlisted_queue_count`, in which `unlisted_waiting_count`
    tasks wait. `tasks` are some of those that run: those that report progress, and the oldest. `task_names` are the
    functions that it knows, None where it does not say, and `run_queues` the queues that it runs, None for all of them.
    `suspect` is the task that runs alone, if one does. `abandoned_count` are threads and coroutines that outlived their
    time limit. `unwritten_count` are memory-only tasks that have ended and are not in the file yet. `tally`
    counts how the tasks of this start have ended. `memory` is None unless somebody has asked for every task.
    """

    instance_id: str
    started_at: int
    taken_at: int = field(compare=False)
    heartbeat_s: float | None = None
    is_stopping: bool = False
    running_count: int = 0
    waiting_count: int = 0
    abandoned_count: int = 0
    unsaved_count: int = 0
    unsaved_since: int | None = None
    unwritten_count: int = 0
    degraded_since: int | None = None
    failing_duties: Mapping[str, str] = field(default_factory=dict)
    memory_only_running: int = 0
    memory_only_waiting: int = 0
    lanes: Mapping[str, LaneReport] = field(default_factory=dict)
    queues: Mapping[str, QueueReport] = field(default_factory=dict)
    unlisted_queue_count: int = 0
    unlisted_waiting_count: int = 0
    tasks: tuple[RunningTask, ...] = ()
    suspect: Suspect | None = None
    task_names: frozenset[str] | None = None
    run_queues: frozenset[str] | None = None
    tally: Mapping[str, int] = field(default_factory=dict)
    memory: MemoryReport | None = None

    def runs(self, queue_name: str) -> bool:
        """Return whether the instance runs the tasks of that queue."""
        return self.run_queues is None or queue_name in self.run_queues

    def for_others(self) -> "InstanceReport":
        """Return the report as other processes see it: nothing in it changes by the mere passing of time.

        A change that has waited for milliseconds only is left out, and the age of an older one is rounded. What is not
        written is left out too, so that reports are equal when nothing new would be written.
        """
        since, count = self.unsaved_since, self.unsaved_count
        if since is None or self.taken_at - since <= UNSAVED_SHOWN_US:
            since, count = None, 0
        else:
            since = round(since / _ROUNDED_US) * _ROUNDED_US
        reasons = {name: why[:MAX_REASON_CHARS] for name, why in sorted(self.failing_duties.items())}
        return replace(self, unsaved_since=since, unsaved_count=count, failing_duties=reasons, tally={}, memory=None)


class WorkerState(NamedTuple):
    """One row of `taskmanager_worker_states`: a snapshot of one instance. Lists and mappings are JSON text."""

    worker_id: str
    snapshot_at: int
    hostname: str
    pid: int
    processes: int
    queues: str
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float
    children_memory_mb: float
    cpu_percent: float
    memory_percent: float
    max_claim_batch: int
    max_claim_per_worker: int
    cluster_wide_cap: int | None
    queue_priorities: str
    queue_max_concurrency: str
    recovery_config: str
    worker_started_at: int


# What programs are told.


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """One lane of this instance."""

    running: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """One queue of this instance."""

    running: int
    limit: int | None
    waiting: int
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """One schedule. Instants are aware UTC; `definition` is its timing in words.

    `next_run_at` is None while it is not known: after a resume, until the application has looked. `is_declared` is
    False if no running instance defines the schedule. Then it does not fire, and its row is kept.
    """

    schedule_name: str
    task_name: str
    definition: str
    last_run_at: datetime | None
    next_run_at: datetime | None
    last_task_id: str | None
    run_count: int
    config_hash: str | None
    is_paused: bool
    is_declared: bool
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerStatus:
    """This instance at one moment. Durations are seconds, instants aware UTC.

    `storage_degraded_since` is None while the file takes writes. `oldest_unsaved_s` is the age of the oldest change of
    a persisted task that is not committed. `oldest_waiting_s` says how long the oldest task that waits here for a slot
    has been due. `abandoned_count` counts threads and coroutines that still run after their time limit.
    `failing_duties` names the background duties that keep failing (heartbeat, reaper, retention, ...), and says why.
    """

    state: str
    instance_id: str | None = None
    started_at: datetime | None = None
    storage_degraded_since: datetime | None = None
    oldest_unsaved_s: float | None = None
    unsaved_count: int = 0
    held_count: int = 0
    waiting_count: int = 0
    oldest_waiting_s: float | None = None
    running_count: int = 0
    abandoned_count: int = 0
    failing_duties: Mapping[str, str] = field(default_factory=dict)
    lanes: Mapping[str, LaneStatus] = field(default_factory=dict)
    queues: Mapping[str, QueueStatus] = field(default_factory=dict)
    schedules: tuple[ScheduleInfo, ...] = ()


def status_of(
    report: InstanceReport | None, state: str, held_count: int, schedules: tuple[ScheduleInfo, ...]
) -> ManagerStatus:
    """Return what `manager.status()` says; the report has every queue, and is None while there is no instance."""
    if report is None:
        return ManagerStatus(state=state, held_count=held_count)
    since, unsaved = report.degraded_since, report.unsaved_since
    waiting = [each.oldest_waiting_since for each in report.queues.values() if each.oldest_waiting_since is not None]
    return ManagerStatus(
        state=state,
        instance_id=report.instance_id,
        started_at=from_us(report.started_at),
        storage_degraded_since=None if since is None else from_us(since),
        oldest_unsaved_s=None if unsaved is None else (report.taken_at - unsaved) / SECOND_US,
        unsaved_count=report.unsaved_count,
        waiting_count=report.waiting_count,
        oldest_waiting_s=max(0.0, (report.taken_at - min(waiting)) / SECOND_US) if waiting else None,
        running_count=report.running_count,
        abandoned_count=report.abandoned_count,
        failing_duties=report.failing_duties,
        lanes={
            name: LaneStatus(running=each.running_count, limit=each.limit or 0) for name, each in report.lanes.items()
        },
        queues={
            name: QueueStatus(
                running=each.running_count, limit=each.limit, waiting=each.waiting_count, is_paused=each.is_paused
            )
            for name, each in report.queues.items()
        },
        schedules=schedules,
    )
