"""The small writes beside the life of a task: cancel requests, instances, pauses, the log's size."""

import sqlite3
from collections.abc import Collection
from typing import Final

from taskmanager.store.constraints import encodable
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.sqlite.connection import BUSY_TIMEOUT_S, transaction
from taskmanager.store.sqlite.statements import LIVE_SQL

_INSTANCE: Final = ", ".join(InstanceRow._fields)


def request_cancel(connection: sqlite3.Connection, task_id: str, now: int) -> bool:
    """See `Store.request_cancel`."""
    with transaction(connection):
        asked = connection.execute(
            f"""
            UPDATE OR IGNORE taskmanager_tasks
            SET updated_at = CASE WHEN cancel_requested_at IS NULL THEN :now ELSE updated_at END,
                cancel_requested_at = coalesce(cancel_requested_at, :now)
            WHERE id = CAST(:id AS TEXT) AND status IN ({LIVE_SQL})
            """,
            {"id": task_id, "now": now},
        )
    return asked.rowcount == 1


def save_instance(connection: sqlite3.Connection, row: InstanceRow) -> None:
    """See `Store.save_instance`."""
    with transaction(connection):
        connection.execute(
            f"INSERT OR REPLACE INTO taskmanager_instances ({_INSTANCE}) VALUES ({', '.join('?' * len(row))})",
            # A process may be named after a file whose name is no UTF-8.
            [encodable(value) if isinstance(value, str) else value for value in row],
        )


def forget_instances(connection: sqlite3.Connection, instance_ids: Collection[str]) -> None:
    """See `Store.forget_instances`."""
    with transaction(connection):
        connection.executemany(
            "DELETE FROM taskmanager_instances WHERE instance_id = CAST(? AS TEXT)", [(each,) for each in instance_ids]
        )


def set_paused(connection: sqlite3.Connection, queue_name: str, paused: bool, now: int) -> None:
    """See `Store.set_paused`. Pausing again keeps the instant of the first time."""
    with transaction(connection):
        if paused:
            connection.execute(
                "INSERT INTO taskmanager_queues (queue_name, paused_at) VALUES (?, ?)"
                " ON CONFLICT (queue_name) DO UPDATE SET paused_at = coalesce(paused_at, excluded.paused_at)",
                (queue_name, now),
            )
        else:
            connection.execute("DELETE FROM taskmanager_queues WHERE queue_name = CAST(? AS TEXT)", (queue_name,))


def checkpoint(connection: sqlite3.Connection, is_cut: bool) -> bool:
    """Move the log into the file, and with `is_cut` make it empty; False when a reader kept part of it back.

    PASSIVE waits for nobody, and when another instance is at it, that one does it. TRUNCATE would wait for readers as
    long as for a lock, so it is not tried while one is known to be there, and does not wait for one that comes.
    """
    blocked, in_log, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if blocked:
        return True
    is_moved = in_log == moved
    if is_moved and is_cut:
        connection.execute("PRAGMA busy_timeout = 0").fetchone()
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {round(BUSY_TIMEOUT_S * 1000)}").fetchone()
    return bool(is_moved)


def move_after(connection: sqlite3.Connection, pages: int) -> None:
    """Let each commit that finds so many pages in the log move them, as `checkpoint` does without cutting."""
    connection.execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchone()


def move_all(connection: sqlite3.Connection) -> bool:
    """Move the log into the file, waiting for readers and writers as long as for a lock; whether all of it is there."""
    blocked, in_log, moved = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    return not blocked and in_log == moved
