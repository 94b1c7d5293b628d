"""The other side of the process lane: what runs inside a child process.

The child is spawned by `anyio.to_process`, never forked. It gets a module and a qualified name, imports the module and
takes the function from the `Task` found there. It ends with its parent, and leaves Ctrl-C and SIGTERM to it.
"""

import importlib
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import FrameType
from typing import Any, NamedTuple

from taskmanager.codec.annotations import is_async
from taskmanager.codec.safe import readable
from taskmanager.engine.attempt import current
from taskmanager.engine.copies import end_if_copy
from taskmanager.engine.mistakes import mistake_in
from taskmanager.model.clock import SystemClock, from_us
from taskmanager.model.errors import ArgumentError, ConfigurationError

PARENT_POLL_S = 0.5
_clock = SystemClock()
_PR_SET_PDEATHSIG = 1

is_lane_child = False
"""True in a child process of the process lane; enqueueing there raises `WrongProcess`."""


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


class ChildReply(NamedTuple):
    """What comes back: a value, or the exception with its traceback as text, and what the attempt reported. `lost`: why
    the value could not come.
    """

    value: Any
    exc: BaseException | None
    trace: str | None
    progress: tuple[float, float | None, str] | None
    log: list[tuple[int, str, dict[str, object]]]
    lost: str | None = None


class PackedReply(NamedTuple):
    """The reply on its way: value and exception as pickles, so that what cannot be one does not break the pool."""

    value: bytes | None = None
    exc: bytes | None = None
    trace: str | None = None
    progress: tuple[float, float | None, str] | None = None
    log: list[tuple[int, str, dict[str, object]]] | None = None
    lost: str | None = None


class ChildSource:
    """What `current_task()` shows inside the child; what is reported travels back with the reply."""

    is_cancelled = False
    is_detached = False

    def __init__(self, call: ChildCall) -> None:
        self.task_id = call.task_id
        self.task_name = call.task_name
        self.attempt = call.attempt
        self.tags = call.tags
        self.deadline: datetime | None = None
        if call.timeout_s is not None:
            self.deadline = from_us(call.started_at) + timedelta(seconds=call.timeout_s)
        self.scheduled_for = None if call.scheduled_for is None else from_us(call.scheduled_for)
        self.last_progress: tuple[float, float | None, str] | None = None
        self.entries: list[tuple[int, str, dict[str, object]]] = []

    def now_us(self) -> int:
        return _clock.now_us()

    def progress(self, done: float, total: float | None, text: str) -> None:
        self.last_progress = (readable(done), readable(total), readable(text))

    def log(self, at: int, text: str, fields: dict[str, object]) -> None:
        self.entries.append((at, readable(text), {key: readable(fields[key]) for key in fields}))


def packed_call(call: ChildCall) -> bytes:
    """For the way into the child. Raises `ArgumentError` naming the argument that cannot go there."""
    import pickle

    try:
        return pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
    except Exception as exc:  # whatever the arguments raise
        words = traceback.format_exception_only(exc)[-1].strip()
        raise ArgumentError(
            f"task {call.task_name}: {_unpicklable(call)} cannot be sent to a child process: {words}. Pass what it can "
            "be made from, such as a path or a key"
        ) from None


def _unpicklable(call: ChildCall) -> str:
    import pickle

    values = [(f"argument {number}", value) for number, value in enumerate(call.args, 1)]
    for name, value in [*values, *((f"argument {name!r}", value) for name, value in call.kwargs.items())]:
        try:
            pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception:  # whatever the value raises
            return f"{name} ({type(value).__name__})"
    return "what belongs to the call"


def come_up(parent_pid: int) -> int:
    """The first thing that a child is asked, before there is a task for it: its process id."""
    _become_lane_child(parent_pid)
    return os.getpid()


def run(parent_pid: int, packed: bytes) -> PackedReply:
    """Run one task in this child, whatever comes of it."""
    import pickle

    _become_lane_child(parent_pid)
    try:
        call: ChildCall = pickle.loads(packed)  # noqa: S301  # our parent's
    except BaseException as exc:
        return _packed_failure(exc)
    source = ChildSource(call)
    token, pid = current.set(source), os.getpid()
    try:
        fn = find_function(call.module, call.qualname)
        value = fn(*call.args, **call.kwargs)
        end_if_copy(pid, None)
        mistake = mistake_in(value)
        reply = _packed_value(value) if mistake is None else _packed_failure(mistake)
    except BaseException as exc:
        end_if_copy(pid, exc)
        reply = _packed_failure(exc)
    finally:
        current.reset(token)
    return reply._replace(progress=source.last_progress, log=source.entries)


