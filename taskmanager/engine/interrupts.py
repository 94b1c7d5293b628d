"""Tells what a signal raised, Ctrl-C for one, from what a task raised: the one is meant for the process.

Python's own handler, or one of the program, raises it in whatever line of the main thread runs, and nothing in the
exception says so. Exceptions are read as the interpreter sees them, since their classes are user code.
"""

import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from opcode import opmap
from types import TracebackType


def comes_from_signal(exc: BaseException) -> bool:
    """Whether a signal raised it, or what a group of tasks has put among its exceptions."""
    return any(map(_is_from_signal, leaves_of(exc)))


def _is_from_signal(exc: BaseException) -> bool:
    is_candidate = issubclass(type(exc), KeyboardInterrupt | SystemExit)
    if not is_candidate or threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    codes = [getattr(getattr(each, "func", each), "__code__", None) for each in handlers]  # asyncio's is a partial
    steps = list(_steps_of(exc))
    if any(step.tb_frame.f_code in codes for step in steps):
        return True
    # Python's own handler has no frame. It raises between two instructions, or in a call that was waiting.
    is_by_default = type(exc) is KeyboardInterrupt and handlers[0] is signal.default_int_handler
    return is_by_default and bool(steps) and not _is_raise(steps[-1])


def is_handed_on(exc: BaseException, thrown: BaseException | None) -> bool:
    """Whether a coroutine into which `thrown` was thrown raises what a task beside it had raised before."""
    if exc is thrown or issubclass(type(exc), BaseExceptionGroup):
        return True
    # A group of tasks is cancelled, and raises what one of them has raised: in the middle of its traceback.
    is_raised_again = (
        _is_raise(step) and step.tb_frame is not after.tb_frame for step, after in pairwise(_steps_of(exc))
    )
    return thrown is not None and any(is_raised_again)


def leaves_of(exc: BaseException) -> Iterator[BaseException]:
    """The exception, or the exceptions of a group and of the groups in it."""
    left = [exc]
    while left:
        each = left.pop()
        if issubclass(type(each), BaseExceptionGroup):
            left.extend(vars(BaseExceptionGroup)["exceptions"].__get__(each))
        else:
            yield each


def traceback_of(exc: BaseException) -> TracebackType | None:
    """That of the interpreter, whatever the class of the exception says."""
    tb: TracebackType | None = vars(BaseException)["__traceback__"].__get__(exc)
    return tb


def _steps_of(exc: BaseException) -> Iterator[TracebackType]:
    """The entries of its traceback. The frame in which it was raised comes last."""
    tb = traceback_of(exc)
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_raise(step: TracebackType) -> bool:
    return step.tb_frame.f_code.co_code[step.tb_lasti] == opmap["RAISE_VARARGS"]
