"""Calls the function of an attempt where more than that is to be done: the inputs of a workflow's node are read first,
the function runs in a child process, or middleware is around it.

This is loaded when the first such task runs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, Final, NamedTuple

from taskmanager.engine.run.child import ChildCall, ChildReply, News
from taskmanager.engine.run.lanes import BrokenProcess, CannotStart, ProcessLane, ThreadLane
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.outcome import Outcome, extra_of, failure_in_words, outcome_of
from taskmanager.model.context import current_task
from taskmanager.model.errors import ArgumentError, ConfigurationError, StoreError, StoreUnavailable
from taskmanager.model.hooks import Middleware
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError, TaskResult, trusted_code
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.wording import counted
from taskmanager.model.workflows import NodeStart

Call = Callable[[], Awaitable[Any]]

READ_AGAIN_S: Final = 0.25
"""The pause before inputs are read again from a store that cannot be read now."""


async def take_inputs(attempt: Attempt, is_stopping: Callable[[], bool]) -> Outcome | None:
    """Give the attempt its arguments, with the inputs among them. Return the outcome if its code must not run.

    What other nodes came to is read now, once the start is committed, and not when the task is made: whoever makes it
    may know neither the function nor the codec, and a value that a thousand nodes take would be written a thousand
    times. Nothing of this is an attempt: if the code must not run, the task ends, or waits, without one. A store that
    cannot be read now is waited for, until the manager stops.
    """
    while True:
        try:
            return _begin(attempt, await attempt.node_start())
        except StoreUnavailable:
            if is_stopping():
                return Outcome("unstarted")
            await asyncio.sleep(READ_AGAIN_S)
        except StoreError as exc:
            return _refused(BuiltInTaskCode.WORKFLOW_CHECK_FAILED, f"the workflow cannot be looked at: {exc}")


def _begin(attempt: Attempt, start: NodeStart | None) -> Outcome | None:
    if start is None:
        return _refused(BuiltInTaskCode.WORKFLOW_STOPPED, "its workflow is not in the store any more")
    if start.is_cancelled or start.workflow_status == "CANCELLED":
        return _refused(BuiltInTaskCode.WORKFLOW_STOPPED, f"workflow {start.workflow_id} is cancelled")
    if start.workflow_status == "PAUSED" or start.waits:
        return Outcome("held")
    live, codec = attempt.live, attempt.live.definition.arguments
    attempt.workflow_id = start.workflow_id
    try:
        attempt.arguments = codec.decode_with(live.args_text or "[]", live.kwargs_text or "{}", start.inputs)
    except ArgumentError as exc:
        return _refused(BuiltInTaskCode.ARGUMENT_MISMATCH, str(exc))
    return None


def _refused(code: BuiltInTaskCode, message: str) -> Outcome:
    return Outcome("refused", error=TaskError(code, message))


def child_call(
    attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any], step: Definition | None = None
) -> ChildCall:
    """Return what a child is sent to run this attempt, or a step of it that is the function of another task."""
    live = attempt.live
    definition = step or live.definition
    return ChildCall(
        definition.module, definition.qualname, args, kwargs, live.task_id, definition.name,
        attempt.number, attempt.tags, attempt.started_at, live.timeout_s, live.scheduled_for,
    )  # fmt: skip


def hear(attempt: Attempt, news: News) -> None:
    """Take what the code of an attempt reports from its child, as if it were reported here."""
    for entry in news.entries:
        attempt.log(*entry)
    if news.progress:
        attempt.progress(*news.progress)
    extra = extra_of(attempt.live)
    for fields in news.records:
        logger.pass_on({**extra, **fields})
    if news.dropped_count:
        logger.warning(
            "%s of task %s (%s) were dropped: its child process logs more than can be passed on",
            counted(news.dropped_count, "log record"),
            extra["task_name"],
            extra["task_id"],
            extra=extra,
        )


def outcome_of_reply(attempt: Attempt, reply: ChildReply) -> Outcome:
    """Return the outcome of a reply from a child. Raises `TypeError` for a value that is a mistake."""
    if reply.code is not None:
        return Outcome("failed", error=error_in(reply))
    if reply.words is not None:
        return failure_in_words(attempt.live.definition, reply.kind or Exception, reply.words, reply.trace)
    if reply.lost is not None:
        return Outcome("ok", error=TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, reply.lost))
    return outcome_of(reply.value)


def error_in(reply: ChildReply) -> TaskError:
    """Return the error that the function has returned."""
    return TaskError(trusted_code(reply.code or ""), reply.words or "", reply.value)


def outcome_of_crash(exc: BrokenProcess) -> Outcome:
    """Return the outcome of an attempt whose child has died."""
    tail = f"\nThe end of what it had written:\n{exc.tail}" if exc.tail else ""
    return Outcome("crashed", error=TaskError(BuiltInTaskCode.WORKER_CRASHED, str(exc)), reason=f"{exc}{tail}")


class Told(NamedTuple):
    """What the middleware got from the lane, a value or an exception, and what that means."""

    end: object
    outcome: Outcome
    raised: BaseException | None = None


class Surrounded:
    """One attempt with the middleware of the application around its function, in every lane.

    All of it runs on the loop, inside the attempt: in its slot, its time limit and its context. The function is the
    innermost call. What the outermost middleware returns or raises is what the attempt comes to. Beside that stands:

    - A request to stop wins, also over middleware that swallows its `CancelledError`. A function that swallows it, and
      returns a value, has ended with that value, as it has without middleware.
    - What a lane says beyond a value or an exception (a child that died, a result that did not come through) holds as
      long as the middleware hands on what it got.
    - If the lane has no thread, or no child, the function has not run: whatever the middleware makes of that, the task
      waits and is started again.
    - A thread cannot be ended, so the attempt lasts until its thread has ended (see `Runner`).
    """

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
        """Return what the lane has told with this value or exception; None if it told that with another, or nothing."""
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
