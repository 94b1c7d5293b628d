"""Where memory and file meet: group commit, one transaction at a time.

The writer is a state machine that never awaits: `due` says whether something is to be written, `take` makes a batch,
and `answer` or `refuse` take in what became of it. One small coroutine goes round between them and the store.

A batch is taken at the end of a turn of the loop, so that a start and the end before it are one commit. Whatever
changes during a commit is the next batch: the batch grows with the load, and one caller waits for one commit only. A
task that was only accepted is written when it starts, or after `commit_interval`. A plain end that nobody waits for
goes with the next commit, or after `commit_interval`. Memory-only history waits as long once there is a slice of it,
and for `snapshot_interval` until then.

What a batch carries is read from the task when the batch is made, never earlier, and its precondition is the state that
was last *committed*. So a failed batch is simply put back: it cannot overwrite newer news, because it holds none.
When a commit's fate is unknown (an I/O error), the next try finds its own row, adopts it, and goes on.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.write.commits import Answers, DueTime, Flushes, LateEnds, Patience, WriterListener
from taskmanager.engine.write.history import UnsavedEnded
from taskmanager.engine.write.outbox import HISTORY_BATCH, HISTORY_SLICE, Outbox, Places, Sent
from taskmanager.engine.write.writes import write_of
from taskmanager.model.clock import Clock
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.record import SuccessWrite
from taskmanager.model.wording import counted
from taskmanager.store.protocol import CommitReport, Store

if TYPE_CHECKING:
    from taskmanager.engine.tell.listeners import Listeners

NAME: Final = "writer"
OF_THE_INTERVAL: Final = 0.75
"""The loop waits for a part of the commit interval. At the end of it a thread takes for blocked who has not come."""
NOTHING_HAPPENED: Final = CommitReport({}, {})
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


class Writer:
    """Everything that is not yet in the store, and the coroutine that brings it there."""

    def __init__(
        self, store: Store, clock: Clock, commit_interval_s: float = 0.0, snapshot_interval_s: float = 60.0
    ) -> None:
        self.store = store
        self.outbox = Outbox(clock.elapsed_s)
        self._clock = clock
        self._listener: WriterListener
        self._answers: Answers
        self.listeners: Listeners | None = None
        """Who is told of what was written, if anybody is."""
        self.quiet = asyncio.Lock()
        """Held while a commit is under way; who takes it sees memory and store agree."""
        self.is_shared = False
        """Whether other instances write to the file too."""
        self._wake: asyncio.Future[None] | None = None
        self.wants_turn: Callable[[], None] = self._take_turn
        """Asks for a turn of the loop, around which `turn_began` and `turn_ended` are called."""
        self._has_turn = False
        self._commit_interval_s = commit_interval_s
        self.late_ends: LateEnds | None = None
        """Keeps the deadline of plain ends while the loop is blocked, where the store works in a thread."""
        self.patience = Patience(commit_interval_s * OF_THE_INTERVAL, self.wake, self.outbox)
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
    def unsaved_ended(self) -> UnsavedEnded:
        """Tasks whose end was told and is not in the store: they are found nowhere but here."""
        return self.outbox.unsaved_ended

    def keep_ended(self, live: LiveTask) -> None:
        """Let a task be found whose end was told before it could be written."""
        self.outbox.unsaved_ended.kept[live.task_id] = live

    def oldest_unsaved_s(self) -> float | None:
        """How long the oldest change of a persisted task has been waiting for its commit."""
        return self.outbox.oldest_s()

    # What is to be written.

    def accept(self, live: LiveTask) -> None:
        """A persisted task is new. It may wait for `commit_interval`, unless somebody waits for it."""
        self.outbox.accept(live)
        self.patience.begin()

    def mark(self, live: LiveTask) -> None:
        """A persisted task has changed, or somebody waits for it to be saved."""
        self.outbox.change(live)
        self.wake()

    def end(self, live: LiveTask) -> None:
        """A plain end that nobody waits for: it goes with the next commit, `commit_interval` from now at the latest."""
        saving = live.saving
        if saving.committed is not None and not (saving.is_dirty or saving.in_doubt):
            write = write_of(live, saving.committed)
            if type(write) is SuccessWrite:
                saving.on_wait = self.patience.hurry
                self.outbox.end(live, write)
                self.patience.begin()
                if self.late_ends is not None:
                    self.late_ends.watch()
                return
        self.mark(live)

    @property
    def is_rushed(self) -> bool:
        """Whether every end is urgent: somebody waits for all that there is, or the store takes no writes."""
        return self.patience.is_rushed or self.degraded_since is not None

    def record(self, live: LiveTask, *, is_ordinary: bool = False) -> None:
        """A memory-only task has ended: history. Where it `is_ordinary`, nothing unusual is looked for."""
        if is_ordinary:
            self.outbox.record_ordinary(live)
        else:
            self.outbox.record(live, write_of(live, None))
        count = self.outbox.history.end - self.outbox.history.passed_count
        if count >= HISTORY_BATCH:
            self._history_due.hurry()
        elif count == HISTORY_SLICE:
            self._history_due.shorten(self._commit_interval_s)
        else:
            self._history_due.begin()

    def wake(self) -> None:
        """Look again at the end of a turn, if nothing is being written."""
        if self._wake is not None and not self._has_turn:
            self._has_turn = True
            self.wants_turn()

    def _take_turn(self) -> None:
        """Make a turn of its own, for a writer that nobody gives one."""
        asyncio.get_running_loop().call_soon(self.turn_ended)

    def turn_began(self) -> None:
        """Wait for the end of this turn with whatever changes in it."""
        self._has_turn = True

    def turn_ended(self) -> None:
        """Begin to write if something is due: what belongs together has changed by now."""
        self._has_turn = False
        if self._wake is not None and not self._wake.done() and (self._is_closing or self.due()):
            self._wake.set_result(None)

    async def flush(self) -> None:
        """Return when everything that was marked or recorded so far is committed, history included."""
        if not self.unsaved_count:
            return
        if self._task is None or (self._is_closing and self._task.done()):
            raise StoreUnavailable(f"{self.unsaved_count} records are not saved, and the manager has stopped")
        with self.patience.rushed():
            done = self._flushes.wait_for(self.outbox.hurry_all())
            self._history_due.hurry()
            self.wake()
            await done

    # The coroutine.

    def start(self, listener: WriterListener, *, watches_loop: bool = False) -> "asyncio.Task[None]":
        """Begin to write, or again; `listener` hears what becomes of it.

        With `watches_loop`, the deadline of plain ends is kept also while the loop is blocked.
        """
        if watches_loop and self.late_ends is None and self.store.works_in_thread:
            self.late_ends = LateEnds(self.outbox, self._commit_interval_s, self.store.begin_commit, self.wake)
        self._listener = listener
        self._answers = Answers(self.outbox, self._flushes, self.mark, listener)
        loop = asyncio.get_running_loop()
        self._begun_s = loop.time()
        self._task = loop.create_task(self._run(), name="taskmanager-writer")
        return self._task

    def stop_watching_loop(self) -> None:
        """Leave the deadline of plain ends to the loop."""
        if self.late_ends is not None:
            self.late_ends.close()

    def leave_loop(self) -> None:
        """The loop will not run again: take back what is on its way, and be ready to be started in another one."""
        self.stop_watching_loop()
        self.outbox.put_back()
        late = None if self.late_ends is None else self.late_ends.take()
        if late is not None:  # it may have arrived or not
            late.report.close()
            self.outbox.take_over(late.entry_count, late.ends)
            self.outbox.put_back()
        self.patience.close()
        self._history_due.close()
        self._wake, self._has_turn, self.wants_turn = None, False, self._take_turn
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
        self.stop_watching_loop()
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
        self.patience.close()
        self._history_due.close()
        exc = StoreUnavailable("the manager has stopped before this was saved; enqueue it again after the next start")
        self._flushes.give_up(exc)
        self.outbox.give_up_waiters(exc)
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

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_RETRY_S
        while await self._wait_until_due():
            began_s = loop.time()
            async with self.quiet:
                is_written = await self._write()
            if is_written:
                pause_s = FIRST_RETRY_S
                await self._give_way(loop.time() - began_s)
            else:
                await self._pause(pause_s)
                pause_s = min(pause_s * 2, LAST_RETRY_S)

    async def _wait_until_due(self) -> bool:
        """Wait for the end of the turn in which something became due. False when nothing is left of a closing writer.

        After a commit that is one turn later: those who waited for it go on and enqueue, and what has ended leaves its
        slot to another task, which is then started in the same commit.
        """
        while True:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                if self.due():
                    self.wake()
                elif self._is_closing:
                    return False
                # What could not be written was taken back by a claim, which is a write too. Nothing would start any
                # more until the next write, and nothing is written until something starts.
                elif self.degraded_since is not None:
                    self._note_restored()
                await self._wake
            finally:
                self._wake = None
            if self.due():
                return True

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

    async def _write(self) -> bool:
        """Commit one batch; False when the store cannot be written now."""
        late = None
        if self.late_ends is not None and self.late_ends.late is not None:
            late = self.late_ends.take()
        if late is None:
            batch = self.take()
        else:
            batch = late.ends
            self.outbox.take_over(late.entry_count, late.ends)
        try:
            report = await (self._commit(batch) if late is None else late.report)
        except StoreError as exc:
            self.refuse(batch, exc)
            return False
        except Exception as exc:
            # A mistake of ours, or of a store: without its writer nothing would be saved any more, and nobody told.
            logger.critical("the writer failed unexpectedly, and tries again", exc_info=True)
            self.refuse(batch, StoreError(f"unexpected {type(exc).__name__}: {exc}"))
            return False
        except BaseException:  # cancelled, or an exception for the interpreter
            self._put_back(batch)
            raise
        self.written_s = asyncio.get_running_loop().time()
        self.answer(batch, report)
        return True

    async def _commit(self, batch: Sequence[Sent]) -> CommitReport:
        if not batch:
            return NOTHING_HAPPENED
        if self.listeners is not None:
            self.listeners.sends(batch)
        return await self.store.commit([sent[3] for sent in batch])

    # The decisions.

    def due(self) -> bool:
        """Tell whether something is to be written now."""
        outbox = self.outbox
        if outbox.changed.entries or (self._history_due.is_now and outbox.has_history):
            return True
        if self.late_ends is not None and self.late_ends.late is not None:
            return True
        return (self.patience.is_over or self._is_closing) and outbox.waiting_count > 0

    def take(self) -> Sequence[Sent]:
        """Return the next batch. It is in flight from here on, until it is answered or refused."""
        outbox = self.outbox
        is_over = self.patience.is_over or self._is_closing
        batch = outbox.take(MAX_BATCH, with_accepted=is_over, with_history=self._history_due.is_now)
        # What was due stays due until it is taken, however full of changes the batches are.
        if is_over and not outbox.waiting_count:
            self.patience.renew()
        if not outbox.has_history:
            self._history_due.is_now = self._is_closing
        return batch

    def refuse(self, batch: Sequence[Sent], exc: StoreError) -> None:
        """The batch may have arrived or not: it is due again, and made anew from what is true then."""
        self._put_back(batch)
        self._note_degraded(exc)

    def _put_back(self, batch: Sequence[Sent]) -> None:
        self.outbox.put_back()
        self._history_due.is_now |= bool(batch) and not batch[-1].live.is_persisted

    def answer(self, batch: Sequence[Sent], report: CommitReport) -> None:
        """The batch is in the store, except for what the report says of it. Everybody hears what became of theirs."""
        if self.degraded_since is not None:
            self._note_restored()
        self.outbox.settle()
        self._history_due.is_now |= self._answers.take_in(batch, report)
        if self.listeners is not None:
            self.listeners.committed(batch, report, self._answers.arrived)
        self._flushes.end(self.outbox.has_passed)
        if report.advance.readied or report.advance.ended:
            self._listener.advanced(report.advance)
        if batch:
            self._listener.written()

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
