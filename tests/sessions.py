"""Connections to SQLite as the verbs of the store see them."""

import sqlite3
from typing import Any

from taskmanager.store.sqlite.session import SqliteSession


def connect(path: Any, **options: Any) -> SqliteSession:
    """Connect with plain `sqlite3`, so that nothing of the store is in between."""
    return sqlite3.connect(path, factory=SqliteSession, **options)
