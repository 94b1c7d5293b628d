"""Cancels or frees the tasks that memory still holds at the end of a start, and wakes their waiters."""

import asyncio
from collections.abc import AsyncIterator

from taskmanager.engine.engine import Engine
from taskmanager.engine.inbox import HELPING
from taskmanager.engine.live_task import GOES_ON, LiveTask
from taskmanager.engine.phases import ENDED, STARTING
from taskmanager.model.states import BuiltInTaskCode


async def cancel_memory_only(engine: Engine) -> None:
    """Cancel the memory-only tasks that wait, and count them in `refused_count`."""
    async for live in _in_helpings(engine):
        if live.is_waiting and not live.is_persisted:
            before_what = "the next retry" if live.start_count else "the task started"
            engine.cancel_waiting(live, BuiltInTaskCode.MANAGER_STOPPED, f"the manager stopped before {before_what}")
            engine.refused_count += 1


async def release_waiting(engine: Engine) -> None:
    """Free the persisted tasks that wait, and those whose start is not in the store yet."""
    async for live in _in_helpings(engine):
        if not live.is_persisted or engine.runner.is_still_executing(live.task_id):
            continue  # it must not run beside its old thread: recovery takes it when that thread has ended
        if live.is_waiting and not live.is_awaiting_store:
            _release(engine, live)
        elif live.phase is STARTING and live.saving.committed is None and not live.is_unconfirmed:
            engine.settlement.unbegin(live)
            _release(engine, live)


async def _in_helpings(engine: Engine) -> AsyncIterator[LiveTask]:
    """Yield all that is in memory, one helping in each turn of the loop. Meanwhile running tasks go on and batches are
    written: a stop gives up a writer that has written nothing for some seconds.
    """
    for number, live in enumerate(list(engine.live.values()), 1):
        yield live
        if number % HELPING == 0:
            await asyncio.sleep(0)


def _release(engine: Engine, live: LiveTask) -> None:
    engine.settlement.release(live)
    engine.dispatcher.move(live, ENDED)
    engine.writer.mark(live)


def tell_everybody(engine: Engine) -> None:
    """Wake all waiters: tasks that did not end here go on at the next start, and no more room comes up here."""
    while engine.live:  # dropping a task of a key may bring in the next task of that key
        for live in list(engine.live.values()):
            if live.ending is None:
                live.ending = GOES_ON
            engine.publish(live)
            engine.drop(live)
    engine.follower.end_all(GOES_ON)
    engine.dispatcher.wake_room_waiters()
