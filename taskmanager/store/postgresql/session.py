"""A connection to PostgreSQL as the verbs see it: see `Session`.

The verbs send SQL in SQLite's words. It is put into PostgreSQL's once, and every table gets the name of its schema, so
that no `search_path` is needed, which a pooler would forget between two transactions.

Who writes begins with an advisory lock of the transaction: alone, as SQLite's writers are, or beside others, if all
that it does repeats its preconditions. That lock is not one of the tables: rows that other programs hold, or a dump,
never meet it. A program that stands still in the middle loses its transaction to `idle_in_transaction_session_timeout`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

import psycopg
from psycopg.adapt import Loader
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.record import TaskRow, TaskWrite, Write
from taskmanager.store.constraints import encodable
from taskmanager.store.postgresql import claims
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.expired import Expired
from taskmanager.store.postgresql.floors import Floors
from taskmanager.store.postgresql.free_pairs import FreePairs
from taskmanager.store.postgresql.notices import SAY_ONCE, Notices, channel_of
from taskmanager.store.postgresql.taken import Taken
from taskmanager.store.postgresql.words import translated
from taskmanager.store.postgresql.writing import send, write
from taskmanager.store.protocol import ClaimRequest, FreeQueue
from taskmanager.store.sql.session import Values
from taskmanager.store.sql.statements import Kind, Row

if TYPE_CHECKING:
    from taskmanager.store.statistics import FileSize

TABLES: Final = (
    "tasks", "task_attempts", "heartbeats", "worker_states", "schedule_state", "instances", "queues", "steps",
    "events", "workflows", "workflow_tasks", "workflow_edges", "figures", "schema",
)  # fmt: skip
_OWN: Final = re.compile(rf"(?<![\w.\"'])(taskmanager_(?:{'|'.join((*TABLES, 'json'))}))\b")
"""A table, or the function that reads JSON."""
IDLE_MS: Final = 10_000
"""How long a transaction of ours may stand still before the server ends it: its locks keep others waiting."""
_PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_sort": "off",
    "jit": "off",
}
"""How writers have their statements planned: by the indexes that they were written for, whatever the values are.

A planner that knows the values, or hopes for a small table, joins the rows of a batch with all rows of their status: a
hundred starts then read a million waiting rows. And it compiles what it takes for long, which takes seconds.
"""
LOCK_MS: Final = 3_000
"""How long a transaction of ours waits for a row that another program holds. Whoever must write alone waits for ours,
and everybody else behind that one: so it is given up, and done again when these were let in.
"""
_SET: Final = "set_config('{}', '{}', true)"
_PLANNED: Final = "SELECT " + ", ".join(_SET.format(*each) for each in _PLANS.items())
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Each statement sees what was committed before it. Whatever the server or the role has as its default: a transaction
with one snapshot takes that before it gets the lock, so it would decide by what was so before the one that it has
waited for.
"""
_WRITING: Final = 0x7461736B
"""The first half of the lock that writers take; the second is the schema."""
_GUILTY_CLASSES: Final = frozenset({"22", "23"})
"""Data exceptions and violated constraints."""
_TOO_LARGE: Final = "54000"
_UNREPLICATED: Final = "01000"
_RAISED: Final = "exec_stmt_raise"
"""Where a warning comes from that a trigger has written, which runs at the commit."""
_CONFIRM: Final = ", pg_logical_emit_message(true, 'taskmanager', '')"


_NO_NUL: Final = "\ufffd"
T = TypeVar("T", bound=tuple[Any, ...])


def _without_nul(row: T) -> T:
    made = (each.replace("\0", _NO_NUL) if isinstance(each, str) else each for each in row)
    return tuple.__new__(type(row), made)


class _Truth(Loader):
    """Truth values as SQLite has them: 0 and 1."""

    def load(self, data: Any) -> int:
        return int(bytes(data) == b"t")


class _Number(Loader):
    """What PostgreSQL adds up as `numeric`."""

    def load(self, data: Any) -> int | float:
        text = bytes(data)
        return float(text) if b"." in text else int(text)


