"""When a failed task runs again, and which code an exception becomes.

A `RetryRule` is plain data, made once per task from its policy or its shorthand and stored with every row, so that
whoever recovers a row decides from the row alone, without the function that it names.
"""

import sys
from collections.abc import Mapping
from typing import Final

from taskmanager.model.config import (
    JITTER_FRACTION,
    MAX_INTERVAL_S,
    MAX_RETRIES,
    MIN_POLICY_DELAY_S,
    ExceptionMapper,
    RetryPolicy,
    is_int,
    raise_faults,
)
from taskmanager.model.dataclass import dataclass
from taskmanager.model.result import Subclasses, TaskError, plain_text, seconds_fault, trusted_code
from taskmanager.model.states import BuiltInTaskCode

MAX_SHORTHAND_RETRIES: Final = 1_000_000
MAX_SHORTHAND_DELAY_S: Final = 3_600.0
LONGEST_DELAY_S: Final = MAX_INTERVAL_S * 2.0 ** (MAX_RETRIES - 1)
"""No delay is longer. A policy without a cap asks for this at most (1,436 years), and the instant fits a row."""

DEFAULT_INTERVALS: Final = (60.0, 300.0, 900.0)
_NEVER_BY_SHORTHAND: Final = frozenset({BuiltInTaskCode.WORKER_CRASHED, BuiltInTaskCode.TASK_CANCELLED})
NEVER: Final = frozenset({
    BuiltInTaskCode.STEP_MISMATCH, BuiltInTaskCode.STEP_SNOOZE, BuiltInTaskCode.STEP_LIMIT,
    BuiltInTaskCode.ARGUMENT_MISMATCH,
})  # fmt: skip
"""Failures that only another code of the task ends. No policy retries them."""
# A larger int may not become the float that `**` needs. Every factor above 1 has overflowed long before.
_MAX_EXPONENT: Final = 2**53


@dataclass(frozen=True, slots=True)
class RetryRule:
    """The effective retry behaviour of one task.

    `codes` None is the shorthand: every code but WORKER_CRASHED and TASK_CANCELLED. `intervals` are seconds: one per
    retry, or the single base of an exponential rule. `max_retries` 0 is never. Delays are at least `min_delay_s`
    before jitter and at most `max_delay_s` after it.
    """

    codes: frozenset[str] | None
    max_retries: int
    intervals: tuple[float, ...]
    is_exponential: bool
    factor: float
    jitter: bool
    min_delay_s: float
    max_delay_s: float | None

    @classmethod
    def none(cls) -> "RetryRule":
        """No retry, whatever the code."""
        return _NONE

    @classmethod
    def from_policy(cls, policy: RetryPolicy) -> "RetryRule":
        """The rule of a full policy: its codes only, doubling, never under a second before jitter."""
        cap = policy.max_delay_seconds
        return cls(
            codes=frozenset(policy.auto_retry_for),
            max_retries=policy.max_retries,
            intervals=tuple(float(each) for each in policy.intervals),
            is_exponential=policy.backoff_strategy == "exponential",
            factor=2.0,
            jitter=policy.jitter,
            min_delay_s=MIN_POLICY_DELAY_S,
            # A cap that nothing reaches is none: JSON has no infinity, and an int may be too large for a float.
            max_delay_s=None if cap is None or cap > 2 * LONGEST_DELAY_S else float(cap),
        )

    @classmethod
    def shorthand(cls, retries: int, delay_s: float, backoff: float) -> "RetryRule":
        """The rule of `retries=, retry_delay=, retry_backoff=`: jittered, at most an hour apart.

        Raises `ConfigurationError` with every fault.
        """
        raise_faults("the short form of a policy", shorthand_faults(retries, delay_s, backoff))
        return cls(
            codes=None,
            max_retries=retries,
            intervals=(float(delay_s),),
            is_exponential=True,
            factor=float(backoff),
            jitter=True,
            min_delay_s=0.0,
            max_delay_s=MAX_SHORTHAND_DELAY_S,
        )

    def covers(self, code: str) -> bool:
        """Whether a failure with this code may be retried at all."""
        if code in NEVER:
            return False
        return code not in _NEVER_BY_SHORTHAND if self.codes is None else code in self.codes

    def delay_s(self, retry_number: int, random_01: float) -> float:
        """Seconds before retry `retry_number` (1 is the first); `random_01` in [0, 1) decides the jitter."""
        assert retry_number >= 1, retry_number
        cap = LONGEST_DELAY_S if self.max_delay_s is None else self.max_delay_s
        # Capped before jitter too: tasks that all reached the cap must not come back in the same instant.
        delay = min(max(self._planned_s(retry_number), self.min_delay_s), cap)
        if self.jitter:
            delay *= 1.0 + JITTER_FRACTION * (2.0 * random_01 - 1.0)
        return min(delay, cap)

    def _planned_s(self, retry_number: int) -> float:
        if not self.is_exponential:
            return self.intervals[min(retry_number, len(self.intervals)) - 1]
        base = self.intervals[0]
        if base == 0.0:  # 0 times an overflow is not a number
            return 0.0
        try:
            return base * self.factor ** min(retry_number - 1, _MAX_EXPONENT)
        except OverflowError:
            return LONGEST_DELAY_S

    def next_delay_s(self, code: str, retry_count: int, random_01: float) -> float | None:
        """Seconds until the retry after a failure with `code` when `retry_count` were spent; None: no retry."""
        if retry_count >= self.max_retries or not self.covers(code):
            return None
        return self.delay_s(retry_count + 1, random_01)

    def to_options(self) -> dict[str, object]:
        """The rule as JSON can hold it: the value of `"retry"` in a row's task options."""
        return {
            "codes": None if self.codes is None else sorted(self.codes),
            "max_retries": self.max_retries,
            "intervals": list(self.intervals),
            "is_exponential": self.is_exponential,
            "factor": self.factor,
            "jitter": self.jitter,
            "min_delay_s": self.min_delay_s,
            "max_delay_s": self.max_delay_s,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, object] | None) -> "RetryRule":
        """The rule that `to_options` wrote. Never raises, a corrupt row must not stop recovery.

        Corrupt intervals become the default ones of a policy; anything else corrupt makes `none()`, because a task that
        is repeated without permission is worse than one that is not repeated.
        """
        if not isinstance(options, Mapping):
            return _NONE
        codes, retries, factor = options.get("codes", False), options.get("max_retries"), options.get("factor")
        floor, cap = options.get("min_delay_s"), options.get("max_delay_s", False)
        flags = (options.get("is_exponential"), options.get("jitter"))
        if not (
            (codes is None or (isinstance(codes, list | tuple) and all(isinstance(code, str) for code in codes)))
            and (is_int(retries) and 0 <= retries <= MAX_SHORTHAND_RETRIES)  # type: ignore[operator]  # shown by is_int
            and _is_number(factor, at_least=1)
            and _is_number(floor, at_least=0)
            and (cap is None or _is_number(cap, at_least=0))
            and all(isinstance(flag, bool) for flag in flags)
        ):
            return _NONE
        return cls(
            codes=None if codes is None else frozenset(codes),
            max_retries=retries,  # type: ignore[arg-type]  # all of these were checked above
            intervals=_intervals_of(options.get("intervals")),
            is_exponential=bool(flags[0]),
            factor=float(factor),  # type: ignore[arg-type]  # checked above
            jitter=bool(flags[1]),
            min_delay_s=float(floor),  # type: ignore[arg-type]  # checked above
            max_delay_s=None if cap is None else float(cap),  # type: ignore[arg-type]  # checked above
        )


