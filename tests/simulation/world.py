"""One seed: processes, a disk, a clock, bad weather, and the rule by which each takes its turn."""

import contextlib
import heapq
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from taskmanager import QueueConfig, RecoveryConfig, TaskManager
from taskmanager.engine.tell.listeners import Listeners
from taskmanager.model import ids
from taskmanager.store.presence import Presence
from taskmanager.store.sqlite import beat, presence, session, stamp
from taskmanager.testing import WallClock
from tests.simulation.batches import Batches
from tests.simulation.checks import Checks
from tests.simulation.disk import Disk, FileDisk, FileTimes, MemoryDisk
from tests.simulation.faults import Weather
from tests.simulation.hearing import Hearing
from tests.simulation.jobs import ALWAYS, NARROW_LIMIT, OTHERS
from tests.simulation.process import Process
from tests.simulation.promises import Pauses
from tests.simulation.runs import Runs
from tests.simulation.steps import NAME as STEPS
from tests.simulation.steps import Steps
from tests.simulation.timetable import Timetable
from tests.simulation.waits import NAME as WAITS
from tests.simulation.waits import Waits
from tests.simulation.workflows import NAMES as NODES
from tests.simulation.workflows import Workflows

SWEEP_S = 30
MAX_TURNS_AT_ONCE = 20_000
"""Callbacks without time passing; more are a loop that spins."""
MAX_FAULTS = 5


STEPS_EVERY = 4
"""Of so many seeds one has tasks of several steps, one has tasks that sleep and wait between them, and the others have
workflows.
"""


class Broken(Exception):
    """The seed has shown a fault; `World.faults` says which."""


