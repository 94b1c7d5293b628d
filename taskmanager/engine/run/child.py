"""The messages between parent and child of the process lane, and the run of one task in a child.

A child gets a module and a qualified name, imports the module and takes the function from the `Task` found there. Its
messages are frames: a length, and a pickle of plain data. Values and exceptions of user code are packed into these as
pickles of their own. If one of them cannot be made or read, only that one is lost.

A child says `BEGUN` when it takes a call, then any `News`, and a `ChildReply` at the end, whatever user code does to
it, or it dies. Its first reply, without a call, says that it can take one.
"""

import importlib
import os
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from taskmanager.codec.annotations import is_async
from taskmanager.codec.safe import readable
from taskmanager.engine.words.outcome import describe, error_of, words_of
from taskmanager.model.context import current
from taskmanager.model.errors import ArgumentError, ConfigurationError
from taskmanager.model.result import TaskResult, plain_text

HEADER: Final = struct.Struct(">Q")

is_lane_child = False
"""True in a child process of the process lane; enqueueing there raises `WrongProcess`."""
is_loading_main = False
"""True while this child reads the main module of the program, before it can take a task."""
listener: ContextVar[object] = ContextVar("taskmanager_listener")
"""The listener that the running code belongs to, unless it is that of a task."""
forked_by: object = None
"""The attempt whose code has made this process by a fork, as `current_task()` knows it, or the listener. None: neither.

On an event loop the process id does not tell that: all tasks of the copy may end there.
"""

LogEntry = tuple[int, str, dict[str, object]]
"""The instant, the text and the fields of `current_task().log`."""
Levels = tuple[int, dict[str, int]]
"""The level of `logging.disable`, and that of each logger that has one of its own. The root logger is "root"."""
BEGUN: Final = "begun"


class Welcome(NamedTuple):
    """What a child needs to know of its program before it can take a task."""

    parent_pid: int
    is_of_main_thread: bool
    """Whether the thread that has spawned the child lives as long as the parent."""
    argv: list[str]
    main_name: str | None
    """The name of a main module that was started by its name, with `python -m`."""
    main_path: str | None


class ChildCall(NamedTuple):
    """What the parent sends, as a pickle that never leaves memory."""

    module: str
    qualname: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    task_id: str
    task_name: str
    attempt: int
    tags: Mapping[str, str]
    started_at: int
    timeout_s: float | None
    scheduled_for: int | None


class News(NamedTuple):
    """What a running task has reported since the last news."""

    progress: tuple[float, float | None, str] | None
    entries: list[LogEntry]
    records: list[dict[str, object]]
    """Log records, each as its attributes."""
    dropped_count: int
    """How many log records were dropped, because there were more than a child may send."""


Heard = Callable[[News], None]


class ChildReply(NamedTuple):
    """What comes back from a child: a value, or what was raised.

    `lost` says why a value could not come. After a raise there are `words`, and as far as they could come `kind`, the
    class, and `exc`, the exception itself. A `TaskResult` with an error has a `code`, and its data are the `value`.
    On its way, `value`, `kind` and `exc` are pickles, so that an unreadable one breaks nothing else.
    """

    value: Any = None
    lost: str | None = None
    words: str | None = None
    code: str | None = None
    trace: str = ""
    kind: Any = None
    exc: Any = None


def framed(message: object) -> bytes:
    """Return one frame, for either direction."""
    body = _dumps(message)
    return HEADER.pack(len(body)) + body


def _dumps(value: object) -> bytes:
    import pickle  # only a program with a process lane pays for it

    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _loads(packed: bytes) -> Any:
    import pickle

    return pickle.loads(packed)  # noqa: S301  # our child's, or our own bytes


def framed_call(call: ChildCall, levels: Levels) -> bytes:
    """Return the frame of a call. Raises `ArgumentError`, which names the argument that cannot be pickled."""
    try:
        return framed((call, levels))
    except Exception as exc:  # whatever the arguments raise
        words = traceback.format_exception_only(exc)[-1].strip()
        raise ArgumentError(
            f"task {call.task_name}: {_unpicklable(call)} cannot be sent to a child process: {words}. Pass what it can "
            "be made from, such as a path or a key"
        ) from None


def _unpicklable(call: ChildCall) -> str:
    values = [(f"argument {number}", value) for number, value in enumerate(call.args, 1)]
    for name, value in [*values, *((f"argument {name!r}", value) for name, value in call.kwargs.items())]:
        try:
            _dumps(value)
        except Exception:  # whatever the value raises
            return f"{name} ({type(value).__name__})"
    return "what belongs to the call"


