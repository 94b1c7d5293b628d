"""What an application hooks into its tasks: functions around each attempt."""

from collections.abc import Awaitable, Callable
from typing import Any

from taskmanager.model.context import TaskContext

Middleware = Callable[[TaskContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Runs around each attempt, in every lane, on the loop; what it returns is the result of the task."""


class Hooks:
    """The functions of one manager that are hooked in. Those that come later count too."""

    def __init__(self) -> None:
        self.middlewares: list[Middleware] = []
        """The first one is outermost."""

    def __repr__(self) -> str:
        return f"<Hooks {len(self.middlewares)} middlewares>"
