"""What the application asks of its manager in one seed: tasks of every kind, and what people do with them."""

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from taskmanager import QueueFull
from taskmanager.model.ids import keyed_task_id
from taskmanager.model.states import LIVE, TERMINAL, TaskStatus
from tests.simulation.batches import GROUPS
from tests.simulation.jobs import QUEUES
from tests.simulation.process import Process
from tests.simulation.promises import flush, follow, join, wait_for_room
from tests.simulation.steps import NAME as STEPS
from tests.simulation.waits import NAME as WAITS
from tests.simulation.world import World

PLANS = ("sleep:0", "sleep:0", "sleep:0.05", "sleep:0.7", "sleep:3", "fail:1", "fail:9", "snooze:0.5")
ERROR_CODES = ("UNHANDLED_EXCEPTION", "TASK_CANCELLED", "TASK_TIMEOUT")
ODD_PLANS = ("stubborn:4", "parent:0.3", "exit", "progress:0.6", "sleep:20", "die:1", "die:9")
_NOW = "CAST(strftime('%s', 'now') AS INTEGER) * 1000000"
_PAGE = (Path(__file__).parents[2] / "docs" / "storage.md").read_text("utf-8").replace(_NOW, ":now")
SQL = {verb: _PAGE.partition(f"```sql {verb}\n")[2].partition("```")[0] for verb in ("cancel", "retry")}
PATIENT = frozenset(
    {"flush", "ask", "follow", "cancel", "retry", "purge", "retry_all", "cancel_all", "pause", "handle", "saved"}
    | {"repair", "room", "send", "pause_schedule", "resume_schedule", "run_schedule"}
)
"""Calls that may be cancelled while they wait."""


