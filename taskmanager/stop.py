"""What becomes of the tasks when a start ends: those that wait, those that still execute, and whoever waits for them.

A thread cannot be ended by anybody, and a coroutine may ignore its cancellation. The task of such code stays RUNNING
with the interruption noted. As long as it executes, the instance keeps its lock and its heartbeat, so that nobody else
runs the task beside it; for threads also after the loop was closed.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Final

from taskmanager.duties.heartbeat import Heartbeat
from taskmanager.engine.engine import Engine
from taskmanager.engine.intake.inbox import HELPING
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.live_task import GOES_ON, Ending, LiveTask
from taskmanager.engine.words.loops import let_loop_close
from taskmanager.engine.words.outcome import Outcome, extra_of
from taskmanager.engine.words.phases import ENDED, STARTING
from taskmanager.engine.write.commits import WriterListener
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.program_end import at_child_end
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import INTERRUPTION_NOTE, BuiltInTaskCode, TaskStatus
from taskmanager.model.wording import counted

WRITE_PATIENCE_S: Final = 1.5
"""How long to try a file that cannot be written. The last wait for SQLite's lock makes it two seconds."""
AGAIN_S: Final = 0.01
"""How often a thread looks whether another one, which is writing, is done."""
STOP_PATIENCE_S: Final = 3.0
"""How long to wait for the loop of another thread to stop. The limit of that stop itself is two seconds. Whenever the
loop has written something meanwhile, the wait begins again.
"""

_unstopped: Final[set["Unstopped"]] = set()
"""Keeps them alive, because the application may keep nothing of a manager but its tasks."""


class Release:
    """Cancels or frees the tasks that memory still holds at the end of a start, and wakes their waiters."""

    def __init__(self, engine: Engine) -> None:
        self._live, self._life, self._runner = engine.live, engine.life, engine.runner
        self._settlement, self._dispatcher = engine.settlement, engine.dispatcher
        self._writer, self._follower = engine.writer, engine.follower

    def __repr__(self) -> str:
        return f"<Release of {len(self._live)} tasks>"

    async def release_waiting(self, *, memory_only: bool = False) -> None:
        """Cancel the memory-only tasks that wait, and count them in `refused_count`. Free the persisted ones, also
        those whose start is not in the store yet, unless only `memory_only` tasks are meant.

        One helping is done in each turn of the loop. Meanwhile running tasks go on and batches are written: a stop
        gives up a writer that has written nothing for some seconds.
        """
        for number, live in enumerate(list(self._live.values()), 1):
            if live.is_persisted:
                if not memory_only:
                    self._free(live)
            elif live.is_waiting:
                before = "the next retry" if live.start_count else "the task started"
                self._life.cancel_waiting(live, BuiltInTaskCode.MANAGER_STOPPED, f"the manager stopped before {before}")
                self._life.refused_count += 1
            if number % HELPING == 0:
                await asyncio.sleep(0)

    def _free(self, live: LiveTask) -> None:
        if self._runner.is_still_executing(live.task_id):
            return  # it must not run beside its old thread: recovery takes it when that thread has ended
        if live.phase is STARTING and live.saving.committed is None and not live.is_unconfirmed:
            self._settlement.unbegin(live)
        elif not live.is_waiting or live.is_awaiting_store:
            return
        self._settlement.release(live)
        self._dispatcher.move(live, ENDED)
        self._writer.mark(live)

    def tell_everybody(self) -> None:
        """Wake all waiters: tasks that did not end here go on at the next start, and no more room comes up here."""
        while self._live:  # dropping a task of a key may bring in the next task of that key
            for live in list(self._live.values()):
                if live.ending is None:
                    live.ending = GOES_ON
                self._life.publish(live)
                self._life.drop(live)
        self._follower.end_all(GOES_ON)
        self._dispatcher.let_all_in()


