"""What a listener is told of one change of a task, and how the record as of that moment is read from it.

The loop notes an event in a tuple, which costs it little. A record, with its instants and its JSON, is made when a
listener asks for it, where that listener runs. The first steps of a task are read from the task as it is then, with all
that came later left out. Of a task that was started more than once nobody could say any more what came later, so the
loop notes the whole row of its later steps.

What the listeners were not told yet stands here too. A write may put a row into the store, and a claim may take that
row before the write is answered; or the row expires. What the write has done is told then, before what follows from it,
so that a listener hears everything in order.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from taskmanager.codec.views import task_info
from taskmanager.engine.words.definition import RowCodec
from taskmanager.engine.words.live_task import LiveTask, columns_of
from taskmanager.engine.write.outbox import Sent
from taskmanager.model.clock import SECOND_US
from taskmanager.model.hooks import EventKind, Facts
from taskmanager.model.record import AttemptRow, Expected, TaskRow
from taskmanager.model.result import TaskError, TaskResult, trusted_code
from taskmanager.model.states import TaskStatus
from taskmanager.rules.events import END_KINDS
from taskmanager.store.protocol import InstanceRow

T = TypeVar("T")

MOST_UNTOLD: Final = 10_000
"""How many rows of each kind, and snoozed runs, are kept. Other instances take some of them, and nothing is heard of
those here. So the oldest ones are forgotten.
"""

_ENDS: Final = frozenset(END_KINDS.values())
_NOT_ENDED: Final = dict.fromkeys(("completed_at", "failed_at", "result", "failed_reason", "error_code"))
_NOT_RUNNING: Final = dict.fromkeys(("started_at", "worker_pid", "worker_hostname", "worker_process_name"))
_NEW: Final = dict.fromkeys(("next_retry_at", "progress", "log")) | dict.fromkeys(
    ("retry_count", "crash_count", "snooze_count"), 0
)
"""What a task has not got before its first attempt has ended."""


class Told(NamedTuple):
    """One event, as the loop notes it. Either the row is there or the task, from which it is read."""

    kind: EventKind
    at: int
    start_count: int
    live: LiveTask | None
    row: TaskRow | None
    attempt: AttemptRow | None = None
    """The attempt that has ended with it."""
    began_at: int | None = None
    """When the run began that has ended with it, and of which there is no attempt."""


Noted = tuple[EventKind, int, int, LiveTask | None, TaskRow | None, AttemptRow | None, int | None]
"""The same as a plain tuple, of which a busy loop makes three for each task."""


class EventReader:
    """Reads what was told, in whatever thread, for the listeners of one instance."""

    def __init__(self, codec: RowCodec, who: InstanceRow) -> None:
        self._codec, self._who = codec, who

    def read(self, noted: Noted) -> Facts:
        """Return the record as of the event, the error and the duration."""
        told = Told(*noted)
        live = told.live
        row = self._as_of(told, _row_of(live) if told.row is None and live is not None else told.row)
        result: TaskResult[Any] | None = None
        if told.kind in _ENDS:
            ending = live.ending if live is not None and told.row is None else None
            if ending is not None:
                result = ending.result
            elif row.result is not None:
                result = self._codec.decode_result(row)
        attempt = told.attempt or _last_attempt(told)
        is_saved = live is None or (live.is_persisted and live.saving.committed is not None)
        task = task_info(row, is_saved=is_saved, result=result)
        return Facts(task, _error_of(told, row, result, attempt), _duration_s(told, row, attempt))

    def _as_of(self, told: Told, row: TaskRow | None) -> TaskRow:
        """Return the row as it was then: without what came later, where several steps were written together."""
        assert row is not None
        status = "RUNNING" if told.kind == "started" else "PENDING"
        if told.kind in _ENDS or (row.status == status and row.start_count == told.start_count):
            return row
        values: dict[str, Any] = {**_NOT_ENDED, "status": status, "start_count": told.start_count}
        values |= {"updated_at": told.at, **(_NEW if told.start_count <= 1 else {})}
        if status == "PENDING":
            return row._replace(**(values | _NOT_RUNNING))
        who = self._who
        values |= {"started_at": told.at, "claimed_by_worker_id": who.instance_id, "worker_pid": who.pid}
        return row._replace(**(values | {"worker_hostname": who.hostname, "worker_process_name": who.process_name}))


def _row_of(live: LiveTask) -> TaskRow:
    """Return the record as it is now. The task itself stays as it is, because only the loop may change it."""
    args, kwargs, is_later, definition = live.call_args, live.call_kwargs, live.encodes_later, live.definition
    row = TaskRow._make(columns_of(live))
    if not (is_later and args is not None and row.args is None):
        return row
    args_text, kwargs_text = definition.stored_arguments(args, kwargs or {})
    return row._replace(args=args_text, kwargs=kwargs_text)


def _last_attempt(told: Told) -> AttemptRow | None:
    """Return the attempt with which a memory-only task has ended: its attempts stay with it."""
    if told.live is None or told.live.is_persisted or told.kind not in _ENDS:
        return None
    last = told.live.attempts_due[-1:]
    return next((each for each in last if each.attempt == told.start_count and not each.will_retry), None)


def _error_of(told: Told, row: TaskRow, result: TaskResult[Any] | None, attempt: AttemptRow | None) -> TaskError | None:
    if told.kind == "completed":  # an error there says that nobody has the value
        return None
    if told.kind in _ENDS:
        if result is not None and result.is_err():
            error: TaskError = result.err_value
            return error
        return TaskError(trusted_code(row.error_code or ""), row.failed_reason or "") if row.error_code else None
    if attempt is None or attempt.error_code is None:
        return None
    return TaskError(trusted_code(attempt.error_code), attempt.error_message or "")


def _duration_s(told: Told, row: TaskRow, attempt: AttemptRow | None) -> float | None:
    """Return how long the attempt took. The wall clock may have been set back meanwhile."""
    began_at, ended_at = told.began_at, told.at
    if attempt is not None:
        began_at, ended_at = attempt.started_at, attempt.finished_at
    elif told.kind == "completed":
        began_at = row.started_at
    return None if began_at is None else max(0, ended_at - began_at) / SECOND_US


def has_snoozed(task: LiveTask | TaskRow) -> bool:
    """Return whether a task that waits for its next run does so because its last one was snoozed."""
    waits = task.snooze_count > 0 and task.next_retry_at is None and task.enqueued_at >= task.updated_at
    return waits and task.status == TaskStatus.PENDING


class Untold:
    """What one start has not told yet. All of it is called on the loop."""

    def __init__(self) -> None:
        self._made: dict[str, None] = {}
        self._once: dict[str, None] = {}
        self._unended: dict[str, None] = {}
        """Those that were made, until their end is told."""
        self._snoozed: dict[tuple[str, int], int] = {}
        self._batch: Sequence[Sent] = ()
        self._by_id: dict[str, Sent] | None = None

    def __repr__(self) -> str:
        return f"<Untold {len(self._batch)} writes, {len(self._made)} rows, {len(self._snoozed)} snoozed runs>"

    # Rows that were put into the store free, outside of the batches.

    def makes(self, task_ids: Iterable[str]) -> None:
        """Note that a write of ours puts these rows into the store."""
        made = dict.fromkeys(task_ids)
        for noted in (self._made, self._unended):
            noted.update(made)
            _forget_oldest(noted)

    def makes_once(self, task_ids: Iterable[str]) -> None:
        """Note tasks that a failure or a schedule enqueues. The write may be repeated; they are told of once."""
        if new := [task_id for task_id in task_ids if task_id not in self._once]:
            self._once.update(dict.fromkeys(new))
            _forget_oldest(self._once)
            self.makes(new)

    def makes_nodes(self, task_ids: Iterable[str]) -> None:
        """Note that a workflow has readied these tasks.

        One that was held, and is free again, is not told again before its end.
        """
        self.makes([task_id for task_id in task_ids if task_id not in self._unended])

    def ends(self, task_id: str) -> None:
        """Note that the end of a task is told."""
        self._unended.pop(task_id, None)

    def take_made(self, task_id: str, *, is_ours: bool = True) -> bool:
        """Return whether this one was to be made, and forget it: the caller tells of it now.

        If it was not our write that has made it (`is_ours`), a later one of ours still may.
        """
        if not is_ours:
            self._once.pop(task_id, None)
        if task_id not in self._made:
            return False
        del self._made[task_id]
        return True

    # Batches of the writer.

    def sends(self, batch: Sequence[Sent]) -> None:
        """Note that this batch is on its way. If its answer is lost, the next batch carries its changes again."""
        self._batch, self._by_id = batch, None

    def answered(self) -> None:
        """Note that the listeners were told of the batch."""
        self.sends(())

    def write_to(self, task_id: str, state: Expected) -> Sent | None:
        """Return the write of the batch on its way that brings the row to this state, or None."""
        if not self._batch:
            return None
        if self._by_id is None:
            self._by_id = {sent.write.task_id: sent for sent in self._batch if sent.live.is_persisted}
        sent = self._by_id.get(task_id)
        return sent if sent is not None and sent.state == state else None

    # Snoozed runs of persisted tasks, until the end of the run is in the store.

    def snoozes(self, task_id: str, start_count: int, began_at: int) -> None:
        """Note that the run with this number was snoozed, and when it began."""
        self._snoozed[task_id, start_count] = began_at
        _forget_oldest(self._snoozed)

    def snoozed_runs(self, task_id: str, before: Expected | None, after: Expected) -> dict[int, int]:
        """Return the snoozed runs between two states of a row: when each began, by its number. Forget them."""
        if not self._snoozed:
            return {}
        first = 0 if before is None else before.start_count
        numbers = range(first, after.start_count + (after.status != "RUNNING"))
        found = {number: self._snoozed.pop((task_id, number), None) for number in numbers}
        return {number: began_at for number, began_at in found.items() if began_at is not None}


def _forget_oldest(noted: dict[T, Any]) -> None:
    while len(noted) > MOST_UNTOLD:
        del noted[next(iter(noted))]
