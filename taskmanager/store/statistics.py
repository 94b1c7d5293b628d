"""What a store can say of itself at one moment: the words of the console, as they stand in the file.

Instants are microseconds since 1970 UTC. Every list is bounded, and so is the work to make it: history is looked at
through windows of time, newest first, and counts of what waits end at a cap.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from taskmanager.codec.report import loads_report
from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.report import InstanceReport
from taskmanager.model.states import TaskStatus
from taskmanager.store.protocol import MAX_FREE, FreeQueue, InstanceRow

ENDED_CAP: Final = 100_000
"""Attempts of a window are counted up to here; with more, the window is cut to what these cover."""
COUNT_CAP: Final = 50_000
"""Rows of one status that are counted where the loop waits for it; that takes some 5 ms for each such status."""
SAMPLE: Final = 1_000
"""Attempts, newest first, from which durations and failures are told per task."""
OWNED_CAP: Final = 1_000
HELD_CAP: Final = 10_000
"""Unfinished rows with an owner that are told apart by queue: some 10 ms of work. Of more nobody sees the last one."""
MAX_STARTED: Final = 1_000
MAX_INSTANCES: Final = 50
MAX_OWNERS: Final = 100
MAX_LINES: Final = 20
MAX_MESSAGE_CHARS: Final = 200
"""Of the newest message of each task that fails."""


class Pace(NamedTuple):
    """How many attempts ended in a window, and how many of them failed. `since` is where the window begins."""

    since: int
    ended_count: int
    failed_count: int


class TaskPace(NamedTuple):
    """The attempts of one task in the sample of the last hour."""

    task_name: str
    ended_count: int
    failed_count: int
    mean_us: int
    longest_us: int


class TaskFailures(NamedTuple):
    """The failed attempts of one task in the last hour, and the newest error: its code, and how its message begins."""

    task_name: str
    failed_count: int
    last_error_code: str
    last_error_message: str | None = None


class Figures(NamedTuple):
    """What has happened from `at` on: in a minute, in an hour, or in all that was asked for.

    `retried` counts attempts that failed or were lost, after which the task is tried again. `waited` counts starts by
    how long the task had been due, and `ran` counts ends by how long the last attempt took, in the buckets of
    `rules/figures.py`. A start or an end of which that is not known is in none.
    """

    at: int
    started: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    interrupted: int
    retried: int
    waited: tuple[int, ...]
    ran: tuple[int, ...]

    @property
    def ended_count(self) -> int:
        """Return how many tasks have ended, in whatever way."""
        return self.completed + self.failed + self.cancelled + self.expired + self.interrupted

    @property
    def attempt_count(self) -> int:
        """Return how many attempts have ended, without cancelled and expired tasks, which may never have run."""
        return self.completed + self.failed + self.interrupted + self.retried

    @property
    def failure_count(self) -> int:
        """Return how many attempts failed or were lost, whether the task was tried again or not."""
        return self.failed + self.retried


class Failure(NamedTuple):
    """One attempt that failed."""

    task_id: str
    task_name: str
    attempt: int
    outcome: str
    error_code: str
    error_message: str | None
    finished_at: int
    will_retry: bool


class NextRun(NamedTuple):
    """When a schedule runs. `definition` is its timing in words; `is_declared`: an instance that is there has it."""

    schedule_name: str
    task_name: str
    definition: str
    next_run_at: int | None
    last_run_at: int | None
    is_paused: bool
    is_declared: bool


class Held(NamedTuple):
    """The unfinished rows of one owner in one queue."""

    owner: str
    queue_name: str
    pending_count: int
    claimed_count: int
    running_count: int

    @property
    def waiting_count(self) -> int:
        """Those that wait in its memory."""
        return self.pending_count + self.claimed_count


class LiveWorkflow(NamedTuple):
    """A workflow that has not ended, and how many of its nodes have."""

    workflow_id: str
    name: str
    status: str
    sent_at: int
    node_count: int
    ended_count: int


class OwnWorkflow(NamedTuple):
    """The workflow that a task is of, and its node there."""

    workflow_id: str
    name: str
    node_id: str


class Started(NamedTuple):
    """One row that is RUNNING."""

    task_id: str
    task_name: str
    queue_name: str
    owner: str
    attempt: int
    started_at: int


class FileSize(NamedTuple):
    """Bytes of the file, and how many of them deleted rows have left unused; and its schema."""

    total_bytes: int
    free_bytes: int
    schema_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The file at `taken_at`, without the counts by status, which cost more.

    `beats`: the newest heartbeat of each listed instance. `owned`: unfinished rows per owner, at most `OWNED_CAP`.
    `held`: the same by queue, None where they are more than `HELD_CAP`, with the tasks that wait because their workflow
    is paused. `started`: at most `MAX_STARTED`. `workflows`: the paused ones first, then the newest, of all that are in
    no other one; there are `workflow_count`, at most `OWNED_CAP`. `workflow_of`: that of each started task of one.
    `figures`: those of the last 60 minutes, of which the last one goes on.
    """

    taken_at: int
    instances: tuple[InstanceRow, ...] = ()
    beats: Mapping[str, int]
    owned: Mapping[str, int]
    held: tuple[Held, ...] | None = None
    started: tuple[Started, ...] = ()
    free: tuple[FreeQueue, ...] = ()
    paused: frozenset[str] = frozenset()
    minute: Pace
    hour: Pace
    slowest: tuple[TaskPace, ...] = ()
    most_failing: tuple[TaskFailures, ...] = ()
    failures: tuple[Failure, ...] = ()
    schedules: tuple[NextRun, ...] = ()
    workflows: tuple[LiveWorkflow, ...] = ()
    workflow_count: int = 0
    workflow_of: Mapping[str, OwnWorkflow] = field(default_factory=dict)
    last_activity_at: int | None = None
    figures: Figures | None = None
    size: FileSize

    @property
    def is_free_cut(self) -> bool:
        """Return whether `free` may have left out some functions and queues."""
        return len(self.free) >= MAX_FREE


class StoreOverview(NamedTuple):
    """All that the console asks of a store, with the counts of rows by status, zeros included.

    A status in `capped` has more rows than were counted.
    """

    statistics: Statistics
    counts: Mapping[TaskStatus, int]
    capped: frozenset[TaskStatus] = frozenset()


def said_by(instance: InstanceRow) -> InstanceReport:
    """Return what an instance says of itself in its row; a report of nothing where that cannot be read."""
    return loads_report(instance.live_tasks, instance.instance_id, instance.started_at, instance.updated_at)
