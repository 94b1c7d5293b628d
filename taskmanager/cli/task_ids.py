"""Which task is meant: its id, or a beginning or an end of it that is nobody else's."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from taskmanager.model.errors import UnknownTask
from taskmanager.store.sqlite.search import ids_like, memory_only

SHOWN: Final = 3


def the_task(connection: sqlite3.Connection, part: str) -> str:
    """The whole id. Raises `UnknownTask` when none, or more than one, has that part."""
    found = ids_like(connection, part.strip(), SHOWN + 1)
    if not found:
        raise UnknownTask(_why_unknown(connection, part.strip()))
    if len(found) > 1:
        some = ", ".join(found[:SHOWN])
        more = " and more" if len(found) > SHOWN else ""
        raise UnknownTask(f"{part!r} is ambiguous: {some}{more}; give more of the id")
    return found[0]


def _why_unknown(connection: sqlite3.Connection, part: str) -> str:
    for each in memory_only(connection):
        if part and (each.task_id.startswith(part) or each.task_id.endswith(part)):
            return (
                f"task {each.task_id} is memory-only and runs in process {each.pid} on {each.hostname}; only that "
                "process can act on it, and its record comes into the file when it has ended"
            )
    return f"there is no task {part!r}; `taskmanager list` shows the ids, and an end of one will do"


def the_tasks(connection: sqlite3.Connection, parts: Sequence[str]) -> list[str]:
    """All of them, each once, in the order given; raises before anything is done when one is not found."""
    return list(dict.fromkeys(the_task(connection, part) for part in parts))
