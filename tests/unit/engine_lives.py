"""Makes live tasks, and a clock, for tests of single modules of the engine: no manager runs, no time passes."""

from collections.abc import Callable
from itertools import count
from typing import Any

from taskmanager import TaskManager
from taskmanager.engine.words.attempt import Attempt, SlotKeeper, Surroundings
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.model.states import TaskStatus

_numbers = count(1)


class Ticks:
    """Wall time that a test sets, in microseconds; elapsed time goes with it, but for a step."""

    def __init__(self) -> None:
        self.now = 1_000
        self._stepped_us = 0

    def step(self, by_us: int) -> None:
        """The wall clock is set, and no time passes."""
        self.now += by_us
        self._stepped_us += by_us

    def now_us(self) -> int:
        return self.now

    def elapsed_s(self) -> float:
        return (self.now - self._stepped_us) / 1_000_000


def definition_of(fn: Callable[..., Any] | None = None, **options: Any) -> Definition:
    """What a manager makes of a function: by default persisted, async, without retries."""

    async def work(item: object = None) -> object:
        return item

    given: dict[str, Any] = {"name": "work", "persist": True} | options
    definition, _ = TaskManager("never-opened.db").task(**given)(fn or work).bound()
    return definition


WORK = definition_of()
LIGHT = definition_of(persist=False)


def new_live(definition: Definition = WORK, *, task_id: str = "", priority: int = 50, now: int = 1_000) -> LiveTask:
    """A task as the intake makes it, of instance `me`."""
    live = LiveTask(definition, task_id or f"t{next(_numbers)}", now)
    live.priority = priority
    live.args_text, live.kwargs_text, live.owner = "[]", "{}", "me"
    return live


def around(keeper: SlotKeeper) -> Surroundings:
    """The surroundings of attempts whose progress nobody saves."""
    return Surroundings(keeper, lambda _: None, Ticks().now_us)


def running(live: LiveTask, keeper: SlotKeeper) -> Attempt:
    """Its next attempt."""
    live.status, live.start_count, live.started_at = TaskStatus.RUNNING, live.start_count + 1, 2_000
    return Attempt(live, around(keeper))
