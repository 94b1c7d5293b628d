"""One annotation's way to JSON and back, the seam for encryption, and JSON for the library's own small documents."""

import base64
import binascii
from collections.abc import Callable
from enum import Enum
from math import isfinite
from pathlib import PurePath
from typing import Any, Final, NamedTuple, Protocol, get_args

import msgspec

from taskmanager.codec.annotations import is_union, scalar_types, widen
from taskmanager.codec.equality import difference, type_name
from taskmanager.model.errors import ArgumentError

MAX_ENCODED_BYTES: Final = 16 * 1024 * 1024
"""The largest arguments or result, as JSON, that one record may hold."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

_UNION_TYPE, _UNION_VALUE = "$type", "value"
_MODEL_VALUE, _MODEL_SET = "$model", "$set"


class Codec(Protocol):
    """Turns one record's JSON bytes into the bytes that are stored, and back; the seam for encryption."""

    def encode(self, data: bytes, /) -> bytes:
        """The bytes to store."""
        ...

    def decode(self, data: bytes, /) -> bytes:
        """The JSON bytes that `encode` was given."""
        ...


class Refusal(NamedTuple):
    """Why a value cannot be stored; and whether an annotation of its type would help."""

    reason: str
    wants_annotation: bool = False


def _to_json(value: Any) -> Any:
    """What msgspec encodes in the place of a value it does not know."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(type(value), "model_dump_json") and hasattr(type(value), "model_validate_json"):
        return _model_to_json(value)
    raise TypeError(
        f"the type {type_name(value)} has no form in storage; pass what it can be made from, such as a path or a key"
    )


def _model_to_json(model: Any) -> msgspec.Raw:
    text = model.model_dump_json(by_alias=True)
    was_set: set[str] = model.model_fields_set
    if was_set >= set(type(model).model_fields):
        return msgspec.Raw(text.encode())
    # A full dump alone would mark every field as set, and exclude_unset=True, the usual way to apply a partial update,
    # would then overwrite with defaults. Dumping only the set ones would let a later default change stored work.
    names = json_encoder.encode(sorted(was_set)).decode()
    return msgspec.Raw(f'{{"{_MODEL_VALUE}":{text},"{_MODEL_SET}":{names}}}'.encode())


def _from_json(kind: Any, value: Any) -> Any:
    """Build a value of a type msgspec does not know from its JSON form."""
    if isinstance(kind, type) and issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise ValueError(f"a {kind.__name__} is stored as text, not as {type_name(value)}")
        return kind(value)
    if hasattr(kind, "model_validate_json"):
        return _model_from_json(kind, value)
    raise NotImplementedError(f"the annotation {kind} is not one that can be read back from storage")


def _model_from_json(kind: Any, value: Any) -> Any:
    was_set = None
    if isinstance(value, dict) and value.keys() == {_MODEL_VALUE, _MODEL_SET}:
        value, was_set = value[_MODEL_VALUE], value[_MODEL_SET]
    model = kind.model_validate_json(json_encoder.encode(value))
    if was_set is not None:
        object.__setattr__(model, "__pydantic_fields_set__", set(was_set))
    return model


json_encoder: Final = msgspec.json.Encoder(enc_hook=_to_json)
_array_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])
_object_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
plain_decoder: Final = msgspec.json.Decoder()


class StoredType:
    """How values of one annotation are stored; decoders are built at first use, when forward references exist."""

    __slots__ = ("_annotation", "_decode", "_members", "scalars")

    def __init__(self, annotation: Any) -> None:
        self._annotation = widen(annotation)
        self.scalars: frozenset[type[Any]] = scalar_types(self._annotation)
        self._decode: Callable[[Any], Any] | None = None
        self._members: dict[str, StoredType] | None = None

    @property
    def is_untyped(self) -> bool:
        """Whether the annotation says nothing, so that only what JSON itself knows can come back."""
        return self._annotation is Any

    def is_safe(self, value: Any) -> bool:
        """Whether `value` is a scalar that needs no proof."""
        kind = type(value)
        if kind not in self.scalars:
            return False
        if kind is int:
            return bool(INT64_MIN <= value <= INT64_MAX)
        return kind is not float or bool(value - value == 0.0)

    def encode(self, value: Any) -> bytes | Refusal:
        """The JSON of `value`, proven to come back equal in value and type, or why there is none."""
        if self.is_safe(value):
            return _encode(value)
        if type(value) is float and not isfinite(value):
            return Refusal(f"JSON has no {value!r}; pass None or a text in its place")
        try:
            decode = self._decode or self.prepare()
        except Exception as error:  # msgspec gives TypeError, evaluating the annotations of fields anything
            return Refusal(f"its annotation {self._annotation} cannot be stored: {error}")
        if self._members is not None and value is not None:
            return self._encode_member(value)
        return _proven(value, decode)

    def decode(self, data: Any) -> Any:
        """The value of JSON text or bytes. Raises whatever the types involved raise; the caller names the parameter."""
        return (self._decode or self.prepare())(data)

    def prepare(self) -> Callable[[Any], Any]:
        """Build the decoder. Raises what msgspec, or evaluating the annotations of fields, raises."""
        if self.is_untyped:
            self._decode = plain_decoder.decode
            return self._decode
        try:
            self._decode = msgspec.json.Decoder(self._annotation, dec_hook=_from_json).decode
        except TypeError:
            if not is_union(self._annotation):
                raise
            # JSON alone cannot tell str | Path apart, so each value of such a union is stored with its member's name.
            members = {_label(member): StoredType(member) for member in get_args(self._annotation)}
            for member in members.values():
                member.prepare()
            self._members = members
            self._decode = self._decode_member
        return self._decode

    def _encode_member(self, value: Any) -> bytes | Refusal:
        last = Refusal(f"it is none of {self._annotation}")
        for label, member in (self._members or {}).items():
            data = member.encode(value)
            if isinstance(data, bytes):
                return b'{"%b":%b,"%b":%b}' % (_UNION_TYPE.encode(), _encode_text(label), _UNION_VALUE.encode(), data)
            if type(value).__qualname__ == label:
                last = data
        return last

    def _decode_member(self, data: Any) -> Any:
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw] | None)
        if parts is None:
            return None
        label = msgspec.json.decode(parts[_UNION_TYPE], type=str)
        member = (self._members or {}).get(label)
        if member is None:
            raise ValueError(f"{label!r} is none of {self._annotation}")
        return member.decode(parts[_UNION_VALUE])


def _label(member: Any) -> str:
    return member.__qualname__ if isinstance(member, type) and not get_args(member) else str(member)


def _encode_text(text: str) -> bytes:
    return json_encoder.encode(text)


def _encode(value: Any) -> bytes | Refusal:
    try:
        return json_encoder.encode(value)
    except Exception as error:  # serialisers of foreign models may raise anything
        return Refusal(_encode_fault(value, error))


def _encode_fault(value: Any, error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "its text has a lone surrogate (U+D800 to U+DFFF), which UTF-8 cannot hold; clean it, or pass bytes"
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    return f"{error}" if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"


def _proven(value: Any, decode: Callable[[Any], Any]) -> bytes | Refusal:
    data = _encode(value)
    if isinstance(data, Refusal):
        return data
    try:
        found = difference(value, decode(data))
    except RecursionError:
        return Refusal("it is nested too deeply, or contains itself")
    except Exception as error:  # validators of foreign types may raise anything
        if isinstance(error, msgspec.ValidationError) and isinstance(value, Enum):
            return Refusal(f"it does not fit its annotation: {error}; annotate the enum itself")
        return Refusal(f"it does not fit its annotation: {error}")
    return data if found is None else Refusal(found, wants_annotation=True)


def split_array(text: str) -> list[msgspec.Raw]:
    """The items of a JSON array, undecoded. Raises `ValueError`."""
    return _array_decoder.decode(text)


def split_object(text: str) -> dict[str, msgspec.Raw]:
    """The values of a JSON object, undecoded. Raises `ValueError`."""
    return _object_decoder.decode(text)


def seal(codec: Codec | None, data: bytes, subject: str) -> str:
    """The text to store for JSON `data`: itself, or what the codec makes of it, as base64.

    Raises `ArgumentError` naming `subject` when the codec fails.
    """
    if codec is None:
        return data.decode()
    try:
        return base64.b64encode(codec.encode(data)).decode("ascii")
    except Exception as error:  # a foreign codec may raise anything; plain text is never stored in its place
        raise ArgumentError(f"{subject}: the codec could not encode it: {type(error).__name__}: {error}") from error


def unseal(codec: Codec | None, text: str, subject: str) -> str:
    """The JSON text behind a stored text. Raises `ArgumentError` naming `subject` when the codec cannot read it."""
    if codec is None:
        return text
    try:
        return codec.decode(base64.b64decode(text, validate=True)).decode()
    except binascii.Error as error:
        raise ArgumentError(f"{subject}: stored without the codec that is configured now: {error}") from error
    except Exception as error:
        raise ArgumentError(f"{subject}: the codec could not decode it: {type(error).__name__}: {error}") from error


def dumps(value: Any) -> str:
    """JSON text of one of the library's own small documents. Raises `ArgumentError` when JSON cannot hold it."""
    data = _encode(value)
    if isinstance(data, Refusal):
        raise ArgumentError(f"a {type_name(value)} cannot be written as JSON: {data.reason}")
    return data.decode()


def loads(text: str | bytes) -> Any:
    """The plain value of JSON text. Raises `ArgumentError` when it is not JSON."""
    try:
        return plain_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArgumentError(f"not JSON: {error}") from error
