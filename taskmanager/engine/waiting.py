"""A task that waits for the end of a task: what it waits for, and whether that could ever come.

A task that awaits its own handle, or one that waits for it in turn, would wait for ever. Told is what is certain: a
wait without a time limit, by the task itself or through `asyncio.gather`. A wait in something that the task has begun
beside itself need not keep it from ending, and what runs in another instance is not known here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from taskmanager.engine.attempt import Attempt, current
from taskmanager.model.errors import ConfigurationError


def running_attempt() -> Attempt | None:
    """The attempt that the calling code belongs to, as long as that lasts."""
    attempt = current.get(None)
    return attempt if isinstance(attempt, Attempt) and not attempt.is_over else None


def refuse_inside(keeper: object, call: str, instead: str) -> None:
    """Raise `ConfigurationError` in a task of the manager whose slots `keeper` gives: it would wait for that task."""
    attempt = running_attempt()
    if attempt is not None and attempt.keeper is keeper:
        raise ConfigurationError(f"{call} inside task {attempt.task_name} would wait for that task; {instead}")


@asynccontextmanager
async def lent_slot(task_id: str | None, running: Mapping[str, Attempt], *, is_bounded: bool) -> AsyncIterator[None]:
    """While a block waits for a task (or None, for something else), the slot of the task that it belongs to is lent.

    Raises `ConfigurationError` where that would be for ever.
    """
    attempt = running_attempt()
    if attempt is None:
        yield
        return
    if task_id is not None:
        _check(attempt, task_id, running, is_bounded=is_bounded)
    if not attempt.live.definition.is_async:
        yield
        return
    waiter = None if is_bounded else asyncio.current_task()
    attempt.begin_wait(waiter, task_id)
    try:
        yield
    finally:
        await attempt.end_wait(waiter)


def _check(attempt: Attempt, task_id: str, running: Mapping[str, Attempt], *, is_bounded: bool) -> None:
    if task_id == attempt.task_id:
        raise ConfigurationError(
            f"task {attempt.task_name} ({task_id}) awaits its own handle, and would wait for ever; let it return, and "
            "await the handle outside of it"
        )
    if is_bounded or not attempt.is_held_up_by(asyncio.current_task()):
        return
    seen, waited_for = {task_id}, [task_id]
    while waited_for:
        other = running.get(waited_for.pop())
        awaited = () if other is None else other.surely_awaited()
        if attempt.task_id in awaited:
            raise ConfigurationError(
                f"task {attempt.task_name} ({attempt.task_id}) awaits task {task_id}, which waits for it, so that "
                "neither would ever end; let one of them return what the other needs"
            )
        waited_for.extend(each for each in awaited if each not in seen)
        seen.update(awaited)
