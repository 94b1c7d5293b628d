"""The kinds of writes, each described once. From the description each database makes statements for many rows."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from taskmanager.model.clock import LAST_US
from taskmanager.model.dataclass import dataclass
from taskmanager.model.record import DELAY_KEY, AttemptRow, HistoryWrite, NewWrite, StartWrite, SuccessWrite, TaskRow
from taskmanager.model.states import LIVE, TERMINAL
from taskmanager.model.steps import StepRow
from taskmanager.model.workflows import EdgeRow, NodeRow, WorkflowRow
from taskmanager.store import constraints
from taskmanager.store.noted import COUNTS

Row = tuple[Any, ...]


TASK_COLUMNS: Final = ("id", *TaskRow._fields[1:])
ATTEMPT_COLUMNS: Final = AttemptRow._fields
EXPECTED: Final = ("expected_status", "expected_owner", "expected_start_count")
_NEVER_UPDATED: Final = frozenset({"id", "task_name", "sent_at", "created_at"})
_WORKER: Final = ("worker_pid", "worker_hostname", "worker_process_name")
_CALL: Final = ("task_name", "queue_name", "priority", "max_retries", "task_options", "claimed_by_worker_id", *_WORKER)
ROWS: Final = "FROM (VALUES) AS v"
VALUE: Final = re.compile(r"\[(\w+)\]")


def quoted(statuses: Sequence[str]) -> str:
    """Statuses as an SQL list, as the partial indexes spell them."""
    return ", ".join(f"'{status}'" for status in statuses)


def one_of(column: str, statuses: Sequence[str]) -> str:
    """SQL for: the column has one of these values.

    Not as a list. Of a list of three or more SQLite makes a table, and does so anew for each row that is written where
    a CHECK or the condition of an index has it. The indexes spell it as this does, or a query would not find them.
    """
    return f"({' OR '.join(f'{column} = {status!r}' for status in statuses)})"


def is_live(task: str = "") -> str:
    """SQL for: the task has not ended. `task` is the name of its table with a dot, or empty."""
    return one_of(f"{task}status", _LIVE)


_LIVE: Final = [status for status in ("PENDING", "CLAIMED", "RUNNING") if status in LIVE]
LIVE_SQL: Final = quoted(_LIVE)
TERMINAL_SQL: Final = quoted(sorted(TERMINAL))
# As `is_pause` and `due_at` say it of a row.
IS_PAUSE: Final = f"(next_retry_at IS NOT NULL OR snooze_count > 0 OR instr(task_options, '{DELAY_KEY}') > 0)"
SLEEPS: Final = (
    "EXISTS (SELECT 1 FROM taskmanager_steps AS s WHERE s.task_id = taskmanager_tasks.id AND s.wakes_at > 0)"
)
"""It sleeps until an instant that was promised, and counts its sleeps as pauses."""
_DUE_AT: Final = f"""
    CASE WHEN enqueued_at <= updated_at THEN min(enqueued_at, :now)
        WHEN updated_at > :now AND enqueued_at < {LAST_US} AND {IS_PAUSE} AND NOT {SLEEPS}
            THEN :now + enqueued_at - updated_at
        ELSE enqueued_at END
