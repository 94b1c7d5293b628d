"""Every record of the library's logger says which task it is about, so that a format with `%(task_id)s` never fails.

A filter does it, not a handler: where records go is the application's business.
"""

import logging
from typing import Final

from taskmanager.engine.attempt import current
from taskmanager.engine.live_task import LiveTask, tags_of
from taskmanager.model.errors import ArgumentError
from taskmanager.model.logger import plain

FIELDS: Final = ("task_id", "task_name", "tags", "error_code")
"""`error_code` is that of a task which has failed for good."""


def extra_of(live: LiveTask) -> dict[str, object]:
    """The fields of a record about a task."""
    return {"task_id": live.task_id, "task_name": live.definition.name, "tags": _tags(live)}


def _tags(task: object) -> object:
    try:
        return tags_of(task.tags_text) if isinstance(task, LiveTask) else getattr(task, "tags", None)
    except ArgumentError:  # another program has written them
        return {}


class TaskFields(logging.Filter):
    """Fills in what a record does not say: the task in which it was logged, or None where there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets everything through."""
        running = current.get(None)
        for field in FIELDS:
            if not hasattr(record, field):
                value = _tags(running) if field == "tags" else getattr(running, field, None)
                setattr(record, field, plain(value))
        return True


logging.getLogger("taskmanager").addFilter(TaskFields())
