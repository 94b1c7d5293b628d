"""The few big statements that carry a batch, and how a batch is cut into them.

Every `sqlite3_step` gives the GIL away and must win it back; beside a busy event loop that takes up to the
interpreter's switch interval of 5 ms. So a batch is a handful of statements with many rows each. Their sizes are fixed,
so that each is prepared once; a batch that nearly fills a size is padded with rows without an id, which the statement
ignores.

Binding a None costs Python's driver ten times what an integer costs: it looks for an adapter first. Most columns of
most rows are NULL, so columns are grouped by when they are filled, and a group that is empty in the whole batch is a
literal NULL. And most of the others are the same in the whole batch (the owner, the worker, the queue, "RUNNING"): such
a column is shared, bound once, and the rows hold only what differs.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from taskmanager.model.dataclass import dataclass
from taskmanager.model.record import AttemptRow, TaskRow
from taskmanager.model.states import LIVE, TERMINAL
from taskmanager.store import constraints

R = TypeVar("R")

SIZES: Final = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
_PADDING_FRACTION: Final = 0.25
VARIANTS: Final = 256
"""Texts kept of each statement; as many as a connection keeps prepared."""

TASK_COLUMNS: Final = ("id", *TaskRow._fields[1:])
ATTEMPT_COLUMNS: Final = AttemptRow._fields
EXPECTED: Final = ("expected_status", "expected_owner", "expected_start_count")
_NEVER_UPDATED: Final = frozenset({"task_name", "sent_at", "created_at"})


@dataclass(frozen=True, eq=False)  # compared, and hashed as a key of the caches below, by identity
class Layout:
    """The values of a row, by name in their order, which of them are filled together, and which are never used."""

    columns: tuple[str, ...]
    groups: tuple[frozenset[str], ...]
    unused: frozenset[str] = frozenset()
    shared: tuple[str, ...] = ()
    """Columns that nearly always are the same in a whole batch, so that no other one is worth a look."""

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The columns that are bound for each row beside those."""
        return tuple(name for name in self.columns if name not in self.shared)


_TASK_GROUPS: Final = (
    frozenset({"completed_at", "result"}),
    frozenset({"failed_at", "failed_reason", "error_code", "next_retry_at"}),
    frozenset({"claimed_at", "claim_expires_at"}),
    frozenset({"good_until", "scheduled_for", "cancel_requested_at", "finalizing_at", "finalizing_by_worker_id"}),
    frozenset({"tags", "idempotency_key", "enqueue_sha"}),
    frozenset({"progress", "log"}),
    frozenset({"worker_pid", "worker_hostname", "worker_process_name", "started_at"}),
)
TASK: Final = Layout(TASK_COLUMNS, _TASK_GROUPS)
UPDATE: Final = Layout(TASK_COLUMNS + EXPECTED, _TASK_GROUPS, _NEVER_UPDATED)
STEPS: Final = {
    step: Layout(TASK_COLUMNS + EXPECTED, _TASK_GROUPS, frozenset(TASK_COLUMNS[1:]) - step)
    for step in constraints.STEPS
}
_WORKER: Final = ("worker_pid", "worker_hostname", "worker_process_name")
START: Final = Layout(("id", "started_at", *_WORKER, *EXPECTED), (), shared=(*_WORKER, *EXPECTED))
SUCCESS: Final = Layout(("id", "completed_at", "result", *EXPECTED), (), shared=EXPECTED)
_OF_A_SUCCESS: Final = (
    "attempt", "outcome", "will_retry", "error_code", "error_message", "failed_reason",
    "worker_id", "worker_hostname", "worker_pid", "worker_process_name",
)  # fmt: skip
_ERROR: Final = frozenset({"error_code", "error_message", "failed_reason"})
ATTEMPT: Final = Layout(ATTEMPT_COLUMNS, (_ERROR,), shared=_OF_A_SUCCESS)

