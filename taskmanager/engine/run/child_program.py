"""The program of a child of the process lane: its start, the calls that it answers, and what it reports meanwhile.

The child is spawned, never forked. It talks to its parent over copies of its first standard input and output, which the
code of tasks does not know. It ends when its parent ends, and leaves Ctrl-C and SIGTERM to its parent.

Progress, log entries, and records of `logging` are reports. Each is sent at once, so that the last one before a crash
is known. Above a rate, a thread sends what has come together: the newest progress, and a bounded number of records. The
records beyond that are dropped and counted. A copy of the child that a task has forked sends nothing, because its
frames would mix with those of the child.
"""

import faulthandler
import itertools
import logging
import os
import pickle
import queue
import runpy
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, BinaryIO, Final

from taskmanager.codec.safe import readable, safe_text
from taskmanager.engine.run import child
from taskmanager.engine.run.child import (
    BEGUN,
    HEADER,
    ChildCall,
    ChildReply,
    Levels,
    LogEntry,
    News,
    Welcome,
    end_if_copy,
    find_function,
    framed,
    packed_failure,
    packed_value,
)
from taskmanager.engine.words.attempt import MAX_LOG_ENTRIES
from taskmanager.engine.words.outcome import describe, mistake_in, name_of
from taskmanager.model.clock import SystemClock, from_us
from taskmanager.model.context import TaskSource, current

PARENT_POLL_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1
AT_ONCE: Final = 100
"""How many reports are sent at once, per second."""
INTERVAL_S: Final = 0.1
"""How often the thread sends what has come together."""
MAX_RECORDS: Final = 10_000
"""How many log records may wait to be sent. Beyond that the oldest are dropped."""
RECORDS_PER_NEWS: Final = 100
"""How many records the parent hands to its handlers in one turn of its loop."""
NEWS_PER_ROUND: Final = 5
BUFFER_BYTES: Final = 1 << 17
LONG_TEXT: Final = 10_000
"""A report with more characters than this is not sent at once, because its frame must fit into the buffer."""

_NOT_SENT: Final = frozenset({"args", "exc_info", "message", "relativeCreated"})
"""The fields of a log record that stay here: the parent makes them anew, or has no use for them."""


class ChildReports:
    """The only writer to the channel of this process."""

    def __init__(self, channel: int) -> None:
        self._channel = os.fdopen(channel, "wb", BUFFER_BYTES)
        self._is_open = True
        self._clock = SystemClock()
        self._progress: tuple[float, float | None, str] | None = None
        self._entries: deque[LogEntry] = deque(maxlen=MAX_LOG_ENTRIES)
        self._records: deque[tuple[int, dict[str, object]]] = deque(maxlen=MAX_RECORDS)
        self._numbers = itertools.count(1)  # two threads cannot get the same one
        self._last_number = self._gone_count = 0
        """The number of the last record sent, and the count of records that were sent or reported as dropped."""
        # Reentrant: a signal handler that raises may leave the lock taken, and the reply must be sent all the same.
        self._writing = threading.RLock()
        self._is_sending = False
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # a signal handler may ring it at any moment
        self._sent_s: deque[float] = deque(maxlen=AT_ONCE)
        """When the last reports of this task were sent at once."""

    def start(self) -> None:
        """Start the thread that sends what is not sent at once."""
        threading.Thread(target=self._send_later, name="taskmanager-reports", daemon=True).start()

    def progress(self, done: float, total: float | None, text: str) -> None:
        """Report the newest progress."""
        self._progress = (done, total, text)
        self._tell(text)

    def log(self, entry: LogEntry) -> None:
        """Report a line for the record of the task."""
        self._entries.append(entry)
        self._tell(entry[1])

    def record(self, fields: dict[str, object]) -> None:
        """Report a log record for the loggers of the parent."""
        self._records.append((next(self._numbers), fields))
        self._tell(fields["msg"])

    def _tell(self, text: object) -> None:
        now_s, sent_s = self._clock.elapsed_s(), self._sent_s
        is_due = (len(sent_s) < AT_ONCE or now_s - sent_s[0] >= 1.0) and len(str(text)) <= LONG_TEXT
        # The lock may be held by this very thread, which a signal handler has interrupted in the middle of a frame.
        if not is_due or self._is_sending or not self._writing.acquire(blocking=False):
            self._bell.put(None)
            return
        try:
            self._is_sending = True
            sent_s.append(now_s)
            with suppress(OSError):  # the code of the task has closed the channel: sending the reply raises this too
                self._send_news(1)
        finally:
            self._is_sending = False
            self._writing.release()

    def say(self, message: object) -> None:
        """Send this after everything that was reported before."""
        with self._writing:
            self._send_news(sys.maxsize)
            self._write(framed(message))
            self._sent_s = deque(maxlen=AT_ONCE)  # the next task is not held back for what this one has reported

    def _send_later(self) -> None:
        while True:
            self._bell.get()
            time.sleep(INTERVAL_S)
            with suppress(queue.Empty):
                while True:
                    self._bell.get_nowait()
            with suppress(OSError), self._writing:  # the main thread gets the same error
                self._send_news(NEWS_PER_ROUND)
                if self._records:
                    self._bell.put(None)

    def _send_news(self, most: int) -> None:
        while most and (self._progress is not None or self._entries or self._records):
            most -= 1
            progress, self._progress = self._progress, None
            entries, records = _taken(self._entries, MAX_LOG_ENTRIES), _taken(self._records, RECORDS_PER_NEWS)
            self._last_number = max([self._last_number, *(number for number, _ in records)])
            self._gone_count += len(records)
            dropped = self._last_number - self._gone_count
            self._gone_count += dropped
            self._write(framed(News(progress, entries, [fields for _, fields in records], dropped)))

    def _write(self, frame: bytes) -> None:
        # A signal handler that raises here leaves no half frame: the rest of it stays in the buffer.
        if self._is_open:
            self._channel.write(frame)
            self._channel.flush()

    def leave(self) -> None:
        """Send nothing in a forked copy. The writer is kept: collecting it would flush data of the original process."""
        self._is_open = False
        self._writing = threading.RLock()
        with suppress(OSError):
            os.close(self._channel.fileno())


