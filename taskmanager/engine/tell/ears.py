"""One function of the application that listens: what it is still to be told, and how that has gone."""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import CoroutineType
from typing import Final

from taskmanager.codec.annotations import is_async, named_function
from taskmanager.engine.run import child
from taskmanager.engine.tell.events import Noted
from taskmanager.engine.words.outcome import comes_from_signal, mistake_in, name_of
from taskmanager.model.hooks import EventKind, Listener, TaskEvent
from taskmanager.model.logger import logger
from taskmanager.model.wording import counted

MOST_WAITING: Final = 10_000
"""Events that wait for one function. Newer ones are dropped."""


class Ear:
    """One function that listens, what it is still to be told, and how that has gone."""

    def __init__(self, fn: Listener) -> None:
        self.fn, self.is_async = fn, is_async(fn)
        named = named_function(fn)
        self.name = f"{named.__module__}:{named.__qualname__}"
        self.kinds: frozenset[EventKind] = frozenset()
        self.waiting: deque[Noted] = deque()
        self.task: asyncio.Task[None] | None = None
        self.dropped_count = self.failed_count = 0
        self.last_failure = ""
        self.is_left_behind = False

    def __repr__(self) -> str:
        return f"<Ear {self.name}, {len(self.waiting)} waiting>"

    def take(self, events: Sequence[Noted]) -> None:
        """Let these wait, as far as there is room."""
        room = MOST_WAITING - len(self.waiting)
        self.waiting.extend(events if room >= len(events) else events[: max(0, room)])
        if room < len(events):
            if not self.dropped_count:
                text = "listener %s does not keep up: %s wait for it, and newer ones are dropped (logged once)"
                logger.warning(text, self.name, counted(MOST_WAITING, "event"))
            self.dropped_count += len(events) - max(0, room)

    def hear(self, event: TaskEvent) -> None:
        """Call it, if it is sync."""
        try:
            found = self.fn(event)
        except BaseException as exc:  # noqa: BLE001  # SystemExit too ends nothing but this call
            if child.forked_by is self:
                child.end_copy(exc)
            self.failed(exc)
        else:
            self._has_returned(found)

    async def hear_async(self, event: TaskEvent) -> None:
        """Call it and await it, if it is async."""
        try:
            found = await self.fn(event)  # type: ignore[misc]  # it is async
        except BaseException as exc:  # it may be anything, as in a task
            if child.forked_by is self:
                child.end_copy(exc)
            if isinstance(exc, asyncio.CancelledError) or comes_from_signal(exc):
                raise
            if not self.is_left_behind:  # the stop has named it, and Python raises in it when it is collected
                self.failed(exc)
        else:
            self._has_returned(found)

    def _has_returned(self, found: object) -> None:
        if child.forked_by is self:
            child.end_copy(None)
        if isinstance(found, CoroutineType) and (mistake := mistake_in(found)) is not None:
            self.failed(mistake)

    def failed(self, exc: BaseException) -> None:
        """Count what it has raised, and log the first of it."""
        self.failed_count += 1
        self.last_failure = name_of(type(exc))
        if self.failed_count == 1:
            text = "listener %s has raised %s, which harms no task; it hears further events (logged once)"
            logger.warning(text, self.name, self.last_failure, exc_info=exc)

    def trouble(self) -> str | None:
        """Return what there is to say of it, or None."""
        said = []
        if self.failed_count:
            said.append(f"has raised {counted(self.failed_count, 'time')}, last {self.last_failure}")
        if self.dropped_count:
            said.append(f"{counted(self.dropped_count, 'event')} dropped")
        return ", ".join(said) or None
