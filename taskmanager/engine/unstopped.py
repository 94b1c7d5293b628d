"""A start that nobody stops: its loop was closed under it, or the program ends while it is up.

Nothing of it runs any more, and its memory is whole. So what a stop without a drain would write is written all the
same, by one plain connection, with the same statements and preconditions. A loop that still runs, in another thread, is
asked to stop instead. A forked child writes nothing: what it has of its parent's start is the parent's.
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
from taskmanager.engine.releasing import cancel_memory_only, release_waiting, tell_everybody
from taskmanager.engine.writer import WriterListener
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted

WRITE_PATIENCE_S: Final = 1.5
"""How long a file that cannot be written is tried; with the last try of SQLite's lock that makes two seconds."""
STOP_PATIENCE_S: Final = 3.0
"""How long the loop of another thread may take for its stop, whose own limit is two seconds; as long again whenever it
has written something meanwhile.
"""

_unstopped: Final[set["Unstopped"]] = set()
"""Held here, because the application may keep nothing of a manager but its tasks."""


class Start(Protocol):
    """The lifecycle of the start."""

    async def stop_now(self) -> None: ...
    def leave_loop(self) -> None: ...
    def note_leftover(self, *, is_loop_gone: bool) -> None: ...
    async def unregister(self, unsaved: int) -> None: ...
    def let_go_when_over(self) -> None: ...


class Unstopped:
    """Of one start, from the moment it is up until its stop has ended."""

    def __init__(self, engine: Engine, listener: WriterListener, start: Start) -> None:
        self._engine = engine
        self._listener = listener
        self._start = start
        self._pid = os.getpid()
        self._loop = engine.loop
        self._is_over = False
        self._noted: list[LiveTask] | None = None
        """What was unfinished when the loop of another thread was asked to stop, and when its door was closed."""
        self._writing = threading.Lock()
        """The thread of the heartbeat, a next start and the end of the program may all find the loop closed."""

    def __repr__(self) -> str:
        return f"<Unstopped {'up' if self in _unstopped else 'over'}, {self._engine!r}>"

    def begin(self) -> None:
        """The start is up."""
        _unstopped.add(self)

    def end(self) -> None:
        """It was stopped, or it is another process's."""
        self._is_over = True
        _unstopped.discard(self)

    def leave(self) -> None:
        """The program ends."""
        if os.getpid() != self._pid or _running_loop() is not None:
            return
        if self._loop.is_running():
            self._ask_to_stop()
            return
        try:
            with self._writing:
                self._write_here()
        except OSError as exc:  # there are no descriptors for another loop
            self.end()
            self._say(self._unfinished(), str(exc))

    def leave_soon(self) -> bool:
        """The loop was closed, and the program goes on; False when that is to be tried again.

        Never waits for another thread that is at it, which waits for the thread of the heartbeat, where this is called.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            self._write_here()
        except OSError:  # as above
            return False
        finally:
            self._writing.release()
        return True

    def _write_here(self) -> None:
        """In a loop of this thread."""
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(self._write_once())

    def _ask_to_stop(self) -> None:
        """In its own thread the loop goes on until the last line of the program, and changes memory meanwhile."""
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
        """Threads may have handed over more, until the door was closed, than is written in that time."""
        while True:
            written_s = self._engine.writer.written_s
            try:
                return stopping.result(STOP_PATIENCE_S)
            except TimeoutError:
                if self._engine.writer.written_s == written_s:
                    raise

    def note_unfinished(self) -> None:
        """Note what has come in last, now that the door is closed, if the end of the program has asked for the stop."""
        if self._noted is not None:
            self._noted += self._unfinished()

    async def write(self) -> None:
        """Write what memory holds, from another loop than that of the start, which never runs again; and let go of its
        threads and descriptors. Whoever comes second waits for the first, and does nothing.
        """
        with self._writing:
            await self._write_once()

    async def _write_once(self) -> None:
        if self._is_over:
            return
        try:
            await self._write()
        finally:
            self.end()
            self._start.let_go_when_over()

    async def _write(self) -> None:
        engine, reason = self._engine, None
        self._start.leave_loop()
        engine.intake.close()
        engine.inbox.take_all()
        lives = self._unfinished()
        try:
            engine.store.work_inline()
            engine.writer.start(self._listener)
        except StoreError as exc:
            reason = str(exc)
            await self._forget_lost_file(lives)
        self._start.note_leftover(is_loop_gone=True)
        cancel_memory_only(engine, "the task started")
        release_waiting(engine)
        if reason is None:
            unsaved = await engine.writer.close(WRITE_PATIENCE_S)
            reason = engine.writer.degraded_reason if unsaved else None
            await self._start.unregister(unsaved)
        tell_everybody(engine)
        await engine.store.close()
        engine.runner.threads.close()
        self._say(lives, reason)

    async def _forget_lost_file(self, lives: Iterable[LiveTask]) -> None:
        """What stood in a file that is not there any more is not left in it."""
        with contextlib.suppress(StoreError):
            if not await self._engine.store.is_same_file():
                for live in lives:
                    if live.is_persisted:
                        live.saving.committed = None

    def _unfinished(self) -> list[LiveTask]:
        """What may be lost: all that is in memory, or has ended and is not written. Some of it twice."""
        engine = self._engine
        found = [*engine.live.values(), *engine.writer.outbox.unsaved(), *engine.inbox]
        return [live for live in found if not live.status.is_terminal or not live.is_saved]

    def _say(self, lives: Iterable[LiveTask], reason: str | None) -> None:
        """One line, where there was anything to lose."""
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
            self._engine.settings.database or "no file",
            text,
            f" ({reason})" if reason else "",
        )


def _fate_of(live: LiveTask) -> str:
    """What became of one task, as far as this process knows; nothing where there is no word to say of it."""
    if live.is_elsewhere:  # free in the file, where memory had no room for it; or another's
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
    """At the end of the program: write what no stop has written."""
    for each in list(_unstopped):
        try:
            each.leave()
        except Exception:
            logger.critical("what a manager that was never stopped holds could not be written", exc_info=True)
