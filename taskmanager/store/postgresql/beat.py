"""Signs of life, by the connection that reads: a beat waits for the query that is under way, and for no other.

Where that one is away and cannot be made anew, as when the server lets nobody in, it goes by the one that writes.
"""

from collections.abc import Callable, Sequence

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import Connection
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.protocol import Beat
from taskmanager.store.sql.instances import BEAT


class PostgresBeater:
    """Beats of one instance. `connections` gives those that it may go by, the best first; none of a closed store."""

    def __init__(self, connections: Callable[[], Sequence[Connection]], address: Address) -> None:
        self._connections = connections
        self._address = address

    def beat(self, beats: Sequence[Beat]) -> None:
        """Write these."""
        fault: StoreError = StoreUnavailable(f"{self._address} is not open")
        for each in self._connections():
            try:
                each.call(_beat, beats)
            except StoreError as exc:
                fault = exc
            else:
                return
        raise fault

    def let_go(self) -> None:
        """Nothing leads to a database that nobody else can find."""

    def close(self) -> None:
        """The connection is the store's."""


def _beat(session: PostgresSession, beats: Sequence[Beat]) -> None:
    session.executemany(BEAT, beats)
