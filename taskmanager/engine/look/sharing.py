"""Shares work with the other instances on the file: what an idle one takes over, and which places are left to others.

What is taken over is started in the same transaction, so nothing of it ever waits here, and nothing can go back. The
instance that had the task hears of it when it looks at its waiting rows, or at the latest when its own start is
refused. It drops the task then; whoever waits for it follows the row.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from taskmanager.codec.values import loads
from taskmanager.engine.choose.queue_state import QueueState
from taskmanager.engine.engine import Engine
from taskmanager.engine.words.instance import EARLY_S
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import READY
from taskmanager.model.clock import SECOND_US
from taskmanager.model.record import TaskRow
from taskmanager.store.protocol import FreeQueue, InstanceRow, WaitingLevel

MIN_POLL_S: Final = 0.25
"""How often the others poll the store, unless this instance is configured to poll less often: then so are they."""
KEEP_S: Final = 1.0
"""How long an instance takes its own places again before it yields one."""
MAX_LEVELS: Final = 1_000
"""Queues, with each of their priorities, that one look for waiting tasks takes into account."""
LOOK_SHARE: Final = 20
"""A look for what waits at others takes one part in so many of the time at most. On a server it reads all that has
waited there since the oldest open transaction: with 50,000 such rows, four looks a second took an eighth of a core.
"""
LAST_PAUSE_S: Final = 5.0
"""The longest pause that follows from that, where two looks in a row were slow: a loop may stand still for once."""
PAGE: Final = 500
PAGES_PER_LOOK: Final = 10
"""How many waiting tasks one look compares with their rows: 10 ms of the reader's thread."""


class Fairness:
    """Decides when one instance leaves a place to others that share a limit (`scope="file"`) and know other functions.

    The instance that ends a task knows at once that a place is free; the others see it at their next poll. So an
    instance with free rows would take its own place again and again, while the best task of the queue, which only
    others can run, never finds one free. Therefore it leaves such a place to them for one poll, at most once a second,
    so that a place that nobody takes costs little.
    """

    def __init__(self, engine: Engine) -> None:
        self._store, self._clock, self._live = engine.store, engine.clock, engine.live
        self._settings, self._life = engine.settings, engine.life
        self._keeps_until_s: dict[str, float] = {}
        self.unknown_here: Sequence[FreeQueue] = ()
        """Free rows that are due, of functions that this instance does not know."""

    def __repr__(self) -> str:
        return f"<Fairness to {len(self.unknown_here)} functions of others>"

    async def yields(self, queue: QueueState, names: Collection[str], others: Collection[str]) -> bool:
        """Whether a place that was given back here is left to `others`, because the best task is one of theirs."""
        shared, name = queue.shared_limit, queue.config.name
        assert shared is not None
        unknown = {each.task_name for each in self.unknown_here if each.queue_name == name}
        if not (unknown and others and shared.has_given_back(self._live)):
            return False
        if self._life.loop.time() < self._keeps_until_s.get(name, 0.0):
            return False
        instances = [each for each in await self._store.instances() if each.instance_id in others]
        theirs = {each for each in unknown if any(_can_run(instance, each, name) for instance in instances)}
        if not theirs:
            return False
        best = await self._store.best_waiting({*names, *theirs}, name, self._clock.now_us())
        if best not in theirs:
            return False
        poll_s = 1.2 * max(MIN_POLL_S, self._settings.store_poll_s)
        self._keeps_until_s[name] = self._life.loop.time() + poll_s + KEEP_S
        shared.is_left_to_others = True
        self._life.loop.call_later(poll_s, self._take_part_again, queue)
        return True

    def _take_part_again(self, queue: QueueState) -> None:
        assert queue.shared_limit is not None
        queue.shared_limit.is_left_to_others = False
        self._life.wants_claim.set()


def _can_run(instance: InstanceRow, task_name: str, queue_name: str) -> bool:
    """By what it says of itself; another version may have written that."""
    try:
        document: Any = loads(instance.live_tasks or "{}")
    except ValueError:
        return False
    if not isinstance(document, dict) or document.get("is_stopping") is True or "task_names" not in document:
        return False
    known, queues = document["task_names"], document.get("run_queues")
    return (known is None or (isinstance(known, list) and task_name in known)) and (
        queues is None or (isinstance(queues, list) and queue_name in queues)
    )


