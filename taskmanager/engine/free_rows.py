"""Rows that a write of this instance has made, free for anybody: they are claimed soon, and count for `join`."""

from collections.abc import Awaitable, Mapping
from typing import TypeVar

from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.life import Life
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.waiters import Follower
from taskmanager.model.record import TaskRow
from taskmanager.model.states import TaskStatus
from taskmanager.store.on_failure import enqueued_by
from taskmanager.store.workflow_protocol import Advance

T = TypeVar("T")


class FreeRows:
    """Hears of such rows, for one engine."""

    def __init__(
        self, life: Life, dispatcher: Dispatcher, follower: Follower, definitions: Mapping[str, Definition]
    ) -> None:
        self._life, self._dispatcher, self._follower, self._definitions = life, dispatcher, follower, definitions

    def note_failure(self, row: TaskRow) -> None:
        """A task is in the store as FAILED: what that has enqueued stands there too."""
        then = enqueued_by(row) if row.status == TaskStatus.FAILED else None
        if then is not None:
            self._expect(then.task_id, then.task_name, then.queue_name, then.priority, then.tags)

    def note_advance(self, advance: Advance) -> None:
        """Workflows have gone on by a change that is in the store, where their next tasks are. Some have ended."""
        if (listeners := self._life.listeners) is not None:
            listeners.made(each.task_id for each in advance.readied)
        for each in advance.readied:
            self._expect(each.task_id, each.task_name, each.queue_name, each.priority)
        if self._follower.workflows_ended(advance.ended):
            self._life.wants_claim.set()  # who waits is told by the next look

    async def answer_of(self, write: Awaitable[T]) -> T:
        """Await a write. One without an answer may have arrived, and what has followed from it is looked for then."""
        is_answered = False
        try:
            found = await write
            is_answered = True
            return found
        finally:
            if not is_answered:
                self._life.owes_look = True
                self.look()

    def look(self) -> None:
        """Let what is waited for be read soon: our own writes do not change the version that tells of others'."""
        self._follower.needs_look = True
        self._life.wants_claim.set()

    def _expect(self, task_id: str, task_name: str, queue_name: str, priority: int, tags: str | None = None) -> None:
        if task_name not in self._definitions or self._life.is_stopping:
            return
        self._follower.taken_away(task_id, tags)
        self._dispatcher.queue(queue_name).leave(priority)
        self._life.wants_claim.set()
