"""What is copied from one database to another: which rows belong together, and how they are read and written.

A task comes with its attempts, events and steps, and a workflow with its nodes and edges, in one transaction. So
whatever a copy has stored that was cut short is whole, and what is there already needs no second look.

Not copied are the rows of instances, their heartbeats and their snapshots: they say who works on the other database.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, get_args

from taskmanager.model.record import AttemptRow, TaskRow
from taskmanager.model.steps import StepRow
from taskmanager.model.workflows import EdgeRow, NodeRow, WorkflowRow
from taskmanager.store.noted import COUNTS
from taskmanager.store.sql.statements import ATTEMPT_COLUMNS, FIGURE_KEY, ROWS, TASK_COLUMNS, Kind

_NODE_BYTES: Final = 2_000
_MARKS: Final = ("is_passed_on", "is_accepted")
"""Columns of nodes that only the SQL of workflows knows."""
_NUMBERS: Final = frozenset({"span", "at", *_MARKS, *COUNTS}).union(
    name
    for row in (TaskRow, AttemptRow, StepRow, WorkflowRow, NodeRow, EdgeRow)
    for name, kind in row.__annotations__.items()
    if int in (kind, *get_args(kind))
)


class Child(NamedTuple):
    """A table whose rows belong to a row of another one, which is named in the first column."""

    table: str
    columns: tuple[str, ...]
    kind: Kind
    order: str
    """The rows of one owner are written in this order: their numbers are given anew."""

    @property
    def owner(self) -> str:
        """The column that names the owner."""
        return self.columns[0]

    @property
    def select(self) -> str:
        """The columns as SQL."""
        return ", ".join(_STORED.get((self.table, name), name) for name in self.columns)


class Family(NamedTuple):
    """A table, and those whose rows belong to its rows. Its first column is `id`."""

    table: str
    columns: tuple[str, ...]
    kind: Kind
    children: tuple[Child, ...]
    age: str
    """SQL for when a row `t`, or what belongs to it, was last changed. Of two databases the later one is right."""
    weight: str
    """SQL for about how many bytes a row `t` brings with it."""
    condition: str = ""
    """Which rows it is about: those that others name come first."""

    @property
    def label(self) -> str:
        """What a person calls one row."""
        return self.table.removeprefix("taskmanager_").removesuffix("s")


_STORED: Final = {("taskmanager_events", "event_id"): "id"}
"""Columns that have another name in their table."""


def _kind(table: str, columns: Sequence[str], conflict: str = "", extra: Mapping[str, str] | None = None) -> Kind:
    """Return what writes whole rows. What is no UTF-8 is bound as bytes, and a column takes it only as a text."""
    values = {
        _STORED.get((table, name), name): f"[{name}]" if name in _NUMBERS else f"CAST([{name}] AS TEXT)"
        for name in columns
    } | dict(extra or {})
    sql = f"INSERT INTO {table} ({', '.join(values)}) SELECT {', '.join(values.values())} {ROWS}"
    return Kind(f"{sql} WHERE [{columns[0]}] IS NOT NULL {conflict}", tuple(columns), tuple(columns[1:]))


def _replacing(columns: Sequence[str], extra: str = "") -> str:
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
    return f"ON CONFLICT (id) DO UPDATE SET {changes}{extra}"


def _child(table: str, columns: tuple[str, ...], order: str = "id") -> Child:
    return Child(table, columns, _kind(table, columns), order)


def _bytes(*names: str) -> str:
    return " + ".join(f"coalesce(length(CAST(t.{name} AS BLOB)), 0)" for name in names)


ATTEMPTS: Final = _child("taskmanager_task_attempts", ATTEMPT_COLUMNS)
EVENTS: Final = _child("taskmanager_events", ("task_id", "event_id", "name", "value", "key", "sent_at"))
STEPS: Final = _child("taskmanager_steps", StepRow._fields)
# An event wakes its task, and does not change when that was updated.
TASKS: Final = Family(
    "taskmanager_tasks",
    TASK_COLUMNS,
    _kind(
        "taskmanager_tasks",
        TASK_COLUMNS,
        _replacing(TASK_COLUMNS, ", claimed = excluded.claimed"),
        {"claimed": "iif([status] = 'CLAIMED', 1, 0)"},
    ),
    (ATTEMPTS, EVENTS, STEPS),
    "max(t.updated_at, coalesce((SELECT max(e.sent_at) FROM taskmanager_events AS e WHERE e.task_id = t.id), 0))",
    _bytes("args", "kwargs", "result", "log"),
)
# Nodes go on without a change of the row of their workflow.
_ROOTS: Final = Family(
    "taskmanager_workflows",
    WorkflowRow._fields,
    _kind("taskmanager_workflows", WorkflowRow._fields, _replacing(WorkflowRow._fields)),
    (
        _child("taskmanager_workflow_tasks", NodeRow._fields + _MARKS),
        _child("taskmanager_workflow_edges", EdgeRow._fields, "from_index, to_index"),
    ),
    "max(t.updated_at, coalesce((SELECT max(max(n.created_at, coalesce(n.started_at, 0), coalesce(n.completed_at, 0)))"
    " FROM taskmanager_workflow_tasks AS n WHERE n.workflow_id = t.id), 0))",
    f"(SELECT count(*) FROM taskmanager_workflow_tasks AS n WHERE n.workflow_id = t.id) * {_NODE_BYTES}",
    "t.id = t.root_workflow_id",
)
FAMILIES: Final = (TASKS, _ROOTS, _ROOTS._replace(condition="t.id <> t.root_workflow_id"))

FIGURE_COLUMNS: Final = FIGURE_KEY + COUNTS
# The greater number is the later one. So it does no harm to copy them once more.
FIGURES: Final = _kind(
    "taskmanager_figures",
    FIGURE_COLUMNS,
    f"ON CONFLICT ({', '.join(FIGURE_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = max(taskmanager_figures.{name}, excluded.{name})" for name in COUNTS)
    + f" WHERE {' OR '.join(f'excluded.{name} > taskmanager_figures.{name}' for name in COUNTS)}",
)


class Small(NamedTuple):
    """A table with few rows, which are written one by one. The first column is the key."""

    table: str
    columns: tuple[str, ...]
    texts: Collection[str]
    newer: str
    """SQL for that the row that comes is the later one."""

    @property
    def insert(self) -> str:
        """SQL that writes one row, unless the one that is there is newer."""
        names, values = ", ".join(self.columns), ", ".join(self.marks)
        changes = ", ".join(f"{name} = excluded.{name}" for name in self.columns[1:])
        return (
            f"INSERT INTO {self.table} ({names}) VALUES ({values})"
            f" ON CONFLICT ({self.columns[0]}) DO UPDATE SET {changes} WHERE {self.newer}"
        )

    @property
    def marks(self) -> list[str]:
        """A placeholder for each column."""
        return ["CAST(? AS TEXT)" if name in self.texts else "?" for name in self.columns]


_SCHEDULE_TEXTS: Final = (
    "schedule_name", "last_task_id", "config_hash", "owner_id", "task_name", "definition", "template",
)  # fmt: skip
SMALL: Final = (
    Small(
        "taskmanager_schedule_state",
        (*_SCHEDULE_TEXTS, "last_run_at", "next_run_at", "run_count", "paused_at", "updated_at"),
        _SCHEDULE_TEXTS,
        "excluded.updated_at > taskmanager_schedule_state.updated_at",
    ),
    Small(
        "taskmanager_queues",
        ("queue_name", "paused_at"),
        ("queue_name",),
        "excluded.paused_at > coalesce(taskmanager_queues.paused_at, 0)",
    ),
)
COPIED: Final = (
    TASKS.table,
    *(child.table for child in TASKS.children),
    _ROOTS.table,
    *(child.table for child in _ROOTS.children),
    *(small.table for small in SMALL),
    "taskmanager_figures",
)
"""All tables that are copied, in their order."""
