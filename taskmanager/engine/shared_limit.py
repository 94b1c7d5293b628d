"""A queue whose limit holds for all instances on the file (`QueueConfig(scope="file")`).

The place of a task is its row: a claim counts the CLAIMED and RUNNING rows of the queue in its own transaction, so no
number of instances takes more than the limit together, and what a dead or frozen one holds counts until it is
recovered. Until there is a place for it, a task is a free row, whoever accepted it, and the best one goes first.

A task that waits for another one lends its slot to its own instance only: to the others its row is still there. So an
instance may hold more rows than places, and never runs more of them at once than it has places.
"""

from collections.abc import Iterable, Mapping

from taskmanager.engine.attempt import Attempt
from taskmanager.engine.live_task import LiveTask
from taskmanager.model.states import Lane
from taskmanager.rules.limits import Slots

_TAKES_A_PLACE = frozenset({"CLAIMED", "RUNNING"})


class SharedLimit:
    """What this instance holds of one such queue. The limit of its `slots` is what the file has granted here."""

    __slots__ = ("_granted", "_held", "is_left_to_others", "is_owed", "limit", "short_lanes", "slots")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.slots = Slots(0)
        self.is_owed = False
        """Whether something has changed since the last claim, so that the next one may find a place."""
        self.is_left_to_others = False
        """Whether nothing is claimed for a moment, so that another instance can have the place."""
        self.short_lanes: set[Lane] = set()
        """Lanes that had no room at the last claim."""
        self._granted = 0
        self._held: set[str] = set()

    def __repr__(self) -> str:
        return f"<SharedLimit {self._granted} of {self.limit}, for {len(self._held)} tasks>"

    def hold(self, task_id: str, *, is_granted: bool = True) -> None:
        """A row was claimed. One that is not granted uses the place of a task that waits for another one."""
        self._held.add(task_id)
        if is_granted:
            self._granted += 1
            self.slots.limit = (self.slots.limit or 0) + 1

    def gave_back(self, task_id: str) -> None:
        """A slot is free. One that no row stood for any more was kept by code that went on past its timeout."""
        limit = self.slots.limit or 0
        if task_id not in self._held and limit > self._granted:
            self.slots.limit = limit - 1
            self.is_owed = True

    def has_given_back(self, live: Mapping[str, LiveTask]) -> bool:
        """Whether a place is free since the last claim: a task that was held and is gone from memory has its end in
        the file.
        """
        return any(task_id not in live for task_id in self._held)

    def is_worth_a_claim(self, live: Mapping[str, LiveTask], lanes: Mapping[Lane, Slots]) -> bool:
        """Whether this instance knows of room that it has not asked for yet."""
        if self.is_left_to_others:
            return False
        if self.is_owed or self.has_given_back(live):
            return True
        if self.short_lanes:
            return any(lanes[lane].has_room for lane in self.short_lanes)
        return len(self.lenders(live)) > self.borrowed

    def count(self, live: Mapping[str, LiveTask], abandoned: Iterable[Attempt]) -> int:
        """Forget the places of what has left them; how many stuck attempts of the queue still take one, unknown to the
        file.
        """
        self._held = {task_id for task_id in self._held if _takes_a_place(live.get(task_id))}
        self._granted = min(self._granted, len(self._held))
        stuck = sum(each.has_slot and each.live.task_id not in self._held for each in abandoned)
        self.slots.limit = self._granted + stuck
        return stuck

    @property
    def borrowed(self) -> int:
        """Tasks held here beyond the places that the file has granted."""
        return len(self._held) - self._granted

    def lenders(self, live: Mapping[str, LiveTask]) -> list[str]:
        """Tasks held here that run and do not use their place, because they wait for others."""
        return [task_id for task_id in self._held if _lends(live.get(task_id))]

    def held_of(self, task_ids: Iterable[str]) -> int:
        """How many of these are held."""
        return len(self._held.intersection(task_ids))

    def waiting_in(self, lane: Lane, live: Mapping[str, LiveTask]) -> int:
        """Tasks of a lane that have a place, and wait for their slot."""
        found = (live.get(task_id) for task_id in self._held)
        return sum(each is not None and each.is_waiting and each.definition.lane == lane for each in found)


def _takes_a_place(live: LiveTask | None) -> bool:
    """By what the file says of the task; by what it will say where the file was lost and is written anew."""
    if live is None:
        return False
    return (live.status if live.saving.committed is None else live.saving.committed.status) in _TAKES_A_PLACE


def _lends(live: LiveTask | None) -> bool:
    return _takes_a_place(live) and live is not None and live.attempt is not None and not live.attempt.has_slot
