"""Background tasks for asyncio applications: in memory while they run, in one SQLite file so that they are not lost."""

from taskmanager.background import Background
from taskmanager.codec.values import Codec
from taskmanager.engine.context import TaskContext, current_task
from taskmanager.handle import TaskHandle
from taskmanager.manager import TaskManager
from taskmanager.model.config import ExceptionMapper, QueueConfig, RecoveryConfig, RetryPolicy
from taskmanager.model.errors import (
    ArgumentError,
    ConfigurationError,
    ManagerStopped,
    ManagerStopping,
    NotInTask,
    NotPersisted,
    QueueFull,
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
from taskmanager.model.record import AttemptInfo, TaskInfo
from taskmanager.model.result import Seconds, Snooze, Subclasses, TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode, Lane, TaskStatus
from taskmanager.model.status import ManagerStatus, ScheduleInfo
from taskmanager.task import Task, TaskCall, TaskDecorator, task

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "AttemptInfo",
    "Background",
    "BuiltInTaskCode",
    "Codec",
    "ConfigurationError",
    "ExceptionMapper",
    "Lane",
    "ManagerStatus",
    "ManagerStopped",
    "ManagerStopping",
    "NotInTask",
    "NotPersisted",
    "QueueConfig",
    "QueueFull",
    "RecoveryConfig",
    "RetryPolicy",
    "ScheduleInfo",
    "Seconds",
    "Snooze",
    "StoreError",
    "StoreUnavailable",
    "Subclasses",
    "Task",
    "TaskCall",
    "TaskCancelled",
    "TaskContext",
    "TaskDecorator",
    "TaskError",
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
    "WrongProcess",
    "current_task",
    "task",
]
