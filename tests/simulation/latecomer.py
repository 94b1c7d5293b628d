"""Somebody who enqueues in every turn of a stop, and does not know of it: from the loop, or from another thread.

Another one enqueues now and then from a thread, from before the start on.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskmanager import ManagerStopped, QueueFull
from taskmanager.model.ids import keyed_task_id
from tests.simulation.jobs import ALWAYS

if TYPE_CHECKING:
    from tests.simulation.process import Process

MOST = 200
"""Calls during one stop: all turns of most of them."""


class Latecomer:
    """Of one process and one stop. Its tasks are persisted; some have a key, which may be the same one again."""

    def __init__(self, process: "Process", share: float = 1.0) -> None:
        self._process = process
        self._share = share
        """Of how many turns it uses."""
        self._chance = process.chance
        self._from_thread = self._chance.random() < 0.5
        self._keyed_share = self._chance.choice((0.0, 0.5, 1.0))
        self._first = self._chance.choice((0, 0, 40))
        """The turn in which it begins."""
        self._count = 0

    def begin_in_thread(self) -> None:
        """The program has begun."""
        self._process.between_turns = self._between_turns

    def begin(self) -> None:
        """The stop has begun."""
        process = self._process
        process.world.log(process, "has a latecomer", "in a thread" if self._from_thread else "in its loop")
        if self._from_thread:
            process.between_turns = self._between_turns
        else:
            process.spawn(self._in_loop(), "latecomer")

    async def _in_loop(self) -> None:
        while self._call():  # noqa: ASYNC110  # in every turn, whatever happens in it
            await asyncio.sleep(0)

    def _between_turns(self) -> None:
        if not self._call():
            self._process.between_turns = None

    def _call(self) -> bool:
        """One call, if it is time for one; whether there may be another one."""
        process, self._count = self._process, self._count + 1
        if not (process.is_alive and process.world.has_faults) or self._count > MOST:
            return False
        if self._count <= self._first or self._chance.random() >= self._share:
            return True
        task: Any = process.jobs[self._chance.choice([name for name in ALWAYS if name in process.jobs])]
        if self._chance.random() < self._keyed_share:
            task = task.with_options(idempotency_key=self._key_of(task))
        try:
            handle = task.enqueue(process.world.next_label(), "sleep:0")
        except QueueFull:
            return True
        except ManagerStopped:
            return False
        process.world.log(process, "accepts late", handle.task_id)
        process.watch(handle)
        return True

    def _key_of(self, task: Any) -> str:
        key = f"late-{self._chance.randrange(10_000)}"
        definition, _ = task.bound()
        self._process.world.checks.may_revive.add(keyed_task_id(definition.name, key))
        return key


def may_come(process: "Process") -> Callable[[], None]:
    """What a stop of this process begins with: in some, somebody who is late. The last stops are of programs that have
    nothing to do any more, and nobody would run what came in then.
    """
    comes = process.world.has_faults and process.chance.random() < 0.3
    return Latecomer(process).begin if comes else lambda: None


def may_begin_in_thread(process: "Process") -> None:
    """Some programs have a thread that enqueues, whether their manager is up or not."""
    if process.world.has_faults and process.hurry.random() < 0.15:
        Latecomer(process, 0.1).begin_in_thread()
