"""What happens to the processes of one seed, and to the machine under them, drawn from the seed."""

from collections.abc import Callable

from taskmanager.engine.words.timers import TOLERANCE_S
from tests.simulation.calls import Calls
from tests.simulation.disk import FileDisk
from tests.simulation.process import HEART_US, Process
from tests.simulation.world import World

FAULTY_S = 9.0
"""How long bad things happen."""
MAX_PROCESSES = 3
TWO_HOURS_S = 7_200
TEN_YEARS_S = 10 * 365 * 86_400


class Days:
    """Bad ones: one thing after the other, each with its weight."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._suspended_until_us = 0
        self._steps = self._chance.random() < 0.4
        self._is_far_ahead = False
        self._is_one_time = bool(world.timetable.entries or world.has_retention)
        """What is due, and what is old, is judged by the one time that all have; elsewhere they may differ."""
        self._deletes = world.is_on_file and self._chance.random() < 0.3
        if world.is_on_file and not self._deletes and self._chance.random() < 0.4:
            world.at(self._chance.randrange(round(FAULTY_S * 500_000)), self._copy_file)
        self._actions: list[tuple[Callable[[], None], int]] = [
            (self._start_one, 4),
            (self._kill, 4),
            (self._kill_child, 2),
            (self._freeze, 2),
            (self._block, 1),
            (self._suspend, 1),
            (self._stop, 3),
            (self._restart, 1),
            (self._outage, 2),
            (self._step_clock, 2),
            (self._lose_file, 1),
            (self._run_short, 1),
            (self._cancel_everything, 1),
            *Calls(world).actions,
        ]

    def plan_next(self) -> None:
        """Let the next one happen, and so on until they end."""
        world = self._world
        pause_us = self._chance.choice((0, 1_000, 30_000, 300_000, 1_500_000))
        at_us = max(world.now_us, self._suspended_until_us) + self._chance.randrange(pause_us + 1)
        if at_us < FAULTY_S * 1_000_000:
            world.at(at_us, self._act)

    def _act(self) -> None:
        (act,) = self._chance.choices([each for each, _ in self._actions], [weight for _, weight in self._actions])
        act()
        self.plan_next()

    # The actions.

    def _start_one(self) -> None:
        if len(self._world.alive) < MAX_PROCESSES:
            self.new_process()

    def new_process(self) -> None:
        """One more program starts."""
        process = self._world.new_process()
        if self._world.has_faults and self._chance.random() < 0.1:
            soon_us = self._chance.choice((1, 1_000, 30_000, 300_000))
            process.at(self._world.now_us + self._chance.randrange(soon_us), process.leave_early)

    def _kill(self) -> None:
        if self._world.alive:
            self._chance.choice(self._world.alive).turns_left = round(10 ** self._chance.uniform(0, 3.3))

    def _kill_child(self) -> None:
        """One child of the process lane, and not its parent."""
        busy = [(each, child) for each in self._world.alive for child in each.children.busy]
        if busy:
            process, child = self._chance.choice(busy)
            process.children.die(child)

    def _freeze(self) -> None:
        process = self._world.one()
        if process is not None:
            seconds = self._chance.choice((0.3, 3.0, 6.0, 15.0, 3_600.0))
            self._out(process, seconds)
            process.frozen_until_us = self._world.now_us + round(min(seconds, 60.0) * 1_000_000)
            self._world.at(process.frozen_until_us, process.thaw)

    def _suspend(self) -> None:
        """The machine sleeps, or the container is paused: everybody at once, and nobody is to blame for it."""
        seconds = self._chance.choice((0.7, 8.0, 60.0))
        until_us = self._world.now_us + round(seconds * 1_000_000)
        self._suspended_until_us = until_us
        self._world.suspension_count += 1
        self._world.log(None, "everything is stopped until", until_us / 1e6)
        for process in self._world.alive:
            # Its heart would have gone on as before; nobody notices a stop that is shorter.
            if process.may_turn and seconds > TOLERANCE_S:
                process.last_beat_us += until_us - self._world.now_us
            process.frozen_until_us = max(until_us, process.frozen_until_us)
            self._world.at(process.frozen_until_us, process.thaw)

    def _block(self) -> None:
        process = self._world.one()
        if process is not None:
            seconds = self._chance.choice((0.5, 3.0, 8.0))
            self._out(process, seconds)
            process.blocked_until_us = self._world.now_us + round(seconds * 1_000_000)

    def _out(self, process: Process, seconds: float) -> None:
        process.was_out = True
        self._world.log(process, "is out for", seconds)

    def _stop(self) -> None:
        process = self._world.one()
        if process is not None:
            drain_s = self._chance.choice((0.0, 0.5, 5.0))
            self._world.log(process, "is to stop within", drain_s)
            process.loop.call_soon(process.leave, drain_s)

    def _restart(self) -> None:
        process = self._world.one()
        if process is not None:
            drain_s = self._chance.choice((0.0, 0.5))
            self._world.log(process, "restarts")
            process.loop.call_soon(lambda: process.spawn(process.restart(drain_s), "restart"))

    def _outage(self) -> None:
        world = self._world
        until_us = world.now_us + round(self._chance.choice((0.2, 2.0, 4.5, 9.0)) * 1_000_000)
        process = world.one()
        if process is None or self._chance.random() < 0.5:
            world.outage_until_us = max(until_us, world.outage_until_us)
            if until_us - world.now_us > world.beat_us + 2 * HEART_US:
                world.locked_until_us = max(until_us, world.locked_until_us)
        else:
            process.outage_until_us = until_us
        self._world.log(process, "outage until", until_us / 1e6)

    def _lose_file(self) -> None:
        """Somebody cleans up, once."""
        if self._deletes and not self._world.loss_count:
            self._world.lose_file()

    def _copy_file(self) -> None:
        """Somebody makes a backup, and puts it in the place of the file a while later."""
        world = self._world
        assert isinstance(world.disk, FileDisk)
        world.log(None, "the file is copied")
        world.disk.keep_copy()
        after_us = self._chance.choice((10_000, 300_000, 2_000_000, 5_000_000))
        world.at(world.now_us + self._chance.randrange(after_us), self._restore_file)

    def _restore_file(self) -> None:
        if self._world.has_faults:
            self._world.restore_file()

    def _run_short(self) -> None:
        """No threads are left, or no memory for child processes."""
        process = self._world.one()
        if process is not None:
            process.short_until_us = self._world.now_us + round(self._chance.choice((0.3, 2.0, 9.0)) * 1_000_000)
            self._world.log(process, "has no threads and children until", process.short_until_us / 1e6)

    def _cancel_everything(self) -> None:
        """Somebody who thinks that all tasks of the loop are his."""
        process = self._world.one()
        if process is not None:
            ends_loop = self._chance.random() < 0.3
            process.loop.call_soon(lambda: process.cancel_every_task(ends_loop=ends_loop))

    def _step_clock(self) -> None:
        if self._steps:
            far_s = -TEN_YEARS_S if self._is_far_ahead else TEN_YEARS_S  # somebody corrects it, sooner or later
            by_s = self._chance.choice((-TWO_HOURS_S, TWO_HOURS_S, far_s, far_s, -90, 90))
            process = self._world.one()
            if process is None or self._is_one_time or abs(by_s) == TEN_YEARS_S or self._chance.random() < 0.5:
                self._is_far_ahead ^= abs(by_s) == TEN_YEARS_S
                self._world.step(by_s)
            else:
                process.step(by_s)
