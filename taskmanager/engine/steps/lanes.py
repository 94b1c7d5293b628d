"""One try of a step: its function runs in place, in a thread or in a child process, and has a time limit."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from taskmanager.codec.results import ResultCodec
from taskmanager.engine.run.lanes import BrokenProcess, ProcessLane, ThreadLane
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.outcome import mistake_in
from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.result import Snooze, TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode, Lane
from taskmanager.model.steps import Identity, StepContext, running_step
from taskmanager.rules.steps import StepOptions


@dataclass(eq=False, slots=True)
class Call:
    """One call of a step in this run."""

    identity: Identity
    context: StepContext
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: StepOptions
    lane: Lane
    definition: Definition | None
    digest: str | None
    results: ResultCodec
    must_be_saved: Sequence["asyncio.Future[None]"]
    """Errors before which the code has gone on with this call. That is committed before its function runs."""
    thread: "asyncio.Future[Any] | None" = field(default=None)

    def __repr__(self) -> str:
        return f"<Call {self.context.key} {self.context.name!r}>"


class Refused(Exception):
    """One try of a step that has failed without an exception of its function."""

    def __init__(self, error: TaskError) -> None:
        super().__init__(error)
        self.error = error


class StepLanes:
    """Where the steps of one attempt run. `on_idle` is called when a thread has ended."""

    def __init__(
        self, attempt: Attempt, threads: ThreadLane, processes: ProcessLane, on_idle: Callable[[], None]
    ) -> None:
        self._attempt, self._threads, self._processes = attempt, threads, processes
        self._on_idle = on_idle
        self.busy: set[asyncio.Future[Any]] = set()
        """The threads that run, also for a step that has been given up."""
        self.away_count = 0
        """How many steps wait for their thread or child process."""

    def __repr__(self) -> str:
        return f"<StepLanes, {len(self.busy)} threads busy>"

    async def run(self, call: Call) -> Any:
        """Return what the function returns. Raises what it raises, or `Refused`."""
        limit_s = call.options.timeout_s
        token, limit = running_step.set(call.context), asyncio.timeout(limit_s)
        try:
            async with limit:
                value = await (self._on_loop(call) if call.lane == "async" else self._away(call))
                return _checked(await value if inspect.isawaitable(value) else value, call.context.name)
        except TimeoutError as exc:
            if not limit.expired():
                raise
            words = f"step {call.context.name} took longer than its timeout of {limit_s:g} s"
            raise Refused(TaskError(BuiltInTaskCode.TASK_TIMEOUT, words)) from exc
        finally:
            with contextlib.suppress(ValueError):  # the loop is gone, and the coroutine is collected somewhere else
                running_step.reset(token)

    async def _on_loop(self, call: Call) -> Any:
        return await call.fn(*call.args, **call.kwargs)

    async def _away(self, call: Call) -> Any:
        self.away_count += 1
        try:
            return await (self._in_thread(call) if call.lane == "thread" else self._in_child(call))
        finally:
            self.away_count -= 1

    async def _in_thread(self, call: Call) -> Any:
        future = call.thread = self._threads.submit(partial(call.fn, *call.args, **call.kwargs), copy_context())
        self.busy.add(future)
        future.add_done_callback(self._thread_has_ended)
        ended = await asyncio.shield(future)
        try:
            if ended.error is not None:
                raise ended.error
            return ended.value
        finally:
            del ended, future  # the exception refers to this frame, which must not hold it

    async def _in_child(self, call: Call) -> Any:
        from taskmanager.engine.run.calls import child_call, hear, outcome_of_crash, outcome_of_reply

        sent = child_call(self._attempt, call.args, call.kwargs, call.definition)
        try:
            reply = await self._processes.run(sent, lambda: None, partial(hear, self._attempt))
            outcome = outcome_of_reply(self._attempt, reply)
        except BrokenProcess as exc:
            outcome = outcome_of_crash(exc)
        if outcome.error is not None:
            raise Refused(outcome.error)
        return outcome.value

    def _thread_has_ended(self, future: "asyncio.Future[Any]") -> None:
        self.busy.discard(future)
        self._on_idle()


def _checked(value: Any, name: str) -> Any:
    """Return the value of a step. Raises `TypeError` for one that is a mistake."""
    if isinstance(value, Snooze | TaskResult):
        raise TypeError(f"step {name} returned a {type(value).__name__}; return a value, or raise an exception")
    if mistake := mistake_in(value):
        raise mistake
    return value
