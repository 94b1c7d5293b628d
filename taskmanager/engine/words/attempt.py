"""One running attempt: its deadline, why it was asked to stop, and its slot.

An async task that awaits a handle gives up its slot meanwhile, or parents waiting for children would deadlock a full
lane. Two things must hold while it has no slot: its own coroutine is suspended, and one of its coroutines (its own, or
one that it has started) waits for a handle. `drive` steps the user's coroutine itself. Only there is it known that the
coroutine is suspended, and only there can it be made to wait for its slot *before* it goes on. So a limit is never
exceeded.
"""

import asyncio
import contextlib
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from taskmanager.codec.safe import dumps_safe, readable
from taskmanager.codec.values import loads
from taskmanager.engine.words.definition import tags_of
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.loops import outlast
from taskmanager.engine.words.outcome import is_handed_on
from taskmanager.engine.words.phases import RUNNING
from taskmanager.model.clock import SECOND_US, Clock, from_us

if TYPE_CHECKING:
    from taskmanager.engine.steps.calls import StepCalls
    from taskmanager.model.workflows import NodeStart

MAX_LOG_ENTRIES = 1_000
"""Lines of `ctx.log` kept per task; the oldest go first."""

PROGRESS_US: Final = SECOND_US
"""How often the progress of a task is saved, at most."""
OLD_WAIT_TURNS = 4
"""When the coroutine goes on, it may have cancelled its earlier waits. These get this many turns of the loop to end: a
slot lent for them would have to be waited for once more."""


