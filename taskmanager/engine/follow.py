"""Waiting for tasks that run elsewhere: their rows are read when the store has changed, a few at a time."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from taskmanager.engine.events import resolve, resolve_error
from taskmanager.engine.live_task import Ending, LiveTask
from taskmanager.engine.loops import AGAIN_AFTER_S
from taskmanager.model.errors import StoreUnavailable, unknown_task
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow
from taskmanager.model.result import TaskResult
from taskmanager.model.states import TaskStatus
from taskmanager.store.protocol import Store

PAGE: Final = 500
MAX_SEEN: Final = 10_000
"""Tasks whose last status is remembered for handles that nobody waits for any more."""


class Follower:
    """Ids whose end somebody here waits for, though this instance does not run them."""

    def __init__(self, store: Store, decode: Callable[[TaskRow], TaskResult[Any]]) -> None:
        self._store = store
        self._decode = decode
        self._waiting: dict[str, list[asyncio.Future[Ending]]] = {}
        self._listening: dict[str, list[Callable[[LiveTask], None]]] = {}
        self.last_status: dict[str, TaskStatus] = {}
        """As it was last seen, whoever looked and whatever for; the latest look stands last."""
        self._over: Ending | None = None
        self.is_owed = False
        """Whether a look has failed, so that there is one to make whatever the store says of changes."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, task_id: str) -> bool:
        """Whether somebody has asked for this task from afar."""
        return task_id in self._waiting or task_id in self.last_status

    def __repr__(self) -> str:
        return f"<Follower of {len(self._waiting)} tasks>"

    async def watch(self, task_id: str, came_here: Callable[[LiveTask], None] | None = None) -> Ending:
        """The ending of a task, whoever runs it; a store that cannot be read is waited for.

        `came_here` is called when this instance claims it. Raises `UnknownTask` when there is no such record.
        """
        if self._over is not None:  # who comes in the last turns of a stop would wait for ever
            return self._over
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task_id, []).append(future)
        if came_here is not None:
            self._listening.setdefault(task_id, []).append(came_here)
        try:
            try:
                await self.look([task_id])
            except StoreUnavailable as exc:
                logger.debug("task %s is followed as soon as the store can be read: %s", task_id, exc)
                self.is_owed = True
            return await future
        finally:
            self._leave(task_id, future)
            if came_here is not None and task_id in self._listening:
                self._listening[task_id].remove(came_here)
                if not self._listening[task_id]:
                    del self._listening[task_id]

    def follow(self, task_id: str, waiters: "list[asyncio.Future[Any]]") -> None:
        """Watch it for those who wait for it already, and are told."""
        watching = asyncio.get_running_loop().create_task(self.watch(task_id), name="taskmanager-follower")
        watching.add_done_callback(partial(self._pass_on, task_id, waiters))

    def _pass_on(self, task_id: str, waiters: "list[asyncio.Future[Any]]", done: "asyncio.Task[Ending]") -> None:
        if done.cancelled():  # by somebody who cancels every task there is
            asyncio.get_running_loop().call_later(AGAIN_AFTER_S, self.follow, task_id, waiters)
            return
        exc = done.exception()
        for waiter in waiters:
            if exc is not None:
                resolve_error(waiter, exc)
            else:
                resolve(waiter, done.result())

    def _leave(self, task_id: str, future: "asyncio.Future[Ending]") -> None:
        futures = self._waiting.get(task_id)
        if futures and future in futures:
            futures.remove(future)
            if not futures:
                del self._waiting[task_id]

    def came_here(self, live: LiveTask) -> None:
        """A row was claimed."""
        for listener in self._listening.get(live.task_id, ()):
            listener(live)

    def saw(self, task_id: str, status: TaskStatus) -> None:
        """What its handles tell from now on, where the task is not in memory."""
        self.last_status.pop(task_id, None)
        self.last_status[task_id] = status
        if len(self.last_status) > MAX_SEEN:
            del self.last_status[next(iter(self.last_status))]

    async def look_at_all(self) -> None:
        """Read every followed row once."""
        task_ids, self.is_owed = list(self._waiting), True
        for start in range(0, len(task_ids), PAGE):
            await self.look(task_ids[start : start + PAGE])
        self.is_owed = False

    async def look(self, task_ids: list[str]) -> None:
        """Read these rows, and wake the waiters of those that have ended or do not exist."""
        rows = await self._store.fetch_ids(task_ids)
        for task_id in task_ids:
            row = rows.get(task_id)
            if row is None:
                self._fail(task_id, unknown_task(task_id))
                continue
            status = TaskStatus(row.status)
            if status.is_terminal:
                self.notice(task_id, Ending(status, self._decode(row)))
            elif task_id in self._waiting:
                self.saw(task_id, status)

    def notice(self, task_id: str, ending: Ending) -> None:
        """The task has ended."""
        if task_id not in self:
            return
        futures = self._waiting.pop(task_id, None)
        for future in futures or ():
            resolve(future, ending)
        if self._over is None:  # that one is no end, only the last that is heard of it here
            self.saw(task_id, ending.status)

    def _fail(self, task_id: str, exc: Exception) -> None:
        for future in self._waiting.pop(task_id, ()):
            resolve_error(future, exc)

    def end_all(self, ending: Ending) -> None:
        """The manager stops: nobody will read the store for these waiters any more, nor for late ones."""
        self._over = ending
        for task_id in list(self._waiting):
            self.notice(task_id, ending)
