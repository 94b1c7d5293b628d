"""How long does the dashboard look for tasks in a file with a million of them, of which a hundred thousand have failed?

Each look has a budget of 80 ms, so it is quick whatever it looks for, and says how far it got. The lines with a share
say how much of the file it has seen by then. `dashboard_file` makes the file in the temporary directory, once for all
who ask for it.
"""

import asyncio
import json
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from _harness import Figures, Line, Options, run

from taskmanager.store.sql.failures import failure_groups
from taskmanager.store.sql.scanning import count_up_to, scan
from taskmanager.store.sql.search import Search
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.reading import open_read_only
from taskmanager.store.sqlite.schema import NEWEST
from taskmanager.store.sqlite.session import SqliteSession

MANY: Final = (1_000_000, 100_000)
LOOKS: Final = 10
NAMES: Final = 200
QUEUES: Final = 20
BETWEEN_US: Final = 100_000
"""Ten tasks a second: a million are a little more than a day."""
STATUSES: Final = ("COMPLETED",) * 860 + ("FAILED",) * 100 + ("CANCELLED",) * 15 + ("EXPIRED",) * 5 + ("PENDING",) * 20
CODES: Final = ("TIMEOUT", "UNHANDLED_EXCEPTION", "HTTP_503", "REFUSED")
LARGE_RESULT: Final = '{"ok":"' + 100_000 * "x" + '"}'
HUGE_RESULT: Final = '{"ok":"' + 8_000_000 * "x" + '"}'
COLUMNS: Final = (
    "id", "task_name", "queue_name", "priority", "args", "kwargs", "status", "sent_at", "enqueued_at", "started_at",
    "completed_at", "failed_at", "result", "failed_reason", "error_code", "start_count", "task_options", "tags",
    "created_at", "updated_at",
)  # fmt: skip
_ATTEMPTS: Final = """
INSERT INTO taskmanager_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at, error_code,
    error_message, failed_reason, created_at)
SELECT id, start_count, status, 0, started_at, updated_at, error_code, json_extract(result, '$.err.message'),
    failed_reason, created_at
FROM taskmanager_tasks WHERE status IN ('COMPLETED', 'FAILED')
UNION ALL
SELECT id, 1, 'FAILED', 1, started_at - 1000000, started_at - 500000, 'TIMEOUT', 'took too long', NULL, created_at
FROM taskmanager_tasks WHERE start_count = 2
"""
_FIGURES: Final = """
INSERT INTO taskmanager_figures (span, at, task_name, queue_name, started, completed, failed, retried, waited_1, ran_2)
SELECT span, updated_at - updated_at % (span * 1000000), task_name, queue_name, count(*), sum(status = 'COMPLETED'),
    sum(status = 'FAILED'), sum(start_count = 2), count(*), count(*)
FROM taskmanager_tasks JOIN (SELECT 60 AS span UNION ALL SELECT 3600) WHERE status IN ('COMPLETED', 'FAILED')
GROUP BY 1, 2, 3, 4
"""


def dashboard_file(count: int) -> Path:
    """Return the path of a file with so many tasks. It is made if there is none of this schema, and takes a minute."""
    folder = Path(tempfile.gettempdir()) / f"taskmanager-dashboard-{count}-{NEWEST.rpartition(' ')[2]}"
    path = folder / "tasks.db"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        made = folder / "making.db"
        made.unlink(missing_ok=True)
        make_dashboard_file(made, count)
        made.rename(path)
    return path