class Abandoned:
    """What still executes after the stop of one engine, and the signs of life that the instance gives as long.

    When the stop is over and the last of it has ended, the instance lets go of its lock.
    """

    def __init__(self, engine: Engine, heartbeat: Heartbeat) -> None:
        self._life, self._runner, self._threads = engine.life, engine.runner, engine.runner.threads
        self._dispatcher, self._writer, self._store = engine.dispatcher, engine.writer, engine.store
        self._identity, self._wall_clock = engine.identity, engine.wall_clock
        self._heartbeat, self._presence, self._engine = heartbeat, engine.presence, engine
        self._attempts: set[Attempt] = set()
        self._may_let_go = self._has_let_go = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._attempts)

    def __repr__(self) -> str:
        return f"<Abandoned {len(self)} attempts, in {self._threads!r}>"

    def note(self, *, is_loop_gone: bool) -> None:
        """Go on without what has not ended, of which the heartbeat tells as long as threads are left.

        Of a loop that will not run again only threads go on.
        """
        runner = self._runner
        with self._lock:  # a thread that ends meanwhile waits until its attempt was noted
            threads = self._threads.outlive(self._thread_outlived_loop)
            self._attempts = {each for each in runner.abandoned if not is_loop_gone or threads & each.threads}
            for attempt in list(runner.running.values()):
                if is_loop_gone and not threads & attempt.threads:  # nothing of it executes, whatever it came to
                    self._life.interrupt(attempt)
                    continue
                runner.abandon(attempt)
                self._attempts.add(attempt)
                attempt.close(None)
                if not attempt.live.has_left:
                    self._record(attempt)
        for attempt in self._attempts:
            attempt.on_end = lambda ended=attempt: self._ended(ended)
            if attempt.task is not None:
                let_loop_close(attempt.task)
        if threads:
            self._heartbeat.outlives_loop = True

    def _record(self, attempt: Attempt) -> None:
        live = attempt.live
        if live.is_persisted:
            self._dispatcher.move(live, ENDED)
            error = TaskError(BuiltInTaskCode.TASK_INTERRUPTED, "the manager stopped; its code still executes")
            live.failed_reason = INTERRUPTION_NOTE
            live.ending = Ending(TaskStatus.RUNNING, TaskResult(err=error), _runs_again(live))
            self._writer.mark(live)
        else:
            self._life.settle(attempt, Outcome("stopped"))
        recorded = "interrupted" if live.cancel_requested_at is None else "cancelled"
        logger.warning(
            "task %s (%s) still executes after the stop; %s",
            live.definition.name,
            live.task_id,
            "once that has ended, it runs again" if _runs_again(live) else f"it is recorded as {recorded}",
            extra=extra_of(live),
        )

    def _thread_outlived_loop(self) -> None:
        """In the thread itself. What was left of other lanes went with the loop, so the last thread frees the rows."""
        with self._lock:  # whoever ends meanwhile waits until all is noted
            is_last = not self._threads.is_executing
        if is_last:
            self._let_go()

    def _ended(self, attempt: Attempt) -> None:
        self._attempts.discard(attempt)
        if self._may_let_go:
            self.let_go_when_over()

    # The signs of life.

    async def unregister(self, *, is_unwritten: bool) -> None:
        """Remove this instance from the store, if no row there needs it any more.

        If not all is written, its row and its lock file stay: they prove its death.
        """
        if self._attempts:
            return
        self._heartbeat.stop()
        if is_unwritten:
            return
        me, now_us = self._identity.instance_id, self._wall_clock.now_us()
        try:
            # Rows that still name it come from a claim whose answer nobody waited for.
            claim = self._life.unanswered_claim
            await self._store.release(me, now_us, claim[0].now if claim else None)
            if self._wall_clock.holds_expiry:
                # Its row may be all that tells of a clock that was ahead, by which the delays were freed just now.
                row = self._identity._replace(started_at=self._engine.started_at, updated_at=now_us)
                await self._store.save_instance(row)
                return
            await self._store.forget_instances([me])
            if self._presence is not None:
                self._presence.drop()  # the row first: a row without its lock file leaves a doubt
        except StoreError as exc:
            logger.warning("the instance row could not be removed: %s", exc)

    def let_go_when_over(self) -> None:
        """End the signs of life, because the stop is over: now, or when what still executes has ended."""
        self._may_let_go = True
        if not self._attempts:
            self._let_go()

    def leave_loop(self) -> None:
        """Let go, because the loop was closed after the stop: of what was left, only threads go on."""
        if self._may_let_go and not self._threads.is_executing:
            self._let_go()

    def _let_go(self) -> None:
        """From here on others take this instance for dead."""
        with self._lock:  # the last thread and the heartbeat's may both find that nothing is left
            has_let_go, self._has_let_go = self._has_let_go, True
        if has_let_go:
            return
        self._heartbeat.stop()
        if self._presence is not None:
            self._presence.let_go()


