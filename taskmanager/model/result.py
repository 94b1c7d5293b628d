"""What a task ends with: `TaskResult`, `TaskError`, and the values a task may return instead (`Snooze`)."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, cast, final, overload

from typing_extensions import TypeVar as TypeVarWithDefault

from taskmanager.model.dataclass import dataclass
from taskmanager.model.errors import ConfigurationError, TaskManagerError
from taskmanager.model.states import BuiltInTaskCode

Seconds = float | timedelta


RESERVED_CODES: Final = frozenset(BuiltInTaskCode)


def trusted_code(code: str) -> str:
    """Return a code as `TaskError` takes it from the library: a built-in code as its member."""
    return BuiltInTaskCode(code) if code in RESERVED_CODES else code


def plain_text(text: str) -> str:
    """Return the characters of any `str`. `str()` of a `class Code(str, Enum)` member would be its name, "Code.X"."""
    return str.__str__(text)


@final
class TaskError:
    """The reason why a task did not complete. It is a value, not an exception, and equal by content.

    `error_code` is free text, in UPPER_SNAKE_CASE if a retry policy names it. `message` is for people, `data` is
    anything that JSON can hold. A code that equals a built-in one raises `ConfigurationError`. In the record of a task
    that was retried, the library adds the key `retry` to `data`.
    """

    __slots__ = ("data", "error_code", "message")

    error_code: str
    message: str
    data: Mapping[str, object] | None

    def __init__(
        self, error_code: str | BuiltInTaskCode, message: str = "", data: Mapping[str, object] | None = None
    ) -> None:
        if not isinstance(error_code, str):
            raise ConfigurationError(f"error_code must be text, such as 'RATE_LIMITED', not {error_code!r}")
        if not isinstance(message, str):
            raise ConfigurationError(f"the message of a TaskError must be text, as str(exc) is, not {message!r}")
        code = plain_text(error_code)
        if code in RESERVED_CODES and not isinstance(error_code, BuiltInTaskCode):
            raise ConfigurationError(
                f"{code!r} is a code of the library; use BuiltInTaskCode.{code}, or a code of your own"
            )
        self.error_code = code
        self.message = message
        self.data = data

    def __repr__(self) -> str:
        return f"TaskError({self.error_code!r}, {self.message!r}, data={self.data!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskError):
            return NotImplemented
        return (self.error_code, self.message, self.data) == (other.error_code, other.message, other.data)

    def __hash__(self) -> int:
        return hash((self.error_code, self.message))


@final
@dataclass(frozen=True, slots=True)
class FailedTask:
    """The argument of an `on_failure` task: a task that has failed for good, after so many `attempts`.

    Its `error` comes without `data`.
    """

    task_id: str
    task_name: str
    error: TaskError
    attempts: int
    tags: Mapping[str, str]


T = TypeVar("T")
E = TypeVarWithDefault("E", default=TaskError)


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"

    def __reduce__(self) -> str:
        # Results are copied and cross processes, and "is _MISSING" must stay true there.
        return "_MISSING"


_MISSING: Final[Any] = _Missing()


@final
class TaskResult(Generic[T, E]):
    """Either a value (`TaskResult(ok=...)`) or an error (`TaskResult(err=TaskError(...))`), never both.

    Raises `ConfigurationError` if it is made with both or neither, and `TaskManagerError` if the missing side is read.
    """

    __slots__ = ("_err", "_ok")

    @overload
    def __init__(self, *, ok: T) -> None: ...
    @overload
    def __init__(self, *, err: E) -> None: ...
    def __init__(self, *, ok: Any = _MISSING, err: Any = _MISSING) -> None:
        if (ok is _MISSING) == (err is _MISSING):
            raise ConfigurationError("TaskResult takes exactly one of ok= and err=")
        self._ok = ok
        self._err = err

    def is_ok(self) -> bool:
        """Return True if there is a value."""
        return self._err is _MISSING

    def is_err(self) -> bool:
        """Return True if there is an error."""
        return self._err is not _MISSING

    @property
    def ok_value(self) -> T:
        """The value. Raises `TaskManagerError` if there is none."""
        if self._err is not _MISSING:
            raise TaskManagerError(f"this result holds an error, not a value: {self._err!r}; check is_ok() first")
        return cast("T", self._ok)

    @property
    def err_value(self) -> E:
        """The error. Raises `TaskManagerError` if there is none."""
        if self._err is _MISSING:
            raise TaskManagerError("this result holds a value, not an error; check is_err() first")
        return cast("E", self._err)

    def unwrap(self) -> T:
        """Return the value, or raise an exception that names the error in its place."""
        return self.ok_value

    def __repr__(self) -> str:
        return f"TaskResult(ok={self._ok!r})" if self.is_ok() else f"TaskResult(err={self._err!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        return self.is_ok() == other.is_ok() and bool(
            self._ok == other._ok if self.is_ok() else self._err == other._err
        )

    __hash__ = None  # type: ignore[assignment]  # values may be unhashable, so no result is


@final
class Subclasses:
    """A value of an exception mapper that also matches subclasses. The nearest class in the MRO wins."""

    __slots__ = ("error_code",)

    def __init__(self, error_code: str, /) -> None:
        self.error_code = error_code

    def __repr__(self) -> str:
        return f"Subclasses({self.error_code!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subclasses) and other.error_code == self.error_code

    def __hash__(self) -> int:
        return hash(("Subclasses", self.error_code))


@final
class Snooze:
    """A value that a task returns to run again after `delay` (seconds or timedelta). It uses up no retry."""

    __slots__ = ("delay_s",)

    def __init__(self, delay: Seconds, /) -> None:
        self.delay_s = seconds_of(delay, "Snooze")

    def __repr__(self) -> str:
        return f"Snooze({self.delay_s:g})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snooze) and other.delay_s == self.delay_s

    def __hash__(self) -> int:
        return hash(("Snooze", self.delay_s))


MAX_DELAY_S: Final = 100 * 366 * 86_400.0
"""A century. After a longer delay the instant might not fit into a datetime."""


def seconds_of(value: Seconds, name: str) -> float:
    """Return `value` as seconds. Raises `ConfigurationError` that names `name` unless it is from 0 to a century."""
    fault = seconds_fault(value, name)
    if fault:
        raise ConfigurationError(fault)
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def seconds_fault(value: object, name: str) -> str | None:
    """Return what is wrong with a duration, or None."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return f"{name} must be seconds (a number) or a timedelta, not {value!r}"
    if not 0 <= seconds <= MAX_DELAY_S:
        return f"{name} must be from 0 seconds to a hundred years, not {value!r}"
    return None
