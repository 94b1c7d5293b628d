"""The few big statements that carry a batch, and how a batch is cut into them.

Every `sqlite3_step` gives the GIL away and must win it back; beside a busy event loop that takes up to the
interpreter's switch interval of 5 ms. So a batch is a handful of statements with many rows each. Their sizes are fixed,
so that each is prepared once; a batch that nearly fills a size is padded with rows of NULLs, which the statement
ignores.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from taskmanager.model.record import AttemptRow, TaskRow
from taskmanager.model.states import LIVE, TERMINAL

SIZES: Final = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
_PADDING_FRACTION: Final = 0.25

TASK_COLUMNS: Final = ("id", *TaskRow._fields[1:])
ATTEMPT_COLUMNS: Final = AttemptRow._fields
_EXPECTED: Final = ("expected_status", "expected_owner", "expected_start_count")
_NEVER_UPDATED: Final = frozenset({"id", "task_name", "sent_at", "created_at", "cancel_requested_at"})


def quoted(statuses: Sequence[str]) -> str:
    """Statuses as an SQL list, as the partial indexes spell them."""
    return ", ".join(f"'{status}'" for status in statuses)


LIVE_SQL: Final = quoted([status for status in ("PENDING", "CLAIMED", "RUNNING") if status in LIVE])
TERMINAL_SQL: Final = quoted(sorted(TERMINAL))


def _values(columns: int, rows: int) -> str:
    row = "(" + ", ".join("?" * columns) + ")"
    return ", ".join([row] * rows)


def _column(name: str) -> str:
    return f"column{TASK_COLUMNS.index(name) + 1}"


def memory_only(table: str) -> str:
    """SQL for: the task of this row was never promised to survive."""
    options = f"{table}.task_options"
    return f"CASE WHEN json_valid({options}) THEN coalesce(json_extract({options}, '$.persist'), 0) = 0 ELSE 0 END"


@cache
def insert_tasks(rows: int) -> str:
    """Insert tasks. An id that is taken is left alone, except that an ended memory-only task may replace another."""
    names = ", ".join(TASK_COLUMNS)
    replaced = ", ".join(f"{name} = excluded.{name}" for name in TASK_COLUMNS[1:])
    return f"""
        INSERT INTO taskmanager_tasks ({names}, claimed)
        SELECT *, column7 = 'CLAIMED' FROM (VALUES {_values(len(TASK_COLUMNS), rows)}) WHERE column1 IS NOT NULL
        ON CONFLICT (id) DO UPDATE SET {replaced}, claimed = 0
        WHERE {replaceable("taskmanager_tasks")} AND {replaceable("excluded")}
    """


def replaceable(table: str) -> str:
    """SQL for: an ended row of a memory-only task."""
    return f"{table}.status IN ({TERMINAL_SQL}) AND {memory_only(table)}"


@cache
def update_tasks(rows: int) -> str:
    """Change tasks, each only while its status, owner and start count are what the writer last saw.

    A cancel request in the row was perhaps put there by somebody else since, so NULL does not clear it, except where a
    terminal row is retried.
    """
    changed = ", ".join(f"{name} = v.{_column(name)}" for name in TASK_COLUMNS if name not in _NEVER_UPDATED)
    cancel = _column("cancel_requested_at")
    first = len(TASK_COLUMNS) + 1
    return f"""
        UPDATE taskmanager_tasks AS t SET {changed}, claimed = (v.column7 = 'CLAIMED'),
            cancel_requested_at = CASE WHEN v.column{first} IN ({TERMINAL_SQL}) THEN v.{cancel}
                ELSE coalesce(v.{cancel}, t.cancel_requested_at) END
        FROM (VALUES {_values(first + 2, rows)}) AS v
        WHERE t.id = v.column1 AND t.status = v.column{first}
            AND t.claimed_by_worker_id IS v.column{first + 1} AND t.start_count = v.column{first + 2}
    """


@cache
def insert_attempts(rows: int) -> str:
    """Insert attempts; one that is there already stays as it is."""
    names = ", ".join(ATTEMPT_COLUMNS)
    return f"""
        INSERT INTO taskmanager_task_attempts ({names})
        SELECT * FROM (VALUES {_values(len(ATTEMPT_COLUMNS), rows)}) WHERE column1 IS NOT NULL
        ON CONFLICT (task_id, attempt) DO NOTHING
    """


INSERT_WIDTH: Final = len(TASK_COLUMNS)
UPDATE_WIDTH: Final = len(TASK_COLUMNS) + len(_EXPECTED)
ATTEMPT_WIDTH: Final = len(ATTEMPT_COLUMNS)


def chunks(rows: Sequence[Sequence[Any]], width: int) -> Iterator[tuple[int, list[Any]]]:
    """Cut `rows` of `width` values into statements: the number of rows of each, and its flat parameters."""
    start = 0
    while start < len(rows):
        size = _size_for(len(rows) - start)
        part = rows[start : start + size]
        flat = list(chain.from_iterable(part))
        flat.extend([None] * (width * (size - len(part))))
        yield size, flat
        start += size


@cache
def _size_for(left: int) -> int:
    """The largest size that `left` rows fill, or nearly fill."""
    for size in SIZES:
        if left >= size * (1 - _PADDING_FRACTION):
            return size
    return 1
