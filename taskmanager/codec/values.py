"""One annotation's way to JSON and back, the seam for encryption, and JSON for the library's own small documents."""

import base64
import binascii
from collections import abc
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import repeat
from pathlib import PurePath
from types import GenericAlias, NoneType
from typing import Annotated, Any, Final, NamedTuple, Protocol, get_args, get_origin

import msgspec
import msgspec.inspect

from taskmanager.codec.annotations import is_union, scalar_types, widen
from taskmanager.codec.equality import difference, not_in_json, type_name
from taskmanager.model.errors import ArgumentError
from taskmanager.model.placeholder import MISPLACED, Placeholder
from taskmanager.model.result import TaskError, TaskResult, trusted_code

MAX_ENCODED_BYTES: Final = 16 * 1024 * 1024
"""The largest arguments or result, as JSON, that one record may hold."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

_UNION_TYPE, _UNION_VALUE = "$type", "value"
_MODEL_VALUE, _MODEL_SET = "$model", "$set"
_SAME: Final = object()


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


def to_json(value: Any) -> Any:
    """What msgspec encodes in the place of a value it does not know."""
    if isinstance(value, PurePath):
        return str(value)
    if type(value) is Placeholder:
        raise TypeError(f"{value!r} {MISPLACED}")
    if isinstance(value, TaskError):
        return {"error_code": value.error_code, "message": value.message, "data": value.data}
    if isinstance(value, TaskResult):
        return {"ok": value.ok_value} if value.is_ok() else {"err": value.err_value}
    if hasattr(type(value), "model_dump_json") and hasattr(type(value), "model_validate_json"):
        return _model_to_json(value)
    raise TypeError(
        f"the type {type_name(value)} has no form in storage; pass what it can be made from, such as a path or a key"
    )


def _model_to_json(model: Any) -> msgspec.Raw | dict[str, Any]:
    # Without computed fields, which nobody can set.
    raw = msgspec.Raw(model.model_dump_json(by_alias=True, round_trip=True).encode())
    was_set: set[str] = model.model_fields_set
    if was_set >= set(type(model).model_fields):
        return raw
    # A full dump alone would mark every field as set, and exclude_unset=True, the usual way to apply a partial update,
    # would then overwrite with defaults. Dumping only the set ones would let a later default change stored work.
    return {_MODEL_VALUE: raw, _MODEL_SET: sorted(was_set)}


def _from_json(kind: Any, value: Any) -> Any:
    """Build a value of a type msgspec does not know from its JSON form."""
    if isinstance(kind, type) and issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise ValueError(f"a {kind.__name__} is stored as text, not as {type_name(value)}")
        return kind(value)
    if kind is TaskError:
        return TaskError(trusted_code(value["error_code"]), value["message"], value["data"])
    if kind is TaskResult or get_origin(kind) is TaskResult:
        return _result_from_json(kind, value)
    if hasattr(kind, "model_validate_json"):
        return _model_from_json(kind, value)
    raise NotImplementedError(f"the annotation {kind} is not one that can be read back from storage")


def _result_from_json(kind: Any, value: Any) -> TaskResult[Any]:
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= {"ok", "err"}:
        raise ValueError("a TaskResult is stored as an object with 'ok' or 'err'")
    if "err" in value:
        return TaskResult(err=_from_json(TaskError, value["err"]))
    arguments = get_args(kind)
    return TaskResult(ok=StoredType(arguments[0] if arguments else Any).decode(json_encoder.encode(value["ok"])))


def _model_from_json(kind: Any, value: Any) -> Any:
    was_set = None
    if isinstance(value, dict) and value.keys() == {_MODEL_VALUE, _MODEL_SET}:
        value, was_set = value[_MODEL_VALUE], value[_MODEL_SET]
    model = kind.model_validate_json(json_encoder.encode(value))
    if was_set is not None:
        object.__setattr__(model, "__pydantic_fields_set__", set(was_set))
    return model


json_encoder: Final = msgspec.json.Encoder(enc_hook=to_json)
_array_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])
_object_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
plain_decoder: Final = msgspec.json.Decoder()


class StoredType:
    """How values of one annotation are stored; decoders are built at first use, when forward references exist."""

    __slots__ = ("_decode", "_parts", "annotation", "scalars")

    def __init__(self, annotation: Any) -> None:
        self.annotation = widen(annotation)
        self.scalars: frozenset[type[Any]] = scalar_types(self.annotation)
        self._decode: Callable[[Any], Any] | None = None
        self._parts: _Union | _Many | None = None

    @property
    def is_untyped(self) -> bool:
        """Whether the annotation says nothing, so that only what JSON itself knows can come back."""
        return self.annotation is Any

    def unknown_class(self) -> type[Any] | None:
        """The class that has no form in storage, if the annotation is one, an optional one, or a list of them."""
        try:
            info = msgspec.inspect.type_info(self.annotation)
        except Exception:  # annotations are foreign code; what is wrong with one is said when it is used
            return None
        if isinstance(info, msgspec.inspect.UnionType):
            members = [each for each in info.types if not isinstance(each, msgspec.inspect.NoneType)]
            info = members[0] if len(members) == 1 else info
        if isinstance(info, msgspec.inspect.CollectionType):
            info = info.item_type
        if not isinstance(info, msgspec.inspect.CustomType) or hasattr(info.cls, "model_validate_json"):
            return None
        return None if issubclass(info.cls, (PurePath, TaskError, TaskResult)) else info.cls

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
            return encoded(value)
        if type(value) is float and (lacking := not_in_json(value)):
            return Refusal(lacking)
        try:
            decode = self._decode or self.prepare()
        except Exception as error:  # msgspec gives TypeError, evaluating the annotations of fields anything
            return Refusal(f"its annotation {self.annotation} cannot be stored: {error}{_way_out(error)}")
        return _proven(value, decode, self.annotation) if self._parts is None else self._parts.encode(value)

    def decode(self, data: Any) -> Any:
        """The value of JSON text or bytes. Raises whatever the types involved raise; the caller names the parameter."""
        if self._decode is None:
            try:
                self.prepare()
            except Exception:  # where no value but a scalar was taken, such as the None of an optional type
                value = plain_decoder.decode(data)
                if self.is_safe(value):
                    return value
                raise
        assert self._decode is not None
        return self._decode(data)

    def prepare(self) -> Callable[[Any], Any]:
        """Build the decoder. Raises what msgspec, or evaluating the annotations of fields, raises."""
        if self.is_untyped:
            self._decode = plain_decoder.decode
            return self._decode
        try:
            self._decode = msgspec.json.Decoder(self.annotation, dec_hook=_from_json).decode
        except TypeError:
            self._parts = _parts_of(self.annotation)
            if self._parts is None:
                raise
            self._decode = self._parts.decode
        return self._decode


def _parts_of(annotation: Any) -> "_Union | _Many | None":
    """Return how to store what msgspec does not take as a whole, from types that it takes; None where there is no way.

    Raises what the types of the parts raise.
    """
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if is_union(plain):
        return _Union(get_args(plain))
    maker, arguments = MAKERS.get(get_origin(plain)), get_args(plain)
    if maker is None or not arguments:
        return None
    return _Many(maker, arguments)


class _Union:
    """A union whose members JSON alone cannot tell apart, such as `str | Path`, or two models: each value is stored
    with the name of its member.
    """

    def __init__(self, members: tuple[Any, ...]) -> None:
        self._takes_none = NoneType in members
        self._members: dict[str, StoredType] = {}
        self._labels: dict[Any, str] = {}
        for member in members:
            if member is not NoneType:
                label = _label(member)
                if label in self._members:  # two classes of one name, from two modules
                    label = f"{_bare(member).__module__}.{label}"
                self._members[label] = StoredType(member)
                self._labels[_bare(member)] = label
        for stored in self._members.values():
            stored.prepare()

    def encode(self, value: Any) -> bytes | Refusal:
        """The JSON of the first member that proves to hold the value."""
        if value is None and self._takes_none:
            return b"null"
        if len(self._members) == 1:  # it was Optional
            return next(iter(self._members.values())).encode(value)
        own = self._labels.get(type(value))
        for label in sorted(self._members, key=lambda each: each != own):  # its own class first
            data = self._members[label].encode(value)
            if isinstance(data, bytes):
                return json_encoder.encode({_UNION_TYPE: label, _UNION_VALUE: msgspec.Raw(data)})
            if label == own:
                return data
        return Refusal(f"it is {type_name(value)}, which is none of {', '.join(self._members)}")

    def decode(self, data: Any) -> Any:
        """The value. Raises what the member raises, and `ValueError` for a name that is none of them."""
        if bytes(data) == b"null" and self._takes_none:
            return None
        if len(self._members) == 1:
            return next(iter(self._members.values())).decode(data)
        parts = split_object(data)
        label = msgspec.json.decode(parts[_UNION_TYPE], type=str)
        member = self._members.get(label)
        if member is None:
            raise ValueError(f"{label!r} is none of {', '.join(self._members)}")
        return member.decode(parts[_UNION_VALUE])


class _Many:
    """A list, a set, a tuple or a mapping of what msgspec does not take as a whole: item by item."""

    def __init__(self, maker: type[Any], arguments: tuple[Any, ...]) -> None:
        self._annotation, self._maker = GenericAlias(maker, arguments), maker
        is_fixed = maker is tuple and arguments[-1] is not Ellipsis
        self._fixed = [StoredType(each) for each in arguments] if is_fixed else None
        self._items = StoredType(arguments[1] if maker is dict else arguments[0])
        pairs = GenericAlias(dict, (arguments[0], msgspec.Raw))
        self._keys = msgspec.json.Decoder(pairs, dec_hook=_from_json) if maker is dict else None
        for stored in self._fixed or [self._items]:
            stored.prepare()

    def _types(self, count: int) -> Iterable[StoredType]:
        return repeat(self._items, count) if self._fixed is None else self._fixed

    def encode(self, value: Any) -> bytes | Refusal:
        """The JSON of all items, each proven, and of what holds them."""
        if type(value) is not self._maker:
            return Refusal(
                f"it would come back as {self._maker.__name__}, not {type_name(value)}", wants_annotation=True
            )
        if self._fixed is not None and len(value) != len(self._fixed):
            return Refusal(f"it has {len(value)} items, its annotation {len(self._fixed)}")
        items = value.values() if self._keys else value
        raws = []
        for number, (stored, each) in enumerate(zip(self._types(len(value)), items, strict=True)):
            data = stored.encode(each)
            if isinstance(data, Refusal):
                return data._replace(reason=f"of item {number}: {data.reason}")
            raws.append(msgspec.Raw(data))
        form = dict(zip(value, raws, strict=True)) if self._keys else raws
        return _proven(value, self.decode, self._annotation, form)

    def decode(self, data: Any) -> Any:
        """The items in what held them. Raises what the types of the items raise, and `ValueError` for wrong counts."""
        if self._keys is not None:
            return {key: self._items.decode(raw) for key, raw in self._keys.decode(data).items()}
        raws = split_array(data)
        return self._maker(stored.decode(raw) for stored, raw in zip(self._types(len(raws)), raws, strict=True))


MAKERS: Final[dict[Any, type[Any]]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), dict),
    frozenset: frozenset,
    tuple: tuple,
}
"""What comes back for each of these annotations, as in msgspec."""


def _bare(member: Any) -> Any:
    """A member without its metadata, which may be written anew by a new version of pydantic."""
    while get_origin(member) is Annotated:
        member = get_args(member)[0]
    return member


def _label(member: Any) -> str:
    """The name of a member, the same whatever module it was imported from: `Order`, `list[Order]`."""
    member = _bare(member)
    arguments = get_args(member)
    if not arguments:
        return getattr(member, "__qualname__", None) or str(member)
    name = "Union" if is_union(member) else getattr(get_origin(member), "__qualname__", None) or str(get_origin(member))
    return f"{name}[{', '.join(_label(each) for each in arguments)}]"


def _shown(annotation: Any) -> str:
    """The annotation as people write it: `User`, `list[User]`, `User | None`."""
    members = get_args(annotation) if is_union(annotation) else (annotation,)
    return " | ".join("None" if each is NoneType else _label(each) for each in members)


def _way_out(error: Exception) -> str:
    """What to write instead of an annotation that msgspec refuses."""
    text = str(error)
    if "InitVar" in text:
        return (
            "; what an InitVar was given is not kept. Pass the values that the object is made from, or give the class "
            "plain fields, filled by a class method"
        )
    if text.startswith("Type unions may not contain"):
        return "; pass what stands in such a field as a parameter of its own, or make the class a pydantic model"
    return ""


def encoded(value: Any) -> bytes | Refusal:
    """The JSON of `value`, without a proof, or why there is none."""
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


def _proven(value: Any, decode: Callable[[Any], Any], annotation: Any, form: Any = _SAME) -> bytes | Refusal:
    """The JSON of `value`, or of its `form` for msgspec, if it comes back as `value`."""
    data = encoded(value if form is _SAME else form)
    if isinstance(data, Refusal):
        return data
    try:
        found = difference(value, decode(data))
    except RecursionError:
        return Refusal("it is nested too deeply, or contains itself")
    except Exception as error:  # validators of foreign types may raise anything
        why = f"{error}"
        if isinstance(error, msgspec.ValidationError):  # it speaks of JSON: of an `object` for any class
            why = f"as JSON: {error}{'; annotate the enum itself' if isinstance(value, Enum) else ''}"
        return Refusal(not_in_json(value) or f"it does not fit its annotation {_shown(annotation)}; {why}")
    if found is None:
        return data
    return Refusal(lacking) if (lacking := not_in_json(value)) else Refusal(found, wants_annotation=True)


def split_array(text: str | msgspec.Raw) -> list[msgspec.Raw]:
    """The items of a JSON array, undecoded. Raises `ValueError`."""
    return _array_decoder.decode(text)


def split_object(text: str | msgspec.Raw) -> dict[str, msgspec.Raw]:
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
    """The JSON text behind a stored text. Raises `ArgumentError` naming `subject` when the codec cannot read it.

    A process without the codec writes JSON, such as the error of a recovered task. Base64 begins with no bracket.
    """
    if codec is None or text.startswith(("[", "{")):
        return text
    try:
        return codec.decode(base64.b64decode(text, validate=True)).decode()
    except binascii.Error as error:
        raise ArgumentError(f"{subject}: stored without the codec that is configured now: {error}") from error
    except Exception as error:
        raise ArgumentError(f"{subject}: the codec could not decode it: {type(error).__name__}: {error}") from error


def dumps(value: Any) -> str:
    """JSON text of one of the library's own small documents. Raises `ArgumentError` when JSON cannot hold it."""
    data = encoded(value)
    if isinstance(data, Refusal):
        raise ArgumentError(f"a {type_name(value)} cannot be written as JSON: {data.reason}")
    return data.decode()


def loads(text: str | bytes) -> Any:
    """The plain value of JSON text. Raises `ArgumentError` when it is not JSON."""
    try:
        return plain_decoder.decode(str(text) if isinstance(text, str) else text)  # msgspec takes no subclass
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArgumentError(f"not JSON: {error}") from error
