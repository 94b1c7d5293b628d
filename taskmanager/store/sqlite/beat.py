"""Signs of life and snapshots: the heartbeat's own connection, and what is read and written of both tables."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from taskmanager.model.errors import StoreUnavailable
from taskmanager.store.protocol import Beat, WorkerState
from taskmanager.store.sqlite.connection import BUSY_TIMEOUT_S, transaction, translate

_STATE: Final = ", ".join(WorkerState._fields)


class SqliteBeater:
    """A connection of its own for each beat: one that is kept would hold on to a file, or a log, that was deleted.

    `is_whole` says whether the file and its log are the ones that the store has open.
    """

    def __init__(self, path: str, is_whole: Callable[[], bool] = lambda: True) -> None:
        self._path = path
        self._is_whole = is_whole

    def beat(self, beats: Sequence[Beat]) -> None:
        """One transaction."""
        if not self._is_whole():
            raise StoreUnavailable(f"{self._path} or its log was deleted or replaced; the store makes it anew")
        uri = f"file:{self._path.replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?mode=rw"
        try:
            with closing(sqlite3.connect(uri, timeout=BUSY_TIMEOUT_S, isolation_level=None, uri=True)) as connection:
                self._write(connection, beats)
        except sqlite3.Error as exc:
            raise translate(self._path, exc) from exc

    def _write(self, connection: sqlite3.Connection, beats: Sequence[Beat]) -> None:
        with transaction(connection):
            connection.executemany(
                "INSERT INTO taskmanager_heartbeats (sender_id, role, sent_at, hostname, pid) VALUES (?, ?, ?, ?, ?)",
                beats,
            )

    def close(self) -> None:
        """Nothing is held between beats."""


def heartbeats(connection: sqlite3.Connection) -> list[tuple[str, str, int]]:
    """See `Store.heartbeats`: the latest of each sender and role, by the order of their writing.

    Not the one with the greatest instant: after a wall clock was stepped back, that one would never change again.
    """
    found = connection.execute(
        "SELECT sender_id, role, sent_at, max(id) FROM taskmanager_heartbeats GROUP BY sender_id, role"
    ).fetchall()
    return [(sender, role, sent_at) for sender, role, sent_at, _ in found]


def save_worker_state(connection: sqlite3.Connection, state: WorkerState) -> None:
    """See `Store.save_worker_state`."""
    with transaction(connection):
        connection.execute(
            f"INSERT INTO taskmanager_worker_states ({_STATE}) VALUES ({', '.join('?' * len(state))})", state
        )
