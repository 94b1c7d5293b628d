"""The arguments of one task function: checked as a call would, stored only when they provably come back, read again.

Nothing stored names a type: what comes back is decided by the annotations of the function alone, so a row written by
hand cannot make the process import or call anything.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, Final, NoReturn, cast
from uuid import UUID

from taskmanager.codec.annotations import annotated_function, resolve, signature_of
from taskmanager.codec.equality import type_name
from taskmanager.codec.gaps import Gap, Gaps, canonical, has_gap
from taskmanager.codec.inputs import filled, json_of
from taskmanager.codec.values import (
    INT64_MAX,
    INT64_MIN,
    MAX_ENCODED_BYTES,
    Codec,
    Refusal,
    StoredType,
    json_encoder,
    loads,
    plain_decoder,
    seal,
    split_array,
    split_object,
    unseal,
)
from taskmanager.model.errors import ArgumentError
from taskmanager.model.workflows import Input

_IMMUTABLE: Final = frozenset(
    {int, str, float, bool, NoneType, bytes, date, datetime, time, timedelta, UUID, Decimal},
)
_NO_ARGS, _NO_KWARGS = NO_ARGUMENTS = "[]", "{}"
"""The stored form of a call without any."""
_UNTYPED: Final = StoredType(Any)

_SHORT_CHARS: Final = 2_000
"""Longer texts are not tried as scalars first: most of them are not, and would be decoded twice."""

_SHOWN_CHARS: Final = 100
_KEPT: Final = "the task keeps its arguments, and can then be retried"
_Parameter: Final = inspect.Parameter


class ArgumentCodec:
    """Checks, encodes and decodes the arguments of `fn`.

    `check(args, kwargs)` raises the `TypeError` that calling `fn` with them would. Raises `ConfigurationError` at
    construction when an annotation names something that does not exist at run time.
    """

    __slots__ = (
        "_codec",
        "_extra",
        "_named",
        "_needed",
        "_positional",
        "_rest",
        "_scalars",
        "_task_name",
        "check",
    )

    check: Callable[[tuple[Any, ...], Mapping[str, Any]], None]

    def __init__(self, fn: Callable[..., Any], *, task_name: str, codec: Codec | None = None) -> None:
        signature = signature_of(fn)
        parameters = signature.parameters
        hints = resolve(fn, task_name=task_name, wanted=parameters)
        types = {name: StoredType(hints.get(name, Any)) for name in parameters}

        def of_kind(*kinds: Any) -> list[tuple[str, StoredType]]:
            return [(name, types[name]) for name, each in parameters.items() if each.kind in kinds]

        self._task_name = task_name
        self._codec = codec
        self._positional = of_kind(_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
        self._scalars = tuple([stored.scalars for _, stored in self._positional])
        self._rest = dict(of_kind(_Parameter.VAR_POSITIONAL))
        self._named = dict(of_kind(_Parameter.POSITIONAL_OR_KEYWORD, _Parameter.KEYWORD_ONLY))
        self._extra = _UNTYPED
        for name, stored in of_kind(_Parameter.VAR_KEYWORD):
            if typing.get_origin(hints.get(name)) is typing.Unpack:
                keys = typing.get_type_hints(typing.get_args(hints[name])[0])
                self._named.update({key: StoredType(each) for key, each in keys.items()})
            else:
                self._extra = stored
        self._needed = {
            name: types[name]
            for name, each in parameters.items()
            if each.default is each.empty and each.kind is not each.VAR_KEYWORD
        }
        self.check = _make_check(fn, signature)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """The arguments, which `check` has passed, as stored: a JSON array and a JSON object; no defaults filled in.

        Raises `ArgumentError` naming the parameter unless every argument provably comes back equal in value and type,
        and when they take more than `MAX_ENCODED_BYTES` together.
        """
        if self._codec is None and not (args or kwargs):
            return NO_ARGUMENTS
        if self._codec is None and self._are_scalars(args, kwargs):
            try:
                args_text = json_encoder.encode(args).decode() if args else _NO_ARGS
                kwargs_text = json_encoder.encode(kwargs).decode() if kwargs else _NO_KWARGS
            except UnicodeEncodeError:
                pass  # a lone surrogate; the long way finds out whose it is
            else:
                if len(args_text) + len(kwargs_text) <= MAX_ENCODED_BYTES // 4:
                    return args_text, kwargs_text
        return self._encode_proven(args, kwargs)

    def _are_scalars(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether nothing needs a proof. Every persisted enqueue passes here: `StoredType.is_safe` is written out."""
        if len(args) > len(self._scalars):
            return False
        for scalars, value in zip(self._scalars, args):  # noqa: B905  # strict= would cost a tenth of the enqueue
            kind = type(value)
            if kind not in scalars:
                return False
            if kind is int:
                if not INT64_MIN <= value <= INT64_MAX:
                    return False
            elif kind is float and value - value != 0.0:
                return False
        if kwargs:
            named = self._named
            for name, value in kwargs.items():
                stored = named.get(name)
                if stored is None or not stored.is_safe(value):
                    return False
        return True

    def encode_open(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str, tuple[Gap, ...]]:
        """As `encode`, with null where a placeholder stands. The placeholders come third, with their places."""
        if not has_gap((args, kwargs)):
            return *self.encode(args, kwargs), ()
        gaps = Gaps()
        return *self._encode_proven(args, kwargs, gaps), tuple(gaps.found)

    def _encode_proven(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], gaps: Gaps | None = None
    ) -> tuple[str, str]:
        self.check(args, kwargs)
        close = None if gaps is None else gaps.close
        sizes: dict[str, int] = {}
        items, pairs = [], []
        for place, ((name, stored), value) in enumerate(zip(self._slots(len(args)), args, strict=True)):
            items.append(data := self._encode_one(name, stored, value, close and close(value, stored, (place,))))
            sizes[name] = len(data)
        for name, value in kwargs.items():
            stored = self._named.get(name, self._extra)
            data = self._encode_one(name, stored, value, close and close(value, stored, (name,)))
            key = self._encode_one(name, _UNTYPED, name)
            pairs.append(key + b":" + data)
            sizes[name] = len(data)
        args_data, kwargs_data = b"[%b]" % b",".join(items), b"{%b}" % b",".join(pairs)
        if len(args_data) + len(kwargs_data) > MAX_ENCODED_BYTES:
            self._refuse_size(sizes, len(args_data) + len(kwargs_data))
        subject = f"task {self._task_name}: the arguments"
        return seal(self._codec, args_data, subject), seal(self._codec, kwargs_data, subject)

    def _slots(self, count: int) -> list[tuple[str, StoredType]]:
        """Return name and type of the first `count` positional arguments."""
        rest = [(f"{name}[{index}]", each) for name, each in self._rest.items() for index in range(count)]
        return [*self._positional, *rest][:count]

    def _encode_one(self, name: str, stored: StoredType, value: Any, closed: bytes | Refusal | None = None) -> bytes:
        data = stored.encode(value) if closed is None else closed
        if isinstance(data, Refusal):
            hint = ""
            if data.wants_annotation and stored.is_untyped:
                hint = "; annotate the parameter with the type it takes"
            elif data.wants_annotation and data.reason.endswith(f", not {type_name(value)}"):
                hint = f"; convert it first, or annotate the parameter with {type_name(value)}"
            raise ArgumentError(
                f"task {self._task_name}: argument {name!r} ({type_name(value)}) cannot be stored: {data.reason}{hint}"
            )
        return data

    def _refuse_size(self, sizes: Mapping[str, int], total: int) -> NoReturn:
        name = max(sizes, key=sizes.__getitem__)
        raise ArgumentError(
            f"task {self._task_name}: the arguments take {total:_} bytes as JSON, argument {name!r} alone "
            f"{sizes[name]:_}; the limit is {MAX_ENCODED_BYTES:_}. Put the data into a file or a table and pass its "
            "path or key"
        )

    def decode(self, args_text: str, kwargs_text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments from their stored form.

        Raises `ArgumentError` naming the task and, where one is to blame, the parameter. The row may be older than the
        function: parameters that are gone, or new without a default, are reported as such.
        """
        if self._codec is None and len(args_text) + len(kwargs_text) < _SHORT_CHARS:
            found = self._decode_scalars(args_text, kwargs_text)
            if found is not None:
                return found
        raw_args, raw_kwargs = self._split(args_text, kwargs_text)
        try:
            self.check(tuple(raw_args), raw_kwargs)
        except TypeError as error:
            raise ArgumentError(
                f"task {self._task_name}: the stored arguments do not fit the function as it is now: {error}. "
                f"Give new parameters a default and keep removed ones as long as stored tasks use them; {_KEPT}"
            ) from None
        slots = zip(self._slots(len(raw_args)), raw_args, strict=True)
        args = [self._decode_one(name, stored, raw) for (name, stored), raw in slots]
        kwargs = {
            name: self._decode_one(name, self._named.get(name, self._extra), raw) for name, raw in raw_kwargs.items()
        }
        return tuple(args), kwargs

    def decode_with(
        self, args_text: str, kwargs_text: str, inputs: Sequence[Input]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with what other nodes came to at their places. Raises `ArgumentError` as `decode` does."""
        if not inputs:
            return self.decode(args_text, kwargs_text)
        raw_args, raw_kwargs = self._split(args_text, kwargs_text)
        try:
            texts = filled(raw_args, raw_kwargs, [(each.path, json_of(each, self._codec)) for each in inputs])
        except ArgumentError as error:
            raise ArgumentError(f"task {self._task_name}: {error}") from error
        return self.decode(*texts)

    def _decode_scalars(self, args_text: str, kwargs_text: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments when the annotations ask for nothing but JSON's own scalars; None for the long way."""
        try:
            if args_text == _NO_ARGS and kwargs_text == _NO_KWARGS:
                self.check((), {})
                return (), {}
            items = plain_decoder.decode(args_text)
            kwargs = {} if kwargs_text == _NO_KWARGS else plain_decoder.decode(kwargs_text)
            if type(items) is not list or type(kwargs) is not dict:
                return None
            args = tuple(items)
            if not self._are_scalars(args, kwargs):
                return None
            self.check(args, kwargs)
        except Exception:  # the long way meets the same fault and words it
            return None
        return args, kwargs

    def _split(self, args_text: str, kwargs_text: str) -> tuple[list[Any], dict[str, Any]]:
        subject = "" if self._codec is None else f"task {self._task_name}: the stored arguments"
        try:
            args = split_array(unseal(self._codec, args_text, subject)) if args_text != _NO_ARGS else []
            kwargs = split_object(unseal(self._codec, kwargs_text, subject)) if kwargs_text != _NO_KWARGS else {}
        except ArgumentError:
            raise
        except Exception as error:  # broken UTF-8, broken JSON, nesting without end: a row changed by hand
            raise ArgumentError(
                f"task {self._task_name}: the stored arguments are not a JSON array and a JSON object: {error}"
            ) from error
        return cast("list[Any]", args), cast("dict[str, Any]", kwargs)

    def _decode_one(self, name: str, stored: StoredType, raw: Any) -> Any:
        try:
            return stored.decode(raw)
        except Exception as error:  # validators of foreign types may raise anything
            raise ArgumentError(
                f"task {self._task_name}: the stored argument {name!r} does not fit the function as it is now: "
                f"{error}. Let its annotation take what is stored; {_KEPT}"
            ) from error

    def is_plain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether they may be encoded later as they are now: immutable scalars, and no codec of the application."""
        if self._codec is not None:
            return False
        for value in args:
            if type(value) not in _IMMUTABLE:
                return False
        for value in kwargs.values():  # noqa: SIM110  # a generator would cost more than the loop
            if type(value) not in _IMMUTABLE:
                return False
        return True

    def unstorable(self) -> dict[str, str]:
        """Parameters without a default, and the name of their type, of which every value but None would be refused.

        A parameter with a default may never be passed, and one of several types may be passed another.
        """
        kinds = {name: stored.unknown_class() for name, stored in self._needed.items()}
        return {name: kind.__name__ for name, kind in kinds.items() if kind is not None}

    def refusal_of(self, value: Any) -> str | None:
        """Say why a call with this one argument would not give it to the function, or None if it would."""
        try:
            self.check((value,), {})
            ((name, stored),) = self._slots(1)
            self._encode_one(name, stored, value)
        except (TypeError, ArgumentError) as error:
            return str(error)
        return None

    def digest(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """SHA-256 (64 hex digits) of arguments that `encode` takes, to notice that a second call carries others.

        It is the same in every process. The order of keyword arguments, and of sets and dicts, does not count. None
        with a codec: a hash of the plain text would let a reader of the file guess it.
        """
        import hashlib  # only calls with a key need it

        if self._codec is not None:
            return None
        text = canonical(args, kwargs) or "".join(self.encode_open(args, dict(sorted(kwargs.items())))[:2])
        return hashlib.sha256(text.encode()).hexdigest()


def arguments_of_text(args_text: str, kwargs_text: str) -> tuple[str, str]:
    """Return arguments that a person has written in JSON as they are stored. Whether they fit a function is seen later.

    Raises `ArgumentError` unless they are an array and an object that can be stored.
    """
    stored = []
    for text, kind, name in (
        (args_text, list, "args must be an array"),
        (kwargs_text, dict, "kwargs must be an object"),
    ):
        try:
            value = loads(text.strip().encode())
        except (ArgumentError, UnicodeEncodeError) as error:
            raise ArgumentError(f"{name} in JSON: {error}") from error
        if not isinstance(value, kind):
            raise ArgumentError(f"{name} in JSON, not {type_name(value)}: {text.strip()[:_SHOWN_CHARS]}")
        stored.append(json_encoder.encode(split_array(text) if kind is list else split_object(text)).decode())
    size = sum(len(text.encode()) for text in stored)
    if size > MAX_ENCODED_BYTES:
        raise ArgumentError(f"the arguments take {size:,} bytes as JSON; {MAX_ENCODED_BYTES:,} are allowed")
    return stored[0], stored[1]


def _make_check(
    fn: Callable[..., Any], signature: inspect.Signature
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], None]:
    """A function that accepts what `fn` accepts, does nothing, and fails as `fn` fails.

    `Signature.bind` costs several microseconds and words its errors differently; a call of a function with the same
    parameters and the same name costs a tenth, and the interpreter itself writes the message. The source holds nothing
    but parameter names, which the interpreter has already accepted as identifiers; every default is None, since only
    its presence counts.
    """
    bare = [
        each.replace(annotation=each.empty, default=each.empty if each.default is each.empty else None)
        for each in signature.parameters.values()
    ]
    namespace: dict[str, Any] = {}
    exec(f"def stand_in{inspect.Signature(bare)}: pass", namespace)  # noqa: S102  # see above
    stand_in = namespace["stand_in"]
    named = annotated_function(fn)
    stand_in.__name__, stand_in.__qualname__ = named.__name__, named.__qualname__

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if kwargs:
            stand_in(*args, **kwargs)
        else:
            stand_in(*args)

    return check