# Plain tasks: what they have in common is bound once, if it is the same for all, else for each row.
CALL: Final = ("task_name", "queue_name", "priority", "max_retries", "task_options")
OWNER: Final = ("claimed_by_worker_id", *_WORKER)
_SENT: Final = {"id": "id", "args": "args", "kwargs": "kwargs", "tags": "tags"} | dict.fromkeys(
    ("sent_at", "enqueued_at", "created_at"), "sent_at"
)
_COMPLETED: Final = {"completed_at": "completed_at", "updated_at": "completed_at", "result": "result"}


def quoted(statuses: Sequence[str]) -> str:
    """Statuses as an SQL list, as the partial indexes spell them."""
    return ", ".join(f"'{status}'" for status in statuses)


LIVE_SQL: Final = quoted([status for status in ("PENDING", "CLAIMED", "RUNNING") if status in LIVE])
TERMINAL_SQL: Final = quoted(sorted(TERMINAL))


def memory_only(table: str) -> str:
    """SQL for: the task of this row was never promised to survive."""
    options = f"{table}.task_options"
    return f"CASE WHEN json_valid({options}) THEN coalesce(json_extract({options}, '$.persist'), 0) = 0 ELSE 0 END"


def replaceable(table: str) -> str:
    """SQL for: an ended row of a memory-only task."""
    return f"{table}.status IN ({TERMINAL_SQL}) AND {memory_only(table)}"


def _values(columns: int, rows: int) -> str:
    row = "(" + ", ".join("?" * columns) + ")"
    return ", ".join([row] * rows)


class Statement(NamedTuple):
    """SQL, and which shared columns it binds before its rows and after them, in the order of their places.

    Numbered parameters would need each only once, but Python's driver takes them from mappings only.
    """

    sql: str
    before: tuple[str, ...]
    after: tuple[str, ...]


_SHARED: Final = re.compile(r"\[(\w+)\]")


def _statement(text: str) -> Statement:
    """Put a parameter where the text names a shared column in brackets."""
    head, rows, tail = text.partition("(VALUES")
    return Statement(
        _SHARED.sub("?", head) + rows + _SHARED.sub("?", tail),
        tuple(_SHARED.findall(head)),
        tuple(_SHARED.findall(tail)),
    )


def _names(shared: tuple[str, ...], bound: tuple[str, ...], table: str = "") -> dict[str, str]:
    """How a statement calls each column: shared ones in brackets, others by their place in `VALUES`."""
    names = {name: f"[{name}]" for name in shared}
    return names | {name: f"{table}column{number}" for number, name in enumerate(bound, 1)}


@lru_cache(VARIANTS)
def insert_tasks(shared: tuple[str, ...], bound: tuple[str, ...], rows: int) -> Statement:
    """Insert tasks. An id that is taken is left alone, except that an ended memory-only task may replace another."""
    at = _names(shared, bound)
    replaced = ", ".join(f"{name} = excluded.{name}" for name in TASK_COLUMNS[1:])
    return _statement(f"""
        INSERT INTO taskmanager_tasks ({", ".join(TASK_COLUMNS)}, claimed)
        SELECT {", ".join(at.get(name, "NULL") for name in TASK_COLUMNS)}, {at["status"]} = 'CLAIMED'
        FROM (VALUES {_values(len(bound), rows)}) WHERE {at["id"]} IS NOT NULL
        ON CONFLICT (id) DO UPDATE SET {replaced}, claimed = 0
        WHERE {replaceable("taskmanager_tasks")} AND {replaceable("excluded")}
    """)


@lru_cache(VARIANTS)
def update_tasks(shared: tuple[str, ...], bound: tuple[str, ...], rows: int) -> Statement:
    """Change tasks, each only while its status, owner and start count are what the writer last saw.

    A cancel request in the row was perhaps put there by somebody else since, so NULL does not clear it, except where a
    terminal row is retried.
    """
    return _update(shared, bound, rows, _NEVER_UPDATED)


@lru_cache(VARIANTS)
def step_tasks(shared: tuple[str, ...], bound: tuple[str, ...], rows: int, layout: Layout) -> Statement:
    """Start tasks, end their runs, or let them wait again: only the columns of that step."""
    return _update(shared, bound, rows, layout.unused)


