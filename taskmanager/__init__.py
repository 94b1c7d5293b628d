"""Background tasks for asyncio applications: in memory while they run, in one SQLite file so that they are not lost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from taskmanager.manager import TaskManager
from taskmanager.model.config import ExceptionMapper, QueueConfig, RecoveryConfig, RetryPolicy
from taskmanager.model.context import TaskContext, current_task
from taskmanager.model.errors import (
    ArgumentError,
    ConfigurationError,
    ManagerStopped,
    ManagerStopping,
    NotInTask,
    NotPersisted,
    QueueFull,
    StepFailed,
    StoreError,
    StoreUnavailable,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskInterrupted,
    TaskManagerError,
    TaskNotCompleted,
    UnknownTask,
    WrongProcess,
)
from taskmanager.model.result import FailedTask, Seconds, Snooze, Subclasses, TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode, Lane, TaskStatus
from taskmanager.task import Task, TaskCall, TaskDecorator, task

if TYPE_CHECKING:
    from taskmanager.background import Background
    from taskmanager.codec.values import Codec
    from taskmanager.handle import TaskHandle
    from taskmanager.model.hooks import EventKind, Listener, Middleware, TaskEvent
    from taskmanager.model.record import AttemptInfo, TaskInfo
    from taskmanager.model.report import ManagerStatus, ScheduleInfo
    from taskmanager.model.steps import StepContext, StepInfo
    from taskmanager.model.workflows import Join, NodeInfo, NodeStatus, WorkflowInfo, WorkflowStatus
    from taskmanager.steps import StepCall, current_step, patched, sleep, step, wait_for
    from taskmanager.workflow import Node, Workflow
    from taskmanager.workflow_handle import WorkflowHandle

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "AttemptInfo",
    "Background",
    "BuiltInTaskCode",
    "Codec",
    "ConfigurationError",
    "EventKind",
    "ExceptionMapper",
    "FailedTask",
    "Join",
    "Lane",
    "Listener",
    "ManagerStatus",
    "ManagerStopped",
    "ManagerStopping",
    "Middleware",
    "Node",
    "NodeInfo",
    "NodeStatus",
    "NotInTask",
    "NotPersisted",
    "QueueConfig",
    "QueueFull",
    "RecoveryConfig",
    "RetryPolicy",
    "ScheduleInfo",
    "Seconds",
    "Snooze",
    "StepCall",
    "StepContext",
    "StepFailed",
    "StepInfo",
    "StoreError",
    "StoreUnavailable",
    "Subclasses",
    "Task",
    "TaskCall",
    "TaskCancelled",
    "TaskContext",
    "TaskDecorator",
    "TaskError",
    "TaskEvent",
    "TaskExpired",
    "TaskFailed",
    "TaskHandle",
    "TaskInfo",
    "TaskInterrupted",
    "TaskManager",
    "TaskManagerError",
    "TaskNotCompleted",
    "TaskResult",
    "TaskStatus",
    "UnknownTask",
    "Workflow",
    "WorkflowHandle",
    "WorkflowInfo",
    "WorkflowStatus",
    "WrongProcess",
    "current_step",
    "current_task",
    "patched",
    "sleep",
    "step",
    "task",
    "wait_for",
]

_NAMED_IN_ANNOTATIONS: Final = {
    "AttemptInfo": "taskmanager.model.record",
    "Background": "taskmanager.background",
    "Codec": "taskmanager.codec.values",
    "EventKind": "taskmanager.model.hooks",
    "Join": "taskmanager.model.workflows",
    "Listener": "taskmanager.model.hooks",
    "ManagerStatus": "taskmanager.model.report",
    "Middleware": "taskmanager.model.hooks",
    "Node": "taskmanager.workflow",
    "NodeInfo": "taskmanager.model.workflows",
    "NodeStatus": "taskmanager.model.workflows",
    "ScheduleInfo": "taskmanager.model.report",
    "StepCall": "taskmanager.steps",
    "StepContext": "taskmanager.model.steps",
    "StepInfo": "taskmanager.model.steps",
    "TaskEvent": "taskmanager.model.hooks",
    "TaskHandle": "taskmanager.handle",
    "TaskInfo": "taskmanager.model.record",
    "Workflow": "taskmanager.workflow",
    "WorkflowHandle": "taskmanager.workflow_handle",
    "WorkflowInfo": "taskmanager.model.workflows",
    "WorkflowStatus": "taskmanager.model.workflows",
    "current_step": "taskmanager.steps",
    "patched": "taskmanager.steps",
    "sleep": "taskmanager.steps",
    "step": "taskmanager.steps",
    "wait_for": "taskmanager.steps",
}
"""What most programs never name, with the module to import it from. Importing the package must cost little."""


if not TYPE_CHECKING:  # a checker sees all names above, and is to refuse any other

    def __getattr__(name: str) -> Any:
        module = _NAMED_IN_ANNOTATIONS.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(module), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
