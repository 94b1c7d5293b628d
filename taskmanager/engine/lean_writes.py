"""The change of one task as it is sent to the store, as lean as it can be said.

Nearly every task starts once and succeeds: two writes that change a few columns, for which no whole row is sent.
"""

from taskmanager.engine.live_task import STATUS_TEXT, LiveTask
from taskmanager.model.record import AttemptRow, Expected, StartWrite, SuccessWrite, TaskWrite, Write
from taskmanager.model.states import TaskStatus

_PENDING, _RUNNING = STATUS_TEXT[TaskStatus.PENDING], STATUS_TEXT[TaskStatus.RUNNING]
_new_tuple = tuple.__new__


def write_of(live: LiveTask, base: Expected | None, attempts: tuple[AttemptRow, ...]) -> Write:
    """The change from the committed state `base` to the present one."""
    if base is not None and live.start_count == 1 and base[1] == live.owner and _left_nothing_else(live):
        status = live.status
        if status is TaskStatus.COMPLETED:
            if base[0] == _RUNNING and base[2] == 1:
                change = (live.task_id, live.definition.name, base, live.completed_at, live.result_text, attempts)
                return _new_tuple(SuccessWrite, change)
        elif status is TaskStatus.RUNNING and base[0] == _PENDING and base[2] == 0:
            worker = (live.worker_pid, live.worker_hostname, live.worker_process_name)
            return _new_tuple(StartWrite, (live.task_id, live.definition.name, base, live.started_at, *worker))
    return _new_tuple(TaskWrite, (live.row(), base, attempts))


def _left_nothing_else(live: LiveTask) -> bool:
    """Neither by what it reported nor by a cancel request: both may come before its start is committed.

    Of a record that was pared, the row may hold more than memory does.
    """
    has_reported = live.progress_text is not None or live.log_text is not None
    return not has_reported and live.cancel_requested_at is None and live.saving.pared_result is None
