"""What is said between instances after a commit: channels, payloads, and what waits to be said.

A transaction that calls NOTIFY takes one lock for the whole cluster at its commit, and keeps it until the commit is on
disk and on the standby. So no transaction that writes rows calls it. The session of the watch does, in transactions of
its own which wait for no disk. A notice that is lost costs a poll.
"""

import hashlib
import json
import threading
from collections.abc import Collection
from typing import Any, Final, NamedTuple

MAX_PAYLOAD_BYTES: Final = 7_900
"""PostgreSQL refuses a payload of 8,000 bytes."""
MAX_IDS: Final = 180
"""So many ids of a usual length fit. More are not kept either."""
MAX_CHANNEL_BYTES: Final = 63
SAY_ONCE: Final = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"
"""One notice by a session that has no settings for it: it waits for no disk."""
_PREFIX: Final = "taskmanager_"
_NEWS: Final = '"news":true'
ROW_CHANNELS: Final = ("task_new", "task_done")
"""Where the trigger tells of rows that were written by other programs."""


def channel_of(schema: str) -> str:
    """Return the channel of the library's own notices in this schema; hashed where the name is too long for one."""
    name = _PREFIX + schema
    if len(name.encode()) <= MAX_CHANNEL_BYTES:
        return name
    return _PREFIX + hashlib.sha256(schema.encode()).hexdigest()[:32]


def is_of(schema: str, payload: str) -> bool:
    """Return whether a notice is about this schema, `<schema>:<what>`. Channels are those of the whole database.

    One that names no schema was sent by hand, and costs a look.
    """
    return payload.startswith(f"{schema}:") or ":" not in payload


def has_news(payload: str) -> bool:
    """Return whether a notice tells of more than tasks that were written. What is not understood may."""
    return ":{" not in payload or _NEWS in payload


class Notices:
    """What is to be said next. Many commits become one notice, with their ids as long as they fit.

    A write without ids is of something else than tasks, such as a pause: that is news for everybody.
    """

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._lock = threading.Lock()
        self._ids: dict[str, dict[str, None]] = {}
        self._count = 0
        self._is_many = self._has_any = self._has_news = False

    def __bool__(self) -> bool:
        return self._has_any

    def add(self, task_ids: Collection[str], what: str) -> bool:
        """Add the ids of one commit, if it has some. Return whether nothing waited before."""
        with self._lock:
            is_first, self._has_any = not self._has_any, True
            self._has_news = self._has_news or not task_ids
            self._count += len(task_ids)
            if self._count > MAX_IDS:
                self._is_many = True
                self._ids.clear()
            elif not self._is_many:
                self._ids.setdefault(what, {}).update(dict.fromkeys(task_ids))
            return is_first

    def put_back(self) -> None:
        """Let it be said again, without its ids, that something was committed: what was taken could not be said."""
        with self._lock:
            self._is_many = self._has_any = self._has_news = True
            self._ids.clear()

    def take(self) -> str:
        """Return the payload for all that waits, which does not wait any more."""
        with self._lock:
            ids, self._ids = self._ids, {}
            is_many, self._is_many = self._is_many, False
            news = {"news": True} if self._has_news else {}
            self._count, self._has_any, self._has_news = 0, False, False
        if not is_many:
            said = self._payload({what: list(some) for what, some in ids.items() if some} | news)
            if len(said.encode()) <= MAX_PAYLOAD_BYTES:
                return said
        return self._payload({"many": True} | news)

    def _payload(self, said: dict[str, Any]) -> str:
        return f"{self._schema}:{json.dumps(said, separators=(',', ':'), ensure_ascii=False)}"


class QueueState(NamedTuple):
    """The server's queue of notifications, from 0 to 1, and the session that may keep it from being emptied.

    A session that listens reads nothing while it is in a transaction. The server does not say who listens, so it is
    the one that has been in a transaction for the longest time, in whatever database: its process, name, and seconds.
    None where none is, or where this role may not see it.
    """

    usage: float
    pid: int | None
    application_name: str | None
    open_s: float | None


QUEUE_STATE: Final = """
    SELECT pg_notification_queue_usage(), oldest.pid, oldest.application_name,
        extract(epoch FROM clock_timestamp() - oldest.xact_start)::float8
    FROM (SELECT 1) AS one LEFT JOIN LATERAL (
        SELECT pid, application_name, xact_start FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND xact_start IS NOT NULL
            AND pid <> pg_backend_pid()
        ORDER BY xact_start LIMIT 1
    ) AS oldest ON true
"""


def queue_state(connection: Any) -> QueueState:
    """Ask a connection, ours or psycopg's, for the state of the queue."""
    return QueueState(*connection.execute(QUEUE_STATE).fetchone())
