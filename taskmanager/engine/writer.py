"""Where memory and file meet: group commit, one coroutine, one transaction at a time.

The writer commits as soon as it is idle and a start, an end or a waiter wants it; whatever changes meanwhile is the
next batch, so that the batch grows with the load and one caller waits for one commit only. A task that was only
accepted goes with the next commit, whatever that is made for, or after `commit_interval`. Memory-only history waits as
long once there is a slice of it, and for `snapshot_interval` until then.

What a batch carries is read from the task when the batch is made, never earlier, and its precondition is the state that
was last *committed*. So a failed batch is simply put back: it cannot overwrite newer news, because it holds none.
When a commit's fate is unknown (an I/O error), the next try finds its own row, adopts it, and goes on.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from taskmanager.engine.due_time import DueTime
from taskmanager.engine.events import resolve_error
from taskmanager.engine.live_task import LiveTask, Phase
from taskmanager.engine.outbox import HISTORY_BATCH, HISTORY_SLICE, Flushes, Outbox, Places, Sent
from taskmanager.engine.writes import is_ours, write_of
from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow, expected_of
from taskmanager.model.wording import counted
from taskmanager.store.protocol import CommitReport, Store

NAME: Final = "writer"
MAX_BATCH: Final = 512
"""Rows of one transaction: large enough to share its cost, small enough not to hold the loop for more than about
1 ms.
"""
FIRST_RETRY_S: Final = 0.05
LAST_RETRY_S: Final = 1.0
SLOW_COMMIT_S: Final = 0.05
STUCK_S: Final = 3.0
"""Who has written nothing for so long does not get through: a stop waits no longer for what is left. A machine without
time to spare needs more than a second for one batch.
"""
FAILING_S: Final = 1.5
"""The same where the last try has failed. One failure says little: where several write, each meets the lock of another.
"""
LONGEST_TURN_S: Final = 0.1
"""How long the file is left to others after a slow commit, at most: SQLite asks for its lock about that often."""
PROGRESS_US: Final = SECOND_US


class WriterListener(Protocol):
    """Who hears what became of the writes: the engine."""

    def committed(self, live: LiveTask) -> None: ...
    def lost(self, live: LiveTask, row: TaskRow | None) -> None: ...
    def rejected(self, live: LiveTask, reason: str) -> None: ...
    def degraded(self, exc: StoreError) -> None: ...
    def restored(self) -> None: ...
    def written(self) -> None: ...


class Writer:
    """Everything that is not yet in the store, and the coroutine that brings it there."""

    def __init__(
        self, store: Store, clock: Clock, commit_interval_s: float = 0.0, snapshot_interval_s: float = 60.0
    ) -> None:
        self.store = store
        self.outbox = Outbox(clock.elapsed_s)
        self._clock = clock
        self._listener: WriterListener
        self.quiet = asyncio.Lock()
        """Held while a commit is under way; who takes it sees memory and store agree."""
        self.is_shared = False
        """Whether other instances write to the file too."""
        self._wake: asyncio.Future[None] | None = None
        self._commit_interval_s = commit_interval_s
        self._accepted_due = DueTime(commit_interval_s, self.wake)
        self._history_due = DueTime(snapshot_interval_s, self.wake)
        self._flushes = Flushes()
        self._is_closing = False
        self._hurry = asyncio.Event()
        self.degraded_since: int | None = None
        self.degraded_reason: str | None = None
        self._degraded_since_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._begun_s = 0.0
        self.written_s = float("-inf")
        """When a batch was last written, by the clock of the loop."""

    def __repr__(self) -> str:
        return f"<Writer {self.outbox!r}, {'degraded' if self.degraded_since is not None else 'healthy'}>"

    @property
    def unsaved_count(self) -> int:
        """Records that the store does not hold in their newest state."""
        return self.outbox.unsaved_count

    @property
    def unsaved_ended(self) -> dict[str, LiveTask]:
        """Tasks whose end was told and is not in the store: they are found nowhere but here. By their ids."""
        return self.outbox.unsaved_ended

    def oldest_unsaved_s(self) -> float | None:
        """How long the oldest change of a persisted task has been waiting for its commit."""
        return self.outbox.oldest_s()

    # What is to be written.

    def accept(self, live: LiveTask) -> None:
        """A persisted task is new. It may wait for `commit_interval`, unless somebody waits for it."""
        self.outbox.accept(live)
        if self.outbox.accepted_count >= MAX_BATCH:
            self._accepted_due.hurry()
        else:
            self._accepted_due.begin()

    def mark(self, live: LiveTask) -> None:
        """A persisted task has changed, or somebody waits for it to be saved."""
        self.outbox.change(live)
        if self._wake is not None:
            self.wake()

    def record(self, live: LiveTask) -> None:
        """A memory-only task has ended: history."""
        self.outbox.record(live)
        count = self.outbox.history_count
        if count >= HISTORY_BATCH:
            self._history_due.hurry()
        elif count == HISTORY_SLICE:
            self._history_due.shorten(self._commit_interval_s)
        else:
            self._history_due.begin()

    def wake(self) -> None:
        """Let the writer look again."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def flush(self) -> None:
        """Return when everything that was marked or recorded so far is committed, history included."""
        if not self.unsaved_count:
            return
        if self._task is None or (self._is_closing and self._task.done()):
            raise StoreUnavailable(f"{self.unsaved_count} records are not saved, and the manager has stopped")
        done = self._flushes.wait_for(self.outbox.hurry_all())
        self._history_due.hurry()
        self.wake()
        await done

    # The coroutine.

    def start(self, listener: WriterListener) -> "asyncio.Task[None]":
        """Begin to write, or again; `listener` hears what becomes of it."""
        self._listener = listener
        loop = asyncio.get_running_loop()
        self._begun_s = loop.time()
        self._task = loop.create_task(self._run(), name="taskmanager-writer")
        return self._task

    def leave_loop(self) -> None:
        """The loop will not run again: take back what is on its way, and be ready to be started in another one."""
        self.outbox.put_back()
        self._accepted_due.close()
        self._history_due.close()
        self._wake = None
        self._hurry, self.quiet = asyncio.Event(), asyncio.Lock()

    def was_cancelled_since(self, began_s: float) -> bool:
        """Whether a stranger has cancelled the writer since that `loop.time()`.

        Whoever ends an event loop cancels every task in it.
        """
        return self._begun_s > began_s or self._task is None or self._task.done() or self._task.cancelling() > 0

    async def close(self, patience_s: float) -> int:
        """Write what is left and end; returns how many records could not be written.

        That takes `patience_s`, and longer only as long as batches get through: no more come, and to end now would lose
        what a slow machine writes in a moment.
        """
        self._is_closing = True
        self._hurry.set()
        places = self.outbox.hurry_all()
        self._history_due.hurry()
        self.wake()
        if self._task is not None:
            if self._task.done():  # cancelled by somebody who cancels every task; what is left is written anyway
                self._task = asyncio.get_running_loop().create_task(self._run(), name="taskmanager-writer")
            await asyncio.wait([self._task], timeout=patience_s)
            await self._wait_while_batches_get_through(self._task, places)
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])
        self._accepted_due.close()
        self._history_due.close()
        self._give_up_waiters()
        return self.unsaved_count

    async def _wait_while_batches_get_through(self, task: "asyncio.Task[None]", places: Places) -> None:
        """Wait as long as batches get through. A keyed task is written twice: confirmed, then freed.
        So it is enough that something is written until these places are passed. After that each wait must leave fewer
        unsaved records: a thread that nobody can end may report its progress for ever.
        """
        while not task.done():
            written_s, unsaved, has_passed = self.written_s, self.unsaved_count, self.outbox.has_passed(places)
            stuck_s = STUCK_S if self.degraded_since is None else FAILING_S
            left_s = written_s + stuck_s - asyncio.get_running_loop().time()
            await asyncio.wait([task], timeout=max(0.0, left_s))
            if self.written_s == written_s or (has_passed and self.unsaved_count >= unsaved):
                return

    def _give_up_waiters(self) -> None:
        """Nobody will write any more, so nobody may wait for it."""
        exc = StoreUnavailable("the manager has stopped before this was saved; enqueue it again after the next start")
        self._flushes.give_up(exc)
        for live in self.outbox.unsaved():
            waiters, live.save_waiters = live.save_waiters, None
            for waiter in waiters or ():
                resolve_error(waiter, exc)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_RETRY_S
        while True:
            if not self._has_work():
                if self._is_closing:
                    return
                # What could not be written was taken back by a claim, which is a write too. Nothing would start any
                # more until the next write, and nothing is written until something starts.
                self._note_restored()
                self._wake = loop.create_future()
                await self._wake
                self._wake = None
            # One turn in which those who waited for the last batch go on and enqueue, and one in which what they
            # enqueued is given its slot: accept and start are then one row in one write.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            began_s = loop.time()
            async with self.quiet:
                is_written = await self._write_batch()
            if is_written:
                pause_s = FIRST_RETRY_S
                await self._give_way(loop.time() - began_s)
            else:
                await self._pause(pause_s)
                pause_s = min(pause_s * 2, LAST_RETRY_S)

    async def _give_way(self, took_s: float) -> None:
        """SQLite's lock has no queue: who takes it again at once keeps out all others as long as a disk is slow."""
        if self.is_shared and took_s > SLOW_COMMIT_S and not self._is_closing:
            await asyncio.sleep(min(took_s / 4, LONGEST_TURN_S))

    async def _pause(self, pause_s: float) -> None:
        """Before the next try; a stop has no time for long ones."""
        if self._is_closing:
            await asyncio.sleep(FIRST_RETRY_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurry.wait()

    async def _write_batch(self) -> bool:
        """One transaction, and what became of it; False when the store cannot be written now."""
        batch = self._take_batch()
        if not batch:
            self._flushes.end(self.outbox.has_passed)
            return True
        try:
            report = await self._commit(batch)
        except StoreError as exc:
            self._put_back(batch)
            self._note_degraded(exc)
            return False
        except Exception as exc:
            # A mistake of ours, or of a store: without its writer nothing would be saved any more, and nobody told.
            logger.critical("the writer failed unexpectedly, and tries again", exc_info=True)
            self._put_back(batch)
            self._note_degraded(StoreError(f"unexpected {type(exc).__name__}: {exc}"))
            return False
        except BaseException:  # cancelled, or an exception for the interpreter
            self._put_back(batch)
            raise
        self.written_s = asyncio.get_running_loop().time()
        self._note_restored()
        self._absorb(batch, report)
        return True

    def _has_work(self) -> bool:
        outbox = self.outbox
        if outbox.has_changes or (self._history_due.is_now and outbox.history_count):
            return True
        return bool(outbox.accepted_count) and (self._accepted_due.is_now or self._is_closing)

    def _take_batch(self) -> Sequence[Sent]:
        outbox = self.outbox
        batch = outbox.take(MAX_BATCH, with_history=self._history_due.is_now)
        # What was due stays due until it is taken, however full of changes the batches are.
        if not outbox.accepted_count:
            self._accepted_due.is_now = False
        if not outbox.history_count:
            self._history_due.is_now = self._is_closing
        return batch

    async def _commit(self, batch: Sequence[Sent]) -> CommitReport:
        return await self.store.commit([write_of(live, base, attempts) for live, _, attempts, base in batch])

    def _put_back(self, batch: Sequence[Sent]) -> None:
        self.outbox.put_back()
        self._history_due.is_now |= not batch[-1].live.is_persisted

    def _absorb(self, batch: Sequence[Sent], report: CommitReport) -> None:
        self.outbox.settle()
        troubled = bool(report.lost or report.rejected)
        for sent in batch:
            if not sent.live.is_persisted and not troubled:
                continue
            try:
                if troubled and sent.live.task_id in report.rejected:
                    self._absorb_rejection(sent, report.rejected[sent.live.task_id])
                elif troubled and sent.live.task_id in report.lost:
                    self._absorb_loss(sent, report.lost[sent.live.task_id])
                else:
                    self._absorb_win(sent)
            except Exception:
                # A mistake of ours with one task must not keep the others, and all that come, from being saved.
                logger.critical("what became of task %s could not be taken in", sent.live.task_id, exc_info=True)
        self._flushes.end(self.outbox.has_passed)
        self._listener.written()

    def _absorb_win(self, sent: Sent) -> None:
        live, state, _, base = sent
        saving = live.saving
        if saving.committed is base:  # else its row was claimed again before this answer came
            saving.committed = state
        # A start that was taken back meanwhile has arrived; the count of a row never goes back.
        live.start_count = max(live.start_count, state.start_count)
        saving.is_written_anew = False
        if saving.in_doubt:
            saving.in_doubt = ()
        self._listener.committed(live)

    def _absorb_rejection(self, sent: Sent, reason: str) -> None:
        live = sent.live
        with self._another_try(live):
            live.attempts_due = (*sent.attempts, *live.attempts_due)
            self._listener.rejected(live, reason)

    def _absorb_loss(self, sent: Sent, row: TaskRow | None) -> None:
        """A write whose precondition did not hold. Our own row there means that an earlier commit did arrive
        after all.
        """
        live, saving = sent.live, sent.live.saving
        with self._another_try(live):
            if row is None or not is_ours(live, row):
                self._listener.lost(live, row)
                return
            saving.committed = expected_of(row)
            # A start that was taken back here may be the one that arrived; the count of a row never goes back.
            live.start_count = max(live.start_count, row.start_count)
            saving.in_doubt = ()
            live.attempts_due = (*sent.attempts, *live.attempts_due)
            if live.is_as_committed and not live.attempts_due:
                self._listener.committed(live)
            else:
                self.mark(live)

    @contextlib.contextmanager
    def _another_try(self, live: LiveTask) -> Iterator[None]:
        """An answer that calls for another write: that is the same change, and whoever flushes waits on."""
        was_dirty = live.saving.is_dirty
        yield
        if live.saving.is_dirty:
            places = self.outbox.try_again(live, was_dirty=was_dirty)
            self._flushes.extend(places)
            self._history_due.is_now |= not live.is_persisted

    # Bad days.

    def _note_degraded(self, exc: StoreError) -> None:
        self.degraded_reason = str(exc)
        if self.degraded_since is None:
            self.degraded_since = self._clock.now_us()
            self._degraded_since_s = self._clock.elapsed_s()
            kind = "unavailable" if isinstance(exc, StoreUnavailable) else "failing"
            hope = "" if self._is_closing else "; work goes on in memory and is written when it is back"
            logger.error("the store is %s%s: %s", kind, hope, exc)
        self._listener.degraded(exc)

    def _note_restored(self) -> None:
        if self.degraded_since is not None:
            away_s = self._clock.elapsed_s() - self._degraded_since_s
            self.degraded_since = self.degraded_reason = None
            logger.warning("the store is back after %.1f s; %s to write", away_s, counted(self.unsaved_count, "record"))
            self._listener.restored()

    def lose_everything_committed(self, lives: Iterable[LiveTask]) -> None:
        """The file is another one, empty or an older copy: every live persisted record is to be written to it again."""
        for live in lives:
            live.saving.committed = None
            live.saving.is_written_anew = True
            self.mark(live)


class ProgressSaver:
    """Saves the progress that running tasks report, once a second at most, from whatever thread they report it.

    `save` is what an attempt calls with every report.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: Writer, clock: Clock) -> None:
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._writer = writer
        self._clock = clock

    def save(self, live: LiveTask) -> None:
        """A persisted task reported progress."""
        now = self._clock.now_us()
        if live.is_persisted and not 0 <= now - live.updated_at < PROGRESS_US:  # before: the clock was stepped back
            live.updated_at = now
            if threading.get_ident() == self._thread_id:
                self._mark(live)
            else:
                with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody keeps progress any more
                    self._loop.call_soon_threadsafe(self._mark, live)

    def _mark(self, live: LiveTask) -> None:
        if live.phase is Phase.RUNNING:
            self._writer.mark(live)
