"""The lanes beside the event loop on virtual time: threads that work on, and children that may die under their task."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskmanager import Snooze
from taskmanager.engine.run.child import ChildCall, ChildReply, Heard, News
from taskmanager.engine.run.lanes import BrokenProcess, Ended
from tests.simulation.jobs import Planned, work_s

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.runs import Run

COMES_UP = 0.3
"""How often there is no idle child."""


class SimulatedThreads:
    """The thread lane on virtual time: the function runs at once, and its outcome comes when its work is done."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._seconds = 0.0
        self._run: Run | None = None

    def works(self, seconds: float, run: Any) -> None:
        """How long the function that runs now takes."""
        self._seconds, self._run = seconds, run

    def submit(self, call: Callable[[], Any], context: Context) -> "asyncio.Future[Ended]":
        """As `ThreadLane.submit`."""
        process = self._process
        process.gives_lane("thread")
        future: asyncio.Future[Ended] = process.loop.create_future()
        try:
            ended = Ended(context.run(call))
        except Exception as exc:
            ended = Ended(error=exc)
        run = self._run
        assert run is not None, "the function has said how long it takes"

        def deliver() -> None:
            process.world.runs.end(run)
            if not future.done():
                future.set_result(ended)

        ends_us = process.world.now_us + round(self._seconds * 1_000_000)
        process.at(ends_us, lambda: process.loop.call_soon(deliver))
        return future

    def outlive(self, on_outlived: Callable[[], None]) -> "frozenset[asyncio.Future[Ended]]":
        """No loop is closed here."""
        return frozenset()

    def close(self) -> None:
        """Nothing to let go."""


@dataclass(eq=False)
class Child:
    """One child process with the task that it runs, and the future by which its parent hears of it."""

    run: "Run"
    reply: "asyncio.Future[ChildReply]"
    is_gone: bool = False


class SimulatedChildren:
    """The process lane: a child goes on while its parent is frozen, dies with it, and may die alone."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.busy: list[Child] = []

    async def close(self, patience_s: float) -> None:
        """None comes up here."""

    async def run(self, call: ChildCall, on_child: Callable[[], None], heard: Heard) -> ChildReply:
        """As `ProcessLane.run`: a child may be long in coming up, and cancelling kills it."""
        process = self._process
        process.gives_lane("child")
        world = process.world
        if world.has_faults and world.chance.random() < COMES_UP:
            await asyncio.sleep(world.chance.choice((0.01, 0.3, 2.0)))
        on_child()
        label, plan = call.args
        run = world.runs.begin(process, call.task_name, call.task_id, call.attempt)
        child = Child(run, process.loop.create_future())
        self.busy.append(child)
        kind, _, number = plan.partition(":")
        if kind == "progress":
            heard(News((1, 2, ""), [], [], 0))
        reply = self._work(run, label, kind, float(number or 0))
        end = self.die if reply is None else lambda each: self._answer(each, reply)
        world.at(world.now_us + round(work_s(plan) * 1_000_000), lambda: end(child))
        try:
            return await child.reply
        finally:
            self._bury(child)

    def _work(self, run: "Run", label: int, kind: str, amount: float) -> ChildReply | None:
        """What comes back; None when the child dies instead."""
        world = self._process.world
        value: int | Snooze = label
        error: BaseException | None = None
        if kind == "die" and world.spend(label, amount):
            return None
        if kind == "fail" and world.spend(label, amount):
            error = Planned(f"{label} fails")
        elif kind == "snooze" and world.spend(label, 1):
            world.runs.is_asked_for(run)
            value = Snooze(amount)
        elif kind == "exit":
            error = SystemExit(3)
        return ChildReply(value) if error is None else ChildReply(words=repr(error), kind=type(error), exc=error)

    def _answer(self, child: Child, reply: ChildReply) -> None:
        if self._process.is_alive and not child.is_gone:
            self._bury(child)
            self._tell(child, lambda: child.reply.set_result(reply))

    def die(self, child: Child) -> None:
        """It is killed, runs out of memory, or crashes: its task, and nothing else, hears of it."""
        process = self._process
        if process.is_alive and not child.is_gone:
            process.world.log(process, "loses the child of", child.run.name, child.run.task_id)
            process.world.runs.crashed.add((child.run.task_id, child.run.attempt))
            self._bury(child)
            self._tell(child, lambda: child.reply.set_exception(BrokenProcess("the child died, as the seed wants it")))

    def _bury(self, child: Child) -> None:
        child.is_gone = True
        if child in self.busy:
            self.busy.remove(child)
        self._process.world.runs.end(child.run)

    def _tell(self, child: Child, news: Callable[[], None]) -> None:
        """The parent hears of it when it runs."""

        def give() -> None:
            if not child.reply.done():
                news()

        process = self._process
        process.at(process.world.now_us, lambda: process.loop.call_soon(give))