class Unstopped:
    """Watches over one start, from the moment it is up until its stop has ended, in case that nobody stops it.

    Its loop may be closed under it, or the program may end while it is up. Nothing of it runs any more then, and its
    memory is whole. So this class writes what a stop without a drain would write. It uses one plain connection, and the
    same statements and preconditions. A loop that still runs in another thread is asked to stop instead. A forked child
    writes nothing, because the start belongs to its parent.
    """

    def __init__(
        self,
        engine: Engine,
        listener: WriterListener,
        release: Release,
        abandoned: Abandoned,
        stop_now: Callable[[], Coroutine[object, object, None]],
    ) -> None:
        self._store, self._intake, self._inbox = engine.store, engine.intake, engine.inbox
        self._live, self._writer, self._outbox = engine.live, engine.writer, engine.writer.outbox
        self._threads, self._settings = engine.runner.threads, engine.settings
        self._engine = engine
        self._listener = listener
        self._release, self._abandoned, self._stop_now = release, abandoned, stop_now
        self._pid = os.getpid()
        self._loop = engine.life.loop
        self._is_over = self._has_left = False
        self._noted: list[LiveTask] | None = None
        """What was unfinished when the loop of another thread was asked to stop, and again when its door was closed."""
        self._writing = threading.Lock()
        """The heartbeat's thread, a next start and the program's end may all find a closed loop. One of them writes."""

    def __repr__(self) -> str:
        return f"<Unstopped {'up' if self in _unstopped else 'over'}, {self._engine!r}>"

    def begin(self) -> None:
        """Note that the start is up."""
        _unstopped.add(self)
        at_child_end(leave_unstopped)

    def end(self) -> None:
        """Note that the start was stopped, or belongs to another process."""
        self._is_over = True
        _unstopped.discard(self)

    def leave(self) -> None:
        """Write what is left, or ask for the stop, because the program ends."""
        if os.getpid() != self._pid or _running_loop() is not None:
            return
        if self._loop.is_running():
            self._ask_to_stop()
        else:
            self.write_here(is_last=True)

    def write_here(self, *, is_last: bool = False) -> bool:
        """Write what is left of a closed loop, in a loop of this thread. Return False when the caller must try again.

        The heartbeat's thread calls this while the program goes on. Another thread that is writing waits for the
        heartbeat's thread, so this one must never wait for that other thread.
        """
        if not self._writing.acquire(blocking=is_last):
            return False
        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                return runner.run(self._write_once(is_last=is_last))
        except OSError as exc:  # there are no descriptors for another loop
            if is_last:
                self.end()
                self._say(self._unfinished(), str(exc))
            return False
        finally:
            self._writing.release()

    def _ask_to_stop(self) -> None:
        """Ask the loop of another thread to stop: it runs until the last line of the program, and changes memory."""
        lives, reason = self._unfinished(), None
        self._noted = lives
        stopping = asyncio.run_coroutine_threadsafe(self._stop_now(), self._loop)
        try:
            self._wait_while_it_writes(stopping)
        except TimeoutError:
            reason = f"its event loop did not stop within {STOP_PATIENCE_S:g} s"
        except StoreError as exc:
            reason = str(exc)
        self._say(lives, reason)

    def _wait_while_it_writes(self, stopping: "Future[None]") -> None:
        """Wait for the stop as long as it writes: threads may have handed over more than one wait is enough for."""
        while True:
            written_s = self._writer.written_s
            try:
                return stopping.result(STOP_PATIENCE_S)
            except TimeoutError:
                if self._writer.written_s == written_s:
                    raise

    def note_unfinished(self) -> None:
        """Note the last arrivals, now that the door is closed, if the end of the program has asked for the stop."""
        if self._noted is not None:
            self._noted += self._unfinished()

    async def write(self) -> None:
        """Write what memory holds, and let go of threads and descriptors. A second caller waits, and does nothing.

        This runs in another loop than that of the start, which never runs again.
        """
        while not self._writing.acquire(blocking=False):  # noqa: ASYNC110  # the lock is one of threads
            await asyncio.sleep(AGAIN_S)
        try:
            await self._write_once(is_last=True)
        finally:
            self._writing.release()

    async def _write_once(self, *, is_last: bool) -> bool:
        """Return False if the file could not be written, and this is not the last try."""
        if self._is_over:
            self._abandoned.leave_loop()
            return True
        is_done = True
        try:
            is_done = await self._write(is_last=is_last)
        finally:
            if is_done:
                self.end()
                self._abandoned.let_go_when_over()
        return is_done

    async def _write(self, *, is_last: bool) -> bool:
        engine, reason = self._engine, None
        engine.leave_loop()
        self._intake.close()
        self._inbox.take_all()
        self._noted = lives = [*(self._noted or ()), *self._unfinished()]
        if not self._has_left:
            try:
                self._store.work_inline()
            except StoreError as exc:
                reason = str(exc)
                await self._forget_lost_file(lives)
            self._abandoned.note(is_loop_gone=True)
            self._has_left = True
        if reason is None:
            self._writer.start(self._listener)
        await self._release.release_waiting()
        if reason is None:
            unsaved = await self._writer.close(WRITE_PATIENCE_S)
            if unsaved and not is_last:
                return False
            reason = self._writer.degraded_reason if unsaved else None
            await self._abandoned.unregister(is_unwritten=unsaved > 0)
        self._release.tell_everybody()
        await self._store.close()
        self._threads.close()
        self._say(lives, reason)
        return True

    async def _forget_lost_file(self, lives: Iterable[LiveTask]) -> None:
        """Count nothing as committed if the file in which it stood is not there any more."""
        with contextlib.suppress(StoreError):
            if (await self._store.look_after()).is_lost:
                for live in lives:
                    if live.is_persisted:
                        live.saving.committed = None

    def _unfinished(self) -> list[LiveTask]:
        """Return what may be lost: tasks in memory, and ended ones that are not written. Some come twice."""
        found = [*self._live.values(), *self._outbox.unsaved(), *self._inbox]
        return [live for live in found if not live.status.is_terminal or not live.is_saved]

    def _say(self, lives: Iterable[LiveTask], reason: str | None) -> None:
        """Log one line, if there was anything to lose."""
        count = Counter(_fate_of(live) for live in {id(live): live for live in lives}.values())
        del count[""]
        if not count:
            return
        written = counted(count["written"], "task") + (" was" if count["written"] == 1 else " were")
        text = f"{written} written for the next start"
        if count["interrupted"]:
            text += f", {count['interrupted']:,} recorded as interrupted"
        if count["kept"]:
            text += f", {count['kept']:,} left in the file as last committed"
        text += f", {count['lost']:,} lost"
        (logger.error if count["lost"] or reason else logger.warning)(
            "a manager on %s was started and never stopped: %s%s; use `async with manager:` or manager.run(main)",
            self._settings.place or "no file",
            text,
            f" ({reason})" if reason else "",
        )


