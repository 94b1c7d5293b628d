"""Free rows that a write of this instance has put into the store, where any instance may claim them.

A retry, a schedule, a failure or a workflow puts such a row there. This instance tries to claim it soon, `join` waits
for its task, and listeners are told of it.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.life import Life
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import Ending
from taskmanager.engine.words.timers import Recheck
from taskmanager.engine.words.waiters import Follower, Waiters, resolve
from taskmanager.model.record import TaskRow
from taskmanager.model.result import TaskResult
from taskmanager.model.states import TaskStatus
from taskmanager.store.on_failure import enqueued_by
from taskmanager.store.workflow_protocol import Advance, FreeTask

T = TypeVar("T")


class FreeRows:
    """Sees to such rows for one engine: they are claimed soon, waited for, and told."""

    def __init__(
        self, life: Life, dispatcher: Dispatcher, follower: Follower, definitions: Mapping[str, Definition]
    ) -> None:
        self._life, self._dispatcher, self._follower, self._definitions = life, dispatcher, follower, definitions
        self._look_waiters: Waiters = []
        self.look_count = 0
        """How many looks at the store are over."""
        self.awaited_count = 0
        """How many calls wait for what others do with rows, and want to hear of it soon."""

    def will_put(self, task_ids: Iterable[str], *, is_once: bool = False) -> None:
        """Note that a write will put these rows there. One may be claimed here before the write is answered.

        With `is_once`, a task of such an id is made once at most, however often that is written.
        """
        if (listeners := self._life.listeners) is not None:
            listeners.made(task_ids, is_once=is_once)

    def note_put(self, row: TaskRow, *, is_ours: bool = True) -> None:
        """Note that a row stands in the store now. `is_ours` is False if another write than ours has put it there."""
        if (listeners := self._life.listeners) is not None:
            listeners.put_made(row, is_ours=is_ours)
        if is_ours:
            self._expect(row)

    def note_end(self, row: TaskRow, result: TaskResult[Any]) -> None:
        """Note that a free row has ended by a write of this instance: tell its listeners and waiters."""
        if (listeners := self._life.listeners) is not None:
            listeners.ended(row)
        self._follower.notice(row.task_id, Ending(TaskStatus(row.status), result))

    def note_failure(self, row: TaskRow) -> None:
        """Note that this row is in the store. If it has FAILED, the task that its failure enqueues stands there too."""
        then = enqueued_by(row)
        if then is not None:
            self._expect(then)

    def note_advance(self, advance: Advance) -> None:
        """Note that a write has let workflows go on: their next tasks are free rows now, and some have ended."""
        if (listeners := self._life.listeners) is not None:
            listeners.readied(each.task_id for each in advance.readied)
        for each in advance.readied:
            self._expect(each)
        if self._follower.workflows_ended(advance.ended):
            self._life.wants_claim.set()  # the next look tells their waiters

    async def answer_of(self, write: Awaitable[T]) -> T:
        """Return the answer of a write. One without an answer may have arrived: the next look reads what followed."""
        is_answered = False
        try:
            found = await write
            is_answered = True
            return found
        finally:
            if not is_answered:
                self._life.whole_looks_wanted += 1
                self.look()

    def look(self) -> None:
        """Let the next look come soon, and read all that somebody waits for.

        It would not read that by itself: the version of the store tells of the writes of others, and not of our own.
        """
        self._follower.needs_look = True
        self._life.wants_claim.set()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Let the store be looked at soon after others have written, as long as the block lasts."""
        self.awaited_count += 1
        self._follower.begins_to_wait()
        try:
            yield
        finally:
            self.awaited_count -= 1

    async def next_look(self, within_s: float) -> bool:
        """Wait for the next look at the store, `within_s` at most, or until there will be none.

        Return whether it has claimed anything.
        """
        look: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._look_waiters.append(look)
        try:
            await Recheck(within_s).wait(look)
        finally:
            if look in self._look_waiters:
                self._look_waiters.remove(look)
        return look.done() and look.result()

    def looked(self, *, has_claimed: bool) -> None:
        """Tell those who wait for a look that one is over, or that there will be none."""
        self.look_count += 1
        waiters, self._look_waiters = self._look_waiters, []
        resolve(waiters, has_claimed)

    def _expect(self, row: TaskRow | FreeTask) -> None:
        """Claim a row soon, and let `join` wait for its task.

        The claim may have come before the answer of the write, so that the task is in memory already. But that may also
        be the task as it was before its row was taken away, so nothing is concluded from it.
        """
        if row.task_name not in self._definitions or self._life.is_stopping:
            return
        self._follower.taken_away(row.task_id, row.tags)
        self._dispatcher.queue(row.queue_name).leave(row.priority)
        self._life.wants_claim.set()
