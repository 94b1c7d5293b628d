"""Ten hosts on one server, in virtual time: seeds of a cluster whose network breaks.

    python -m tests.simulation.cluster --seeds 1000             # many
    python -m tests.simulation.cluster --seeds 1 --start 7      # one; its history is printed where it fails

Each host is a real `TaskManager` with its real engine, and is asked for the same things as in the other seeds; the
server is the store in memory, behind a line with the delays of a network. Who is alive is judged by the library's own
`Lives`, from locks that the server of this world holds and frees. What happens, beside kills and freezes: one host, or
several, are cut off from the server; the server ends every session, or restarts.

The judge of all seeds looks on. It is told of these rules too:

- what an instance has is taken by others only when its lock has been free for the whole grace, or had been when they
  looked last; and nothing that it has started since it was out of sight for long;
- an instance that has been cut off for a while starts no stored task;
- while nothing is broken, a burst that one host accepts is run by all of them.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from taskmanager import RecoveryConfig
from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.record import TaskRow
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.model.workflows import HELD
from taskmanager.store.postgresql.lives import MIN_GRACE_S, Lives, lock_number
from taskmanager.store.presence import UNSEEN_S, Presence
from tests.simulation.calls import Calls
from tests.simulation.checks import Checks
from tests.simulation.faults import Weather
from tests.simulation.process import Process
from tests.simulation.runs import Run, Runs
from tests.simulation.scenario import Scenario, Story, tell
from tests.simulation.workflows import NAMES as NODES
from tests.simulation.world import World

HOSTS: Final = 10
BURST: Final = 60
BURST_PER_SLOT: Final = 3
"""Where there are as many slots as tasks, some hosts may come too late for any."""
CALM_S: Final = 8.0
FAULTY_S: Final = 30.0
LOOK_US: Final = 1_000_000
GRACE_US: Final = round(MIN_GRACE_S * 1_000_000)
AWAY_S: Final = 30.0
"""Longer than the server takes to free a lock whose host is silent, and the grace after that."""
LATE_US: Final = 2_000_000
"""For how long others may call one dead that is back: until their next look, and what they have begun by then."""
NOTICE_US: Final = 2_000_000
"""How long it takes an instance to know that it was cut off: until its next look, or its next call."""
UNSEEN_US: Final = NOTICE_US + round(UNSEEN_S * 1_000_000)
"""How long after that it may still start what is stored."""
BEAT_MS: Final = 5_000
STALE_MS: Final = 60_000
LATENCY_US: Final = (500, 3_000, 20_000)
KINDS: Final = (
    *("safe", "once", "retried", "crash_retry", "narrow_once", "shared", "shared_once", "timed", "thread_safe"),
    *("memory", "steps", "waits"),
)


class ClusterPresence(Presence):
    """The lock of one instance on the server of this world, and what it sees of the others."""

    def __init__(self, world: "ClusterWorld", process: Process, instance_id: str) -> None:
        self._world, self._process, self._instance_id = world, process, instance_id
        self._lives = Lives()
        self._beats: dict[tuple[str, str], int] = {}
        self._is_over = False
        self._session: object | None = None
        self._seen_s: tuple[float, float] | None = None
        self._held_since_s = 0.0

    unseen_after_s = UNSEEN_S

    async def take(self) -> None:
        if self._world.is_cut(self._process):
            raise StoreUnavailable("the server cannot be reached, as the seed wants it")
        self._attach()
        self._look()

    def _attach(self) -> None:
        self._session = object()
        self._lives.begin()
        self._world.sessions.append(self)

    def lose(self) -> None:
        """The session is over, as this side sees it."""
        self._session = None
        self._lives.begin()
        if self in self._world.sessions:
            self._world.sessions.remove(self)

    def _look(self) -> None:
        """Once a second, as the thread of the watch does."""
        if self._is_over:
            return
        world, now_us = self._world, self._world.now_us
        self._process.at(now_us + LOOK_US, self._look)
        if world.is_cut(self._process):
            self.lose()
            return
        if self._session is None:
            self._attach()
        self._take_lock()
        beats = world.beats()
        beating = {sender for (sender, role), at in beats.items() if self._beats.get((sender, role)) != at}
        self._beats = beats
        self._lives.look(now_us / 1_000_000, {lock_number(each) for each in world.locks}, beating)

    def _take_lock(self) -> None:
        world, now_s = self._world, self._world.now_us / 1_000_000
        if self._instance_id not in world.locks:
            world.take_lock(self._instance_id, self._session)
            self._held_since_s = now_s
        if world.locks[self._instance_id] is self._session:
            self._seen_s = self._held_since_s, now_s

    def put_back(self) -> bool:
        return self._session is not None and self._world.locks.get(self._instance_id) is self._session

    @property
    def is_detached(self) -> bool:
        return self._session is None

    @property
    def seen_s(self) -> tuple[float, float] | None:
        return self._seen_s

    def show_life(self) -> None:
        """The lock does that."""

    def drop(self) -> None:
        self._is_over = True
        held = self._session
        self.lose()
        self._world.server_notices(self._process, self._instance_id, held)

    let_go = drop

    def is_dead(self, instance_id: str) -> bool:
        return self._lives.is_dead(instance_id, self._world.now_us / 1_000_000)

    def is_missing(self, instance_id: str) -> bool:
        return False

    def sign_of_life(self, instance_id: str) -> int | None:
        return None

    async def clear_away(self, is_registered: Any) -> None:
        """A lock leaves nothing."""


class ClusterChecks(Checks):
    """The judge, who knows when which lock was free."""

    def _judge_owner(self, process: Process, verb: str, old: TaskRow, new: TaskRow, what: str) -> None:
        super()._judge_owner(process, verb, old, new, what)
        owner, world = old.claimed_by_worker_id, self._world
        assert isinstance(world, ClusterWorld)
        if verb in ("claim", "request_cancel", "cancel_workflow") or owner is None or owner in process.instance_ids:
            return
        if HELD in (owner, new.claimed_by_worker_id):  # somebody pauses its workflow, or lets it go on
            return
        holder = world.process_of(owner)
        is_silent = holder is not None and world.now_us - holder.last_beat_us >= world.stale_us
        if old.status not in TERMINAL and not world.is_dead(owner) and not is_silent:
            world.fault(f"its lock was not free for the whole grace: {what}")
        is_living = holder is not None and holder.is_living_as(owner) and not is_silent
        lost_at = world.lost_at.get(owner)
        is_late = lost_at is not None and (old.started_at or 0) > lost_at + UNSEEN_US
        if old.status == TaskStatus.RUNNING and is_late and is_living:
            world.fault(f"it was started when its lock had been free for long, or since it is back: {what}")


class ClusterRuns(Runs):
    """The log of what runs, which knows who is cut off."""

    def begin(self, process: Process, name: str, task_id: str, attempt: int) -> Run:
        world = self._world
        assert isinstance(world, ClusterWorld)
        cut_us = world.cut_us.get(process)
        is_cut = world.is_cut(process) and name != "memory"  # which needs no server
        if cut_us is not None and is_cut and world.now_us - cut_us > NOTICE_US:
            world.fault(f"{name} {task_id} starts in {process}, which is cut off since {cut_us / 1e6:.3f} s")
        return super().begin(process, name, task_id, attempt)


class ClusterWorld(World):
    """Ten hosts, and a server with the locks of their sessions."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.locks: dict[str, object] = {}
        """The sessions that hold the lock of an instance, by its id, as the server knows them."""
        self.freed_us: dict[str, int] = {}
        """When the lock of an instance was freed last, while nobody holds it."""
        self.back_at: dict[str, int] = {}
        """When the lock of an instance was taken again that had been free for the whole grace, by the wall clock."""
        self._taken_us: dict[str, tuple[int, int]] = {}
        """When the lock of an instance was taken last, and since when it had been free."""
        self.lost_at: dict[str, int] = {}
        """When the lock of an instance was freed last, also if it was taken again: by the wall clock."""
        self.sessions: list[ClusterPresence] = []
        self.cut_us: dict[Process, int] = {}
        self._skews = random.Random(f"skews of {seed}")
        super().__init__(seed, folder)
        self.checks, self.runs = ClusterChecks(self), ClusterRuns(self)

    def _shape(self) -> None:
        super()._shape()
        self.has_roles = self.is_on_file = self.has_middleware = self.has_retention = False
        self.kinds = KINDS + NODES * self.has_workflows
        latency_us = self.chance.choice(LATENCY_US)
        self.weather = Weather(0.0, self.chance.choice((0.0, 0.005)), 1.0, latency_us)
        self.beat_us, self.stale_us, self.check_ms = BEAT_MS * 1_000, STALE_MS * 1_000, 1_000
        self.options |= {
            "max_pending": None,
            "max_in_memory": 10_000,
            "store_poll": 1.0,  # a server tells what others write, and is polled for what was not heard
            "recovery": RecoveryConfig(
                check_interval_ms=self.check_ms,
                claimed_stale_threshold_ms=STALE_MS,
                running_stale_threshold_ms=STALE_MS,
                finalizing_stale_threshold_ms=STALE_MS,
                runner_heartbeat_interval_ms=BEAT_MS,
                claimer_heartbeat_interval_ms=BEAT_MS,
                terminal_record_retention_hours=None,
                crash_budget=self.crash_budget,
            ),
        }

    def new_process(self) -> Process:
        """Its clock differs a little from that of the server, which it has asked for the time across the network."""
        process = super().new_process()
        process.clock.step(self._skews.uniform(-1, 1) * self.weather.longest_us / 1_000_000)
        return process

    def proof_of(self, process: Process, instance_id: str) -> Presence:
        return ClusterPresence(self, process, instance_id)

    def is_dead(self, instance_id: str) -> bool:
        """Whether its lock was free for the whole grace, or has just been taken again: others may not have looked."""
        is_back = self.clock.now_us() - self.back_at.get(instance_id, 0) < LATE_US
        return is_back or self._was_free_for_long(instance_id)

    def _was_free_for_long(self, instance_id: str) -> bool:
        return self.now_us - self.freed_us.get(instance_id, self.now_us) >= GRACE_US

    def take_lock(self, instance_id: str, session: object) -> None:
        """A session takes a lock that nobody has."""
        if self._was_free_for_long(instance_id):
            self.back_at[instance_id] = self.clock.now_us()
        self.locks[instance_id] = session
        self._taken_us[instance_id] = self.now_us, self.freed_us.pop(instance_id, self.now_us)

    def beats(self) -> dict[tuple[str, str], int]:
        """The heartbeats as they stand."""
        return dict(self.disk.beats)  # type: ignore[attr-defined]  # of the one in memory

    def is_cut(self, process: Process) -> bool:
        """Whether nothing gets through between a host and the server."""
        return max(process.outage_until_us, self.outage_until_us) > self.now_us

    def cut(self, process: Process, seconds: float) -> None:
        """Let nothing through. The server frees the lock when it has heard nothing for long enough."""
        self.log(process, "is cut off for", seconds)
        self.note_outage(process)
        process.outage_until_us = self.now_us + round(seconds * 1_000_000)
        process.was_out |= seconds * 1_000_000 > GRACE_US / 2
        for instance_id in process.instance_ids:
            self.server_notices(process, instance_id, self.locks.get(instance_id))

    def note_outage(self, process: Process) -> None:
        """Nothing gets through to a host from now on, if it did until now."""
        if not self.is_cut(process):
            self.cut_us[process] = self.now_us

    def server_notices(self, process: Process, instance_id: str, session: object | None) -> None:
        """A session has ended, or its host is silent: at once, or after the keepalives of the connection."""
        after_us = self.chance.choice((0, 3_000_000, 17_000_000)) if self.is_cut(process) else 0
        self.at(self.now_us + after_us, lambda: self.free(instance_id, session))

    def free(self, instance_id: str, session: object | None) -> None:
        """The server ends a session, if it has it still."""
        if session is not None and self.locks.get(instance_id) is session:
            del self.locks[instance_id]
            taken_us, freed_us = self._taken_us[instance_id]
            is_unnoticed = self.now_us - taken_us < LOOK_US  # it was held between two looks of the others only
            self.freed_us[instance_id] = freed_us if is_unnoticed else self.now_us
            self.lost_at[instance_id] = self.clock.now_us()
            for each in list(self.sessions):
                if each._session is session:
                    each.lose()

    def end_every_session(self) -> None:
        """Somebody terminates all of them, or the server restarts."""
        self.log(None, "every session is ended")
        for instance_id, session in list(self.locks.items()):
            self.free(instance_id, session)


