"""The program of a child of the process lane.

The child is spawned, never forked. It talks to its parent over copies of its first standard input and output, which the
code of tasks does not know. It ends when its parent ends, and leaves Ctrl-C and SIGTERM to its parent.
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
    """Get ready, and answer calls until the parent sends no more. `calls` is a copy of the standard input."""
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
        # From here on the task has begun, so a death of this process counts as a start of the task.
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
        # After the import: the module may set levels, and the parent may have changed them since its own import.
        logs.follow(levels)
    except BaseException as exc:
        return packed_failure(exc)
    logs.is_on = True
    return run(call, reports, pid)


def _own_channel() -> int:
    """Keep the standard output for frames alone, and give the code of tasks other ones.

    Standard input becomes the null device. Standard output becomes standard error, for programs of a task too. The
    parent reads that, and shows the end of it when this process dies.
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
    """Do nothing on Ctrl-C and SIGTERM, which a terminal or systemd sends to all processes of a program.

    The parent stops then, and waits for what runs here. Programs that a task starts inherit that Ctrl-C is ignored,
    since they belong to the task. They must hear SIGTERM, with which a task ends them. So SIGTERM is not ignored here,
    which they would inherit, but has a handler that does nothing. Forked copies of this process, such as those of a
    `multiprocessing.Pool`, get the usual handling back.
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
    if sys.platform == "linux" and welcome.is_of_main_thread:  # Linux means the end of the thread that spawned us
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(
        target=_watch_parent, args=(welcome.parent_pid,), name="taskmanager-parent-watch", daemon=True
    ).start()


def _watch_parent(parent_pid: int) -> None:
    # For systems without prctl, and for a parent that died before prctl was called.
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
