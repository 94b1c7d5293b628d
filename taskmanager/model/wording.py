"""Words that messages and screens share: numbers with their nouns, and what to do about an error of the system."""

import errno
from typing import Final

MORE_THREADS: Final = "the limit on processes and threads is reached; raise it (`ulimit -u`, `pids.max` of a container)"


def counted(number: int, one: str) -> str:
    """`1 task`, `1,200 tasks`."""
    return f"1 {one}" if number == 1 else f"{number:,} {one}s"


def remedy(error: OSError, otherwise: str) -> str:
    """What to do about a file that cannot be made: permissions are not to blame where descriptors have run out."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open; raise the limit (`ulimit -n`), or find who does not close them"
    return otherwise
