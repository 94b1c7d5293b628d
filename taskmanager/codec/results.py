"""What a task ended with, as stored: `{"ok": value}` or `{"err": {"error_code", "message", "data"}}`."""

import typing
from collections.abc import Awaitable, Callable
from types import NoneType
from typing import Any, Final, Union, get_args, get_origin

from taskmanager.codec.annotations import is_union, resolve, unalias
from taskmanager.codec.equality import type_name
from taskmanager.codec.safe import dumps_safe, readable, safe_text
from taskmanager.codec.values import MAX_ENCODED_BYTES, Codec, Refusal, StoredType, loads, seal, split_object, unseal
from taskmanager.model.errors import ArgumentError, ConfigurationError
from taskmanager.model.result import Snooze, TaskError, TaskResult, trusted_code

_OK_NONE: Final = '{"ok":null}'
MAX_ERROR_CHARS: Final = 1_000_000
_UNTYPED: Final = StoredType(Any)


class ResultCodec:
    """Encodes and decodes what `fn` returns, by its return annotation without `Snooze` and `TaskResult`.

    Raises `ConfigurationError` at construction when the annotation cannot be resolved, or is a union of `X` with
    `TaskResult[X]`.
    """

    __slots__ = ("_codec", "_stored", "_subject", "_task_name", "of_none")

    def __init__(self, fn: Callable[..., Any], *, task_name: str, codec: Codec | None = None) -> None:
        hints = resolve(fn, task_name=task_name, wanted=("return",))
        self._store(StoredType(_value_annotation(hints.get("return", Any), task_name)), task_name, codec)

    def _store(self, stored: StoredType, task_name: str, codec: Codec | None, subject: str | None = None) -> None:
        self._task_name, self._codec, self._stored = task_name, codec, stored
        self._subject = subject or f"task {task_name}: the result"
        """What an error of `encode_ok` is about."""
        self.of_none = _OK_NONE if codec is None and NoneType in stored.scalars else None
        """The stored form of None, where that is the same for all tasks."""

    @property
    def is_sealed(self) -> bool:
        """Whether the application has a codec of its own, such as one that encrypts."""
        return self._codec is not None

    def of_step(self, fn: Callable[..., Any] | None, *, task_name: str) -> "ResultCodec":
        """Return the codec of what a step returns, which is stored as results of this one are. None: of any type.

        What is awaited (`Awaitable[X]`, `TaskHandle[X]`) is an X. Raises `ConfigurationError` as the constructor does.
        """
        hint = Any if fn is None else resolve(fn, task_name=task_name, wanted=("return",)).get("return", Any)
        kind = get_origin(hint) or hint
        if isinstance(kind, type) and issubclass(kind, Awaitable):
            hint = (get_args(hint) or (Any,))[-1]
        return self.of_type(hint, task_name=task_name)

    def of_type(self, hint: Any, *, task_name: str) -> "ResultCodec":
        """Return the codec of values of this type, which are stored as results of this one are."""
        found = object.__new__(ResultCodec)
        found._store(StoredType(hint), task_name, self._codec)
        return found

    def check_type(self) -> None:
        """Raise `ConfigurationError` if there is no form in storage for values of this type."""
        try:
            self._stored.prepare()
        except Exception as exc:
            raise ConfigurationError(f"{self._task_name}: values of this type cannot be stored: {exc}") from exc

    def encode_ok(self, value: Any) -> str:
        """The stored form of a returned value.

        Raises `ArgumentError` when it does not provably come back equal in value and type, or is too large.
        """
        if value is None and self.of_none is not None:
            return self.of_none
        data = self._stored.encode(value)
        if isinstance(data, Refusal):
            hint = "; annotate the return type" if data.wants_annotation and self._stored.is_untyped else ""
            raise ArgumentError(f"{self._subject} ({type_name(value)}) cannot be stored: {data.reason}{hint}")
        if len(data) > MAX_ENCODED_BYTES:
            raise ArgumentError(
                f"{self._subject} takes {len(data):_} bytes as JSON; the limit is "
                f"{MAX_ENCODED_BYTES:_}. Put the data into a file or a table and return its path or key"
            )
        return seal(self._codec, b'{"ok":%b}' % data, self._subject)

    def encode_error(self, error: TaskError) -> str:
        """The stored form of an error. Parts that JSON cannot hold become short texts, so it never fails.

        Only a codec that fails makes it raise `ArgumentError`: its plain text is never stored instead.
        """
        text = encode_error_text(error)
        return text if self._codec is None else seal(self._codec, text.encode(), f"task {self._task_name}: the error")

    def opened(self, text: str) -> str:
        """The JSON behind a stored form. Raises `ArgumentError` when the codec of the application cannot read it."""
        return unseal(self._codec, text, f"task {self._task_name}: the stored result")

    def decode(self, text: str) -> TaskResult[Any]:
        """The result from its stored form. Raises `ArgumentError` when it does not fit the return annotation."""
        return _decode(self.opened(text), self._stored, f"task {self._task_name}: the stored result")