def _taken(found: "deque[Any]", most: int) -> list[Any]:
    taken: list[Any] = []
    with suppress(IndexError):
        while len(taken) < most:
            taken.append(found.popleft())
    return taken


class ChildSource(TaskSource):
    """What `current_task()` shows inside the child."""

    is_detached = False
    is_over = False
    """Set at the end, so that a thread that the task has left behind does not report for the next task."""

    def __init__(self, call: ChildCall, reports: ChildReports) -> None:
        super().__init__(call.task_name)
        self.task_id, self.attempt, self.tags = call.task_id, call.attempt, call.tags
        if call.timeout_s is not None:
            self.deadline = from_us(call.started_at) + timedelta(seconds=call.timeout_s)
        self.scheduled_for = None if call.scheduled_for is None else from_us(call.scheduled_for)
        self._reports = reports

    def progress(self, done: float, total: float | None, text: str) -> None:
        if not self.is_over:
            self._reports.progress(readable(done), readable(total), readable(text))

    def log(self, at: int, text: str, fields: dict[str, object]) -> None:
        if not self.is_over:
            self._reports.log((at, readable(text), {key: readable(fields[key]) for key in fields}))


class CrossingLogs:
    """Sends the log records of this child to the loggers of its parent, in place of the handlers that it has here.

    Handlers that modules add while they are loaded exist in the parent too, and the parent calls its own. A handler
    that a task has added gets the record instead of the parent, so that nothing is logged twice. A handler that writes
    to a standard stream does not count as one of these, because nobody reads that stream of a child.
    """

    def __init__(self, reports: ChildReports) -> None:
        self._reports = reports
        self._loaded: dict[int, logging.Handler] = {}
        self.is_on = False
        """Whether records are sent. Off while modules are loaded: the parent logged the same when it loaded them."""
        call_here = logging.Logger.callHandlers

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if not self._cross(logger, record):
                call_here(logger, record)

        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment]  # between all loggers and their handlers

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Note the handlers that are added meanwhile as those of the modules."""
        before = _all_handlers()
        self.is_on = False
        yield
        self._loaded |= {number: each for number, each in _all_handlers().items() if number not in before}

    def follow(self, levels: Levels) -> None:
        """Take over the levels of the parent, so that only records pass that the parent would emit."""
        logging.root.manager.disable, own = levels
        for name in own:
            logging.getLogger(name)  # it may not be there yet
        for each in _loggers():  # a logger that is disabled in the parent comes with a level instead
            each.disabled = False  # `logging.config` may have disabled it in an earlier task
            if each.level != (level := own.get(each.name, logging.NOTSET)):
                each.setLevel(level)

    def _cross(self, logger: logging.Logger, record: logging.LogRecord) -> bool:
        """Send the record, unless the task has a handler of its own for it."""
        if not self.is_on or any(self._is_of_task(handler, record) for handler in _handlers(logger)):
            return False
        self._reports.record(_fields_of(record))
        return True

    def _is_of_task(self, handler: logging.Handler, record: logging.LogRecord) -> bool:
        return (
            id(handler) not in self._loaded
            and record.levelno >= handler.level
            and not isinstance(handler, logging.NullHandler)
            and not _writes_to_standard_stream(handler)
        )


def _loggers() -> Iterable[logging.Logger]:
    yield logging.root
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield logger


def _all_handlers() -> dict[int, logging.Handler]:
    return {id(handler): handler for logger in _loggers() for handler in logger.handlers}


def _handlers(logger: logging.Logger | None) -> Iterable[logging.Handler]:
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _writes_to_standard_stream(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    return stream is not None and stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


def _plain(value: object) -> object:
    # `readable` would make a text of a level if a signal handler raised in it.
    return value if type(value) in (str, int, float) else readable(value)


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the record as plain data. Its text is formatted here, because its arguments are not sent."""
    fields = {name: _plain(value) for name, value in vars(record).items() if name not in _NOT_SENT}
    try:
        text = record.getMessage()
    except Exception as exc:  # what `%s` calls is user code
        text = f"{readable(record.msg)}, <its text cannot be made: {name_of(type(exc))}>"
    raised = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    fields["msg"] = safe_text(text)
    if raised is not None:
        fields["exc_text"] = describe(raised)
    return fields


