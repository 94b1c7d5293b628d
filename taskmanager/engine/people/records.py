"""What people ask of tasks and queues: the verbs of the manager that see both memory and the file.

A task that both know is seen once, as its newest state. Unfinished work may be in memory, free in the store where
memory had no room for it, or on its way between the two.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from taskmanager.codec.views import attempt_info, step_info, summary_info, task_info
from taskmanager.engine.engine import Engine
from taskmanager.engine.words.definition import carries
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import DONE, ENDED
from taskmanager.engine.words.waiters import ended
from taskmanager.model.checks import (
    check_limit,
    check_status,
    check_tags,
    check_task_id,
    instant_since,
    is_storable,
)
from taskmanager.model.errors import ConfigurationError, ManagerStopped, StoreError, UnknownTask
from taskmanager.model.record import AttemptInfo, AttemptRow, TaskInfo, TaskRow
from taskmanager.model.result import TaskResult
from taskmanager.model.states import TaskStatus
from taskmanager.model.steps import STEP, StepInfo
from taskmanager.model.workflows import HELD
from taskmanager.store.protocol import TaskFilter

JOIN_PAGE: Final = 1_000
"""Waiting rows that are read at once, in search of one with the tags."""


class Records:
    """The tasks of one engine: those in its memory first, then those in the store.

    `has_strays` says whether rows of a claim may be in nobody's memory; `stopped` is set when the start has ended.
    """

    def __init__(self, engine: Engine, has_strays: Callable[[], Awaitable[bool]], stopped: asyncio.Event) -> None:
        self._store, self._clock, self._identity = engine.store, engine.clock, engine.identity
        self._intake, self._inbox, self._live = engine.intake, engine.inbox, engine.live
        self._writer = engine.writer
        self._follower, self._row_codec, self._life = engine.follower, engine.row_codec, engine.life
        self._definitions = engine.definitions
        self._settings, self._patience = engine.settings, engine.writer.patience
        self._has_strays, self._free_rows, self._window = has_strays, engine.free_rows, engine.window
        self._sent_from = 0
        self._freed_and_over = 0
        """The count of rows that were freed here, when the store was read last and none of them was unfinished."""
        """When the oldest of the unfinished tasks that others run was sent, as of the last look."""
        self._stopped = stopped

    # Reading.

    def find_live(self, task_id: str) -> LiveTask | None:
        """The task in memory: running, waiting, or ended and not yet in the store."""
        return self._live.get(task_id) or self._writer.unsaved_ended.get(task_id)

    async def get(self, task_id: str, *, include_attempts: bool) -> TaskInfo | None:
        """The newest state of one task, or None."""
        check_task_id(task_id)
        await self._inbox.caught_up()
        row = None if self.find_live(task_id) is not None else await self._store.fetch(task_id)
        live = self.find_live(task_id)
        if live is None and row is None:
            return None
        attempts = await self._attempts(task_id, live) if include_attempts else None
        steps = await self._steps(task_id, live) if include_attempts else None
        result: TaskResult[Any] | None = None
        if live is not None:
            row = live.row()
            if live.phase in (ENDED, DONE) and live.ending is not None and live.ending.status.is_terminal:
                result = live.ending.result
        assert row is not None
        if result is None and row.result is not None and TaskStatus(row.status).is_terminal:
            result = self._row_codec.decode_result(row)
        return task_info(row, is_saved=live is None or live.is_saved, result=result, attempts=attempts, steps=steps)

    async def _attempts(self, task_id: str, live: LiveTask | None) -> tuple[AttemptInfo, ...]:
        # What leaves memory while the store is read may have come there too late to be read.
        memory = self._attempts_in_memory(task_id, live)
        stored = await self._store.fetch_attempts(task_id)
        rows = {row.attempt: row for row in (*stored, *memory, *self._attempts_in_memory(task_id, live))}
        return tuple(attempt_info(rows[number]) for number in sorted(rows))

    async def _steps(self, task_id: str, live: LiveTask | None) -> tuple[StepInfo, ...]:
        rows = {row.identity: row for row in await self._store.fetch_steps(task_id)}
        if live is not None and live.steps_due is not None:
            rows |= live.steps_due.rows
        return tuple(step_info(row) for row in rows.values() if row.kind == STEP)

    def _attempts_in_memory(self, task_id: str, live: LiveTask | None) -> tuple[AttemptRow, ...]:
        outbox = self._writer.outbox
        due = () if live is None else live.attempts_due
        if live is not None and live.idempotency_key is not None:  # earlier runs of a memory-only key may wait
            due = (*outbox.attempts_in_history(task_id), *due)
        return (*outbox.attempts_in_flight(task_id), *due)

    async def list(self, limit: int, before: str | None, **given: Any) -> tuple[TaskInfo, ...]:
        """Newest first, older than the task `before`; tasks in memory with their newest state."""
        _check_text(before, "list", "before")
        check_limit(limit, "list")
        wanted = chosen("list", self._clock.now_us(), **given)._replace(limit=limit)
        if before is not None:
            wanted = wanted._replace(before=await self._place_of(before))
        await self._inbox.caught_up()
        stored, memory = await self._fetch_and_see(wanted)
        rows = [(row, True) for row in stored]
        for live in memory.values():
            if fits(live, wanted) and (wanted.before is None or (live.sent_at, live.task_id) < wanted.before):
                rows.append((live.row(), live.is_saved))
        rows.sort(key=lambda entry: (entry[0].sent_at, entry[0].task_id), reverse=True)
        return tuple(summary_info(row, is_saved=saved) for row, saved in rows[: wanted.limit])

    async def _fetch_and_see(self, wanted: TaskFilter) -> tuple[Sequence[TaskRow], Mapping[str, LiveTask]]:
        """As many rows as are wanted, without those that memory knows better, as long as there are any; and memory.

        What leaves memory while the store is read may have come there too late to be read, so memory is looked at
        before as well.
        """
        seen: dict[str, LiveTask] = {}
        stored: dict[str, TaskRow] = {}
        page = wanted
        while True:
            seen |= self._in_memory()
            rows = await self._store.fetch_many(page)
            seen |= self._in_memory()
            stored |= {row.task_id: row for row in rows}
            # Of those that have left it for the store the row is newer, if it was there already.
            memory = {task_id: live for task_id, live in seen.items() if not (live.has_left and task_id in stored)}
            found = [row for task_id, row in stored.items() if task_id not in memory]
            if len(rows) < wanted.limit or len(found) >= wanted.limit:
                return found, memory
            page = page._replace(before=(rows[-1].sent_at, rows[-1].task_id))

    async def _place_of(self, task_id: str) -> tuple[int, str]:
        live = self.find_live(task_id)
        if live is not None:
            return live.sent_at, task_id
        found = await self._store.fetch_many(TaskFilter(task_id=task_id))
        if not found:
            raise UnknownTask(f"there is no task {task_id} to list before; take an id from an earlier page")
        return found[0].sent_at, task_id

    def _in_memory(self) -> dict[str, LiveTask]:
        return {**self._writer.unsaved_ended, **self._live}

    async def counts(self) -> dict[TaskStatus, int]:
        """Tasks by status, zeros included. Taken while no commit is under way, so that each task counts once."""
        await self._inbox.caught_up()
        async with self._writer.quiet:
            committed = {live.task_id: live.saving.committed for live in self._in_memory().values()}
            found = await self._store.counts()
            for live in self._in_memory().values():
                base = committed.get(live.task_id)
                if base is None and live.saving.committed is not None:
                    continue  # claimed meanwhile: it counts as the store saw it, whether before the claim or after it
                if base is not None:
                    found[TaskStatus(base.status)] -= 1
                found[live.status] += 1
        return found

    # Waiting for all.

    async def join(self, tags: dict[str, str], timeout_s: float | None) -> None:
        """Wait until every task here (with all these tags) has ended, also those whose rows are still to be claimed.
        Their handles tell it then.

        Raises `ManagerStopped` when the manager stops before that, and some of them go on at the next start, and
        `TimeoutError`.
        """
        async with asyncio.timeout(timeout_s):
            await self._until_all_ended(tags)
        with contextlib.suppress(StoreError):
            await self._follower.see_ends()

    async def _until_all_ended(self, tags: dict[str, str]) -> None:
        with self._patience.rushed():
            while True:
                await (self._tagged_ended(tags) if tags else self._all_ended())
                look_count = self._free_rows.look_count
                if self._window.has_free_rows and not tags:
                    self._life.wants_claim.set()
                    await self._pause(self._settings.store_poll_s / 10, until_claimed=True)
                elif await self._may_have_unfinished(tags):
                    if self._free_rows.look_count == look_count:  # else one may have brought what was not read yet
                        with self._free_rows.awaited():
                            await self._pause(self._settings.store_poll_s)
                elif not self._unfinished(tags) and (tags or not self._window.has_free_rows):
                    return  # else a claim has brought some while the store was read, or has left some

    async def _all_ended(self) -> None:
        await self._life.idle()
        if self._life.goes_on_count:
            raise _stopped_too_soon()

    async def _tagged_ended(self, tags: dict[str, str]) -> None:
        await self._inbox.caught_up()
        for live in self._unfinished(tags):
            if self._live.get(live.task_id) is not live:  # it has left meanwhile: whoever has it now is asked below
                continue
            if (await ended(live)).requeued and self._life.is_stopping:
                raise _stopped_too_soon()

    def _unfinished(self, tags: dict[str, str]) -> Sequence[LiveTask]:
        return [live for live in self._live.values() if not tags or carries(live.tags_text, tags)]

    async def _may_have_unfinished(self, tags: dict[str, str]) -> bool:
        """Whether unfinished tasks of this instance may be where memory does not see them.

        They wait in the store, another instance has them, or a claim has taken them and they are not in memory yet. A
        free row does not say who has accepted it, so any that this instance could run counts.
        """
        # They were interrupted without a stop, and go to a store that is degraded: their waiters were told already.
        kept = self._writer.unsaved_ended.kept
        if any(live.goes_on for live in kept.values()):
            return True
        freed_count = self._life.freed_count  # what is freed while the store is read is asked for again
        try:
            if await self._follower.has_unfinished(tags):
                return True
            # In this order: what a claim leaves for want of room is noted when it is over, and what is claimed while
            # the store is read is in memory when there are no strays.
            is_there = await self._has_strays()
            if freed_count != self._freed_and_over or (tags and self._window.has_free_rows):
                is_there = is_there or await self._has_free_rows(tags) or await self._has_sent(tags)
            is_there = is_there or await self._has_strays()
        except StoreError:
            return True
        if not tags and not is_there:
            self._freed_and_over = freed_count
        return is_there

    async def _has_free_rows(self, tags: dict[str, str]) -> bool:
        """Whether rows (with these tags) wait in the store, due or not, that this instance could run."""
        store, known, runs = self._store, self._definitions, self._settings.runs
        if not any(each.task_name in known and runs(each.queue_name) for each in await store.free_queues()):
            return False
        if not tags:
            return True
        before = None
        wanted = TaskFilter(TaskStatus.PENDING, limit=JOIN_PAGE, tags=tuple(tags.items()))
        while page := await store.fetch_many(wanted._replace(before=before)):
            if any(is_free(row) and row.task_name in known and runs(row.queue_name) for row in page):
                return True
            before = page[-1].sent_at, page[-1].task_id
        return False

    async def _has_sent(self, tags: dict[str, str]) -> bool:
        """Whether a task (with these tags) is unfinished that was accepted here and that any instance may run."""
        me, first = self._identity.instance_id, None
        if not tags and self._sent_from:  # all that was sent earlier had ended at the last look
            first = await self._store.first_unfinished(me, {}, self._sent_from)
        if first is None:  # what a key runs again keeps its place
            first = await self._store.first_unfinished(me, tags)
        if not tags:
            self._sent_from = first or 0
        return first is not None

    async def _pause(self, pause_s: float, *, until_claimed: bool = False) -> None:
        """Wait for a look, `pause_s` at most. With `until_claimed`, wait until a row is claimed, or none is free."""
        time = self._life.loop.time
        until_s = time() + pause_s
        while (left_s := until_s - time()) > 0 and not await self._free_rows.next_look(left_s):
            if not (until_claimed and self._window.has_free_rows) or self._stopped.is_set():
                break
        if self._stopped.is_set():
            raise _stopped_too_soon()


def _stopped_too_soon() -> ManagerStopped:
    return ManagerStopped("the manager stopped before all tasks had ended; those that are left run at the next start")


def is_free(row: TaskRow) -> bool:
    """Whether the task waits in the store, in nobody's memory."""
    return row.status == TaskStatus.PENDING and row.claimed_by_worker_id in (None, HELD)


