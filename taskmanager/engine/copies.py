"""Copies of this process that the code of a task has forked, and that come back from that code.

The copy has all that this process had: it would go on as a worker that waits for work for ever, or answer in the place
of the process that it was forked from. It ends as a program does whose main function is over.
"""

import os
import sys
import traceback
from contextlib import suppress


def end_if_copy(of_pid: int, error: BaseException | None) -> None:
    """End this process, unless it is the one of that id. `error` is what the code has raised."""
    if os.getpid() == of_pid:
        return
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