# The program.


def serve(calls: BinaryIO) -> None:
    """Get ready, and answer calls until the parent sends no more. `calls` is a copy of the standard input."""
    reports = ChildReports(_own_channel())
    faulthandler.enable(file=2)
    welcome: Welcome = pickle.load(calls)  # noqa: S301  # our parent's
    _bind_to_parent(welcome)
    logs = CrossingLogs(reports)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(_become_copy, reports, logs))
    child.is_loading_main = True
    try:
        with logs.loading():
            _load_main(welcome)
    except BaseException as exc:
        reports.say(packed_failure(exc))
        raise
    child.is_loading_main, child.is_lane_child = False, True
    _leave_signals_to_parent()
    reports.start()
    reports.say(ChildReply())
    while header := calls.read(HEADER.size):
        # From here on the task has begun, so a death of this process counts as a start of the task.
        reports.say(BEGUN)
        (length,) = HEADER.unpack(header)
        reports.say(_answer(calls.read(length), reports, logs))


def _answer(body: bytes, reports: ChildReports, logs: CrossingLogs) -> ChildReply:
    """Run one task in this child, and return the reply, whatever the task raises."""
    pid, source = os.getpid(), None
    try:
        call, levels = pickle.loads(body)  # noqa: S301  # our parent's
        with nullcontext() if call.module in sys.modules else logs.loading():
            fn = find_function(call.module, call.qualname)
        # After the import: the module may set levels, and the parent may have changed them since its own import.
        logs.follow(levels)
        logs.is_on, source = True, ChildSource(call, reports)
        current.set(source)
        value = fn(*call.args, **call.kwargs)
        end_if_copy(pid, None)
        if mistake := mistake_in(value):
            raise mistake
        return packed_value(value)
    except BaseException as exc:
        end_if_copy(pid, exc)
        return packed_failure(exc)
    finally:
        current.set(None)
        if source is not None:
            source.is_over = True


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
    which they would inherit, but has a handler that does nothing.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave_to_parent)


def _leave_to_parent(number: int, frame: FrameType | None) -> None:
    """The handler of a signal that the parent has been sent too."""


def _become_copy(reports: ChildReports, logs: CrossingLogs) -> None:
    """Report nothing in a forked copy of this process, such as one of a `multiprocessing.Pool`, and hear SIGTERM."""
    reports.leave()
    logs.is_on = False
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