def chosen(
    verb: str,
    now_us: int,
    *,
    status: TaskStatus | None = None,
    task_name: str | None = None,
    queue_name: str | None = None,
    tags: Mapping[str, str] | None = None,
    error_code: str | None = None,
    since: datetime | timedelta | None = None,
) -> TaskFilter:
    """Return the filter that people ask for. Raise `ConfigurationError`: a mistake must not look like an empty list."""
    for name, value in (("task_name", task_name), ("queue_name", queue_name), ("error_code", error_code)):
        _check_text(value, verb, name)
    check_tags(tags, verb)
    since_us = instant_since(since, verb, now_us)
    pairs = tuple((tags or {}).items())
    status = check_status(status, verb)
    return TaskFilter(status, task_name, queue_name, tags=pairs, error_code=error_code, since=since_us)


def _check_text(value: object, verb: str, name: str) -> None:
    if value is not None and not is_storable(value):
        raise ConfigurationError(f"{verb}: {name} must be text or None, not {value!r}")


def fits(live: LiveTask, wanted: TaskFilter) -> bool:
    """Whether a task in memory is one of those that are wanted."""
    return (
        (wanted.status is None or live.status == wanted.status)
        and (wanted.task_name is None or live.definition.name == wanted.task_name)
        and (wanted.queue_name is None or live.queue_name == wanted.queue_name)
        and (wanted.error_code is None or live.error_code == wanted.error_code)
        and (wanted.since is None or live.updated_at >= wanted.since)
        and (not wanted.tags or carries(live.tags_text, dict(wanted.tags)))
    )
