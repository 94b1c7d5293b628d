"""Tells exceptions that a signal raised, such as Ctrl-C, from those that a task raised. The former mean the process.

The handler of Python or of the program raises in whatever line the main thread runs, and nothing in the exception says
so. The functions read an exception as the interpreter sees it, because its class is user code.
"""

import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from opcode import opmap
from types import TracebackType


def comes_from_signal(exc: BaseException) -> bool:
    """Whether a signal raised it, or raised one of the exceptions of a group."""
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
    """Whether `exc`, which a coroutine raised after `thrown` was thrown into it, was first raised by another task."""
    if exc is thrown or issubclass(type(exc), BaseExceptionGroup):
        return True
    # A cancelled group of tasks raises the exception of a member again: that `raise` is inside the traceback.
    is_raised_again = (
        _is_raise(step) and step.tb_frame is not after.tb_frame for step, after in pairwise(_steps_of(exc))
    )
    return thrown is not None and any(is_raised_again)


def leaves_of(exc: BaseException) -> Iterator[BaseException]:
    """Yield the exception, or the exceptions of a group and of the groups in it."""
    left = [exc]
    while left:
        each = left.pop()
        if issubclass(type(each), BaseExceptionGroup):
            left.extend(vars(BaseExceptionGroup)["exceptions"].__get__(each))
        else:
            yield each


def traceback_of(exc: BaseException) -> TracebackType | None:
    """Return the traceback that the interpreter keeps, whatever the class of the exception says."""
    tb: TracebackType | None = vars(BaseException)["__traceback__"].__get__(exc)
    return tb


def _steps_of(exc: BaseException) -> Iterator[TracebackType]:
    """Yield the entries of the traceback. The frame in which it was raised comes last."""
    tb = traceback_of(exc)
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_raise(step: TracebackType) -> bool:
    return step.tb_frame.f_code.co_code[step.tb_lasti] == opmap["RAISE_VARARGS"]
