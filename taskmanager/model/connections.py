"""Connections to a server as a type checker sees them, whichever drivers are installed.

To a checker, the class of a driver that is not there is `Any`, and an overload that names it takes every connection.
"""

from collections.abc import Coroutine
from typing import Any, Protocol


class ServerConnection(Protocol):
    """A `psycopg.Connection`, or a `Connection` of SQLAlchemy."""

    @property
    def closed(self) -> bool: ...
    def commit(self) -> None: ...


class AsyncServerConnection(Protocol):
    """A `psycopg.AsyncConnection`, or an `AsyncConnection` of SQLAlchemy."""

    @property
    def closed(self) -> bool: ...
    def commit(self) -> Coroutine[Any, Any, None]: ...


class AsyncpgConnection(Protocol):
    """A `Connection` of asyncpg, or what its pool lends."""

    def is_closed(self) -> bool: ...
    def close(self, *, timeout: float | None = None) -> Coroutine[Any, Any, None]: ...
