"""How long does the event loop keep other work waiting at full load?

As many tasks run as the loop can do: a feeder calls for a hundred more as soon as fewer than five hundred are under
way. The bare loop is fed in the same way, with tasks of a TaskGroup that a semaphore bounds. The lag is that of
something that becomes ready at any moment: it waits until the turn of the loop is over that goes on then. All turns are
timed, by the clock and by the processor time of their thread; a busy machine lengthens only the first.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from _harness import BOUND, Figures, Line, Options, Watch, database, run

from taskmanager import TaskManager

CHUNK = 100
UNDER_WAY = 500
DURATION_S = (4, 2)


class TimingSelector(selectors.DefaultSelector):
    """What the loop waits with, which is where its turns begin and end."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.turns_s: list[float] = []
        self.turns_cpu_s: list[float] = []
        self.idle_s = 0.0
        self._woke, self._woke_cpu = time.perf_counter(), time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait, as the class does."""
        now = time.perf_counter()
        self.turns_cpu_s.append(time.thread_time() - self._woke_cpu)
        self.turns_s.append(now - self._woke)
        found = super().select(timeout)
        self._woke, self._woke_cpu = time.perf_counter(), time.thread_time()
        self.idle_s += self._woke - now
        return found


def lag_ms(turns_s: Sequence[float], idle_s: float, percent: float) -> float:
    """How far `percent` of all moments are from the end of their turn, at most. An idle loop does not lag."""
    allowed = (sum(turns_s) + idle_s) * (1 - percent / 100)
    # Moments that are further than a lag from the end of their turn: all of a turn but its last so many milliseconds.
    beyond, least = 0.0, 0.0
    for number, turn in enumerate(sorted(turns_s, reverse=True), 1):
        beyond += turn
        least = max(least, (beyond - allowed) / number)
    return least * 1000


async def load(timing: TimingSelector, call: Callable[[], Any], ended: list[None], duration_s: float) -> Figures:
    """Put the load on, and say what it did to the loop."""
    called, watch = 0, Watch()
    timing.forget()
    end = time.perf_counter() + duration_s
    while time.perf_counter() < end:
        if called - len(ended) < UNDER_WAY:
            for _ in range(CHUNK):
                call()
            called += CHUNK
        await asyncio.sleep(0)
    figures = watch.figures(len(ended))
    for name, turns in (("wall", timing.turns_s), ("cpu", timing.turns_cpu_s)):
        figures |= {f"{name} {percent}": lag_ms(turns, timing.idle_s, percent) for percent in (99, 99.9)}
    return figures


def in_timed_loop(main: Callable[[TimingSelector], Any]) -> Figures:
    """Run it in a loop whose turns are timed."""
    timing = TimingSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(timing)) as runner:
        found: Figures = runner.run(main(timing))
    return found


def library(options: Options, *, persist: bool) -> Figures:
    """The library."""

    async def main(timing: TimingSelector) -> Figures:
        ended: list[None] = []

        async def note() -> None:
            ended.append(None)

        with database(options) as path:
            manager = TaskManager(path)
            task = manager.task(name="note", persist=persist)(note)
            async with manager:
                return await load(timing, task.enqueue, ended, options.size(*DURATION_S))

    return in_timed_loop(main)


def bare(options: Options) -> Figures:
    """A TaskGroup."""

    async def main(timing: TimingSelector) -> Figures:
        ended: list[None] = []
        semaphore = asyncio.Semaphore(BOUND)

        async def bounded() -> None:
            async with semaphore:
                ended.append(None)

        async with asyncio.TaskGroup() as group:
            return await load(timing, lambda: group.create_task(bounded()), ended, options.size(*DURATION_S))

    return in_timed_loop(main)


PARTS = {"memory": partial(library, persist=False), "persisted": partial(library, persist=True), "bare": bare}
LINES = [
    line
    for part, name in (("memory", "memory-only"), ("persisted", "persisted"))
    for line in (
        Line(f"{name}: lag p99 / bare", part, "wall 99", "ms", "bare", must="<= 2"),
        Line(f"{name}: lag p99.9 / bare", part, "wall 99.9", "ms", "bare", must="<= 2"),
        Line(f"{name}: lag p99 / bare, processor time", part, "cpu 99", "ms", "bare"),
        Line(f"{name}: lag p99.9 / bare, processor time", part, "cpu 99.9", "ms", "bare"),
        Line(f"{name}: rate meanwhile / bare", part, "per_s", "/s", "bare"),
    )
]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
