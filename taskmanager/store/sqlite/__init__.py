"""The store in one SQLite file: two connections, each store method one hop into the thread of one of them."""

from taskmanager.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