def adapt(connection: "psycopg.Connection[Any]") -> None:
    """Let values come and go as with SQLite."""
    connection.adapters.register_dumper(int, Int8Dumper)  # one type, or each size of a number is another statement
    connection.adapters.register_loader("bool", _Truth)
    connection.adapters.register_loader("numeric", _Number)


class PostgresSession:
    """One connection.

    It `is_pooled` if a pooler stands between: the next transaction may be with another process of the server. While it
    `is_unsynced`, commits do not wait for the disk.
    """

    faults: ClassVar[tuple[type[Exception], ...]] = (psycopg.Error, OverflowError, UnicodeEncodeError)
    too_large: ClassVar[type[Exception]] = psycopg.errors.ProgramLimitExceeded

    def __init__(self, raw: "psycopg.Connection[Any]", address: Address) -> None:
        self.raw = raw
        self.address = address
        self.number = 0
        """The oid of the schema, as a signed number of four bytes."""
        self.is_pooled = False
        self.is_unsynced = False
        self.read_settings = ""
        """What a transaction that reads is told, where no setting of the session is kept."""
        self._opening: str | None = None
        """What begins the transaction that is asked for: it goes to the server with the first statement of it."""
        self._words: dict[str, str] = {}
        self._floors: defaultdict[str, Floors] = defaultdict(Floors)
        """By queue."""
        self._taken: defaultdict[str, Taken] = defaultdict(Taken)
        self._free_pairs = FreePairs()
        self._expired = Expired()
        self._is_unreplicated = False
        self._is_confirmed = False
        """Whether a commit of this session, and so all that was committed before, is where commits have to be."""
        raw.add_notice_handler(self._hear)

    def __repr__(self) -> str:
        return f"<PostgresSession {self.address}>"

    @property
    def in_transaction(self) -> bool:
        """See `Session.in_transaction`."""
        return self._opening is not None or self._is_open

    @property
    def _is_open(self) -> bool:
        return self.raw.info.transaction_status is not TransactionStatus.IDLE

    def set_number(self, oid: int) -> None:
        """Note which schema it is: locks are named after it."""
        self.number = oid - (1 << 32) if oid >= 1 << 31 else oid

    def named(self, sql: str) -> str:
        """Return SQL in PostgreSQL's words, with the schema before each table."""
        known = self._words.get(sql)
        if known is None:
            known = self._words[sql] = self.qualified(translated(sql))
        return known

    def qualified(self, sql: str) -> str:
        """Return SQL with the schema before each table."""
        schema = self.address.quoted_schema.replace("%", "%%")
        return _OWN.sub(rf"{schema}.\1", sql)

    def execute(self, sql: str, values: Values = (), /) -> "psycopg.Cursor[Any]":
        """See `Session.execute`."""
        return self.execute_plain(self.named(sql), values)

    def execute_plain(self, sql: str, values: Values | None = None, /) -> "psycopg.Cursor[Any]":
        """Do SQL of PostgreSQL's own, whose tables have their schema."""
        if self._opening is None:
            return self.raw.execute(cast("Any", sql), values)
        with self._pipelined():
            self._open()
            return self.raw.execute(cast("Any", sql), values)

    def execute_by_indexes(self, sql: str, values: Values = ()) -> "psycopg.Cursor[Any]":
        """Do one statement that reads, planned as those of writers are, in one way to the server and back."""
        try:
            with self._pipelined():
                self.raw.execute("BEGIN READ ONLY")
                self.raw.execute(_PLANNED)
                found = self.execute(sql, values)
                self.raw.execute("COMMIT")
        finally:
            self.rollback()
        return found

    def executemany(self, sql: str, rows: Iterable[Values], /) -> object:
        """See `Session.executemany`."""
        with self._pipelined(), self.raw.cursor() as cursor:
            self._open()
            cursor.executemany(cast("Any", self.named(sql)), list(rows))
        return None

    @contextmanager
    def transaction(self, *, is_beside: bool = False) -> Iterator[None]:
        """See `Session.transaction`."""
        settings = {
            **_PLANS,
            "taskmanager.silent": "on",
            "idle_in_transaction_session_timeout": IDLE_MS,
            "lock_timeout": LOCK_MS,
            **({"synchronous_commit": "off"} if self.is_unsynced else {}),
        }
        made = ", ".join(_SET.format(*each) for each in settings.items())
        # What an earlier session has committed may be on this server only, and a commit that has changed nothing would
        # not wait for the standby. So the first one writes something. Whoever finds a row by then may call it saved.
        confirm = "" if self._is_confirmed or self.is_unsynced else _CONFIRM
        lock = "pg_advisory_xact_lock_shared" if is_beside else "pg_advisory_xact_lock"
        self._opening = f"SELECT {made}{confirm}, {lock}({_WRITING}, {self.number})"
        try:
            yield
            self.commit()
        finally:
            self.rollback()

    def together(self) -> AbstractContextManager[None]:
        """See `Session.together`."""
        return self._pipelined()

    @contextmanager
    def _pipelined(self) -> Iterator[None]:
        """Send what follows without waiting for its answers in between. The first error is raised.

        It must not leave the pipeline itself: the driver would log a warning of its own, each time that the server
        breaks a transaction off.
        """
        fault: psycopg.Error | None = None
        try:
            with self.raw.pipeline():
                try:
                    yield
                except psycopg.Error as error:
                    fault = error
        except psycopg.Error:
            if fault is None:
                raise
        if fault is not None:
            raise fault

    def _open(self) -> None:
        """Begin the transaction that is asked for, if that is not done yet."""
        opening, self._opening = self._opening, None
        if opening is not None:
            self.raw.execute(_BEGIN)
            self.raw.execute(cast("Any", opening))

    def commit(self) -> None:
        """End the transaction; what it has written stays.

        Raises `StoreUnavailable` if the server says that it may not be on the standby: nobody knows then what stays.
        """
        if self._opening is not None:  # nothing was asked, so there is nothing to be committed
            return
        self._is_unreplicated = False
        self.raw.execute("COMMIT")
        if not self.is_unsynced:  # such a commit waits for no standby, and proves nothing
            self._is_confirmed = not self._is_unreplicated
        if self._is_unreplicated:
            raise StoreUnavailable(
                f"{self.address} has committed, and its standby may not have it: whether that stays is not known yet"
            )

    def rollback(self) -> None:
        """End the transaction, if one is open; nothing of it stays."""
        self._opening = None
        if not self.raw.closed and self._is_open:
            self.raw.execute("ROLLBACK")

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        is_raised = notice.source_function == _RAISED
        if notice.sqlstate == _UNREPLICATED and notice.severity_nonlocalized == "WARNING" and not is_raised:
            self._is_unreplicated = True

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See `Session.snapshot`."""
        if self.in_transaction:
            yield
            return
        self.raw.execute(cast("Any", f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY{self.read_settings}"))
        try:
            yield
        finally:
            self.rollback()

    @contextmanager
    def by_indexes(self) -> Iterator[None]:
        """See `Session.by_indexes`."""
        self._opening = _PLANNED
        try:
            yield
        finally:
            self.rollback()

    def write(self, kind: Kind, rows: Sequence[Row], changed_ids: set[str] | None = None) -> int:
        """See `Session.write`."""
        return write(self, kind, rows, changed_ids)

    def may_take(self, request: ClaimRequest) -> bool:
        """See `Session.may_take`. A claim waits for nobody here, so it is no dearer than the look."""
        return True

    def take(self, request: ClaimRequest, limit: int) -> list[TaskRow]:
        """See `Session.take`."""
        return claims.take(self, request, limit, self._floors[request.queue_name])

    def free_pairs(self, ahead_us: int = 0) -> list[FreeQueue]:
        """Return what `Store.free_queues` does for a cap of one. See `FreePairs.look`."""
        return self._free_pairs.look(self, ahead_us)

    def fetch_expired(self, now: int, limit: int) -> list[TaskRow]:
        """See `Store.fetch_expired`."""
        return self._expired.look(self, now, limit)

    def take_needed_look(self) -> bool:
        """Return, once, whether looks or claims that begin at floors may have passed rows over. From any thread."""
        return self._free_pairs.take_needed_look() or any(
            each.take_needed_look() for each in list(self._floors.values())
        )

    def count_taken(self, queue_name: str, now: int) -> int:
        """See `Session.count_taken`."""
        claims.hold_queue(self, queue_name, self.number)
        return self._taken[queue_name].count(self, queue_name, now)

    def write_all(self, batches: Sequence[tuple[Kind, Sequence[Row]]]) -> list[int]:
        """See `Session.write_all`. All of it is one way to the server and back.

        On each way the thread gives the interpreter away, and waits up to 5 ms until a busy loop hands it back.
        """
        with self._pipelined():
            self._open()
            sent = []
            for kind, rows in batches:
                sent.append(send(self, kind, rows, expects_all=True))
                self.raw.pgconn.flush()  # the server writes them while the next ones are put together
        return [sum(cursor.rowcount for cursor in cursors) for cursors in sent]

    def storable(self, write: Write) -> Write:
        """See `Session.storable`. No text holds a NUL here, and no tags an escaped one, because of their index."""
        found = encodable(write)
        if isinstance(found, TaskWrite):
            row = _without_nul(found.row)
            tags = None if row.tags is None else row.tags.replace("\\u0000", _NO_NUL)
            found = found._replace(row=row._replace(tags=tags), attempts=tuple(map(_without_nul, found.attempts)))
        return found

    def holdable(self, row: Row, tags: int | None = None) -> Row:
        """See `Session.holdable`. What is no UTF-8 is a text of another class."""
        if tags is not None and "\\u0000" in (row[tags] or ""):
            row = (*row[:tags], row[tags].replace("\\u0000", _NO_NUL), *row[tags + 1 :])
        if all("\0" not in value if type(value) is str else not isinstance(value, str) for value in row):
            return row
        return tuple(
            str(value).replace("\0", _NO_NUL)
            if isinstance(value, str) and (type(value) is not str or "\0" in value)
            else value
            for value in row
        )

    def say(self, task_ids: Sequence[str]) -> None:
        """Tell all instances what was committed. A notice that is lost costs a poll."""
        notices = Notices(self.address.schema)
        notices.add(task_ids, "written")
        with suppress(psycopg.Error):
            self.execute_plain(SAY_ONCE, (channel_of(self.address.schema), notices.take()))

    def skip_ids(self, table: str) -> None:
        """See `Session.skip_ids`. Needs the right to change the sequence, which whoever made the schema has."""
        self.execute_plain(
            "SELECT setval(s.name, s.last) FROM ("
            f"SELECT pg_get_serial_sequence(%s, 'id')::regclass AS name, max(id) AS last FROM {self.qualified(table)}"
            ") AS s WHERE s.last > coalesce(pg_sequence_last_value(s.name), 0)",
            (self.qualified(table).replace("%%", "%"),),
        )

    def is_rows_fault(self, error: Exception) -> bool:
        """See `Session.is_rows_fault`."""
        if not isinstance(error, psycopg.Error):
            return True
        code = error.sqlstate
        if code is None:  # the driver itself refused a value, such as a text with a NUL
            return isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
        return code[:2] in _GUILTY_CLASSES or code == _TOO_LARGE

    def size(self) -> "FileSize":
        """See `Session.size`. What is unused in the tables is not known without reading them."""
        from taskmanager.store.statistics import FileSize  # only those who look at it load this

        (total,) = self.execute_plain(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c"
            " WHERE c.relnamespace = %s::regnamespace AND c.relkind = 'r'",
            (self.address.quoted_schema,),
        ).fetchone() or (0,)
        (version,) = self.execute("SELECT coalesce(max(version), 0) FROM taskmanager_schema").fetchone() or (0,)
        return FileSize(total, 0, version)

    def tidy(self) -> None:
        """See `Session.tidy`: autovacuum does all of that."""
