"""Gives the work of dead instances back: judged from the row alone, written by compare-and-set.

What only waited is freed by one statement for many rows. What ran, was to be cancelled or has expired is judged row by
row, and is seldom much: an instance runs no more at once than it has slots.

A task that finished after it was read is left alone, because its row no longer says what was read. Pages go on
behind the last row seen, so that rows which cannot be recovered never starve those behind them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from taskmanager.codec.results import encode_error_text
from taskmanager.engine.words.definition import options_of
from taskmanager.engine.words.outcome import log_judged
from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.config import DEFAULT_RECOVERY, RecoveryConfig
from taskmanager.model.ids import random_01
from taskmanager.model.logger import logger
from taskmanager.model.record import AttemptRow, TaskRow, TaskWrite, UnreadableRow, due_at, expected_of
from taskmanager.model.result import TaskError
from taskmanager.model.states import INTERRUPTION_NOTE, BuiltInTaskCode, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.rules.recovery import NO_CRASH, Crash, Orphan, Verdict, judge_orphan
from taskmanager.rules.retry import RetryRule
from taskmanager.store.constraints import unreadable
from taskmanager.store.presence import PUT_BACK_S, Judge
from taskmanager.store.protocol import InstanceRow, Store
from taskmanager.store.workflow_protocol import Advance

PAGE: Final = 500
MAX_PASSES: Final = 20
"""How many pages of nodes one call puts right. What is left is for the next round."""
_STOPPED: Final = Verdict(
    TaskStatus.CANCELLED, None, False, BuiltInTaskCode.WORKFLOW_STOPPED, None,
    "its workflow is not in the store any more",
)  # fmt: skip
FREE_PAGE: Final = 1_000
"""Waiting rows that are freed in one transaction: bounds how long it keeps other writers waiting."""
FIRST_PAGE: Final = 2_000
"""The same for a start, which frees the first rows of each queue."""


class Recovery:
    """Finds rows whose owner is dead and moves them on, as far as the two switches of the configuration allow it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        identity: InstanceRow,
        judge: Judge | None,
        config: RecoveryConfig = DEFAULT_RECOVERY,
        *,
        random_01: Callable[[], float] = random_01,
        tell: Callable[[TaskWrite], None] = log_judged,
        advanced: Callable[[Advance], None] = lambda advance: None,
    ) -> None:
        self._store, self._clock, self._identity = store, clock, identity
        self._proofs = judge
        self._config = config
        self._random_01 = random_01
        self._has_swept = False
        self._tell, self._advanced = tell, advanced
        self.cut: set[str] = set()
        """The owners of whom the last call has left rows that the next one frees."""

    async def run_once(self, at_once: int | None = None) -> int:
        """Recover what dead instances left, and return how many rows were moved.

        With `at_once`, tasks can start before thousands of rows are free: an owner that has left that many keeps all
        but the first `at_once` of each queue, in the order of a claim, until the next call.
        """
        waiting, running = self._config.auto_requeue_stale_claimed, self._config.auto_fail_stale_running
        if not (waiting or running):
            return 0
        instances = {each.instance_id: each for each in await self._store.instances()}
        known = {*instances, self._identity.instance_id}
        dead = await self._find_dead(instances.keys() - {self._identity.instance_id})
        alive, crashes, self.cut = known - dead, dict[str, Crash](), set[str]()
        moved_count, left_count, after, running_rows = 0, 0, "", dict[str, list[TaskRow]]()
        # One row is enough to learn of an owner. Its other rows are read when most of them are free.
        while rows := await self._store.fetch_orphans(alive | self.cut, limit=PAGE if crashes else 1, after=after):
            owners = {row.claimed_by_worker_id or "" for row in rows}
            if new := owners - crashes.keys():
                # An instance that registered after the list was read holds its lock, and is alive.
                alive |= {owner for owner in new if owner not in dead and not self._is_dead(owner)}
                for owner in new - alive:
                    if waiting:
                        moved_count += await self.free_waiting(owner, at_once)
                    crashes[owner], running_rows[owner] = await self._crash_of(owner, instances.get(owner))
                continue
            after = rows[-1].task_id
            orphans = [row for row in rows if (running if row.status == TaskStatus.RUNNING else waiting)]
            left_count += len(rows) - len(orphans)
            moved_count += await self.recover(orphans, lambda row: crashes[row.claimed_by_worker_id or ""])
        if running:
            for owner in self.cut:
                moved_count += await self._recover_running(owner, crashes[owner], running_rows[owner])
        if not (left_count or self.cut) and (dead or not self._has_swept):
            await self._clear_away(dead)
        if moved_count or dead:
            logger.info("recovered %s of %s", counted(moved_count, "task"), counted(len(dead), "dead instance"))
        return moved_count

    async def _clear_away(self, dead: set[str]) -> None:
        """Remove the rows of dead instances and their lock files: nothing else is left of them."""
        # The rows first: a lock file without a row is a leftover, but a row without its lock file leaves a doubt.
        await self._store.forget_instances(dead)
        if self._proofs is not None:
            await self._proofs.clear_away(self._is_registered)
        self._has_swept = True

    async def _is_registered(self, instance_id: str) -> bool:
        return any(each.instance_id == instance_id for each in await self._store.instances())

    async def free_waiting(self, owner: str, at_once: int | None = None) -> int:
        """Free what waited in the memory of this instance, and may still run; how many rows."""
        freed = 0
        if at_once is not None:
            freed = await self._store.free_waiting(owner, self._clock.now_us(), FIRST_PAGE, at_once)
            if freed < FIRST_PAGE:  # a full page may have left out the first rows of some queue
                self.cut |= {owner} if freed >= at_once else set()
                return freed
        while True:
            count = await self._store.free_waiting(owner, self._clock.now_us(), FREE_PAGE)
            freed += count
            if count < FREE_PAGE:  # 0 may never come: an owner that was only silent claims again
                return freed

    async def _crash_of(self, owner: str, instance: InstanceRow | None) -> tuple[Crash, list[TaskRow]]:
        """Return what is known of the crash of this owner, and the first page of the tasks that ran in it."""
        first = page = await self._store.fetch_owned([owner], limit=PAGE, is_running=True)
        suspects = [row.task_id for row in page if row.crash_count]
        while len(page) == PAGE:
            page = await self._store.fetch_owned([owner], limit=PAGE, after=page[-1].task_id, is_running=True)
            suspects.extend(row.task_id for row in page if row.crash_count)
        boot_id = None if instance is None else instance.boot_id
        counts = boot_id is None or boot_id == self._identity.boot_id
        return Crash(counts, suspects[0] if len(suspects) == 1 else None), first

    async def _recover_running(self, owner: str, crash: Crash, page: list[TaskRow]) -> int:
        """Move what ran, from this first page on. Return how many rows were moved."""
        moved = await self.recover(page, lambda row: crash)
        while len(page) == PAGE:
            page = await self._store.fetch_owned([owner], limit=PAGE, after=page[-1].task_id, is_running=True)
            moved += await self.recover(page, lambda row: crash)
        return moved

    async def recover(self, rows: list[TaskRow], crash_of: Callable[[TaskRow], Crash] = lambda row: NO_CRASH) -> int:
        """Move the rows that are still as they were read. Return how many were moved."""
        if not rows:
            return 0
        writes = [self._judge(row, crash_of(row)) for row in rows]
        report = await self._store.commit(writes)
        self._advanced(report.advance)
        for write in writes:
            if write.row.task_id not in report.lost and write.row.task_id not in report.rejected:
                self._tell(write)
        # The store rejects a row whose columns contradict each other. Its task cannot run, so it ends as unreadable.
        odd = [row for row in rows if row.task_id in report.rejected and not isinstance(row, UnreadableRow)]
        moved = await self.recover([unreadable(row, [report.rejected[row.task_id]]) for row in odd])
        return moved + len(rows) - len(report.lost) - len(report.rejected)

    async def recover_workflows(self, grace_ms: int) -> int:
        """Put right what others have left half done in workflows, longer ago than the grace. Return how much it was.

        A task whose workflow is gone is cancelled, if the configuration allows it.
        """
        total = 0
        for _ in range(MAX_PASSES):
            count, advance = await self._store.recover_workflows(self._clock.now_us(), grace_ms * 1_000, PAGE)
            self._advanced(advance)
            total += count
            if count < PAGE:
                break
        if total:
            logger.warning("put right what others had left half done in workflows: %s", counted(total, "node"))
        return total + await self._end_without_workflow()

    async def _end_without_workflow(self) -> int:
        if not self._config.auto_terminate_orphaned_workflow_tasks:
            return 0
        ended, after = 0, ""
        while rows := await self._store.fetch_without_workflow(limit=PAGE, after=after):
            after, now = rows[-1].task_id, self._clock.now_us()
            waiting = [row for row in rows if row.status != TaskStatus.RUNNING]
            writes = [TaskWrite(_moved(row, _STOPPED, now), expected_of(row)) for row in waiting]
            report = await self._store.commit(writes)
            for write in writes:
                if write.task_id not in report.lost and write.task_id not in report.rejected:
                    self._tell(write)
            running = [row for row in rows if row.status == TaskStatus.RUNNING and row.cancel_requested_at is None]
            if running:
                await self._store.request_cancel([row.task_id for row in running], now)
            ended += len(writes) - len(report.lost) - len(report.rejected) + len(running)
        if ended:
            logger.warning("%s cancelled whose workflow is not in the store any more", counted(ended, "task"))
        return ended

    # What is silent, on request. One look at the wall clock decides, so the caller must know what it is doing.

    async def stale(self, threshold_us: float) -> list[TaskRow]:
        """Return the rows of others that no heartbeat of their role has covered for so long, without `PAYLOAD`."""
        now, me = self._clock.now_us(), self._identity.instance_id
        beats = {(sender, role): sent_at for sender, role, sent_at in await self._store.heartbeats()}
        found: list[TaskRow] = []
        after = ""
        while rows := await self._store.fetch_orphans({me}, limit=PAGE, after=after, is_summary=True):
            after = rows[-1].task_id
            found.extend(row for row in rows if now - _last_sign(row, beats) > threshold_us)
        return found

    async def recover_stale(self, found: Sequence[TaskRow]) -> int:
        """Move the rows that are still as they were found. Return how many. Only these are read with `PAYLOAD`."""
        count = 0
        for start in range(0, len(found), PAGE):
            page = {row.task_id: expected_of(row) for row in found[start : start + PAGE]}
            whole = (await self._store.fetch_ids(list(page))).values()
            count += await self.recover([row for row in whole if expected_of(row) == page.get(row.task_id)])
        return count

    async def _find_dead(self, registered: Iterable[str]) -> set[str]:
        """Those of them that are dead. One whose proof of life is missing has time to put it back."""
        dead = {each for each in registered if self._is_dead(each)}
        proofs = self._proofs
        if proofs is not None and any(proofs.is_missing(each) for each in dead):
            await asyncio.sleep(PUT_BACK_S)
            dead = {each for each in dead if self._is_dead(each)}
        return dead

    def _is_dead(self, instance_id: str) -> bool:
        return self._proofs is None or self._proofs.is_dead(instance_id)

    def _judge(self, row: TaskRow, crash: Crash) -> TaskWrite:
        now = self._clock.now_us()
        orphan = orphan_of(row, crash)
        verdict = judge_orphan(orphan, now, self._random_01(), self._config.crash_budget)
        if isinstance(row, UnreadableRow) and verdict.status is TaskStatus.PENDING:
            code = BuiltInTaskCode.UNHANDLED_EXCEPTION  # it cannot run, so it is not put back
            verdict = Verdict(TaskStatus.FAILED, None, False, code, verdict.outcome, row.fault)
        attempts = () if verdict.outcome is None else (_attempt(row, verdict, now),)
        moved = _moved(row._replace(crash_count=orphan.crash_count), verdict, now)
        return TaskWrite(moved, expected_of(row), attempts)


