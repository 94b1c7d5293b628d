"""A task function with all that was declared about it, and the way of its values to their stored forms and back.

A value is stored and read by code of the application too: a codec, a comparison, a `__post_init__`, an enum's
`_missing_`. The loops of the engine call it, so whatever that code raises ends here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from taskmanager.codec.annotations import is_async
from taskmanager.codec.arguments import ArgumentCodec
from taskmanager.codec.results import ResultCodec, decode_untyped, encode_error_text
from taskmanager.codec.values import dumps, loads
from taskmanager.model.call_options import CallOptions
from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.errors import ArgumentError
from taskmanager.model.placeholder import MISPLACED
from taskmanager.model.record import DELAY_KEY, SENDER_KEY, TaskRow
from taskmanager.model.result import MAX_DELAY_S, TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode, Lane
from taskmanager.rules.retry import RetryRule


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
    code_of: Callable[[type[BaseException]], str]
    """Returns the error code of an exception of this class that user code raised."""
    arguments: ArgumentCodec
    results: ResultCodec
    module: str = ""
    qualname: str = ""
    on_failure: Mapping[str, Any] | None = None
    """What `as_following` says of the task that a failure enqueues."""
    is_async: bool = field(init=False)
    options_text: str = field(init=False)
    encode_arguments: Callable[[tuple[Any, ...], dict[str, Any]], tuple[str, str]] = field(init=False)
    encode_result: Callable[[Any], str] = field(init=False)
    result_of_none: str | None = field(init=False)
    """What most tasks return, as it is stored."""

    def __post_init__(self) -> None:
        self.encode_arguments, self.encode_result = self.arguments.encode, self.results.encode_ok
        self.result_of_none = self.results.of_none
        self.is_async = is_async(self.fn)
        self.options_text = self.options_for(self.timeout_s)

    def options_for(self, timeout_s: float | None) -> str:
        """Return the `task_options` of a row: all that recovery needs to decide without knowing the function.

        Defaults are left out: every row carries this text, and a row's bytes are most of what it costs to write.
        """
        return dumps(self._options(timeout_s) | ({"on_failure": self.on_failure} if self.on_failure else {}))

    def _options(self, timeout_s: float | None) -> dict[str, Any]:
        options = {
            "persist": self.is_persisted,
            "requeue_on_interrupt": self.requeue_on_interrupt,
            "lane": self.lane if self.lane != "async" else None,
            "timeout_s": timeout_s,
            "retry": self.retry.to_options() if self.retry.max_retries else None,
        }
        return {name: value for name, value in options.items() if value}

    def as_following(self, options: CallOptions) -> Mapping[str, Any]:
        """Return all that a row of this task needs, for the options of the tasks whose failure enqueues it.

        The row is enqueued without an `on_failure`: a chain of failures ends there.
        """
        said = {
            "task_name": self.name,
            "queue_name": options.queue_name or self.queue_name,
            "priority": self.priority if options.priority is None else options.priority,
            "options": self._options(self.timeout_s if options.timeout_s is None else options.timeout_s),
            "max_retries": self.retry.max_retries,
            "delay_s": options.delay_s,
            "tags": tags_of(options.tags_text),
        }
        return {name: value for name, value in said.items() if value}

    def as_persisted(self) -> "Definition":
        """Return the definition for a record that stands in the store, whatever the function says today."""
        return self if self.is_persisted else replace(self, is_persisted=True)

    def stored_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str] | tuple[None, None]:
        """Return the arguments of a memory-only task for its record, or nothing where they cannot be stored.

        Raises `ArgumentError` only for a placeholder, which the function would take for a value.
        """
        try:
            return self.encode_arguments(args, kwargs)
        except BaseException as exc:  # the application's
            if type(exc) is ArgumentError and MISPLACED in str(exc):
                raise
            return None, None

    def stored_error(self, error: TaskError) -> str:
        """Return an error as it is stored. If its codec fails, it is not stored in plain text."""
        try:
            return self.results.encode_error(error)
        except BaseException as exc:  # noqa: BLE001  # the application's
            why = self.why_not(exc, "the error cannot be stored")
        return encode_error_text(TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, why))

    def read_result(self, text: str) -> TaskResult[Any]:
        """Return a stored result by the types of the function, or an error that says why it cannot be read."""
        try:
            return self.results.decode(text)
        except BaseException as exc:  # noqa: BLE001  # the application's
            return _not_available(self.why_not(exc, "the stored result cannot be read"))

    def results_of(self, kind: Any, *, task_name: str) -> ResultCodec:
        """Return the codec of values of this type, which are stored as results are."""
        return self.results.of_type(kind, task_name=task_name)

    def why_not(self, exc: BaseException, what: str) -> str:
        """Say why a codec, which may be the application's, has failed."""
        return str(exc) if type(exc) is ArgumentError else f"task {self.name}: {what}: {type(exc).__name__}"

    def __repr__(self) -> str:
        return f"<Definition {self.name!r} {self.lane} lane>"


