"""Waits for a key, a signal or the end of a time, and gives the terminal back as it was.

Keys come one by one and are not echoed. During the block a signal does not end the process. It is reported like a key,
so that no escape sequence is cut in two and the terminal is given back in order.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

try:
    import termios
    import tty
except ImportError:  # Windows
    termios = tty = None  # type: ignore[assignment]  # asked for before each use


class News(Enum):
    """What happened while waiting, the most urgent first."""

    TERMINATED = "terminated"
    INTERRUPTED = "interrupted"
    QUIT = "quit"
    SUSPENDED = "suspended"
    RESIZED = "resized"
    NOTHING = "nothing"


QUIT_KEYS: Final = frozenset("qQ")
_KEY_POLL_S: Final = 0.05
_NEWS: Final = {
    "SIGWINCH": News.RESIZED,
    "SIGINT": News.INTERRUPTED,
    "SIGTERM": News.TERMINATED,
    "SIGHUP": News.TERMINATED,
    "SIGTSTP": News.SUSPENDED,
}
_SIGNALS: Final = {getattr(signal, name): news for name, news in _NEWS.items() if hasattr(signal, name)}


class Keyboard:
    """The source of keys and signals: the terminal's file, and a pipe into which Python writes the numbers of signals.

    `listening` makes it.
    """

    def __init__(self, wakeup_fd: int, keys_fd: int | None) -> None:
        self._wakeup_fd = wakeup_fd
        self._keys_fd = keys_fd

    def wait(self, timeout_s: float) -> News:
        """Return the first news within the time, or NOTHING."""
        if sys.platform == "win32":
            return _wait_on_windows(timeout_s)
        fds = [self._wakeup_fd] if self._keys_fd is None else [self._wakeup_fd, self._keys_fd]
        ready, _, _ = select.select(fds, [], [], timeout_s)
        if self._wakeup_fd in ready:
            told = {_SIGNALS.get(number, News.NOTHING) for number in os.read(self._wakeup_fd, 64)}
            return min(told, key=list(News).index)
        if self._keys_fd in ready and self._keys_fd is not None:
            keys = os.read(self._keys_fd, 64)
            if not keys:
                self._keys_fd = None  # its end: a terminal that is gone says SIGHUP
            elif QUIT_KEYS & set(keys.decode("ascii", "replace")):
                return News.QUIT
        return News.NOTHING


if sys.platform == "win32":
    import msvcrt

    def _wait_on_windows(timeout_s: float) -> News:
        """Poll for keys, because neither keys nor signals can be selected on Windows."""
        deadline = time.perf_counter() + timeout_s
        try:
            while time.perf_counter() < deadline:
                if msvcrt.kbhit() and msvcrt.getwch() in QUIT_KEYS:
                    return News.QUIT
                time.sleep(_KEY_POLL_S)
        except KeyboardInterrupt:
            return News.INTERRUPTED
        return News.NOTHING


@contextmanager
def listening() -> Iterator[Keyboard]:
    """Hear keys of the terminal at stdin, if there is one, and signals, during the block."""
    if sys.platform == "win32":
        yield Keyboard(-1, None)
        return
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    # The number has been written to the pipe before the handler is called.
    before = {number: signal.signal(number, lambda number, frame: None) for number in _SIGNALS}
    wakeup_before = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    keys_fd = sys.stdin.fileno() if termios is not None and sys.stdin.isatty() else None
    settings: list[Any] = [] if keys_fd is None else termios.tcgetattr(keys_fd)
    try:
        if keys_fd is not None:
            tty.setcbreak(keys_fd)
        yield Keyboard(read_fd, keys_fd)
    finally:
        if keys_fd is not None:
            termios.tcsetattr(keys_fd, termios.TCSADRAIN, settings)
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_fd)
        os.close(write_fd)
