"""The schedules of one seed, and the judge of their fires: each at most once, forwards only, and none lost.

What may be dropped is reckoned here anew, from the row as it stood, the stamp of the write and who was there to watch;
it shares no code with the rules of the library.
"""

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from taskmanager import TaskManager
from taskmanager.model.ids import keyed_task_id
from taskmanager.model.record import TaskRow
from taskmanager.model.schedule import ScheduleFire, ScheduleRow
from tests.simulation.disk import TERMINAL_VALUES

if TYPE_CHECKING:
    from tests.simulation.jobs import Jobs
    from tests.simulation.process import Process
    from tests.simulation.world import World

SCHEDULE_VERBS = frozenset({"declare_schedules", "fire_schedules", "set_schedule_paused"})
WATCH_US = 2_000_000
"""Who is up and undisturbed for so long before a fire is due is there to watch it."""
HEARD_US = 6_000_000
"""By then every instance has heard what others have done to a schedule."""
LATE_US = 8_000_000
"""How late a fire may be where nothing disturbs: a look at the wall clock, at others, and a store in between."""
_US = 1_000_000
_KINDS = ("safe", "once", "thread_safe", "shared_once")
_ON_THE_SECOND = 2


class Entry(NamedTuple):
    """One schedule. `differs`: every second process defines it with twice the interval."""

    name: str
    job: str
    plan: str
    every_s: float | None
    catch_up: Literal["skip", "latest", "all"]
    most: int
    overlap: Literal["skip", "queue", "allow"]
    jitter_s: float
    run_on_startup: bool
    differs: bool

    def period_us(self, number: int) -> int:
        """The time between two fires, by the definition of that process."""
        factor = 2 if self.differs and number % 2 else 1
        return round((self.every_s or _ON_THE_SECOND) * factor * _US)


class Watch(NamedTuple):
    """Who fires a schedule for how long now: nothing is asked of instances that cannot have heard of it."""

    config_hash: str
    since_us: int


@dataclass(frozen=True)
class Step:
    """One fire that won, as it is judged."""

    entry: Entry
    fire: ScheduleFire
    old: ScheduleRow
    new: ScheduleRow
    task: TaskRow | None
    period_us: int

    @property
    def dropped(self) -> range:
        """The fires that this step passes over."""
        assert self.old.next_run_at is not None
        ends_us = self.new.next_run_at if self.task is None else self.task.scheduled_for
        return range(self.old.next_run_at, ends_us or 0, self.period_us)


