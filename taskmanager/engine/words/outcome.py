"""What one attempt came to, told from the value that user code returned or from the exception that it raised.

Each class of an exception is user code: whatever it does when it is looked at, the attempt has an outcome. So what the
interpreter keeps of an exception is read from `BaseException` itself. Exceptions that a signal raised, such as Ctrl-C,
are told from those of a task, because they mean the process. The handler of Python or of the program raises in whatever
line the main thread runs, and nothing in the exception says so.

What came of a task is said in the log, and each record of the library's logger says which task it is about, so that a
format with `%(task_id)s` never fails. A filter adds these fields, not a handler: where records go is the application's
business.
"""

import logging
import signal
import threading
import traceback
from collections.abc import Awaitable, Iterator
from itertools import pairwise
from opcode import opmap
from types import CoroutineType, TracebackType
from typing import Any, Final, Literal, NamedTuple, TypeVar

from taskmanager.engine.words.definition import Definition, tags_of
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.model.context import current
from taskmanager.model.errors import ArgumentError, ManagerStopped, ManagerStopping, StepFailed, TaskNotCompleted
from taskmanager.model.logger import Raised, logger, plain
from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.model.result import Snooze, TaskError, TaskResult, plain_text, trusted_code
from taskmanager.model.states import BuiltInTaskCode, TaskStatus
from taskmanager.model.wording import counted, why

MAX_REASON_CHARS: Final = 20_000
"""A traceback longer than this is cut in the middle, so that one failing recursion does not fill the file."""
_BETWEEN: Final = ("taskmanager.engine.run.calls", "taskmanager.engine.run.lanes")
"""The modules through which a middleware comes to its function."""

_OF_STOP: Final = frozenset({BuiltInTaskCode.MANAGER_STOPPED, BuiltInTaskCode.TASK_INTERRUPTED})
T = TypeVar("T")
_NOT_PLAIN: Final = (Snooze, TaskResult, TaskError, CoroutineType)


class Outcome(NamedTuple):
    """What one attempt came to. `value` is set for "ok", `error` for "failed" and "crashed", `delay_s` for "snoozed".

    A success with an error is one whose value nobody has. "unstarted": user code could not begin, for the `reason` that
    its lane gives, or since the manager stops. "suspended": it sleeps until `Attempt.wakes_at`. "held": its workflow is
    paused, or what it takes runs again, and the task waits for that. "refused": user code must not begin, and it ends
    with the `error`.
    """

    kind: Literal["ok", "failed", "snoozed", "stopped", "crashed", "unstarted", "suspended", "held", "refused"]
    value: Any = None
    error: TaskError | None = None
    reason: str | None = None
    delay_s: float = 0.0


# What was returned.


def is_plain_value(value: object) -> bool:
    """Return whether a returned value is nothing but the result."""
    return not isinstance(value, _NOT_PLAIN) and value is not Snooze


def outcome_of(value: Any) -> Outcome:
    """Return the outcome of a value that user code returned. Raises `TypeError` for one that is a mistake."""
    if isinstance(value, Snooze):
        return Outcome("snoozed", delay_s=value.delay_s)
    if isinstance(value, TaskResult):
        if value.is_ok():
            return Outcome("ok", value=value.ok_value)
        return Outcome("failed", error=error_of(value.err_value))
    if mistake := mistake_in(value):
        raise mistake
    return Outcome("ok", value=value)


def mistake_in(value: object) -> TypeError | None:
    """Return the failure for a value that no function returns on purpose: the work that it stands for was not done."""
    if isinstance(value, CoroutineType):
        value.close()  # the failure says what a warning of Python would
        return TypeError(
            f"the function returned the coroutine {value.__name__}, and nobody has awaited it: make the function async "
            "def and await it there; a decorator around an async function must be async itself"
        )
    if isinstance(value, TaskError):
        return TypeError(f"the function returned {value!r} as if it were a value; TaskResult(err=...) fails with it")
    if value is Snooze:
        return TypeError("the function returned the class Snooze; Snooze(30) is what makes it run again")
    return None


def error_of(error: object) -> TaskError:
    """Return the `TaskError` for the record: `TaskResult(err=...)` may hold an error type of the user's own."""
    if isinstance(error, TaskError):
        return error
    code = str(getattr(error, "error_code", BuiltInTaskCode.UNHANDLED_EXCEPTION))
    message = str(getattr(error, "message", error))
    return TaskError(trusted_code(code), message, getattr(error, "data", None))


# What was raised.


def timed_out(timeout_s: float | None) -> Outcome:
    """Return the outcome of an attempt whose time is up."""
    message = f"the attempt took longer than its timeout of {timeout_s:g} s"
    return Outcome("failed", error=TaskError(BuiltInTaskCode.TASK_TIMEOUT, message), reason=message)


def failure_of(definition: Definition, exc: BaseException) -> Outcome:
    """Return the outcome of an exception that user code raised. That of a failed step is the step's."""
    if type(exc) is StepFailed:  # a look at the bases would call the metaclass, which is user code
        return Outcome("failed", error=exc.error, reason=describe(exc))
    return failure_in_words(definition, type(exc), words_of(exc), describe(exc))


def failure_in_words(definition: Definition, kind: type[BaseException], words: str, text: str) -> Outcome:
    """Return the outcome of an exception of which only the class is here, with its words and its traceback."""
    try:
        code = definition.code_of(kind)
    except BaseException:  # its metaclass is user code too
        code = BuiltInTaskCode.UNHANDLED_EXCEPTION
    return Outcome("failed", error=TaskError(trusted_code(code), words), reason=text)


