"""What a sleep and an event have promised: no sleep ends before its time, and no event is lost, or received twice.

A wake-up that is lost is a task that never ends: the same event is sent again, with its key, and that wakes nobody.
"""

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from taskmanager import StepFailed, UnknownTask, current_task, sleep, step, wait_for
from taskmanager.model.states import LIVE

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

NAME = "waits"
EVENTS = {"go": 1, "on": 2}
"""One of each name, so that no other event wakes a task that this one did not wake."""
LATEST_US = 2_000_000
"""When an event is sent for the first time, at the latest."""
_OPEN = """
SELECT max(s.due_at) FROM taskmanager_steps AS s JOIN taskmanager_tasks AS t ON t.id = s.task_id
WHERE s.ended_at IS NULL AND s.due_at IS NOT NULL AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING')
"""
_TOO_EARLY = """
SELECT task_id, name FROM taskmanager_steps
WHERE waits_for IS NOT NULL AND event_id IS NULL AND ended_at < due_at
"""


def latest_due(connection: sqlite3.Connection) -> int:
    """Return when the last of the open waits is over."""
    (found,) = connection.execute(_OPEN).fetchone()
    return int(found or 0)


def ended_too_early(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the sleeps, and the waits without an event, that ended before their time."""
    return connection.execute(_TOO_EARLY).fetchall()


class Waits:
    """The judge of all that waits in one seed, and who sends it events."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._chance = random.Random(f"events of {world.seed}")
        self._seen: dict[tuple[str, int, str], object] = {}

    def will_send(self, task_id: str) -> None:
        """Somebody sends the events of this task in the next moments."""
        for name in EVENTS:
            self._world.at(self._world.now_us + self._chance.randrange(LATEST_US), partial(self._send, task_id, name))

    def comes_to_wait(self, name: str) -> None:
        """The task is about to wait: an event that is sent now may come at any moment of its falling asleep."""
        if self._chance.random() < 0.5:
            self._send(current_task().task_id, name)

    def send_again(self) -> None:
        """Send all of them, with their keys, to every task that has not ended."""
        rows = self._world.checks.rows.values()
        left = [row.task_id for row in rows if row.task_name == NAME and row.status in LIVE]
        self._spawn([(task_id, name) for task_id in left for name in EVENTS])

    def _send(self, task_id: str, name: str) -> None:
        self._spawn([(task_id, name)])

    def _spawn(self, events: Sequence[tuple[str, str]]) -> None:
        """In a process that sends nothing now: behind many slow writes it would hear nothing of others for long."""
        up = [each for each in self._world.up() if each.may_turn and "send" not in each.calls.values()]
        if up and events:
            process = self._chance.choice(up)
            process.call(lambda: process.spawn(self._sent(process, events), "send"))

    async def _sent(self, process: "Process", events: Sequence[tuple[str, str]]) -> None:
        for task_id, name in events:
            with contextlib.suppress(UnknownTask):  # it is on its way to the store
                is_stored = await process.manager.send(task_id, name, EVENTS[name], key=name)
                self._world.log(process, "has sent" if is_stored else "could not send", name, "to", task_id)

    def came_to(self, place: str, value: object) -> int:
        """A wait is over. It comes to the same in each run, until somebody forgets what was recorded."""
        task_id = current_task().task_id
        key = task_id, self._world.checks.revived[task_id], place
        before = self._seen.setdefault(key, value)
        if before != value and not self._world.loss_count:
            self._world.fault(f"wait {place} of {task_id} has come to {before}, and now to {value}")
        return value if isinstance(value, int) else 0

    def at_the_end(self) -> None:
        """Judge the records."""
        for task_id, name in self._world.disk.ended_too_early():
            # What a wait has received in a file that was lost is no event of this one.
            if not (self._world.loss_count and name.startswith("wait:")):
                self._world.fault(f"{name} of {task_id} has ended before its time")


async def _waited_in_place(process: "Process") -> int | BaseException:
    """What a wait in a branch comes to. The slot is lent meanwhile."""
    place = process, current_task().task_id, current_task().attempt
    run = next(each for each in process.world.runs.now if (each.process, each.task_id, each.attempt) == place)
    run.is_waiting = True
    beside, late = sleep(0.3, key="beside"), wait_for("on", int, timeout=0.5, key="late")
    found: list[int | BaseException] = [*await asyncio.gather(late, beside, return_exceptions=True)]  # type: ignore[list-item]  # None is there, too
    run.is_waiting = False
    return found[0]


async def work_in_waits(process: "Process", label: int, plan: str) -> int:
    """Is the code of a task that sleeps and waits, of which a part may fail as the plan says."""
    world, waits = process.world, process.world.waits
    kind, _, number = plan.partition(":")
    amount = float(number or 0)

    async def part(place: int) -> int:
        world.steps.begins(process)
        if place == 2 and kind == "fail" and world.spend(label, amount):
            raise OSError(f"{label} fails")
        await asyncio.sleep(0.01)
        return place

    await step(part, 1)
    try:
        await step.with_options(retries=1, retry_delay=0.4)(part, 2)
    except StepFailed:
        if label % 2:
            raise
    await sleep(min(amount, 2.0) if kind == "sleep" else 0.1)
    waits.comes_to_wait("go")
    try:
        first = waits.came_to("first", await wait_for("go", int))
    finally:
        if current_task().is_suspended and label % 2:  # its record may be written before the end of the run
            await asyncio.sleep(0.05)
    found = await _waited_in_place(process)
    if isinstance(found, asyncio.CancelledError):
        raise found
    second = waits.came_to("late", None if isinstance(found, TimeoutError) else found)
    if not second:
        waits.comes_to_wait("on")
        second = waits.came_to("second", await wait_for("on", int))
    if [first, second] != [*EVENTS.values()]:
        world.fault(f"the waits of {label} have received {first} and {second}")
    return label
