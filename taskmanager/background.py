"""Tasks that are handed over when the code around them has succeeded: Starlette's `BackgroundTasks`, kept."""

import logging
from collections.abc import Callable
from typing import Any, ParamSpec, final

from taskmanager.engine.definition import CallOptions, Definition
from taskmanager.engine.intake import Intake
from taskmanager.engine.live import LiveTask
from taskmanager.model.errors import ConfigurationError
from taskmanager.task import Task, TaskCall

P = ParamSpec("P")
logger = logging.getLogger("taskmanager")


@final
class Background:
    """Collects the tasks of one route or one block. Get it with `Depends(manager.background)`."""

    __slots__ = ("_intake", "_made")

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._made: list[LiveTask] = []

    def add_task(self, func: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Check the call now and hand the task over later; returns its id.

        `func` is a task, or a task with options. Raises what `enqueue` raises for a wrong call, and
        `ConfigurationError` for a plain function.
        """
        definition, options = _bound(func)
        live = self._intake.make(definition, options, args, kwargs)
        self._made.append(live)
        return live.task_id

    def __repr__(self) -> str:
        return f"<Background {len(self._made)} tasks>"

    def hand_over(self) -> None:
        """The code around them has succeeded."""
        made, self._made = self._made, []
        for live in made:
            self._intake.hand_over(live)

    def drop(self) -> None:
        """The code around them has failed."""
        if self._made:
            logger.info("%d background tasks are dropped, because what added them failed", len(self._made))
        self._made = []


def _bound(func: Any) -> tuple[Definition, CallOptions]:
    if isinstance(func, Task | TaskCall):
        return func.bound()
    raise ConfigurationError(f"{func!r} is not a task; decorate it with @manager.task, and it can be added")
