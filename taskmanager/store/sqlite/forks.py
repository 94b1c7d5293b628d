"""A fork waits until no thread of ours is in the middle of a call of SQLite.

SQLite has locks of its own, one of them for all memory that it asks for, and a fork copies them as they are. If a
thread was in SQLite then, whoever uses SQLite in the child, for whatever file, waits for ever: the thread that would
give the lock back is not there.
"""

import os
import threading
import weakref
from typing import Final

PATIENCE_S: Final = 0.5
"""How long a fork waits for each thread. What takes longer mostly waits for a file, and holds none of those locks."""

_guards: Final[list["weakref.ref[threading.RLock]"]] = []


class _Held(threading.local):
    """What the thread that forks has taken."""

    guards: "tuple[threading.RLock, ...]" = ()


_held: Final = _Held()


def new_guard() -> "threading.RLock":
    """Return a lock that a thread holds while it is in SQLite. The thread that forks may hold it too."""
    guard = threading.RLock()
    _guards[:] = [*(each for each in _guards if each() is not None), weakref.ref(guard)]
    return guard


def _before() -> None:
    guards = [guard for each in _guards if (guard := each()) is not None]
    _held.guards = tuple(each for each in guards if each.acquire(timeout=PATIENCE_S))


def _after() -> None:
    guards, _held.guards = _held.guards, ()
    for each in guards:
        each.release()


def _after_in_child() -> None:
    _after()
    _guards.clear()  # who held one is not there, and what it guarded belongs to the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
