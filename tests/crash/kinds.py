"""What differs between the kinds of databases for a program of these tests."""

from typing import Any

GRACE_S = 0.5
"""On a server a death takes ten seconds, so that a lost session is no death. In these programs only processes die."""


def is_server(database: str) -> bool:
    """Whether that is the URL of a server."""
    return "://" in database


def hasten(database: str) -> None:
    """Find the dead of a server soon."""
    if not is_server(database):
        return
    from taskmanager.store.postgresql import lives, watch

    lives.MIN_GRACE_S = GRACE_S  # type: ignore[misc]  # it is no constant here
    watch.LOOK_S = GRACE_S / 5  # type: ignore[misc]  # nor is this
    watch.Lives = lambda _, silence_s: lives.Lives(GRACE_S, silence_s)  # type: ignore[assignment,misc]  # as it is called


def session_class(database: str) -> Any:
    """Return the class whose methods every statement of a store goes through."""
    if is_server(database):
        from taskmanager.store.postgresql.session import PostgresSession

        return PostgresSession
    from taskmanager.store.sqlite.session import SqliteSession

    return SqliteSession