class World:
    """Everything one seed needs. Nothing in it asks the real machine for time, chance or order."""

    def __init__(self, seed: int, folder: Path, *, listens: bool = True) -> None:
        self.seed = seed
        self.listens = listens
        """Whether the managers have a listener, which changes nothing."""
        self.chance = random.Random(seed)
        self.now_us = 0
        self.clock = WallClock(self)
        self.events: list[tuple[int, int, Callable[[], Any]]] = []
        self.lines: list[str] = []
        self.faults: list[str] = []
        self.processes: list[Process] = []
        self.alive: list[Process] = []
        """Those of them that live, in the order of their starts."""
        self.has_faults = True
        self.is_over = False
        self.refused: set[tuple[str, int]] = set()
        """Successes that the store has refused once, by task and attempt."""
        self.promised_ids: set[str] = set()
        """Tasks with a `run_at`, which is waited for however far the clock is from it."""
        self.suspension_count = 0
        self.loss_count = 0
        self.outage_until_us = 0
        self.locked_until_us = 0
        """The end of the last outage that nobody who beats can have missed."""
        self.runs = Runs(self)
        self.checks = Checks(self)
        self.hearing = Hearing(self)
        self.pauses = Pauses(self)
        self.batches = Batches(self)
        self.steps = Steps(self)
        self.waits = Waits(self)
        self.workflows = Workflows(self)
        self._steps: list[tuple[int, int]] = []
        self._order = count()
        self._labels = count(1)
        self._numbers = count(1)
        self._spent: Counter[int] = Counter()
        self.database = folder / "sim.db"
        self._shape()
        self.timetable = Timetable(self, self.chance)
        self.disk: Disk = FileDisk(self.database) if self.is_on_file else MemoryDisk(self.clock)
        if not self.is_on_file:
            self.database.touch()  # beside a file that is not there, nobody whose lock is gone counts as dead

    def __repr__(self) -> str:
        return f"<World {self.seed} at {self.now_us / 1e6:.3f} s, {len(self.processes)} processes>"

    def _shape(self) -> None:
        """What this seed is like."""
        chance = self.chance
        self._roles = random.Random(f"roles of {self.seed}")  # their own: the other draws of a seed are as before
        self.has_roles = self._roles.random() < 0.4
        """Whether some processes do not run every queue."""
        self._releases = random.Random(f"releases of {self.seed}")
        self.has_releases = self._releases.random() < 0.3
        """Whether some processes are of a release that does not know every task."""
        self.is_on_file = self.seed % 3 == 0
        self.has_workflows = self.seed % STEPS_EVERY in (1, 3)
        self.has_middleware = self.seed % 6 == 1
        self.concurrency = chance.choice((1, 2, 3, 6))
        self.kinds = (*ALWAYS, *sorted(chance.sample(OTHERS, 6)))
        if self.seed % STEPS_EVERY == 2:  # drawn apart: the stories of the other seeds are what they were
            self.kinds += (STEPS,)
        if self.seed % STEPS_EVERY == 0:
            self.kinds += (WAITS,)
        if self.has_workflows:
            self.kinds += NODES
        self.process_count = chance.choice((1, 2))
        self.crash_budget = chance.choice((1, 3, 100))
        beat_ms = chance.choice((1_000, 1_000, 4_000))  # more seldom, the log is at rest for long enough to be trusted
        stale_ms = 4 * beat_ms
        self.beat_us, self.stale_us = beat_ms * 1_000, stale_ms * 1_000
        self.check_ms = chance.choice((1_000, 1_000, 5_000))
        self.shared_limit = chance.choice((1, 2))
        limits = random.Random(f"limits of {self.seed}")
        rate = chance.choice((0.0, 0.01, 0.03, 0.1))
        self.weather = Weather(
            rate,
            chance.choice((0.0, rate)),
            *chance.choice(((0.0, 0), (0.2, 50_000), (0.2, 400_000), (0.9, 2_000), (0.9, 50_000), (0.03, 8_000_000))),
            chance.choice((0.0, 0.0, 0.2)),
        )
        retention_hours = chance.choice((None, None, 1))
        self.has_retention = retention_hours is not None
        self.options: dict[str, Any] = {
            "concurrency": self.concurrency,
            "threads": chance.choice((1, 2)),
            "processes": self.process_count,
            "queues": [
                QueueConfig(
                    "narrow",
                    max_concurrency=NARROW_LIMIT,
                    priority=chance.choice((50, 10)),
                    max_pending=limits.choice((None, None, 1, 3)),
                ),
                QueueConfig("shared", max_concurrency=self.shared_limit, scope="file"),
                QueueConfig("shared_once", max_concurrency=self.shared_limit, scope="file"),
            ],
            "max_pending": limits.choice((None, None, None, 4, 20)),
            "max_in_memory": chance.choice((1, 2, 5, 10_000)),
            "commit_interval": chance.choice((0.0, 0.02)),
            "snapshot_interval": chance.choice((0.5, 60.0)),
            "recovery": RecoveryConfig(
                check_interval_ms=self.check_ms,
                claimed_stale_threshold_ms=stale_ms,
                running_stale_threshold_ms=stale_ms,
                finalizing_stale_threshold_ms=stale_ms,
                runner_heartbeat_interval_ms=beat_ms,
                claimer_heartbeat_interval_ms=beat_ms,
                worker_state_snapshot_interval_ms=300_000,
                terminal_record_retention_hours=retention_hours,
                retention_sweep_interval_s=SWEEP_S,
                crash_budget=self.crash_budget,
            ),
        }

    # What processes ask.

    @property
    def elapsed_us(self) -> int:
        """For the clock: time that no step moves."""
        return self.now_us

    def make_manager(self) -> TaskManager:
        """A manager as this seed configures it."""
        return TaskManager(self.database, **self.options, run_queues=self._draw_role())

    def _draw_role(self) -> tuple[str, ...] | None:
        """The queues that one more process runs. Whoever comes when the faults have ended runs all."""
        if not (self.has_roles and self.has_faults):
            return None
        return self._roles.choice((None, (), (), ("default",), ("narrow", "shared", "shared_once")))

    def draw_release(self) -> tuple[str, ...]:
        """The tasks that one more process knows. Whoever comes when the faults have ended knows all."""
        if not (self.has_releases and self.has_faults and self._releases.random() < 0.5):
            return self.kinds
        needed = {*ALWAYS, *NODES, *(entry.job for entry in self.timetable.entries.values())}
        return tuple(kind for kind in self.kinds if kind in needed or self._releases.random() < 0.6)

    def step(self, by_s: float) -> None:
        """Somebody sets the wall clock."""
        self._steps.append((self.now_us, self.clock.now_us()))
        self.clock.step(by_s)
        for each in self.processes:
            each.clock.step(by_s)
            each.stepped_us.append(self.now_us)
            each.is_disturbed()
        self.log(None, "the wall clock is stepped by", by_s)

    def new_clock(self) -> WallClock:
        """The wall clock as a process sees it that starts now."""
        clock = WallClock(self)
        clock.step(timedelta(microseconds=self.clock.now_us() - clock.now_us()))
        return clock

    def correct_clocks(self) -> None:
        """All show the same time again."""
        for each in self.processes:
            each.clock.step(timedelta(microseconds=self.clock.now_us() - each.clock.now_us()))

    def trusted_us(self, process: Process) -> int:
        """By what wall time a record may be old: a step that it has seen counts only after a sweep of the retention."""
        since_us = max(process.began_us, self.now_us - SWEEP_S * 1_000_000)
        recent = [wall_us for at_us, wall_us in self._steps if at_us > since_us]
        return min([self.clock.now_us(), *(wall_us + SWEEP_S * 1_000_000 for wall_us in recent)])

    def next_label(self) -> int:
        """A number for one more task."""
        return next(self._labels)

    def spend(self, label: int, amount: float) -> bool:
        """Whether the plan of a task still has one of its `amount` bad turns left."""
        self._spent[label] += 1
        return self._spent[label] <= amount

    def proof_of(self, process: Process, instance_id: str) -> Presence:
        """Lock files also where the disk is in memory: who lives is seen as in the file."""
        return presence.FilePresence(self.database, instance_id)

    def is_dead(self, instance_id: str) -> bool:
        """Whether others may take what this instance has, by its proof that it lives."""
        return presence.is_dead(self.database, instance_id)

    def new_process(self) -> Process:
        """One more program starts."""
        process = Process(self, next(self._numbers))
        self.processes.append(process)
        self.alive.append(process)
        unknown = [kind for kind in self.kinds if kind not in process.jobs]
        self.log(process, "starts with", process.manager._settings.role, *(["without", *unknown] if unknown else ()))
        process.loop.call_soon(process.begin)
        return process

    def process_of(self, instance_id: str) -> Process | None:
        """Who started this instance."""
        return next((each for each in self.processes if instance_id in each.instance_ids), None)

    def up(self) -> list[Process]:
        """Those that serve: neither starting nor on their way out."""
        return [each for each in self.alive if each.is_up and not each.is_leaving]

    def one(self) -> Process | None:
        """Any of them that can do something now."""
        up = [each for each in self.up() if each.may_turn]
        return self.chance.choice(up) if up else None

    def lose_file(self) -> None:
        """Somebody deletes it."""
        assert isinstance(self.disk, FileDisk)
        self.log(None, "the file is deleted")
        self._outlive_file()
        self.checks.lose()
        self.disk.lose()

    def restore_file(self) -> None:
        """Somebody puts an older copy in its place."""
        assert isinstance(self.disk, FileDisk)
        self.log(None, "the file is replaced by an older copy")
        self._outlive_file()
        self.checks.restore(*self.disk.restore())
        self.timetable.restore()

    def _outlive_file(self) -> None:
        self.loss_count += 1
        for each in self.processes:
            each.has_outlived_the_file = each.is_alive and not each.was_out and not each.is_leaving and each.is_up
            each.is_degraded()  # what it commits until it notices is nowhere
        self.pauses.lose()
        self.timetable.lose()

    def locks_of(self, process: Process) -> list[presence.InstanceLock]:
        """The lock files that a process holds."""
        return [lock for each in process.instance_ids if (lock := presence._held.get(each)) is not None]

    def show_life(self, lock: presence.InstanceLock) -> None:
        """As that of the lock, by the clock of the simulation: the machine's would not move from beat to beat."""
        if lock._fd is not None:
            os.utime(lock._fd, ns=(self.now_us * 1_000, self.now_us * 1_000))

    def buries(self, process: Process) -> None:
        """A process is gone, and what ran in it."""
        self.alive.remove(process)
        self.runs.drop(process)

    def log(self, process: Process | None, *what: object) -> None:
        """One line of the history."""
        if self.is_over:
            return
        text = " ".join(map(str, what)).replace(f"{self.database.parent}/", "")  # which is another one each time
        self.lines.append(f"{self.now_us / 1e6:10.6f} {process or '--'} {text}")

    def fault(self, text: str) -> None:
        """A rule is broken. The history goes on for a little, which often tells more."""
        if not self.is_over:
            self.lines.append(f"{self.now_us / 1e6:10.6f} FAULT {text}")
            self.faults.append(text)

    # Turns.

    def at(self, at_us: int, work: Callable[[], Any]) -> None:
        """Let something happen at a moment."""
        heapq.heappush(self.events, (max(at_us, self.now_us), next(self._order), work))

    def run_until(self, is_done: Callable[[], bool], budget_s: float) -> bool:
        """Turn after turn until `is_done` when nothing more happens at that moment; False when the time is up."""
        ends_us = self.now_us + round(budget_s * 1_000_000)
        turns = 0
        while True:
            if len(self.faults) >= MAX_FAULTS:
                raise Broken(self.faults[-1])
            if self._turn():
                turns += 1
                if turns > MAX_TURNS_AT_ONCE:
                    raise Broken(f"{turns} callbacks without time passing: {self._spinning()}")
                continue
            turns = 0
            if is_done():
                return True
            if not self._pass_time(ends_us):
                return False

    def _turn(self) -> bool:
        """Let one of those who can go on do so."""
        ready = [each for each in self.alive if each.may_turn and each.loop.has_work()]
        has_event = bool(self.events) and self.events[0][0] <= self.now_us
        choices = len(ready) + has_event
        if not choices:
            return False
        chosen = self.chance.randrange(choices) if choices > 1 else 0
        if chosen < len(ready):
            ready[chosen].turn()
        else:
            heapq.heappop(self.events)[2]()
        return True

    def _pass_time(self, ends_us: int) -> bool:
        """On to the next moment at which something can happen."""
        found = [self.events[0][0]] if self.events else []
        for each in self.alive:
            timer_us = each.loop.next_timer_us()
            out_until_us = max(each.frozen_until_us, each.blocked_until_us)
            if timer_us is not None:
                found.append(max(timer_us, out_until_us))
            if out_until_us > self.now_us:
                found.append(out_until_us)
        if not found or min(found) > ends_us:
            self.now_us = max(self.now_us, ends_us)
            return False
        self.now_us = max(self.now_us + 1, min(found)) if min(found) <= self.now_us else min(found)
        return True

    def _spinning(self) -> str:
        return "; ".join(f"{each}: {list(each.loop._ready)[:3]}" for each in self.alive)

    def close(self) -> None:
        """Take everything down."""
        self.is_over = True
        for each in self.processes:
            each.bury()
        with contextlib.suppress(Exception):
            self.disk.close()


