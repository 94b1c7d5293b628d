"""Which task an idempotency key names: what a call finds, what the loop decides, and what a row of the store says.

A call may come from any thread, so it only finds the task of its key that is in memory. What it means beside that task
is decided on the loop, once it is accepted (`answer`). Where memory knows no task, the store does: the call's first
write inserts its row, as a waiting or as a starting one, and does nothing if the key has a row. That row is the answer
then (`answer_of`).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import count
from typing import Final

from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.outcome import extra_of
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow, UnreadableRow
from taskmanager.model.states import TaskStatus

KEYED_WINDOW: Final = 10_000
"""Ended memory-only tasks with an idempotency key that are remembered, so that their key still finds them."""
RERUN_WINDOW: Final = 100_000
"""How many tasks that were put back are remembered. The handles of other tasks report the end that they know."""


class Answer(Enum):
    """What a call of a key means."""

    NEW = "the key has no other task"
    SAME = "the task that the key has"
    SUCCESSOR = "a run after that of the task that the key has, which ended badly"
    ASK = "what the store says"


def _has_ended_badly(status: TaskStatus) -> bool:
    return status.is_terminal and status is not TaskStatus.COMPLETED


def answer(live: LiveTask, here: LiveTask | None) -> Answer:
    """Say what a call means, beside the task of its key that is in memory."""
    if here is None:
        return Answer.ASK if live.is_persisted else Answer.NEW
    if _has_ended_badly(here.status) and here.successor is None:
        return Answer.SUCCESSOR
    return Answer.SAME


def answer_of(row: TaskRow | None) -> Answer:
    """Say what a call means whose first write found this row of its key, or found one that was deleted meanwhile."""
    if row is None:
        return Answer.ASK
    if _has_ended_badly(TaskStatus(row.status)) and not isinstance(row, UnreadableRow):
        return Answer.SUCCESSOR
    return Answer.SAME


def tell_other_arguments(live: LiveTask, sha: str | None, holder: str) -> None:
    """Log that a call means a task which has other arguments."""
    if sha != live.enqueue_sha:
        text = "idempotency key %r of task %s is held by %s with other arguments; the new ones are ignored"
        logger.info(text, live.idempotency_key, live.definition.name, holder, extra=extra_of(live))


def merge_waiters(first: LiveTask, live: LiveTask) -> None:
    """Let those who wait for the call of `live` wait for `first`, which it means."""
    live.is_duplicate = live.is_published = True
    live.is_unconfirmed = False
    first.waiters_list().extend(live.waiters or ())
    first.save_waiters_list().extend(live.save_waiters or ())
    live.waiters = live.save_waiters = None


class Keys:
    """The newest task in memory of each key of one manager, for all its starts. Any thread may use it.

    It also remembers which tasks were put back after their end, by their key or by `retry`, so that handles do not
    report the end of an earlier run.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """The intake holds it for a whole call: a call may interrupt another one in its own thread."""
        self._newest: dict[str, LiveTask] = {}
        self._ended: OrderedDict[str, LiveTask] = OrderedDict()
        """Of memory-only tasks."""
        self._reruns: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<Keys {len(self._newest)} in memory, {len(self._ended)} of them ended>"

    def newest(self, ended: LiveTask) -> LiveTask | None:
        """Return the task in memory that an ended one's key names by now, or None if only the store can know.

        The key may have been enqueued anew, and the store may not have told yet that this is a retry.
        """
        return None if self.has_run_again(ended) else self._newest.get(ended.task_id, ended)

    def note_rerun(self, task_id: str, start_count: int, run: LiveTask | None = None) -> None:
        """Note that a run with at most this many starts is not the latest one any more, unless it is `run`."""
        number = next(self._numbers)
        if run is not None:
            run.run_number = number
        before, _ = self._reruns.pop(task_id, (0, 0))
        self._reruns[task_id] = max(before, start_count), number
        while len(self._reruns) > RERUN_WINDOW:
            self._reruns.popitem(last=False)

    def has_run_again(self, live: LiveTask) -> bool:
        """Whether an ended task was put back since then, as far as this instance knows.

        The start count alone does not tell: a run may be cancelled before it starts, and the next one too.
        """
        start_count, number = self._reruns.get(live.task_id, (-1, 0))
        return start_count >= live.start_count and number > live.run_number

    # The call.

    def find(self, live: LiveTask) -> LiveTask | None:
        """Return the task in memory that the call of `live` means, if its key names one that still counts."""
        existing = self._newest.get(live.task_id)
        if existing is None:
            return None
        if _has_ended_badly(existing.status):
            # Where its end is still on the way to the store, the engine lets the new call go there after it.
            live.start_count = existing.start_count
            if not live.is_persisted:  # of others the row decides
                live.is_duplicate, live.sent_at = True, existing.sent_at
            return None
        tell_other_arguments(live, existing.enqueue_sha, existing.task_id)
        return existing

    def give(self, live: LiveTask) -> None:
        """The key names this call from now on: nothing was found."""
        if live.task_id in self._newest or live.task_id in self._reruns:  # it has ended, or it would have been found
            self.note_rerun(live.task_id, live.start_count, live)
        self._newest[live.task_id] = live

    # The life of the task.

    def means(self, first: LiveTask) -> None:
        """The key names this task after all."""
        self._newest[first.task_id] = first

    def claimed(self, live: LiveTask) -> None:
        """A row was claimed: from now on its key is found here."""
        count_before = live.start_count - (live.status is TaskStatus.RUNNING)  # without the start by the claim
        if count_before or live.enqueued_at > live.sent_at:  # else it was never put back
            self.note_rerun(live.task_id, live.start_count, live)
        if live.idempotency_key is not None:
            with self.lock:
                self._forget_end(live.task_id)
                self._newest.setdefault(live.task_id, live)

    def left(self, live: LiveTask) -> None:
        """The store answers for the key from now on."""
        if live.idempotency_key is not None:
            with self.lock:
                if self._newest.get(live.task_id) is live:
                    del self._newest[live.task_id]

    def ended(self, live: LiveTask) -> None:
        """A task has ended for good: persisted ones are found in the store, memory-only ones in a window here."""
        with self.lock:
            if self._newest.get(live.task_id) is not live:
                return
            if live.is_persisted:
                del self._newest[live.task_id]
                return
            self._ended[live.task_id] = live
            if len(self._ended) > KEYED_WINDOW:
                self._forget_end(next(iter(self._ended)))

    def put_back(self, task_id: str, start_count: int) -> None:
        """The task was put back through the store, which answers for its key from now on."""
        self.note_rerun(task_id, start_count)
        with self.lock:
            self._forget_end(task_id)

    def cancelled_unstarted(self, live: LiveTask) -> None:
        """A call was taken back before any start: another call of the key will be a later run."""
        if live.idempotency_key is not None:
            self._newest.pop(live.task_id, None)
            self.note_rerun(live.task_id, 0, live)

    def forget_all(self) -> None:
        """A start has ended: the store answers for every key, and memory-only tasks are gone."""
        self._newest.clear()
        self._ended.clear()

    def forked(self, *, is_started: bool) -> None:
        """This is a child now. What was held for a start is the parent's."""
        self.lock = threading.RLock()  # another thread of the parent may have held the old one
        if not is_started:
            self._newest.clear()

    # Purges.

    def purgeable(self, is_meant: Callable[[LiveTask], bool], cutoff: int | None) -> list[LiveTask]:
        """Return the memory-only tasks with a key whose records a purge of such tasks with this cutoff deletes."""
        with self.lock:
            ended = list(self._ended.values())
        return [
            live
            for live in ended
            if is_meant(live) and (cutoff is None or (live.completed_at or live.failed_at or live.updated_at) < cutoff)
        ]

    def purged(self, ended: Iterable[LiveTask]) -> None:
        """Their records were deleted, and their keys with them."""
        with self.lock:
            for live in ended:
                if self._ended.get(live.task_id) is live:
                    self._forget_end(live.task_id)

    def _forget_end(self, task_id: str) -> None:
        """Let the key of a memory-only task forget this end. If the task runs again by now, the key keeps that run."""
        ended = self._ended.pop(task_id, None)
        if ended is not None and self._newest.get(task_id) is ended:
            del self._newest[task_id]
