"""Words that messages and screens share: numbers with their nouns, why something failed, and what to do about it."""

import errno
from typing import Final

from taskmanager.model.escaping import escaped
from taskmanager.model.states import BuiltInTaskCode

MORE_THREADS: Final = "the limit on processes and threads is reached; raise it (`ulimit -u`, `pids.max` of a container)"

MAX_WHY_CHARS: Final = 1_000
"""The length of an error message in a line of a log or a screen. The file has the whole message."""


def counted(number: int, one: str, *, is_capped: bool = False) -> str:
    """Return a number with its noun: `1 task`, `1,200 tasks`, `1,000+ tasks` where counting ended."""
    return f"1 {one}" if number == 1 else f"{number:,}{'+' if is_capped else ''} {one}s"


def why(code: str, message: str | None, *, max_chars: int = MAX_WHY_CHARS, is_short: bool = False) -> str:
    """Return why something failed, in one line: `SMTP_DOWN: ConnectionError: refused`.

    The message of an exception begins with its type. `is_short` is for a column of a table, where the code of an
    exception that no mapper knows gives way to that type: `ValueError: no such invoice`.
    """
    text = " ".join((message or "")[: 2 * max_chars].split())
    if len(text) > max_chars:
        text = f"{text[:max_chars]} ..."
    if is_short and text and code == BuiltInTaskCode.UNHANDLED_EXCEPTION:
        return escaped(text)
    return escaped(f"{code}: {text}" if text else str(code))


def remedy(error: OSError, otherwise: str) -> str:
    """Return what to do about a file that cannot be made. Permissions are not to blame for everything."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open; raise the limit (`ulimit -n`), or find who does not close them"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk or the quota is full; free some space, and see that there is room for more files (`df -i`)"
    if error.errno == errno.ENAMETOOLONG:
        return "use a shorter name"
    return otherwise
