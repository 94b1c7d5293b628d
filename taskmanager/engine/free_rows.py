"""Rows that a write of this instance has made, free for anybody: they are claimed soon, and count for `join`."""

from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.life import Life
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.waiters import Follower, Waiters, resolve, wait_in
from taskmanager.model.record import TaskRow
from taskmanager.model.states import TaskStatus
from taskmanager.store.on_failure import enqueued_by
from taskmanager.store.workflow_protocol import Advance, FreeTask

T = TypeVar("T")


class FreeRows:
    """Hears of such rows, for one engine."""

    def __init__(
        self, life: Life, dispatcher: Dispatcher, follower: Follower, definitions: Mapping[str, Definition]
    ) -> None:
        self._life, self._dispatcher, self._follower, self._definitions = life, dispatcher, follower, definitions
        self._look_waiters: Waiters = []

    def will_put(self, task_ids: Iterable[str]) -> None:
        """A write is on its way that puts these rows there. One may be claimed here before the answer comes."""
        if (listeners := self._life.listeners) is not None:
            listeners.made(task_ids)

    def put(self, row: TaskRow, *, is_ours: bool = True) -> None:
        """A row stands there that a write of ours was to put there. It is another's if that was not the one."""
        if (listeners := self._life.listeners) is not None:
            listeners.put_made(row, is_ours=is_ours)
        if is_ours:
            self._expect(row)

    def note_failure(self, row: TaskRow) -> None:
        """A task is in the store as FAILED: what that has enqueued stands there too."""
        then = enqueued_by(row) if row.status == TaskStatus.FAILED else None
        if then is not None:
            self._expect(then)

    def note_advance(self, advance: Advance) -> None:
        """Workflows have gone on by a change that is in the store, where their next tasks are. Some have ended."""
        if (listeners := self._life.listeners) is not None:
            listeners.readied(each.task_id for each in advance.readied)
        for each in advance.readied:
            self._expect(each)
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

    async def next_look(self) -> bool:
        """Return after the next look at the store, or the last one of all: whether it has claimed anything."""
        return bool(await wait_in(self._look_waiters))

    def has_looked(self, *, has_claimed: bool) -> None:
        """A look is over, or there will be none any more."""
        waiters, self._look_waiters = self._look_waiters, []
        resolve(waiters, has_claimed)

    def _expect(self, row: TaskRow | FreeTask) -> None:
        """Claim it soon, and let `join` wait for it.

        That may have been faster than the answer. But what is in memory may also be the task as it was before its row
        was taken away, so nothing is concluded from that.
        """
        if row.task_name not in self._definitions or self._life.is_stopping:
            return
        self._follower.taken_away(row.task_id, row.tags)
        self._dispatcher.queue(row.queue_name).leave(row.priority)
        self._life.wants_claim.set()
