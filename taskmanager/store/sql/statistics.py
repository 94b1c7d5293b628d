"""What the console asks of a file. Cheap whatever the length of the history: each query reads an index in a window.

Only `counts` (in `queries`) reads an index from end to end, some 10 ms per million rows; who asks often asks it rarely.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.rules.figures import Span
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.sql.claims import free_queues
from taskmanager.store.sql.figures import total
from taskmanager.store.sql.queries import IS_OWNED, OWNED, counts, counts_up_to, hops, paused_queues
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import is_live
from taskmanager.store.sql.workflow_views import live_workflows, workflows_of
from taskmanager.store.statistics import (
    COUNT_CAP,
    ENDED_CAP,
    HELD_CAP,
    MAX_INSTANCES,
    MAX_LINES,
    MAX_MESSAGE_CHARS,
    MAX_OWNERS,
    MAX_STARTED,
    OWNED_CAP,
    SAMPLE,
    Failure,
    Held,
    NextRun,
    Pace,
    Started,
    Statistics,
    StoreOverview,
    TaskFailures,
    TaskPace,
)

R = TypeVar("R")
_ENDED: Final = "taskmanager_task_attempts INDEXED BY taskmanager_task_attempts_finished_at"
_FAILED: Final = "taskmanager_task_attempts INDEXED BY taskmanager_task_attempts_failed"
_IS_FAILURE: Final = "error_code IS NOT NULL AND outcome IN ('FAILED', 'WORKER_FAILURE')"


def overview(connection: Session, now: int, *, counts_all: bool) -> StoreOverview:
    """See `Store.overview`. Call it in a transaction, as `statistics`."""
    found = statistics(connection, now)
    if counts_all:
        return StoreOverview(found, counts(connection))
    return StoreOverview(found, *counts_up_to(connection, COUNT_CAP))


def statistics(connection: Session, now: int) -> Statistics:
    """Everything but the counts. Call it in a transaction, so that all parts tell of the same moment."""
    instances = _instances(connection)
    minute, hour = _pace(connection, now, MINUTE_US), _pace(connection, now, HOUR_US)
    has_failures, started = hour.failed_count > 0, _started(connection)
    workflows, workflow_count = live_workflows(connection, MAX_LINES)
    return Statistics(
        taken_at=now,
        instances=instances,
        beats=_beats(connection, instances),
        owned=_owned(connection),
        held=_held(connection),
        started=started,
        free=tuple(free_queues(connection, is_bounded=True)),
        paused=paused_queues(connection),
        minute=minute,
        hour=hour,
        slowest=_slowest(connection, hour.since) if hour.ended_count else (),
        most_failing=_most_failing(connection, hour.since) if has_failures else (),
        failures=_failures(connection),
        schedules=_schedules(connection),
        workflows=workflows,
        workflow_count=workflow_count,
        workflow_of=workflows_of(connection, [each.task_id for each in started]) if workflows else {},
        last_activity_at=_last_activity(connection),
        figures=total(connection, Span.MINUTE, now - HOUR_US + MINUTE_US, now + MINUTE_US),
        size=connection.size(),
    )


def _all(make: Callable[[Iterable[Any]], R], connection: Session, query: str, *parameters: int) -> tuple[R, ...]:
    return tuple(map(make, connection.execute(query, parameters).fetchall()))


def _instances(connection: Session) -> tuple[InstanceRow, ...]:
    names = ", ".join(InstanceRow._fields)
    query = f"SELECT {names} FROM taskmanager_instances ORDER BY started_at DESC, instance_id LIMIT {MAX_INSTANCES}"
    return _all(InstanceRow._make, connection, query)


def _beats(connection: Session, instances: tuple[InstanceRow, ...]) -> dict[str, int]:
    newest = """
        SELECT max(sent_at) FROM taskmanager_heartbeats INDEXED BY taskmanager_heartbeats_sender_id
        WHERE sender_id = ? AND role = 'runner'
    """
    found = ((row.instance_id, connection.execute(newest, (row.instance_id,)).fetchone()[0]) for row in instances)
    return {instance_id: sent_at for instance_id, sent_at in found if sent_at is not None}


def _owned(connection: Session) -> dict[str, int]:
    owners = f"""
        {hops(OWNED, IS_OWNED, "claimed_by_worker_id")}
        SELECT owner.id, (
            SELECT count(*) FROM (
                SELECT 1 FROM {OWNED} WHERE claimed_by_worker_id = owner.id AND {IS_OWNED} LIMIT {OWNED_CAP}
            )
        ) FROM (SELECT claimed_by_worker_id AS id FROM each_claimed_by_worker_id) AS owner
        WHERE owner.id IS NOT NULL LIMIT {MAX_OWNERS}
    """
    return dict(connection.execute(owners).fetchall())


def _held(connection: Session) -> tuple[Held, ...] | None:
    query = f"""
        SELECT owner, queue_name, count(*) FILTER (WHERE status = 'PENDING'),
            count(*) FILTER (WHERE status = 'CLAIMED'), count(*) FILTER (WHERE status = 'RUNNING')
        FROM (
            SELECT claimed_by_worker_id AS owner, queue_name, status FROM {OWNED}
            WHERE claimed_by_worker_id IS NOT NULL AND {is_live()}
            LIMIT {HELD_CAP + 1}
        ) GROUP BY owner, queue_name
    """
    found = _all(Held._make, connection, query)
    return None if sum(each.waiting_count + each.running_count for each in found) > HELD_CAP else found


def _started(connection: Session) -> tuple[Started, ...]:
    query = f"""
        SELECT id, task_name, queue_name, claimed_by_worker_id, start_count, coalesce(started_at, updated_at)
        FROM taskmanager_tasks INDEXED BY taskmanager_tasks_status
        WHERE status = 'RUNNING' AND status <> 'COMPLETED' AND claimed_by_worker_id IS NOT NULL
        ORDER BY sent_at LIMIT {MAX_STARTED}
    """
    return _all(Started._make, connection, query)


def _pace(connection: Session, now: int, window_us: int) -> Pace:
    since = now - window_us
    counted = f"SELECT finished_at FROM {_ENDED} WHERE finished_at >= ? ORDER BY finished_at DESC LIMIT {ENDED_CAP}"
    ended, oldest = connection.execute(f"SELECT count(*), min(finished_at) FROM ({counted})", (since,)).fetchone()
    if ended >= ENDED_CAP:
        since = oldest
    failed = f"SELECT 1 FROM {_FAILED} WHERE finished_at >= ? AND {_IS_FAILURE} LIMIT {ENDED_CAP}"
    (failed_count,) = connection.execute(f"SELECT count(*) FROM ({failed})", (since,)).fetchone()
    return Pace(since, ended, failed_count)


def _slowest(connection: Session, since: int) -> tuple[TaskPace, ...]:
    query = f"""
        SELECT t.task_name, count(*), count(*) FILTER (WHERE a.outcome IN ('FAILED', 'WORKER_FAILURE')),
            CAST(avg(a.took) AS INTEGER), max(a.took)
        FROM (
            SELECT task_id, outcome, max(0, finished_at - started_at) AS took FROM {_ENDED}
            WHERE finished_at >= ? ORDER BY finished_at DESC LIMIT {SAMPLE}
        ) AS a JOIN taskmanager_tasks AS t ON t.id = a.task_id
        GROUP BY t.task_name ORDER BY avg(a.took) DESC, t.task_name LIMIT {MAX_LINES}
    """
    return _all(TaskPace._make, connection, query, since)


def _most_failing(connection: Session, since: int) -> tuple[TaskFailures, ...]:
    query = f"""
        SELECT task_name, failed, error_code, message FROM (
            SELECT t.task_name, a.error_code, a.message, count(*) OVER (PARTITION BY t.task_name) AS failed,
                row_number() OVER (PARTITION BY t.task_name ORDER BY a.finished_at DESC) AS place
            FROM (
                SELECT task_id, error_code, substr(error_message, 1, {MAX_MESSAGE_CHARS}) AS message, finished_at
                FROM {_FAILED} WHERE finished_at >= ? AND {_IS_FAILURE} ORDER BY finished_at DESC LIMIT {SAMPLE}
            ) AS a JOIN taskmanager_tasks AS t ON t.id = a.task_id
        ) WHERE place = 1 ORDER BY failed DESC, task_name LIMIT {MAX_LINES}
    """
    return _all(TaskFailures._make, connection, query, since)


def _failures(connection: Session) -> tuple[Failure, ...]:
    query = f"""
        SELECT a.task_id, t.task_name, a.attempt, a.outcome, a.error_code, a.error_message, a.finished_at, a.will_retry
        FROM (
            SELECT * FROM {_FAILED} WHERE error_code IS NOT NULL ORDER BY finished_at DESC LIMIT {SAMPLE}
        ) AS a CROSS JOIN taskmanager_tasks AS t ON t.id = a.task_id
        WHERE a.outcome IN ('FAILED', 'WORKER_FAILURE') ORDER BY a.finished_at DESC LIMIT {MAX_LINES}
    """
    return tuple(each._replace(will_retry=bool(each.will_retry)) for each in _all(Failure._make, connection, query))


def _schedules(connection: Session) -> tuple[NextRun, ...]:
    query = f"""
        SELECT schedule_name, task_name, definition, next_run_at, last_run_at, paused_at IS NOT NULL,
            EXISTS (SELECT 1 FROM taskmanager_instances WHERE instance_id = owner_id)
        FROM taskmanager_schedule_state
        ORDER BY paused_at IS NOT NULL, next_run_at IS NULL, next_run_at, schedule_name LIMIT {MAX_LINES}
    """
    found = _all(NextRun._make, connection, query)
    return tuple(row._replace(is_paused=bool(row.is_paused), is_declared=bool(row.is_declared)) for row in found)


def _last_activity(connection: Session) -> int | None:
    """When something was last sent or ended."""
    (sent_at,) = connection.execute("SELECT max(sent_at) FROM taskmanager_tasks").fetchone()
    (ended_at,) = connection.execute(f"SELECT max(finished_at) FROM {_ENDED}").fetchone()
    return max((at for at in (sent_at, ended_at) if at is not None), default=None)
