"""What a task enqueues that has failed for good, made from its row alone, in the transaction that writes the failure.

Whoever writes it may neither know the functions nor have the key of the codec: it may be another instance, or the
command line. So all that the new row needs stands in the `task_options` of the failed one, under `on_failure`.
"""

from collections.abc import Sequence
from typing import Any, Final

from taskmanager.codec.safe import safe_text
from taskmanager.codec.values import StoredType, dumps
from taskmanager.model.clock import SECOND_US
from taskmanager.model.dataclass import dataclass
from taskmanager.model.ids import failure_task_id
from taskmanager.model.record import AttemptRow, NewWrite, PlainCall, TaskRow
from taskmanager.model.result import MAX_DELAY_S, FailedTask, TaskError, trusted_code
from taskmanager.model.states import BuiltInTaskCode

KEY: Final = '"on_failure":'
"""In the `task_options` of a task that has one."""
_MAX_RETRIES: Final = 2**31


@dataclass(frozen=True, slots=True)
class Following:
    """The task that a failure enqueues, as it stands in the `task_options` of the failed one."""

    task_name: str
    queue_name: str
    priority: int
    options: dict[str, Any]
    max_retries: int = 0
    delay_s: float = 0.0
    tags: dict[str, str] | None = None

    @property
    def is_possible(self) -> bool:
        """Whether a row can be made of it. Another program may have written anything."""
        in_range = 1 <= self.priority <= 100 and 0 <= self.max_retries < _MAX_RETRIES
        return in_range and 0 <= self.delay_s <= MAX_DELAY_S


@dataclass(frozen=True, slots=True)
class _Options:
    """What is read of the `task_options` of the failed one."""

    on_failure: Following


_options: Final = StoredType(_Options)
_tags: Final = StoredType(dict[str, str])


def following(task_options: str) -> Following | None:
    """Return what a failure of the task with these options enqueues."""
    found = _read(_options, task_options) if KEY in task_options else None
    return found.on_failure if found is not None and found.on_failure.is_possible else None


def _read(kind: StoredType, text: str | None) -> Any:
    """Return what stands there, or None: a row that somebody has edited must be able to fail all the same."""
    try:
        return None if text is None else kind.decode(str(text))
    except Exception:  # noqa: BLE001  # msgspec's, and this module does not know msgspec
        return None


def enqueued_by(failed: TaskRow, attempts: Sequence[AttemptRow] = ()) -> TaskRow | None:
    """Return the free row that a failure enqueues, or None if the task is not FAILED, or has no `on_failure`.

    `attempts` are those that are written with the failure. The last one has the message of the error.
    """
    then = following(failed.task_options) if failed.status == "FAILED" else None
    if then is None:
        return None
    now = failed.failed_at or failed.updated_at
    message = attempts[-1].error_message if attempts else (failed.failed_reason or "").partition("\n")[0]
    code = trusted_code(str(failed.error_code or BuiltInTaskCode.UNHANDLED_EXCEPTION))
    argument = FailedTask(
        task_id=safe_text(str(failed.task_id)),
        task_name=safe_text(str(failed.task_name)),
        error=TaskError(code, safe_text(message or "")),
        attempts=failed.start_count,
        tags=_read(_tags, failed.tags) or {},
    )
    options = then.options | ({"is_delay": True} if then.delay_s else {})
    call = PlainCall(
        then.task_name, then.queue_name, then.priority, then.max_retries, dumps(options), None, None, None, None
    )
    task_id = failure_task_id(failed.task_id, failed.sent_at, failed.start_count)
    tags = dumps(then.tags) if then.tags else None
    row = NewWrite(task_id, call, dumps([argument]), "{}", tags, now, None).in_full().row
    return row._replace(enqueued_at=now + int(then.delay_s * SECOND_US))
