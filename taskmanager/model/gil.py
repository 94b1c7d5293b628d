"""The interpreter lock (GIL), which an event loop that is never idle must lend to threads.

A thread that waits for the lock asks for it after 5 ms in which nobody has given it away. An event loop gives it away
in each of its turns, to look for events. Where some wait already, that takes a microsecond: too little for the thread
to wake up and take the lock, and enough for its 5 ms to begin anew. So beside a loop that is busy in turns of 1 ms, a
thread may wait for seconds, each time; and one commit needs the lock ten times.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

EVERY_S: Final = 0.001
"""How often the lock is lent to a thread that needs it for moments only."""
MOMENT_S: Final = 0.0001
"""Long enough for a thread to wake up."""
BUSY: Final = 0.5
"""A loop that has worked for this part of a while is busy. In the rest of it, the threads got the lock."""
LONGEST_S: Final = 0.05
"""How seldom, at most, a loop is looked at that is not busy, for it may become so."""
R = TypeVar("R")

_at_work: Final[set[threading.Thread]] = set()


def lend() -> None:
    """Let a thread that waits for the lock take it."""
    time.sleep(MOMENT_S)


@contextmanager
def at_work() -> Iterator[None]:
    """Say that this thread has something to do, for which nobody on a loop waits."""
    thread = threading.current_thread()
    _at_work.add(thread)
    try:
        yield
    finally:
        _at_work.discard(thread)


def any_at_work() -> bool:
    """Return whether a thread has said so. After a fork those of the parent process are not alive."""
    return any(each.is_alive() for each in tuple(_at_work))


class Lending:
    """Lends the lock to threads for as long as they are at work."""

    __slots__ = ("_every_s", "_is_at_work", "_loop")

    def __init__(self, is_at_work: Callable[[], object], every_s: float = EVERY_S) -> None:
        self._is_at_work = is_at_work
        self._every_s = every_s
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def fairly(cls, is_at_work: Callable[[], object]) -> "Lending":
        """Return one for threads that may keep the lock for long. They get it as often as beside any busy thread."""
        return cls(is_at_work, sys.getswitchinterval())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} every {self._every_s} s, {'idle' if self._loop is None else 'at work'}>"

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to lend, because the threads have got work. Call it on the loop."""
        if self._loop is not loop:
            if self._loop is not None:  # that one may have been closed before it heard of an end
                self._forget()
            self._loop = loop
            self._look_again(loop, self._every_s)

    def _forget(self) -> None:
        """Forget what was to be done for another loop."""

    def _look_again(self, loop: asyncio.AbstractEventLoop, after_s: float) -> None:
        loop.call_later(after_s, self._look, loop, after_s, time.thread_time())

    def _look(self, loop: asyncio.AbstractEventLoop, waited_s: float, used_s: float) -> None:
        if not self._is_at_work():
            if self._loop is loop:
                self._loop = None
        elif time.thread_time() - used_s > waited_s * BUSY:
            lend()
            self._look_again(loop, self._every_s)
        else:
            self._look_again(loop, min(waited_s * 2, LONGEST_S))


class LendingUntil(Lending):
    """Lends the lock until the threads have done what they were asked for."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: set[object] = set()
        super().__init__(self._asked.__len__)

    def until(self, done: "asyncio.Future[R]") -> "asyncio.Future[R]":
        """Lend the lock until this future is done, which a thread will set. Return the future."""
        self.begin(done.get_loop())
        self._asked.add(done)
        done.add_done_callback(self._asked.discard)
        return done

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Lend the lock until the block is done, which waits for a thread."""
        block = object()
        self.begin(asyncio.get_running_loop())
        self._asked.add(block)
        try:
            yield
        finally:
            self._asked.discard(block)

    def _forget(self) -> None:
        self._asked.clear()