class Sharing:
    """Takes over tasks of other instances for one engine, and drops those that others have taken over from it."""

    def __init__(
        self,
        engine: Engine,
        take_over: Callable[[str, int], Awaitable[list[TaskRow]]],
        lost: Callable[[LiveTask, TaskRow], None],
    ) -> None:
        self._store, self._clock, self._identity = engine.store, engine.clock, engine.identity
        self._live, self._dispatcher, self._window = engine.live, engine.dispatcher, engine.window
        self._follower, self._settings, self._life = engine.follower, engine.settings, engine.life
        self._neighbours = engine.neighbours
        self._claim_waiting = take_over
        self._lost = lost
        self._is_at_work = False
        """Whether the last look took something over, so that there may be more."""
        self._next_look_s = self._took_s = 0.0
        self._next_due_at: float = 0
        """Nothing that waits at others is due before, unless somebody has written since."""
        self._is_news = False
        """Whether others have written since all that waits here was compared with its rows."""
        self._unchecked: Iterator[LiveTask] | None = None

    def __repr__(self) -> str:
        return f"<Sharing {'at work' if self._is_at_work else 'idle'} beside {len(self._neighbours.living)} others>"

    async def look(self, *, changed: bool) -> None:
        """Look once, in both directions. `changed`: others have written to the store."""
        if not self._neighbours.living or self._life.is_stopping:
            return
        self._is_news = self._is_news or changed
        await self._drop_lost()
        if changed:
            self._next_due_at = 0
        if self._is_idle():
            await self._take_over()

    # What others have taken from here.

    async def _drop_lost(self) -> None:
        """Compare some of what waits here with its rows, and drop what others have."""
        if self._unchecked is None:
            if not self._is_news:
                return
            self._is_news, self._unchecked = False, filter(_waits_in_the_file, list(self._live.values()))
        for _ in range(PAGES_PER_LOOK):
            page = {live.task_id: live for live in islice(self._unchecked, PAGE)}
            if not page:
                self._unchecked = None
                break
            rows = await self._store.fetch_taken(list(page), self._identity.instance_id)
            for task_id, row in rows.items():
                if page[task_id] is self._live.get(task_id) and _waits_in_the_file(page[task_id]):
                    self._lost(page[task_id], row)
        await self._follower.forget_ended()

    # What is taken over here.

    def _is_idle(self) -> bool:
        """Whether there are slots that nothing here waits for. Beside a suspect nothing is taken over."""
        if not self._life.is_up or self._dispatcher.holds_unsafe or self._settings.only_enqueues:
            return False
        is_batch_over = self._is_at_work and not self._window.taken_over
        if not is_batch_over and self._life.loop.time() < self._next_look_s - EARLY_S:
            return False
        return any(self._dispatcher.spare_slots(lane) for lane in self._dispatcher.lanes)

    async def _take_over(self) -> None:
        """Take over what has waited long enough, as far as there are slots."""
        poll_s, began_s = self._settings.store_poll_s, self._life.loop.time()
        self._is_at_work = False
        self._next_look_s = began_s + poll_s
        due_at = self._clock.now_us() - round(poll_s * SECOND_US)
        if self._next_due_at > due_at:
            return
        levels = await self._store.waiting_levels(MAX_LEVELS)
        before_s, self._took_s = self._took_s, self._life.loop.time() - began_s
        pause_s = min(LOOK_SHARE * min(before_s, self._took_s), LAST_PAUSE_S)
        self._next_look_s = began_s + max(poll_s, pause_s)
        self._next_due_at = min((each.next_due_at for each in levels), default=float("inf"))
        for queue_name in self._in_turn(levels, due_at):
            rows = await self._claim_waiting(queue_name, due_at)
            found = (self._live.get(row.task_id) for row in rows)
            self._window.taken_over += [live for live in found if live is not None]
        self._is_at_work = bool(self._window.taken_over)

    def _in_turn(self, levels: list[WaitingLevel], due_at: int) -> list[str]:
        """The queues with tasks to take over, the best one first.

        Where a limit holds for all instances, what waits is free in the file, and what is claimed has its place.
        """
        best: dict[str, tuple[int, int, int]] = {}
        for each in levels:
            if not self._settings.runs(each.queue_name):
                continue
            queue = self._dispatcher.queue(each.queue_name)
            if each.next_due_at <= due_at and not queue.is_paused and queue.shared_limit is None:
                best.setdefault(each.queue_name, (queue.config.priority, each.priority, each.next_due_at))
        return sorted(best, key=best.__getitem__)


def _waits_in_the_file(live: LiveTask) -> bool:
    """Whether it waits here for a slot, and its row says so."""
    saving = live.saving
    return live.phase is READY and saving.committed is not None and not (saving.is_dirty or saving.is_written_anew)
