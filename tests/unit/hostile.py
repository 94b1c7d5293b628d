"""Exceptions that harm whoever looks at them, made of traits that can be combined, and the tasks that raise them."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

Body = dict[str, Any]


def fails(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("look away")


def leaves(*_: object, **__: object) -> Any:
    raise SystemExit(3)


def interrupts(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def asks_its_response(self: Any, name: str) -> Any:
    return getattr(self.response, name)  # which is not there: it asks itself for ever


def refuses_all(self: object, name: str) -> Any:
    raise LookupError(name)


class Text(str):
    """What `__str__` gives need not be a plain text."""

    __slots__ = ()
    __str__ = __len__ = __format__ = fails


TRAITS: dict[str, Callable[[], Body]] = {
    "str fails": lambda: {"__str__": fails},
    "str leaves": lambda: {"__str__": leaves},
    "str interrupts": lambda: {"__str__": interrupts},
    "str is a text of its own": lambda: {"__str__": lambda self: Text("no luck")},
    "str is none": lambda: {"__str__": lambda self: None},
    "repr leaves": lambda: {"__repr__": leaves},
    "getattr recurses": lambda: {"__getattr__": asks_its_response},
    "getattribute refuses": lambda: {"__getattribute__": refuses_all},
    "notes fail": lambda: {"__notes__": property(fails)},
    "notes are a number": lambda: {"__notes__": 5},
    "notes leave": lambda: {"__notes__": [type("Note", (), {"__str__": leaves, "__repr__": leaves})()]},
    "class lies": lambda: {"__class__": property(fails)},
    "traceback is hidden": lambda: {"__traceback__": property(leaves)},
    "cause fails": lambda: {"__cause__": property(fails)},
    "context leaves": lambda: {"__context__": property(leaves)},
    "reduce fails": lambda: {"__reduce_ex__": fails, "__reduce__": fails},
    "reduce leaves": lambda: {"__reduce_ex__": leaves},
    "reduce is another": lambda: {"__reduce__": lambda self: (str, ("another",))},
    "cannot be made again": lambda: {"__setstate__": interrupts},
    "eq fails": lambda: {"__eq__": fails, "__hash__": fails},
    "bool fails": lambda: {"__bool__": fails, "__len__": fails},
}


class Meta(type):
    __hash__ = fails  # type: ignore[assignment]  # on purpose
    __eq__ = fails
    __name__ = property(fails)  # type: ignore[assignment]  # on purpose
    __mro__ = property(leaves)  # type: ignore[assignment]  # on purpose


def made(traits: Sequence[str], base: type[BaseException] = Exception) -> BaseException:
    """A new exception that has all of them."""
    body: Body = {}
    for trait in traits:
        body.update(TRAITS[trait]())
    return type("Hostile", (base,), body)("no luck")


class NeedsMuch(Exception):
    def __init__(self, status: int, *, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.call = lambda: body


class Odd(SyntaxError):
    """`traceback` shows the line of such an error, and counts with its fields."""


class Group(ExceptionGroup[Exception]):
    exceptions = property(fails)  # type: ignore[assignment]  # on purpose


class OfMeta(Exception, metaclass=Meta):
    pass


def odd_syntax() -> BaseException:
    exc = Odd("no luck")
    exc.lineno, exc.offset, exc.text, exc.filename = [], "x", object(), 7  # type: ignore[assignment]  # on purpose
    exc.end_lineno, exc.end_offset = {}, -5  # type: ignore[assignment]  # on purpose
    return exc


def causes_itself() -> BaseException:
    one, two = ValueError("no luck"), made(["getattr recurses"])
    one.__cause__, two.__cause__, one.__context__ = two, one, one
    return one


def long_chain() -> BaseException:
    exc: BaseException = RuntimeError("no luck")
    last = exc
    for _ in range(3 * sys.getrecursionlimit()):
        last.__cause__ = ValueError("deeper")
        last = last.__cause__
    return exc


OTHERS: dict[str, Callable[[], BaseException]] = {
    "StopIteration": lambda: StopIteration("no luck"),
    "StopAsyncIteration": lambda: StopAsyncIteration("no luck"),
    "GeneratorExit": lambda: GeneratorExit("no luck"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("no luck"),
    "SystemExit": lambda: SystemExit("no luck"),
    "CancelledError": lambda: asyncio.CancelledError("no luck"),
    "InvalidStateError": lambda: asyncio.InvalidStateError("no luck"),
    "BrokenPipeError": lambda: BrokenPipeError("no luck"),
    "EOFError": lambda: EOFError("no luck"),
    "RecursionError": lambda: RecursionError("no luck"),
    "NeedsMuch": lambda: NeedsMuch(503, body="no luck"),
    "Odd": odd_syntax,
    "Group": lambda: Group("no luck", [ValueError("x")]),
    "OfMeta": lambda: OfMeta("no luck"),
    "ValueError": causes_itself,
    "RuntimeError": long_chain,
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no luck \udcff"),
    "PermissionError": lambda: OSError(13, "no luck", "a\udcff\0b"),
}


def raise_it(what: str, traits: list[str]) -> None:
    """What a task in the thread or the process lane does."""
    raise OTHERS[what]() if what else made(traits)


async def raise_it_async(what: str, traits: list[str]) -> None:
    """What one on the loop does."""
    raise_it(what, traits)
