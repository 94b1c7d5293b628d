"""Which rows of a claim are started at once, in the transaction that claims them."""

from collections.abc import Iterable
from typing import NamedTuple


class Room(NamedTuple):
    """The free slots of one lane, and the functions that run there and may be started now."""

    task_names: frozenset[str]
    slot_count: int


class Starting(NamedTuple):
    """How many rows a claim may start, in which lanes, and by which process: the `worker_` columns of the row."""

    limit: int
    rooms: tuple[Room, ...]
    worker_pid: int
    worker_hostname: str
    worker_process_name: str


def started(task_names: Iterable[str], starting: Starting) -> list[int]:
    """Return the positions of the rows that start: as many as find a slot of their lane. The best rows come first."""
    free = {name: room for room in starting.rooms for name in room.task_names}
    left = {room.task_names: room.slot_count for room in starting.rooms}
    found: list[int] = []
    for position, name in enumerate(task_names):
        if len(found) >= starting.limit:
            break
        room = free.get(name)
        if room is not None and left[room.task_names] > 0:
            left[room.task_names] -= 1
            found.append(position)
    return found