def decode_untyped(text: str, codec: Codec | None = None) -> TaskResult[Any]:
    """The result of a task whose function is unknown here: the value is plain JSON. Raises `ArgumentError`."""
    subject = "the stored result"
    return _decode(unseal(codec, text, subject), _UNTYPED, subject)


def encode_event(name: str, value: Any, codec: Codec | None) -> str:
    """The stored form of a value that is sent as an event: by its own class where JSON alone cannot hold it.

    Raises `ArgumentError` when it does not provably come back equal, or is too large.
    """
    by_class = object.__new__(ResultCodec)
    stored = StoredType(type(value)) if isinstance(_UNTYPED.encode(value), Refusal) else _UNTYPED
    by_class._store(stored, f"event {name}", codec, f"event {name}: the value")
    return by_class.encode_ok(value)


def _decode(text: str, stored: StoredType, subject: str) -> TaskResult[Any]:
    if text == _OK_NONE and NoneType in stored.scalars:
        return TaskResult(ok=None)
    if type(text) is not str:  # what the store makes of bytes that are no text, for people to see
        raise ArgumentError(f"{subject} cannot be read: it is not UTF-8")
    try:
        parts = split_object(text)
        if "err" in parts:
            return TaskResult(err=_error_from(loads(bytes(parts["err"]))))
        if "ok" in parts:
            return TaskResult(ok=stored.decode(parts["ok"]))
    except Exception as error:  # validators of foreign types may raise anything
        raise ArgumentError(f"{subject} cannot be read: {error}") from error
    raise ArgumentError(f"{subject} has neither 'ok' nor 'err'")


def _error_from(parts: Any) -> TaskError:
    return TaskError(trusted_code(parts["error_code"]), parts["message"], parts["data"])


def encode_error_text(error: TaskError) -> str:
    """The stored form of an error whose function is unknown here. Never fails."""
    data = readable(error.data)
    if data is not None and not isinstance(data, dict):
        data = {"data": data}
    parts = {
        "error_code": safe_text(str(error.error_code), 255),
        "message": safe_text(str(error.message)),
        "data": data,
    }
    text = dumps_safe({"err": parts})
    if len(text) > MAX_ERROR_CHARS:
        parts["data"] = {key: repr(each)[:1_000] for key, each in list(data.items())[:100]} if data else None
        text = dumps_safe({"err": parts})
    return text


def _value_annotation(annotation: Any, task_name: str) -> Any:
    """The type of the value alone: `X | Snooze` is X, `TaskResult[X] | Snooze` is X."""
    annotation = unalias(annotation)
    if get_origin(annotation) is typing.Annotated and not _is_value(get_args(annotation)[0]):
        annotation = unalias(get_args(annotation)[0])
    if annotation in (typing.NoReturn, typing.Never):
        return NoneType
    members = [unalias(each) for each in get_args(annotation)] if is_union(annotation) else [annotation]
    members = [each for each in members if each is not Snooze]
    results = [each for each in members if not _is_value(each)]
    if not results:
        return Union[tuple(members)] if members else NoneType  # noqa: UP007  # built at run time, from a tuple
    if len(members) > 1:
        raise ConfigurationError(
            f"task {task_name}: the return type {annotation} mixes a plain value with TaskResult; "
            "return TaskResult[...] everywhere, or the value everywhere"
        )
    arguments = get_args(results[0])
    return arguments[0] if arguments else Any


def _is_value(annotation: Any) -> bool:
    return annotation is not Snooze and annotation is not TaskResult and get_origin(annotation) is not TaskResult