class ClusterScenario(Scenario):
    """A burst while all is well, then faults, then none."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        self._cluster, self._calls = world, Calls(world)
        self._asks = [each for each in self._calls.actions if each[0] != self._calls._enqueue]

    def have_faults(self) -> None:
        world = self._cluster
        weather, world.weather = world.weather, replace(world.weather, fail_after=0.0)
        for _ in range(HOSTS):
            world.new_process()
        world.run_until(lambda: False, 2.0)
        first, seen = world.processes[0], world.runs.total
        burst = max(BURST, BURST_PER_SLOT * HOSTS * world.concurrency)
        for _ in range(burst):
            first.call(lambda: first.watch(first.jobs["safe"].enqueue(world.next_label(), "sleep:0.7")))
        world.run_until(lambda: False, CALM_S)
        idle = set(world.processes) - {process for each in world.runs._starters.values() for process in each}
        if idle or world.runs.total - seen < burst:
            world.fault(f"a burst of {burst} was not shared: {sorted(map(repr, idle))} ran nothing of it")
        world.weather = weather
        if world.has_workflows:
            world.workflows.plan()
        self._ends_us = world.now_us + round(FAULTY_S * 1_000_000)
        self._act()
        world.run_until(lambda: False, FAULTY_S)

    def _act(self) -> None:
        world, chance = self._cluster, self._chance
        acts = [self._calls._enqueue, self._cut, self._cut_many, self._restart_server, self._kill, self._freeze]
        acts += [self._start, world.end_every_session, *[each for each, _ in self._asks]]
        (act,) = chance.choices(acts, (30, 3, 1, 1, 2, 1, 3, 1, *[weight for _, weight in self._asks]))
        act()
        at_us = world.now_us + chance.randrange(900_000)
        if at_us < self._ends_us:
            world.at(at_us, self._act)

    def _cut(self) -> None:
        if (process := self._cluster.one()) is not None:
            self._cluster.cut(process, self._chance.choice((0.5, 3.0, 9.0, 14.0, 40.0)))

    def _cut_many(self) -> None:
        up = self._cluster.up()
        seconds = self._chance.choice((1.0, 12.0, 25.0))
        for process in self._chance.sample(up, len(up) // 2):
            self._cluster.cut(process, seconds)

    def _restart_server(self) -> None:
        world = self._cluster
        world.end_every_session()
        for process in world.alive:
            world.note_outage(process)
        world.outage_until_us = world.now_us + self._chance.choice((300_000, 2_000_000, 6_000_000))

    def _kill(self) -> None:
        if (process := self._cluster.one()) is not None:
            process.kill()

    def _freeze(self) -> None:
        process = self._cluster.one()
        if process is not None:
            seconds = self._chance.choice((1.0, 8.0, 20.0))
            process.was_out = True
            self._cluster.log(process, "is out for", seconds)
            process.frozen_until_us = self._cluster.now_us + round(seconds * 1_000_000)
            self._cluster.at(process.frozen_until_us, process.thaw)

    def _start(self) -> None:
        if len(self._cluster.alive) < HOSTS:
            self._cluster.new_process()


class ReturnScenario(ClusterScenario):
    """One of three hosts is cut off for longer than the grace, is given work all the time, and comes back."""

    def have_faults(self) -> None:
        world = self._cluster
        hosts = []
        for _ in range(3):
            hosts.append(world.new_process())
            world.run_until(lambda: False, 0.3)  # so that they do not look at the same moments
        world.cut(hosts[0], AWAY_S + self._chance.random())
        for after_us in range(0, round((AWAY_S + 5.0) * 1_000_000), 250_000):
            world.at(world.now_us + after_us, lambda: self._enqueue_at(hosts[0]))
        world.run_until(lambda: False, AWAY_S + 10.0)

    def _enqueue_at(self, host: Process) -> None:
        name = self._chance.choice([each for each in ("safe", "once", "retried") if each in host.jobs])
        host.call(lambda: host.watch(host.jobs[name].enqueue(self._cluster.next_label(), "sleep:0.7")))


def play_cluster(seed: int, scenario: Callable[[ClusterWorld], ClusterScenario] = ClusterScenario) -> Story:
    """Run one seed from its first line to its last."""
    return tell(seed, lambda folder: ClusterWorld(seed, folder), scenario)


def main() -> int:
    """Play many seeds, and tell what fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--start", type=int, default=1, help="the first one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--lines", type=int, default=400, help="lines of history that are printed of a failing seed")
    options = parser.parse_args()
    failing, runs = [], 0
    with ProcessPoolExecutor(options.workers) as pool:
        for story in pool.map(play_cluster, range(options.start, options.start + options.seeds)):
            runs += story.run_count
            if story.faults:
                failing.append(story.seed)
                print("\n".join([f"--- seed {story.seed}", *story.lines[-options.lines :], *story.faults]))
    print(f"{options.seeds} seeds of {HOSTS} hosts, {runs} runs of user code: {len(failing)} failing {failing}")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