def end_if_copy(of_pid: int, error: BaseException | None) -> None:
    """End this process if it is a copy of process `of_pid` that the code of a task has forked. See `end_copy`."""
    if os.getpid() != of_pid:
        end_copy(error)


def end_copy(error: BaseException | None) -> None:
    """End this process, which is a copy that the code of a task or a listener has forked, and that comes back from it.

    The copy has all that its parent has. It would wait for work for ever, or answer in the place of that process. It
    ends as a program does whose main function is over. `error` is what the code has raised.
    """
    status = 0 if error is None else 1
    if issubclass(type(error), SystemExit):
        code = error.code  # type: ignore[union-attr]  # shown by issubclass
        status = code if isinstance(code, int) else int(code is not None)
    elif error is not None:
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there may be none, or it may be closed
            stream.flush()
    os._exit(status & 0xFF)


def _forked() -> None:
    global forked_by  # one value for the whole process
    forked_by = current.get(None) or listener.get(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def packed_value(value: Any) -> ChildReply:
    """Return the reply for what the task has returned."""
    if isinstance(value, TaskResult) and not value.is_ok():
        error = error_of(value.err_value)  # the task fails, whether its data can be sent or not
        data = _packed(error.data) or _packed(readable(error.data))
        return ChildReply(value=data, words=plain_text(error.message), code=plain_text(error.error_code))
    try:
        return ChildReply(value=_dumps(value))
    except BaseException as broken:
        return ChildReply(lost=_why_lost(broken))


def unpacked(reply: ChildReply) -> ChildReply:
    """Return the reply with the value or the exception unpacked. For the parent."""
    # In a child, and in `multiprocessing`, what the main module defines belongs to a module of this name.
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
    value, broken = _read(reply.value, object)
    exc, _ = _read(reply.exc, BaseException)
    kind = _read(reply.kind, type)[0] if exc is None else type(exc)
    if kind is not None and not issubclass(kind, BaseException):
        kind = None
    return reply._replace(value=value, lost=reply.lost if broken is None else _why_lost(broken), kind=kind, exc=exc)


def _read(packed: bytes | None, kind: type) -> tuple[Any, BaseException | None]:
    """Return what was packed, or None and the reason why it cannot be read here."""
    try:
        found = None if packed is None else _loads(packed)
        return (found if issubclass(type(found), kind) else None), None
    except BaseException as broken:
        return None, broken


def _why_lost(broken: BaseException) -> str:
    return f"the result could not come out of the child process: {words_of(broken)}; return what pickle can carry"


def find_function(module_name: str, qualname: str) -> Any:
    """Return the plain function of this module and qualified name. Raises `ConfigurationError` if there is none."""
    try:
        if module_name == "__main__" and module_name not in sys.modules:
            # Python would find that of an archive, and the whole program would run again under that name.
            raise ImportError("the main module of an archive, of `-c` or of a pipe is not there")
        found: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as exc:
        raise ConfigurationError(
            f"the process lane cannot import {module_name}:{qualname} ({exc}); define it at the top level of a "
            "module that can be imported"
        ) from exc
    found = getattr(found, "fn", found)
    if not callable(found) or is_async(found):
        raise ConfigurationError(f"{module_name}:{qualname} is not a plain function; the process lane cannot run it")
    return found


def packed_failure(exc: BaseException) -> ChildReply:
    """Return the reply for an exception of the task. Never fails."""
    return ChildReply(words=words_of(exc), trace=describe(exc), kind=_packed(type(exc)), exc=_packed_exception(exc))


def _packed(value: object) -> bytes | None:
    try:
        packed = _dumps(value)
        _loads(packed)
    except BaseException:
        return None
    return packed


def _packed_exception(exc: BaseException) -> bytes | None:
    """Return `exc` pickled if that keeps its class, else a pickle of an exception of its class with the same text."""
    for candidate in (exc, _Bare(exc)):
        packed = _packed(candidate)
        try:
            back = None if packed is None else _loads(packed)
            if type(back) is type(exc) and (candidate is exc or str(back) == str(exc)):
                return packed
        except BaseException:
            return None  # `str` of it raises
    return None


class _Bare:
    """Stands for an exception whose `__init__` takes more than `args` holds, or with attributes no pickle can have."""

    def __init__(self, exc: BaseException) -> None:
        self._exc = exc

    def __reduce__(self) -> tuple[Any, ...]:
        exc = self._exc
        state = {name: value for name, value in vars(exc).items() if _packed(value) is not None}
        return _bare, (type(exc), exc.args if _packed(exc.args) is not None else (str(exc),), state)


def _bare(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    exc = kind.__new__(kind, *args)
    vars(exc).update(state)
    return exc
