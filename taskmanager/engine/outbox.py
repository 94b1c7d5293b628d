"""What is to be written, in the order in which it matters.

Changes first: a start holds a slot until it is committed, and an end has waiters. Then tasks that were only accepted,
which may wait for `commit_interval`, and are often started before that, so that one row is written instead of two. Then
the history of memory-only tasks.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from taskmanager.engine.live_task import LiveTask
from taskmanager.model.record import AttemptRow

HISTORY_SLICE: Final = 16
"""Memory-only records that are worth a commit soon. A commit of hundreds holds up the loop, and every request that the
application serves beside it, for longer than many small ones do.
"""
HISTORY_BATCH: Final = 512
"""Memory-only records that are written at once."""


class Outbox:
    """Three queues, first in first out each, and how much ever went in and was settled."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._changed: deque[LiveTask] = deque()
        self._accepted: deque[LiveTask] = deque()
        self._history: deque[LiveTask] = deque()
        self.unsaved_history: dict[str, LiveTask] = {}
        self.marked_count = self.settled_count = 0
        self.doubled_count = 0
        """Changes behind one that was put back: of the same records, so there is no more unsaved than without them."""
        self.recorded_count = self.kept_count = 0

    def __repr__(self) -> str:
        return f"<Outbox {len(self._changed)} changed, {len(self._accepted)} accepted, {len(self._history)} of history>"

    @property
    def unsaved_count(self) -> int:
        """Records that the store does not hold in their newest state, those in flight included."""
        return self.marked_count - self.settled_count - self.doubled_count + self.unsaved_history_count

    @property
    def unsaved_history_count(self) -> int:
        """Those of them that are history of memory-only tasks."""
        return self.recorded_count - self.kept_count

    @property
    def has_changes(self) -> bool:
        """Whether something must not wait."""
        return bool(self._changed)

    @property
    def accepted_count(self) -> int:
        """Tasks that were only accepted, a few of which may have been started since."""
        return len(self._accepted)

    @property
    def history_count(self) -> int:
        """Ended memory-only tasks."""
        return len(self._history)

    def oldest(self) -> LiveTask | None:
        """The persisted task that has waited longest."""
        while self._changed and not self._changed[0].is_dirty:
            self._changed.popleft()
        heads = [queue[0] for queue in (self._changed, self._accepted) if queue]
        return min(heads, key=lambda live: live.unsaved_since_s, default=None)

    def attempts_in_history(self, task_id: str) -> Iterator[AttemptRow]:
        """Attempts of an ended memory-only task, of all its runs if its key was enqueued again."""
        for live in self._history:
            if live.task_id == task_id:
                yield from live.attempts_due

    # In.

    def accept(self, live: LiveTask) -> None:
        """A new task that nobody waits for."""
        live.is_dirty = True
        live.unsaved_since_s = self._elapsed_s()
        self.marked_count += 1
        self._accepted.append(live)

    def change(self, live: LiveTask) -> None:
        """A change that must not wait. A task that was only accepted so far is written with it."""
        if not live.is_dirty:
            live.is_dirty = True
            live.unsaved_since_s = self._elapsed_s()
            self.marked_count += 1
        elif live.is_urgent:
            return
        live.is_urgent = True
        self._changed.append(live)

    def hurry_all(self) -> None:
        """Nothing may wait any more."""
        while self._accepted:
            live = self._accepted.popleft()
            if live.is_dirty and not live.is_urgent:
                live.is_urgent = True
                self._changed.append(live)

    def record(self, live: LiveTask) -> None:
        """A memory-only task has ended."""
        live.is_dirty = True
        self.recorded_count += 1
        self._history.append(live)
        self.unsaved_history[live.task_id] = live

    # Out.

    def take(self, limit: int, *, with_accepted: bool, with_history: bool) -> Iterator[LiveTask]:
        """At most `limit` tasks, each clean from here on."""
        keyed_ids: set[str] = set()
        while limit and self._changed:
            live = self._changed[0]
            if not live.is_dirty:  # written already, from further ahead
                self._changed.popleft()
                continue
            if live.is_elsewhere:  # given up since
                self._changed.popleft()
                live.is_dirty = live.is_urgent = False
                self.settle(live)
                continue
            if live.idempotency_key is not None:
                if live.task_id in keyed_ids:
                    return  # one key, two tasks: the end of the first is written before the second asks for the key
                keyed_ids.add(live.task_id)
            self._changed.popleft()
            live.is_dirty = live.is_urgent = False
            yield live
            limit -= 1
        while limit and with_accepted and self._accepted:
            live = self._accepted.popleft()
            if live.is_dirty and not live.is_urgent:
                live.is_dirty = False
                yield live
                limit -= 1
        while limit and with_history and self._history:
            live = self._history.popleft()
            live.is_dirty = False
            yield live
            limit -= 1

    def put_back(self, live: LiveTask) -> None:
        """A task that was taken could not be written, and goes first.

        One that has changed since stands behind as well, perhaps behind many that came later than its first change;
        whoever flushes waits for that one, so both changes count as settled when it is written.
        """
        if live.is_persisted:
            if live.is_dirty:
                live.put_back_count += 1
                self.doubled_count += 1
            live.is_dirty = live.is_urgent = True
            self._changed.appendleft(live)
        elif live.is_dirty:
            self.settle(live)
        else:
            live.is_dirty = True
            self._history.appendleft(live)

    def settle(self, live: LiveTask) -> None:
        """A task that was taken is written, or will never be."""
        if live.is_persisted:
            self.settled_count += 1
            if live.put_back_count:
                self.settled_count += live.put_back_count
                self.doubled_count -= live.put_back_count
                live.put_back_count = 0
        else:
            self.kept_count += 1
        if self.unsaved_history and not live.is_dirty and self.unsaved_history.get(live.task_id) is live:
            del self.unsaved_history[live.task_id]

    def is_tried_again(self, live: LiveTask) -> None:
        """The answer to a task called for another write: that is the same change, and whoever flushes waits on."""
        if live.is_persisted:
            self.marked_count -= 1
            self.settled_count -= 1
        else:
            self.recorded_count -= 1
            self.kept_count -= 1

    def unsaved(self) -> Iterator[LiveTask]:
        """Every task that is not written, those of memory-only history included."""
        return chain(self._changed, self._accepted, self._history)
