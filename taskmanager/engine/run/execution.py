"""Runs one attempt in its lane and comes back with an `Outcome`. It cannot see the store.

`BaseException` is caught here: whatever user code raises, `SystemExit` and `KeyboardInterrupt` too, ends that task and
nothing else, unless a signal raised it in the middle of that code. An exception after our own request to stop is an
interruption. A `CancelledError` that user code raised by itself is a failure.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from taskmanager.engine.run import child
from taskmanager.engine.run.lanes import BrokenProcess, CannotStart, Ended, ProcessLane, ThreadLane
from taskmanager.engine.words.attempt import Attempt, StopReason, drive
from taskmanager.engine.words.loops import Host, let_loop_close
from taskmanager.engine.words.outcome import (
    Outcome,
    comes_from_signal,
    comes_from_stop,
    extra_of,
    failure_of,
    is_plain_value,
    outcome_of,
    timed_out,
)
from taskmanager.engine.words.timers import TimeLimits
from taskmanager.model.context import current
from taskmanager.model.errors import ArgumentError
from taskmanager.model.hooks import Middleware
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError
from taskmanager.model.states import BuiltInTaskCode

STUBBORN_AFTER_S = 1.0
"""How long an async task may go on after its cancellation before it is reported as ignoring it."""

Report = Callable[[Attempt, Outcome], None]


class Runner:
    """Starts attempts, watches their time, and reports each outcome once to `report`."""

    def __init__(
        self,
        process_limit: int,
        host: Host,
        report: Report,
        complete: Callable[[Attempt, Any], None],
        running_s: Callable[[], float],
        was_torn_down_since: Callable[[float], bool],
        middlewares: Sequence[Middleware] = (),
    ) -> None:
        self.processes = ProcessLane(process_limit, host)
        self.running: dict[str, Attempt] = {}
        self.abandoned: set[Attempt] = set()
        self._not_begun: list[Attempt] = []
        self.is_stopping = False
        self._loop = asyncio.get_running_loop()  # to ask for it is a call of the system each time
        self.threads = ThreadLane(self._loop)
        self._report = report
        self._complete = complete
        self._limits = TimeLimits(self._loop, running_s, self._time_out)
        self._was_torn_down_since = was_torn_down_since
        self._middlewares = middlewares
        self._by_lane = {"async": self._run_async, "thread": self._run_thread, "process": self._run_process}

    def start(self, attempt: Attempt) -> None:
        """Run the attempt in its lane, in a copy of the caller's context."""
        live, loop = attempt.live, self._loop
        self.running[live.task_id] = attempt
        # After a restart there is no caller any more; the task then runs in an empty context.
        context = Context() if live.context is None else live.context.copy()
        # Not by the task factory of the loop: an eager one would run user code here, in the middle of a dispatch.
        way = self._run_surrounded if self._middlewares else self._by_lane[live.definition.lane]
        coroutine = self._run_node(attempt, way) if live.is_workflow_task else way(attempt)
        attempt.task = asyncio.Task(coroutine, loop=loop, context=context)
        if not self._not_begun:
            loop.call_soon(self._look_at_not_begun)
        self._not_begun.append(attempt)
        attempt.began_s = loop.time()
        if live.timeout_s is not None and not live.is_workflow_task:
            self._limits.watch(attempt, live.timeout_s)

    def _look_at_not_begun(self) -> None:
        """End the attempts whose task was cancelled before its first step, by code of the application.

        Such a task never runs, not even to report that. One look at all that were started together costs less than a
        callback of each.
        """
        started, self._not_begun = iter(self._not_begun), []
        try:
            for attempt in started:
                if attempt.has_begun or attempt.task is None:
                    continue
                if attempt.task.done():
                    self._finish(attempt, self._raised(attempt, asyncio.CancelledError()))
                else:
                    self._not_begun.append(attempt)
        finally:
            self._not_begun.extend(started)  # those behind one whose end raised
            if self._not_begun:
                self._loop.call_soon(self._look_at_not_begun)

    def stop(self, attempt: Attempt, reason: StopReason) -> None:
        """Ask an attempt to stop: async code is cancelled, a child killed, a thread sees `is_cancelled`."""
        if attempt.is_over:
            return
        attempt.is_plain = False
        if attempt.stop_reason is None or reason is StopReason.CLAIM_LOST:
            attempt.stop_reason = reason
        if reason is StopReason.CANCEL and attempt.is_suspended:  # it is at its clean-up, which that would cut short
            return
        # A coroutine that is cancelled before its first step never runs, not even to report that. It looks by itself.
        if attempt.has_begun and attempt.thread is None and attempt.task is not None:
            attempt.task.cancel()

    def abandon(self, attempt: Attempt) -> None:
        """Go on without an attempt that will not end. What it comes to later is discarded."""
        attempt.is_abandoned, attempt.is_plain = True, False
        self.abandoned.add(attempt)
        self.running.pop(attempt.live.task_id, None)

    def cut_off(self, attempt: Attempt) -> Outcome:
        """Return the outcome of a coroutine whose loop will not run again. What it says when collected is discarded."""
        attempt.is_abandoned, attempt.is_plain = True, False
        self.running.pop(attempt.live.task_id, None)
        attempt.stop_reason = attempt.stop_reason or StopReason.SHUTDOWN
        if attempt.task is not None:
            let_loop_close(attempt.task)
        return self._raised(attempt, asyncio.CancelledError())

    def is_still_executing(self, task_id: str) -> bool:
        """Return whether code of an earlier, abandoned attempt still runs."""
        return any(attempt.live.task_id == task_id for attempt in self.abandoned)

    def is_executing(self, task_id: str) -> bool:
        """Whether any code of this task runs."""
        return task_id in self.running or self.is_still_executing(task_id)

    def attempts_in(self, queue_name: str) -> list[Attempt]:
        """Return the attempts of a queue whose code runs, abandoned or not."""
        return [each for each in (*self.running.values(), *self.abandoned) if each.live.queue_name == queue_name]

    def after(self, task_id: str, then: Callable[[], None]) -> bool:
        """Call `then` when the code of this task that still runs has ended. Return False if none runs."""
        if not self.abandoned and task_id not in self.running:
            return False
        attempts = [self.running.get(task_id), *self.abandoned]
        attempt = next((each for each in attempts if each is not None and each.live.task_id == task_id), None)
        if attempt is None:
            return False
        attempt.on_gone, attempt.is_plain = then, False
        return True

    # The lanes.

    async def _run_node(self, attempt: Attempt, way: "Callable[[Attempt], Coroutine[Any, Any, None]]") -> None:
        """Read the inputs of a node of a workflow, and run its task with them. Its time limit begins then."""
        from taskmanager.engine.run.calls import take_inputs

        current.set(attempt)
        live = attempt.live
        try:
            _begin(attempt)
            outcome = await take_inputs(attempt, lambda: self.is_stopping)
        except BaseException as exc:
            if comes_from_signal(exc):
                self._interrupt(attempt, exc)
                raise
            outcome = self._raised(attempt, exc)
        if outcome is not None:
            self._finish(attempt, outcome)
            return
        if live.timeout_s is not None:
            self._limits.watch(attempt, live.timeout_s)
        await way(attempt)

    async def _run_async(self, attempt: Attempt) -> None:
        current.set(attempt)
        live = attempt.live
        value: Any = None
        try:
            attempt.has_begun = True
            if attempt.stop_reason is not None:
                raise asyncio.CancelledError
            fn = live.definition.fn
            args, kwargs = _arguments(attempt)
            attempt.has_reached_code = True
            value = await drive(fn(*args, **kwargs), attempt)
            if child.forked_by is attempt:
                child.end_copy(None)
            is_plain = attempt.is_plain and (value is None or is_plain_value(value))
            outcome = None if is_plain else outcome_of(value)
        except BaseException as exc:
            if child.forked_by is attempt:
                child.end_copy(exc)
            if comes_from_signal(exc):
                self._interrupt(attempt, exc)
                if attempt.is_told:
                    return
                raise
            outcome = self._raised(attempt, exc)
            if type(exc) is GeneratorExit:  # collected with its loop, where nothing can be awaited
                attempt.steps = None
        if outcome is not None:
            if (steps := attempt.steps) is not None:
                outcome = await steps.end(outcome)
            self._finish(attempt, outcome)
            return
        self.running.pop(live.task_id, None)
        self._complete(attempt, value)  # what this might raise is a mistake of ours, and no failure of the task

    async def _run_thread(self, attempt: Attempt) -> None:
        current.set(attempt)
        live = attempt.live
        try:
            _begin(attempt)
            args, kwargs = _arguments(attempt)
            _reach_code(attempt)
            future = self.threads.submit(partial(live.definition.fn, *args, **kwargs), copy_context())
            attempt.thread = future
        except CannotStart as exc:
            self._finish(attempt, Outcome("unstarted", reason=str(exc)))
            return
        except BaseException as exc:
            self._finish(attempt, self._raised(attempt, exc))
            return
        await self._wait_for_thread(attempt, future)

    async def _wait_for_thread(
        self, attempt: Attempt, future: "asyncio.Future[Ended]", meant: Outcome | None = None
    ) -> None:
        """Wait until the thread of the attempt has ended, which nobody can bring about. The outcome is that of the
        thread, or `meant`.

        Code that cancels every task cancels this wait too. It has interrupted nothing, and a second attempt must not
        run beside the first one, so the wait goes on.
        """
        try:
            ended = await asyncio.shield(future)
            outcome = outcome_of(ended.value) if ended.error is None else self._raised(attempt, ended.error)
        except BaseException as exc:
            if self._waits_on(attempt, future, exc, meant):
                return
            outcome = self._raised(attempt, exc)
        self._finish(attempt, meant or outcome)

    def _waits_on(
        self, attempt: Attempt, future: "asyncio.Future[Ended]", exc: BaseException, meant: Outcome | None = None
    ) -> bool:
        """Begin the wait for the thread again if `exc` has cancelled it. Raise `exc` if it comes from a signal."""
        is_by_signal = not future.done() and comes_from_signal(exc)
        if not is_by_signal and (future.done() or not issubclass(type(exc), asyncio.CancelledError)):
            return False
        attempt.task = asyncio.Task(self._wait_for_thread(attempt, future, meant), loop=future.get_loop())
        let_loop_close(attempt.task)
        if is_by_signal:
            raise exc
        return True

    async def _run_process(self, attempt: Attempt) -> None:
        from taskmanager.engine.run.calls import child_call, hear, outcome_of_crash, outcome_of_reply

        current.set(attempt)
        try:
            _begin(attempt)
            args, kwargs = _arguments(attempt)
            call = child_call(attempt, args, kwargs)
            reply = await self.processes.run(call, partial(_reach_code, attempt), partial(hear, attempt))
            attempt.raised, outcome = reply.exc, outcome_of_reply(attempt, reply)
        except CannotStart as exc:
            outcome = (
                Outcome("unstarted", reason=str(exc)) if attempt.stop_reason is None else self._raised(attempt, exc)
            )
        except BrokenProcess as exc:
            outcome = self._raised(attempt, exc)
            if outcome.kind == "failed":
                outcome = outcome_of_crash(exc)
        except BaseException as exc:
            if comes_from_signal(exc):
                self._interrupt(attempt, exc)
                raise
            outcome = self._raised(attempt, exc)
        self._finish(attempt, outcome)

    async def _run_surrounded(self, attempt: Attempt) -> None:
        """Run an attempt of any lane with the middleware around its function."""
        from taskmanager.engine.run.calls import Surrounded

        current.set(attempt)
        surrounded, attempt.is_surrounded = None, True
        try:
            _begin(attempt)
            surrounded = Surrounded(attempt, *_arguments(attempt), self.threads, self.processes)
            outcome = await drive(surrounded.run(self._middlewares), attempt)
            if child.forked_by is attempt:
                child.end_copy(None)
        except BaseException as exc:
            if child.forked_by is attempt:
                child.end_copy(exc)
            if attempt.thread is not None and self._waits_on(attempt, attempt.thread, exc):
                return
            if comes_from_signal(exc):
                self._interrupt(attempt, exc)
                if attempt.is_told:
                    return
                raise
            told = None if surrounded is None else surrounded.meant_by(exc)
            outcome = self._raised(attempt, exc) if told is None or attempt.stop_reason is not None else told
            if type(exc) is GeneratorExit:  # collected with its loop, where nothing can be awaited
                attempt.thread = attempt.steps = None
        if (steps := attempt.steps) is not None:
            outcome = await steps.end(outcome)
        if attempt.thread is None:
            self._finish(attempt, outcome)
        else:  # the middleware has not waited for it
            await self._wait_for_thread(attempt, attempt.thread, outcome)

    def _interrupt(self, attempt: Attempt, exc: BaseException) -> None:
        """Settle an attempt during which Ctrl-C came that no handler of the loop caught, as a stop would settle it.

        asyncio passes the exception on to the caller that runs the loop.
        """
        attempt.stop_reason = attempt.stop_reason or StopReason.SHUTDOWN
        if attempt.task is not None:
            attempt.task.add_done_callback(asyncio.Task.exception)  # or asyncio would log that nobody has retrieved it
        self._finish(attempt, self._raised(attempt, exc))

    def _raised(self, attempt: Attempt, exc: BaseException) -> Outcome:
        """Return the outcome of an exception: an interruption if we asked for it, else the task's own failure."""
        if attempt.stop_reason is None and (
            self._is_torn_down(attempt, exc) or (self.is_stopping and comes_from_stop(exc))
        ):
            attempt.stop_reason = StopReason.SHUTDOWN
        reason = attempt.stop_reason
        if reason is None:
            return _failed(attempt, exc)
        if reason is StopReason.TIMEOUT:
            return timed_out(attempt.live.timeout_s)
        # An attempt that still waited for its child has not begun, and was not interrupted.
        was_waiting = self.is_stopping and reason is StopReason.SHUTDOWN and not attempt.has_reached_code
        return Outcome("unstarted" if was_waiting and attempt.live.is_persisted else "stopped")

    def _is_torn_down(self, attempt: Attempt, exc: BaseException) -> bool:
        """Return whether the task was cancelled together with the engine, because the event loop ends without a stop.

        That is an interruption like any other, if it can still be written.
        """
        if not issubclass(type(exc), asyncio.CancelledError) or attempt.task is None:
            return False
        return attempt.task.cancelling() > 0 and self._was_torn_down_since(attempt.began_s)

    def _finish(self, attempt: Attempt, outcome: Outcome) -> None:
        task, attempt.task = attempt.task, None
        if attempt.is_abandoned:
            self.abandoned.discard(attempt)
            if attempt.on_end:
                attempt.on_end()
        elif task is not None and task.get_loop().is_closed():
            return  # its coroutine is collected with its closed loop: there is no outcome, and nobody to hear it
        else:
            self.running.pop(attempt.live.task_id, None)
            self._report(attempt, outcome)
        attempt.raised = attempt.thread = None  # that one holds the exception, too
        if attempt.on_gone:
            attempt.on_gone()

    # Time limits.

    def _time_out(self, attempt: Attempt) -> None:
        if attempt.thread is not None:
            attempt.stop_reason = attempt.stop_reason or StopReason.TIMEOUT
            self._give_up(attempt, "its thread goes on; the late result is discarded")
            return
        self.stop(attempt, StopReason.TIMEOUT)
        attempt.timer = self._loop.call_later(STUBBORN_AFTER_S, self._check_stubborn, attempt)

    def _check_stubborn(self, attempt: Attempt) -> None:
        if not attempt.is_over and not attempt.is_abandoned:
            self._give_up(attempt, "it ignores its cancellation and goes on; the late result is discarded")

    def _give_up(self, attempt: Attempt, what: str) -> None:
        live = attempt.live
        logger.warning("task %s (%s) timed out: %s", live.definition.name, live.task_id, what, extra=extra_of(live))
        self.abandon(attempt)
        was_cancelled = attempt.stop_reason is StopReason.CANCEL  # asked for before its time was up, and ignored
        self._report(attempt, Outcome("stopped") if was_cancelled else timed_out(live.timeout_s))


def _failed(attempt: Attempt, exc: BaseException) -> Outcome:
    """Return the failure with its words and its traceback, as far as the exception lets us read them."""
    if type(exc) is _Unfit:
        return Outcome("failed", error=TaskError(BuiltInTaskCode.UNHANDLED_EXCEPTION, str(exc)), reason=str(exc))
    attempt.raised = exc
    return failure_of(attempt.live.definition, exc)


class _Unfit(Exception):
    """The stored arguments do not fit the function any more. No exception mapper of the application sees this."""


def _begin(attempt: Attempt) -> None:
    attempt.has_begun = True
    if attempt.stop_reason is not None:
        raise asyncio.CancelledError


def _reach_code(attempt: Attempt) -> None:
    attempt.has_reached_code = True


def _arguments(attempt: Attempt) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the caller's own objects for a memory-only task, and what the stored form gives for a persisted one."""
    live = attempt.live
    if live.call_args is not None:
        return live.call_args, live.call_kwargs or {}
    if attempt.arguments is not None:
        return attempt.arguments
    codec = live.definition.arguments
    try:
        return codec.decode(live.args_text or "[]", live.kwargs_text or "{}")
    except ArgumentError as exc:
        raise _Unfit(str(exc)) from None
