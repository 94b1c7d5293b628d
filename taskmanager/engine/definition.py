"""A task function with everything that was declared about it, resolved once when a manager binds it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from taskmanager.codec.annotations import is_async
from taskmanager.codec.arguments import ArgumentCodec
from taskmanager.codec.results import ResultCodec
from taskmanager.codec.values import dumps, loads
from taskmanager.model.config import ExceptionMapper
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import DELAY_KEY
from taskmanager.model.result import MAX_DELAY_S
from taskmanager.model.states import Lane
from taskmanager.rules.retry import RetryRule, code_of


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What one call asks beyond the definition. None means what the definition says."""

    delay_s: float | None = None
    run_at_us: int | None = None
    good_until_us: int | None = None
    priority: int | None = None
    queue_name: str | None = None
    timeout_s: float | None = None
    idempotency_key: str | None = None
    tags_text: str | None = None


NO_OPTIONS = CallOptions()


@dataclass(eq=False, slots=True)
class Definition:
    """One bound task: its function, its lane, its rules and its codecs."""

    name: str
    fn: Callable[..., Any]
    lane: Lane
    queue_name: str
    priority: int
    timeout_s: float | None
    is_persisted: bool
    requeue_on_interrupt: bool
    retry: RetryRule
    task_mapper: ExceptionMapper
    global_mapper: ExceptionMapper
    task_default_code: str | None
    global_default_code: str
    arguments: ArgumentCodec
    results: ResultCodec
    module: str = ""
    qualname: str = ""
    is_async: bool = field(init=False)
    options_text: str = field(init=False)

    def __post_init__(self) -> None:
        self.is_async = is_async(self.fn)
        self.options_text = self.options_for(self.timeout_s)

    def options_for(self, timeout_s: float | None) -> str:
        """The `task_options` of a row: all that recovery needs to decide without knowing the function.

        Defaults are left out: every row carries this text, and a row's bytes are most of what it costs to write.
        """
        options: dict[str, Any] = {}
        if self.is_persisted:
            options["persist"] = True
        if self.requeue_on_interrupt:
            options["requeue_on_interrupt"] = True
        if self.lane != "async":
            options["lane"] = self.lane
        if timeout_s is not None:
            options["timeout_s"] = timeout_s
        if self.retry.max_retries:
            options["retry"] = self.retry.to_options()
        return dumps(options)

    def code_of(self, kind: type[BaseException]) -> str:
        """The error code of an exception of this class that user code raised."""
        return code_of(kind, self.task_mapper, self.global_mapper, self.task_default_code, self.global_default_code)

    def as_persisted(self) -> "Definition":
        """The same definition for a record that stands in the store, whatever the function says today."""
        return self if self.is_persisted else replace(self, is_persisted=True)

    def __repr__(self) -> str:
        return f"<Definition {self.name!r} {self.lane} lane>"


@lru_cache(1_000)  # all such tasks of a function share one text
def with_delay(text: str) -> str:
    """Return these `task_options` as those of a task with a delay."""
    return f"{text[:-1]}{',' if len(text) > 2 else ''}{DELAY_KEY}true}}"  # none in "{}"


def options_of(text: str) -> Mapping[str, Any]:
    """The `task_options` of a row; none where they cannot be read: one corrupt row must not stop a start."""
    try:
        options = loads(text)
    except ArgumentError:
        return {}
    return options if isinstance(options, dict) else {}


@lru_cache(1_000)  # rows share the options of a few functions
def timeout_of(text: str) -> float | None:
    """The timeout in the `task_options` of a row."""
    timeout_s = options_of(text).get("timeout_s")
    if type(timeout_s) not in (int, float) or not 0 < timeout_s <= MAX_DELAY_S:  # type: ignore[operator]  # a number
        return None
    return timeout_s


def retry_rule_of(options: Mapping[str, Any]) -> RetryRule:
    """The retry rule that a row carries in its options."""
    return RetryRule.from_options(options.get("retry"))
