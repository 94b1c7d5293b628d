"""The program of a child of the process lane.

The child is spawned, never forked. It speaks over descriptors that nobody else knows: what was its standard input and
output when it began. It ends with its parent, and leaves Ctrl-C and SIGTERM to it.
"""

import faulthandler
import os
import pickle
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, ModuleType
from typing import BinaryIO, Final

from taskmanager.engine import child
from taskmanager.engine.child import HEADER, ChildCall, PackedReply, Welcome, find_function, packed_failure, run
from taskmanager.engine.child_reports import ChildReports, CrossingLogs
from taskmanager.engine.outcome import words_of

PARENT_POLL_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1


def serve(calls: BinaryIO) -> None:
    """Come up, and run what is asked for until the parent has no more; `calls` is a copy of the standard input."""
    reports = ChildReports(_own_channel())
    faulthandler.enable(file=2)
    welcome = Welcome(*pickle.load(calls))  # noqa: S301  # our parent's
    _bind_to_parent(welcome)
    logs = CrossingLogs(reports)
    logs.install()
    child.is_loading_main = True
    try:
        with logs.loading():
            _load_main(welcome)
    except BaseException as exc:
        reports.say("failed", (words_of(exc), issubclass(type(exc), KeyboardInterrupt)))
        raise
    child.is_loading_main, child.is_lane_child = False, True
    _leave_signals_to_parent()
    reports.start()
    reports.say("ready", None)
    while header := calls.read(HEADER.size):
        # From here on the task has begun: what kills this process kills it with the task.
        reports.say("begun", None)
        (length,) = HEADER.unpack(header)
        reports.say("reply", tuple(_answer(calls.read(length), reports, logs)))


def _answer(body: bytes, reports: ChildReports, logs: CrossingLogs) -> PackedReply:
    pid = os.getpid()
    try:
        _, (levels, packed) = pickle.loads(body)  # noqa: S301  # our parent's
        call: ChildCall = pickle.loads(packed)  # noqa: S301  # our parent's
        if call.module not in sys.modules:
            with logs.loading():
                find_function(call.module, call.qualname)
        # After its module, which may have set them as it did in the parent, where they may have been changed since.
        logs.follow(levels)
    except BaseException as exc:
        return packed_failure(exc)
    logs.is_on = True
    return run(call, reports, pid)


def _own_channel() -> int:
    """Keep the standard output for frames alone, and give the code of tasks other ones.

    The null device to read from. What is written, also by programs that a task starts, goes where errors go: the parent
    reads that, and shows the end of it when this process dies.
    """
    channel = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return channel


def _load_main(welcome: Welcome) -> None:
    """Load the main module of the program under another name, as `multiprocessing` does, so that it does not start."""
    sys.argv[:] = welcome.argv
    del sys.modules["__main__"]
    if welcome.main_name:
        found = runpy.run_module(welcome.main_name, run_name="__mp_main__", alter_sys=True)
    elif welcome.main_path and Path(welcome.main_path).is_file():
        found = runpy.run_path(welcome.main_path, run_name="__mp_main__")
    else:
        return
    main = ModuleType("__mp_main__")
    vars(main).update(found)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main


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


def _bind_to_parent(welcome: Welcome) -> None:
    """End when the parent does, even in the middle of a task."""
    if sys.platform == "linux" and welcome.is_of_main_thread:  # Linux means the end of the thread that has spawned it
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(
        target=_watch_parent, args=(welcome.parent_pid,), name="taskmanager-parent-watch", daemon=True
    ).start()


def _watch_parent(parent_pid: int) -> None:
    # Covers what is not bound by prctl, and a parent that died before that was called.
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
