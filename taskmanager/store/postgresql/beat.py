"""Signs of life, by the connection that reads: a beat waits for the query that is under way, and for no other."""

from collections.abc import Callable, Sequence
from typing import Final

from taskmanager.model.errors import StoreUnavailable
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import Connection
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.protocol import Beat

_BEAT: Final = (
    f"INSERT INTO taskmanager_heartbeats ({', '.join(Beat._fields)}) VALUES ({', '.join('?' * len(Beat._fields))})"
)


class PostgresBeater:
    """Beats of one instance. `connection` gives the one that reads, or None while the store is closed."""

    def __init__(self, connection: Callable[[], Connection | None], address: Address) -> None:
        self._connection = connection
        self._address = address

    def beat(self, beats: Sequence[Beat]) -> None:
        """Write these."""
        connection = self._connection()
        if connection is None:
            raise StoreUnavailable(f"{self._address} is not open")
        connection.call(_beat, beats)

    def let_go(self) -> None:
        """Nothing leads to a database that nobody else can find."""

    def close(self) -> None:
        """The connection is the store's."""


def _beat(session: PostgresSession, beats: Sequence[Beat]) -> None:
    session.executemany(_BEAT, beats)
