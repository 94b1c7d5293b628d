"""What happens to the processes of one seed, drawn from the seed; then the faults end, and everything must end well."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from taskmanager.model.clock import LAST_US
from taskmanager.model.states import TERMINAL
from tests.simulation.checks import THE_END
from tests.simulation.days import FAULTY_S, Days
from tests.simulation.jobs import QUEUES
from tests.simulation.world import Broken, World, inhabited

HEALTHY_S = 900.0
"""How long the rest may take: retries, snoozes and timeouts are all shorter than this together."""


@dataclass
class Story:
    """How one seed went."""

    seed: int
    faults: list[str]
    lines: list[str]
    run_count: int
    row_count: int


def play(seed: int, *, listens: bool = True) -> Story:
    """Run one seed from its first line to its last."""
    return tell(seed, lambda folder: World(seed, folder, listens=listens), Scenario)


W = TypeVar("W", bound=World)


def tell(seed: int, make: Callable[[Path], W], scenario: "Callable[[W], Scenario]") -> Story:
    """Run one scenario in a world that is made in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=_memory_folder()) as folder:
        world = make(Path(folder))
        with inhabited(world):
            try:
                scenario(world).play()
            except Broken as exc:
                if str(exc) not in world.faults:
                    world.faults.append(str(exc))
            finally:
                world.close()
    return Story(seed, world.faults, world.lines, world.runs.total, len(world.checks.rows))


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Scenario:
    """The bad days of one seed, and the good ones that follow."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._days = Days(world)

    # The two halves.

    def play(self) -> None:
        """Play both."""
        world = self._world
        self.have_faults()
        world.log(None, "the faults end")
        self._heal()
        if not world.run_until(self._has_ended, HEALTHY_S):
            self._tell_what_is_left()
        world.checks.at_rest()
        for each in world.alive:
            each.loop.call_soon(each.leave, 1.0)
        if not world.run_until(lambda: not world.alive, 60.0):
            world.fault(f"processes do not stop: {world.alive}")
        world.checks.observe(world.processes[0], THE_END, ())
        world.checks.at_the_end()
        world.steps.at_the_end()
        world.waits.at_the_end()
        world.workflows.at_the_end()

    def have_faults(self) -> None:
        """Play the first half."""
        world = self._world
        for _ in range(self._chance.choice((1, 2, 3))):
            self._days.new_process()
        self._days.plan_next()
        if world.has_workflows:
            world.workflows.plan()
        world.run_until(lambda: False, FAULTY_S)

    def _heal(self) -> None:
        world = self._world
        world.has_faults = False
        world.correct_clocks()
        for each in world.alive:
            for transaction in list(each.transactions):
                transaction.cut()
        world.outage_until_us = world.locked_until_us = 0
        for each in world.processes:
            each.turns_left = None
            each.outage_until_us = each.short_until_us = 0
            if each.is_alive:
                each.frozen_until_us = each.blocked_until_us = world.now_us
                each.last_beat_us = min(each.last_beat_us, world.now_us)  # a stop of everything has ended early
                each.thaw()
        self._days.new_process()
        for after_s in (10, 40):  # again, because a call that was held up in a long stop may pause one meanwhile
            world.at(world.now_us + after_s * 1_000_000, self._resume_queues)
        if world.timetable.entries:
            world.at(world.now_us + 4_000_000, lambda: self._for_schedules("resume_schedule"))
            world.at(world.now_us + 16_000_000, self._end_schedules)
        world.at(world.now_us + 40_000_000, self._reach_promises)
        for after_s in (2, 10, 30, 90, 300):
            world.at(world.now_us + after_s * 1_000_000, world.waits.send_again)
        for after_s in range(5, 600, 15):  # each failure may pause one again
            world.at(world.now_us + after_s * 1_000_000, world.workflows.resume_all)

    def _resume_queues(self) -> None:
        for each in self._world.up():
            for queue in QUEUES:
                each.spawn(self._world.pauses.resume(each, queue), "resume")

    def _for_schedules(self, verb: str) -> None:
        for each in self._world.up():
            for name in self._world.timetable.entries:
                each.spawn(getattr(each.manager, verb)(name), verb)

    def _end_schedules(self) -> None:
        """They would go on for ever, and nothing could come to rest."""
        self._world.timetable.judge_progress()
        self._for_schedules("pause_schedule")

    def _reach_promises(self) -> None:
        """A moment that was promised is waited for, however far a step has put it away. A pause passes."""
        waiting = [row for row in self._world.checks.rows.values() if row.status == "PENDING"]
        for each in self._world.up():
            if each.engine is not None:
                waiting += [live.row() for live in each.engine.live.values()]
        promised = [
            row.enqueued_at
            for row in waiting
            if row.task_id in self._world.promised_ids or self._world.checks.is_late_news(row)
        ]
        promised = [each for each in promised if each < LAST_US]  # that is for ever, or until an event comes
        ahead_us = max([*promised, self._world.disk.latest_due()]) - self._world.clock.now_us()
        if ahead_us > 0:
            self._world.step(ahead_us / 1_000_000)

    def _has_ended(self) -> bool:
        """Every row has ended, and nobody waits any more."""
        world = self._world
        up = world.up()
        if (
            not world.timetable.is_over
            or not world.workflows.is_over
            or not up
            or not all(each.is_up for each in world.alive)
            or any(each.is_leaving or each.is_stopping for each in world.alive)  # it frees what others are to run
            or world.runs.now
        ):
            return False
        if any(each.is_busy or (each.engine and each.engine.live) for each in up):
            return False
        return all(row.status in TERMINAL for row in world.checks.rows.values())

    def _tell_what_is_left(self) -> None:
        world = self._world
        for row in world.checks.rows.values():
            if row.status not in TERMINAL:
                world.fault(f"still {row.status} at the end: {row}")
        for each in world.up():
            for task_id in each.waiting.values():
                world.fault(f"{each} still waits for {task_id}: {world.checks.rows.get(task_id)}")
            if each.calls:
                world.fault(f"{each} has calls that do not come back: {list(each.calls.values())}")
            if each.engine and each.engine.live:
                world.fault(f"{each} still holds {list(each.engine.live.values())[:3]}")
        world.fault(f"not at rest after {HEALTHY_S:.0f} s: {world.processes}, {world.runs.now}")
