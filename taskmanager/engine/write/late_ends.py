"""How long changes wait that nobody asks for, and the thread that commits plain ends while the event loop is blocked.

Code of the application may hold the loop for seconds. An end that waits for the next commit would wait as long, and
would be taken for a crash if the process died meanwhile. So a thread keeps the deadline. It sends what was made when
the task ended, calls no code of the application, and changes no task: the loop does that when it goes on.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple

from taskmanager.engine.write.outbox import Outbox, Sent
from taskmanager.model.errors import StoreError
from taskmanager.model.record import Write
from taskmanager.store.protocol import CommitReport

AGAIN_S: Final = 0.05
"""The pause after a commit that could not be begun."""
MOST: Final = 512
"""Ends of one commit."""


class DueTime:
    """Work that may wait for a while: a timer, and whether its time has come."""

    def __init__(self, wait_s: float, on_due: Callable[[], None]) -> None:
        self._wait_s = wait_s
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self.is_now = False

    def begin(self) -> None:
        """There is work: its time comes after the wait, unless it is being waited for already."""
        if self.is_now:
            self._on_due()  # it came when there was nothing to do, and nobody may have looked since
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self.hurry)

    def shorten(self, wait_s: float) -> None:
        """Its time comes after this wait, which is shorter than the one that has begun."""
        if self.is_now:
            self._on_due()
        else:
            self.close()
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.hurry)

    def hurry(self) -> None:
        """Its time has come."""
        self.close()
        self.is_now = True
        self._on_due()

    def close(self) -> None:
        """The timer rings no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Patience:
    """How long changes wait that nobody asks for: plain ends, and tasks that were only accepted."""

    def __init__(self, wait_s: float, wake: Callable[[], None], outbox: Outbox) -> None:
        self._due = DueTime(wait_s, self._end)
        self.is_over = False
        """Whether all of them are written now."""
        self._wake = wake
        self._outbox = outbox
        self._rush_count = 0

    @property
    def is_rushed(self) -> bool:
        """Whether somebody waits for all that there is, so that every end is urgent."""
        return self._rush_count > 0

    def begin(self) -> None:
        """One more waits."""
        if not self.is_over:  # else the writer looks anyway
            self._due.begin()

    def renew(self) -> None:
        """None waits any more: the next one waits anew."""
        self.is_over = self._due.is_now = False

    def hurry(self) -> None:
        """Let those that wait be written now."""
        if self._outbox.waiting_count:
            self._due.hurry()

    def rush(self) -> None:
        """Let every end be urgent from now on, as in a stop."""
        self._rush_count += 1
        self.hurry()

    @contextlib.contextmanager
    def rushed(self) -> Iterator[None]:
        """Let every end be urgent inside this block."""
        self.rush()
        try:
            yield
        finally:
            self._rush_count -= 1

    def _end(self) -> None:
        if self._outbox.waiting_count:
            self.is_over = True
            self._wake()
        else:
            self.renew()

    def close(self) -> None:
        """The timer rings no more."""
        self._due.close()


class Late(NamedTuple):
    """Plain ends that the thread has taken, and the commit that it has begun with them."""

    entry_count: int
    ends: list[Sent]
    report: Coroutine[Any, Any, CommitReport]


BeginCommit = Callable[[Sequence[Write], asyncio.AbstractEventLoop], Coroutine[Any, Any, CommitReport]]


class LateEnds:
    """The thread, and the commit that it has begun, of one writer."""

    def __init__(self, outbox: Outbox, wait_s: float, begin_commit: BeginCommit, wake: Callable[[], None]) -> None:
        self._outbox = outbox
        self._wait_s = wait_s
        self._begin_commit = begin_commit
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._has_ends = threading.Event()
        self._is_closed = threading.Event()
        self.late: Late | None = None
        """What was begun and is not taken. The loop may look at any time."""
        threading.Thread(target=self._run, name="taskmanager-late-ends", daemon=True).start()

    def __repr__(self) -> str:
        late = 0 if self.late is None else len(self.late.ends)
        return f"<LateEnds {'closed' if self._is_closed.is_set() else 'open'}, {late} begun>"

    def watch(self) -> None:
        """There is an end that may wait."""
        if not self._has_ends.is_set():
            self._has_ends.set()

    def take(self) -> Late | None:
        """Return what was begun, once."""
        with self._outbox.plain_lock:
            late, self.late = self.late, None
            return late

    def close(self) -> None:
        """Begin nothing more."""
        with self._outbox.plain_lock:
            self._is_closed.set()
        self._has_ends.set()

    def _run(self) -> None:
        """Look once in an interval, as long as ends come: to be woken for each of them would cost more than they do."""
        while not self._is_closed.is_set():
            self._has_ends.wait()
            self._has_ends.clear()
            left_s = self._wait_s - (self._outbox.plain_age_s() or 0.0)
            if left_s > 0:
                self._is_closed.wait(left_s)
            elif not self._begin():
                self._is_closed.wait(AGAIN_S)
            if self._outbox.plain_age_s() is not None:
                self._has_ends.set()

    def _begin(self) -> bool:
        """Begin to commit what waits; False when that cannot be done now."""
        with self._outbox.plain_lock:
            if self.late is not None or self._is_closed.is_set():
                return False
            entry_count, ends = self._outbox.take_late(MOST)
            try:
                report = self._begin_commit([sent.write for sent in ends], self._loop)
            except StoreError:
                self._outbox.put_late_back(ends)
                return False
            self.late = Late(entry_count, ends, report)
        with contextlib.suppress(RuntimeError):  # the loop was closed; who writes in its place takes what was begun
            self._loop.call_soon_threadsafe(self._wake)
        return True
