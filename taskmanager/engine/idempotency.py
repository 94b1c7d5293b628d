"""Two calls with one idempotency key in one memory: the second runs after the first, or means the same task."""

from taskmanager.engine.live_task import LiveTask
from taskmanager.model.states import TaskStatus


def becomes_successor(here: LiveTask, live: LiveTask) -> bool:
    """Whether `live` runs after `here`: that one has ended badly, and its end is on the way to the store."""
    ended_badly = here.status.is_terminal and here.status is not TaskStatus.COMPLETED
    if ended_badly and here.successor is None:
        here.successor = live
        return True
    return False


def merge_waiters(first: LiveTask, live: LiveTask) -> None:
    """`first` is what the call of `live` meant: its row was claimed, or a thread enqueued it, a moment ago."""
    live.is_duplicate = live.is_published = True
    first.waiters_list().extend(live.waiters or ())
    first.save_waiters_list().extend(live.save_waiters or ())
    live.waiters = live.save_waiters = None
