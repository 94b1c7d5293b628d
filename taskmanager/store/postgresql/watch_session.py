"""The session of the watch: what it asks the server, and what the server tells it."""

import json
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from taskmanager.store.postgresql.address import KEEPALIVES
from taskmanager.store.postgresql.lives import HAS_NO_LOCK, HELD
from taskmanager.store.postgresql.notices import ROW_CHANNELS, channel_of, has_news, is_of

_SETTINGS: Final[Mapping[str, str]] = {
    "synchronous_commit": "off",  # nobody needs a notice to be on disk or on a standby
    "lock_timeout": "1s",  # no migration may keep the watch from looking
    "statement_timeout": "10s",
    "idle_session_timeout": "0",  # since PostgreSQL 14
    "jit": "off",
    **KEEPALIVES,  # so the lock of a host that has vanished is free soon
}
_SET: Final = """
    SELECT set_config(key, value, false) FROM json_each_text(%s::json)
    WHERE key IN (SELECT name FROM pg_settings)
"""
_PLACE: Final = """
    SELECT pg_backend_pid(), pg_is_in_recovery(), to_regnamespace(%s)::oid::bigint, pg_postmaster_start_time()::text
"""
# A heartbeat may be committed after others with greater ids, so the last ones are read again. Without the LIMIT the
# planner takes them for a third of the table, and reads all of it.
_LOOK: Final = """
    SELECT to_regnamespace({name})::oid::bigint,
        ARRAY(
            SELECT objid::bigint FROM pg_locks WHERE {held} AND classid::bigint = %(schema_oid)s
        ),
        (SELECT coalesce(max(id), 0) FROM {table}),
        ARRAY(
            SELECT json_build_array(sender_id, max(id)) FROM (
                SELECT sender_id, id FROM {table}
                WHERE id > least(%(newest_id)s, (SELECT coalesce(max(id), 0) FROM {table})) - 200
                ORDER BY id DESC LIMIT 2000
            ) AS late GROUP BY sender_id
        ),
        ARRAY(SELECT instance_id FROM {instances} WHERE {no_lock}),
        pg_postmaster_start_time()::text
"""


class Seen(NamedTuple):
    """What one look has found: the numbers that are locked, the newest heartbeat, and the latest ones by sender."""

    held: frozenset[int]
    newest_id: int
    latest: Mapping[str, int]
    without_lock: frozenset[str] = frozenset()
    """Instances that can hold no lock, as their rows say."""


class WatchSession:
    """One connection, made and used in the thread of the watch. Every call raises `psycopg.Error`."""

    def __init__(self, conninfo: str, schema: str) -> None:
        self._schema = schema
        self._name = '"' + schema.replace('"', '""') + '"'
        self._look = sql.SQL(_LOOK).format(
            name=sql.Literal(self._name), table=sql.Identifier(schema, "taskmanager_heartbeats"),
            instances=sql.Identifier(schema, "taskmanager_instances"), held=sql.SQL(HELD),
            no_lock=sql.SQL(HAS_NO_LOCK),
        )  # fmt: skip
        self._heard_count = self._news_count = 0
        self._ending = threading.Lock()
        """Held while its descriptor is closed, or used by another thread."""
        self._raw: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(conninfo, autocommit=True, prepare_threshold=3)
        try:
            self._pid, self._schema_oid, self._started = self._find_place()
            # A pooler gives numbers of its own for those of the server's processes.
            self.is_pooled = self._pid != self._raw.info.backend_pid
            if self.is_pooled:
                self._raw.prepare_threshold = None  # the next transaction may be with another server process
            else:
                self._listen()
        except BaseException:
            self.close()
            raise

    def _find_place(self) -> tuple[int, int, str]:
        found = self._raw.execute(_PLACE, (self._name,)).fetchone()
        assert found is not None
        pid, is_standby, schema_oid, started = found
        if is_standby:
            raise psycopg.OperationalError("the server is a standby")
        if schema_oid is None:
            raise psycopg.OperationalError(f"there is no schema {self._schema}")
        return pid, schema_oid, started

    def _listen(self) -> None:
        self._raw.add_notify_handler(lambda notice: self._hear(notice.pid, notice.payload))
        self._raw.execute(_SET, (json.dumps(_SETTINGS),))
        for channel in (channel_of(self._schema), *ROW_CHANNELS):
            self._raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    def fileno(self) -> int:
        """Return the descriptor of its socket."""
        return self._raw.fileno()

    @property
    def is_over(self) -> bool:
        """Whether it was lost or closed."""
        return bool(self._raw.closed)

    def take_lock(self, number: int) -> bool:
        """Take the lock of this number in the schema, for the life of the session. False: another session has it."""
        asked = (_signed(self._schema_oid), number)
        found = self._raw.execute("SELECT pg_try_advisory_lock(%s::int4, %s::int4)", asked).fetchone()
        return found is not None and bool(found[0])

    def look(self, newest_id: int) -> Seen:
        """Look who holds a lock, and who has written heartbeats after `newest_id` or shortly before it."""
        asked = {"schema_oid": self._schema_oid, "newest_id": newest_id}
        found = self._raw.execute(self._look, asked).fetchone()
        assert found is not None
        schema_oid, held, last_id, latest, without_lock, started = found
        if schema_oid != self._schema_oid:
            self.close()
            raise psycopg.OperationalError(f"the schema {self._schema} was dropped or made anew")
        if started != self._started:  # a pooler keeps our connection through a restart, which has freed all locks
            self.close()
            raise psycopg.OperationalError("the server was restarted")
        return Seen(frozenset(map(_signed, held)), last_id, dict(latest), frozenset(without_lock))

    def say(self, payload: str) -> None:
        """Send a notice, in a transaction of its own."""
        self._raw.execute("SELECT pg_notify(%s, %s)", (channel_of(self._schema), payload))

    def receive(self) -> None:
        """Read what has come in, without waiting for more."""
        inside = self._raw.pgconn
        inside.consume_input()
        while notice := inside.notifies():
            self._hear(notice.be_pid, notice.extra.decode("utf-8", "replace"))

    def _hear(self, pid: int, payload: str) -> None:
        if pid != self._pid and is_of(self._schema, payload):
            self._heard_count += 1
            self._news_count += has_news(payload)

    def take_heard(self) -> tuple[int, int]:
        """Return how many notices of others have come in since the last call, and how many of them were news."""
        heard = self._heard_count, self._news_count
        self._heard_count = self._news_count = 0
        return heard

    def cut_off(self) -> None:
        """End it from another thread, also while its own waits for the server."""
        with (
            self._ending,
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self._raw.fileno())) as other,
        ):
            other.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        with self._ending:
            self._raw.close()

    def close_inherited(self) -> None:
        """Close the socket without a word to the server: a forked child would keep its dead parent alive."""
        with suppress(OSError, psycopg.Error):
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, self._raw.fileno(), inheritable=False)
            os.close(nothing)


def _signed(oid: int) -> int:
    """Return an oid, or a part of a lock, as the int4 with the same bits."""
    return oid - (1 << 32) if oid >= 1 << 31 else oid