def make_dashboard_file(path: Path, count: int) -> None:
    """Make a file whose last task was sent now, with attempts and the figures of its minutes."""

    async def make_tables() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.close()

    asyncio.run(make_tables())
    insert = f"INSERT INTO taskmanager_tasks ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    with closing(sqlite3.connect(path, factory=SqliteSession)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        with connection:
            connection.executemany(insert, _tasks(count, time.time_ns() // 1000))
            connection.execute(_ATTEMPTS)
            connection.execute(_FIGURES)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _tasks(count: int, now: int) -> Iterator[tuple[Any, ...]]:
    chance = random.Random(1)
    statuses = chance.sample(STATUSES, len(STATUSES))
    for number in range(count):
        sent_at = now - (count - number) * BETWEEN_US
        status, kind = statuses[number % len(statuses)], int(chance.random() ** 2 * NAMES)
        ended_at = sent_at + chance.randrange(20_000, 3_000_000)
        has_failed = status == "FAILED"
        code = {"FAILED": CODES[kind % 4], "CANCELLED": "TASK_CANCELLED", "EXPIRED": "TASK_EXPIRED"}.get(status)
        if has_failed and number % 10_000 < 10:
            code = "RARE"
        yield (
            f"{sent_at // 1000:012x}"[:8] + f"-{sent_at // 1000 & 0xFFFF:04x}-7{number % 4096:03x}-8000-{number:012x}",
            f"app.jobs:task_{kind}",
            f"queue-{kind % QUEUES}",
            50,
            f"[{number}]",
            f'{{"to":"user{chance.randrange(100_000)}@example.org"}}',
            status,
            sent_at,
            sent_at,
            sent_at + 2_000 if status in ("COMPLETED", "FAILED") else None,
            ended_at if status == "COMPLETED" else None,
            ended_at if code else None,
            _result(status, code, number, count),
            f"Traceback:\n{chance.randrange(4, 20) * ' File app/jobs.py'}" if has_failed else None,
            code,
            (2 if number % 50 == 0 else 1) if status in ("COMPLETED", "FAILED") else 0,
            '{"persist":true}',
            f'{{"customer":"{chance.randrange(1_000)}"}}' if number % 2 else None,
            sent_at,
            sent_at if status == "PENDING" else ended_at,
        )  # fmt: skip


def _result(status: str, code: str | None, number: int, count: int) -> str | None:
    if status == "COMPLETED":
        if number % (count // 10) == 7:
            return HUGE_RESULT
        return LARGE_RESULT if number % 2_000 == 7 else f'{{"ok":{number}}}'
    if code is None:
        return None
    return json.dumps({"err": {"error_code": code, "message": f"refused by the server ({number})", "data": None}})


# What is looked for, most of it in vain: nothing is slower to find.

SEARCHES: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "FAILED": {"statuses": ("FAILED",)},
    "COMPLETED": {"statuses": ("COMPLETED",)},
    "a function": {"task_name": "app.jobs:task_150"},
    "a function that is not there": {"task_name": "nothing"},
    "a pattern": {"task_name": "*_19?"},
    "a queue that is not there": {"queue_name": "nothing"},
    "a tag": {"tags": (("customer", "42"),)},
    "a tag that is not there": {"tags": (("customer", "nothing"),)},
    "a frequent error": {"error_code": "TIMEOUT"},
    "a rare error": {"error_code": "RARE"},
    "FAILED with a tag that is not there": {"statuses": ("FAILED",), "tags": (("customer", "nothing"),)},
    "changed since tomorrow": {"changed_since": 1 << 60},
    "a text": {"text": "user4242@"},
    "a text that is not there": {"text": "nothing"},
    "FAILED with a text that is not there": {"statuses": ("FAILED",), "text": "nothing"},
}


def _timed(look: Callable[[], Any], oldest: int, newest: int) -> Figures:
    """The median and the worst of some looks, and the share of the time of the file that the last one has seen."""
    took_ms, found = [], look()
    for _ in range(LOOKS):
        began = time.perf_counter()
        found = look()
        took_ms.append((time.perf_counter() - began) * 1000)
    reached = found.reached
    share = 1.0 if reached is None else (newest - reached[0]) / (newest - oldest)
    return {"ms": statistics.median(took_ms), "most_ms": max(took_ms), "share": share}


def measured(ask: Callable[[SqliteSession], Callable[[], Any]]) -> Callable[[Options], Figures]:
    """A part that looks at the file, as a page does."""

    def part(options: Options) -> Figures:
        with open_read_only(dashboard_file(options.size(*MANY))) as connection:
            times = connection.execute("SELECT min(sent_at), max(sent_at) FROM taskmanager_tasks").fetchone()
            return _timed(ask(connection), *times)

    return part


def _scan(given: dict[str, Any]) -> Callable[[SqliteSession], Callable[[], Any]]:
    return lambda connection: lambda: scan(connection, Search(**given), 50)


def _count(given: dict[str, Any]) -> Callable[[SqliteSession], Callable[[], Any]]:
    return lambda connection: lambda: count_up_to(connection, Search(**given))


def _failures(connection: SqliteSession) -> Callable[[], Any]:
    return lambda: failure_groups(connection)


_IN_VAIN: Final = ("not there", "tomorrow", "tag", "failures")
PARTS = {
    **{f"scan {name}": measured(_scan(given)) for name, given in SEARCHES.items()},
    **{f"count {name}": measured(_count(given)) for name, given in SEARCHES.items()},
    "failures": measured(_failures),
}
LINES = [
    line
    for part in PARTS
    for line in (
        Line(part, part, "ms", "ms", must="<= 100"),
        Line(f"{part}: the worst of {LOOKS}", part, "most_ms", "ms"),
        Line(f"{part}: share of the file seen", part, "share", ""),
    )
    if line.figure != "share" or part.endswith(_IN_VAIN)
]
NOTES = [f"With --quick {MANY[1]:,} instead of {MANY[0]:,} tasks."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
