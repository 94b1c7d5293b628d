"""What a person may do to tasks: end them before they run, ask them to stop, run them again, delete their records.

The engine acts on tasks in its memory, and on rows that nobody or another instance owns; the command line acts on all
rows. Each write repeats the state of the row that was read. The answer has the ids of the rows that still were so.

A caller may be cancelled while its write is on the way. The write arrives all the same, and an instance hears no news
of its own writes. So each write is shielded together with what follows from it here.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from taskmanager.codec.values import dumps
from taskmanager.engine.engine import Engine
from taskmanager.engine.people.records import Records, chosen, fits, is_free
from taskmanager.engine.words.definition import RowCodec, options_of
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.loops import shielded
from taskmanager.engine.words.waiters import wait_in
from taskmanager.model.checks import check_age, check_task_id
from taskmanager.model.clock import before_us
from taskmanager.model.errors import ConfigurationError, NotPersisted, QueueFull, StoreError, unknown_task
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow, TaskWrite, UnreadableRow, expected_of
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import LIVE, TERMINAL, BuiltInTaskCode, TaskStatus
from taskmanager.model.steps import EventRow, SendReport
from taskmanager.rules.steps import MAX_UNREAD
from taskmanager.store.protocol import DELETE_PAUSE_S, Store, TaskFilter
from taskmanager.store.workflow_protocol import Advance

PURGE_PAGE: Final = 1_000
PAGE: Final = 500
"""Rows that are read, and written, at once."""
MAX_TRIES: Final = 5
"""How often an action is tried again when the row changed under it."""
Written = Callable[[frozenset[str], Advance], None]
"""Hears of each transaction at once: which tasks it has changed, and what has followed in workflows. The next one may
fail.
"""
CANCELLED_BEFORE_START: Final = TaskError(BuiltInTaskCode.TASK_CANCELLED, "cancelled before it started")


async def cancel_stored(
    store: Store, codec: RowCodec, live: Sequence[TaskRow], now: int, written: Written | None = None
) -> frozenset[str]:
    """End free tasks; of those that somebody has, record the request, which their instance or recovery honours.

    `written` hears of the free tasks.
    """
    ends = [(_cancelled(codec, row, now), row) for row in live if is_free(row)]
    done = await _write(store, ends, written, are_ends=True)
    had = [row.task_id for row in live if not is_free(row)]
    return done | await store.request_cancel(had, now) if had else done


def _cancelled(codec: RowCodec, row: TaskRow, now: int) -> TaskRow:
    error = CANCELLED_BEFORE_START
    return row._replace(
        status=TaskStatus.CANCELLED.value,
        claimed_by_worker_id=None,
        failed_at=now,
        updated_at=now,
        cancel_requested_at=now,
        error_code=error.error_code,
        failed_reason=error.message,
        next_retry_at=None,
        result=codec.encode_error(row.task_name, error),
    )


def why_not_again(row: TaskRow, *, force: bool) -> str | None:
    """Why an ended task cannot be run again, or None: "it is RUNNING and has not ended"."""
    status = TaskStatus(row.status)
    if not status.is_terminal:
        return f"it is {status} and has not ended"
    if status is TaskStatus.COMPLETED and not force:
        return "it is COMPLETED, and runs again only by force"
    if isinstance(row, UnreadableRow):
        return row.fault
    if row.args is None or row.kwargs is None:
        return "its arguments could not be stored"
    return None


async def retry_stored(
    store: Store,
    ended: Sequence[TaskRow],
    now: int,
    written: Written | None = None,
    *,
    from_start: bool = False,
) -> frozenset[str]:
    """Put ended tasks back, with their stored arguments, free and due now; `from_start` without what steps came to."""
    return await _write(store, [(_again(row, now), row) for row in ended], written, forgets_steps=from_start)


def _again(row: TaskRow, now: int) -> TaskRow:
    """A memory-only task that is put back is persisted from now on: the file is all there is of it."""
    options = options_of(row.task_options)
    return row._replace(
        status=TaskStatus.PENDING.value,
        enqueued_at=now,
        updated_at=now,
        claimed_at=None,
        claimed_by_worker_id=None,
        started_at=None,
        completed_at=None,
        failed_at=None,
        result=None,
        failed_reason=None,
        error_code=None,
        good_until=None,
        retry_count=0,
        crash_count=0,
        snooze_count=0,
        next_retry_at=None,
        cancel_requested_at=None,
        progress=None,
        worker_pid=None,
        worker_hostname=None,
        worker_process_name=None,
        task_options=row.task_options if options.get("persist") else dumps({**options, "persist": True}),
    )


async def _write(
    store: Store,
    changes: Sequence[tuple[TaskRow, TaskRow]],
    written: Written | None,
    *,
    are_ends: bool = False,
    forgets_steps: bool = False,
) -> frozenset[str]:
    """Rows as they shall be with the rows as they were read, in one transaction.

    An end whose columns the store refuses, because they contradict each other, is written without them.
    """
    if not changes:  # an empty commit would make all other instances look
        return frozenset()
    writes = [TaskWrite(row, expected_of(read), forgets_steps=forgets_steps) for row, read in changes]
    report = await store.commit(writes)
    won = frozenset(row.task_id for row, _ in changes) - report.lost.keys() - report.rejected.keys()
    if written is not None:
        written(won, report.advance)
    if are_ends and report.rejected:
        odd = [(UnreadableRow._make(row), read) for row, read in changes if row.task_id in report.rejected]
        won |= await _write(store, odd, written)
    return won


class Actions:
    """The actions on the tasks of one engine: those in its memory first, then those in the store."""

    def __init__(self, engine: Engine, records: Records) -> None:
        self._store, self._clock, self._identity = engine.store, engine.clock, engine.identity
        self._keys, self._inbox, self._live = engine.keys, engine.inbox, engine.live
        self._dispatcher, self._runner, self._writer = engine.dispatcher, engine.runner, engine.writer
        self._follower, self._row_codec, self._life = engine.follower, engine.row_codec, engine.life
        self._claiming, self._find_live = engine.claiming, records.find_live
        self._free_rows = engine.free_rows
        self._cancelling: set[asyncio.Task[bool]] = set()

    async def cancel(self, task_id: str) -> bool:
        """Returns when the request is recorded; False when the task is in no state for it."""
        check_task_id(task_id)
        await self._inbox.caught_up()
        for _ in range(MAX_TRIES):
            live = self._live.get(task_id)
            if live is not None and live.is_freeing:
                await self._writer.flush()  # then its row can be cancelled like any other
                live = self._live.get(task_id)
            if live is not None and not live.is_freeing:
                accepted = self._life.cancel(live)
                if accepted and live.is_persisted:
                    await self._writer.flush()
                    if live.has_left:
                        continue  # the call of a key that another instance has: that task is meant
                return accepted
            row = await self._store.fetch(task_id)
            if row is None:
                if task_id in self._writer.unsaved_ended:
                    return False
                raise unknown_task(task_id)
            if TaskStatus(row.status).is_terminal:
                return False
            if await shielded(self._cancel_rows([row])):
                return True
        return False

    async def cancel_all(self, **given: Any) -> int:
        """Cancel the tasks that fit, in memory first, then those of the file in pages. Return how many were asked."""
        wanted = self._batch("cancel_all", LIVE, given)
        done: set[str] = set()
        for _ in range(MAX_TRIES):
            if await self._cancel_fitting(wanted, done):
                break
        return len(done)

    async def _cancel_fitting(self, wanted: TaskFilter, done: set[str]) -> bool:
        """Cancel those that are not `done`, and add them. Return False if a row has changed before it was cancelled."""
        await self._inbox.caught_up()
        unsure: list[LiveTask] = []
        for number, live in enumerate(list(self._live.values()), 1):
            # One that was asked already may be cleaning up, which a second cancellation would cut short.
            is_meant = live.task_id not in done and live.status in LIVE and not live.is_freeing and fits(live, wanted)
            if is_meant and self._life.cancel(live, of_call=True):
                done.add(live.task_id)
                if live.is_unconfirmed:
                    unsure.append(live)
            if number % PAGE == 0:
                await asyncio.sleep(0)
        await self._writer.flush()
        # Where the key has another task, with tags of its own, its row says whether that fits.
        others = (live.task_id for live in unsure if live.is_duplicate and live.status is not TaskStatus.CANCELLED)
        done.difference_update(others)
        found = [each for each in await self._store.find_ids(wanted, LIVE) if each not in done]
        for task_ids in _pages(found):
            done |= await shielded(self._cancel_rows(await self._fetch_fitting(task_ids, wanted)))
        return done.issuperset(found)

    async def _cancel_rows(self, rows: Sequence[TaskRow]) -> frozenset[str]:
        """End these where they are free, ask whoever has them, and return the ids for which that was recorded."""
        live, now = [row for row in rows if row.status in LIVE], self._clock.now_us()
        told = partial(self._have_ended, live, now)
        try:
            return await self._free_rows.answer_of(cancel_stored(self._store, self._row_codec, live, now, told))
        finally:  # also when the requests could not be recorded
            ours = [row.task_id for row in live if row.claimed_by_worker_id == self._identity.instance_id]
            if ours:
                await self._cancel_claimed(ours)

    def _have_ended(self, rows: Sequence[TaskRow], now: int, ended: Collection[str], advance: Advance) -> None:
        """Free rows have ended by a cancel. Our own writes do not change the version by which the store tells of
        others'.
        """
        self._free_rows.note_advance(advance)
        result: TaskResult[Any] = TaskResult(err=CANCELLED_BEFORE_START)
        for row in rows:
            if row.task_id not in ended:
                continue
            self._free_rows.note_end(_cancelled(self._row_codec, row, now), result)
            self._follower.saw(row.task_id, TaskStatus.CANCELLED)

    async def _cancel_claimed(self, task_ids: Sequence[str]) -> None:
        """Ask tasks of which a claim has not been answered yet: that answer was made before the request."""
        async with self._claiming:
            found = [live for task_id in task_ids if (live := self._live.get(task_id)) is not None]
        for live in found:
            self._life.cancel(live)

    def cancel_now(self, task_id: str, live: LiveTask | None) -> bool:
        """Cancel in memory at once, or ask the store in the background for a task that is elsewhere. False when the
        task is known here to have ended; a record that somebody else has put back since is asked all the same.
        """
        live = self._inbox.find(task_id) if live is None else live
        if live is not None and not live.is_published:
            self._life.accept(live)  # it may be in the inbox still
        live = self._live.get(task_id, live)
        if live is not None and not live.has_left and not live.is_freeing:
            return self._life.cancel(live)
        task = self._life.loop.create_task(self.cancel(task_id))
        self._cancelling.add(task)
        task.add_done_callback(partial(self._has_cancelled, task_id))
        ended = self._writer.unsaved_ended.get(task_id)
        status = self._follower.last_status.get(task_id) if ended is None else ended.status
        return status is None or not status.is_terminal

    def _has_cancelled(self, task_id: str, task: "asyncio.Task[bool]") -> None:
        self._cancelling.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            text = "the cancel request for task %s could not be recorded: %s"
            logger.warning(text, task_id, exc, extra={"task_id": task_id})

    async def send(self, task_id: str, name: str, text: str, key: str | None) -> bool:
        """Store an event for a task, and wake the task if it waits for that. False when the task has ended."""
        await self._inbox.caught_up()
        if (live := self._live.get(task_id)) is not None:
            await self._saved(live)
        report = await shielded(self._deliver(EventRow(task_id, name, text, key, self._clock.now_us())))
        if report.outcome == "unknown":
            raise unknown_task(task_id)
        if report.outcome == "full":
            raise QueueFull(f"task {task_id} has {MAX_UNREAD:_} events that it has not received; send it no more now")
        return report.outcome == "stored"

    async def _deliver(self, event: EventRow) -> SendReport:
        """Store an event, and let the task hear of it that waits here or in the store."""
        try:
            report = await self._store.send_event(event)
        finally:  # a write without an answer may have arrived
            self._life.wants_claim.set()
            if (attempt := self._runner.running.get(event.task_id)) is not None:
                attempt.hear()
        if report.outcome == "stored":
            self._dispatcher.queue(report.queue_name).leave(report.priority)
        return report

    async def _saved(self, live: LiveTask) -> None:
        """Wait until a task that was accepted here has a row."""
        if not live.is_persisted:
            name = live.definition.name
            raise NotPersisted(f"task {name} is memory-only, and gets no events; give it persist=True")
        if not live.has_left and (live.saving.committed is None or live.is_unconfirmed):
            self._writer.mark(live)
            await wait_in(live.save_waiters_list())

    async def retry(self, task_id: str, *, force: bool, from_start: bool) -> bool:
        """Put an ended task back; False when it is in no state for it."""
        check_task_id(task_id)
        for name, value in (("force", force), ("from_start", from_start)):
            if not isinstance(value, bool):  # "no" would mean yes
                raise ConfigurationError(f"retry: {name} must be True or False, not {value!r}")
        await self._inbox.caught_up()
        if task_id in self._live and not self._live[task_id].status.is_terminal:
            return False
        if self._find_live(task_id) is not None:
            await self._writer.flush()
        row = await self._store.fetch(task_id)
        if row is None:
            raise unknown_task(task_id)
        return bool(await shielded(self._put_back([row], force=force, from_start=from_start)))

    async def retry_all(self, **given: Any) -> int:
        """Put the ended tasks back that fit: the FAILED ones if no status is given. Return how many."""
        wanted = self._batch("retry_all", TERMINAL - {TaskStatus.COMPLETED}, given)
        wanted = wanted._replace(status=wanted.status or TaskStatus.FAILED)
        await self._life.flush()
        count = 0
        for task_ids in _pages(await self._store.find_ids(wanted, TERMINAL)):
            count += len(await shielded(self._put_back(await self._fetch_fitting(task_ids, wanted), force=False)))
        return count

    async def _fetch_fitting(self, task_ids: Sequence[str], wanted: TaskFilter) -> list[TaskRow]:
        """Return the rows of these ids. Leave out those that have changed since they were found, and fit no more."""
        rows = await self._store.fetch_ids(task_ids)
        status, code = wanted.status, wanted.error_code
        found = (rows[each] for each in task_ids if each in rows)
        return [row for row in found if status in (None, row.status) and code in (None, row.error_code)]

    async def _put_back(self, rows: Sequence[TaskRow], *, force: bool, from_start: bool = False) -> frozenset[str]:
        able = [
            row
            for row in rows
            if not why_not_again(row, force=force) and not self._runner.is_still_executing(row.task_id)
        ]
        if not able:
            return frozenset()
        now = self._clock.now_us()
        self._free_rows.will_put(row.task_id for row in able)
        told = partial(self._were_put_back, able, now)
        return await self._free_rows.answer_of(retry_stored(self._store, able, now, told, from_start=from_start))

    def _were_put_back(self, rows: Sequence[TaskRow], now: int, done: Collection[str], advance: Advance) -> None:
        """Ended tasks wait again, free in the store."""
        self._free_rows.note_advance(advance)
        self._life.wants_claim.set()
        for row in rows:
            is_ours = row.task_id in done
            if is_ours:
                self._follower.saw(row.task_id, TaskStatus.PENDING)
                self._keys.put_back(row.task_id, row.start_count)
            self._free_rows.note_put(_again(row, now), is_ours=is_ours)

    async def purge(self, older_than: timedelta | None, **given: Any) -> int:
        """Delete ended records, in pages; live ones are never touched."""
        check_age(older_than)
        wanted = chosen("purge", self._clock.now_us(), **given)
        status = wanted.status
        if status is not None and not status.is_terminal:
            raise ConfigurationError(f"purge deletes ended tasks only; {status} is not an end. Cancel such tasks first")
        await self._life.flush()
        cutoff = None if older_than is None else before_us(self._clock.now_us(), older_than)
        ended = self._keys.purgeable(lambda live: fits(live, wanted), cutoff)
        try:
            gone = await repeated(lambda: shielded(self._store.purge(wanted, cutoff, PURGE_PAGE)))
        except (StoreError, asyncio.CancelledError):
            await shielded(self._free_keys(ended))
            raise
        self._keys.purged(ended)
        return gone

    async def _free_keys(self, ended: Sequence[LiveTask]) -> None:
        """Free the keys of memory-only tasks whose records are gone. After a part of a purge only the store knows."""
        with contextlib.suppress(StoreError):  # then the next purge frees them
            for task_ids in _pages([live.task_id for live in ended]):
                kept = await self._store.fetch_ids(task_ids)
                meant = set(task_ids).difference(kept)
                self._keys.purged(live for live in ended if live.task_id in meant)

    def _batch(self, verb: str, possible: Collection[TaskStatus], given: Mapping[str, Any]) -> TaskFilter:
        """The filter of an action on many tasks, which must not mean all of them."""
        wanted = chosen(verb, self._clock.now_us(), **given)
        if wanted == TaskFilter():
            raise ConfigurationError(
                f"{verb} needs to know which tasks: give at least one of {', '.join(given)}, such as queue_name='mail'"
            )
        if wanted.status is not None and wanted.status not in possible:
            able = ", ".join(sorted(possible))
            raise ConfigurationError(f"{verb} is for tasks that are {able}, not for those that are {wanted.status}")
        return wanted


def _pages(task_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(task_ids), PAGE):
        yield task_ids[start : start + PAGE]


async def repeated(step: Callable[[], Awaitable[int]]) -> int:
    """Call a verb that deletes until it finds nothing more, and let others write in between; the sum of what it did."""
    gone = 0
    while count := await step():
        gone += count
        await asyncio.sleep(DELETE_PAUSE_S)
    return gone