class RowCodec:
    """Reads results and stores errors of rows. An unknown function has the codec without types."""

    def __init__(self, definitions: Mapping[str, Definition]) -> None:
        self._definitions = definitions

    def decode_result(self, row: TaskRow) -> TaskResult[Any]:
        """Return the result of a row."""
        return self.decode(row.task_name, row.result)

    def decode(self, task_name: str, text: str | None) -> TaskResult[Any]:
        """Return the result of a function of that name."""
        definition = self._definitions.get(task_name)
        if text is None:
            return _not_available("the record holds no result")
        if definition is not None:
            return definition.read_result(text)
        try:
            return decode_untyped(text)
        except ArgumentError as exc:
            return _not_available(str(exc))

    def decode_error(self, text: str) -> TaskError:
        """Return a stored error of any function: all of them have one codec."""
        found = self.decode(next(iter(self._definitions), ""), text)
        return found.err_value if found.is_err() else TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE)

    def encode_error(self, task_name: str, error: TaskError) -> str:
        """Return the stored form of an error, encrypted where the results of the function are."""
        definition = self._definitions.get(task_name)
        return encode_error_text(error) if definition is None else definition.stored_error(error)


def _not_available(why: str) -> TaskResult[Any]:
    return TaskResult(err=TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, why))


@lru_cache(1_000)  # all such tasks of a function share one text
def with_delay(text: str) -> str:
    """Return these `task_options` as those of a task with a delay."""
    return f"{text[:-1]}{',' if len(text) > 2 else ''}{DELAY_KEY}}}"  # none in "{}"


@lru_cache(1_000)  # as above
def with_sender(text: str, instance_id: str) -> str:
    """Return these `task_options` as those of a task that this instance has given to the file, for any to run. Of
    several that have done so, it is still that of the first: mostly the one that has accepted it.
    """
    if SENDER_KEY in text and "sent_by" in options_of(text):  # a tag in an `on_failure` may have that name, too
        return text
    return f'{text[:-1]}{"," if len(text) > 2 else ""}{SENDER_KEY}"{instance_id}"}}'


def options_of(text: str) -> Mapping[str, Any]:
    """Return the `task_options` of a row; none where they cannot be read: one corrupt row must not stop a start."""
    try:
        options = loads(text)
    except ArgumentError:
        return {}
    return options if isinstance(options, dict) else {}


@lru_cache(1_000)  # rows share the options of a few functions
def timeout_of(text: str) -> float | None:
    """Return the timeout in the `task_options` of a row."""
    timeout_s = options_of(text).get("timeout_s")
    if type(timeout_s) not in (int, float) or not 0 < timeout_s <= MAX_DELAY_S:  # type: ignore[operator]  # a number
        return None
    return timeout_s


def tags_of(tags_text: str | None) -> dict[str, str]:
    """The tags that stand in a row."""
    return loads(tags_text) if tags_text else {}


def carries(tags_text: str | None, tags: dict[str, str]) -> bool:
    """Whether these stored tags hold all of those."""
    if not tags_text:
        return not tags
    for value in tags.values():  # each join asks this of every task, and to decode takes ten times as long
        if value not in tags_text and "\\" not in tags_text:  # JSON without an escape has its texts to the letter
            return False
    has = tags_of(tags_text)
    return all(has.get(key) == value for key, value in tags.items())
