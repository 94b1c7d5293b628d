"""Does what people ask for from outside of the application, to the tasks and workflows of its file.

The functions are unknown here. A running application notices within its `store_poll`, a quarter of a second. While
another program keeps the file locked, each transaction is tried again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from taskmanager.codec.arguments import arguments_of_text
from taskmanager.codec.values import dumps
from taskmanager.console.figures import relative
from taskmanager.engine.people.actions import cancel_stored, retry_stored, why_not_again
from taskmanager.engine.people.records import is_free
from taskmanager.engine.words.definition import RowCodec, options_of
from taskmanager.model.clock import Clock
from taskmanager.model.errors import ArgumentError, StoreError, StoreUnavailable
from taskmanager.model.ids import new_task_id
from taskmanager.model.record import TaskRow, TaskWrite, UnreadableRow
from taskmanager.model.states import LIVE, TERMINAL, TaskStatus
from taskmanager.store.place import Place
from taskmanager.store.protocol import Store
from taskmanager.store.sql.workflow_views import WorkflowView

PAGE: Final = 500
WRITE_PATIENCE_S: Final = 10.0  # how long an action tries to get at a file that another program holds locked
WRITE_PAUSE_S: Final = 0.1
OUTCOME_PATIENCE_S: Final = 1.0  # how long a cancel waits for the instances that it has asked
OUTCOME_PAUSE_S: Final = 0.05
CHANGED: Final = "it has changed meanwhile; look at it again"
GONE: Final = "its record was deleted meanwhile"
RETRYABLE: Final = TERMINAL - {TaskStatus.COMPLETED}
"""The statuses of tasks that are retried without `force`."""

# The functions are unknown here, and their codecs: what is written is what recovery writes of unknown functions.
_UNTYPED: Final = RowCodec({})
_SAME: Final = ("task_name", "queue_name", "priority", "max_retries", "tags")
"""What a task that is enqueued again has in common with the first one, beside its options."""
_OF_ONE_CALL: Final = frozenset({"is_delay", "sent_by"})
"""Options that say how a task was sent, and not what its function has declared."""

R = TypeVar("R")


class Answer(NamedTuple):
    """What became of one task. `outcome` is one word; `remark` says the rest."""

    task_id: str
    done: bool
    outcome: str
    remark: str | None = None


def gone(task_id: str) -> Answer:
    """Return the answer for a task that has no row any more."""
    return Answer(task_id, False, "gone", GONE)


Act = Callable[[Sequence[TaskRow]], Awaitable[list[Answer]]]
"""Does something to these tasks, and says what became of each."""


async def patiently(step: Callable[[], Awaitable[R]]) -> R:
    """Run one transaction. While another program has the file locked, try it again for `WRITE_PATIENCE_S`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WRITE_PATIENCE_S
    while True:
        try:
            return await step()
        except StoreUnavailable:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(WRITE_PAUSE_S)


async def in_pages(store: Store, act: Act, task_ids: Sequence[str]) -> list[Answer]:
    """Let `act` do something to the tasks with these ids, in pages, and return what became of each."""
    answers: list[Answer] = []
    for start in range(0, len(task_ids), PAGE):
        page = task_ids[start : start + PAGE]
        rows = await store.fetch_ids(page)
        answers += await act([rows[task_id] for task_id in page if task_id in rows])
        answers += [gone(task_id) for task_id in page if task_id not in rows]
    return answers


# Retry.


async def retry(
    store: Store, rows: Sequence[TaskRow], clock: Clock, *, force: bool = False, from_start: bool = False
) -> list[Answer]:
    """Put ended tasks back, with their stored arguments; COMPLETED ones by `force` alone."""
    reasons = {row.task_id: why_not_again(row, force=force) for row in rows}
    able = [row for row in rows if reasons[row.task_id] is None]
    now_us = clock.now_us()
    won = await patiently(lambda: retry_stored(store, able, now_us, from_start=from_start))
    return [_retried(row, reasons[row.task_id], row.task_id in won, now_us) for row in rows]


