"""The statistics of a store in memory: the same answers as from a file, from rows and attempts that are all at hand."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.model.record import AttemptRow, TaskRow
from taskmanager.model.schedule import ScheduleRow
from taskmanager.model.states import LIVE, AttemptOutcome, TaskStatus
from taskmanager.store.protocol import FreeQueue, InstanceRow
from taskmanager.store.statistics import (
    HELD_CAP,
    MAX_INSTANCES,
    MAX_LINES,
    MAX_MESSAGE_CHARS,
    MAX_STARTED,
    SAMPLE,
    Failure,
    FileSize,
    Held,
    NextRun,
    Pace,
    Started,
    Statistics,
    StoreOverview,
    TaskFailures,
    TaskPace,
)

_FAILURES = (AttemptOutcome.FAILED, AttemptOutcome.WORKER_FAILURE)


def overview_at(
    now: int,
    rows: Mapping[str, TaskRow],
    attempts: Iterable[AttemptRow],
    instances: Sequence[InstanceRow],
    free: Sequence[FreeQueue],
    paused: frozenset[str],
    schedules: Iterable[ScheduleRow],
) -> StoreOverview:
    """See `Store.overview`."""
    ended = sorted(attempts, key=lambda each: each.finished_at, reverse=True)
    hour = [each for each in ended if each.finished_at >= now - HOUR_US]
    failed = [each for each in ended if each.outcome in _FAILURES and each.error_code is not None]
    found = Statistics(
        taken_at=now,
        instances=tuple(sorted(instances, key=lambda row: (-row.started_at, row.instance_id)))[:MAX_INSTANCES],
        beats={},
        owned=_owned(rows.values()),
        held=_held(rows.values()),
        started=_started(rows.values()),
        free=tuple(free),
        paused=paused,
        minute=_pace(hour, now - MINUTE_US),
        hour=_pace(hour, now - HOUR_US),
        slowest=_slowest(hour[:SAMPLE], rows),
        most_failing=_most_failing([each for each in failed if each.finished_at >= now - HOUR_US][:SAMPLE], rows),
        failures=tuple(_failure(each, rows[each.task_id].task_name) for each in failed[:MAX_LINES]),
        schedules=_next_runs(schedules),
        last_activity_at=max(
            [row.sent_at for row in rows.values()] + [each.finished_at for each in ended[:1]], default=None
        ),
        size=FileSize(0, 0, 0),
    )
    counts = Counter(row.status for row in rows.values())
    return StoreOverview(found, {status: counts[status] for status in TaskStatus})


def _owned(rows: Iterable[TaskRow]) -> dict[str, int]:
    return dict(Counter(row.claimed_by_worker_id for row in rows if row.claimed_by_worker_id and row.status in LIVE))


def _held(rows: Iterable[TaskRow]) -> tuple[Held, ...] | None:
    found = [row for row in rows if row.claimed_by_worker_id and row.status in LIVE]
    counts = Counter((row.claimed_by_worker_id or "", row.queue_name, row.status) for row in found)
    pairs = sorted({(owner, queue) for owner, queue, _ in counts})
    kinds = ("PENDING", "CLAIMED", "RUNNING")
    held = tuple(Held(*pair, *(counts[(*pair, status)] for status in kinds)) for pair in pairs)
    return None if len(found) > HELD_CAP else held


def _started(rows: Iterable[TaskRow]) -> tuple[Started, ...]:
    found = [row for row in rows if row.claimed_by_worker_id and row.status == "RUNNING"]
    return tuple(
        Started(
            row.task_id,
            row.task_name,
            row.queue_name,
            row.claimed_by_worker_id or "",
            row.start_count,
            row.updated_at if row.started_at is None else row.started_at,
        )
        for row in sorted(found, key=lambda each: (each.sent_at, each.task_id))[:MAX_STARTED]
    )


def _pace(ended: Iterable[AttemptRow], since: int) -> Pace:
    found = [each for each in ended if each.finished_at >= since]
    return Pace(since, len(found), sum(each.outcome in _FAILURES for each in found))


def _slowest(sample: Iterable[AttemptRow], rows: Mapping[str, TaskRow]) -> tuple[TaskPace, ...]:
    by_name: dict[str, list[AttemptRow]] = {}
    for each in sample:
        by_name.setdefault(rows[each.task_id].task_name, []).append(each)
    paces = []
    for name, each_of in by_name.items():
        took = [max(0, each.finished_at - each.started_at) for each in each_of]
        failed = sum(each.outcome in _FAILURES for each in each_of)
        paces.append(TaskPace(name, len(each_of), failed, sum(took) // len(took), max(took)))
    return tuple(sorted(paces, key=lambda pace: (-pace.mean_us, pace.task_name))[:MAX_LINES])


def _most_failing(failed: Sequence[AttemptRow], rows: Mapping[str, TaskRow]) -> tuple[TaskFailures, ...]:
    counts = Counter(rows[each.task_id].task_name for each in failed)
    newest = {rows[each.task_id].task_name: each for each in reversed(failed)}
    found = (_failures_of(name, count, newest[name]) for name, count in counts.items())
    return tuple(sorted(found, key=lambda each: (-each.failed_count, each.task_name))[:MAX_LINES])


def _failures_of(task_name: str, count: int, newest: AttemptRow) -> TaskFailures:
    message = newest.error_message
    return TaskFailures(
        task_name, count, str(newest.error_code), None if message is None else message[:MAX_MESSAGE_CHARS]
    )


def _next_runs(rows: Iterable[ScheduleRow]) -> tuple[NextRun, ...]:
    runs = [
        NextRun(
            row.schedule_name,
            row.task_name,
            row.definition,
            row.next_run_at,
            row.last_run_at,
            row.paused_at is not None,
            row.is_declared,
        )
        for row in rows
    ]
    return tuple(
        sorted(
            runs, key=lambda each: (each.is_paused, each.next_run_at is None, each.next_run_at or 0, each.schedule_name)
        )[:MAX_LINES]
    )


def _failure(each: AttemptRow, task_name: str) -> Failure:
    return Failure(
        each.task_id,
        task_name,
        each.attempt,
        each.outcome,
        str(each.error_code),
        each.error_message,
        each.finished_at,
        bool(each.will_retry),
    )
