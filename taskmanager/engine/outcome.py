"""What one attempt came to: made of the value that user code returned, or of the exception that it raised."""

import traceback
from types import CoroutineType, TracebackType
from typing import Any, Literal, NamedTuple

from taskmanager.engine.interrupts import traceback_of
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.mistakes import mistake_in
from taskmanager.model.result import Snooze, TaskError, TaskResult, plain_text, trusted_code
from taskmanager.model.states import BuiltInTaskCode

MAX_REASON_CHARS = 20_000
"""A traceback longer than this is cut in the middle, so that one failing recursion does not fill the file."""


_NOT_PLAIN = (Snooze, TaskResult, TaskError, CoroutineType)


class Outcome(NamedTuple):
    """What one attempt came to. `value` is set for "ok", `error` for "failed" and "crashed", `delay_s` for "snoozed".

    A success with an error is one whose value nobody has. "unstarted": user code could not begin, for the `reason` that
    its lane gives, or since the manager stops.
    """

    kind: Literal["ok", "failed", "snoozed", "stopped", "crashed", "unstarted"]
    value: Any = None
    error: TaskError | None = None
    reason: str | None = None
    delay_s: float = 0.0


def is_plain_value(value: object) -> bool:
    """Whether a returned value is nothing but the result."""
    return not isinstance(value, _NOT_PLAIN) and value is not Snooze


def outcome_of(value: Any) -> Outcome:
    """The outcome of a value that user code returned. Raises `TypeError` for one that is a mistake."""
    if isinstance(value, Snooze):
        return Outcome("snoozed", delay_s=value.delay_s)
    if isinstance(value, TaskResult):
        if value.is_ok():
            return Outcome("ok", value=value.ok_value)
        return Outcome("failed", error=error_of(value.err_value))
    if mistake := mistake_in(value):
        raise mistake
    return Outcome("ok", value=value)


def error_of(error: object) -> TaskError:
    """`TaskResult(err=...)` may hold an error type of the user's own; the record holds a `TaskError`."""
    if isinstance(error, TaskError):
        return error
    code = str(getattr(error, "error_code", BuiltInTaskCode.UNHANDLED_EXCEPTION))
    message = str(getattr(error, "message", error))
    return TaskError(trusted_code(code), message, getattr(error, "data", None))


def timed_out(live: LiveTask) -> Outcome:
    """The outcome of an attempt whose time is up."""
    message = f"the attempt took longer than its timeout of {live.timeout_s:g} s"
    return Outcome("failed", error=TaskError(BuiltInTaskCode.TASK_TIMEOUT, message), reason=message)


def failure_of(live: LiveTask, exc: BaseException) -> Outcome:
    """The outcome of an exception that user code raised. Whatever that does when it is looked at, it has an outcome."""
    return failure_in_words(live, type(exc), words_of(exc), describe(exc))


def failure_in_words(live: LiveTask, kind: type[BaseException], words: str, text: str) -> Outcome:
    """The same of an exception of which only the class is here, with its words and its traceback."""
    try:
        code = live.definition.code_of(kind)
    except BaseException:  # its metaclass is user code too
        code = BuiltInTaskCode.UNHANDLED_EXCEPTION
    return Outcome("failed", error=TaskError(trusted_code(code), words), reason=text)


def words_of(exc: BaseException) -> str:
    """The name of its class and its message, as far as they can be had."""
    name = name_of(type(exc))
    try:
        words = plain_text(str(exc))
    except BaseException as broken:
        words = f"<its text cannot be made: {name_of(type(broken))}>"
    return f"{name}: {words}" if words else name


def name_of(kind: type) -> str:
    """The name of a class, whatever its metaclass says."""
    return str(vars(type)["__name__"].__get__(kind))


def describe(exc: BaseException) -> str:
    """The traceback as text, without the engine's own frames, bounded in size."""
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
    """Where it was raised, without a look at the exception. The recursion that it asks for may leave no room for it."""
    try:
        return "Traceback (most recent call last):\n" + "".join(traceback.format_tb(frames)) if frames else ""
    except (RecursionError, MemoryError):
        return ""


def frames_of(exc: BaseException) -> TracebackType | None:
    """Where it was raised, without the engine's own frames, which come first; whatever its class says of it."""
    frames = traceback_of(exc)
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("taskmanager.engine."):
        frames = frames.tb_next
    return frames


def as_cause(exc: BaseException) -> BaseException:
    """The exception as users get it: without the engine's own frames."""
    return BaseException.with_traceback(exc, frames_of(exc))
