"""The answers of the router: their models, and how records of the manager become them."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, field_validator

from taskmanager.codec.safe import loads_flat, safe_value
from taskmanager.console import health
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import AttemptInfo, TaskInfo
from taskmanager.model.report import ManagerStatus
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.workflows import NodeInfo, NodeStatus, WorkflowInfo, WorkflowStatus
from taskmanager.store.constraints import encodable

_ANYTHING: Final[TypeAdapter[Any]] = TypeAdapter(
    Any, config=ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64")
)
# An enum would be a model of its own in the schema, and `TaskStatus` is a name that others use too.
StatusName = Literal["PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED"]


class _Answer(BaseModel):
    """A model whose texts come from the application, and may have characters that UTF-8 cannot hold."""

    model_config = ConfigDict(from_attributes=True)

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_sent(cls, value: object) -> object:
        return _encodable(value)


# Their names stand in the OpenAPI schema of the application, which may well have a `Task` and a `Page` of its own.


class TaskmanagerFault(_Answer):
    """The reason why a task did not succeed."""

    error_code: str
    message: str
    data: Any = None


class TaskmanagerTask(_Answer):
    """One task without its arguments and its result. `TaskmanagerTaskDetail` has both."""

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    status: StatusName
    saved: bool
    sent_at: datetime
    enqueued_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    good_until: datetime | None
    next_retry_at: datetime | None
    scheduled_for: datetime | None
    cancel_requested_at: datetime | None
    retry_count: int
    max_retries: int
    start_count: int
    crash_count: int
    tags: dict[str, str]
    idempotency_key: str | None
    error_code: str | None
    progress: dict[str, Any] | None


class TaskmanagerAttempt(_Answer):
    """One attempt that has ended. `traceback` is None unless the router has `tracebacks=True`."""

    attempt: int
    outcome: str
    will_retry: bool
    started_at: datetime
    finished_at: datetime
    error_code: str | None
    error_message: str | None
    traceback: str | None
    worker_pid: int | None
    worker_hostname: str | None


class TaskmanagerStep(_Answer):
    """One recorded step, sleep or wait. `ended_at` is None while it waits, or is to be tried again."""

    number: int | None
    key: str | None
    name: str
    started_at: datetime
    ended_at: datetime | None
    attempts: int
    error: TaskmanagerFault | None


class TaskmanagerTaskDetail(TaskmanagerTask):
    """One task with its arguments, result, log, attempts and steps.

    Arguments that a `codec=` has sealed are the text that is stored. Where JSON cannot hold a result or a part of it,
    there is a short text.
    """

    args: list[Any] | str | None
    kwargs: dict[str, Any] | str | None
    result: Any
    error: TaskmanagerFault | None
    traceback: str | None
    log: list[dict[str, Any]]
    attempts: list[TaskmanagerAttempt]
    steps: list[TaskmanagerStep]


class TaskmanagerPage(_Answer):
    """Tasks, newest first. `next_before` is the `before` of the next page. It is None if this page was not full."""

    tasks: list[TaskmanagerTask]
    next_before: str | None


class TaskmanagerSchedule(_Answer):
    """One schedule. `definition` is its timing in words. If no running instance declares it, it does not fire."""

    schedule_name: str
    task_name: str
    definition: str
    last_run_at: datetime | None
    next_run_at: datetime | None
    last_task_id: str | None
    run_count: int
    is_paused: bool
    is_declared: bool


class TaskmanagerWorkflow(_Answer):
    """One workflow. `TaskmanagerWorkflowDetail` has its nodes."""

    workflow_id: str
    name: str
    status: WorkflowStatus
    sent_at: datetime
    error: TaskmanagerFault | None


class TaskmanagerNode(_Answer):
    """One node of a workflow. It has a `task_id` from when its task is enqueued; a child workflow has none."""

    node_id: str
    status: NodeStatus
    task_id: str | None
    error: TaskmanagerFault | None


class TaskmanagerWorkflowDetail(TaskmanagerWorkflow):
    """One workflow with its nodes, in the order in which they were added."""

    nodes: list[TaskmanagerNode]


class TaskmanagerWorkflowPage(_Answer):
    """Workflows, newest first, without those that stand in others. `next_before` is as in a page of tasks."""

    workflows: list[TaskmanagerWorkflow]
    next_before: str | None


class TaskmanagerHealth(_Answer):
    """The health of this instance. `ok` comes with 200, everything else with 503. Durations are seconds.

    `oldest_waiting_s` says how long the oldest task that waits for a slot has been due, `oldest_unsaved_s` how old the
    oldest change is that a crash would lose. `failing_duties` names background duties that keep failing (heartbeat,
    reaper, retention, ...). The reason is in the log and in `manager.status()`: this answer may be open to everybody.
    """

    status: Literal["ok", "degraded", "stopping", "not running"]
    storage_degraded_since: datetime | None
    oldest_waiting_s: float | None
    oldest_unsaved_s: float | None
    waiting_count: int
    running_count: int
    abandoned_count: int
    failing_duties: list[str]


class TaskmanagerRefusal(BaseModel):
    """The reason why a request was not carried out, in a sentence."""

    detail: str


def health_of(status: ManagerStatus) -> TaskmanagerHealth:
    """Return the health that a manager with this status has."""
    return TaskmanagerHealth.model_validate(health.health_of(status))


def detail_of(info: TaskInfo, tracebacks: bool) -> TaskmanagerTaskDetail:
    """Return one task as it is shown alone. Tracebacks of user code are left out unless they are wanted."""
    value, fault = _sides(info.result)
    return TaskmanagerTaskDetail(
        **TaskmanagerTask.model_validate(info).model_dump(),
        args=_stored(info.args, list),
        kwargs=_stored(info.kwargs, dict),
        result=value,
        error=fault,
        traceback=info.failed_reason if tracebacks else None,
        log=[_log_line(each) for each in info.log or ()],
        attempts=[_attempt(each, tracebacks) for each in info.attempts or ()],
        steps=[TaskmanagerStep.model_validate(each) for each in info.steps or ()],
    )


def workflow_of(info: WorkflowInfo) -> TaskmanagerWorkflow:
    """Return one workflow."""
    return TaskmanagerWorkflow(
        workflow_id=info.workflow_id,
        name=info.name,
        status=info.status,
        sent_at=info.sent_at,
        error=None if info.error is None else _fault(info.error),
    )


def workflow_detail_of(info: WorkflowInfo, nodes: Iterable[NodeInfo]) -> TaskmanagerWorkflowDetail:
    """Return one workflow with its nodes."""
    found = [
        TaskmanagerNode(
            node_id=each.node_id,
            status=each.status,
            task_id=each.task_id,
            error=None if each.error is None else _fault(each.error),
        )
        for each in nodes
    ]
    return TaskmanagerWorkflowDetail(**workflow_of(info).model_dump(), nodes=found)


def _attempt(info: AttemptInfo, tracebacks: bool) -> TaskmanagerAttempt:
    return TaskmanagerAttempt(
        attempt=info.attempt,
        outcome=info.outcome.value,
        will_retry=info.will_retry,
        started_at=info.started_at,
        finished_at=info.finished_at,
        error_code=info.error_code,
        error_message=info.error_message,
        traceback=info.failed_reason if tracebacks else None,
        worker_pid=info.worker_pid,
        worker_hostname=info.worker_hostname,
    )


def _sides(result: TaskResult[Any] | None) -> tuple[Any, TaskmanagerFault | None]:
    if result is None:
        return None, None
    if result.is_ok():
        return _as_json(result.ok_value), None
    return None, _fault(result.err_value)


def _fault(error: TaskError) -> TaskmanagerFault:
    return TaskmanagerFault(error_code=error.error_code, message=error.message, data=_as_json(error.data))


def _as_json(value: Any) -> Any:
    """Return a value of the application as JSON: by its fields if it has some, else as a short text.

    NaN and the infinities become texts too, and bytes become base64.
    """
    try:
        value = _ANYTHING.dump_python(value, mode="json")
    except Exception:  # noqa: BLE001  # an object of the application may raise anything when it is looked at
        return safe_value(value)
    return safe_value(value)


def _encodable(value: Any) -> Any:
    """Return the value with lone surrogates as escapes, as the file has them too."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return value


def _stored(text: str | None, kind: type[Any]) -> Any:
    """Return stored arguments as JSON data. Sealed ones stay text."""
    if text is None:
        return None
    try:
        found = loads_flat(text)
    except ArgumentError:
        return text
    return found if isinstance(found, kind) else text


def _log_line(line: Mapping[str, Any]) -> dict[str, Any]:
    at = line.get("at")
    return {**line, "at": at.isoformat() if isinstance(at, datetime) else at}
