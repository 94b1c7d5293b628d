"""Every record of the library's logger says which task it is about, so that a format with `%(task_id)s` never fails.

A filter does it, not a handler: where records go is the application's business.
"""

import logging
from typing import Final

from taskmanager.engine.attempt import current
from taskmanager.engine.live_task import LiveTask
from taskmanager.model.logger import plain

FIELDS: Final = ("task_id", "task_name", "error_code")
"""`error_code` is that of a task which has failed for good."""


def extra_of(live: LiveTask) -> dict[str, str]:
    """The fields of a record about a task."""
    return {"task_id": live.task_id, "task_name": live.definition.name}


class TaskFields(logging.Filter):
    """Fills in what a record does not say: the task in which it was logged, or None where there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets everything through."""
        running = current.get(None)
        for field in FIELDS:
            if not hasattr(record, field):
                setattr(record, field, plain(getattr(running, field, None)))
        return True


logging.getLogger("taskmanager").addFilter(TaskFields())
