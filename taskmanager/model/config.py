"""The configuration of a manager. Each object checks itself when it is made, and names all faults at once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Self

from taskmanager.model.dataclass import dataclass
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.known_words import known_words, with_known_words
from taskmanager.model.result import RESERVED_CODES, Subclasses, plain_text
from taskmanager.model.states import BuiltInTaskCode

ExceptionMapper = Mapping[type[BaseException], "str | Subclasses"]

MAX_RETRIES: Final = 20
MAX_INTERVAL_S: Final = 86_400
MIN_POLICY_DELAY_S: Final = 1.0
JITTER_FRACTION: Final = 0.25
PRIORITY_RANGE: Final = (1, 100)
MAX_NAME_LENGTH: Final = 255
MAX_QUEUE_NAME_LENGTH: Final = 100


def raise_faults(subject: str, faults: Sequence[str]) -> None:
    """Raise one `ConfigurationError` that lists every fault. Do nothing if there is none."""
    if faults:
        raise ConfigurationError(f"{subject}: " + "; ".join(faults))


def code_fault(code: object, name: str) -> str | None:
    """Return what is wrong with an error code that a user may choose, or None."""
    if not isinstance(code, str):
        return f"{name} must be a code such as 'RATE_LIMITED', not {code!r}"
    is_name = code.isascii() and code.isidentifier() and code[0].isupper()
    if is_name and code.endswith(("Error", "Exception")) and code not in ("Error", "Exception"):
        return f"{name} {code!r} is the name of an exception; map the exception to a code with exception_mapper"
    if not is_name or code != code.upper():
        return f"{name} {code!r} must be UPPER_SNAKE_CASE"
    return None


def own_code_fault(code: object, name: str) -> str | None:
    """Return what is wrong with a user's own code, or None. A built-in code means something else already."""
    if type(code) is str and code in RESERVED_CODES and code != BuiltInTaskCode.UNHANDLED_EXCEPTION:
        return f"{name} {code!r} is a code of the library; choose another"
    return code_fault(code, name)


def mapper_faults(mapper: ExceptionMapper | None) -> list[str]:
    """Return everything that is wrong with an exception mapper."""
    if mapper is None:
        return []
    if not isinstance(mapper, Mapping):
        return [
            f"exception_mapper must map exception classes to codes, as {{TimeoutError: 'TIMED_OUT'}}, not {mapper!r}"
        ]
    faults = []
    for exception, value in mapper.items():
        if not (isinstance(exception, type) and issubclass(exception, BaseException)):
            faults.append(f"exception_mapper key {exception!r} is not an exception class")
        code = value.error_code if isinstance(value, Subclasses) else value
        fault = own_code_fault(code, f"exception_mapper[{getattr(exception, '__name__', exception)}]")
        if fault:
            faults.append(fault)
    return faults


def list_fault(name: str, value: object, of: str) -> str | None:
    """Return what is wrong with something that should be a list, or None."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return f"{name} must be a list of {of}, not {value!r}"
    return None


def is_int(value: object) -> bool:
    """Return whether it is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _range_fault(name: str, value: object, low: int, high: int, unit: str = "") -> str | None:
    if not is_int(value):
        return f"{name} must be a whole number, not {value!r}"
    if not low <= value <= high:  # type: ignore[operator]  # is_int has shown that it is one
        return f"{name} must be from {low:_} to {high:_}{unit}, not {value!r}"
    return None