def _retried(row: TaskRow, reason: str | None, has_won: bool, now_us: int) -> Answer:
    if reason is None and has_won:
        return Answer(row.task_id, True, "waiting", "it runs as soon as an instance has room")
    reason = reason or CHANGED
    if row.status == TaskStatus.PENDING and row.enqueued_at > now_us:
        reason += f"; it runs {relative(row.enqueued_at, now_us)}"
    return Answer(row.task_id, False, "refused", reason)


# Cancel.


def why_not_cancelled(row: TaskRow) -> str | None:
    """Return why a task cannot be cancelled, or None."""
    return None if row.status in LIVE else f"it is {row.status} already"


async def cancel(store: Store, rows: Sequence[TaskRow], clock: Clock, place: Place | None) -> list[Answer]:
    """End the tasks that wait, and ask those to stop that run. Wait a second for the end of these.

    The `place` tells which instances are dead; None is for a store in memory.
    """
    done = await _cancel(store, [row for row in rows if row.status in LIVE], clock)
    asked = [row for row in rows if row.task_id in done and not is_free(row)]
    orphans = set() if place is None else await asyncio.to_thread(_orphans, asked, place)
    ended = await _wait_for_end(store, [row.task_id for row in asked if row.task_id not in orphans])
    return [_cancelled(row, row.task_id in done, row.task_id in orphans, ended.get(row.task_id)) for row in rows]


def _orphans(rows: Sequence[TaskRow], place: Place) -> set[str]:
    return {row.task_id for row in rows if place.is_dead(row.claimed_by_worker_id or "")}


async def _cancel(store: Store, live: Sequence[TaskRow], clock: Clock) -> frozenset[str]:
    """Cancel in two transactions. A retry of a larger step would take its own first half for another's work."""
    done: frozenset[str] = frozenset()
    for part in ([row for row in live if is_free(row)], [row for row in live if not is_free(row)]):
        done |= await patiently(partial(cancel_stored, store, _UNTYPED, part, clock.now_us()))
    return done


