"""What an error of the server means, and what it says to do about it."""

import psycopg
import pytest

from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.faults import translate


@pytest.mark.parametrize(
    "text",
    [
        "sorry, too many clients already",
        "remaining connection slots are reserved for non-replication superuser connections",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'too many connections for role "app"',
        'too many connections for database "app"',
    ],
)
def test_refused_connection_is_told_how_to_get_one(text: str) -> None:
    """The driver brings no code of what the server says to a connection that it refuses."""
    error = psycopg.OperationalError(f"connection failed: FATAL:  {text}")
    assert error.sqlstate is None
    found = translate(Address.of("postgresql://app@localhost/app"), error)
    assert "raise max_connections or the limit of the role" in str(found)
