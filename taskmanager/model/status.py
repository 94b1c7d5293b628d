"""The state of a manager, for programs and for the console."""

from collections.abc import Mapping
from datetime import datetime

from taskmanager.model.clock import SECOND_US, from_us
from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.report import InstanceReport


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
