"""The turn of the loop in which the engine takes in what was enqueued, and starts what may start.

A call may come from anywhere: from another thread, from a signal handler or a finalizer that interrupts the engine
between two of its lines, from code that runs while the loop does not. So a call only fills the inbox and rings here;
memory changes in this turn, or when somebody asks for it by name and must find there what was enqueued before.
"""

import asyncio
import contextlib
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections import deque
from collections.abc import Callable

from taskmanager.engine.live_task import LiveTask


class Turn:
    """One callback of the loop for many calls, due at most once at a time."""

    def __init__(
        self, inbox: deque[LiveTask], accept: Callable[[LiveTask], None], dispatch: Callable[[], None]
    ) -> None:
        self._inbox = inbox
        self._accept = accept
        self._dispatch = dispatch
        self._loop = asyncio.get_running_loop()
        self._is_due = False

    def __repr__(self) -> str:
        return f"<Turn {'due' if self._is_due else 'not due'}, {len(self._inbox)} in the inbox>"

    def ring(self) -> None:
        """Something is in the inbox. From anywhere; `RuntimeError` when the loop is closed."""
        if self._is_due:
            return
        self._is_due = True
        try:
            if _running_loop() is self._loop and asyncio.current_task() is not None:
                self._loop.call_soon(self._run)
            else:
                self._loop.call_soon_threadsafe(self._run)  # the loop may be asleep
        except RuntimeError:
            self._is_due = False
            raise

    def tell(self, call: Callable[..., object], *args: object) -> None:
        """Let the loop make this call soon. From anywhere. One that was closed has nothing left to be told, and the
        next start looks at everything.
        """
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)

    def kick(self) -> None:
        """Something may start. From the loop."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def leave_loop(self) -> None:
        """The loop will not run again: no turn is ever due any more."""
        self._is_due = True

    def _run(self) -> None:
        try:
            self.empty_inbox()
        finally:  # a turn that stays due for ever would be the last one
            self._is_due = False  # who has enqueued since then saw that a turn was due, and did not ask for one
            if self._inbox:
                self.kick()
        self._dispatch()

    def empty_inbox(self) -> None:
        """Accept what was enqueued. From the loop."""
        inbox = self._inbox
        while inbox:
            self._accept(inbox.popleft())

    def catch_up(self) -> None:
        """Before somebody looks at memory or acts on it: what was enqueued before that belongs to it. From anywhere,
        though only the loop does it.
        """
        if self._inbox and _running_loop() is self._loop:
            self.empty_inbox()
