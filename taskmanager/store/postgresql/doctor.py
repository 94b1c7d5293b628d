"""What `taskmanager doctor` looks at on a server, beside the rows: see `Checks`."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from taskmanager.store.place import Finding
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.schema import version

if TYPE_CHECKING:
    from taskmanager.store.postgresql.session import PostgresSession
    from taskmanager.store.protocol import InstanceRow
    from taskmanager.store.sql.session import Session


class ServerChecks:
    """The checks of one schema on a server."""

    what = "schema"

    def __init__(self, address: Address) -> None:
        self._address = address

    def around(self, min_free_mb: int) -> Iterable[Finding]:
        """See `Checks.around`."""
        return ()

    def inside(self, session: "Session") -> Iterable[Finding]:
        """See `Checks.inside`."""
        raw = _own(session).raw
        (server,) = raw.execute("SELECT current_setting('server_version')").fetchone() or ("",)
        yield Finding("server", True, f"PostgreSQL {server}")
        yield Finding("schema", True, f"version {version(raw, self._address.schema)}")

    def of_instances(self, session: "Session", alive: "Sequence[InstanceRow]") -> Iterable[Finding]:
        """See `Checks.of_instances`."""
        return ()


def _own(session: "Session") -> "PostgresSession":
    from taskmanager.store.postgresql.session import PostgresSession

    assert isinstance(session, PostgresSession)
    return session
