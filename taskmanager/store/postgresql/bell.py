"""A bell wakes whoever waits for a descriptor: the thread of the watch, or the loop."""

import socket
from contextlib import suppress


class Bell:
    """A pair of sockets. `OSError` where the process has no descriptor left."""

    def __init__(self) -> None:
        self._heard, self._rung = socket.socketpair()
        self._heard.setblocking(False)
        self._rung.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that can be read after `ring`."""
        return self._heard.fileno()

    def ring(self) -> None:
        """Make it readable. From any thread; one that has rung for a long time unheard rings no more."""
        with suppress(OSError):
            self._rung.send(b".")

    def hush(self) -> None:
        """Make it silent until the next ring."""
        with suppress(OSError):
            while self._heard.recv(4096):
                pass

    def close(self) -> None:
        """Give the descriptors back."""
        self._heard.close()
        self._rung.close()
