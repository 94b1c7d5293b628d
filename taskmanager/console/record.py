"""Says in words what is known of one task, for the terminal and for the browser."""

from collections.abc import Mapping
from typing import Any, Final

from taskmanager.codec.report import number_or_none
from taskmanager.console.figures import clock, done_of
from taskmanager.engine.words.definition import options_of, timeout_of
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow
from taskmanager.model.steps import StepRow
from taskmanager.model.workflows import HELD
from taskmanager.store.protocol import InstanceRow

_COUNTS: Final = (("start", "starts"), ("retry", "retries"), ("crash", "crashes"), ("snooze", "snoozes"))


def policy(row: TaskRow) -> str:
    """Return how the task is run and kept: `persisted, safe to repeat, 3 retries, timeout 30 s, async lane`."""
    options, timeout_s = options_of(row.task_options), timeout_of(row.task_options)
    parts = ["persisted" if options.get("persist") else "memory only"]
    if options.get("requeue_on_interrupt"):
        parts.append("safe to repeat")
    if row.max_retries:
        parts.append("1 retry" if row.max_retries == 1 else f"{row.max_retries} retries")
    if timeout_s is not None:
        parts.append(f"timeout {timeout_s:g} s")
    return ", ".join([*parts, escaped(f"{options.get('lane', 'async')} lane")])


def process_of(row: TaskRow, owner: InstanceRow | None) -> str:
    """Return the process that has the task, or had it; an empty text if there is none."""
    if row.claimed_by_worker_id is None or row.claimed_by_worker_id == HELD:
        return ""
    if owner is not None:
        name = "" if owner.instance_name is None else f"{escaped(owner.instance_name)}, "
        return f"{name}process {owner.pid} on {escaped(owner.hostname)}"
    if row.worker_pid is not None:
        return f"process {row.worker_pid} on {escaped(row.worker_hostname or 'an unknown host')}"
    return f"{escaped(row.claimed_by_worker_id)}, which has ended"


def progress_of(progress: Mapping[str, Any]) -> str:
    """Return what a task has reported of itself: `4 of 10 (40%)  reading`."""
    done, total = number_or_none(progress.get("done")), number_or_none(progress.get("total"))
    text = str(progress.get("text") or "")
    if done is None:
        return escaped(text)
    share = f" ({done / total:.0%})" if total and 0 <= done <= total else ""
    return escaped(f"{done_of(done, total)}{share}  {text}".rstrip())


def so_far(row: TaskRow) -> str:
    """Return how often the task has started, was retried, has crashed and was snoozed; what is none is left out."""
    counts = zip((row.start_count, row.retry_count, row.crash_count, row.snooze_count), _COUNTS, strict=True)
    return ", ".join(f"{number} {one if number == 1 else many}" for number, (one, many) in counts if number)


def step_until(step: StepRow) -> str:
    """Return how long a step that has not ended goes on."""
    return "not ended" if step.due_at is None else f"until {clock(step.due_at)}"
