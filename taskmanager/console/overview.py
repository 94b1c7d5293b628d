"""The overview of one database at one moment, in frozen values. The console draws it, and `--json` prints it.

Instants end in `_at` or `_since` and are microseconds since 1970 UTC; None is "never" or "not known".
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.report import InstanceReport, RunningTask
from taskmanager.model.states import TaskStatus
from taskmanager.rules.figures import percentile_us
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.statistics import (
    Failure,
    LiveWorkflow,
    NextRun,
    OwnWorkflow,
    Pace,
    TaskFailures,
    TaskPace,
)


class Durations(NamedTuple):
    """How long half of what was counted took at most, and how long 95 and 99 of a hundred; None if nothing was.

    These are estimates from buckets, and off by a factor of four at most.
    """

    p50_us: int | None = None
    p95_us: int | None = None
    p99_us: int | None = None

    @classmethod
    def of(cls, buckets: Sequence[int]) -> "Durations":
        """Return the percentiles of counts in the buckets of `rules/figures.py`."""
        return cls(*(percentile_us(buckets, share) for share in (0.5, 0.95, 0.99)))


class Health(StrEnum):
    """The health of an instance. A dead one has lost its lock. A frozen one holds it, but sends no heartbeat."""

    ALIVE = "alive"
    FROZEN = "frozen"
    DEAD = "dead"


class InstanceView(NamedTuple):
    """One instance: its row, what it says of itself, and what is seen of it from outside.

    `held_count` is the number of unfinished rows that it owns, at most `statistics.OWNED_CAP`. `seen_at` is its newest
    sign of life, and `silent_s` is the time since then.
    """

    row: InstanceRow
    report: InstanceReport
    health: Health
    seen_at: int
    silent_s: float
    held_count: int

    @property
    def name(self) -> str:
        """Return what people call it: the name it was given, or else its host."""
        return self.row.instance_name or self.row.hostname


class QueueView(NamedTuple):
    """One queue over all living instances. `limit` is what may run at once in all of them, None without a limit."""

    queue_name: str
    running_count: int
    waiting_count: int
    is_waiting_capped: bool
    limit: int | None
    oldest_waiting_since: int | None
    is_paused: bool


class StorageView(NamedTuple):
    """The file and its log, or the tables of a server. `path` is None where tasks are in memory only."""

    path: str | None
    file_bytes: int = 0
    unused_bytes: int = 0
    log_bytes: int = 0
    disk_free_bytes: int | None = None
    schema_version: int = 0

    @property
    def is_file(self) -> bool:
        """Return whether the path is no URL of a server."""
        return self.path is None or "://" not in self.path


class Mend(NamedTuple):
    """Where the dashboard mends a problem. With `fields`, one press sends them there; without, it is a page to open.

    `address` is below the dashboard.
    """

    label: str
    address: str
    fields: Mapping[str, str] | None = None


class Problem(NamedTuple):
    """Something a person should know first, and what to do about it: in a shell, and in the dashboard."""

    severity: Literal["error", "warning"]
    text: str
    advice: str
    mends: tuple[Mend, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The whole overview.

    `counts` has every status, and includes memory-only tasks of living instances. There are more tasks than were
    counted of the statuses in `capped`. `waited` is how long tasks that started in the last hour had been due, and
    `ran` is how long the last attempt of those took that ended in it. `workflow_of` has the workflow of each running
    task that is of one, by its id.
    """

    taken_at: int
    problems: tuple[Problem, ...] = ()
    counts: Mapping[TaskStatus, int]
    capped: frozenset[TaskStatus] = frozenset()
    instances: tuple[InstanceView, ...] = ()
    queues: tuple[QueueView, ...] = ()
    minute: Pace
    hour: Pace
    waited: Durations = Durations()
    ran: Durations = Durations()
    running: tuple[RunningTask, ...] = ()
    slowest: tuple[TaskPace, ...] = ()
    most_failing: tuple[TaskFailures, ...] = ()
    failures: tuple[Failure, ...] = ()
    schedules: tuple[NextRun, ...] = ()
    workflows: tuple[LiveWorkflow, ...] = ()
    workflow_count: int = 0
    workflow_of: Mapping[str, OwnWorkflow] = field(default_factory=dict)
    storage: StorageView
    last_activity_at: int | None = None

    @property
    def waiting_count(self) -> int:
        """Return how many tasks are still to start."""
        return self.counts[TaskStatus.PENDING] + self.counts[TaskStatus.CLAIMED]

    @property
    def running_count(self) -> int:
        """Return how many tasks run."""
        return self.counts[TaskStatus.RUNNING]

    @property
    def unwritten_count(self) -> int:
        """Return how many memory-only tasks have ended in a living instance and are in no count yet."""
        return sum(each.report.unwritten_count for each in self.instances)

    @property
    def is_empty(self) -> bool:
        """Return whether there is no task in the file or in memory, and no schedule that would make one."""
        return not any(self.counts.values()) and not self.unwritten_count and not self.schedules

    def with_health(self, *wanted: Health) -> tuple[InstanceView, ...]:
        """Return the instances whose health is one of these."""
        return tuple(each for each in self.instances if each.health in wanted)


NO_COUNTS: Final[Mapping[TaskStatus, int]] = dict.fromkeys(TaskStatus, 0)