class Calls:
    """Each in some process that is up."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._out_of_order = self._chance.random() < 0.5
        self._purges = self._chance.random() < 0.3
        self.actions: tuple[tuple[Callable[[], None], int], ...] = (
            (self._enqueue, 30),
            (self._cancel, 6),
            (self._retry, 4),
            (self._pause, 2),
            (self._ask, 3),
            (self._follow, 3),
            (self._submit, 2),
            (self._purge, 2),
            (self._act_on_all, 5),
            (self._schedule, 2),
            (self._repair, 2),
            (self._write_sql, 2),
            (self._wait_for_room, 2),
            (self._lose_patience, 3),
        )

    def _pause(self) -> None:
        process = self._world.one()
        if process is not None:
            queue, verb = self._chance.choice(QUEUES), self._chance.choice(("pause", "resume"))
            act = getattr(self._world.pauses, verb)
            self._world.log(process, "is to", verb, queue)
            process.call(lambda: process.spawn(act(process, queue), verb))

    def _ask(self) -> None:
        process = self._world.one()
        if process is None:
            return
        manager = process.manager
        asks: tuple[Callable[[], Any], ...] = (partial(flush, process), manager.counts, manager.list)
        ask = self._chance.choice((*asks, self._join(process)))
        process.call(lambda: process.spawn(ask(), "ask"))

    def _join(self, process: Process) -> Callable[[], Any]:
        tags = self._chance.choice((None, self._some_tags()))
        self._world.log(process, "joins", tags or "")
        return partial(join, process, tags)

    def _follow(self) -> None:
        """Somebody waits for a task of whatever process, of which only the id is known here."""
        process = self._world.one()
        task_id = None if process is None else self._known_id(process)
        if process is not None and task_id is not None:
            self._world.log(process, "follows", task_id)
            process.call(lambda: process.spawn(follow(process, task_id), "follow"))

    def _repair(self) -> None:
        """Somebody asks by hand for what goes on by itself. One look at the wall clock decides who was silent, so
        nobody asks for that who may have set it, or for less than everything is ever stopped for.
        """
        process = self._world.one()
        if process is None:
            return
        manager = process.manager
        asks = [manager.recover_stuck_workflows, manager.get_stale_tasks]
        if not any(each.stepped_us for each in self._world.processes):
            asks += [manager.requeue_stale_claimed, manager.mark_stale_tasks_as_failed]
        ask: Callable[[], Any] = self._chance.choice(asks)
        self._world.log(process, "is to", ask.__name__)
        process.call(lambda: process.spawn(ask(), "repair"))

    def _write_sql(self) -> None:
        """Somebody cancels or retries a task by what the documentation has for that, beside every process."""
        process, world = self._world.one(), self._world
        task_id = None if process is None else self._known_id(process)
        verb = self._chance.choice(("cancel", "retry"))
        if process is None or task_id is None or not world.is_on_file or world.loss_count:
            return
        given = {"task_id": task_id, "now": world.clock.now_us()}
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(world.database, timeout=0)) as connection:
            with connection:
                done = connection.execute(SQL[verb], given).rowcount
            world.log(None, "somebody's SQL is to", verb, task_id, done)
            world.disk.log_is_written(given["now"])
        (world.batches.may_cancel if verb == "cancel" else world.checks.may_revive).add(task_id)
        world.checks.observe(process, "request_cancel" if verb == "cancel" else "submit", ())

    def _wait_for_room(self) -> None:
        process, queue = self._world.one(), self._chance.choice(QUEUES)
        if process is not None:
            self._world.log(process, "waits for room in", queue)
            process.call(lambda: process.spawn(wait_for_room(process, queue), "room"))

    def _lose_patience(self) -> None:
        """Somebody who waits for one call waits no longer. What it has begun may go on."""
        process = self._world.one()
        waiting = [] if process is None else [(task, what) for task, what in process.calls.items() if what in PATIENT]
        if process is not None and waiting:
            task, what = self._chance.choice(waiting)
            self._world.log(process, "waits no longer for", what)
            process.call(lambda: task.cancel() and None)

    # The tasks.

    def _enqueue(self) -> None:
        process = self._world.one()
        if process is None:
            return
        for _ in range(self._chance.choice((1, 1, 2, 8))):
            call, label, plan, key_id = self._draw_call(process)
            process.call(partial(self._accept, process, call, label, plan, key_id))
        if self._chance.random() < 0.1:
            process.call(lambda: process.spawn(flush(process), "flush"))

    def _draw_call(self, process: Process) -> tuple[Any, int, str, str | None]:
        chance = self._chance
        often = [each for each in (STEPS, WAITS) if each in process.jobs] * 4
        name = chance.choice([*sorted(process.jobs), *often])
        task: Any = process.jobs[name]
        plan = chance.choice(PLANS if chance.random() < 0.8 else ODD_PLANS)
        label = self._world.next_label()
        options: dict[str, Any] = {"tags": {"group": str(label % GROUPS)}}
        if self._out_of_order and chance.random() < 0.3:
            options["priority"] = chance.randint(1, 100)
        if chance.random() < 0.2:
            options["delay"] = chance.choice((0.01, 1.0, 5.0))
        elif chance.random() < 0.1:
            options["run_at"] = self._world.clock.now + timedelta(seconds=chance.choice((0.5, 10)))
        if chance.random() < 0.1:
            options["good_until"] = self._world.clock.now + timedelta(seconds=chance.choice((0.2, 5, 300)))
        key = None
        if chance.random() < 0.2:
            key = options["idempotency_key"] = f"key-{chance.randrange(4)}"
        return task.with_options(**options), label, plan, key

    def _accept(self, process: Process, call: Any, label: int, plan: str, key: str | None) -> None:
        if key is not None:
            definition, _ = call.bound()
            self._world.checks.may_revive.add(keyed_task_id(definition.name, key))
        try:
            handle = call.enqueue(label, plan)
        except QueueFull:
            process.spawn(wait_for_room(process, call.bound()[0].queue_name), "room")
            return
        if call.bound()[1].run_at_us is not None:
            self._world.promised_ids.add(handle.task_id)
        self._world.log(process, "accepts", handle.task_id, plan, key or "")
        if call.bound()[0].name == WAITS:
            self._world.waits.will_send(handle.task_id)
        process.watch(handle)
        if key is None:
            process.accepted[handle.task_id] = process.began_us, str(label % GROUPS)

    def _submit(self) -> None:
        """A task in a transaction of the application's own."""
        process = self._world.one()
        if process is None or not self._world.is_on_file:
            return
        name, keeps = self._chance.choice(("safe", "once")), self._chance.random() < 0.6
        held_s = self._chance.choice((0, 0, 0.3, 3.0))
        key = f"key-{self._chance.randrange(4)}" if keeps and self._chance.random() < 0.3 else None
        process.call(lambda: process.submit(name, key, keeps=keeps, held_s=held_s))

    def _known_id(self, process: Process) -> str | None:
        known = sorted({*self._world.checks.rows, *process.handles})
        return self._chance.choice(known) if known else None

    def _cancel(self) -> None:
        process = self._world.one()
        task_id = None if process is None else self._known_id(process)
        if process is None or task_id is None:
            return
        self._world.log(process, "cancels", task_id)
        self._world.batches.may_cancel.add(task_id)
        handle = process.handles.get(task_id)
        if handle is not None and self._chance.random() < 0.5:
            process.call(handle.cancel)
        else:
            process.call(lambda: process.spawn(process.manager.cancel(task_id), "cancel"))

    def _retry(self) -> None:
        process = self._world.one()
        task_id = None if process is None else self._known_id(process)
        if process is None or task_id is None:
            return
        given = {"force": self._chance.random() < 0.3, "from_start": self._chance.random() < 0.3}
        self._world.log(process, "retries", task_id, *[name for name, is_so in given.items() if is_so])
        self._world.checks.may_revive.add(task_id)
        process.call(lambda: process.spawn(process.manager.retry(task_id, **given), "retry"))

    def _purge(self) -> None:
        process = self._world.one()
        if process is None or not self._purges:
            return
        chance = self._chance
        given: dict[str, Any] = {"status": chance.choice((None, *sorted(TERMINAL)))}
        given["older_than"] = chance.choice((None, timedelta(0), timedelta(seconds=2)))
        given["tags"] = chance.choice((None, self._some_tags()))
        given["error_code"] = chance.choice((None, None, *ERROR_CODES))
        self._world.log(process, "purges", given)
        process.call(lambda: process.spawn(process.purge(given), "purge"))

    def _act_on_all(self) -> None:
        """Somebody retries or cancels all that fit."""
        process, chance = self._world.one(), self._chance
        if process is None:
            return
        verb = chance.choice(("retry_all", "cancel_all"))
        statuses = TERMINAL - {TaskStatus.COMPLETED} if verb == "retry_all" else LIVE
        filters = {
            "status": chance.choice(sorted(statuses)),
            "task_name": chance.choice(sorted(process.jobs)),
            "queue_name": chance.choice(QUEUES),
            "tags": self._some_tags(),
            "error_code": chance.choice(ERROR_CODES),
        }
        given = {name: filters[name] for name in chance.sample(sorted(filters), chance.choice((1, 1, 2)))}
        self._world.log(process, "is to", verb, given)
        process.call(lambda: process.spawn(self._world.batches.act(process, verb, given), verb))

    def _some_tags(self) -> dict[str, str]:
        return {"group": str(self._chance.randrange(GROUPS))}

    def _schedule(self) -> None:
        """Somebody pauses a schedule, resumes it, or runs it by hand."""
        process, names = self._world.one(), list(self._world.timetable.entries)
        if process is None or not names:
            return
        name = self._chance.choice(names)
        verb = self._chance.choice(("pause_schedule", "resume_schedule", "run_schedule"))
        self._world.log(process, "is to", verb, name)
        act: Any = process.run_schedule if verb == "run_schedule" else getattr(process.manager, verb)
        process.call(lambda: process.spawn(act(name), verb))
