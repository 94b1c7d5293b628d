"""Reads the demo's database from outside, with plain `sqlite3`, while the program writes it and afterwards.

Nothing here believes the program: whether every file is accounted for is decided from the rows alone.
"""

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from taskmanager.console.views import Progress
from taskmanager.engine.instance import lock_files
from taskmanager.store.sqlite.open_files import open_existing

TASK_NAMES: Final = ("demo.hash_file", "demo.parse_python")
BUSY_TIMEOUT_S: Final = 1.0

_COUNT_ENDED: Final = """
SELECT count(*) FROM taskmanager_tasks
WHERE status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED', 'INTERRUPTED')
"""
_TASKS: Final = """
SELECT t.status, (SELECT count(*) FROM taskmanager_task_attempts AS a WHERE a.task_id = t.id),
    t.retry_count, t.error_code, t.args
FROM taskmanager_tasks AS t ORDER BY t.args
"""


class Tally(NamedTuple):
    """What the rows say.

    `once` counts tasks with one attempt, `causes` the error codes of the failed ones; `failures` are (name, code)
    pairs.
    """

    by_status: Counter[str]
    once: int
    retried: int
    interrupted: int
    causes: Counter[str]
    failures: tuple[tuple[str, str], ...]

    @property
    def total(self) -> int:
        return self.by_status.total()

    @property
    def more_than_once(self) -> int:
        return self.total - self.once

    @property
    def ended(self) -> int:
        return sum(self.by_status[status] for status in ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED"))

    @property
    def waiting(self) -> int:
        return self.by_status["PENDING"]

    @property
    def claimed_or_running(self) -> int:
        return self.by_status["RUNNING"] + self.by_status["CLAIMED"]


class Judge:
    """A reader of one database file. Everything is zero until the program has made the tables."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _rows(self, query: str) -> list[tuple[object, ...]]:
        """The answer, or nothing while the file or its tables are still to come."""
        try:
            if self._connection is None:
                # Not mode=ro: a reader that cannot write leaves the log files of the last one lying about.
                self._connection = open_existing(str(self._database), "mode=rw", timeout=BUSY_TIMEOUT_S)
                self._connection.execute("PRAGMA query_only = ON")
            return self._connection.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []

    def ended_count(self) -> int:
        """How many tasks have ended; cheap enough to ask fifty times a second."""
        for (count,) in self._rows(_COUNT_ENDED):
            return int(str(count))
        return 0

    def progress(self, total: int) -> Progress:
        """How far the program is; whoever watches knows the speed."""
        counts: Counter[str] = Counter()
        retry_count = 0
        for status, count, retries in self._rows(
            "SELECT status, count(*), sum(retry_count) FROM taskmanager_tasks GROUP BY status"
        ):
            counts[str(status)] = int(str(count))
            retry_count += int(str(retries))
        done = counts.total() - sum(counts[status] for status in ("PENDING", "CLAIMED", "RUNNING"))
        return Progress(done, total, 0.0, counts["RUNNING"], retry_count, counts["FAILED"])

    def tally(self) -> Tally:
        """Everything that the report tells."""
        by_status: Counter[str] = Counter()
        causes: Counter[str] = Counter()
        once = retried = 0
        failures = []
        for status, runs, retry_count, code, args in self._rows(_TASKS):
            by_status[str(status)] += 1
            once += runs == 1
            retried += bool(retry_count)
            if status == "FAILED":
                causes[str(code)] += 1
                failures.append((json.loads(str(args))[1], str(code)))
        interrupted = self._rows(
            "SELECT count(DISTINCT task_id) FROM taskmanager_task_attempts WHERE outcome = 'INTERRUPTED'"
        )
        return Tally(
            by_status, once, retried, int(str(interrupted[0][0])) if interrupted else 0, causes, tuple(failures)
        )

    def unaccounted(self, keys: Iterable[str]) -> list[str]:
        """The keys that have not exactly one row, or one that is neither COMPLETED nor FAILED."""
        rows: dict[str, list[str]] = {}
        for key, status in self._rows("SELECT idempotency_key, status FROM taskmanager_tasks"):
            rows.setdefault(str(key), []).append(str(status))
        return [key for key in keys if rows.get(key) not in (["COMPLETED"], ["FAILED"])]

    def size_bytes(self) -> int:
        """The size of the database. The file alone may be smaller, while its newest pages are in the log."""
        for (size,) in self._rows("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"):
            return int(str(size))
        return 0

    def failed_keys(self) -> frozenset[str]:
        """The keys whose task has failed for good."""
        return frozenset(
            str(k) for (k,) in self._rows("SELECT idempotency_key FROM taskmanager_tasks WHERE status = 'FAILED'")
        )

    def directory(self) -> str | None:
        """The directory of the demo that wrote this file; None when there are no tasks in it."""
        for (args,) in self._rows("SELECT args FROM taskmanager_tasks LIMIT 1"):
            return str(json.loads(str(args))[0])
        return None


def contents_of(database: Path) -> Literal["nothing", "demo", "foreign"]:
    """What is in a file: no task at all, tasks of the demo only, or what is not ours to remove."""
    if database.stat().st_size == 0:
        return "nothing"
    try:
        with contextlib.closing(open_existing(str(database), "mode=rw")) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "taskmanager_tasks" not in tables or any(not t.startswith(("taskmanager_", "sqlite_")) for t in tables):
                return "foreign"
            names = {name for (name,) in connection.execute("SELECT DISTINCT task_name FROM taskmanager_tasks")}
    except sqlite3.Error:
        return "foreign"
    if not names:
        return "nothing"
    return "demo" if names <= set(TASK_NAMES) else "foreign"


def side_files(database: Path) -> Iterator[Path]:
    """What SQLite, the library and the demo keep beside the database."""
    for ending in ("-wal", "-shm", "-journal", ".log"):
        yield database.with_name(database.name + ending)
    yield from (path for path, _ in lock_files(database))