@lru_cache(VARIANTS)
def start_tasks(shared: tuple[str, ...], bound: tuple[str, ...], rows: int) -> Statement:
    """First starts of waiting tasks: only what a start changes."""
    at = _names(shared, bound, "v.")
    changed = {name: at[name] for name in START.columns[1:] if name not in EXPECTED}
    changed |= {"status": "'RUNNING'", "start_count": "t.start_count + 1", "updated_at": at["started_at"]}
    changed["claimed"] = "0"
    return _conditional(changed, at, bound, rows)


@lru_cache(VARIANTS)
def complete_tasks(shared: tuple[str, ...], bound: tuple[str, ...], rows: int) -> Statement:
    """Successes of running tasks: only what a success changes."""
    at = _names(shared, bound, "v.")
    changed = {"status": "'COMPLETED'", "updated_at": at["completed_at"]}
    changed |= {name: at[name] for name in ("completed_at", "result")}
    return _conditional(changed, at, bound, rows)


def _update(shared: tuple[str, ...], bound: tuple[str, ...], rows: int, kept: frozenset[str]) -> Statement:
    at = _names(shared, bound, "v.")
    changed = {name: at.get(name, "NULL") for name in TASK_COLUMNS[1:] if name not in kept}
    cancel = changed["cancel_requested_at"]
    changed["cancel_requested_at"] = (
        f"CASE WHEN {at['expected_status']} IN ({TERMINAL_SQL}) THEN {cancel}"
        f" ELSE coalesce({cancel}, t.cancel_requested_at) END"
    )
    changed["claimed"] = f"({at['status']} = 'CLAIMED')"
    return _conditional(changed, at, bound, rows)


def _conditional(changed: Mapping[str, str], at: Mapping[str, str], bound: tuple[str, ...], rows: int) -> Statement:
    """An update of the rows whose status, owner and start count are the expected ones."""
    return _statement(f"""
        UPDATE taskmanager_tasks AS t SET {", ".join(f"{name} = {value}" for name, value in changed.items())}
        FROM (VALUES {_values(len(bound), rows)}) AS v
        WHERE t.id = {at["id"]} AND t.status = {at["expected_status"]}
            AND t.claimed_by_worker_id IS {at["expected_owner"]} AND t.start_count = {at["expected_start_count"]}
    """)


@lru_cache(VARIANTS)
def insert_attempts(shared: tuple[str, ...], bound: tuple[str, ...], rows: int) -> Statement:
    """Insert attempts; one that is there already stays as it is."""
    at = _names(shared, bound)
    return _statement(f"""
        INSERT INTO taskmanager_task_attempts ({", ".join(ATTEMPT_COLUMNS)})
        SELECT {", ".join(at.get(name, "NULL") for name in ATTEMPT_COLUMNS)}
        FROM (VALUES {_values(len(bound), rows)}) WHERE {at["task_id"]} IS NOT NULL
        ON CONFLICT (task_id, attempt) DO NOTHING
    """)


@lru_cache(VARIANTS)
def insert_plain(bound: tuple[str, ...], rows: int) -> Statement:
    """Insert plain tasks, in the state that the bound columns tell. An id that is taken is left alone.

    Columns that are not named have no value, and need none.
    """
    has_started, has_ended = "started_at" in bound, "completed_at" in bound
    shared = tuple(name for name in CALL + OWNER if name not in bound)
    at = _names(shared, bound)
    values = {name: at[source] for name, source in _SENT.items() if source in bound} | {name: at[name] for name in CALL}
    values |= {"claimed_by_worker_id": at["claimed_by_worker_id"], "updated_at": at["sent_at"], "status": "'PENDING'"}
    if has_started:
        values |= {name: at[name] for name in ("started_at", *_WORKER)}
        values |= {"updated_at": at["started_at"], "status": "'RUNNING'", "start_count": "1"}
    if has_ended:
        values |= {name: at[source] for name, source in _COMPLETED.items()} | {"status": "'COMPLETED'"}
    return _statement(f"""
        INSERT INTO taskmanager_tasks ({", ".join(values)}) SELECT {", ".join(values.values())}
        FROM (VALUES {_values(len(bound), rows)}) WHERE {at["id"]} IS NOT NULL
        ON CONFLICT (id) DO NOTHING
    """)


