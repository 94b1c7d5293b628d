"""Tells what has happened: to waiters, in this loop or another, and to the log."""

import asyncio
import contextlib
from typing import Any

from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.log_fields import extra_of
from taskmanager.engine.outcome import Outcome, frames_of
from taskmanager.engine.settle import Next
from taskmanager.model.logger import Block, Raised, logger
from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted, why


async def wait_in(waiters: "list[asyncio.Future[Any]]") -> Any:
    """Wait for a future of one's own in a list that the engine resolves, and leave the list when cancelled."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    waiters.append(future)
    try:
        return await future
    finally:
        if future.cancelled() and future in waiters:
            waiters.remove(future)


def resolve(waiter: "asyncio.Future[Any]", value: Any) -> None:
    """Set a result on a future of this loop, or of another one."""
    if waiter.done():
        return
    if waiter.get_loop() is asyncio.get_running_loop():
        waiter.set_result(value)
    else:
        tell(waiter, value)


def resolve_error(waiter: "asyncio.Future[Any]", exc: BaseException) -> None:
    """Set an exception on a future of this loop, or of another one."""
    if waiter.done():
        return
    if waiter.get_loop() is asyncio.get_running_loop():
        waiter.set_exception(exc)
    else:
        tell(waiter, exc)


def tell(waiter: "asyncio.Future[Any]", outcome: Any) -> None:
    """Set a result, or an exception, from any thread. Where the loop is closed nobody waits any more."""
    with contextlib.suppress(RuntimeError):
        waiter.get_loop().call_soon_threadsafe(_set, waiter, outcome)


def _set(waiter: "asyncio.Future[Any]", outcome: Any) -> None:
    if waiter.done():
        return
    if isinstance(outcome, BaseException):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)


def log_end(live: LiveTask, exc: BaseException | None) -> None:
    """A task has ended here: an error only when it failed for good; with what it raised, where that is at hand."""
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
    """What a record shows of an exception; nothing where that refuses to be looked at."""
    if exc is None:
        return None
    try:
        return Raised(exc, frames_of(exc), Block(live.failed_reason or ""))
    except Exception:  # noqa: BLE001  # its attributes may be user code
        return None


def log_again(live: LiveTask, step: Next, outcome: Outcome) -> None:
    """A task failed and runs again."""
    if not step.is_retry:
        return
    logger.warning(
        "task %s (%s) failed with %s; retry %d of %d in %.1f s",
        live.definition.name,
        live.task_id,
        why(outcome.error.error_code, outcome.error.message) if outcome.error else "UNKNOWN",
        live.retry_count,
        live.definition.retry.max_retries,
        step.delay_s or 0.0,
        extra=extra_of(live),
    )


def log_failed(row: TaskRow) -> None:
    """One ERROR for a task that is FAILED by its row alone, as where the failure is seen to happen."""
    if row.status == TaskStatus.FAILED:
        about = {"task_id": row.task_id, "task_name": row.task_name, "error_code": row.error_code}
        text = "task %s (%s) failed with %s"
        logger.error(text, row.task_name, row.task_id, why(str(row.error_code), row.failed_reason), extra=about)


def log_judged(write: TaskWrite) -> None:
    """What became of a task whose owner is gone: an ERROR if it failed for good, a WARNING if it is tried again."""
    log_failed(write.row)
    for attempt in write.attempts:
        if attempt.will_retry:
            about = {"task_id": write.row.task_id, "task_name": write.row.task_name}
            reason = why(str(attempt.error_code), attempt.error_message)
            logger.warning("task %s (%s) failed with %s", write.row.task_name, write.row.task_id, reason, extra=about)
