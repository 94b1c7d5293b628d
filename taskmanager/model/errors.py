"""Every exception that the library raises. `TaskManagerError` is the base of all of them."""

from typing import TYPE_CHECKING

from taskmanager.model.escaping import escaped

if TYPE_CHECKING:
    from taskmanager.model.result import TaskError
    from taskmanager.model.states import TaskStatus


class TaskManagerError(Exception):
    """The base of every exception of this library."""


class ConfigurationError(TaskManagerError, ValueError):
    """An option, a policy or a definition is wrong. It is raised where that was declared."""


class ArgumentError(TaskManagerError, ValueError):
    """An argument cannot be stored and come back equal in value and type. The message names it, its type and why."""


class UnknownTask(TaskManagerError, LookupError):
    """No task has that name, or no record has that id."""


def unknown_task(task_id: str) -> UnknownTask:
    """Return the error for an id that no task has."""
    return UnknownTask(
        f"there is no task {task_id}; it was purged, or never accepted. manager.list() has those there are"
    )


def unknown_workflow(workflow_id: str) -> UnknownTask:
    """Return the error for an id that no workflow has."""
    return UnknownTask(
        f"there is no workflow {workflow_id}; it was deleted, or never started. manager.workflows() has those there are"
    )


class NotInTask(TaskManagerError, LookupError):
    """`current_task()` was called outside a running task."""


class NotPersisted(TaskManagerError):
    """`saved()` or `step()` was called for a memory-only task."""


class WrongProcess(TaskManagerError):
    """The manager was used in a child process, or its file in a process that was forked while the file was open.

    Let the parent process enqueue the work.
    """


class QueueFull(TaskManagerError):
    """The queue holds `max_pending` waiting tasks. Await `manager.wait_for_room(queue)`, or drop the work."""


class StepFailed(TaskManagerError):
    """A step of a task has failed, and is not tried again in this run. `error` says why, the same in every run.

    `__cause__` is what its function has raised, in the run in which it was called.
    """

    def __init__(self, error: "TaskError") -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return f"{self.error.error_code}: {self.error.message}" if self.error.message else str(self.error.error_code)


class ManagerStopping(TaskManagerError):
    """The manager is stopping, and takes no memory-only tasks any more."""


class ManagerStopped(TaskManagerError):
    """The manager has stopped. Start it again first."""


class StoreError(TaskManagerError):
    """The file refused something for good: it has a newer schema, is damaged, or cannot hold a row."""


class StoreUnavailable(StoreError):
    """The file cannot be written now: it is locked, full, read-only or gone. What is in memory is kept."""


class TaskNotCompleted(TaskManagerError):
    """The awaited task, or workflow, has another end than COMPLETED. `error` says why."""

    of = "task"
    """What the id is of."""

    def __init__(self, task_id: str, status: "TaskStatus", error: "TaskError") -> None:
        super().__init__(task_id, status, error)
        self.task_id = task_id
        self.status = status
        self.error = error

    def __str__(self) -> str:
        text = f"{self.of} {self.task_id} is {self.status}: {self.error.error_code}"
        return f"{text}: {self.error.message}" if self.error.message else text


class TaskFailed(TaskNotCompleted):
    """The task ended FAILED, or its result is not available here."""


class TaskCancelled(TaskNotCompleted):
    """The task was cancelled. This is no `asyncio.CancelledError`: the waiter goes on."""


class TaskExpired(TaskNotCompleted):
    """`good_until` passed before the task could start."""


class TaskInterrupted(TaskNotCompleted):
    """The manager stopped before the task ended. `requeued` says whether it runs again after the next start."""

    def __init__(self, task_id: str, status: "TaskStatus", error: "TaskError", requeued: bool = False) -> None:
        super().__init__(task_id, status, error)
        self.args = (task_id, status, error, requeued)
        self.requeued = requeued


def error_line(exc: BaseException) -> str:
    """Return `TYPE: message` in one line, as the last line of a traceback has it."""
    kind = type(exc)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {escaped(' '.join(str(exc).splitlines()))}"


for _public in [each for each in globals().values() if isinstance(each, type) and issubclass(each, TaskManagerError)]:
    # A traceback says the name that people import. The name is complete before anybody can pickle by it.
    _public.__module__ = "taskmanager"
    if "__firstlineno__" in vars(_public):  # of this file, not of that one: no source is better than a wrong one
        del _public.__firstlineno__  # type: ignore[attr-defined]  # from Python 3.13 on
