"""The way from a process to the disk: calls that come late, fail before they took effect, or fail although they did."""

import asyncio
import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.record import Write, expected_of
from taskmanager.model.states import TaskStatus
from taskmanager.store.presence import Presence
from taskmanager.store.protocol import CommitReport, Store
from tests.simulation.disk import WRITES, finish
from tests.simulation.workflows import READS as WORKFLOW_READS

if TYPE_CHECKING:
    from tests.simulation.process import Process

SOUND = frozenset({"close", "look_after", "add_figures", "prune_figures"})
"""Calls that neither fail nor take time. They draw no fate, so a seed plays the same story with more of them."""
READS = frozenset(
    {
        "free_queues",
        "waiting_levels",
        "fetch_taken",
        "best_waiting",
        "counts",
        "instances",
        "heartbeats",
        "paused_queues",
        "latest_stamp",
    }
    | WORKFLOW_READS
    | {"schedules", "busy_schedules"}
    | {
        f"fetch{what}"
        for what in (
            "",
            "_attempts",
            "_steps",
            "_event",
            "_ids",
            "_many",
            "_owned",
            "_owned_ids",
            "_orphans",
            "_cancel_requests",
        )
    }
)
"""What goes through the reader's connection; everything else is the writer's."""


CLOSE_LOOK_US = 1_000
SLOW_US = 20_000
"""A call that takes longer, by itself or behind others, is in the way of its process."""


class Fate(NamedTuple):
    """What happens to one call."""

    kind: Literal["ok", "before", "after"] = "ok"
    wait_us: int = 0
    answer_us: int = 0


@dataclass
class Weather:
    """How likely what is, in one seed."""

    fail_before: float = 0.0
    fail_after: float = 0.0
    late: float = 0.0
    longest_us: int = 50_000
    refuse: float = 0.0
    """How often the store refuses a success for what it holds."""

    @property
    def longest_call_s(self) -> float:
        """To its effect, and back."""
        return 2 * self.longest_us / 1_000_000

    def draw(self, chance: random.Random) -> Fate:
        """The fate of the next call."""
        dice = chance.random()
        kind: Literal["ok", "before", "after"] = "ok"
        if dice < self.fail_before:
            kind = "before"
        elif dice < self.fail_before + self.fail_after:
            kind = "after"
        if chance.random() >= self.late:
            return Fate(kind)
        return Fate(kind, chance.randrange(self.longest_us), chance.randrange(self.longest_us))


