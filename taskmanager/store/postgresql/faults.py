"""What an error of the server, or of the way to it, means here: wait, repeat, or give up; and what to do about it."""

from typing import TYPE_CHECKING, Final

import psycopg

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.store.postgresql.address import Address

if TYPE_CHECKING:
    from taskmanager.store.postgresql.session import PostgresSession

_REPEATED: Final = frozenset({"40001", "40P01", "55P03"})
"""The server has broken a transaction off for the sake of another one. All of it may be done again."""
_STALE: Final = frozenset({"0A000", "26000", "42P05"})
"""What the session has prepared does not fit any more: a table has changed, or a pooler has mixed up the sessions."""
_ENDED: Final = frozenset({"25P03", "25P04", "57P01", "57P02", "57P03", "57P05", "25006"})
"""The session is over, or leads to a server that cannot be written: the next one may not."""
_TRANSIENT: Final = {
    "08": "the connection was lost; it is made anew",
    "28": "the server refuses this user; check the name, the password and pg_hba.conf",
    "3D": "the database does not exist; create it, or correct the URL",
    "40": "other transactions were in the way; try again",
    "53": "the server has run out of something; free some space, memory or connections",
    "55": "a lock is held by another transaction; try again",
    "57": "the server, or somebody on it, has ended this; it is tried again",
    "58": "the server's disk reports an error; check the server",
}
_ANEW: Final = (
    "it is made anew; if that goes on, a pooler mixes sessions up: use its session mode, or the server's own address"
)
_BY_CODE: Final = {
    "25006": "the server can only be read: it is a standby, or was set so; the way to the primary is tried again",
    "26000": f"the session has lost what it had prepared; {_ANEW}",
    "42P05": f"the session has prepared that already; {_ANEW}",
    "25P03": "a transaction stood still for too long, and was ended; it is tried again",
    "25P04": "a transaction took too long, and was ended; it is tried again",
    "42501": "a right is missing; `taskmanager migrate --sql` shows which rights the application's role needs",
    "53100": "the server's disk is full; free some space there",
    "53300": "no connection is free; raise max_connections or the limit of the role, or put a pooler before the server",
    "57014": "the statement was cancelled, perhaps by a statement_timeout; it is tried again",
    "3F000": "the schema is not there any more; restart the application, it makes it anew",
    "42P01": "a table is not there any more; restart the application, it makes that anew",
}
_BY_WORD: Final = {
    "password": _TRANSIENT["28"],
    "pg_hba.conf": _TRANSIENT["28"],
    "certificate": "check sslmode and sslrootcert, and what the server shows",
    "too many c": _BY_CODE["53300"],  # clients already, or connections for a role or a database
    "connection slots": _BY_CODE["53300"],
}
"""What a connection that is refused says in its text alone: the driver has no code for it."""


def has_lost_connection(error: psycopg.Error, session: "PostgresSession | None") -> bool:
    """Return whether the connection is of no more use after this error."""
    if session is None or session.raw.closed or session.raw.broken:
        return True
    return error.sqlstate in _ENDED or (error.sqlstate or "")[:2] == "08"


def is_gone(error: psycopg.Error) -> bool:
    """Return whether what was asked for was dropped, as somebody does who makes the schema anew."""
    return error.sqlstate in ("3F000", "42P01")


def is_repeated(error: psycopg.Error) -> bool:
    """Return whether all of it may be done again at once."""
    return error.sqlstate in _REPEATED


def is_stale(error: psycopg.Error) -> bool:
    """Return whether a new session may do what this one cannot."""
    return error.sqlstate in _STALE


def translate(address: Address, error: psycopg.Error) -> StoreError:
    """The one place where an error of the driver becomes ours."""
    code = error.sqlstate
    text = " ".join(str(error).split())
    if code is None:
        if isinstance(error, psycopg.OperationalError):
            known = (advice for word, advice in _BY_WORD.items() if word in text)
            return StoreUnavailable(
                f"{address} is not available ({text}); {next(known, 'the way there is tried again')}"
            )
        return StoreError(f"{address} refused a statement ({text})")
    advice = _BY_CODE.get(code) or _TRANSIENT.get(code[:2])
    if advice is not None:
        return StoreUnavailable(f"{address} is not available ({text}): {advice}")
    return StoreError(f"{address} refused a statement ({text}); run `taskmanager doctor --db {address}`")