async def _wait_for_end(store: Store, asked: Sequence[str]) -> dict[str, TaskStatus]:
    """Wait for `OUTCOME_PATIENCE_S` at most, and return the statuses of those that have ended."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + OUTCOME_PATIENCE_S
    while asked:
        found = {task_id: TaskStatus(row.status) for task_id, row in (await store.fetch_ids(asked)).items()}
        ended = {task_id: status for task_id, status in found.items() if status.is_terminal}
        if len(ended) == len(found) or loop.time() >= deadline:
            return ended
        await asyncio.sleep(OUTCOME_PAUSE_S)
    return {}


def _cancelled(row: TaskRow, is_done: bool, is_orphan: bool, ended: TaskStatus | None) -> Answer:
    if not is_done:
        return Answer(row.task_id, False, "refused", why_not_cancelled(row) or CHANGED)
    if is_free(row) or ended is TaskStatus.CANCELLED:
        return Answer(row.task_id, True, "cancelled")
    remark = "it was asked to stop, and has not ended yet"
    if is_orphan:
        remark = "its instance is dead; a start, or `taskmanager recover`, ends it"
    elif ended is not None:
        remark = f"it was asked to stop, and is {ended}"
    return Answer(row.task_id, True, "asked", remark)


# Enqueue again.


def why_not_enqueued_again(row: TaskRow) -> str | None:
    """Return why no other task can be made after this one, or None."""
    if isinstance(row, UnreadableRow):
        return row.fault
    if row.args is None or row.kwargs is None:
        return "its arguments could not be stored, so others cannot be written in their place"
    if not (row.args.startswith("[") and row.kwargs.startswith("{")):
        return "its arguments are sealed by the application, and only the application can write others"
    return None


async def enqueue_again(store: Store, row: TaskRow, args_text: str, kwargs_text: str, now: int) -> str:
    """Enqueue another task like this one, with arguments in JSON: an array and an object. Return its id.

    It has the same function, queue, priority, tags, policy and options, and is due now; it has no key, no schedule and
    no workflow. If the arguments do not fit the function, it fails at its start, and says so. Raises `ArgumentError`
    if they are no such JSON or too large, or `why_not_enqueued_again` gives a reason.
    """
    if (reason := why_not_enqueued_again(row)) is not None:
        raise ArgumentError(f"task {row.task_id} cannot be enqueued again: {reason}")
    args, kwargs = arguments_of_text(args_text, kwargs_text)
    new = _like(row, new_task_id(), args, kwargs, now)
    # A first try may have arrived without an answer. Nobody else has the id.
    report = await patiently(lambda: store.commit([TaskWrite(new, None)]))
    if report.rejected:
        raise StoreError(f"the task cannot be stored: {report.rejected[new.task_id]}")
    return new.task_id


def _like(row: TaskRow, task_id: str, args: str, kwargs: str, now: int) -> TaskRow:
    blank: dict[str, Any] = dict.fromkeys(TaskRow._fields)
    blank |= dict.fromkeys(("retry_count", "start_count", "crash_count", "snooze_count", "is_workflow_task"), 0)
    blank |= dict.fromkeys(("sent_at", "enqueued_at", "created_at", "updated_at"), now)
    return TaskRow(
        **blank
        | {name: getattr(row, name) for name in _SAME}
        | {"task_id": task_id, "status": TaskStatus.PENDING.value, "args": args, "kwargs": kwargs}
        | {"task_options": _declared(options_of(row.task_options))}
    )


def _declared(options: Mapping[str, Any]) -> str:
    """Return the options of a task that stands in the file alone, and so is persisted."""
    return dumps({**{name: each for name, each in options.items() if name not in _OF_ONE_CALL}, "persist": True})


# Workflows.


async def act_on_workflow(store: Store, action: str, workflow_id: str, clock: Clock) -> tuple[bool, str]:
    """Do "pause", "resume" or "cancel" to a workflow. Return whether there was anything to do, and its status now.

    The status of a workflow that was deleted is "gone".
    """
    verbs: dict[str, Callable[[str, int], Awaitable[object]]] = {
        "pause": store.pause_workflow,
        "resume": store.resume_workflow,
        "cancel": store.cancel_workflow,
    }
    advance = await patiently(lambda: verbs[action](workflow_id, clock.now_us()))
    row = await store.fetch_workflow(workflow_id)
    return advance is not None, "gone" if row is None else row.status


def told_of_workflow(action: str, status: str) -> str:
    """Return what has become of a workflow to which `act_on_workflow` has done something."""
    if action == "cancel":
        is_ended = status == "CANCELLED"
        return "is cancelled" if is_ended else "was asked to stop, and ends with what still runs of it"
    return "is paused" if action == "pause" else "goes on"


def failed_tasks(view: WorkflowView) -> dict[str, int]:
    """Return the tasks of the failed nodes with the counts of their starts, those in child workflows too."""
    found = {}
    for node in view.nodes:
        task = None if node.task_id is None else view.tasks.get(node.task_id)
        if node.status == "FAILED" and node.task_id is not None and task is not None:
            found[node.task_id] = task.start_count
    for child in view.children.values():
        found |= failed_tasks(child)
    return found


async def retry_workflow(store: Store, failed: Mapping[str, int], clock: Clock) -> list[str]:
    """Put these `failed_tasks` back, and return the ids of those for which that was possible."""
    done: list[str] = []
    task_ids = list(failed)
    for start in range(0, len(task_ids), PAGE):
        rows = await store.fetch_ids(task_ids[start : start + PAGE])
        # The node has failed where the task is COMPLETED and nobody has its value.
        able = [row for key, row in rows.items() if not why_not_again(row, force=row.start_count == failed[key])]
        done += sorted(await patiently(partial(retry_stored, store, able, clock.now_us())))
    return done
