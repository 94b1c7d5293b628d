"""A start that nobody stops: its loop was closed under it, or the program ends while it is up.

Nothing of it runs any more, and its memory is whole. So this module writes what a stop without a drain would write. It
uses one plain connection, and the same statements and preconditions. A loop that still runs in another thread is asked
to stop instead. A forked child writes nothing, because the start belongs to its parent.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final, Protocol

from taskmanager.engine.engine import Engine
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.stop import Release
from taskmanager.engine.writes import WriterListener
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted

WRITE_PATIENCE_S: Final = 1.5
"""How long to try a file that cannot be written. The last wait for SQLite's lock makes it two seconds."""
STOP_PATIENCE_S: Final = 3.0
"""How long to wait for the loop of another thread to stop. The limit of that stop itself is two seconds. Whenever the
loop has written something meanwhile, the wait begins again.
"""

_unstopped: Final[set["Unstopped"]] = set()
"""Keeps them alive, because the application may keep nothing of a manager but its tasks."""


class Start(Protocol):
    """The lifecycle of the start."""

    async def stop_now(self) -> None: ...
    def note_abandoned(self, *, is_loop_gone: bool) -> None: ...
    async def unregister(self, unsaved: int) -> None: ...
    def let_go_when_over(self) -> None: ...


class Unstopped:
    """Watches over one start, from the moment it is up until its stop has ended."""

    def __init__(self, engine: Engine, listener: WriterListener, start: Start) -> None:
        self._store, self._intake, self._inbox = engine.store, engine.intake, engine.inbox
        self._live, self._runner, self._writer = engine.live, engine.runner, engine.writer
        self._settings, self._life = engine.settings, engine.life
        self._engine = engine
        self._listener = listener
        self._start = start
        self._pid = os.getpid()
        self._loop = self._life.loop
        self._release = Release(engine)
        self._is_over = self._has_left = False
        self._noted: list[LiveTask] | None = None
        """What was unfinished when the loop of another thread was asked to stop, and again when its door was closed."""
        self._writing = threading.Lock()
        """The heartbeat's thread, a next start and the program's end may all find a closed loop. One of them writes."""

    def __repr__(self) -> str:
        return f"<Unstopped {'up' if self in _unstopped else 'over'}, {self._engine!r}>"

    def begin(self) -> None:
        """Note that the start is up."""
        _unstopped.add(self)

    def end(self) -> None:
        """Note that the start was stopped, or belongs to another process."""
        self._is_over = True
        _unstopped.discard(self)

    def leave(self) -> None:
        """Write what is left, or ask for the stop, because the program ends."""
        if os.getpid() != self._pid or _running_loop() is not None:
            return
        if self._loop.is_running():
            self._ask_to_stop()
            return
        try:
            with self._writing:
                self._write_here(is_last=True)
        except OSError as exc:  # there are no descriptors for another loop
            self.end()
            self._say(self._unfinished(), str(exc))

    def leave_soon(self) -> bool:
        """Write what is left of a closed loop while the program goes on. Return False when the caller must try again.

        The heartbeat's thread calls this. Another thread that is writing waits for the heartbeat's thread, so this one
        must never wait for that other thread.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            return self._write_here(is_last=False)
        except OSError:  # as above
            return False
        finally:
            self._writing.release()

    def _write_here(self, *, is_last: bool) -> bool:
        """Write in a loop of this thread. Return False when the caller must try again."""
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(self._write_once(is_last=is_last))

    def _ask_to_stop(self) -> None:
        """Ask the loop of another thread to stop: it runs until the last line of the program, and changes memory."""
        lives, reason = self._unfinished(), None
        self._noted = lives
        stopping = asyncio.run_coroutine_threadsafe(self._start.stop_now(), self._loop)
        try:
            self._wait_while_it_writes(stopping)
        except TimeoutError:
            reason = f"its event loop did not stop within {STOP_PATIENCE_S:g} s"
        except StoreError as exc:
            reason = str(exc)
        self._say(lives, reason)

    def _wait_while_it_writes(self, stopping: "Future[None]") -> None:
        """Wait for the stop as long as it writes: threads may have handed over more than one wait is enough for."""
        while True:
            written_s = self._writer.written_s
            try:
                return stopping.result(STOP_PATIENCE_S)
            except TimeoutError:
                if self._writer.written_s == written_s:
                    raise

    def note_unfinished(self) -> None:
        """Note the last arrivals, now that the door is closed, if the end of the program has asked for the stop."""
        if self._noted is not None:
            self._noted += self._unfinished()

    async def write(self) -> None:
        """Write what memory holds, and let go of threads and descriptors. A second caller waits, and does nothing.

        This runs in another loop than that of the start, which never runs again.
        """
        with self._writing:
            await self._write_once(is_last=True)

    async def _write_once(self, *, is_last: bool) -> bool:
        """Return False if the file could not be written, and this is not the last try."""
        if self._is_over:
            return True
        is_done = True
        try:
            is_done = await self._write(is_last=is_last)
        finally:
            if is_done:
                self.end()
                self._start.let_go_when_over()
        return is_done

    async def _write(self, *, is_last: bool) -> bool:
        engine, reason = self._engine, None
        engine.leave_loop()
        self._intake.close()
        self._inbox.take_all()
        self._noted = lives = [*(self._noted or ()), *self._unfinished()]
        if not self._has_left:
            try:
                self._store.work_inline()
            except StoreError as exc:
                reason = str(exc)
                await self._forget_lost_file(lives)
            self._start.note_abandoned(is_loop_gone=True)
            self._has_left = True
        if reason is None:
            self._writer.start(self._listener)
        await self._release.cancel_memory_only()
        await self._release.release_waiting()
        if reason is None:
            unsaved = await self._writer.close(WRITE_PATIENCE_S)
            if unsaved and not is_last:
                return False
            reason = self._writer.degraded_reason if unsaved else None
            await self._start.unregister(unsaved)
        self._release.tell_everybody()
        await self._store.close()
        self._runner.threads.close()
        self._say(lives, reason)
        return True

    async def _forget_lost_file(self, lives: Iterable[LiveTask]) -> None:
        """Count nothing as committed if the file in which it stood is not there any more."""
        with contextlib.suppress(StoreError):
            if not await self._store.is_same_file():
                for live in lives:
                    if live.is_persisted:
                        live.saving.committed = None

    def _unfinished(self) -> list[LiveTask]:
        """Return what may be lost: tasks in memory, and ended ones that are not written. Some come twice."""
        found = [*self._live.values(), *self._writer.outbox.unsaved(), *self._inbox]
        return [live for live in found if not live.status.is_terminal or not live.is_saved]

    def _say(self, lives: Iterable[LiveTask], reason: str | None) -> None:
        """Log one line, if there was anything to lose."""
        count = Counter(_fate_of(live) for live in {id(live): live for live in lives}.values())
        del count[""]
        if not count:
            return
        written = counted(count["written"], "task") + (" was" if count["written"] == 1 else " were")
        text = f"{written} written for the next start"
        if count["interrupted"]:
            text += f", {count['interrupted']:,} recorded as interrupted"
        if count["kept"]:
            text += f", {count['kept']:,} left in the file as last committed"
        text += f", {count['lost']:,} lost"
        (logger.error if count["lost"] or reason else logger.warning)(
            "a manager on %s was started and never stopped: %s%s; use `async with manager:` or manager.run(main)",
            self._settings.database or "no file",
            text,
            f" ({reason})" if reason else "",
        )


def _fate_of(live: LiveTask) -> str:
    """Return what became of one task, as far as this process knows; empty if there is nothing to report."""
    if live.has_left:  # its row is free, because memory had no room for it; or it is another's
        return "written" if live.owner is None and not live.is_duplicate else ""
    if not live.is_persisted:
        return "lost" if live.status in (TaskStatus.CANCELLED, TaskStatus.INTERRUPTED, TaskStatus.RUNNING) else ""
    if not live.is_saved:
        return "lost" if live.saving.committed is None else "kept"
    if live.status is TaskStatus.INTERRUPTED:
        return "interrupted"
    if live.status is TaskStatus.RUNNING:  # noted as interrupted, and judged when its thread has ended
        return "written" if live.definition.requeue_on_interrupt else "interrupted"
    return "" if live.status.is_terminal else "written"


@atexit.register
def leave_unstopped() -> None:
    """Write at the end of the program what no stop has written."""
    for each in list(_unstopped):
        try:
            each.leave()
        except Exception:
            logger.critical("what a manager that was never stopped holds could not be written", exc_info=True)
