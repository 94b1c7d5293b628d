"""Puts the middleware of the application around the function of one attempt, in every lane.

All of it runs on the loop, inside the attempt: in its slot, its time limit and its context. The function is the
innermost call. What the outermost middleware returns or raises is what the attempt comes to. Beside that stands:

- A request to stop wins, also over middleware that swallows its `CancelledError`. A function that swallows it, and
  returns a value, has ended with that value, as it has without middleware.
- What a lane says beyond a value or an exception (a child that died, a result that did not come through) holds as long
  as the middleware hands on what it got.
- If the lane has no thread, or no child, the function has not run: whatever the middleware makes of that, the task
  waits and is started again.
- A thread cannot be ended, so the attempt lasts until its thread has ended (see `Runner`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

from taskmanager.engine.run.child_call import child_call, error_in, hear, outcome_of_crash, outcome_of_reply
from taskmanager.engine.run.lanes import BrokenProcess, CannotStart, ProcessLane, ThreadLane
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.outcome import Outcome, outcome_of
from taskmanager.model.context import current_task
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.hooks import Middleware
from taskmanager.model.result import TaskResult

Call = Callable[[], Awaitable[Any]]


class Told(NamedTuple):
    """What the middleware got from the lane, a value or an exception, and what that means."""

    end: object
    outcome: Outcome
    raised: BaseException | None = None


class Surrounded:
    """One attempt with middleware around it."""

    def __init__(
        self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any], threads: ThreadLane, lane: ProcessLane
    ) -> None:
        self._attempt = attempt
        definition = attempt.live.definition
        self._lane, self._call = definition.lane, partial(definition.fn, *args, **kwargs)
        self._threads, self._processes = threads, lane
        self._told: Told | None = None
        self._is_over_anyway = False
        """Whether the function has returned although it was asked to stop."""

    def __repr__(self) -> str:
        return f"<Surrounded {self._attempt!r}>"

    async def run(self, middlewares: Sequence[Middleware]) -> Outcome:
        """Run the function with all of them around it. Raises what the outermost one raises."""
        run: Call = self._run_function
        context = current_task()
        for middleware in reversed(middlewares):
            run = partial(middleware, context, _once(run))
        value = await run()
        outcome = self.meant_by(value)
        if outcome is None or outcome.kind != "unstarted":
            self._check_stop(is_over=self._is_over_anyway)
        return outcome_of(value) if outcome is None else outcome

    def meant_by(self, end: object) -> Outcome | None:
        """Return what the lane has told with this value or exception. None if it told nothing, or of another one."""
        told = self._told
        if told is None or not (told.end is end or told.outcome.kind == "unstarted"):
            return None
        self._attempt.raised = told.raised
        return told.outcome

    def _check_stop(self, *, is_over: bool = False) -> None:
        if self._attempt.stop_reason is not None and not is_over:
            raise asyncio.CancelledError

    # The innermost call.

    async def _run_function(self) -> Any:
        self._check_stop()
        attempt = self._attempt
        run = {"async": self._run_here, "thread": self._run_in_thread, "process": self._run_in_child}
        value = await run[self._lane]()
        self._is_over_anyway = attempt.stop_reason is not None
        return value

    async def _run_here(self) -> Any:
        self._reach_code()
        self._attempt.is_in_lane = True
        try:
            return await self._call()
        finally:
            self._attempt.is_in_lane = False

    async def _run_in_thread(self) -> Any:
        attempt = self._attempt
        attempt.is_in_lane = True
        try:
            future = self._threads.submit(self._call, copy_context())
        except CannotStart as exc:
            attempt.is_in_lane = False
            raise self._unstarted(exc) from exc
        attempt.thread = future
        self._reach_code()
        ended = await asyncio.shield(future)
        attempt.thread, attempt.is_in_lane = None, False
        try:
            if attempt.is_abandoned:  # it has timed out, which its middleware hears now, and the next attempt waits
                raise asyncio.CancelledError
            if ended.error is not None:
                raise ended.error
            return ended.value
        finally:
            del ended, future  # the exception refers to this frame, which must not hold it

    async def _run_in_child(self) -> Any:
        attempt = self._attempt
        call = child_call(attempt, self._call.args, self._call.keywords)
        attempt.is_in_lane = True
        try:
            reply = await self._processes.run(call, self._reach_code, partial(hear, attempt))
        except CannotStart as exc:
            raise self._unstarted(exc) from exc
        except BrokenProcess as exc:
            self._told = Told(exc, outcome_of_crash(exc), exc)
            raise
        finally:
            attempt.is_in_lane = False
        if reply.code is not None:
            return TaskResult(err=error_in(reply))
        if reply.words is not None:
            raised = RuntimeError(reply.words) if reply.exc is None else reply.exc
            self._told = Told(raised, outcome_of_reply(attempt, reply), reply.exc)
            raise raised
        if reply.lost is not None:
            self._told = Told(None, outcome_of_reply(attempt, reply))
        return reply.value

    def _reach_code(self) -> None:
        self._attempt.has_reached_code = True

    def _unstarted(self, exc: CannotStart) -> asyncio.CancelledError:
        """Return what the middleware gets where the function could not begin: for it, that is no failure."""
        outcome = Outcome("unstarted", reason=str(exc))
        cancelled = asyncio.CancelledError(outcome.reason)
        self._told = Told(cancelled, outcome)
        return cancelled


def _once(run: Call) -> Call:
    """Return a call that can be awaited once."""
    has_run = False

    async def call() -> Any:
        nonlocal has_run
        if has_run:
            raise ConfigurationError(
                "a middleware may await call() once, because the function runs once in an attempt; give the task "
                "retries=, or enqueue it again"
            )
        has_run = True
        return await run()

    return call
