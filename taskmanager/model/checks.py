"""Checks the arguments of calls. A wrong value raises `ConfigurationError`, which says what to do."""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from taskmanager.model.clock import before_us, to_us
from taskmanager.model.config import MAX_NAME_LENGTH, is_int, queue_name_fault, raise_faults
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.result import Seconds, seconds_fault, seconds_of
from taskmanager.model.states import TaskStatus

MAX_LIMIT: Final = 1_000_000_000
HUGE: Final = 1 << 63
"""From here on an int counts nothing; above 1024 bits it cannot even become a float."""


def is_storable(text: object) -> bool:
    """Return whether it is text that a file can hold. Lone surrogates have no form in UTF-8."""
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


def tags_fault(tags: object) -> str | None:
    """Return what is wrong with tags, or None."""
    if tags is None:
        return None
    if not isinstance(tags, Mapping) or not all(is_storable(k) and is_storable(v) for k, v in tags.items()):
        return f"tags must map text to text, not {tags!r}"
    return None


def check_tags(tags: object, subject: str = "join") -> None:
    """Check the tags by which tasks are chosen."""
    fault = tags_fault(tags)
    raise_faults(subject, [fault] if fault else [])


def check_task_id(task_id: object) -> None:
    """Refuse what is no id. A handle, a task or None would look like a task that does not exist."""
    if not is_storable(task_id):
        raise ConfigurationError(f"task_id must be text, as handle.task_id gives it, not {task_id!r}")


def check_event(task_id: object, name: object, key: object) -> None:
    """Refuse what cannot be sent to a task."""
    check_task_id(task_id)
    for word, text in (("name", name), ("key", key)):
        is_text = is_storable(text) and 0 < len(str(text)) <= MAX_NAME_LENGTH
        if not (is_text or (word == "key" and text is None)):
            raise ConfigurationError(f"send: {word} must be text of 1 to {MAX_NAME_LENGTH} characters, not {text!r}")


def check_schedule_name(name: object) -> None:
    """Check the name of a schedule."""
    if not is_storable(name):
        raise ConfigurationError(f"the name of a schedule must be text, as manager.schedules() gives it, not {name!r}")


def check_queue_name(name: object) -> None:
    """Check the name of a queue."""
    fault = queue_name_fault(name)
    if fault:
        raise ConfigurationError(fault)


def check_timeout(timeout: object) -> None:
    """Check how long a caller waits: seconds, or None for ever. A negative time is over at once, as in asyncio."""
    if timeout is None:
        return
    is_number = isinstance(timeout, float) or (is_int(timeout) and abs(timeout) < HUGE)  # type: ignore[arg-type]  # ints
    if not is_number or math.isnan(timeout):  # type: ignore[arg-type]  # shown to be a number
        hint = "; use .total_seconds()" if isinstance(timeout, timedelta) else ""
        raise ConfigurationError(f"timeout must be a number of seconds, or None, not {timeout!r}{hint}")


def check_limit(limit: object, subject: str) -> None:
    """Check how many records are asked for."""
    if not is_int(limit) or not 0 <= limit <= MAX_LIMIT:  # type: ignore[operator]  # shown by is_int
        raise ConfigurationError(f"{subject}: limit must be a whole number from 0 to {MAX_LIMIT:_}, not {limit!r}")


def check_workflow_id(workflow_id: object) -> None:
    """Refuse what is no id of a workflow."""
    if not is_storable(workflow_id):
        raise ConfigurationError(f"workflow_id must be text, as handle.workflow_id gives it, not {workflow_id!r}")


def check_threshold(value: object, name: str) -> None:
    """Check a number from 0. With a negative threshold every instance would look dead."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigurationError(f"{name} must be a number from 0, not {value!r}")


def check_status(status: object, subject: str) -> TaskStatus | None:
    """Refuse what is no status: a typo must not look like an empty list."""
    if status is None:
        return None
    if not isinstance(status, str) or status not in list(TaskStatus):
        raise ConfigurationError(f"{subject}: status must be one of {', '.join(TaskStatus)}, not {status!r}")
    return TaskStatus(status)


def instant_since(since: object, subject: str, now_us: int) -> int | None:
    """Return the earliest instant, in microseconds UTC, that `since` means: a moment, or a span of time before now."""
    if since is None:
        return None
    if isinstance(since, datetime) and since.tzinfo is not None:
        return to_us(since)
    if isinstance(since, timedelta) and since >= timedelta(0):
        return before_us(now_us, since)
    raise ConfigurationError(
        f"{subject}: since must be an aware datetime, or a timedelta such as timedelta(hours=1), not {since!r}"
    )


def check_age(age: object) -> None:
    """Check an age. A negative one would match every record there is."""
    if age is None:
        return
    if not isinstance(age, timedelta):
        raise ConfigurationError(f"purge: older_than must be a timedelta, such as timedelta(days=30), not {age!r}")
    if age < timedelta(0):
        raise ConfigurationError(f"purge: older_than must not be negative, not {age}")


def timeout_fault(timeout: Seconds | None) -> str | None:
    """Return what is wrong with a time limit, or None."""
    if timeout is None:
        return None
    return seconds_fault(timeout, "timeout") or (
        None if seconds_of(timeout, "timeout") > 0 else "timeout must be more than 0 seconds"
    )


def filters_of(
    status: TaskStatus | None,
    task_name: str | None,
    queue_name: str | None,
    tags: Mapping[str, str] | None,
    error_code: str | None,
    since: datetime | timedelta | None,
) -> dict[str, Any]:
    """Return by which names, and which values of them, people choose tasks."""
    return {
        "status": status, "task_name": task_name, "queue_name": queue_name,
        "tags": tags, "error_code": error_code, "since": since,
    }  # fmt: skip
