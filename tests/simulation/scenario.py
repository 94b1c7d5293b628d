"""What happens to the processes of one seed, drawn from the seed; then the faults end, and everything must end well."""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from taskmanager import QueueFull, TaskManagerError
from taskmanager.model.states import TERMINAL
from tests.simulation.process import Process
from tests.simulation.world import Broken, World, inhabited

FAULTY_S = 14.0
"""How long bad things happen."""
HEALTHY_S = 900.0
"""How long the rest may take: retries, snoozes and timeouts are all shorter than this together."""
MAX_PROCESSES = 3
PLANS = ("sleep:0", "sleep:0", "sleep:0.05", "sleep:0.7", "sleep:3", "fail:1", "fail:9", "snooze:0.5")
ODD_PLANS = ("stubborn:4", "parent:0.3", "exit", "progress:0.6", "sleep:20")
TWO_HOURS_S = 7_200
TEN_YEARS_S = 10 * 365 * 86_400


@dataclass
class Story:
    """How one seed went."""

    seed: int
    faults: list[str]
    lines: list[str]
    run_count: int
    row_count: int


def play(seed: int) -> Story:
    """Run one seed from its first line to its last."""
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=_memory_folder()) as folder:
        world = World(seed, Path(folder))
        with inhabited(world):
            try:
                _Scenario(world).play()
            except Broken as exc:
                if str(exc) not in world.faults:
                    world.faults.append(str(exc))
            finally:
                world.close()
    return Story(seed, world.faults, world.lines, world.runs.total, len(world.checks.rows))


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class _Scenario:
    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._numbers = iter(range(1, 1_000))
        self._suspended_until_us = 0
        self._steps = self._chance.random() < 0.4
        self._out_of_order = self._chance.random() < 0.5
        self._actions: list[tuple[Callable[[], None], int]] = [
            (self._enqueue, 30),
            (self._start, 4),
            (self._kill, 4),
            (self._freeze, 2),
            (self._block, 1),
            (self._suspend, 1),
            (self._stop, 3),
            (self._restart, 1),
            (self._cancel, 6),
            (self._retry, 4),
            (self._outage, 2),
            (self._step_clock, 2),
            (self._pause, 1),
            (self._ask, 3),
            (self._submit, 2),
        ]

    # The two halves.

    def play(self) -> None:
        world = self._world
        for _ in range(self._chance.choice((1, 2, 3))):
            self._start()
        self._plan_next()
        world.run_until(lambda: False, FAULTY_S)
        world.log(None, "the faults end")
        self._heal()
        if not world.run_until(self._has_ended, HEALTHY_S):
            self._tell_what_is_left()
        for each in world.processes:
            if each.is_alive:
                each.loop.call_soon(each.leave, 1.0)
        if not world.run_until(lambda: not any(each.is_alive for each in world.processes), 60.0):
            world.fault(f"processes do not stop: {[each for each in world.processes if each.is_alive]}")
        world.checks.observe(world.processes[0], "the end", ())
        world.checks.at_the_end()

    def _plan_next(self) -> None:
        world = self._world
        pause_us = self._chance.choice((0, 1_000, 30_000, 300_000, 1_500_000))
        at_us = max(world.now_us, self._suspended_until_us) + self._chance.randrange(pause_us + 1)
        if at_us < FAULTY_S * 1_000_000:
            world.at(at_us, self._act)

    def _act(self) -> None:
        (act,) = self._chance.choices([each for each, _ in self._actions], [weight for _, weight in self._actions])
        act()
        self._plan_next()

    def _heal(self) -> None:
        world = self._world
        world.has_faults = False
        world.outage_until_us = 0
        for each in world.processes:
            each.turns_left = None
            each.outage_until_us = 0
            if each.is_alive:
                each.frozen_until_us = each.blocked_until_us = world.now_us
                each.thaw()
        self._new_process()
        world.at(world.now_us + 10_000_000, self._resume_queues)
        world.at(world.now_us + 40_000_000, self._reach_promises)

    def _resume_queues(self) -> None:
        for each in self._up():
            each.spawn(each.manager.resume("narrow"), "resume")

    def _reach_promises(self) -> None:
        """A moment that was still to come when it was stored is waited for, however far a step has put it away."""
        waiting = [
            (row.enqueued_at, row.updated_at) for row in self._world.checks.rows.values() if row.status == "PENDING"
        ]
        for each in self._up():
            if each.engine is not None:
                waiting += [(live.enqueued_at, live.sent_at) for live in each.engine.live.values()]
        promised = [due for due, written in waiting if due > written]
        ahead_us = max(promised, default=0) - self._world.clock.now_us()
        if ahead_us > 0:
            self._world.clock.step(ahead_us / 1_000_000)
            self._world.log(None, "the wall clock is stepped to the last promise")

    def _has_ended(self) -> bool:
        """Every row has ended, and nobody waits any more."""
        world = self._world
        up = self._up()
        if not up or any(each.is_alive and not each.is_up for each in world.processes) or world.runs.now:
            return False
        if any(each.waiting or (each.engine and each.engine.live) for each in up):
            return False
        return all(row.status in TERMINAL for row in world.checks.rows.values())

    def _tell_what_is_left(self) -> None:
        world = self._world
        for row in world.checks.rows.values():
            if row.status not in TERMINAL:
                world.fault(f"still {row.status} at the end: {row}")
        for each in self._up():
            for task_id in each.waiting.values():
                world.fault(f"{each} still waits for {task_id}: {world.checks.rows.get(task_id)}")
            if each.engine and each.engine.live:
                world.fault(f"{each} still holds {list(each.engine.live.values())[:3]}")
        world.fault(f"not at rest after {HEALTHY_S:.0f} s: {world.processes}, {world.runs.now}")

    # Who.

    def _up(self) -> list[Process]:
        return [each for each in self._world.processes if each.is_up and not each.is_leaving]

    def _one(self) -> Process | None:
        up = [each for each in self._up() if each.may_turn]
        return self._chance.choice(up) if up else None

    def _in(self, process: Process, work: Callable[[], Any]) -> None:
        """A call of the application, in a turn of its loop."""

        def guarded() -> None:
            try:
                work()
            except TaskManagerError as exc:
                self._world.log(process, "call raised", type(exc).__name__)

        process.loop.call_soon(guarded)

    # The actions.

    def _start(self) -> None:
        if sum(each.is_alive for each in self._world.processes) < MAX_PROCESSES:
            self._new_process()

    def _new_process(self) -> None:
        process = Process(self._world, next(self._numbers))
        self._world.processes.append(process)
        self._world.log(process, "starts")
        process.loop.call_soon(process.begin)

    def _kill(self) -> None:
        alive = [each for each in self._world.processes if each.is_alive]
        if alive:
            self._chance.choice(alive).turns_left = round(10 ** self._chance.uniform(0, 3.3))

    def _freeze(self) -> None:
        process = self._one()
        if process is not None:
            seconds = self._chance.choice((0.3, 3.0, 6.0, 15.0, 3_600.0))
            self._out(process, seconds)
            process.frozen_until_us = self._world.now_us + round(min(seconds, 60.0) * 1_000_000)
            self._world.at(process.frozen_until_us, process.thaw)

    def _suspend(self) -> None:
        """The machine sleeps, or the container is paused: everybody at once, and nobody is to blame for it."""
        until_us = self._world.now_us + round(self._chance.choice((0.7, 8.0, 60.0)) * 1_000_000)
        self._suspended_until_us = until_us
        self._world.suspension_count += 1
        self._world.log(None, "everything is stopped until", until_us / 1e6)
        for process in self._world.processes:
            if process.is_alive:
                if process.may_turn:
                    process.last_beat_us = max(process.last_beat_us, until_us)
                process.frozen_until_us = max(until_us, process.frozen_until_us)
                self._world.at(process.frozen_until_us, process.thaw)

    def _block(self) -> None:
        process = self._one()
        if process is not None:
            seconds = self._chance.choice((0.5, 3.0, 8.0))
            self._out(process, seconds)
            process.blocked_until_us = self._world.now_us + round(seconds * 1_000_000)

    def _out(self, process: Process, seconds: float) -> None:
        process.was_out = True
        self._world.log(process, "is out for", seconds)

    def _stop(self) -> None:
        process = self._one()
        if process is not None:
            drain_s = self._chance.choice((0.0, 0.5, 5.0))
            self._world.log(process, "is to stop within", drain_s)
            process.loop.call_soon(process.leave, drain_s)

    def _restart(self) -> None:
        process = self._one()
        if process is not None:
            drain_s = self._chance.choice((0.0, 0.5))
            self._world.log(process, "restarts")
            process.loop.call_soon(lambda: process.spawn(process.restart(drain_s), "restart"))

    def _outage(self) -> None:
        until_us = self._world.now_us + round(self._chance.choice((0.2, 2.0, 9.0)) * 1_000_000)
        process = self._one()
        if process is None or self._chance.random() < 0.5:
            self._world.outage_until_us = until_us
        else:
            process.outage_until_us = until_us
        self._world.log(process, "outage until", until_us / 1e6)

    def _step_clock(self) -> None:
        if self._steps:
            by_s = self._chance.choice((-TWO_HOURS_S, TWO_HOURS_S, TEN_YEARS_S, -90, 90))
            self._world.clock.step(by_s)
            self._world.log(None, "the wall clock is stepped by", by_s)

    def _pause(self) -> None:
        process = self._one()
        if process is not None:
            verb = self._chance.choice((process.manager.pause, process.manager.resume))
            self._in(process, lambda: process.spawn(verb("narrow"), "pause"))

    def _ask(self) -> None:
        process = self._one()
        if process is None:
            return
        manager = process.manager
        ask: Callable[[], Any] = self._chance.choice((manager.flush, manager.counts, manager.list, self._join(process)))
        self._in(process, lambda: process.spawn(ask(), "ask"))

    @staticmethod
    def _join(process: Process) -> Callable[[], Any]:
        return lambda: process.manager.join(timeout=5.0)

    # The tasks.

    def _enqueue(self) -> None:
        process = self._one()
        if process is None:
            return
        for _ in range(self._chance.choice((1, 1, 2, 8))):
            call, label, plan, key_id = self._draw_call(process)
            self._in(
                process,
                lambda call=call, label=label, plan=plan, key=key_id: self._accept(process, call, label, plan, key),
            )

    def _draw_call(self, process: Process) -> tuple[Any, int, str, str | None]:
        chance = self._chance
        name = chance.choice(sorted(process.jobs))
        task: Any = process.jobs[name]
        plan = chance.choice(PLANS if chance.random() < 0.8 else ODD_PLANS)
        options: dict[str, Any] = {}
        if self._out_of_order and chance.random() < 0.3:
            options["priority"] = chance.randint(1, 100)
        if chance.random() < 0.2:
            options["delay"] = chance.choice((0.01, 1.0, 5.0))
        elif chance.random() < 0.1:
            options["run_at"] = self._world.clock.now + timedelta(seconds=chance.choice((0.5, 10)))
        if chance.random() < 0.1:
            options["good_until"] = self._world.clock.now + timedelta(seconds=chance.choice((0.2, 5, 300)))
        key = None
        if name != "memory" and chance.random() < 0.2:
            key = options["idempotency_key"] = f"key-{chance.randrange(4)}"
        return task.with_options(**options), self._world.next_label(), plan, key

    def _accept(self, process: Process, call: Any, label: int, plan: str, key: str | None) -> None:
        if key is not None:
            definition, _ = call.bound()
            from taskmanager.model.ids import keyed_task_id

            self._world.checks.may_revive.add(keyed_task_id(definition.name, key))
        with suppress(QueueFull):
            handle = call.enqueue(label, plan)
            self._world.log(process, "accepts", handle.task_id, plan, key or "")
            process.watch(handle)

    def _submit(self) -> None:
        """A task in a transaction of the application's own."""
        process = self._one()
        if process is None or not self._world.is_on_file:
            return
        name, keeps = self._chance.choice(("safe", "once")), self._chance.random() < 0.7

        def submit() -> None:
            connection: Any = process.view.inline.raw_writer  # type: ignore[attr-defined]
            if connection is None:
                return
            connection.execute("BEGIN IMMEDIATE")
            task_id = process.manager.submit_in(connection, process.jobs[name], self._world.next_label(), "sleep:0.1")
            connection.execute("COMMIT" if keeps else "ROLLBACK")
            self._world.checks.observe(process, "submit", ())
            if keeps:
                self._world.checks.promised(task_id)

        self._in(process, submit)

    def _known_id(self, process: Process) -> str | None:
        known = sorted({*self._world.checks.rows, *process.handles})
        return self._chance.choice(known) if known else None

    def _cancel(self) -> None:
        process = self._one()
        task_id = None if process is None else self._known_id(process)
        if process is None or task_id is None:
            return
        self._world.log(process, "cancels", task_id)
        handle = process.handles.get(task_id)
        if handle is not None and self._chance.random() < 0.5:
            self._in(process, handle.cancel)
        else:
            self._in(process, lambda: process.spawn(process.manager.cancel(task_id), "cancel"))

    def _retry(self) -> None:
        process = self._one()
        task_id = None if process is None else self._known_id(process)
        if process is None or task_id is None:
            return
        force = self._chance.random() < 0.3
        self._world.log(process, "retries", task_id, "by force" if force else "")
        self._world.checks.may_revive.add(task_id)
        self._in(process, lambda: process.spawn(process.manager.retry(task_id, force=force), "retry"))
