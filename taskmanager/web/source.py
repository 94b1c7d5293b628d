"""Where the dashboard looks, and where it acts: one file, or a manager of this process.

A look opens the file to read only, in a thread, as the command line does. Looks that ask the same within a second share
one answer, so ten viewers cost what one costs. An action opens the file as an application does; every instance notices
within its `store_poll`. A manager without a file is asked in its memory.

A server may load the application, and even ask it for a page, before it forks its workers. Threads do not come along
into a forked process, so it begins with threads, locks and answers of its own.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, TypeVarTuple

from taskmanager.console.observer import Watch
from taskmanager.console.oneself import InstanceObserver
from taskmanager.console.overview import Overview
from taskmanager.engine.engine import Engine
from taskmanager.manager import TaskManager
from taskmanager.model.clock import Clock, SystemClock
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.gil import LendingUntil
from taskmanager.store.memory import MemoryStore
from taskmanager.store.place import Place
from taskmanager.store.protocol import Store
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.task_views import TaskView, of_memory

SHARED_S: Final = 1.0
"""How long an answer is good for others who ask the same."""
SAME_S: Final = 5.0
"""How long a page may stay the same although nobody writes: ages and windows of time go on."""
MAX_SHARED: Final = 256
READERS: Final = 2
"""Threads that read. More would only take the processor from the application."""
READ_PATIENCE_S: Final = 0.5
"""How long a look waits for a file that another program keeps to itself."""

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Source:
    """One database, or one manager. `taskmanager web` has no `manager`, and a manager in memory has no `place`."""

    def __init__(self, place: Place | None, manager: TaskManager | None = None) -> None:
        self.place = None if place is None else place.for_many_looks()
        self.manager = manager
        self.clock: Clock = SystemClock()
        self._begin()

    def _begin(self) -> None:
        """Begin with what belongs to this process alone."""
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="taskmanager-web")
        self._lending = LendingUntil()
        self._shared: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}
        self._traces: Hashable = None
        self._same_since_s = self.clock.elapsed_s()
        self._watching = threading.Lock()
        self._watch: Watch | None = None
        self._is_watch_old = False
        self._observer: tuple[Engine, InstanceObserver] | None = None

    def __repr__(self) -> str:
        return f"<Source {self.place or 'in memory'}, {len(self._shared)} answers shared>"

    async def read(self, ask: Callable[Concatenate[Session, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the answer of a function that reads a connection, all of it at one moment.

        Raises `StoreUnavailable` or `StoreError` if the file cannot be read, and says what to do.
        """

        def work(connection: Session) -> R:
            return ask(connection, *args, **kwargs)

        await self._write_history()
        return await self.aside(self._read, work)

    async def _write_history(self) -> None:
        """Let the manager write the memory-only tasks that have ended, so that lists show them.

        It keeps them for its next snapshot, which may be a minute away. While the file cannot be written, the page
        shows what is in it.
        """
        engine = self._keeping_history()
        if engine is not None:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(READ_PATIENCE_S):
                    await self.share("history", engine.life.flush)

    def _keeping_history(self) -> Engine | None:
        """Return the engine of the manager, if it has memory-only tasks that have ended and are not written yet."""
        engine = self.running()
        return engine if engine is not None and engine.writer.outbox.unsaved_history_count else None

    async def aside(self, work: Callable[[*Ts], R], *args: *Ts) -> R:
        """Do something that may wait for a disk or a server, in a thread."""
        if self._pid != os.getpid():
            self._begin()
        return await self._lending.until(asyncio.get_running_loop().run_in_executor(self._threads, work, *args))

    def _read(self, work: Callable[[Session], R]) -> R:
        if self.place is None:
            return self._in_memory().look(work)
        with self.place.read(patience_s=READ_PATIENCE_S) as connection, connection.snapshot():
            return work(connection)

    async def look(self, ask: Callable[Concatenate[Session, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the same as `read`, and share the answer for a second. All arguments must be hashable."""
        key = (ask, args, tuple(sorted(kwargs.items())))
        return await self.share(key, lambda: self.read(ask, *args, **kwargs))

    async def mark(self) -> Hashable | None:
        """Return a mark that changes with each write, and every `SAME_S`.

        It is None soon after a write, while a shared answer may be older than that.
        """
        if self.place is None or self._keeping_history() is not None:
            return None
        try:
            traces = await self.share(self.place.traces, partial(self.aside, self.place.traces), for_s=0.0)
        except StoreError:  # the look says it
            return None
        now_s = self.clock.elapsed_s()
        if traces != self._traces:
            self._traces, self._same_since_s = traces, now_s
        return (traces, now_s // SAME_S) if now_s - self._same_since_s > 2 * SHARED_S else None

    async def share(self, key: Hashable, make: Callable[[], Awaitable[R]], *, for_s: float = SHARED_S) -> R:
        """Return what `make` makes, or what it has made for this key within that time, or is making."""
        loop = asyncio.get_running_loop()
        now_s = self.clock.elapsed_s()
        until_s, task = self._shared.get(key, (0.0, None))
        if task is None or task.get_loop() is not loop or (task.done() and now_s >= until_s):
            self._forget(now_s)
            task = loop.create_task(_awaited(make()), name="taskmanager-web-look")
            task.add_done_callback(_note_fault)
            self._shared[key] = now_s + for_s, task
        try:
            return await asyncio.shield(task)  # a viewer who leaves does not take the answer of the others along
        except Exception:
            self._shared.pop(key, None)
            raise

    def _forget(self, now_s: float) -> None:
        for key, (until_s, task) in list(self._shared.items()):
            if task.done() and (now_s >= until_s or len(self._shared) >= MAX_SHARED):
                del self._shared[key]

    async def overview(self) -> Overview:
        """Return the overview, as `status` shows it, at most a second old."""
        return await self.share("overview", self._overview)

    async def _overview(self) -> Overview:
        engine = self.running()
        if engine is not None:
            if self._observer is None or self._observer[0] is not engine:
                self._observer = engine, InstanceObserver(engine)
            return await self._observer[1].overview_aside()
        return await self.aside(self._watched)

    def _watched(self) -> Overview:
        if self.place is None:
            raise _not_running()
        with self._watching:
            if self._watch is None:
                self._watch = Watch(self.place, self.clock, partial(self.place.read, patience_s=READ_PATIENCE_S))
            if self._is_watch_old:
                self._is_watch_old = False
                self._watch.look_again()
            self._watch.look()
            if self._watch.fault is not None or self._watch.last is None:
                raise StoreUnavailable(self._watch.fault or f"{self.place} cannot be read")
            return self._watch.last

    def running(self) -> Engine | None:
        """Return the engine of the manager, if it runs in this event loop."""
        if self.manager is None or self.manager._instance.is_of_another_loop():  # noqa: SLF001  # a part of the package
            return None
        return self.manager._engine()  # noqa: SLF001  # as above

    def in_memory(self, task_id: str) -> TaskView | None:
        """Return a task that the manager has in its memory, such as a memory-only one that runs."""
        if self.manager is None or self.running() is None:
            return None
        live = self.manager._instance.find_live(task_id)  # noqa: SLF001  # as above
        return None if live is None else of_memory(live.row(), live.attempts_due)

    def ids_in_memory_like(self, part: str, limit: int) -> list[str]:
        """Return ids of tasks in the memory of the manager that begin or end with `part`, at most `limit`."""
        engine = self.running()
        if engine is None or not part:
            return []
        found = (each for each in list(engine.live) if each.startswith(part) or each.endswith(part))
        return list(islice(found, limit))

    def _in_memory(self) -> MemoryStore:
        engine = None if self.manager is None else self.manager._engine()  # noqa: SLF001  # as above
        if engine is None or not isinstance(engine.store, MemoryStore):
            raise _not_running()
        return engine.store

    async def act(self, work: Callable[[Store], Awaitable[R]]) -> R:
        """Open the file as an application does, and return what `work` on it returns. This never creates a file.

        A manager in memory must run in this event loop: it would not hear of what is written here from another one.
        """
        if self.place is None and self.running() is None:
            raise _not_running()
        try:
            return await (work(self._in_memory()) if self.place is None else self._at(self.place, work))
        finally:
            self.look_again()
            if (engine := self.running()) is not None:
                engine.life.wants_claim.set()  # what was written may wait for somebody: a memory store is not polled

    async def _at(self, place: Place, work: Callable[[Store], Awaitable[R]]) -> R:
        await self.read(_is_there)  # it is there, is ours, and has our schema
        store = place.new_store()
        try:
            await store.open()
            return await work(store)
        finally:
            await store.close()

    def look_again(self) -> None:
        """Forget what was seen, so that whoever has acted sees the outcome."""
        self._shared.clear()
        self._is_watch_old = True  # a thread may be at it, and find what was there before
        if self._observer is not None:
            self._observer[1].look_again()


def _note_fault(task: asyncio.Task[Any]) -> None:
    """Take note of the fault of a look. All who waited for it may have left."""
    if not task.cancelled():
        task.exception()


async def _awaited(what: Awaitable[R]) -> R:
    return await what


def _is_there(_connection: Session) -> None:
    """Ask nothing: to open the file is the question."""


def _not_running() -> StoreUnavailable:
    text = "the manager keeps its tasks in memory, and does not run here"
    return StoreUnavailable(f"{text}; start it in the event loop that serves this page")
