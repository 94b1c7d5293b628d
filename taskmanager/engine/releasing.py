"""Cancels or frees the tasks that memory still holds at the end of a start, and wakes their waiters."""

from taskmanager.engine.engine import Engine
from taskmanager.engine.live_task import GOES_ON, LiveTask, Phase
from taskmanager.model.states import BuiltInTaskCode


def cancel_memory_only(engine: Engine, before_what: str) -> int:
    """Cancel the memory-only tasks that wait. Return how many there were."""
    waiting = [live for live in engine.live.values() if live.is_waiting and not live.is_persisted]
    for live in waiting:
        engine.cancel_waiting(live, BuiltInTaskCode.MANAGER_STOPPED, f"the manager stopped before {before_what}")
    return len(waiting)


def release_waiting(engine: Engine) -> None:
    """Free the persisted tasks that wait, and those whose start is not in the store yet."""
    for live in [each for each in engine.live.values() if each.is_persisted]:
        if engine.runner.is_still_executing(live.task_id):
            continue  # it must not run beside its old thread: recovery takes it when that thread has ended
        if live.is_waiting and not live.is_awaiting_store:
            engine.dispatcher.left_waiting(live)
            _release(engine, live)
        elif live.phase is Phase.STARTING and live.saving.committed is None:
            engine.settlement.unbegin(live)
            _release(engine, live)


def _release(engine: Engine, live: LiveTask) -> None:
    engine.settlement.release(live)
    live.phase = Phase.ENDED
    engine.writer.mark(live)


def tell_everybody(engine: Engine) -> None:
    """Wake all waiters: tasks that did not end here go on at the next start, and no more room comes up here."""
    while engine.live:  # dropping a task of a key may bring in the next task of that key
        live = next(iter(engine.live.values()))
        if live.ending is None:
            live.ending = GOES_ON
        engine.publish(live)
        engine.drop(live)
    engine.follower.end_all(GOES_ON)
    engine.dispatcher.wake_room_waiters()
