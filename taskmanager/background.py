"""Enqueues tasks once the code around them has succeeded: like Starlette's `BackgroundTasks`, but kept."""

import contextlib
import threading
import traceback
from collections.abc import Callable
from typing import Final, ParamSpec, final

from taskmanager.engine.intake.intake import Intake
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.outcome import extra_of
from taskmanager.model.errors import ConfigurationError, TaskManagerError
from taskmanager.model.logger import logger
from taskmanager.model.wording import counted
from taskmanager.task import Submitter, TaskCall, bound_call

P = ParamSpec("P")

_SENDING: Final = frozenset({("fastapi.routing", "starlette.responses"), ("contextlib", "fastapi.routing")})


@final
class Background:
    """Collects the tasks of one route or one block. Get it with `Depends(manager.background)`."""

    __slots__ = ("_has_succeeded", "_intake", "_lock", "_made", "_submitter")

    def __init__(self, intake: Intake, submitter: Submitter) -> None:
        self._intake = intake
        self._submitter = submitter
        self._made: list[LiveTask] = []
        self._has_succeeded: bool | None = None
        # A synchronous route adds from its thread, and may have left a thread of its own behind.
        self._lock = threading.Lock()

    def add_task(self, func: Callable[P, object] | TaskCall[P, object], /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Check the call now, hand the task over later, and return its id. Any thread may call it.

        `func` is a task, with or without options. Raises what `enqueue` raises for a wrong call, and
        `ConfigurationError` for a plain function. If the code around has succeeded already, as in the body of a
        streaming response, the task is handed over at once. If it has failed, this raises.
        """
        definition, options = bound_call(func, self._submitter)
        live = self._intake.make(definition, options, args, kwargs)
        with self._lock:
            if self._has_succeeded is None:
                self._made.append(live)
                return live.task_id
        if not self._has_succeeded:
            raise ConfigurationError(
                f"task {definition.name} is added after the code around it has failed; use its enqueue() instead"
            )
        self._intake.hand_over(live)
        return live.task_id

    def __repr__(self) -> str:
        return f"<Background {len(self._made)} tasks>"

    def hand_over(self) -> None:
        """Enqueue the tasks: the code around them has succeeded. Raise the first refusal after trying them all."""
        refusal: TaskManagerError | None = None
        for live in self._settle(True):
            try:
                self._intake.hand_over(live)
            except TaskManagerError as exc:
                text = "background task %s (%s) is not accepted: %s"
                logger.error(text, live.definition.name, live.task_id, exc, extra=extra_of(live))
                refusal = refusal or exc
        if refusal is not None:
            raise refusal

    def broken_off(self, exc: BaseException) -> None:
        """Drop the tasks if the route has failed. If only the sending of its response has, enqueue them."""
        if came_from_sending(exc):
            # What is refused is logged; the exception that is on its way is the one to be raised.
            with contextlib.suppress(TaskManagerError):
                self.hand_over()
        elif dropped := self._settle(False):
            names = ", ".join(f"{live.definition.name} ({live.task_id})" for live in dropped)
            how_many = counted(len(dropped), "background task")
            logger.info("dropped %s of a route or block that failed: %s", how_many, names)

    def _settle(self, has_succeeded: bool) -> list[LiveTask]:
        with self._lock:
            self._has_succeeded = has_succeeded
            made, self._made = self._made, []
            return made


def came_from_sending(exc: BaseException) -> bool:
    """Return whether the exception came while the response was being sent, so that the route had succeeded.

    FastAPI ends a dependency of scope "request" after the response, and throws in what went wrong there: a client that
    is gone, a body or a plain background function that raised, a server that cancels. Only the way of the exception
    tells this from a failure of the route: it came out of a response that FastAPI itself had called, or out of the
    block in which FastAPI produces server-sent events, which ends first.
    """
    caller = ""
    for frame, _ in traceback.walk_tb(exc.__traceback__):
        name = str(frame.f_globals.get("__name__", ""))
        if (caller, name) in _SENDING:
            return True
        caller = name
    return False
