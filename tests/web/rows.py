"""Fills a file with many tasks at once, which nobody has run: copies of one task that was."""

import sqlite3
from contextlib import closing
from pathlib import Path

from taskmanager import TaskManager

DATABASE = "tasks.db"


async def first_failure(folder: Path, name: str = "fail") -> None:
    """Make a file with one failed task of that function."""
    manager = TaskManager(folder / DATABASE)

    @manager.task(persist=True, name=name)
    async def fail() -> None:
        raise ValueError("no")

    async with manager:
        await fail.enqueue().result()


def multiply(folder: Path, count: int, prefix: str = "copy", of: str | None = None, **columns: object) -> None:
    """Add so many copies of a task, mostly the newest, each sent a microsecond after the one before it."""
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        names = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('taskmanager_tasks')")]
        names = [name for name in names if name != "claimed"]
        (newest,) = connection.execute("SELECT max(sent_at) FROM taskmanager_tasks").fetchone()
        values = {"id": "printf('%s-%07d', :prefix, n)", "sent_at": ":newest + n", "idempotency_key": "NULL"}
        values |= {name: f":{name}" for name in columns}
        connection.execute(
            f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)"
            f" INSERT INTO taskmanager_tasks ({', '.join(names)})"
            f" SELECT {', '.join(values.get(name, name) for name in names)} FROM numbers,"
            f" (SELECT * FROM taskmanager_tasks WHERE id = coalesce(:of, id) ORDER BY sent_at DESC LIMIT 1)",
            {"count": count, "prefix": prefix, "newest": newest, "of": of, **columns},
        )


def query(folder: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    """Return what the file answers."""
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        return connection.execute(sql, values).fetchall()
