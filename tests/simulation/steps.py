"""What a step has promised: once its record is committed, its function does not run again in the same task."""

import asyncio
import sqlite3
from typing import TYPE_CHECKING

from taskmanager import StepFailed, current_step, current_task, step
from taskmanager.model.states import TaskStatus

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

COUNT = 4
NAME = "steps"
_SETTLED = """
SELECT number FROM taskmanager_steps WHERE task_id = ? AND ended_at IS NOT NULL AND (error_code IS NULL OR is_final)
"""


def settled(connection: sqlite3.Connection, task_id: str) -> frozenset[int]:
    """Return the numbers of the steps that no later run may run again."""
    return frozenset(number for (number,) in connection.execute(_SETTLED, (task_id,)).fetchall())


class Steps:
    """The judge of all steps that run in one seed."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def begins(self, process: "Process") -> None:
        """Judge the function of a step that begins. Who has lost the task without knowing it may repeat what another
        instance has recorded; its own records are refused.
        """
        task_id, attempt = current_task().task_id, current_task().attempt
        row = self._world.checks.rows.get(task_id)
        has_it = row is not None and row.status == TaskStatus.RUNNING and row.start_count == attempt
        if self._world.loss_count or row is None or not has_it or row.claimed_by_worker_id != process.instance_id:
            return
        number = current_step().number
        if number in self._world.disk.settled_steps(task_id):
            self._world.fault(f"step {number} of {task_id} is recorded, and runs again in {process}, attempt {attempt}")

    def at_the_end(self) -> None:
        """Every task of several steps that has completed has a record of each."""
        for row in self._world.checks.rows.values():
            if row.task_name == NAME and row.status == TaskStatus.COMPLETED and not self._world.loss_count:
                found = self._world.disk.settled_steps(row.task_id)
                if found != frozenset(range(1, COUNT + 1)):
                    self._world.fault(f"{row.task_id} is COMPLETED, and recorded are only the steps {sorted(found)}")


async def work_in_steps(process: "Process", label: int, plan: str) -> int:
    """Is the code of a task of several steps. The second one does what the plan says, and its error may be caught."""
    world = process.world
    kind, _, number = plan.partition(":")
    amount = float(number or 0)

    async def part(place: int) -> int:
        world.steps.begins(process)
        if place == 2 and kind == "fail" and world.spend(label, amount):
            raise OSError(f"{label} fails")
        await asyncio.sleep(min(amount, 3.0) if kind == "sleep" else 0.01)
        return place

    total = await step(part, 1)
    try:
        total += await step(part, 2)
    except StepFailed:
        if label % 2:
            raise
        total += 2
    total += sum(await asyncio.gather(step(part, 3), step(part, 4)))
    if total != 10:
        world.fault(f"the steps of {label} have returned {total} together")
    return label
