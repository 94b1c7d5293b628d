"""Opens the database that a command is about, to look at it or to write to it, and finds the tasks that are meant."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from taskmanager.cli.options import DB_VARIABLE
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import UnknownTask
from taskmanager.store.place import READ_PATIENCE_S, Place
from taskmanager.store.protocol import Store
from taskmanager.store.sql.queries import instances
from taskmanager.store.sql.search import ids_like, memory_only
from taskmanager.store.sql.session import Session

LOCK_PATIENCE_S: Final = 1.0
"""How long the sign of an instance may be missing: a living one looks for its own every half second."""
LOCK_PAUSE_S: Final = 0.02
SHOWN_IDS: Final = 3

R = TypeVar("R")


def check_is_there(db: Place) -> None:
    """Raise `StoreUnavailable` if there is no such database. The message names `--db`, which mostly lacks."""
    db.check_is_there(f"name the application's database with --db or ${DB_VARIABLE}")


@contextmanager
def read(db: Place, *, patience_s: float = READ_PATIENCE_S) -> Iterator[Session]:
    """Open the database read-only, and wait for the signs of its instances.

    Raise `StoreError`, after `patience_s` if another program keeps the database to itself.
    """
    check_is_there(db)
    with db.read(patience_s=patience_s) as connection:
        wait_for_signs(db, [each.instance_id for each in instances(connection)])
        yield connection


def wait_for_signs(db: Place, missing: Sequence[str]) -> None:
    """Wait a second at most until none of these instances lacks its sign of life.

    A living instance puts its sign back after somebody has tidied up, and must not look dead meanwhile.
    """
    clock = SystemClock()
    deadline_s = clock.elapsed_s() + LOCK_PATIENCE_S
    while (missing := [each for each in missing if db.is_missing(each)]) and clock.elapsed_s() < deadline_s:
        time.sleep(LOCK_PAUSE_S)


def write(db: Place, work: Callable[[Store], Coroutine[Any, Any, R]]) -> R:
    """Open the database as the application does, and run `work` on it. This never creates or migrates one."""
    with read(db):
        pass  # it is there, is ours, and has our schema

    async def run() -> R:
        store = db.new_store()
        try:
            await store.open()
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def the_task(connection: Session, part: str) -> str:
    """Return the id that begins or ends with `part`. Raise `UnknownTask` if there is none, or more than one."""
    part = part.strip()
    found = ids_like(connection, part, SHOWN_IDS + 1)
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(found[:SHOWN_IDS]) + (" and more" if len(found) > SHOWN_IDS else "")
        raise UnknownTask(f"{part!r} is ambiguous: {some}; give more of the id")
    for each in memory_only(connection):
        if part and (each.task_id.startswith(part) or each.task_id.endswith(part)):
            raise UnknownTask(
                f"task {each.task_id} is memory-only and runs in process {each.pid} on {each.hostname}; only that "
                "process can act on it, and its record comes into the database when it has ended"
            )
    raise UnknownTask(f"there is no task {part!r}; `taskmanager list` shows the ids, and an end of one will do")


def the_tasks(connection: Session, parts: Sequence[str]) -> list[str]:
    """Return the ids that these parts mean, each once, in their order. Raise `UnknownTask` if one is not found."""
    return list(dict.fromkeys(the_task(connection, part) for part in parts))