def unpacked(reply: PackedReply) -> ChildReply:
    """In the parent: the reply with the value, or the exception, itself."""
    import pickle

    # What the main module of the program defines is of a module of that name in a child, here and in `multiprocessing`.
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
    value: Any = None
    exc: BaseException | None = None
    lost = reply.lost
    try:
        if reply.exc is not None:
            exc = pickle.loads(reply.exc)  # noqa: S301  # our child's
        elif reply.value is not None:
            value = pickle.loads(reply.value)  # noqa: S301  # our child's
    except BaseException as broken:
        if reply.exc is None:
            lost = _why_lost(broken)
        else:
            last_line = (reply.trace or "").strip().rpartition("\n")[2]
            exc = RuntimeError(f"{last_line} (not readable here: {type(broken).__name__})")
    return ChildReply(value, exc, reply.trace, reply.progress, reply.log or [], lost)


def _packed_value(value: Any) -> PackedReply:
    import pickle

    try:
        return PackedReply(value=pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except BaseException as broken:
        return PackedReply(lost=_why_lost(broken))


def _why_lost(broken: BaseException) -> str:
    words = traceback.format_exception_only(broken)[-1].strip()
    return f"the result could not come out of the child process: {words}"


def find_function(module_name: str, qualname: str) -> Any:
    """The plain function behind (module, qualname); `ConfigurationError` when there is none."""
    try:
        if module_name == "__main__" and module_name not in sys.modules:
            # Of an archive it would be found, and with that name the whole program would run again in here.
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


def _packed_failure(exc: BaseException) -> PackedReply:
    return PackedReply(exc=_packed_exception(exc), trace=_trace(exc))


def _packed_exception(exc: BaseException) -> bytes:
    """`exc` itself where it survives pickling with its class, else one of its class that says the same, which is what
    mappers look at; else a RuntimeError with its words.
    """
    import pickle

    why = ""
    for candidate in (exc, _Bare(exc)):
        try:
            packed = pickle.dumps(candidate, pickle.HIGHEST_PROTOCOL)
            back = pickle.loads(packed)  # noqa: S301  # our own bytes, a moment old
            if type(back) is type(exc) and (candidate is exc or str(back) == str(exc)):
                return packed
        except BaseException as reason:
            why = why or f" (not picklable: {traceback.format_exception_only(reason)[-1].strip()})"
    return pickle.dumps(RuntimeError(traceback.format_exception_only(exc)[-1].strip() + why))


class _Bare:
    """Stands for an exception whose `__init__` takes more than `args` holds, or with attributes no pickle can have."""

    def __init__(self, exc: BaseException) -> None:
        self._exc = exc

    def __reduce__(self) -> tuple[Any, ...]:
        exc = self._exc
        state = {name: value for name, value in vars(exc).items() if _is_picklable(value)}
        return _bare, (type(exc), exc.args if _is_picklable(exc.args) else (str(exc),), state)


def _bare(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    exc = kind.__new__(kind, *args)
    vars(exc).update(state)
    return exc


def _is_picklable(value: object) -> bool:
    import pickle

    try:
        pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))  # noqa: S301  # our own bytes, a moment old
    except BaseException:
        return False
    return True


def _trace(exc: BaseException) -> str:
    frames = exc.__traceback__
    if frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(exc), exc, frames))


def is_loading_main() -> bool:
    """Whether this is a child that reads the main module of the program, before it is asked for anything."""
    return sys.orig_argv[-2:] == ["-m", "anyio.to_process"] and "__main__" not in sys.modules


def _become_lane_child(parent_pid: int) -> None:
    global is_lane_child
    if not is_lane_child:
        is_lane_child = True
        _leave_standard_streams()
        _leave_signals_to_parent()
        _bind_to_parent(parent_pid)


def _leave_standard_streams() -> None:
    """Let calls and replies go through descriptors that nobody else knows, and the standard ones to the null device.

    The pool speaks over the standard streams of the child, and nobody reads its errors. A program that the task starts
    inherits them: it would write into a reply, swallow the next call, or stop at a full pipe.
    """
    for stream, number, mode in ((sys.__stdin__, 0, "rb"), (sys.__stdout__, 1, "wb")):
        buffer: Any = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)
        if isinstance(raw, io.FileIO) and raw.fileno() == number:
            raw.__init__(os.dup(number), mode)  # type: ignore[misc]  # the pool holds this object, so it stays
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def _leave_signals_to_parent() -> None:
    """A terminal sends Ctrl-C to all processes of a program, and systemd its SIGTERM: the parent stops, and waits for
    what runs here.

    Programs that the task starts ignore Ctrl-C too, since they belong to the task. SIGTERM they hear: a task ends what
    it has started with that. So it is not ignored here, which they would inherit, but handled; and copies of this
    process, a `multiprocessing.Pool` for one, get the usual handling back.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave_to_parent)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_hear_sigterm)


def _leave_to_parent(number: int, frame: FrameType | None) -> None:
    """The handler of a signal that the parent has been sent too."""


def _hear_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _leave_to_parent:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _bind_to_parent(parent_pid: int) -> None:
    """End when the parent does, even in the middle of a task."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_parent, args=(parent_pid,), name="taskmanager-parent-watch", daemon=True).start()


def _watch_parent(parent_pid: int) -> None:
    # Covers platforms without prctl, and a parent that died before prctl was called.
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
