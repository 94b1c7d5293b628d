"""Who goes first where a queue is limited for the whole file, and its instances know different functions.

Whoever ends a task there knows at once that a place is free; the others see it at their next look. So an instance with
a backlog would take its own place again and again, while the best task of the queue, which only others can run, waits
for a moment in which they happen to look. Therefore it leaves such a place to them for as long as they need to look,
and not more often than once a second, so that what nobody takes costs little.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from taskmanager.codec.values import loads
from taskmanager.engine.dispatch import QueueState
from taskmanager.engine.engine import Engine
from taskmanager.store.protocol import FreeQueue, InstanceRow

LEAST_LOOK_S: Final = 0.25
"""How often others look at the store, unless this instance is told to look more seldom: then they are as well."""
TURN_S: Final = 1.0
"""How long an instance takes its own places again before it lets others go first."""


class Rivals:
    """The other instances, as far as they can run what this one cannot."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_turn_s: dict[str, float] = {}
        self.strangers: Sequence[FreeQueue] = ()
        """Free rows that are due, of functions that are unknown here."""

    def __repr__(self) -> str:
        return f"<Rivals for {len(self.strangers)} functions>"

    async def go_first(self, queue: QueueState, names: Collection[str], others: Collection[str]) -> bool:
        """Whether a place that was given back here is left to `others`, because the best task is one of theirs."""
        engine, places, name = self._engine, queue.places, queue.config.name
        assert places is not None
        strangers = {each.task_name for each in self.strangers if each.queue_name == name}
        if not (strangers and others and places.has_given_back(engine.live)):
            return False
        if engine.loop.time() < self._next_turn_s.get(name, 0.0):
            return False
        instances = [each for each in await engine.store.instances() if each.instance_id in others]
        theirs = {each for each in strangers if any(_can_run(instance, each) for instance in instances)}
        if not theirs:
            return False
        best = await engine.store.best_waiting({*names, *theirs}, name, engine.clock.now_us())
        if best not in theirs:
            return False
        look_s = 1.2 * max(LEAST_LOOK_S, engine.settings.store_poll_s)
        self._next_turn_s[name] = engine.loop.time() + look_s + TURN_S
        places.is_left_to_others = True
        engine.loop.call_later(look_s, self._take_part_again, queue)
        return True

    def _take_part_again(self, queue: QueueState) -> None:
        assert queue.places is not None
        queue.places.is_left_to_others = False
        self._engine.wants_claim.set()


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
