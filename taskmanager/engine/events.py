"""Says in the log what has happened to tasks, and in each record of the library's logger which task it is about.

So a format with `%(task_id)s` never fails. A filter adds these fields, not a handler: where records go is the
application's business.
"""

import logging
from typing import Final

from taskmanager.engine.context import current
from taskmanager.engine.definition import tags_of
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.outcome import frames_of
from taskmanager.model.errors import ArgumentError
from taskmanager.model.logger import Raised, logger, plain
from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.model.result import TaskError
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted, why

FIELDS: Final = ("task_id", "task_name", "tags", "error_code")
"""`error_code` is that of a task which has failed for good."""


def extra_of(live: LiveTask) -> dict[str, object]:
    """Return the fields of a record about a task."""
    return {"task_id": live.task_id, "task_name": live.definition.name, "tags": _tags(live)}


def _tags(task: object) -> object:
    try:
        return tags_of(task.tags_text) if isinstance(task, LiveTask) else getattr(task, "tags", None)
    except ArgumentError:  # another program has written them
        return {}


class TaskFields(logging.Filter):
    """Adds the fields that a record lacks: those of the task in which it was logged, or None where there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let everything through."""
        running = current.get(None)
        for field in FIELDS:
            if not hasattr(record, field):
                value = _tags(running) if field == "tags" else getattr(running, field, None)
                setattr(record, field, plain(value))
        return True


logging.getLogger("taskmanager").addFilter(TaskFields())


def log_end(live: LiveTask, exc: BaseException | None) -> None:
    """Log that a task has ended here: an error only if it failed for good, with what it raised if that is at hand."""
    if live.status is TaskStatus.COMPLETED:
        return
    name, extra = live.definition.name, extra_of(live)
    if live.status is TaskStatus.FAILED:
        logger.error(
            "task %s (%s) failed after %s with %s",
            name,
            live.task_id,
            counted(live.start_count, "attempt"),
            why(str(live.error_code), live.ending.result.err_value.message if live.ending is not None else None),
            extra={**extra, "error_code": live.error_code},
            raised=_raised(live, exc),
        )
    elif live.status is TaskStatus.INTERRUPTED or live.status is TaskStatus.PENDING:
        requeued = "; it runs again at the next start" if live.status is TaskStatus.PENDING else ""
        logger.warning("task %s (%s) was interrupted by the stop%s", name, live.task_id, requeued, extra=extra)
    else:
        logger.info("task %s (%s) is %s", name, live.task_id, live.status, extra=extra)


def _raised(live: LiveTask, exc: BaseException | None) -> Raised | None:
    """Return what a record shows of an exception; nothing if the exception refuses to be looked at."""
    if exc is None:
        return None
    try:
        return Raised(exc, frames_of(exc), live.failed_reason or "")
    except Exception:  # noqa: BLE001  # its attributes may be user code
        return None


def log_again(live: LiveTask, error: TaskError | None, delay_s: float) -> None:
    """Log that a task failed and runs again."""
    logger.warning(
        "task %s (%s) failed with %s; retry %d of %d in %.1f s",
        live.definition.name,
        live.task_id,
        why(error.error_code, error.message) if error else "UNKNOWN",
        live.retry_count,
        live.definition.retry.max_retries,
        delay_s,
        extra=extra_of(live),
    )


def log_failed(row: TaskRow) -> None:
    """Log one ERROR for a task that is FAILED by its row alone, as where the failure is seen to happen."""
    if row.status == TaskStatus.FAILED:
        about = {"task_id": row.task_id, "task_name": row.task_name, "error_code": row.error_code}
        text = "task %s (%s) failed with %s"
        logger.error(text, row.task_name, row.task_id, why(str(row.error_code), row.failed_reason), extra=about)


def log_judged(write: TaskWrite) -> None:
    """Log what became of a task whose owner is gone: an ERROR if it failed for good, a WARNING if it is tried again."""
    log_failed(write.row)
    for attempt in write.attempts:
        if attempt.will_retry:
            about = {"task_id": write.row.task_id, "task_name": write.row.task_name}
            reason = why(str(attempt.error_code), attempt.error_message)
            logger.warning("task %s (%s) failed with %s", write.row.task_name, write.row.task_id, reason, extra=about)
