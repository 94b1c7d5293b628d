"""Fairness between instances that share one limit (`QueueConfig(scope="file")`) and know different functions.

The instance that ends a task knows at once that a place is free; the others see it at their next poll. So an instance
with a backlog would take its own place again and again, while the best task of the queue, which only others can run,
never finds one free. Therefore it leaves such a place to them for one poll, at most once a second, so that a place
that nobody takes costs little.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from taskmanager.codec.values import loads
from taskmanager.engine.engine import Engine
from taskmanager.engine.queue_state import QueueState
from taskmanager.store.protocol import FreeQueue, InstanceRow

MIN_POLL_S: Final = 0.25
"""How often the others poll the store, unless this instance is configured to poll less often: then so are they."""
KEEP_S: Final = 1.0
"""How long an instance takes its own places again before it yields one."""


class Fairness:
    """Decides, for one instance, when a place is left to the others."""

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
        theirs = {each for each in unknown if any(_can_run(instance, each) for instance in instances)}
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


def _can_run(instance: InstanceRow, task_name: str) -> bool:
    """By what it says of itself; another version may have written that."""
    try:
        document: Any = loads(instance.live_tasks or "{}")
    except ValueError:
        return False
    if not isinstance(document, dict) or document.get("is_stopping") is True or "task_names" not in document:
        return False
    known = document["task_names"]
    return known is None or (isinstance(known, list) and task_name in known)
