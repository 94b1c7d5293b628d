"""A file with a bit of everything, written at one frozen instant, for every screen and every document."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from taskmanager.model.clock import to_us
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.presence import InstanceLock, lock_path

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
NOW: Final = to_us(datetime(2026, 3, 14, 9, 30, tzinfo=UTC))

TRACEBACK: Final = """Traceback (most recent call last):
  File "app/jobs.py", line 21, in send_mail
    server.send(message)
ConnectionRefusedError: [Errno 111] Connection refused by smtp.example.org
"""
MESSAGE: Final = "ConnectionRefusedError: [Errno 111] Connection refused by smtp.example.org"

ALIVE, SILENT, FROZEN, DEAD = "i-alive", "i-silent", "i-frozen", "i-dead"
LOCKED: Final = (ALIVE, SILENT, FROZEN)


def task_id(number: int) -> str:
    """The id of a task of the file, by its number."""
    return f"019cebe4-5b00-7000-8000-{number:012x}"


def _document(**changes: Any) -> str:
    """What an instance says of itself in its row."""
    said: dict[str, Any] = {
        "is_stopping": False,
        "heartbeat_s": 30.0,
        "task_names": ["app.jobs:send_mail", "app.reports:build", "app.jobs:resize"],
        "lanes": {"async": {"running": 2, "limit": 100}, "thread": {"running": 1, "limit": 8}},
        "queues": {
            "default": {"waiting": 2, "running": 1, "limit": None, "scope": "instance"},
            "mail": {"waiting": 1, "running": 1, "limit": 5, "scope": "file"},
            "reports": {
                "waiting": 3, "running": 1, "limit": 2, "scope": "instance",
                "memory_only": {"waiting": 3, "running": 1},
            },
        },
        "unlisted_queues": {"count": 2, "waiting": 7},
        "oldest_waiting": {"default": NOW - 42 * SECOND, "reports": NOW - 7 * MINUTE},
        "memory_only": {"running": 1, "waiting": 3},
        "running_count": 3,
        "stuck_count": 0,
        "unsaved_count": 0,
        "unsaved_since": None,
        "unwritten_count": 0,
        "degraded_since": None,
        "failing_duties": {},
        "tasks": [],
    }  # fmt: skip
    return json.dumps({**said, **changes})


def _running(number: int, name: str, queue: str, age_s: int, *, is_persisted: bool, **progress: Any) -> dict[str, Any]:
    return {
        "task_id": task_id(number),
        "task_name": name,
        "queue_name": queue,
        "attempt": 1,
        "started_at": NOW - age_s * SECOND,
        "is_persisted": is_persisted,
        "progress": progress or None,
    }


INSTANCES: Final = (
    (
        ALIVE, "web", 812, NOW - 3 * HOUR, NOW - SECOND,
        _document(
            unwritten_count=4,
            tasks=[
                _running(1, "app.reports:build", "default", 63, is_persisted=True, done=62, total=100, text="page 62"),
                _running(90, "app.jobs:resize", "reports", 700, is_persisted=False, done=1204, text="a.jpg"),
                _running(2, "app.jobs:send_mail", "mail", 5, is_persisted=True),
            ],
        ),
    ),
    (
        SILENT, None, 9013, NOW - 26 * HOUR, NOW - 20 * SECOND,
        _document(
            is_stopping=True, lanes={}, queues={}, unlisted_queues={}, memory_only={},
            task_names=["app.jobs:send_mail"],
            stuck_count=2, unsaved_count=3, unsaved_since=NOW - 9 * SECOND, running_count=0,
            failing_duties={"retention": "OperationalError: disk I/O error"},
        ),
    ),
    (
        FROZEN, "worker", 77, NOW - 5 * HOUR, NOW - 4 * MINUTE,
        _document(
            unsaved_count=120, degraded_since=NOW - 5 * MINUTE, running_count=1,
            memory_only={"running": 0, "waiting": 0}, lanes={"process": {"running": 1, "limit": 2}},
            queues={"default": {"waiting": 0, "running": 1, "limit": 10, "scope": "instance"}}, unlisted_queues={},
        ),
    ),
    (DEAD, "old", 4711, NOW - 9 * HOUR, NOW - 12 * MINUTE, _document(running_count=9)),
)  # fmt: skip

_OPTIONS: Final = '{"persist":true,"timeout_s":30.0,"lane":"thread","requeue_on_interrupt":true}'
_FAILED: Final = {
    "status": "FAILED",
    "error_code": "UNHANDLED_EXCEPTION",
    "failed_reason": TRACEBACK,
    "result": json.dumps({"err": {"error_code": "UNHANDLED_EXCEPTION", "message": MESSAGE, "data": None}}),
    "failed_at": NOW - 2 * MINUTE,
    "updated_at": NOW - 2 * MINUTE,
    "started_at": NOW - 3 * MINUTE,
    "start_count": 2,
    "worker_pid": 812,
    "worker_hostname": "host-1",
}
_DONE: Final = {"status": "COMPLETED", "start_count": 1, "result": '{"ok":{"pages":12}}'}

TASKS: Final[tuple[dict[str, Any], ...]] = (
    {
        "id": task_id(1), "task_name": "app.reports:build", "status": "RUNNING", "claimed_by_worker_id": ALIVE,
        "started_at": NOW - 63 * SECOND, "start_count": 1, "task_options": _OPTIONS, "worker_pid": 812,
        "worker_hostname": "host-1", "progress": '{"done":62,"total":100,"text":"page 62"}',
    },
    {
        "id": task_id(2), "task_name": "app.jobs:send_mail", "queue_name": "mail", "status": "RUNNING",
        "claimed_by_worker_id": ALIVE, "started_at": NOW - 5 * SECOND, "start_count": 3, "retry_count": 2,
        "max_retries": 5, "cancel_requested_at": NOW - SECOND,
    },
    {
        "id": task_id(3), "task_name": "app.jobs:send_mail", "queue_name": "mail", "status": "CLAIMED", "claimed": 1,
        "claimed_by_worker_id": ALIVE, "claimed_at": NOW - SECOND,
    },
    {"id": task_id(4), "claimed_by_worker_id": ALIVE, "enqueued_at": NOW - 42 * SECOND},
    {
        "id": task_id(5), "status": "RUNNING", "claimed_by_worker_id": DEAD, "started_at": NOW - 15 * MINUTE,
        "start_count": 1, "task_options": _OPTIONS,
    },
    {
        "id": task_id(6), "task_name": "app.reports:build", "status": "RUNNING", "claimed_by_worker_id": DEAD,
        "started_at": NOW - 14 * MINUTE, "start_count": 1, "max_retries": 1,
    },
    {"id": task_id(7), "claimed_by_worker_id": "i-gone", "queue_name": "mail"},
    {"id": task_id(8), "enqueued_at": NOW - 9 * MINUTE, "tags": '{"user":"1","order":"A-7"}', "priority": 5},
    {"id": task_id(9), "queue_name": "paused-queue", "enqueued_at": NOW - 3 * MINUTE},
    {"id": task_id(10), "task_name": "app.legacy.jobs:nobody_knows_this_function", "enqueued_at": NOW - 3 * HOUR},
    {
        "id": task_id(11), "enqueued_at": NOW + 90 * SECOND, "next_retry_at": NOW + 90 * SECOND, "retry_count": 1,
        "max_retries": 3, "start_count": 1,
    },
    {"id": task_id(12), "enqueued_at": NOW + 26 * HOUR, "good_until": NOW + 27 * HOUR, "idempotency_key": "mail-7"},
    {
        **_FAILED, "id": task_id(13), "task_name": "app.jobs:send_mail", "queue_name": "mail", "max_retries": 1,
        "retry_count": 1, "args": '["ann@example.org"]', "kwargs": '{"subject":"Grüße","copies":2}',
        "log": f'[{{"at":{NOW - 3 * MINUTE},"attempt":1,"text":"connecting","host":"smtp.example.org"}}]',
    },
    {**_FAILED, "id": task_id(14), "error_code": "SMTP_DOWN", "result": None, "args": None, "kwargs": None},
    {**_DONE, "id": task_id(15), "task_name": "app.reports:build", "completed_at": NOW - 30 * SECOND},
    {
        **_DONE, "id": task_id(16), "sent_at": NOW - 4 * HOUR, "completed_at": NOW - 3 * HOUR,
        "result": "c2VhbGVk", "args": "c2VhbGVk",
    },
    {
        "id": task_id(17), "status": "CANCELLED", "error_code": "TASK_CANCELLED", "sent_at": NOW - 2 * HOUR,
        "failed_at": NOW - HOUR,
    },
    {
        "id": task_id(18), "status": "EXPIRED", "error_code": "TASK_EXPIRED", "sent_at": NOW - 27 * HOUR,
        "failed_at": NOW - 26 * HOUR,
    },
    {
        "id": task_id(19), "status": "INTERRUPTED", "error_code": "TASK_INTERRUPTED", "failed_at": NOW - 9 * MINUTE,
        "start_count": 1, "task_name": "app.jobs:with\x1b[31m a name\n",
    },
    {
        "id": task_id(20), "task_name": "app.reports:nightly", "scheduled_for": NOW - 7 * HOUR, **_DONE,
        "sent_at": NOW - 7 * HOUR, "completed_at": NOW - 7 * HOUR + 90 * SECOND, "tags": '{"schedule":"nightly"}',
    },
)  # fmt: skip

ATTEMPTS: Final = (
    (13, 1, "FAILED", 1, 180, 1_250_000, "UNHANDLED_EXCEPTION", MESSAGE, TRACEBACK),
    (13, 2, "FAILED", 0, 121, 900, "UNHANDLED_EXCEPTION", MESSAGE, TRACEBACK),
    (14, 1, "WORKER_FAILURE", 1, 200, 65 * SECOND, "WORKER_CRASHED", "its owner is gone", "its owner is gone"),
    (14, 2, "FAILED", 0, 150, 2 * SECOND, "SMTP_DOWN", "the server\nis away", None),
    (15, 1, "COMPLETED", 0, 70, 40 * SECOND, None, None, None),
    (2, 1, "FAILED", 1, 50, 12_000, "SMTP_DOWN", "the server is away", None),
    (2, 2, "INTERRUPTED", 1, 20, 3 * SECOND, None, None, None),
    (11, 1, "FAILED", 1, 33, 5_000, "UNHANDLED_EXCEPTION", "KeyError: 'total'", TRACEBACK),
    (16, 1, "COMPLETED", 0, 10_900, 7 * MINUTE, None, None, None),
)

SCHEDULES: Final = (
    ("nightly", NOW - 7 * HOUR, NOW + 17 * HOUR, task_id(20), 41, None, ALIVE, "30 2 * * * UTC"),
    ("every-minute-for-whoever-has-a-long-name", NOW - 50 * SECOND, NOW + 10 * SECOND, None, 1_204_332, None, ALIVE,
     "every 60 s"),
    ("halted", NOW - 200 * HOUR, None, None, 3, NOW - 100 * HOUR, ALIVE, "0 9 * * 1 Europe/Berlin"),
    ("forgotten", None, NOW + 24 * HOUR, None, 0, None, DEAD, "every 86400 s"),
)  # fmt: skip


def write(database: Path) -> None:
    """Make the file. The tables are the store's own; the rows are put in one by one, as plain SQL."""
    write_empty(database)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        for name, instance_name, pid, started_at, updated_at, said in INSTANCES:
            row = (name, instance_name, "host-1", pid, "MainProcess", None, started_at, None, said, updated_at)
            connection.execute(f"INSERT INTO taskmanager_instances VALUES ({', '.join('?' * 10)})", row)
            connection.execute(
                "INSERT INTO taskmanager_heartbeats (sender_id, role, sent_at) VALUES (?, 'runner', ?)",
                (name, updated_at),
            )
        for number, changes in enumerate(TASKS):
            sent_at = NOW - 20 * MINUTE + number * SECOND
            values = {
                "task_name": "app.jobs:resize", "queue_name": "default", "priority": 50, "args": "[7]", "kwargs": "{}",
                "status": "PENDING", "sent_at": sent_at, "enqueued_at": sent_at, "task_options": '{"persist":true}',
                "created_at": sent_at, "updated_at": NOW - 5 * MINUTE, **changes,
            }  # fmt: skip
            names, marks = ", ".join(values), ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO taskmanager_tasks ({names}) VALUES ({marks})", tuple(values.values()))
        for number, attempt, outcome, will_retry, ago_s, took_us, code, message, reason in ATTEMPTS:
            began = NOW - ago_s * SECOND
            connection.execute(
                "INSERT INTO taskmanager_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at,"
                " error_code, error_message, failed_reason, worker_id, created_at) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (task_id(number), attempt, outcome, will_retry, began, began + took_us, code, message, reason, ALIVE,
                 began),
            )  # fmt: skip
        for name, last, following, last_task, runs, paused, owner, definition in SCHEDULES:
            template = json.dumps({"task_name": f"app.reports:{name}"})
            row = (name, last, following, last_task, runs, "ab12", paused, NOW - HOUR, owner, f"app.reports:{name}",
                   definition, template)  # fmt: skip
            connection.execute(f"INSERT INTO taskmanager_schedule_state VALUES ({', '.join('?' * 12)})", row)
        connection.execute("INSERT INTO taskmanager_queues VALUES ('paused-queue', ?)", (NOW - HOUR,))
        connection.execute(
            "INSERT INTO taskmanager_figures (span, at, task_name, queue_name, started, completed, failed, waited_1,"
            " waited_5, ran_3, ran_8) VALUES (60, ?, 'app.jobs:send_mail', 'mail', 100, 90, 10, 95, 5, 90, 10)",
            (NOW - NOW % MINUTE - 2 * MINUTE,),
        )
    lock_path(database, DEAD).touch()  # nobody holds it


def write_empty(database: Path) -> None:
    """Make a file without a task."""

    async def make() -> None:
        store = SqliteStore(database)
        await store.open()
        await store.close()

    asyncio.run(make())
    database.chmod(0o600)


@contextlib.contextmanager
def living(database: Path) -> Iterator[None]:
    """Let the instances of the file live, the frozen one too: they hold their locks during the block."""
    locks = [InstanceLock(database, name) for name in LOCKED]
    for lock in locks:
        lock.take()
    try:
        yield
    finally:
        for lock in locks:
            lock.drop()
