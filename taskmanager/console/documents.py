"""Makes the documents that `--json` prints. Instants are ISO 8601 in UTC, and null is "not known".

The keys of a record are the columns of the table. JSON columns are parsed. If a manager has a `codec=`, its arguments
and results are sealed, and the document shows the sealed text.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from taskmanager.codec.safe import loads_flat
from taskmanager.console.figures import iso
from taskmanager.console.overview import InstanceView, Overview
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import AttemptRow, TaskRow
from taskmanager.model.schedule import ScheduleRow
from taskmanager.model.steps import StepRow
from taskmanager.model.workflows import NodeRow, WorkflowRow
from taskmanager.store.sql.workflow_views import Progress, WorkflowView
from taskmanager.store.statistics import OwnWorkflow

_JSON_COLUMNS: Final = frozenset(
    {"args", "kwargs", "result", "task_options", "tags", "progress", "log", "error", "success_policy", "dependencies"}
    | {"sub_workflow_summary"}
)
_BOOLEAN_COLUMNS: Final = frozenset(
    {"is_workflow_task", "will_retry", "is_final", "allow_failed_deps", "is_optional", "is_subworkflow"}
)
_NOT_OF_A_NODE: Final = frozenset({"args", "kwargs", "args_from", "result"})
"""Which may be large, and are not read for a screen."""
_INSTANT_ENDINGS: Final = ("_at", "since", "good_until", "scheduled_for")


def overview_document(overview: Overview) -> dict[str, Any]:
    """Return the object of `taskmanager status --json`. It has no `capped`: the command counts every row."""
    found: dict[str, Any] = _plain("", overview)
    del found["capped"], found["workflow_of"]
    found["running"] = [each | _own(overview.workflow_of.get(each["task_id"])) for each in found["running"]]
    found["instances"] = [_plain("", _instance(each)) for each in overview.instances]
    for each in found["problems"]:
        del each["mends"]  # addresses in a dashboard, which whoever reads this may not have
    return found


_OF_ROW: Final = ("instance_id", "instance_name", "hostname", "pid")
_OF_REPORT: Final = ("unwritten_count", "unsaved_count", "unsaved_since", "degraded_since", "failing_duties")


def _instance(view: InstanceView) -> dict[str, Any]:
    row, report = view.row, view.report
    return {
        **{name: getattr(row, name) for name in _OF_ROW},
        "health": view.health,
        "run_queues": None if report.run_queues is None else sorted(report.run_queues),
        "started_at": row.started_at,
        **{name: getattr(view, name) for name in ("seen_at", "silent_s", "held_count")},
        "running_count": report.running_count,
        "waiting_count": report.waiting_count,
        "stuck_count": report.abandoned_count,
        **{name: getattr(report, name) for name in (*_OF_REPORT, "is_stopping", "lanes", "unlisted_queue_count")},
    }


def _plain(name: str, value: Any) -> Any:
    """Return a frozen value as data; `name` is the key that it stands under."""
    if is_dataclass(value):
        return {each.name: _plain(each.name, getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _plain(str(key), each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(name, each) for each in value]
    if isinstance(value, Enum):
        return value.value
    is_instant = isinstance(value, int) and name.endswith(_INSTANT_ENDINGS)
    return iso(value) if is_instant else value


def _own(workflow: OwnWorkflow | None) -> dict[str, Any]:
    """Return what says of which workflow a task is."""
    return (
        {"workflow_id": None, "node_id": None}
        if workflow is None
        else {"workflow_id": workflow.workflow_id, "node_id": workflow.node_id}
    )


def record_document(row: TaskRow, workflow: OwnWorkflow | None) -> dict[str, Any]:
    """Return one task, with the workflow that it is of."""
    values = _columns(row._asdict())
    for entry in values["log"] or ():
        if isinstance(entry, dict) and isinstance(entry.get("at"), int):
            entry["at"] = iso(entry["at"])
    return values | _own(workflow)


def attempt_document(row: AttemptRow) -> dict[str, Any]:
    """Return one attempt that has ended."""
    return _columns(row._asdict())


def step_document(row: StepRow) -> dict[str, Any]:
    """Return one step. It has a number or a key; the other one is null."""
    values = _columns(row._asdict()) | {"number": row.number or None, "key": row.key or None}
    del values["kind"], values["digest"], values["wakes_at"]
    return values


def schedule_document(row: ScheduleRow) -> dict[str, Any]:
    """Return one schedule, without the task that it makes."""
    values = {name: _plain(name, value) for name, value in row._asdict().items() if name != "template"}
    return {**values, "is_paused": row.paused_at is not None}


def workflow_document(row: WorkflowRow, progress: Progress) -> dict[str, Any]:
    """Return one workflow, and how many of its nodes have ended."""
    workflow_id, *values = row._asdict().items()
    counts = {"node_count": progress.total, "ended_count": progress.ended}
    return {"workflow_id": workflow_id[1], **_columns(dict(values)), **counts}


def view_document(view: WorkflowView) -> dict[str, Any]:
    """Return one workflow with its nodes, and in the node of a child workflow that child in the same way."""
    return {**workflow_document(view.row, view.progress), "nodes": [_node(node, view) for node in view.nodes]}


def _node(node: NodeRow, view: WorkflowView) -> dict[str, Any]:
    task, child = view.tasks.get(node.task_id or ""), view.children.get(node.sub_workflow_id or "")
    values = {name: value for name, value in node._asdict().items() if name not in _NOT_OF_A_NODE}
    return {
        **_columns(values),
        "attempt_count": 0 if task is None else task.start_count,
        "task_status": None if task is None else task.status,
        "sub_workflow": None if child is None else view_document(child),
    }


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else _column(name, value) for name, value in values.items()}


def _column(name: str, value: Any) -> Any:
    if name in _JSON_COLUMNS:
        return parsed(value)
    return bool(value) if name in _BOOLEAN_COLUMNS else _plain(name, value)


def parsed(text: str) -> Any:
    """Return the value of a JSON column, or its text if that is no JSON, or nested too deep to be written again."""
    try:
        return loads_flat(text)
    except ArgumentError:
        return text
