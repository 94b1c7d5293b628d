"""Gives pages that nothing uses any more back to the file system."""

import sqlite3
from time import perf_counter
from typing import Final

from taskmanager.store.sql.pruning import BatchSize
from taskmanager.store.sqlite.session import checkpoint

_INCREMENTAL: Final = 2


def shrink(connection: sqlite3.Connection, batch: BatchSize) -> bool:
    """See `Store.shrink`. A file that was made without incremental vacuum keeps its size, and uses the space again."""
    if connection.execute("PRAGMA auto_vacuum").fetchone() != (_INCREMENTAL,):
        return False
    if _free_pages(connection) == 0:
        return False
    began = perf_counter()
    # One page per step, without a column: `execute` would leave it at the first.
    connection.executescript(f"PRAGMA incremental_vacuum({batch.size})")
    batch.note(batch.size, perf_counter() - began, 0.0)
    checkpoint(connection)
    return _free_pages(connection) > 0


def _free_pages(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(count)
