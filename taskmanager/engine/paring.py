"""What is left out of a record that the store refuses for its content, so that at least its state gets there.

A task that has ended must have ended in the file too, or the next start would take it for one whose process died.
"""

from typing import Final

from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.log_fields import extra_of
from taskmanager.engine.row_codec import stored_error
from taskmanager.model.logger import logger
from taskmanager.model.record import AttemptRow
from taskmanager.model.result import TaskError, trusted_code
from taskmanager.model.states import BuiltInTaskCode, TaskStatus

SHORT_CHARS: Final = 500
"""Of each text that is kept."""


def pare(live: LiveTask, reason: str) -> bool:
    """Leave out what the record can do without; False when there is nothing (more) of that kind.

    First what it came to, then, where no row stands there yet, the arguments: such a task can be seen, not repeated.
    """
    if _shorten(live, reason):
        without = "result, progress and log"
    elif live.status.is_terminal and live.saving.committed is None and live.args_text is not None:
        without = "arguments"
        live.args_text = live.kwargs_text = None
    else:
        return False
    logger.warning(
        "the record of task %s (%s) cannot be stored: %s; it is tried without its %s",
        live.definition.name,
        live.task_id,
        reason,
        without,
        extra=extra_of(live),
    )
    return True


def _shorten(live: LiveTask, reason: str) -> bool:
    """Whether that changed anything, so that it is worth another try."""
    before = live.progress_text, live.log_text, live.failed_reason, live.attempts_due
    live.progress_text = live.log_text = None
    live.failed_reason = _short(live.failed_reason)
    live.attempts_due = tuple(map(_short_attempt, live.attempts_due))
    has_changed = before != (live.progress_text, live.log_text, live.failed_reason, live.attempts_due)
    if live.result_text is None or live.saving.pared_result == live.start_count:
        return has_changed
    live.saving.pared_result = live.start_count
    if live.status is TaskStatus.COMPLETED:
        why = f"the result could not be stored: {reason}"
        live.result_text = stored_error(live.definition, TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, why))
    elif live.ending is not None:
        live.result_text = stored_error(live.definition, _short_error(live.ending.result.err_value))
    return True


def _short(text: str | None) -> str | None:
    return text and text[:SHORT_CHARS]


def _short_error(error: TaskError) -> TaskError:
    return TaskError(trusted_code(error.error_code), error.message[:SHORT_CHARS])


def _short_attempt(row: AttemptRow) -> AttemptRow:
    return row._replace(error_message=_short(row.error_message), failed_reason=_short(row.failed_reason))
