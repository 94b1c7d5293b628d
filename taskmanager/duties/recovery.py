"""Gives the work of dead instances back: judged from the row alone, written by compare-and-set.

A task that finished after it was read is left alone, because its row no longer says what was read. Pages go on
behind the last row seen, so that rows which cannot be recovered never starve those behind them.
"""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from taskmanager.codec.results import encode_error_text
from taskmanager.codec.values import loads
from taskmanager.engine.definition import retry_facts
from taskmanager.engine.instance import Identity, is_dead, remove_lock_files
from taskmanager.model.clock import Clock
from taskmanager.model.record import AttemptRow, Expected, TaskRow, TaskWrite
from taskmanager.model.result import TaskError
from taskmanager.model.states import INTERRUPTION_NOTE, BuiltInTaskCode, TaskStatus
from taskmanager.rules.recovery import Verdict, judge_orphan
from taskmanager.store.protocol import Store

logger = logging.getLogger("taskmanager")
PAGE: Final = 500


class Recovery:
    """Finds rows whose owner is dead and moves them on."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        identity: Identity,
        database: Path | None,
        random_01: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._clock = clock
        self._identity = identity
        self._database = database
        self._random_01 = random_01

    async def run_once(self) -> int:
        """Recover what dead instances left; how many rows were moved."""
        instances = await self._store.instances()
        me = self._identity.instance_id
        dead = [each.instance_id for each in instances if each.instance_id != me and self._is_dead(each.instance_id)]
        alive = {each.instance_id for each in instances} - set(dead) | {me}
        moved = 0
        after = ""
        while rows := await self._store.fetch_orphans(alive, limit=PAGE, after=after):
            after = rows[-1].task_id
            moved += await self.recover(rows)
        await self._store.forget_instances(dead)
        if self._database is not None:
            remove_lock_files(self._database, dead)
        if moved or dead:
            logger.info("recovered %d tasks of %d instances that are gone", moved, len(dead))
        return moved

    async def recover(self, rows: list[TaskRow]) -> int:
        """Move these rows on, each only if it still says what was read; how many were moved."""
        if not rows:
            return 0
        report = await self._store.commit([self._judge(row) for row in rows])
        return len(rows) - len(report.lost) - len(report.rejected)

    def _is_dead(self, instance_id: str) -> bool:
        return self._database is None or is_dead(self._database, instance_id)

    def _judge(self, row: TaskRow) -> TaskWrite:
        now = self._clock.now_us()
        options = loads(row.task_options)
        verdict = judge_orphan(
            status=TaskStatus(row.status),
            cancel_requested=row.cancel_requested_at is not None,
            requeue_on_interrupt=bool(options.get("requeue_on_interrupt")),
            rule=retry_facts(options),
            retry_count=row.retry_count,
            is_interruption_noted=row.failed_reason == INTERRUPTION_NOTE,
            good_until=row.good_until,
            now=now,
            random_01=self._random_01(),
        )
        attempts = () if verdict.outcome is None else (_attempt(row, verdict, now),)
        expected = Expected(row.status, row.claimed_by_worker_id, row.start_count)
        return TaskWrite(_moved(row, verdict, now), expected, attempts)


def _moved(row: TaskRow, verdict: Verdict, now: int) -> TaskRow:
    """The row after the verdict."""
    crashed = row.status == TaskStatus.RUNNING and verdict.error_code != BuiltInTaskCode.TASK_INTERRUPTED
    common = row._replace(status=verdict.status, updated_at=now, crash_count=row.crash_count + crashed)
    if verdict.status is TaskStatus.PENDING:
        due = row.enqueued_at if verdict.outcome is None else now + int((verdict.delay_s or 0.0) * 1_000_000)
        return common._replace(
            claimed_by_worker_id=None,
            claimed_at=None,
            started_at=None,
            worker_pid=None,
            worker_hostname=None,
            worker_process_name=None,
            failed_reason=None,
            enqueued_at=due,
            retry_count=row.retry_count + verdict.spends_retry,
            next_retry_at=due if verdict.spends_retry else row.next_retry_at,
        )
    code = BuiltInTaskCode(verdict.error_code or BuiltInTaskCode.WORKER_CRASHED)
    error = TaskError(code, verdict.reason)
    return common._replace(
        failed_at=now,
        error_code=str(code),
        failed_reason=verdict.reason,
        result=encode_error_text(error),
        next_retry_at=None,
    )


def _attempt(row: TaskRow, verdict: Verdict, now: int) -> AttemptRow:
    assert verdict.outcome is not None
    return AttemptRow(
        row.task_id,
        row.start_count,
        verdict.outcome,
        verdict.spends_retry,
        row.started_at or now,
        now,
        verdict.error_code,
        verdict.reason,
        verdict.reason,
        row.claimed_by_worker_id,
        row.worker_hostname,
        row.worker_pid,
        row.worker_process_name,
        now,
    )