@with_known_words("RetryPolicy()")
@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class RetryPolicy:
    """The rule by which a failed task runs again: only for the codes in `auto_retry_for`, at most `max_retries` times.

    With `"fixed"`, `intervals` has one delay per retry, in whole seconds. With `"exponential"`, it has a single base
    that doubles each time. `jitter` varies every delay by ±25 %, so that tasks which failed together do not come back
    together. Before jitter no delay is below one second; `max_delay_seconds` is the longest delay after jitter. Raises
    `ConfigurationError` with every fault.
    """

    auto_retry_for: tuple[str, ...]
    max_retries: int
    intervals: tuple[int, ...]
    backoff_strategy: Literal["fixed", "exponential"]
    jitter: bool
    max_delay_seconds: float | None

    def __init__(
        self,
        *,
        auto_retry_for: Sequence[str | BuiltInTaskCode],
        max_retries: int = 3,
        intervals: Sequence[int] = (60, 300, 900),
        backoff_strategy: Literal["fixed", "exponential"] = "fixed",
        jitter: bool = True,
        max_delay_seconds: float | None = None,
    ) -> None:
        if isinstance(auto_retry_for, str):
            raise ConfigurationError("RetryPolicy: auto_retry_for must be a list of codes, not one string")
        kinds = [list_fault("auto_retry_for", auto_retry_for, "codes"), list_fault("intervals", intervals, "seconds")]
        raise_faults("RetryPolicy", [fault for fault in kinds if fault])
        values: dict[str, Any] = {
            "auto_retry_for": tuple(plain_text(code) if isinstance(code, str) else code for code in auto_retry_for),
            "max_retries": max_retries,
            "intervals": tuple(intervals),
            "backoff_strategy": backoff_strategy,
            "jitter": jitter,
            "max_delay_seconds": max_delay_seconds,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        raise_faults("RetryPolicy", self._faults())

    def _faults(self) -> list[str]:
        found = [code_fault(code, "auto_retry_for") for code in self.auto_retry_for]
        if not self.auto_retry_for:
            found.append("auto_retry_for needs at least one code")
        found.append(_range_fault("max_retries", self.max_retries, 1, MAX_RETRIES))
        found.extend(_range_fault("intervals", each, 1, MAX_INTERVAL_S, " s") for each in self.intervals)
        if not isinstance(self.jitter, bool):
            found.append(f"jitter must be True or False, not {self.jitter!r}")
        cap = self.max_delay_seconds
        if cap is not None and not (isinstance(cap, int | float) and not isinstance(cap, bool) and cap >= 1):
            found.append(f"max_delay_seconds must be at least 1 second or None, not {cap!r}")
        found.append(self._strategy_fault())
        return [fault for fault in found if fault]

    def _strategy_fault(self) -> str | None:
        if self.backoff_strategy not in ("fixed", "exponential"):
            return f"backoff_strategy must be 'fixed' or 'exponential', not {self.backoff_strategy!r}"
        if self.backoff_strategy == "exponential":
            if len(self.intervals) != 1:
                return f"exponential needs exactly one base interval, not {len(self.intervals)}"
        elif len(self.intervals) != self.max_retries:
            retries, given = self.max_retries, len(self.intervals)
            return f"fixed needs one interval per retry: max_retries is {retries!r}, intervals has {given}"
        return None

    @classmethod
    @known_words("RetryPolicy.fixed()")
    def fixed(
        cls, intervals: Sequence[int], /, *, auto_retry_for: Sequence[str | BuiltInTaskCode], jitter: bool = True
    ) -> Self:
        """Retry once per interval, after that many seconds; with jitter ±25 %."""
        fault = list_fault("intervals", intervals, "seconds")
        raise_faults("RetryPolicy.fixed", [fault] if fault else [])
        return cls(auto_retry_for=auto_retry_for, max_retries=len(intervals), intervals=intervals, jitter=jitter)

    @classmethod
    @known_words("RetryPolicy.exponential()")
    def exponential(
        cls,
        *,
        base_seconds: int,
        max_retries: int,
        auto_retry_for: Sequence[str | BuiltInTaskCode],
        jitter: bool = True,
        max_delay_seconds: float | None = None,
    ) -> Self:
        """Retry after `base_seconds`, then twice that, then four times, up to `max_delay_seconds` if it is given."""
        fault = _range_fault("base_seconds", base_seconds, 1, MAX_INTERVAL_S, " s")
        raise_faults("RetryPolicy.exponential", [fault] if fault else [])
        return cls(
            auto_retry_for=auto_retry_for,
            max_retries=max_retries,
            intervals=(base_seconds,),
            backoff_strategy="exponential",
            jitter=jitter,
            max_delay_seconds=max_delay_seconds,
        )


@with_known_words("QueueConfig()")
@dataclass(frozen=True, slots=True)
class QueueConfig:
    """One named queue. Tasks of the queue with the smallest `priority` (1 to 100) start first.

    `max_concurrency` limits how many tasks of the queue run at once: in each instance with `scope="instance"`, in all
    instances on the file together with `scope="file"`; None is no limit. `max_pending` limits how many of its tasks
    wait in the memory of each instance.

    A queue with `scope="file"` takes persisted tasks only. They wait in the file until there is a slot, so
    `max_pending` does not count them, and a delay is accurate to `store_poll`. Every instance must give the same limit.
    """

    name: str
    priority: int = 50
    max_concurrency: int | None = None
    max_pending: int | None = None
    scope: Literal["instance", "file"] = "instance"

    def __init__(
        self,
        name: str,
        *,
        priority: int = 50,
        max_concurrency: int | None = None,
        max_pending: int | None = None,
        scope: Literal["instance", "file"] = "instance",
    ) -> None:
        values = (name, priority, max_concurrency, max_pending, scope)
        for field, value in zip(QueueConfig.__slots__, values, strict=True):
            object.__setattr__(self, field, value)
        found = [queue_name_fault(name), _range_fault("priority", priority, *PRIORITY_RANGE)]
        for label, limit in (("max_concurrency", max_concurrency), ("max_pending", max_pending)):
            if limit is not None:
                found.append(_range_fault(label, limit, 1, 1_000_000_000))
        if scope not in ("instance", "file"):
            found.append(f"scope must be 'instance' or 'file', not {scope!r}")
        raise_faults(f"QueueConfig({name!r})", [fault for fault in found if fault])

    @property
    def is_limited_in_file(self) -> bool:
        """Whether `max_concurrency` holds for all instances on the file together."""
        return self.scope == "file" and self.max_concurrency is not None


def queue_of_a_row(name: str) -> QueueConfig:
    """Return the defaults, for a queue that nobody configured.

    Another version may have written a name that this version would refuse. Its tasks run all the same.
    """
    config = object.__new__(QueueConfig)
    for field in QueueConfig.__slots__:
        object.__setattr__(config, field, name if field == "name" else getattr(_DEFAULT_QUEUE, field))
    return config


def queue_name_fault(name: object) -> str | None:
    """Return what is wrong with a queue name, or None."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_QUEUE_NAME_LENGTH or not name.isprintable():
        return f"queue_name must be 1 to {MAX_QUEUE_NAME_LENGTH} printable characters, not {name!r}"
    return None


def name_fault(name: object) -> str | None:
    """Return what is wrong with the name of a task or a schedule, or None."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        return f"name must be 1 to {MAX_NAME_LENGTH} printable characters, not {name!r}"
    return None


def priority_fault(priority: object) -> str | None:
    """Return what is wrong with a priority, or None."""
    return _range_fault("priority", priority, *PRIORITY_RANGE)


_SECOND_MS, _HOUR_MS = 1_000, 3_600_000
_RANGES: Final[Mapping[str, tuple[int, int, str]]] = {
    "claimed_stale_threshold_ms": (_SECOND_MS, _HOUR_MS, " ms"),
    "running_stale_threshold_ms": (_SECOND_MS, 2 * _HOUR_MS, " ms"),
    "finalizing_stale_threshold_ms": (_SECOND_MS, 2 * _HOUR_MS, " ms"),
    "crashed_worker_recovery_grace_ms": (0, _HOUR_MS, " ms"),
    "check_interval_ms": (_SECOND_MS, 600_000, " ms"),
    "runner_heartbeat_interval_ms": (_SECOND_MS, 120_000, " ms"),
    "claimer_heartbeat_interval_ms": (_SECOND_MS, 120_000, " ms"),
    "heartbeat_retention_hours": (1, 8_760, " h"),
    "worker_state_retention_hours": (1, 8_760, " h"),
    "terminal_record_retention_hours": (1, 43_800, " h"),
    "worker_state_snapshot_interval_ms": (_SECOND_MS, 300_000, " ms"),
    "retention_sweep_interval_s": (30, 86_400, " s"),
    "retention_delete_batch_size": (50, 10_000, ""),
    "crash_budget": (1, 1_000, ""),
}
_MAY_BE_NONE: Final = frozenset(
    {"heartbeat_retention_hours", "worker_state_retention_hours", "terminal_record_retention_hours"}
)
_FLAGS: Final = (
    "auto_requeue_stale_claimed",
    "auto_fail_stale_running",
    "auto_terminate_orphaned_workflow_tasks",
)
_TWICE: Final = (
    ("claimed_stale_threshold_ms", "claimer_heartbeat_interval_ms"),
    ("running_stale_threshold_ms", "runner_heartbeat_interval_ms"),
    ("finalizing_stale_threshold_ms", "runner_heartbeat_interval_ms"),
)


@with_known_words("RecoveryConfig()")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """When the tasks of a silent instance are taken over, and how long records are kept.

    Thresholds and intervals are milliseconds. Retentions are hours; None keeps rows for ever. A threshold must be at
    least twice the interval of its heartbeat, so that one late heartbeat costs nobody its tasks. Raises
    `ConfigurationError` with every fault.
    """

    auto_requeue_stale_claimed: bool = True
    claimed_stale_threshold_ms: int = 120_000
    auto_fail_stale_running: bool = True
    running_stale_threshold_ms: int = 300_000
    finalizing_stale_threshold_ms: int = 300_000
    crashed_worker_recovery_grace_ms: int = 10_000
    check_interval_ms: int = 30_000
    runner_heartbeat_interval_ms: int = 30_000
    claimer_heartbeat_interval_ms: int = 30_000
    heartbeat_retention_hours: int | None = 24
    worker_state_retention_hours: int | None = 168
    terminal_record_retention_hours: int | None = 720
    worker_state_snapshot_interval_ms: int = 30_000
    retention_sweep_interval_s: int = 3_600
    retention_delete_batch_size: int = 500
    crash_budget: int = 3
    auto_terminate_orphaned_workflow_tasks: bool = True

    def __post_init__(self) -> None:
        found = []
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                found.append(f"{name} must be True or False, not {getattr(self, name)!r}")
        for name, (low, high, unit) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            fault = _range_fault(name, value, low, high, unit)
            if fault:
                found.append(fault)
        for threshold, interval in _TWICE:
            value, beat = getattr(self, threshold), getattr(self, interval)
            if is_int(value) and is_int(beat) and value < 2 * beat:
                found.append(f"{threshold} ({value}) must be at least twice {interval} ({beat}), that is {2 * beat}")
        raise_faults("RecoveryConfig", found)


DEFAULT_RECOVERY: Final = RecoveryConfig()


def longest_silence_s(config: RecoveryConfig) -> float:
    """Return for how long an instance may be silent at most before all that it has is taken over."""
    thresholds_ms = config.claimed_stale_threshold_ms, config.running_stale_threshold_ms
    return max(*thresholds_ms, config.finalizing_stale_threshold_ms) / 1000


_DEFAULT_QUEUE: Final = QueueConfig("default")
