"""The records of the steps of one task: those of earlier runs, read once, and those that this run adds.

A record goes to the store with the next write of its task, and whoever awaits it goes on when that is committed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn, ParamSpec, TypeVar

from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.write.writes import StepsDue
from taskmanager.model.errors import StepFailed, StoreUnavailable
from taskmanager.model.result import TaskError
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.steps import Identity, StepRow
from taskmanager.rules.steps import MAX_RECORDED_CHARS, MAX_RECORDS

P = ParamSpec("P")
R = TypeVar("R")

PAGE: Final = "docs/steps.md"
READ_AGAIN_S: Final = 0.25
"""The pause before the store is asked again that cannot be read now."""


class StepRecords:
    """What is recorded of the steps of one attempt, and of those before it."""

    fault: TaskError | None = None
    """Why the task fails, whatever its code makes of the exception."""

    def __init__(
        self,
        attempt: Attempt,
        fetch: Callable[[str], Awaitable[list[StepRow]]],
        mark: Callable[[LiveTask], None],
    ) -> None:
        self._attempt, self._live, self._name = attempt, attempt.live, attempt.task_name
        self._fetch, self._mark = fetch, mark
        self.rows: dict[Identity, StepRow] = {}
        """Those of earlier runs. Of what has been returned in this run, without the value."""
        self._loading: asyncio.Task[None] | None = None
        self._count = self._chars = 0
        self._failed: list[tuple[StepRow, object]] = []
        """Errors that nothing was called after yet, and the asyncio tasks that they were raised in."""

    def __repr__(self) -> str:
        return f"<StepRecords of {self._attempt!r}, {len(self.rows)} of earlier runs>"

    # What earlier runs have recorded.

    async def load(self) -> None:
        """Read the records of earlier runs, once. A task that has started once has none."""
        if self._live.start_count > 1:
            if self._loading is None:
                self._loading = asyncio.get_running_loop().create_task(self._read())
            await asyncio.shield(self._loading)
        if self.fault is not None:
            raise StepFailed(self.fault)

    async def _read(self) -> None:
        rows: Sequence[StepRow] = await patiently(self._fetch, self._live.task_id)
        due = self._live.steps_due
        unsaved = () if due is None else due.rows.values()
        self.rows = {row.identity: row for row in (*rows, *unsaved)} | self.rows
        self._count += len(rows)
        self._chars += sum(len(row.result or "") for row in self.rows.values())

    # What this run records.

    def add(self, row: StepRow) -> "asyncio.Future[None]":
        """Write this record with the task; what is returned is done when it is committed."""
        due = self.put(row)
        self._mark(self._live)
        return due.saved(row)

    def note(self, row: StepRow) -> None:
        """Write this record with the task. Nobody waits for it."""
        self.put(row)
        self._mark(self._live)

    def put(self, row: StepRow) -> StepsDue:
        """Let the next write of the task take this record along."""
        if self._attempt.is_over:  # given up: the task is another run's now
            raise asyncio.CancelledError
        due = self._live.steps_due
        if due is None:
            due = self._live.steps_due = StepsDue()
        due.add(row)
        self._live.updated_at = self._attempt.now_us()
        return due

    def gets_on(self) -> None:
        """The task has a new record: it is not what killed the process, and has its retries again."""
        self._live.retry_count = self._live.crash_count = 0

    def failed(self, row: StepRow) -> None:
        """Note an error that is raised now. It is final once the code goes on."""
        self._failed.append((row, asyncio.current_task()))

    def go_on(self) -> "Sequence[asyncio.Future[None]]":
        """The code goes on after the errors that it has seen: those are final."""
        if not self._failed or self._attempt.stop_reason is not None:
            return ()
        caller = asyncio.current_task()
        is_own = caller is self._attempt.task
        # A branch beside the one in which it was raised knows nothing of it.
        seen = [row for row, raised_in in self._failed if is_own or raised_in is caller]
        self._failed = [each for each in self._failed if each[0] not in seen]
        return [self.add(row._replace(is_final=1)) for row in seen]

    # Limits and faults.

    def check_room(self, name: str) -> None:
        """Count one more record. The task fails if it has too many."""
        self._count += 1
        if self._count > MAX_RECORDS:
            self.fail(BuiltInTaskCode.STEP_LIMIT, f"it calls more than {MAX_RECORDS:_} steps, at {name}")

    def count_chars(self, text: str) -> None:
        """Count the length of one more result. The task fails if they are too long together."""
        self._chars += len(text)
        if self._chars > MAX_RECORDED_CHARS:
            self.fail(
                BuiltInTaskCode.STEP_LIMIT, f"its steps have returned more than {MAX_RECORDED_CHARS:_} characters"
            )

    def fail(self, code: BuiltInTaskCode, what: str) -> NoReturn:
        """Let the task fail, and keep its records."""
        self.fault = self.fault or TaskError(code, f"task {self._name}: {what}; see {PAGE}")
        raise StepFailed(self.fault)


async def patiently(read: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what the store answers, as soon as it can be read."""
    while True:
        try:
            return await read(*args, **kwargs)
        except StoreUnavailable:
            await asyncio.sleep(READ_AGAIN_S)
