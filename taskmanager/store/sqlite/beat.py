"""Signs of life, written by the heartbeat's own connection."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.store.protocol import Beat
from taskmanager.store.sql.instances import BEAT
from taskmanager.store.sqlite.connection import translate
from taskmanager.store.sqlite.files import Files, open_existing
from taskmanager.store.sqlite.forks import new_guard
from taskmanager.store.sqlite.session import BUSY_TIMEOUT_S, SqliteSession, primary_code


class SqliteBeater:
    """A plain connection that lives and dies with the heartbeat's thread. Kept, because an application that has used
    up its descriptors is alive.

    `files` are the ones that the store has open; None while it has none. They may have been made anew between two
    beats, so that the path leads to them, and this connection does not.
    """

    def __init__(self, path: str, files: Callable[[], Files | None]) -> None:
        self._path = path
        self._files = files
        self._in_use = new_guard()
        self._connection: SqliteSession | None = None
        self._connected_to: Files | None = None

    @property
    def is_open(self) -> bool:
        """Whether a connection is kept; asked by other threads."""
        return self._connection is not None

    def beat(self, beats: Sequence[Beat]) -> None:
        """One transaction. A connection that failed is made anew for the next beat; one that was kept waiting did not:
        while its volume is not mounted it is the only one that still leads to the file.
        """
        self.let_go()
        if self._connection is None and not self._is_whole():
            raise StoreUnavailable(f"{self._path} or its log was deleted or replaced; the store makes it anew")
        try:
            with self._in_use:
                connection = self._opened()
                with connection.transaction():
                    connection.executemany(BEAT, beats)
        except sqlite3.Error as exc:
            if primary_code(exc) != sqlite3.SQLITE_BUSY:
                self.close()
            raise translate(self._path, exc) from exc

    def _opened(self) -> SqliteSession:
        if self._connection is None:
            self._connected_to = self._files()
            self._connection = open_existing(self._path, "mode=rw", timeout=BUSY_TIMEOUT_S)
        return self._connection

    def let_go(self) -> None:
        """Close the connection to a file, or a log, that was deleted: nobody else can find what is written there."""
        with suppress(StoreError):  # who cannot look keeps what there is
            if self._files() != self._connected_to or not self._is_whole():
                self.close()

    def _is_whole(self) -> bool:
        files = self._files()
        return files is not None and files.is_database_there() and files.is_log_there()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with self._in_use:
                connection.close()
