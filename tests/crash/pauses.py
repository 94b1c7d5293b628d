"""Named points at which the child stops for ever, to be killed there: around, and inside, a transaction of the store.

A pause is {"point": "before" | "inside" | "after" | "migration" | "claimed", "status": S, "function": F}: the commit it
stops at is the first that writes a row of that status (and of that task), or any where they are absent.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from taskmanager import TaskManager
from taskmanager.model.record import TaskRow, Write
from taskmanager.store.protocol import ClaimRequest, CommitReport
from tests.crash.jobs import note
from tests.crash.kinds import is_server, session_class

Pause = dict[str, Any]


class Pausing:
    """A store that stops at the point it was told. It stands before the class of any store."""

    pause: Pause
    is_armed = False
    works_in_thread = False
    """Every commit comes by `commit`, at which it may stop."""

    def _matches(self, writes: Sequence[Write]) -> bool:
        status, name = self.pause.get("status"), self.pause.get("function")
        return any(
            (status is None or each.status == status) and (name is None or each.task_name == name) for each in writes
        )

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        point = self.pause["point"] if self._matches(writes) else None
        if point == "before":
            await stop_here()
        self.is_armed = point == "inside"
        report: CommitReport = await super().commit(writes)  # type: ignore[misc]  # of the store behind it
        if point == "after":
            await stop_here()
        return report

    async def claim(self, *requests: ClaimRequest) -> list[TaskRow]:
        rows: list[TaskRow] = await super().claim(*requests)  # type: ignore[misc]
        if rows and self.pause["point"] == "claimed":
            await stop_here()
        return rows


async def stop_here() -> None:
    """The loop goes on, this coroutine does not."""
    note("paused")
    await asyncio.Event().wait()


def install(manager: TaskManager, pause: Pause) -> None:
    """Let this manager stop at that point."""
    place = manager._settings.place
    assert place is not None
    store: Any = place.new_store(synchronous="full")
    store.__class__ = type("PausingStore", (Pausing, type(store)), {})
    store.pause = pause
    manager._make_store = lambda: store
    if pause["point"] == "inside":
        _stop_before_commit(store, session_class(str(place)), "transitions")
    elif pause["point"] == "migration" and is_server(str(place)):
        _stop_in_first_step()
    elif pause["point"] == "migration":
        store.is_armed = True
        _stop_before_commit(store, session_class(str(place)), "schema")


def _stop_before_commit(store: Pausing, session: Any, module: str) -> None:
    """Let the transactions that this module opens stop before they are committed."""
    real = session.transaction

    @contextmanager
    def transaction(session: Any, *, is_beside: bool = False) -> Iterator[None]:
        is_meant = sys._getframe(2).f_globals["__name__"].endswith(f".{module}")
        with real(session, is_beside=is_beside):
            yield
            if is_meant and store.is_armed:
                note("paused")
                time.sleep(3_600)

    session.transaction = transaction


def _stop_in_first_step() -> None:
    """Let the migration of a schema stop when all of its first step is done, before that is committed."""
    from taskmanager.store.postgresql import schema

    real = schema._Migrator._run

    def run(migrator: Any, statement: str) -> Any:
        done = real(migrator, statement)
        if statement.startswith("INSERT INTO taskmanager_schema"):
            note("paused")
            time.sleep(3_600)
        return done

    schema._Migrator._run = run  # type: ignore[method-assign]  # the only way to stop inside
