"""Sessions that only read, for whoever looks from outside: a command, or the dashboard.

A look within a look, in the same thread, is made by the same session: a command has one connection. Who looks again and
again keeps sessions between looks, because to connect is dearer than to read. The server ends one that nobody has used
for a minute, and one that was lost is made anew at the next look.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg

from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import connect, lead_to_schema
from taskmanager.store.postgresql.session import PostgresSession

KEPT_S: Final = 60
"""How long a session is kept that nobody uses."""


class Looks:
    """The sessions of those who look. Each is used by one thread at a time; at most `max_kept` wait for the next."""

    def __init__(self, address: Address, max_kept: int) -> None:
        self._address = address
        self._max_kept = max_kept
        self._here = threading.local()
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: list[PostgresSession] = []
        weakref.finalize(self, _close_all, self._idle, self._pid)

    def __repr__(self) -> str:
        return f"<Looks {self._address}, {len(self._idle)} idle>"

    @contextmanager
    def session(self, patience_s: float) -> Iterator[PostgresSession]:
        """Return a session of this thread for a `with` block. Raises `psycopg.Error` and `StoreError`.

        A new one waits for a table that somebody has locked for `patience_s`.
        """
        outer: PostgresSession | None = getattr(self._here, "session", None)
        if outer is not None:
            yield outer
            return
        self._here.session = session = self._take(patience_s)
        try:
            yield session
        finally:
            self._here.session = None
            self._put_back(session)

    def drop(self) -> None:
        """Close what is kept."""
        while (kept := self._kept()) is not None:
            _close(kept)

    def _take(self, patience_s: float) -> PostgresSession:
        while (kept := self._kept()) is not None:
            try:
                lead_to_schema(kept)
            except psycopg.Error:  # it was lost meanwhile
                _close(kept)
            else:
                return kept
        session = connect(self._address)
        try:
            patience = f"lock_timeout = {round(patience_s * 1000)}"
            if session.is_pooled:  # the session's own settings would be those of somebody else too
                session.read_settings += f"; SET LOCAL {patience}"
            else:
                session.execute_plain(
                    f"SET default_transaction_read_only = on; SET idle_session_timeout = '{KEPT_S}s'; SET {patience}"
                )
            lead_to_schema(session)
        except BaseException:
            _close(session)
            raise
        return session

    def _kept(self) -> PostgresSession | None:
        with self._lock:
            if self._pid != os.getpid():
                self._inherited = self._idle  # they are the parent's, and are not closed here
                self._begin()
            return self._idle.pop() if self._idle else None

    def _put_back(self, session: PostgresSession) -> None:
        try:
            session.rollback()
        except psycopg.Error:
            _close(session)
        with self._lock:
            if not session.raw.closed and len(self._idle) < self._max_kept:
                self._idle.append(session)
                return
        _close(session)


def _close(session: PostgresSession) -> None:
    with suppress(psycopg.Error, OSError):
        session.raw.close()


def _close_all(idle: list[PostgresSession], pid: int) -> None:
    """Close the sessions of this process. In a forked child they are those of the parent."""
    while idle and pid == os.getpid():
        _close(idle.pop())