class StopReason(Enum):
    """Why the engine asked an attempt to stop."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    SLEEP = "sleep"
    CLAIM_LOST = "claim lost"


class SlotKeeper(Protocol):
    """Who gives and takes the slots of attempts: the dispatcher."""

    def lend(self, attempt: "Attempt") -> None: ...
    def take_back(self, attempt: "Attempt") -> "asyncio.Future[None]": ...
    def take_back_now(self, attempt: "Attempt") -> None: ...


class Surroundings(NamedTuple):
    """What the attempts of one engine share: who keeps their slots, saves their progress, runs steps and reads what a
    node of a workflow needs; and wall time.
    """

    keeper: SlotKeeper
    save_progress: Callable[[LiveTask], None]
    now_us: Callable[[], int]
    begin_steps: "Callable[[Attempt], StepCalls] | None" = None
    node_start: "Callable[[str], Awaitable[NodeStart | None]] | None" = None


class Attempt:
    """One start of one task, from its committed start to its outcome."""

    task: "asyncio.Task[None] | None" = None
    thread: "asyncio.Future[Any] | None" = None
    """Done when the thread that runs its code has ended."""
    limit_s = 0.0
    """Its time limit, if it has one."""
    forget_limit: "Callable[[Attempt], None] | None" = None
    """Called at its end if it has one."""
    timer: asyncio.TimerHandle | None = None
    """Set when it has reached its time limit and was asked to end."""
    stop_reason: StopReason | None = None
    on_end: Callable[[], None] | None = None
    on_gone: Callable[[], None] | None = None
    """Called at the very end, when no code of this attempt executes any more."""
    log_entries: list[dict[str, object]] | None = None
    steps: "StepCalls | None" = None
    """The steps that it has called. None until the first call."""
    wakes_at = 0
    """When the task goes on, if the attempt ends because that sleeps."""
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    """Of a node of a workflow, with its inputs. Those of all other tasks are decoded in their lane."""
    workflow_id: str | None = None
    """Of a node: the workflow that it is part of."""
    awaiting = 0
    awaited: "dict[asyncio.Task[Any] | None, str] | None" = None
    """Which tasks its coroutines wait for without a time limit."""
    has_new_wait = False
    """Whether a wait has begun since its own coroutine last went on."""
    held_up_by: object = None
    """The future for which its own coroutine is suspended."""
    gathered: "frozenset[Any] | None" = None
    """The children of that future if it is an `asyncio.gather`. Filled when first asked for."""
    began_s = 0.0
    """When it was handed to its lane, by the clock of the loop."""
    has_begun = False
    has_reached_code = False
    """Whether a line of user code may have run."""
    has_slot = True
    is_surrounded = False
    """Whether there is middleware around its function."""
    is_in_lane = False
    """Whether its function runs, and the middleware around that is suspended."""
    is_parked = False
    """Whether its own coroutine waits for something."""
    is_abandoned = False
    is_over = False
    is_plain = False
    """Whether a success would be a plain one: the first run of the task, to which nothing unusual was done so far."""
    is_told = False
    """Whether another task raised first what its code raised, so that the caller of the loop has it already."""
    raised: BaseException | None = None
    """What its code has raised. Kept only until it is logged, because its frames hold objects of user code."""

    def __init__(self, live: LiveTask, around: Surroundings) -> None:
        self.live = live
        self.keeper = around.keeper
        self._around = around
        self.number = live.start_count
        self.started_at = live.started_at or 0
        if live.start_count == 1 and live.idempotency_key is None:
            self.is_plain = True
        live.attempt = self

    def __repr__(self) -> str:
        return f"<Attempt {self.number} of {self.live.task_id}>"

    # What current_task() shows.

    @property
    def task_id(self) -> str:
        return self.live.task_id

    @property
    def task_name(self) -> str:
        return self.live.definition.name

    @property
    def attempt(self) -> int:
        return self.number

    @property
    def tags(self) -> dict[str, str]:
        return tags_of(self.live.tags_text)

    @property
    def deadline(self) -> datetime | None:
        timeout_s = self.live.timeout_s
        return None if timeout_s is None else from_us(self.started_at) + timedelta(seconds=timeout_s)

    @property
    def scheduled_for(self) -> datetime | None:
        instant = self.live.scheduled_for
        return None if instant is None else from_us(instant)

    @property
    def is_suspended(self) -> bool:
        return self.stop_reason is StopReason.SLEEP

    @property
    def is_cancelled(self) -> bool:
        return self.stop_reason is not None and not self.is_suspended

    @property
    def is_detached(self) -> bool:
        return False

    @property
    def is_on_loop(self) -> bool:
        """Whether the loop runs its code now: an async function, or the middleware around another one."""
        return self.live.definition.is_async or (self.is_surrounded and not self.is_in_lane)

    @property
    def is_away(self) -> bool:
        """Whether a thread or a child process runs its code, or a step that it has called."""
        return not self.is_on_loop or (self.steps is not None and self.steps.is_away)

    @property
    def has_step_threads(self) -> bool:
        """Whether a thread of a step runs, also one that has been given up."""
        return self.steps is not None and self.steps.has_threads

    def progress(self, done: float, total: float | None, text: str) -> None:
        if self.is_over:
            return
        if not isinstance(text, str):  # whoever shows it cuts it
            text = "" if text is None else str(text)
        self.is_plain = False
        self.live.progress_text = dumps_safe({"done": done, "total": total, "text": text})
        self._around.save_progress(self.live)

    def now_us(self) -> int:
        return self._around.now_us()

    def step_calls(self) -> "StepCalls":
        """Return what runs the steps of this attempt. From the first call on its success is no plain one."""
        if self.steps is None:
            begin = self._around.begin_steps
            assert begin is not None, "this engine runs no steps"
            self.is_plain, self.steps = False, begin(self)
        return self.steps

    @property
    def threads(self) -> "frozenset[asyncio.Future[Any]]":
        """What is done when the threads have ended that run its code, or its steps."""
        own = () if self.thread is None else (self.thread,)
        return frozenset(own if self.steps is None else (*own, *self.steps.threads))

    @property
    def due_at(self) -> list[int]:
        """When each of its waits is due that it has not gone to sleep for."""
        return [] if self.steps is None else self.steps.due_at

    def hear(self) -> None:
        """An event may have come for the task."""
        if self.steps is not None:
            self.steps.hear()

    async def node_start(self) -> "NodeStart | None":
        """Read what the task of a node needs at its start. None if the workflow is gone. Raises `StoreError`."""
        fetch = self._around.node_start
        assert fetch is not None, "this engine runs no nodes"
        return await fetch(self.task_id)

    def log(self, at: int, text: str, fields: dict[str, object]) -> None:
        if self.is_over:
            return
        self.is_plain = False
        if self.log_entries is None:
            earlier = self.live.log_text
            self.log_entries = loads(earlier) if earlier else []
        self.log_entries.append(
            {"at": at, "attempt": self.number, "text": text, **{key: readable(fields[key]) for key in fields}}
        )
        del self.log_entries[:-MAX_LOG_ENTRIES]

    def close(self, log_text: str | None) -> None:
        """End the attempt. What it reports from now on does not count."""
        self.is_over = True
        if log_text is not None:
            self.live.log_text = log_text
        if self.forget_limit is not None:
            self.forget_limit(self)
        if self.timer is not None:
            self.timer.cancel()

    # Giving up the slot while a handle is awaited.

    def begin_wait(self, waiter: "asyncio.Task[Any] | None" = None, task_id: str | None = None) -> None:
        """Note that a coroutine of this attempt begins to await a handle.

        `waiter` and `task_id` are given for a wait without a time limit: the waiting coroutine's task, and its target.
        """
        self.is_plain = False
        self.awaiting += 1
        self.has_new_wait = True
        if waiter is not None and task_id is not None:
            self.awaited = self.awaited or {}
            self.awaited[waiter] = task_id
        self.lend()

    async def end_wait(self, waiter: "asyncio.Task[Any] | None" = None) -> None:
        """Note that the wait has ended. If no coroutine of the attempt waits any more, take the slot back first.

        `drive` takes it back for the attempt's own coroutine only, not for those that this one has started.
        """
        self.awaiting -= 1
        if self.awaited:
            self.awaited.pop(waiter, None)
        if not (self.has_slot or self.awaiting):
            thrown = sys.exception()
            last = await slot_again(self, thrown)
            self.lend()  # if another coroutine has begun to wait meanwhile
            if last is not None and last is not thrown:
                raise last

    def lend(self, turns: int = 0) -> None:
        """Give up the slot, if a handle is still awaited after this many turns of the loop."""
        if turns:
            asyncio.get_running_loop().call_soon(self.lend, turns - 1)
        elif self.awaiting and self.is_parked and self.has_slot and self.is_on_loop and not self.is_over:
            self.keeper.lend(self)

    def is_held_up_by(self, waiter: "asyncio.Task[Any] | None") -> bool:
        """Whether the attempt waits for this coroutine, which is its own or one that it gathers."""
        if waiter is self.task:
            return True
        if self.gathered is None:
            self.gathered = frozenset(getattr(self.held_up_by, "_children", ()))
        return waiter in self.gathered

    def surely_awaited(self) -> tuple[str, ...]:
        """Return the tasks that must end before the attempt can go on."""
        return tuple(task_id for waiter, task_id in (self.awaited or {}).items() if self.is_held_up_by(waiter))


async def slot_again(attempt: Attempt, thrown: BaseException | None) -> BaseException | None:
    """Wait until the attempt has its slot, and return what is raised then: `thrown`, or a later cancellation.

    An attempt that the engine has asked to end gets `thrown` at once, so that it can clean up. After a time limit or a
    cancellation of user code the task may go on, so it waits for its slot first.
    """
    while not (attempt.has_slot or attempt.is_over or isinstance(thrown, GeneratorExit)):
        if thrown is not None and attempt.stop_reason is not None:
            attempt.keeper.take_back_now(attempt)
            break
        slot = attempt.keeper.take_back(attempt)
        try:
            if thrown is None:
                await slot
            else:
                thrown = await outlast(slot, thrown, is_hurried=lambda: attempt.is_cancelled)
        except BaseException as exc:
            thrown = exc
        slot.cancel()  # no effect if it is done; else nobody waits for it any more
    return thrown


@types.coroutine
def drive(coro: Coroutine[Any, Any, Any], attempt: Attempt) -> Generator[Any, Any, Any]:
    """Do `await coro`, but give the slot up while it waits for a handle, and take it back before it goes on."""
    value: Any = None
    thrown: BaseException | None = None
    while True:
        attempt.has_new_wait = False
        try:
            waited = coro.send(value) if thrown is None else coro.throw(thrown)
        except StopIteration as stop:
            return stop.value
        except (KeyboardInterrupt, SystemExit, BaseExceptionGroup) as exc:
            attempt.is_told = is_handed_on(exc, thrown)
            raise
        finally:
            value = thrown = None  # this frame must not hold an exception that leaves it
        attempt.is_parked, attempt.held_up_by, attempt.gathered = True, waited, None
        if attempt.awaiting and attempt.has_slot:
            attempt.lend(0 if attempt.has_new_wait else OLD_WAIT_TURNS)
        try:
            value = yield waited
        except GeneratorExit:  # collected with its loop, perhaps after the coroutine
            coro.close()
            raise
        except BaseException as exc:
            thrown = exc
        if not attempt.has_slot:
            try:
                thrown = yield from slot_again(attempt, thrown).__await__()
            except BaseException as exc:
                thrown = exc
        attempt.is_parked, attempt.held_up_by, attempt.gathered = False, None, None


class ProgressSaver:
    """Saves the progress that running tasks report, once a second at most, from whatever thread they report it.

    `save` is what an attempt calls with every report.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, mark: Callable[[LiveTask], None], clock: Clock) -> None:
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._write_soon = mark
        self._clock = clock

    def save(self, live: LiveTask) -> None:
        """A persisted task reported progress."""
        now = self._clock.now_us()
        if live.is_persisted and not 0 <= now - live.updated_at < PROGRESS_US:  # before: the clock was stepped back
            live.updated_at = now
            if threading.get_ident() == self._thread_id:
                self._mark(live)
            else:
                with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody keeps progress any more
                    self._loop.call_soon_threadsafe(self._mark, live)

    def _mark(self, live: LiveTask) -> None:
        if live.phase is RUNNING:
            self._write_soon(live)