def shorthand_faults(retries: object, delay: object, backoff: object) -> list[str]:
    """What is wrong with `retries=, retry_delay=, retry_backoff=`."""
    faults = []
    if not is_int(retries) or not 0 <= retries <= MAX_SHORTHAND_RETRIES:  # type: ignore[operator]  # shown by is_int
        faults.append(f"retries must be a whole number from 0 to {MAX_SHORTHAND_RETRIES:_}, not {retries!r}")
    fault = seconds_fault(delay, "retry_delay")
    if fault:
        faults.append(fault)
    if not _is_number(backoff, at_least=1):
        faults.append(f"retry_backoff must be a factor of 1 or more, not {backoff!r}")
    return faults


def _is_number(value: object, *, at_least: float) -> bool:
    """A finite number, small enough for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return at_least <= value <= sys.float_info.max


def _intervals_of(value: object) -> tuple[float, ...]:
    """The stored intervals; the default ones where they are missing or corrupt."""
    if not isinstance(value, list | tuple) or not value or not all(_is_number(each, at_least=0) for each in value):
        return DEFAULT_INTERVALS
    return tuple(float(each) for each in value)


_NONE: Final = RetryRule(
    codes=frozenset(),
    max_retries=0,
    intervals=(0.0,),
    is_exponential=False,
    factor=2.0,
    jitter=False,
    min_delay_s=0.0,
    max_delay_s=None,
)


def with_retry_numbers(error: TaskError, *, count: int, maximum: int, exhausted: bool) -> TaskError:
    """A copy of `error` whose data says how often it was retried, beside what the task put there itself.

    The key is `"retry"`; data that is not a mapping moves to the key `"data"`, so that nothing of it is lost.
    """
    data: dict[str, object]
    if error.data is None:
        data = {}
    elif isinstance(error.data, Mapping):
        data = dict(error.data)
    else:
        data = {"data": error.data}
    data["retry"] = {"count": count, "max": maximum, "exhausted": exhausted}
    return TaskError(trusted_code(error.error_code), error.message, data)


def code_of(
    kind: type[BaseException],
    task_mapper: ExceptionMapper | None,
    global_mapper: ExceptionMapper | None,
    task_default: str | None,
    global_default: str,
) -> str:
    """The error code that an unhandled exception of this class becomes; a built-in one as its enum member.

    The task's mapper is asked before the global one, and each of them for the exact class before the nearest class that
    is mapped to `Subclasses`; then the task's default holds, then the global default.
    """
    for mapper in (task_mapper, global_mapper):
        code = _mapped(kind, mapper) if mapper else None
        if code is not None:
            return trusted_code(plain_text(code))
    return trusted_code(plain_text(global_default if task_default is None else task_default))


def _mapped(exception: type[BaseException], mapper: ExceptionMapper) -> str | None:
    for ancestor in exception.__mro__:
        value = mapper.get(ancestor)
        if isinstance(value, Subclasses):
            return value.error_code
        if value is not None and ancestor is exception:
            return value
    return None
