"""Makes tasks that the application writes in its own transaction: `submit_in` and `insert_statement`."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from taskmanager.engine.definition import Definition
from taskmanager.engine.intake import Intake
from taskmanager.engine.live_task import LiveTask
from taskmanager.model.call_options import CallOptions
from taskmanager.model.errors import ConfigurationError


class Submission:
    """Makes such tasks. `expect` gets the id of each, when it is made and when it is written."""

    def __init__(self, intake: Intake, database: Path | None, expect: Callable[[str], None]) -> None:
        self._intake = intake
        self._database = database
        self._expect = expect

    def write(
        self,
        connection: Any,
        call: tuple[Definition, CallOptions],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> str | Coroutine[Any, Any, str]:
        """Insert the task through the connection, and return its id. Await the id if the connection is asynchronous."""
        from taskmanager.store.sqlite.caller import insert_through

        live = self._made(call, args, kwargs)
        inserted = insert_through(connection, live.row(), self._database)
        return live.task_id if inserted is None else self._written(inserted, live.task_id)

    async def _written(self, inserted: Coroutine[Any, Any, None], task_id: str) -> str:
        await inserted
        self._expect(task_id)
        return task_id

    def statement(
        self, call: tuple[Definition, CallOptions], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, tuple[object, ...]]:
        """Return the SQL that inserts the task, and its parameters."""
        from taskmanager.store.sqlite.caller import insert_statement

        return insert_statement(self._made(call, args, kwargs).row())

    def _made(self, call: tuple[Definition, CallOptions], args: tuple[Any, ...], kwargs: dict[str, Any]) -> LiveTask:
        definition, options = call
        if self._database is None or not definition.is_persisted:
            raise ConfigurationError(
                f"task {definition.name!r} is memory-only and cannot be written in a transaction; give it persist=True"
            )
        from taskmanager.store.sqlite.open_files import check_process

        check_process(self._database)
        live = self._intake.make(definition, options, args, kwargs)
        self._expect(live.task_id)
        return live