def _runs_again(live: LiveTask) -> bool:
    """Return whether recovery puts the task back when its code has ended, which goes on after the stop."""
    return live.is_persisted and live.definition.requeue_on_interrupt and live.cancel_requested_at is None


def _fate_of(live: LiveTask) -> str:
    """Return what became of one task, as far as this process knows; empty if there is nothing to report."""
    if live.has_left:  # its row is free, because memory had no room for it; or it is another's
        return "written" if live.owner is None and not live.is_duplicate else ""
    if not live.is_persisted:
        return "lost" if live.status in (TaskStatus.CANCELLED, TaskStatus.INTERRUPTED, TaskStatus.RUNNING) else ""
    if not live.is_saved:
        return "lost" if live.saving.committed is None else "kept"
    if live.status is TaskStatus.INTERRUPTED:
        return "interrupted"
    if live.status is TaskStatus.RUNNING:  # noted as interrupted, and judged when its thread has ended
        return "written" if _runs_again(live) else "interrupted"
    return "" if live.status.is_terminal else "written"


@atexit.register
def leave_unstopped() -> None:
    """Write at the end of the program what no stop has written."""
    for each in list(_unstopped):
        try:
            each.leave()
        except Exception:
            logger.critical("what a manager that was never stopped holds could not be written", exc_info=True)