"""
DUE: Final = f"enqueued_at = {_DUE_AT}, next_retry_at = iif(next_retry_at IS NULL, NULL, {_DUE_AT})"
"""What is due, or waits for a while, is so also by a wall clock that was set back since it was written."""


def _replaceable(table: str) -> str:
    """SQL for: an ended row of a task that was never promised to survive."""
    options = f"{table}.task_options"
    persist = f"CASE WHEN json_valid({options}) THEN CAST(json_extract({options}, '$.persist') AS TEXT) ELSE 'true' END"
    # One database has 0 for what is false, and the other its name.
    return f"{table}.status IN ({TERMINAL_SQL}) AND coalesce({persist}, '0') IN ('0', 'false')"


@dataclass(frozen=True, eq=False)  # compared, and hashed as a key of caches, by identity
class Kind:
    """One kind of write: its SQL, which names values in brackets, and the names of what a row of it holds.

    The first value is the id. What the SQL does not name is never bound.
    """

    sql: str
    columns: tuple[str, ...]
    often_alike: tuple[str, ...]
    """Values that many rows have in common. Only these are looked at: each set that is shared is another statement."""

    @cached_property
    def used(self) -> tuple[str, ...]:
        """The values that are bound."""
        named = frozenset(VALUE.findall(self.sql))
        return tuple(name for name in self.columns if name in named)

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """The bound values that may be the same in all rows."""
        return tuple(name for name in self.used if name in self.often_alike)


def _insert(table: str, values: Mapping[str, str], conflict: str) -> str:
    key = next(iter(values.values()))
    return (
        f"INSERT INTO {table} ({', '.join(values)}) SELECT {', '.join(values.values())} {ROWS}"
        f" WHERE {key} IS NOT NULL ON CONFLICT {conflict}"
    )


def _update(changes: Mapping[str, str]) -> str:
    """Change tasks, each only while its status, owner and start count are what the writer last saw."""
    return (
        f"UPDATE taskmanager_tasks AS t SET {', '.join(f'{name} = {value}' for name, value in changes.items())} {ROWS}"
        " WHERE t.id = [id] AND t.status = [expected_status] AND t.claimed_by_worker_id IS [expected_owner]"
        " AND t.start_count = [expected_start_count]"
    )


def _same(names: Sequence[str]) -> dict[str, str]:
    return {name: f"[{name}]" for name in names}


def _whole_update(names: Sequence[str]) -> str:
    """Change these columns of a whole row.

    A cancel request in the row was perhaps put there by somebody else since, so NULL does not clear it, except where a
    terminal row is retried.
    """
    cancel = (
        f"CASE WHEN [expected_status] IN ({TERMINAL_SQL}) THEN [cancel_requested_at]"
        " ELSE coalesce([cancel_requested_at], t.cancel_requested_at) END"
    )
    return _update(_same(names) | {"cancel_requested_at": cancel, "claimed": "iif([status] = 'CLAIMED', 1, 0)"})


# An id that is taken is left alone, except that an ended memory-only task may replace another.
INSERT: Final = Kind(
    _insert(
        "taskmanager_tasks",
        _same(TASK_COLUMNS) | {"claimed": "iif([status] = 'CLAIMED', 1, 0)"},
        f"(id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in TASK_COLUMNS[1:])}, claimed = 0"
        f" WHERE {_replaceable('taskmanager_tasks')} AND {_replaceable('excluded')}",
    ),
    TASK_COLUMNS,
    TASK_COLUMNS[1:],
)
# What a failure enqueues. Whoever writes the same failure once more enqueues nothing more.
ON_FAILURE: Final = Kind(
    _insert("taskmanager_tasks", _same(TASK_COLUMNS), "(id) DO NOTHING"), TASK_COLUMNS, TASK_COLUMNS[1:]
)
_CHANGED: Final = TASK_COLUMNS + EXPECTED
UPDATE: Final = Kind(
    _whole_update([name for name in TASK_COLUMNS if name not in _NEVER_UPDATED]), _CHANGED, _CHANGED[1:]
)
STEPS: Final = {
    step: Kind(_whole_update([name for name in TASK_COLUMNS if name in step]), _CHANGED, _CHANGED[1:])
    for step in constraints.STEPS
}
# A row of which not everything can be read. It keeps what cannot be read, so that a person can mend it.
END_UNREADABLE: Final = Kind(
    f"""
    UPDATE taskmanager_tasks AS t
    SET status = [status], claimed = 0, claimed_at = NULL, claimed_by_worker_id = NULL, completed_at = NULL,
        failed_at = [failed_at], updated_at = [updated_at], error_code = [error_code], failed_reason = [failed_reason],
        result = [result], cancel_requested_at = [cancel_requested_at], next_retry_at = NULL,
        priority = min(max(priority, 1), 100), retry_count = [retry_count], max_retries = [max_retries],
        start_count = [start_count], crash_count = [crash_count], snooze_count = [snooze_count],
        is_workflow_task = iif(is_workflow_task <> 0, 1, 0)
    {ROWS}
    WHERE t.id = CAST([id] AS TEXT) AND t.status = [expected_status]
        AND t.claimed_by_worker_id IS CAST([expected_owner] AS TEXT)
        AND iif(t.start_count BETWEEN 0 AND 2147483647, t.start_count, 0) = [expected_start_count]
    """,
    _CHANGED,
    (),
)
# Who has been asked already stays asked since then. A task that sleeps wakes to be ended.
REQUEST_CANCEL: Final = Kind(
    f"""
    UPDATE OR IGNORE taskmanager_tasks AS t
    SET updated_at = iif(t.cancel_requested_at IS NULL, [now], t.updated_at),
        enqueued_at = iif(t.claimed_by_worker_id IS NULL, min(t.enqueued_at, [now]), t.enqueued_at),
        cancel_requested_at = coalesce(t.cancel_requested_at, [now])
    {ROWS}
    WHERE t.id = CAST([id] AS TEXT) AND {is_live("t.")}
    """,
    ("id", "now"),
    ("now",),
)
# What was there already stays as it is. The id of a task may be bytes that are no UTF-8.
ATTEMPT: Final = Kind(
    _insert(
        "taskmanager_task_attempts",
        {"task_id": "CAST([task_id] AS TEXT)"} | _same(ATTEMPT_COLUMNS[1:]),
        "(task_id, attempt) DO NOTHING",
    ),
    ATTEMPT_COLUMNS,
    tuple(name for name in ATTEMPT_COLUMNS if name not in ("task_id", "started_at", "finished_at", "created_at")),
)

# A record of a step is written again when the step is, and when the code goes on after its error. Into the place of a
# database that was lost a record may come that has received an event there: here the id may be that of another event.
_STEP_KEY: Final = ("task_id", "kind", "number", "key")
_RECEIVED: Final = (
    "SELECT e.id FROM taskmanager_events AS e"
    " WHERE e.id = [event_id] AND e.task_id = [task_id] AND e.name = [waits_for]"
)
STEP_RECORD: Final = Kind(
    _insert(
        "taskmanager_steps",
        _same(StepRow._fields) | {"event_id": f"({_RECEIVED})"},
        f"({', '.join(_STEP_KEY)}) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in StepRow._fields if name not in _STEP_KEY),
    ),
    StepRow._fields,
    (),
)
UNREAD: Final = "NOT EXISTS (SELECT 1 FROM taskmanager_steps AS r WHERE r.task_id = e.task_id AND r.event_id = e.id)"
_UNREAD_OF_STEP: Final = (
    f"FROM taskmanager_events AS e WHERE e.task_id = s.task_id AND e.name = s.waits_for AND {UNREAD}"
)
# An event that was stored before the end of its wait is recorded is received: the wait has not timed out.
RECEIVE: Final = Kind(
    "UPDATE taskmanager_steps AS s SET error_code = NULL, error_message = NULL, is_final = 0,"
    f" (event_id, result) = (SELECT e.id, e.value {_UNREAD_OF_STEP} ORDER BY e.id LIMIT 1) {ROWS}"
    f" WHERE {' AND '.join(f's.{name} = [{name}]' for name in _STEP_KEY)}"
    f" AND s.event_id IS NULL AND EXISTS (SELECT 1 {_UNREAD_OF_STEP})",
    StepRow._fields,
    (),
)
# The other half of going to sleep: what has come meanwhile, an event or a request to cancel, wakes the task at once. It
# is asked for the record for which the task sleeps, and no other: the code may not come to those for long.
STAY_AWAKE: Final = Kind(
    f"UPDATE taskmanager_tasks AS t SET enqueued_at = min(t.sent_at, t.updated_at) {ROWS}"
    " WHERE t.id = [task_id] AND t.status = 'PENDING' AND t.claimed_by_worker_id IS NULL AND ("
    "t.cancel_requested_at IS NOT NULL OR EXISTS ("
    f"SELECT 1 FROM taskmanager_events AS e WHERE e.task_id = [task_id] AND e.name = [waits_for] AND {UNREAD}))",
    StepRow._fields,
    (),
)
FORGET_STEPS: Final = Kind(
    f"DELETE FROM taskmanager_steps WHERE task_id IN (SELECT [id] {ROWS} WHERE [id] IS NOT NULL)", ("id",), ()
)
# The rows of a workflow.
GRAPH: Final = tuple(
    Kind(_insert(table, _same(row._fields), "DO NOTHING"), row._fields, row._fields[1:])
    for row, table in (
        (WorkflowRow, "taskmanager_workflows"),
        (NodeRow, "taskmanager_workflow_tasks"),
        (EdgeRow, "taskmanager_workflow_edges"),
    )
)
# What has happened is added to what is there.
FIGURE_KEY: Final = ("span", "at", "task_name", "queue_name")
FIGURES: Final = Kind(
    _insert(
        "taskmanager_figures",
        _same(FIGURE_KEY + COUNTS),
        f"({', '.join(FIGURE_KEY)}) DO UPDATE SET "
        + ", ".join(f"{name} = taskmanager_figures.{name} + excluded.{name}" for name in COUNTS),
    ),
    FIGURE_KEY + COUNTS,
    (),
)
# Writes nothing: these are the changes of tasks of workflows, which have consequences there.
IN_WORKFLOW: Final = Kind("", (), ())
# Writes nothing: these are the writes of whole rows, which are counted.
WHOLE: Final = Kind("", (), ())

# Plain tasks. Columns that are not named have no value, and need none.
_PENDING: Final = _same(("id", "args", "kwargs", "tags", "sent_at", *_CALL[:-3])) | {
    "enqueued_at": "[sent_at]", "created_at": "[sent_at]", "updated_at": "[sent_at]", "status": "'PENDING'",
}  # fmt: skip
_RUNNING: Final = (
    _PENDING
    | _same(("started_at", *_WORKER))
    | {"updated_at": "[started_at]", "status": "'RUNNING'", "start_count": "1"}
)
_COMPLETED: Final = (
    _RUNNING | _same(("completed_at", "result")) | {"updated_at": "[completed_at]", "status": "'COMPLETED'"}
)
NEW, STARTED, HISTORY = (
    Kind(
        _insert("taskmanager_tasks", values, "(id) DO NOTHING"),
        ("id", *write._fields[1:], *_CALL),  # of the write, and of its call
        ("tags", *_CALL),
    )
    for values, write in ((_PENDING, NewWrite), (_RUNNING, NewWrite), (_COMPLETED, HistoryWrite))
)
# The task of a node. Its id is that of the node, so whoever enqueues it once more does nothing more.
OF_NODE: Final = Kind(
    _insert("taskmanager_tasks", _PENDING | {"enqueued_at": "[due_at]", "is_workflow_task": "1"}, "(id) DO NOTHING"),
    ("id", "args", "kwargs", "tags", "sent_at", "due_at", *_CALL[:-3]),
    ("args", "kwargs", "tags", "sent_at", "due_at", *_CALL[:-3]),
)
START: Final = Kind(
    _update(
        {
            "status": "'RUNNING'", "claimed": "0", "start_count": "t.start_count + 1",
            "started_at": "[started_at]", "updated_at": "[started_at]",
        }
        | _same(_WORKER)
    ),
    ("id", *StartWrite._fields[1:], *EXPECTED),
    ("started_at", *_WORKER, *EXPECTED),
)  # fmt: skip
SUCCESS: Final = Kind(
    _update({"status": "'COMPLETED'", "updated_at": "[completed_at]"} | _same(("completed_at", "result"))),
    ("id", *SuccessWrite._fields[1:], *EXPECTED),
    EXPECTED,
)


def _first_success(of: Kind, owner: str) -> Kind:
    """The attempt of a task that has succeeded with its first one, from the row of the write that says so."""
    values = {
        "task_id": "[id]", "attempt": "1", "outcome": "'COMPLETED'", "will_retry": "0", "started_at": "[started_at]",
        "finished_at": "[completed_at]", "created_at": "[completed_at]", "worker_id": f"[{owner}]",
    } | _same(_WORKER)  # fmt: skip
    inserted = _insert("taskmanager_task_attempts", values, "(task_id, attempt) DO NOTHING")
    return Kind(inserted, of.columns, (owner, *_WORKER))


FIRST_ATTEMPTS: Final = {
    SUCCESS: _first_success(SUCCESS, "expected_owner"),
    HISTORY: _first_success(HISTORY, "claimed_by_worker_id"),
}
