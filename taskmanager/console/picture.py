"""What there is to see of one database at one moment, in frozen values: the console draws it, `--json` prints it.

Instants end in `_at` or `_since` and are microseconds since 1970 UTC; None is "never" or "not known".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from taskmanager.model.states import TaskStatus
from taskmanager.store.statistics import Failure, NextRun, Pace, TaskFailures, TaskPace


class Health(StrEnum):
    """Of an instance. Dead: its lock is free. Frozen: its lock is held, but its heartbeat does not move."""

    ALIVE = "alive"
    FROZEN = "frozen"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSight:
    """One lane of one instance."""

    running_count: int
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSight:
    """One instance. `held_count` are the unfinished rows it owns in the file, at most `statistics.OWNED_CAP`."""

    instance_id: str
    instance_name: str | None
    hostname: str
    pid: int
    health: Health
    started_at: int
    seen_at: int
    """The newest sign of life."""
    silent_s: float
    """How long ago that was, by the observer's own clock where it has seen it come."""
    held_count: int
    running_count: int = 0
    waiting_count: int = 0
    stuck_count: int = 0
    unwritten_count: int = 0
    """Memory-only tasks that have ended and are not in the file yet."""
    unsaved_count: int = 0
    unsaved_since: int | None = None
    degraded_since: int | None = None
    failing_duties: Mapping[str, str] = field(default_factory=dict)
    """What goes on beside the tasks and fails, by name, and why."""
    is_stopping: bool = False
    lanes: Mapping[str, LaneSight] = field(default_factory=dict)
    unlisted_queue_count: int = 0
    """Queues that it has besides the fullest, which are all that it lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSight:
    """One queue over all living instances. `limit` is what may run at once in all of them, None without a limit."""

    queue_name: str
    running_count: int
    waiting_count: int
    is_waiting_capped: bool
    limit: int | None
    oldest_waiting_since: int | None
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSight:
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
        """How much of the work is done, from 0 to 1; None when nobody knows, as when more was done than there is."""
        if self.done is None or not self.total or not 0 <= self.done <= self.total:
            return None
        return self.done / self.total

    def left_us(self, now_us: int) -> int | None:
        """How long it will go on at the speed it had so far; None when nobody knows."""
        fraction, elapsed_us = self.fraction, now_us - self.started_at
        if not fraction or elapsed_us <= 0:
            return None
        return round(elapsed_us * (1 - fraction) / fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSight:
    """The file and its log. `path` None: in memory only."""

    path: str | None
    file_bytes: int = 0
    unused_bytes: int = 0
    log_bytes: int = 0
    disk_free_bytes: int | None = None
    schema_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something a person should know first, and what to do about it."""

    severity: Literal["error", "warning"]
    text: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything. `counts` has every status, memory-only tasks of living instances included. There are more than was
    counted of those that are `capped`.
    """

    taken_at: int
    problems: tuple[Problem, ...] = ()
    counts: Mapping[TaskStatus, int]
    capped: frozenset[TaskStatus] = frozenset()
    instances: tuple[InstanceSight, ...] = ()
    queues: tuple[QueueSight, ...] = ()
    minute: Pace
    hour: Pace
    running: tuple[RunningSight, ...] = ()
    slowest: tuple[TaskPace, ...] = ()
    most_failing: tuple[TaskFailures, ...] = ()
    failures: tuple[Failure, ...] = ()
    schedules: tuple[NextRun, ...] = ()
    storage: StorageSight
    last_activity_at: int | None = None

    @property
    def waiting_count(self) -> int:
        """Tasks that are still to start."""
        return self.counts[TaskStatus.PENDING] + self.counts[TaskStatus.CLAIMED]

    @property
    def running_count(self) -> int:
        """Tasks that run."""
        return self.counts[TaskStatus.RUNNING]

    @property
    def unwritten_count(self) -> int:
        """Memory-only tasks that have ended in a living instance and are in no count yet."""
        return sum(each.unwritten_count for each in self.instances)

    @property
    def is_empty(self) -> bool:
        """No task yet, in the file or in memory, and none to come by itself."""
        return not any(self.counts.values()) and not self.unwritten_count and not self.schedules

    def with_health(self, health: Health) -> tuple[InstanceSight, ...]:
        """The instances that are like that."""
        return tuple(each for each in self.instances if each.health is health)


NO_COUNTS: Final[Mapping[TaskStatus, int]] = dict.fromkeys(TaskStatus, 0)