class _Ids:
    """Ids as they come: in order, and the same for the same seed."""

    def __init__(self) -> None:
        self._count = count(1)

    def next(self) -> str:
        return f"00000000-0000-7000-8000-{next(self._count):012d}"


class _ToLines(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = " | ".join(record.getMessage().splitlines()[:1] + record.getMessage().splitlines()[-1:])
        self._world.log(None, record.levelname, text)
        # A mistake that the engine survives. That a stranger cancels its loops is none of its own.
        if record.levelno >= logging.CRITICAL and "was cancelled by somebody else" not in text:
            self._world.fault(text)


@contextlib.contextmanager
def inhabited(world: World) -> Iterator[None]:
    """Ids and dice from the seed, and the library's log in the history, while the block runs."""
    logger = logging.getLogger("taskmanager")
    handler = _ToLines(world)
    kept = ids._sequence, random.getstate(), logger.level, logger.propagate, presence.lock_path
    machine: Any = (stamp._CLOCK, stamp.os, beat.BUSY_TIMEOUT_S, session.BUSY_TIMEOUT_S)  # type: ignore[attr-defined]  # what they look at
    if isinstance(world.disk, FileDisk):
        stamp._CLOCK, stamp.os = world.clock, FileTimes(world.disk)  # type: ignore[misc, attr-defined]
    beat.BUSY_TIMEOUT_S = session.BUSY_TIMEOUT_S = 0.0  # type: ignore[misc]
    ids._sequence = _Ids()  # type: ignore[assignment]
    presence.lock_path = cache(presence.lock_path)  # a tenth of the time of a seed would be spent on paths
    show_life = presence.InstanceLock.show_life
    presence.InstanceLock.show_life = lambda lock: world.show_life(lock)  # type: ignore[method-assign, assignment]
    note = Listeners._note
    Listeners._note = lambda listeners, noted: world.hearing.heard(listeners, noted)  # type: ignore[method-assign]
    random.seed(world.seed)
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        ids._sequence, state, logger.level, logger.propagate, presence.lock_path = kept
        stamp._CLOCK, stamp.os, beat.BUSY_TIMEOUT_S, session.BUSY_TIMEOUT_S = machine  # type: ignore[misc, attr-defined]
        presence.InstanceLock.show_life = show_life  # type: ignore[method-assign]
        Listeners._note = note  # type: ignore[method-assign]
        random.setstate(state)