def words_of(exc: BaseException) -> str:
    """Return the name of its class and its message, as far as they can be had."""
    name = name_of(type(exc))
    try:
        words = plain_text(str(exc))
    except BaseException as broken:
        words = f"<its text cannot be made: {name_of(type(broken))}>"
    return f"{name}: {words}" if words else name


def name_of(kind: type) -> str:
    """Return the name of a class, whatever its metaclass says."""
    return str(vars(type)["__name__"].__get__(kind))


def describe(exc: BaseException) -> str:
    """Return the traceback as text, without the engine's own frames, bounded in size."""
    frames = frames_of(exc)
    try:
        text = "".join(traceback.format_exception(type(exc), exc, frames))
    except BaseException as broken:  # the attributes of an exception may be user code
        why = f"{words_of(exc)}\n<its traceback cannot be made in full: {name_of(type(broken))}>"
        text = f"{_places(frames)}{why}"
    if len(text) > MAX_REASON_CHARS:
        half = MAX_REASON_CHARS // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return text


def _places(frames: TracebackType | None) -> str:
    """Return where it was raised, without a look at the exception. After a recursion there may be no room for that."""
    try:
        return "Traceback (most recent call last):\n" + "".join(traceback.format_tb(frames)) if frames else ""
    except (RecursionError, MemoryError):
        return ""


def frames_of(exc: BaseException) -> TracebackType | None:
    """Return the traceback without the engine's own frames: the first ones, and those between middleware and function.

    The latter are taken out of the exception, too.
    """
    first = _traceback_of(exc)
    while first is not None and _module_of(first).startswith("taskmanager.engine."):
        first = first.tb_next
    step = first
    while step is not None:
        while step.tb_next is not None and _module_of(step.tb_next) in _BETWEEN:
            step.tb_next = step.tb_next.tb_next
        step = step.tb_next
    return first


def _module_of(step: TracebackType) -> str:
    return str(step.tb_frame.f_globals.get("__name__", ""))


def as_cause(exc: BaseException) -> BaseException:
    """Return the exception as users get it: without the engine's own frames."""
    return BaseException.with_traceback(exc, frames_of(exc))


def _traceback_of(exc: BaseException) -> TracebackType | None:
    tb: TracebackType | None = vars(BaseException)["__traceback__"].__get__(exc)
    return tb


# Who raised it.


def comes_from_signal(exc: BaseException) -> bool:
    """Return whether a signal raised it, or raised one of the exceptions of a group."""
    return any(map(_is_from_signal, leaves_of(exc)))


def _is_from_signal(exc: BaseException) -> bool:
    is_candidate = issubclass(type(exc), KeyboardInterrupt | SystemExit)
    if not is_candidate or threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    codes = [getattr(getattr(each, "func", each), "__code__", None) for each in handlers]  # asyncio's is a partial
    steps = list(_steps_of(exc))
    if any(step.tb_frame.f_code in codes for step in steps):
        return True
    # Python's own handler has no frame. It raises between two instructions, or in a call that was waiting.
    is_by_default = type(exc) is KeyboardInterrupt and handlers[0] is signal.default_int_handler
    return is_by_default and bool(steps) and not _is_raise(steps[-1])


class Exit(NamedTuple):
    """What code of the application has raised to end the process."""

    exc: SystemExit | KeyboardInterrupt


async def without_exit(what: Awaitable[T]) -> T | Exit:
    """Await it, and return its `sys.exit()` as a value: a task that raises it breaks the loop. A signal's is raised."""
    try:
        return await what
    except (SystemExit, KeyboardInterrupt) as exc:
        if comes_from_signal(exc):
            raise
        return Exit(exc)


def value_in(found: T | Exit) -> T:
    """Return a value that was awaited so, or raise the exit."""
    if isinstance(found, Exit):
        raise found.exc
    return found


def comes_from_stop(exc: BaseException) -> bool:
    """Return whether the stop of the manager raised it: it takes no more tasks, or puts back an awaited one.

    A task that lets this through was interrupted by the stop, like one that the stop cancels. It has not failed.
    """
    return all(map(_is_of_stop, leaves_of(exc)))


def _is_of_stop(exc: BaseException) -> bool:
    if issubclass(type(exc), TaskNotCompleted):
        return exc.error.error_code in _OF_STOP  # type: ignore[attr-defined]  # it is one of ours
    return issubclass(type(exc), ManagerStopping | ManagerStopped)


def is_handed_on(exc: BaseException, thrown: BaseException | None) -> bool:
    """Return whether another task first raised `exc`, which a coroutine raised when `thrown` was thrown into it."""
    if exc is thrown or issubclass(type(exc), BaseExceptionGroup):
        return True
    # A cancelled group of tasks raises the exception of a member again: that `raise` is inside the traceback.
    is_raised_again = (
        _is_raise(step) and step.tb_frame is not after.tb_frame for step, after in pairwise(_steps_of(exc))
    )
    return thrown is not None and any(is_raised_again)


def leaves_of(exc: BaseException) -> Iterator[BaseException]:
    """Yield the exception, or the exceptions of a group and of the groups in it."""
    left = [exc]
    while left:
        each = left.pop()
        if issubclass(type(each), BaseExceptionGroup):
            left.extend(vars(BaseExceptionGroup)["exceptions"].__get__(each))
        else:
            yield each


def _steps_of(exc: BaseException) -> Iterator[TracebackType]:
    """Yield the entries of the traceback. The frame in which it was raised comes last."""
    tb = _traceback_of(exc)
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_raise(step: TracebackType) -> bool:
    return step.tb_frame.f_code.co_code[step.tb_lasti] == opmap["RAISE_VARARGS"]


# What is said of it in the log.

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
    except Exception:  # its attributes may be user code
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
