"""What becomes of the tasks when a start ends: those that wait, those that still execute, and whoever waits for them.

A thread cannot be ended by anybody, and a coroutine may ignore its cancellation. The task of such code stays RUNNING
with the interruption noted. As long as it executes, the instance keeps its lock and its heartbeat, so that nobody else
runs the task beside it; for threads also after the loop was closed.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

from taskmanager.engine.attempt import Attempt
from taskmanager.engine.engine import Engine
from taskmanager.engine.events import extra_of
from taskmanager.engine.inbox import HELPING
from taskmanager.engine.live_task import GOES_ON, Ending, LiveTask
from taskmanager.engine.loops import let_loop_close
from taskmanager.engine.outcome import Outcome
from taskmanager.engine.phases import ENDED, STARTING
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import INTERRUPTION_NOTE, BuiltInTaskCode, TaskStatus


class Release:
    """Cancels or frees the tasks that memory still holds at the end of a start, and wakes their waiters."""

    def __init__(self, engine: Engine) -> None:
        self._live, self._life, self._runner = engine.live, engine.life, engine.runner
        self._settlement, self._dispatcher = engine.settlement, engine.dispatcher
        self._writer, self._follower = engine.writer, engine.follower

    def __repr__(self) -> str:
        return f"<Release of {len(self._live)} tasks>"

    async def cancel_memory_only(self) -> None:
        """Cancel the memory-only tasks that wait, and count them in `refused_count`."""
        async for live in self._in_helpings():
            if live.is_waiting and not live.is_persisted:
                before = "the next retry" if live.start_count else "the task started"
                self._life.cancel_waiting(live, BuiltInTaskCode.MANAGER_STOPPED, f"the manager stopped before {before}")
                self._life.refused_count += 1

    async def release_waiting(self) -> None:
        """Free the persisted tasks that wait, and those whose start is not in the store yet."""
        async for live in self._in_helpings():
            if not live.is_persisted or self._runner.is_still_executing(live.task_id):
                continue  # it must not run beside its old thread: recovery takes it when that thread has ended
            if live.is_waiting and not live.is_awaiting_store:
                self._release(live)
            elif live.phase is STARTING and live.saving.committed is None and not live.is_unconfirmed:
                self._settlement.unbegin(live)
                self._release(live)

    async def _in_helpings(self) -> AsyncIterator[LiveTask]:
        """Yield all that is in memory, one helping in each turn of the loop. Meanwhile running tasks go on and batches
        are written: a stop gives up a writer that has written nothing for some seconds.
        """
        for number, live in enumerate(list(self._live.values()), 1):
            yield live
            if number % HELPING == 0:
                await asyncio.sleep(0)

    def _release(self, live: LiveTask) -> None:
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
        self._dispatcher.wake_room_waiters()


class Abandoned:
    """What still executes after the stop of one engine.

    `let_go` is called when the last of it has ended, once `may_let_go` is set.
    """

    may_let_go = False

    def __init__(self, engine: Engine, let_go: Callable[[], None]) -> None:
        self._life, self._runner, self._threads = engine.life, engine.runner, engine.runner.threads
        self._dispatcher, self._writer = engine.dispatcher, engine.writer
        self._let_go = let_go
        self._attempts: set[Attempt] = set()
        self.thread_count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._attempts)

    def __repr__(self) -> str:
        return f"<Abandoned {len(self)} attempts, {self.thread_count} of them threads>"

    def note(self, *, is_loop_gone: bool) -> None:
        """Go on without what has not ended. Of a loop that will not run again only threads go on."""
        runner = self._runner
        with self._lock:  # a thread that ends meanwhile waits until it was counted
            threads = self._threads.outlive(self._thread_outlived_loop)
            self._attempts = {each for each in runner.abandoned if not is_loop_gone or each.thread in threads}
            for attempt in list(runner.running.values()):
                if is_loop_gone and attempt.thread not in threads:  # nothing of it executes, whatever it came to
                    self._life.interrupt(attempt)
                    continue
                runner.abandon(attempt)
                self._attempts.add(attempt)
                attempt.close(None)
                if not attempt.live.has_left:
                    self._record(attempt)
            self.thread_count = sum(attempt.live.definition.lane == "thread" for attempt in self._attempts)
        for attempt in self._attempts:
            attempt.on_end = lambda ended=attempt: self._ended(ended)
            if attempt.task is not None:
                let_loop_close(attempt.task)

    def _record(self, attempt: Attempt) -> None:
        live = attempt.live
        if live.is_persisted:
            self._dispatcher.move(live, ENDED)
            error = TaskError(BuiltInTaskCode.TASK_INTERRUPTED, "the manager stopped; its code still executes")
            live.failed_reason = INTERRUPTION_NOTE
            live.ending = Ending(TaskStatus.RUNNING, TaskResult(err=error), live.definition.requeue_on_interrupt)
            self._writer.mark(live)
        else:
            self._life.settle(attempt, Outcome("stopped"))
        logger.warning(
            "task %s (%s) still executes after the stop; it is recorded as interrupted",
            live.definition.name,
            live.task_id,
            extra=extra_of(live),
        )

    def _thread_outlived_loop(self) -> None:
        """In the thread itself. What was left of other lanes went with the loop, so the last thread frees the rows."""
        with self._lock:  # two may end at once
            self.thread_count -= 1
            is_last = self.thread_count <= 0
        if is_last:
            self._let_go()

    def _ended(self, attempt: Attempt) -> None:
        self._attempts.discard(attempt)
        with self._lock:
            self.thread_count -= attempt.live.definition.lane == "thread"
        if self.may_let_go and not self._attempts:
            self._let_go()
