"""Files in which every column of every table holds what nobody would write, each in a row of its own."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from taskmanager.model.clock import DAY_US, SystemClock
from taskmanager.store.sqlite.store import SqliteStore

NOW: Final = SystemClock().now_us() - DAY_US
"""Old enough to be due, and too young to be deleted."""
DEAD: Final = "0197aaaa-0000-7000-8000-00000000dead"
"""An instance that died, with its row and the file of its lock."""

TEXTS: Final[dict[str, bytes | str]] = {
    "no UTF-8": b"\xff",
    "cut UTF-8": b"caf\xc3",
    "raw surrogate": b"\xed\xa0\x80",
    "raw NUL": "a\0b",
    "empty": "",
    "long": "x" * 5_000,
    "steering": "\x1b[31m\u202e\n",
}
"""What any text may be."""
DOCUMENTS: Final = {
    "malformed": "{",
    "number": "5",
    "list": "[1]",
    "object": '{"a": 1, "queues": [1], "tasks": ["x"], "task_names": [[1]], "heartbeat_s": 1e308}',
    "deep": "[" * 5_000,
    "closed deep": "[" * 500 + "]" * 500,
    "deep object": '{"a":' * 500 + "1" + "}" * 500,
    "escaped surrogate": '{"a": "\\ud800"}',
    "huge number": f'{{"done": {10**400}, "at": {10**30}}}',
}
"""And what is read as JSON."""
NAMES: Final = {"path": "../../etc/passwd", "absolute": "/etc/passwd", "dots": ".."}
"""And what names an instance, whose lock is a file."""
INSTANTS: Final = (-1, 253_402_300_800_000_000, 2**63 - 1, -(2**63))
COUNTS: Final = (*INSTANTS, 0, 101, 2**62)

_DOCUMENT_COLUMNS: Final = {
    "args", "kwargs", "result", "task_options", "tags", "progress", "log", "live_tasks", "queues", "queue_priorities",
    "queue_max_concurrency", "recovery_config", "template",
}  # fmt: skip
_NAME_COLUMNS: Final = {
    "claimed_by_worker_id", "finalizing_by_worker_id", "instance_id", "owner_id", "worker_id", "sender_id", "id",
}  # fmt: skip

FREE: Final[dict[str, Any]] = {
    "task_name": "add",
    "queue_name": "default",
    "priority": 50,
    "args": "[1]",
    "kwargs": "{}",
    "status": "PENDING",
    "sent_at": NOW,
    "enqueued_at": NOW,
    "task_options": '{"persist":true}',
    "created_at": NOW,
    "updated_at": NOW,
}
RUNNING: Final = {
    **FREE,
    "status": "RUNNING",
    "claimed_by_worker_id": DEAD,
    "claimed_at": NOW,
    "started_at": NOW,
    "start_count": 1,
    "task_options": '{"persist":true,"requeue_on_interrupt":true}',
}
CLAIMED: Final = {**FREE, "status": "CLAIMED", "claimed": 1, "claimed_by_worker_id": DEAD, "claimed_at": NOW}
ENDED: Final = {**FREE, "status": "COMPLETED", "start_count": 1, "completed_at": NOW, "result": '{"ok":1}'}
LOST: Final = {**FREE, "status": "FAILED", "failed_at": NOW, "error_code": "BAD", "result": '{"err":{}}'}
STATES: Final = {"free": FREE, "claimed": CLAIMED, "running": RUNNING, "ended": ENDED, "lost": LOST}


class Odd(NamedTuple):
    """One row with one thing in it that nobody would write."""

    task_id: str
    state: str
    column: str
    kind: str


def columns_of(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    """The type of each column by its name."""
    return {name: kind for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")}


def insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    """Insert a row; bytes are text that need not be UTF-8."""
    places = ["CAST(? AS TEXT)" if isinstance(value, bytes) else "?" for value in row.values()]
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(places)})", tuple(row.values()))


def odd_values(column: str, kind: str) -> Iterator[tuple[str, Any]]:
    """What is put into a column of that type: whatever its readers could stumble over."""
    if kind == "TEXT":
        yield from TEXTS.items()
        yield from DOCUMENTS.items() if column in _DOCUMENT_COLUMNS else ()
        yield from NAMES.items() if column in _NAME_COLUMNS else ()
    else:
        is_instant = column.endswith(("_at", "_for", "_until"))
        yield from ((str(number), number) for number in (INSTANTS if is_instant else COUNTS))


async def made_file(path: Path) -> sqlite3.Connection:
    """A new file with the schema, open in a connection that checks nothing."""
    store = SqliteStore(path)
    await store.open()
    await store.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute("BEGIN")
    return connection


def fill_tasks(connection: sqlite3.Connection) -> list[Odd]:
    """A row for each column, each odd value and each state a task may be in; what each of them is."""
    made: list[Odd] = []
    for column, kind in columns_of(connection, "taskmanager_tasks").items():
        for name, value in odd_values(column, kind):
            for state, row in STATES.items():
                task_id = f"{len(made):08x}-0000-7000-8000-000000000000"
                odd = Odd(task_id, state, column, name)
                if column == "id":
                    task_id = value + state.encode() if isinstance(value, bytes) else value + state
                insert(
                    connection,
                    "taskmanager_tasks",
                    {"id": task_id, **row, **({} if column == "id" else {column: value})},
                )
                made.append(odd)
    return made


def fill_healthy(connection: sqlite3.Connection, state: str, count: int) -> list[str]:
    """Rows as this version writes them, older and newer than the odd ones."""
    ids = [f"{number:08x}-feed-7000-8000-{state.encode().hex():0>12.12}" for number in range(count)]
    for number, task_id in enumerate(ids):
        at = NOW + (number - count // 2) * 1_000
        insert(connection, "taskmanager_tasks", {"id": task_id, **STATES[state], "sent_at": at, "args": f"[{number}]"})
    return ids


OTHERS: Final[dict[str, dict[str, Any]]] = {
    "taskmanager_task_attempts": {
        "attempt": 1, "outcome": "FAILED", "will_retry": 0, "started_at": NOW, "finished_at": NOW, "error_code": "BAD",
        "error_message": "bad", "failed_reason": "bad", "created_at": NOW,
    },
    "taskmanager_heartbeats": {"sender_id": "somebody", "role": "runner", "sent_at": NOW, "hostname": "h", "pid": 1},
    "taskmanager_worker_states": {"worker_id": "somebody", "snapshot_at": NOW},
    "taskmanager_schedule_state": {
        "schedule_name": "s", "config_hash": "h", "updated_at": NOW, "owner_id": DEAD, "task_name": "add",
        "definition": "every 1 s", "template": "{}", "next_run_at": NOW,
    },
    "taskmanager_instances": {
        "instance_id": "i", "hostname": "h", "pid": 1, "process_name": "p", "started_at": NOW, "updated_at": NOW,
    },
    "taskmanager_queues": {"queue_name": "q", "paused_at": NOW},
}  # fmt: skip
_KEYS: Final = {
    "taskmanager_schedule_state": "schedule_name",
    "taskmanager_instances": "instance_id",
    "taskmanager_queues": "queue_name",
}


def fill_others(connection: sqlite3.Connection, task_id: str, tables: tuple[str, ...] = tuple(OTHERS)) -> None:
    """The same for the other tables; attempts are those of this task."""
    for table in tables:
        number = 0
        for column, kind in columns_of(connection, table).items():
            for _, value in odd_values(column, kind):
                number += 1
                row: dict[str, Any] = dict(OTHERS[table])
                if table in _KEYS:
                    row[_KEYS[table]] = f"{row[_KEYS[table]]}-{number}"
                if table == "taskmanager_task_attempts":
                    row |= {"task_id": task_id, "attempt": number + 1_000}
                row[column] = value
                insert(connection, table, row) if column != "id" or table in _KEYS else None