class Timetable:
    """What the processes of this seed declare, and what has become of it."""

    def __init__(self, world: "World", chance: random.Random) -> None:
        self._world = world
        count = chance.choice((0, 0, 0, 0, 1, 2))
        self.entries = {f"plan-{number}": self._draw(f"plan-{number}", chance) for number in range(count)}
        self.rows: dict[str, ScheduleRow] = {}
        self.fired: dict[str, set[int]] = defaultdict(set)
        self.last: dict[str, int] = {}
        self._by_hand: set[str] = set()
        self._watches: dict[str, Watch] = {}
        self._busy_until_us: dict[str, int] = {}

    def _draw(self, name: str, chance: random.Random) -> Entry:
        return Entry(
            name,
            chance.choice([kind for kind in _KINDS if kind in self._world.kinds]),
            chance.choice(("sleep:0", "sleep:0.3", "sleep:1.8", "fail:1")),
            chance.choice((None, 1.1, 2.5)),
            chance.choice(("skip", "latest", "all")),
            chance.choice((2, 8)),
            chance.choice(("skip", "queue", "allow", "allow")),
            chance.choice((0.0, 0.0, 0.3)),
            chance.random() < 0.3,
            chance.random() < 0.3,
        )

    def declare(self, manager: TaskManager, jobs: "Jobs", number: int) -> None:
        """In one process, before its start."""
        for place, entry in enumerate(self.entries.values()):
            every = None if entry.every_s is None else entry.period_us(number) / _US
            step = entry.period_us(number) // _US
            manager.schedule(
                cron=f"*/{step} * * * * *" if every is None else None,
                every=every,
                name=entry.name,
                args=(-1 - place, entry.plan),
                catch_up=entry.catch_up,
                max_catch_up_runs=entry.most,
                overlap=entry.overlap,
                jitter=entry.jitter_s,
                run_on_startup=entry.run_on_startup,
            )(jobs[entry.job])

    def lose(self) -> None:
        """The file was deleted, and they are declared anew, from now on."""
        self.rows = {}
        self.fired.clear()
        self.last.clear()

    def restore(self) -> None:
        """An older copy was put in the place of the file, and they go on as it says."""
        self.rows = self._world.disk.schedules()
        self._watches = {name: Watch(row.config_hash, self._world.now_us) for name, row in self.rows.items()}

    @property
    def is_over(self) -> bool:
        """Whether nothing fires any more."""
        return all(row.paused_at is not None for row in self.rows.values())

    # Judging.

    def observe(self, process: "Process", verb: str, args: tuple[Any, ...], fresh: list[TaskRow]) -> None:
        """After each write of anybody. `fresh`: the task rows that it has made."""
        self._note_busy()
        if verb not in SCHEDULE_VERBS:
            for task in fresh:
                if task.scheduled_for is not None and not self._world.loss_count:  # else it is written anew
                    self._world.fault(f"{verb} of {process} has made the run of a schedule: {task}")
            return
        rows = self._world.disk.schedules()
        if verb == "fire_schedules":
            self._judge_fires(process, args[0], rows, fresh)
        for name, row in rows.items():
            old = self.rows.get(name)
            if old is None or (old.config_hash, old.paused_at) != (row.config_hash, row.paused_at):
                self._watches[name] = Watch(row.config_hash, self._world.now_us)
                # Planned anew by a clock that was set back, it fires earlier, however long an earlier run holds it up.
                if (row.next_run_at or 0) <= self.last.get(name, 0):
                    self.last.pop(name, None)
        self.rows = rows

    def _note_busy(self) -> None:
        for row in self._world.checks.rows.values():
            if row.scheduled_for is not None and row.status not in TERMINAL_VALUES:
                self._busy_until_us[self._name_of(row)] = self._world.now_us

    def _name_of(self, row: TaskRow) -> str:
        return next(name for name in self.entries if f'"{name}"' in (row.tags or ""))

    def _judge_fires(
        self, process: "Process", fires: list[ScheduleFire], rows: dict[str, ScheduleRow], fresh: list[TaskRow]
    ) -> None:
        made = {self._name_of(row): row for row in fresh}
        for fire in fires:
            name = fire.schedule_name
            old, new, task = self.rows.get(name), rows.get(name), made.get(name)
            # A file that was put in place may not have it: the fire was refused.
            if old is None or new is None:
                continue
            # Whether its owner is registered may have changed without a write to it.
            if old._replace(is_declared=new.is_declared) == new and task is None:
                continue
            if fire.is_manual or fire.next_run_at == fire.expected_next:
                self._judge_beside(process, fire, old, new, task)
                continue
            self._judge_place(process, fire, old, new)
            if task is not None:
                self._judge_task(process, name, task)
            has_run = fire.task is not None and task is None  # its id exists, and the schedule goes on without it
            if old.next_run_at is not None and not has_run:
                period_us = self.entries[name].period_us(process.number)
                self._judge_dropped(process, Step(self.entries[name], fire, old, new, task, period_us))

    def _judge_beside(
        self, process: "Process", fire: ScheduleFire, old: ScheduleRow, new: ScheduleRow, task: TaskRow | None
    ) -> None:
        """A run by hand, or at a start: the fires stay as they are."""
        if new.next_run_at != old.next_run_at:
            self._world.fault(f"a run beside the fires has moved {old} to {new} by {process}")
        if fire.is_manual and task is not None:
            self._by_hand.add(task.task_id)
        elif task is not None:
            self._judge_overlap(fire.schedule_name, task)
            if old.paused_at is not None or not self.entries[fire.schedule_name].run_on_startup:
                self._world.fault(f"a start runs {old}, by {process}")

    def _judge_place(self, process: "Process", fire: ScheduleFire, old: ScheduleRow, new: ScheduleRow) -> None:
        what = f"{fire.schedule_name} moves from {old.next_run_at} to {new.next_run_at} by {process}"
        if old.paused_at is not None:
            self._world.fault(f"{what}, and is paused")
        if process.hash_of(fire.schedule_name) != old.config_hash:
            self._world.fault(f"{what}, which defines it otherwise")
        if self._is_anew(process, fire, old):
            self.last.pop(fire.schedule_name, None)  # what it fires for from now on is earlier
        elif new.next_run_at is None or (old.next_run_at is not None and new.next_run_at <= old.next_run_at):
            self._world.fault(f"{what}, and not forwards")

    def _is_anew(self, process: "Process", fire: ScheduleFire, old: ScheduleRow) -> bool:
        """Its owner lets an interval go on from now, for the clock has been set back since it was planned."""
        entry = self.entries[fire.schedule_name]
        period_us = entry.period_us(process.number)
        is_ahead = entry.every_s is not None and (old.next_run_at or 0) > fire.now + period_us
        return is_ahead and fire.next_run_at == fire.now + period_us and old.owner_id == process.instance_id

    def _judge_task(self, process: "Process", name: str, task: TaskRow) -> None:
        at_us = task.scheduled_for or 0
        what = f"{name} of {process} fires for {at_us}"
        if task.task_id != keyed_task_id(f"schedule:{name}", str(at_us)):
            self._world.fault(f"{what} under the id {task.task_id}")
        if at_us in self.fired[name]:
            self._world.fault(f"{what} again")
        if at_us < self.last.get(name, 0) and self._watches[name].since_us < self._world.now_us - HEARD_US:
            self._world.fault(f"{what} after {self.last[name]}")
        if at_us > task.sent_at:
            self._world.fault(f"{what} before its time, at {task.sent_at}")
        self.fired[name].add(at_us)
        self.last[name] = at_us
        self._judge_overlap(name, task)

    def _judge_overlap(self, name: str, task: TaskRow) -> None:
        if self.entries[name].overlap == "allow":
            return
        for other in self._world.checks.rows.values():
            if other.scheduled_for is None or other.status in TERMINAL_VALUES or other.task_id == task.task_id:
                continue
            is_by_hand = other.task_id in self._by_hand or other.task_id in self._world.checks.may_revive
            if self._name_of(other) == name and not is_by_hand:
                self._world.fault(f"{name} runs {task.task_id} beside {other.task_id}, {other.status}")

    def _judge_dropped(self, process: "Process", step: Step) -> None:
        entry, dropped = step.entry, step.dropped
        if step.task is not None and step.new.next_run_at != (step.task.scheduled_for or 0) + step.period_us:
            self._world.fault(f"{entry.name} runs {step.task.scheduled_for} and goes on with {step.new.next_run_at}")
        if not dropped:
            return
        what = f"{entry.name} ({entry}) drops {len(dropped)} fires from {dropped[0]} on at {step.fire.now} by {process}"
        if entry.catch_up == "all":
            due = (step.fire.now - dropped[0]) // step.period_us + 1
            kept = due - len(dropped)
            is_busy = entry.overlap != "allow"
            if kept < entry.most - 1 and not is_busy:
                self._world.fault(f"{what}, of {due} that are due")
            if due > 1 and kept < 0:
                self._world.fault(f"{what}, some before their time")
        was_busy = self._busy_until_us.get(entry.name, -LATE_US) > self._world.now_us - LATE_US
        if entry.overlap == "allow" or not was_busy:
            self._judge_watched(what, step)

    def _judge_watched(self, what: str, step: Step) -> None:
        """None is lost of those for which somebody was there."""
        world = self._world
        if self._may_be_full:
            return
        if step.entry.catch_up == "all" and len(step.dropped) >= step.entry.most:
            return
        watch = self._watches[step.entry.name]
        for at_us in step.dropped[-3:]:
            due_us = world.now_us - (world.clock.now_us() - at_us)  # on the clock that no step moves
            if watch.since_us > due_us - HEARD_US:
                continue
            watching = [each for each in world.up() if each.is_undisturbed_since(due_us - WATCH_US)]
            if watching and watch.config_hash in [each.hash_of(step.entry.name) for each in watching]:
                world.fault(f"{what}: {at_us}, though {watching} were there")

    def judge_progress(self) -> None:
        """Long after the faults: every schedule that somebody declares goes on."""
        world = self._world
        self._note_busy()  # nobody may have written for a while
        for name in self.entries.keys() - self.rows.keys():
            world.fault(f"{name} is declared by nobody: {world.up()}")
        for name, row in self.rows.items():
            hashes = [each.hash_of(name) for each in world.up()]
            if row.paused_at is not None or row.config_hash not in hashes or self._is_held(name):
                continue
            is_late = row.next_run_at is None or row.next_run_at < world.clock.now_us() - LATE_US
            if is_late and not self._may_be_full:
                world.fault(f"{name} stands still at {world.clock.now_us()}: {row}")
            longest_us = max(self.entries[name].period_us(number) for number in (0, 1))
            is_far = (row.next_run_at or 0) > world.clock.now_us() + longest_us + LATE_US
            if self.entries[name].every_s and is_far and not self._is_left(row):
                world.fault(f"{name} is silent until its time comes again, at {world.clock.now_us()}: {row}")

    @property
    def _may_be_full(self) -> bool:
        """Whether queues have a limit of what waits in them: a full one takes no run, and all of them may be full."""
        return self._world.options["max_pending"] is not None

    def _is_left(self, row: ScheduleRow) -> bool:
        """Whether its owner stops. Only an owner mends what a clock that was ahead has planned, and the next one does
        when this one is gone.
        """
        owner = self._world.process_of(row.owner_id or "")
        return owner is not None and owner.is_living_as(row.owner_id) and owner.is_stopping

    def _is_held(self, name: str) -> bool:
        return self.entries[name].overlap != "allow" and self._busy_until_us.get(name, -1) >= self._world.now_us - _US
