"""What still executes after a stop: threads, which nobody can end, and coroutines that ignore their cancellation.

Its task stays RUNNING with the interruption noted. As long as it executes, the instance keeps its lock and its
heartbeat, so that nobody else runs the task beside it; for threads also after the loop was closed.
"""

import threading
from collections.abc import Callable

from taskmanager.engine.attempt import Attempt
from taskmanager.engine.engine import Engine
from taskmanager.engine.events import extra_of
from taskmanager.engine.live_task import Ending
from taskmanager.engine.loops import let_loop_close
from taskmanager.engine.outcome import Outcome
from taskmanager.engine.phases import ENDED
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import INTERRUPTION_NOTE, BuiltInTaskCode, TaskStatus


class Leftover:
    """Of one engine. `let_go` is called when the last of it has ended, once `may_let_go` is set."""

    may_let_go = False

    def __init__(self, engine: Engine, let_go: Callable[[], None]) -> None:
        self._engine = engine
        self._let_go = let_go
        self._attempts: set[Attempt] = set()
        self.thread_count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._attempts)

    def __repr__(self) -> str:
        return f"<Leftover {len(self)} attempts, {self.thread_count} of them threads>"

    def note(self, *, is_loop_gone: bool) -> None:
        """Go on without what has not ended. Of a loop that will not run again only threads go on."""
        runner = self._engine.runner
        with self._lock:  # a thread that ends meanwhile waits until it was counted
            threads = runner.threads.outlive(self._thread_outlived_loop)
            self._attempts = {each for each in runner.abandoned if not is_loop_gone or each.thread in threads}
            for attempt in list(runner.running.values()):
                if is_loop_gone and attempt.thread not in threads:  # nothing of it executes, whatever it came to
                    self._engine.interrupt(attempt)
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
        engine, live = self._engine, attempt.live
        if live.is_persisted:
            engine.dispatcher.move(live, ENDED)
            error = TaskError(BuiltInTaskCode.TASK_INTERRUPTED, "the manager stopped; its code still executes")
            live.failed_reason = INTERRUPTION_NOTE
            live.ending = Ending(TaskStatus.RUNNING, TaskResult(err=error), live.definition.requeue_on_interrupt)
            engine.writer.mark(live)
        else:
            engine.settle(attempt, Outcome("stopped"))
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