class Chunk(NamedTuple):
    """One execution: the columns bound once with their values, those bound per row, how many rows, and their values."""

    shared: tuple[str, ...]
    common: Mapping[str, Any]
    bound: tuple[str, ...]
    size: int
    flat: list[Any]

    def parameters(self, statement: Statement) -> list[Any]:
        """All values in the order in which `statement` binds them."""
        common = self.common
        return [common[name] for name in statement.before] + self.flat + [common[name] for name in statement.after]


def chunks(rows: Sequence[Sequence[Any]], layout: Layout) -> Iterator[Chunk]:
    """Cut `rows` into few statements of fixed sizes."""
    if layout.shared:
        pick = _picker(layout, layout.shared)
        first = pick(rows[0])
        if all(map(first.__eq__, map(pick, rows))):
            yield from _cut(rows, layout, layout.shared, layout.others)
            return
    if len(rows) == 1:
        yield _alone(rows[0], layout)
        return
    values = dict(zip(layout.columns, zip(*rows, strict=True), strict=True))
    columns = bound_columns(layout, _empty_groups(values, layout, len(rows)))
    key, rest = columns[0], columns[1:]
    shared = tuple(name for name in rest if values[name].count(values[name][0]) == len(rows))
    yield from _cut(rows, layout, shared, (key, *(name for name in rest if name not in shared)))


def _cut(
    rows: Sequence[Sequence[Any]], layout: Layout, shared: tuple[str, ...], bound: tuple[str, ...]
) -> Iterator[Chunk]:
    common = dict(zip(shared, _picker(layout, shared)(rows[0]), strict=True)) if shared else {}
    pick = _picker(layout, bound)
    for part, size in cut(rows):
        flat = list(chain.from_iterable(map(pick, part)))
        flat.extend(padding(len(bound), size - len(part)))
        yield Chunk(shared, common, bound, size, flat)


def cut(rows: Sequence[R]) -> Iterator[tuple[Sequence[R], int]]:
    """Cut `rows` into parts, each with the size of the statement that carries it."""
    start = 0
    while start < len(rows):
        size = _size_for(len(rows) - start)
        yield rows[start : start + size], size
        start += size


def padding(columns: int, rows: int) -> list[Any]:
    """Return values that fill up a statement: NULL as the id marks them, and zeros for the rest bind faster."""
    return [None, *[0] * (columns - 1)] * rows


def _alone(row: Sequence[Any], layout: Layout) -> Chunk:
    """A single row: nothing is gained by looking for what it shares with others, and somebody waits for this commit."""
    empty = frozenset(
        [number for number, (pick, size) in enumerate(_group_pickers(layout)) if pick(row).count(None) == size]
    )
    columns = bound_columns(layout, empty)
    return Chunk((), {}, columns, 1, list(_picker(layout, columns)(row)))


@cache
def _group_pickers(layout: Layout) -> tuple[tuple[Callable[[Sequence[Any]], tuple[Any, ...]], int], ...]:
    """What takes the values of each group out of a row, and how many they are."""
    return tuple((_picker(layout, tuple(group)), len(group)) for group in layout.groups)


def _empty_groups(values: Mapping[str, tuple[Any, ...]], layout: Layout, count: int) -> frozenset[int]:
    return frozenset(
        number for number, group in enumerate(layout.groups) if all(values[name].count(None) == count for name in group)
    )


@cache
def bound_columns(layout: Layout, empty: frozenset[int]) -> tuple[str, ...]:
    """The columns of which a value has to be bound, the id first."""
    left_out = layout.unused.union(*(layout.groups[number] for number in empty))
    return tuple(name for name in layout.columns if name not in left_out)


@cache
def _picker(layout: Layout, bound: tuple[str, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    places = [layout.columns.index(name) for name in bound]
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


@cache
def _size_for(left: int) -> int:
    """The largest size that `left` rows fill, or nearly fill."""
    for size in SIZES:
        if left >= size * (1 - _PADDING_FRACTION):
            return size
    return 1