class FaultyLine:
    """The store of one process, with its line to the disk. Calls of one connection keep their order."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._store = process.view.store
        self._busy_until_us = {"reader": 0, "writer": 0}
        self._under_way = 0
        self._open_count = 0

    def as_store(self) -> Store:
        """Itself, as the protocol that it answers."""
        return cast("Store", self)

    def presence(self, instance_id: str) -> Presence:
        """What proves that the instance lives, as the world has it."""
        return self._process.world.proof_of(self._process, instance_id)

    def open_beater(self) -> None:
        """The heart of a simulated process is beaten by the simulation, not by a thread."""

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._store, verb)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            work = method
            if verb == "commit":
                work = partial(self._commit, method)
            elif verb == "purge":
                work = partial(self._purge, method, self._process.purging > 0)
            return await self._call(verb, lambda: finish(work(*args, **kwargs)), args)

        setattr(self, verb, call)  # found without this from now on
        return call

    async def _commit(self, commit: Callable[..., Any], writes: Sequence[Write]) -> CommitReport:
        """Some successes are refused once, so that the next try must do with less."""
        world = self._process.world
        refused = {}
        for write in writes if world.has_faults and world.weather.refuse else ():
            if self._may_refuse(write) and world.chance.random() < world.weather.refuse:
                world.log(self._process, "store refuses the success of", write.task_id)
                world.refused.add((write.task_id, world.checks.rows[write.task_id].start_count))
                refused[write.task_id] = "refused, as the seed wants it"
        report: CommitReport = await commit([write for write in writes if write.task_id not in refused])
        return report._replace(rejected={**report.rejected, **refused})

    async def _purge(self, purge: Callable[..., Any], is_asked: bool, *args: Any) -> Any:
        """It goes on when the call of the application is cancelled that it is of."""
        self._process.is_purge_asked = is_asked
        return await purge(*args)

    def _may_refuse(self, write: Write) -> bool:
        """A success on the running row that it expects; any other write is lost, or changes nothing."""
        row = self._process.world.checks.rows.get(write.task_id)
        if row is None or (write.status, row.status) != (TaskStatus.COMPLETED, TaskStatus.RUNNING):
            return False
        if write.expected != expected_of(row):
            return False
        return (row.task_id, row.start_count) not in self._process.world.refused

    async def _call(self, verb: str, work: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        process, world = self._process, self._process.world
        fate = Fate() if verb in SOUND else process.fate()
        if verb == "open" and fate.kind == "after":  # one that fails leaves nothing open
            fate = fate._replace(kind="before")
        connection = "reader" if verb in READS else "writer"
        now_us = world.now_us
        is_close = verb == "close"
        is_quick = not self._under_way if is_close else self._busy_until_us[connection] <= now_us
        if verb in WRITES and fate.wait_us:  # written to the log now, and it counts when the disk has it
            world.disk.log_is_written(world.clock.now_us())
        if fate.kind == "ok" and not fate.wait_us + fate.answer_us and is_quick:
            try:
                return self._effect(verb, work, args, fate)
            except StoreError:
                self._note_failure(verb, fate)
                raise
        begins = max(now_us, self._busy_until_us[connection]) + fate.wait_us
        self._busy_until_us[connection] = begins + fate.answer_us
        if begins + fate.answer_us - now_us > SLOW_US:
            process.is_disturbed(begins + fate.answer_us - now_us)
        answer: asyncio.Future[Any] = process.loop.create_future()
        open_count = self._open_count

        def begin() -> None:
            if is_close and self._under_way:  # it comes behind everything that is under way
                process.at(world.now_us + CLOSE_LOOK_US, begin)
                return
            if is_close and open_count != self._open_count:  # a start has a store of its own, and this was another's
                if not answer.done():
                    answer.set_result(None)
                return
            process.closing_us = world.now_us - now_us
            self._happen(verb, work, args, fate, answer)

        self._under_way += not is_close
        process.at(begins, begin)
        return await answer

    def _happen(
        self, verb: str, work: Callable[[], Any], args: tuple[Any, ...], fate: Fate, answer: "asyncio.Future[Any]"
    ) -> None:
        value: Any = None
        error: StoreError | None = None
        if fate.kind == "before":
            error = StoreUnavailable(f"{verb} fails, as the seed wants it")
        else:
            try:
                value = self._effect(verb, work, args, fate)
            except StoreError as exc:
                error = exc
            if fate.kind == "after" and error is None:
                error = StoreUnavailable(f"{verb} took effect and fails, as the seed wants it")
        if error is not None:
            self._note_failure(verb, fate)
        process = self._process

        def give() -> None:
            self._under_way -= verb != "close"
            if answer.done():
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

        process.at(process.world.now_us + fate.answer_us, lambda: process.loop.call_soon(give))

    def _note_failure(self, verb: str, fate: Fate) -> None:
        if verb == "commit":
            self._process.is_degraded()
        self._process.is_disturbed()
        self._process.world.log(self._process, "store", verb, fate.kind)

    def _effect(self, verb: str, work: Callable[[], Any], args: tuple[Any, ...], fate: Fate) -> Any:
        value = work()
        if verb in ("open", "close"):
            self._process.has_closed = verb == "close"
            self._open_count += verb == "open"
        if verb in WRITES and not fate.wait_us:
            self._process.world.disk.log_is_written(self._process.world.clock.now_us())
        world = self._process.world
        world.hearing.is_answered = fate == Fate()  # by the time of a late answer, its caller may be gone
        world.checks.observe(self._process, verb, args)
        return value
