"""The logger of the library. Filters and handlers of the application may raise; that stops nothing here.

Filters, record factories and handlers are user code, and run in the middle of everything: in the turn that starts
tasks, in the writer, in the thread of the heartbeat. When a record is lost to them, `sys.stderr` says so, as with any
handler, and `fault` says so until a record gets through.

Some promises are kept by a log record: a task failed for good, the file cannot be written. `logging.config` disables
every logger that it does not name, unless it is told otherwise, and then nobody reads these records. A warning says so.
A logger that was silenced on purpose (by a level, a filter, a NullHandler) gets no warning.

Names and errors in a record are text of others. They stay on one line without control characters, so that nobody can
write a line that looks like another record, or move the cursor of whoever reads the log.
"""

import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple

from taskmanager.model.escaping import escaped, escaped_lines

INDENT: Final = "  "
DISABLED: Final = (
    "the logger 'taskmanager' is disabled, and nothing that goes wrong is logged: logging.config does that to each "
    "logger that it does not name; give it disable_existing_loggers=False"
)


class Raised(NamedTuple):
    """An exception for a record: the object for those who group and look at it, and its traceback as it is printed.

    Each line of the traceback is indented, so that none looks like a record.
    """

    exc: BaseException
    frames: TracebackType | None
    text: str


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls never raise, except for Ctrl-C and the like, which are meant for the process."""

    fault: str | None = None
    """Why the last record was lost. None while records get through."""
    lost_count = 0
    _has_warned = False

    @property
    def trouble(self) -> str | None:
        """Return why nobody can read the log, or None. A logger that was silenced on purpose is fine."""
        return DISABLED if self._is_disabled() else self.fault

    def look(self) -> None:
        """Warn when the logger was disabled, once each time."""
        is_disabled = self._is_disabled()
        if is_disabled and not self._has_warned:
            self._has_warned = True  # before it is said: a thread of ours may look at the same time
            warn(DISABLED)
        self._has_warned = is_disabled

    def _is_disabled(self) -> bool:
        """Return whether it is disabled, and was not silenced on purpose as well."""
        if not self.logger.disabled:
            return False
        level = max(self.logger.getEffectiveLevel(), self.logger.manager.disable + 1)
        return level <= logging.CRITICAL and not any(
            isinstance(each, logging.NullHandler) for each in self.logger.handlers
        )

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return both as they are: this adapter adds nothing to a record."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Hand the record over. `raised` is its `exc_info`, and what formatters print of it."""
        if not self.logger.isEnabledFor(level):
            if self.logger.disabled:
                self.look()
            return
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the record names who called us
        try:
            if extra := kwargs.get("extra"):
                kwargs["extra"] = {name: plain(value) for name, value in extra.items()}
            raised: Raised | None = kwargs.pop("raised", None)
            if raised is None:
                self.logger.log(level, msg, *map(plain, args), **kwargs)
            else:
                self._log_raised(level, str(msg), tuple(map(plain, args)), raised, **kwargs)
        except BaseException as exc:
            if _is_for_the_process(exc):
                raise
            self._note(exc)
        else:
            self.fault = None

    def pass_on(self, fields: Mapping[str, object]) -> None:
        """Hand a record that was made in another process to its own logger, if that would emit it."""
        try:
            record = logging.makeLogRecord(dict(fields))
            of_record = logging.getLogger(str(record.name))
            if of_record.isEnabledFor(record.levelno):
                of_record.handle(record)
        except BaseException as exc:
            if _is_for_the_process(exc):
                raise
            self._note(exc)

    def _log_raised(
        self, level: int, msg: str, args: tuple[object, ...], raised: Raised, *, stacklevel: int, extra: dict[str, Any]
    ) -> None:
        """Log with a finished traceback: its words may look like other records, so no formatter makes it."""
        file, line, function, _ = self.logger.findCaller(stacklevel=stacklevel + 1)
        exc_info = (type(raised.exc), raised.exc, raised.frames)
        record = self.logger.makeRecord(self.logger.name, level, file, line, msg, args, exc_info, function, extra)
        lines = escaped_lines(raised.text.rstrip("\n")).split("\n")
        record.exc_text = "\n".join(INDENT + line for line in lines)
        self.logger.handle(record)

    def _note(self, exc: BaseException) -> None:
        self.lost_count += 1
        fault = "".join(traceback.format_exception_only(exc)).strip()
        is_new, self.fault = fault != self.fault, fault
        if is_new and logging.raiseExceptions and sys.stderr is not None:
            with suppress(OSError, ValueError):  # nobody can be told
                sys.stderr.write("--- a record of taskmanager could not be logged ---\n")
                traceback.print_exception(exc, file=sys.stderr)


def warn(text: str, category: type[Warning] = RuntimeWarning, file: str = "taskmanager", line: int = 0) -> None:
    """Show a warning and never raise, although a filter, or an application that shows warnings itself, may raise."""
    try:
        # Not `warnings.warn`, which says a sentence once in the life of a process.
        warnings.warn_explicit(text, category, file, line)
    except Exception:  # noqa: BLE001  # see above
        with suppress(OSError, ValueError, AttributeError):  # nobody can be told
            sys.stderr.write(f"{file}:{line}: {category.__name__}: {text}\n")


def plain(value: object) -> object:
    """Return the value if its text needs no escapes, else its escaped text."""
    text = str(value)
    return value if text.isprintable() else escaped(text)


def _is_for_the_process(exc: BaseException) -> bool:
    """Return whether it is for the process: Ctrl-C, or the `sys.exit()` of a signal handler. Both may come anywhere."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and isinstance(exc, KeyboardInterrupt | SystemExit)


logger: Final = Log(logging.getLogger("taskmanager"))
