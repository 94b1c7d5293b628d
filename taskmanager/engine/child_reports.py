"""Sends what a task reports from a child of the process lane: progress, log entries, and records of `logging`.

Each report is sent at once, so that the last one before a crash is known. Above a rate, a thread sends what has come
together: the newest progress, and a bounded number of records. The records beyond that are dropped and counted. A copy
of the child that a task has forked sends nothing, because its frames would mix with those of the child.
"""

import itertools
import logging
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from taskmanager.codec.safe import readable, safe_text
from taskmanager.engine.attempt import MAX_LOG_ENTRIES
from taskmanager.engine.child import Levels, LogEntry, News, framed
from taskmanager.engine.outcome import describe, name_of
from taskmanager.model.clock import SystemClock

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

# The fields of a record that are sent. Its arguments, its traceback and its `relativeCreated` are not.
_FIELDS: Final = (
    "name", "levelno", "levelname", "pathname", "filename", "module", "lineno", "funcName", "created", "msecs",
    "thread", "threadName", "processName", "process", "taskName",
)  # fmt: skip
_NOT_EXTRA: Final = frozenset(
    (*_FIELDS, "relativeCreated", "msg", "args", "exc_info", "exc_text", "stack_info", "message")
)


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
        self._window_s = 0.0
        self._sent_at_once = 0

    def start(self) -> None:
        """Start the thread that sends what is not sent at once."""
        threading.Thread(target=self._send_later, name="taskmanager-reports", daemon=True).start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

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
        now_s = self._clock.elapsed_s()
        if now_s - self._window_s >= 1.0:
            self._window_s, self._sent_at_once = now_s, 0
        self._sent_at_once += 1
        is_due = self._sent_at_once <= AT_ONCE and len(str(text)) <= LONG_TEXT
        # The lock may be held by this very thread, which a signal handler has interrupted in the middle of a frame.
        if not is_due or self._is_sending or not self._writing.acquire(blocking=False):
            self._bell.put(None)
            return
        try:
            self._is_sending = True
            with suppress(OSError):  # the code of the task has closed the channel: sending the reply raises this too
                self._send_news(1)
        finally:
            self._is_sending = False
            self._writing.release()

    def say(self, word: str, payload: object) -> None:
        """Send this after everything that was reported before."""
        with self._writing:
            self._send_news(sys.maxsize)
            self._write(framed(word, payload))

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
            self._write(framed("news", News(progress, entries, [fields for _, fields in records], dropped)))

    def _write(self, frame: bytes) -> None:
        # A signal handler that raises here leaves no half frame: the rest of it stays in the buffer.
        if self._is_open:
            self._channel.write(frame)
            self._channel.flush()

    def _leave(self) -> None:
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


class CrossingLogs:
    """Sends the log records of this child to the loggers of its parent, in place of the handlers that it has here.

    Handlers that modules add while they are loaded exist in the parent too, and the parent calls its own. A handler
    that a task has added gets the record instead of the parent, so that nothing is logged twice. A handler that writes
    to a standard stream does not count as one of these, because nobody reads that stream of a child.
    """

    def __init__(self, reports: ChildReports) -> None:
        self._reports = reports
        self._loaded: dict[int, logging.Handler] = {}
        self._levels: Levels = (0, {})
        self._call_handlers = logging.Logger.callHandlers
        self.is_on = False
        """Whether records are sent. Off while modules are loaded: the parent logged the same when it loaded them."""

    def install(self) -> None:
        """Stand between all loggers and their handlers."""
        crossing = self

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if not crossing.cross(logger, record):
                crossing._call_handlers(logger, record)

        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment]  # on purpose
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Note the handlers that are added meanwhile as those of the modules."""
        before = {id(handler) for logger in _loggers() for handler in logger.handlers}
        self.is_on = False
        yield
        found = ((id(handler), handler) for logger in _loggers() for handler in logger.handlers)
        self._loaded.update((number, handler) for number, handler in found if number not in before)
        self._levels = self._levels[0], {logger.name: logger.level for logger in _loggers() if logger.level}

    def follow(self, levels: Levels) -> None:
        """Take over the levels of the parent, so that only records pass that the parent would emit."""
        logging.root.manager.disable, now = levels
        before, self._levels = self._levels[1], levels
        for each in _loggers():  # a logger that is disabled in the parent comes with a level instead
            each.disabled = False  # `logging.config` may have disabled it in an earlier task
        for name in before.keys() - now.keys():
            logging.getLogger(name).setLevel(logging.NOTSET)
        for name, level in now.items():
            logger = logging.getLogger(name)
            if logger.level != level:
                logger.setLevel(level)

    def cross(self, logger: logging.Logger, record: logging.LogRecord) -> bool:
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

    def _leave(self) -> None:
        self.is_on = False


def _loggers() -> Iterable[logging.Logger]:
    yield logging.root
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield logger


def _handlers(logger: logging.Logger | None) -> Iterable[logging.Handler]:
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _writes_to_standard_stream(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    return stream is not None and stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


def _plain(value: object) -> object:
    return value if type(value) in (str, int, float) else readable(value)


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the record as plain data. Its text is formatted here, because its arguments are not sent."""
    found = vars(record)
    fields = {name: readable(value) for name, value in found.items() if name not in _NOT_EXTRA}
    fields.update((name, _plain(found[name])) for name in _FIELDS if name in found)
    try:
        text = record.getMessage()
    except Exception as exc:  # noqa: BLE001  # what `%s` calls is user code
        text = f"{readable(record.msg)}, <its text cannot be made: {name_of(type(exc))}>"
    raised = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    fields["msg"] = safe_text(text)
    fields["exc_text"] = describe(raised) if raised is not None else readable(record.exc_text)
    fields["stack_info"] = readable(record.stack_info)
    return fields
