"""Virtual time for the running event loop: instead of sleeping, it jumps to what is due next.

`asyncio.sleep`, `asyncio.timeout` and `call_later` follow it, in user code and in ours, because `loop.time` and the
`select` of its selector are replaced. Time stands still, and the loop waits for real, while something is in flight that
only real time can end: a store call, a task in a thread or child process, a job of an executor (`asyncio.to_thread`).
The loop does not see sockets, nor threads that it did not start: do not wait for those on a virtual clock.

If nothing can happen on the loop any more, it would wait for ever. The blocked test gets a `RuntimeError` instead.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from taskmanager.engine.look.polling import WriteWatch
from taskmanager.engine.words.timers import Alarm, Recheck, StallWatch
from taskmanager.engine.write.commits import DueTime
from taskmanager.model.clock import SECOND_US
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.gil import Lending

LANE_PATIENCE_S: Final = 10.0
"""Real seconds for which time stands still for a lane without news, so that a hanging thread hangs no test."""
LAST_LOOK_S: Final = 0.5
"""Real seconds to wait for news from outside the loop before an await is given up."""
HOPELESS_AFTER: Final = 50
"""Jumps in a row that led to nothing but looks into the store before an await is given up."""
NUDGE_AFTER: Final = 8
"""A timer that fires this often without time passing has a rounding error, and gets a microsecond more."""

_OUR_TASKS: Final = "taskmanager-"
_WRITER_TASK: Final = "taskmanager-writer"
_CLAIMER_TASK: Final = "taskmanager-claimer"


class Inhabitant(Protocol):
    """What a world tells its loop."""

    def has_call_in_flight(self) -> bool:
        """Return whether a store call is under way."""
        ...

    def has_lane_in_flight(self) -> bool:
        """Return whether a thread or a child process runs a task."""
        ...

    def has_abandoned_work(self) -> bool:
        """Return whether something timed out and still runs."""
        ...

    def due_in_s(self) -> list[float]:
        """Return the seconds until each thing that waits is due, 0 or less for a row that nothing has taken yet."""
        ...


class VirtualTime:
    """The virtual time of one loop. All worlds on the loop share it."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._selector = loop._selector
        # A whole number, not before any timer that is set already: sums with it stay exact to the microsecond.
        self._base_s: int = math.ceil(loop.time())
        self.elapsed_us = 0
        self.lane_patience_s = LANE_PATIENCE_S
        self.inhabitants: list[Inhabitant] = []
        self._executor_jobs = 0
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._motionless_count = 0
        self._routine_jumps = 0
        self._owner = asyncio.current_task()

    def __repr__(self) -> str:
        return f"<VirtualTime {self.elapsed_us / SECOND_US:g} s, {len(self.inhabitants)} worlds>"

    # In place of the loop's own.

    def install(self) -> None:
        """Take over the loop."""
        loop = self._loop
        loop.time = self.time
        loop._selector = _Selector(self._selector, self.select)
        run_in_executor = loop.run_in_executor

        def counted(executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
            future: asyncio.Future[Any] = run_in_executor(executor, func, *args)
            self._executor_jobs += 1
            future.add_done_callback(self._executor_job_done)
            return future

        loop.run_in_executor = counted

    def uninstall(self) -> None:
        """Give the loop its own time back."""
        self._loop._selector = self._selector
        del self._loop.time
        del self._loop.run_in_executor

    def _executor_job_done(self, _: "asyncio.Future[Any]") -> None:
        self._executor_jobs -= 1

    def time(self) -> float:
        """Return the virtual time; this is `loop.time()`."""
        return self._base_s + self.elapsed_us / SECOND_US

    def select(self, timeout: float | None) -> Any:
        """Wait or jump; the loop calls this if it has nothing to do for `timeout` seconds (None: no timer is set)."""
        if timeout is not None and timeout <= 0:
            scheduled = self._loop._scheduled
            if scheduled and scheduled[0]._when <= self.time() + self._loop._clock_resolution:
                self._keep_moving()
            return self._selector.select(0)
        events = self._selector.select(0)
        if events:
            return events
        if self._executor_jobs or any(each.has_call_in_flight() for each in self.inhabitants):
            return self._selector.select(None)
        if self.lane_patience_s and any(each.has_lane_in_flight() for each in self.inhabitants):
            events = self._selector.select(self.lane_patience_s)
            if events:
                return events
        if self._idle_waiters:
            self._resolve_idle()
            return []
        return self._sleep(timeout)

    def _sleep(self, timeout: float | None) -> Any:
        """Jump, or find that there is nowhere to jump to. Nothing is in flight."""
        target = None if timeout is None else self._next_target(self.time() + timeout)
        if target is not None:
            self._jump(target)
            return []
        events = self._selector.select(LAST_LOOK_S)
        if not events and any(each.has_abandoned_work() for each in self.inhabitants):
            events = self._selector.select(LANE_PATIENCE_S)
        if not events:
            self._give_up()
        return events

    def _next_target(self, first: float) -> float | None:
        """Return the next timer that is not mere routine. Return None if only routine would happen."""
        scheduled = self._loop._scheduled
        if scheduled[0]._when == math.inf:  # as are all the others: who sleeps that long waits for something else
            return None
        if not _is_routine(scheduled[0]):
            self._routine_jumps = 0
            return first
        due: list[float] = [handle._when for handle in scheduled if not handle._cancelled and not _is_routine(handle)]
        due.extend(self.time() + due_in_s for each in self.inhabitants for due_in_s in each.due_in_s())
        now = self.time()
        coming = [when for when in due if now < when < math.inf]
        # A row that is due may be taken at the next look. Or its queue is paused or full, and no look ever takes it.
        if not coming or min(due) <= now:
            self._routine_jumps += 1
            if self._routine_jumps <= HOPELESS_AFTER:
                return first
        self._routine_jumps = 0
        return max(first, min(coming)) if coming else None

    def _jump(self, target: float) -> None:
        # The tolerance keeps a rounding error of the timer's own from adding a microsecond to every wait.
        elapsed_us = math.ceil((target - self._base_s) * SECOND_US - 0.01)
        if elapsed_us <= self.elapsed_us:
            self._keep_moving()
        else:
            self.elapsed_us = elapsed_us
            self._motionless_count = 0

    def _keep_moving(self) -> None:
        self._motionless_count += 1
        if self._motionless_count > NUDGE_AFTER:
            self.elapsed_us += 1

    # Waiting on it.

    async def idle(self) -> None:
        """Wait until nothing can go on without time passing."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._idle_waiters.append(waiter)
        await waiter

    def _resolve_idle(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _give_up(self) -> None:
        """Raise in the test, at the await that would never end."""
        error = RuntimeError(
            "nothing is in flight and nothing is due: this await will never end. "
            "A task that waits for something, a paused queue, or a file that cannot be written?"
        )
        waiter: Any = self._owner
        while isinstance(waiter, asyncio.Task):
            waiter = getattr(waiter, "_fut_waiter", None)
        if waiter is None or waiter.done():
            raise error
        waiter.set_exception(error)


class _Selector:
    """The loop's selector with another `select`."""

    def __init__(self, inner: Any, select: Callable[[float | None], Any]) -> None:
        self._inner = inner
        self.select = select

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _is_routine(handle: Any) -> bool:
    """Return whether the timer is one of the engine or its duties that only looks whether something happened.

    A pause after a failed commit or claim is no routine: the next try may bring what a test waits for. Between two
    looks that did not fail, the claimer waits for an event with a timeout, and does not sleep.
    """
    owner = getattr(handle._callback, "__self__", None)
    if isinstance(owner, Alarm | Recheck | DueTime | WriteWatch | StallWatch | Lending):
        return True
    is_timeout = isinstance(owner, asyncio.Timeout)
    task = getattr(owner, "_task", None) if is_timeout else _sleeper(handle)
    name = task.get_name() if isinstance(task, asyncio.Task) else ""
    tries_again = name == _WRITER_TASK or (name == _CLAIMER_TASK and not is_timeout)
    return name.startswith(_OUR_TASKS) and not tries_again


def _sleeper(handle: Any) -> Any:
    """Return the task that sleeps on a timer of `asyncio.sleep`, or None."""
    future = handle._args[0] if handle._args else None
    callbacks = getattr(future, "_callbacks", None) if isinstance(future, asyncio.Future) else None
    return getattr(callbacks[0][0], "__self__", None) if callbacks else None


_virtual: "WeakKeyDictionary[asyncio.AbstractEventLoop, VirtualTime]" = WeakKeyDictionary()


@contextmanager
def virtual_time() -> Iterator[VirtualTime]:
    """Make the time of the running loop virtual while the block runs. Nested blocks share one time."""
    loop = asyncio.get_running_loop()
    if loop in _virtual:
        yield _virtual[loop]
        return
    if not isinstance(loop, asyncio.BaseEventLoop) or not hasattr(loop, "_selector"):
        raise ConfigurationError(
            f"a virtual clock needs asyncio's own event loop, not {type(loop).__module__}.{type(loop).__qualname__}; "
            "run the test without uvloop, or use isolated(manager, clock='real')"
        )
    made = _virtual[loop] = VirtualTime(loop)
    made.install()
    try:
        yield made
    finally:
        del _virtual[loop]
        made.uninstall()