def _last_sign(row: TaskRow, beats: Mapping[tuple[str, str], int]) -> int:
    """Return the instant of the latest beat that covers the row.

    If there is none yet, it is the instant when the row was started, claimed, or written by the owner that accepted it.
    """
    is_running = row.status == TaskStatus.RUNNING
    beat = beats.get((row.claimed_by_worker_id or "", "runner" if is_running else "claimer"))
    taken_at = row.started_at if is_running else row.claimed_at
    return max(beat or 0, row.updated_at if taken_at is None else taken_at)


def orphan_of(row: TaskRow, crash: Crash = NO_CRASH) -> Orphan:
    """What the row says, and what is known of the crash in which its owner died."""
    options = options_of(row.task_options)
    is_interruption_noted = row.failed_reason == INTERRUPTION_NOTE
    has_crashed = crash.counts and row.status == TaskStatus.RUNNING and not is_interruption_noted
    return Orphan(
        status=TaskStatus(row.status),
        is_cancel_requested=row.cancel_requested_at is not None,
        requeue_on_interrupt=bool(options.get("requeue_on_interrupt")),
        rule=RetryRule.from_options(options.get("retry")),
        retry_count=row.retry_count,
        crash_count=row.crash_count + has_crashed,
        is_only_suspect=crash.only_suspect == row.task_id,
        is_interruption_noted=is_interruption_noted,
        good_until=row.good_until,
        what=crash.what,
    )


def _moved(row: TaskRow, verdict: Verdict, now: int) -> TaskRow:
    """The row after the verdict."""
    common = row._replace(status=verdict.status.value, updated_at=now)
    if verdict.status is TaskStatus.PENDING:
        due = due_at(row, now) if verdict.outcome is None else now + int((verdict.delay_s or 0.0) * SECOND_US)
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
            next_retry_at=due if verdict.spends_retry or row.next_retry_at is not None else None,
        )
    code = BuiltInTaskCode(verdict.error_code or BuiltInTaskCode.WORKER_CRASHED)
    error = TaskError(code, verdict.reason)
    return common._replace(
        # The owner may only be frozen. Were it still named, its writer would take this end for a write of its own.
        claimed_by_worker_id=None,
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
        max(1, row.start_count),  # a count that cannot be read is 0
        verdict.outcome.value,
        int(verdict.spends_retry),
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
