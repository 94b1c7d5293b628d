"""Answers what handles and the methods of a manager ask of its instance that runs now, if one does."""

import asyncio
import contextlib
import weakref
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from taskmanager.engine.intake.intake import HOW_TO_START as HOW
from taskmanager.engine.intake.intake import Intake
from taskmanager.engine.words.live_task import GOES_ON, Ending, LiveTask
from taskmanager.engine.words.loops import has_real_time, result_from, result_here, say_no_loop
from taskmanager.engine.words.outcome import extra_of, value_in, without_exit
from taskmanager.engine.words.waiters import Waiters, refuse_inside, wait_in
from taskmanager.model.checks import check_tags, check_timeout
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import ConfigurationError, ManagerStopped, WrongProcess, unknown_task
from taskmanager.model.logger import logger
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted

if TYPE_CHECKING:
    from taskmanager.engine.words.attempt import Attempt
    from taskmanager.engine.words.definition import Definition
    from taskmanager.engine.words.settings import Settings
    from taskmanager.lifecycle import Lifecycle
    from taskmanager.model.call_options import CallOptions
    from taskmanager.model.record import TaskInfo
    from taskmanager.model.report import ManagerStatus
    from taskmanager.store.place import Place
    from taskmanager.store.protocol import Store

_STOP_OUTSIDE: Final = "set an event that the code around the manager waits for, or raise SIGTERM under run()"
_IN_MEMORY: Final = "in `isolated` its record is kept in memory; test that with a manager on a file of its own"
_STOPPED_MEANWHILE: Final = "the manager stopped before the call had ended"
HINT_AFTER_S: Final = 3.0
"""After a wait of this length a message says that nobody has started the manager."""
_clock: Final = SystemClock()
T = TypeVar("T")


def check_loop(lifecycle: "Lifecycle") -> None:
    """Raise unless this is the loop of the manager. Other loops may only enqueue, and await handles."""
    if not _is_here(lifecycle):
        raise ConfigurationError(
            "the manager runs in another event loop; in a thread use manager.call(manager.method()), in another loop "
            "asyncio.run_coroutine_threadsafe(manager.method(), loop)"
        )


def _is_here(lifecycle: "Lifecycle") -> bool:
    """Whether the manager runs in the calling loop. Raises if it will never run again in this process."""
    engine = lifecycle.engine
    _check_process(lifecycle)
    if _running_loop() is engine.life.loop:
        return True
    if engine.inbox.is_loop_closed():
        raise ManagerStopped(
            "the event loop that the manager was started in is closed; await manager.stop() to forget that start, and "
            "use `async with manager:` or manager.run(main)"
        )
    return False


def _check_process(lifecycle: "Lifecycle") -> None:
    if lifecycle.engine.intake.is_forked:
        raise WrongProcess(
            "the manager runs in the process that this one was forked from; start it after the fork, in the hook that "
            "a server has for each worker, or return the work to that process"
        )


class Hint:
    """A timer for one wait, which `cancel` ends. When the wait takes too long, `say` logs the reason, if there is one.

    Real time must have passed, because time may jump on the loop of a test. A loop with a clock that is not its own
    gets no timer, which would move the time of the test.
    """

    _timer: asyncio.TimerHandle | None = None

    def __init__(self, say: Callable[[], bool]) -> None:
        self._say = say
        self._begin()

    def _begin(self) -> None:
        self._began_s = _clock.elapsed_s()
        loop = asyncio.get_running_loop()
        if has_real_time(loop):
            self._timer = loop.call_later(HINT_AFTER_S, self._look)

    def _look(self) -> None:
        is_real = _clock.elapsed_s() - self._began_s >= 0.9 * HINT_AFTER_S
        if is_real and not self._say():
            self._begin()

    def cancel(self) -> None:
        """End the timer, because the wait has ended."""
        if self._timer is not None:
            self._timer.cancel()


_instances: "weakref.WeakSet[CurrentInstance]" = weakref.WeakSet()


class CurrentInstance:
    """One object per manager, for all its starts. `intake` takes calls also between them."""

    lifecycle: "Lifecycle | None" = None
    """It is here from the begin of a start to the end of its stop."""

    def __init__(self, intake: Callable[[], Intake], settings: "Callable[[], Settings]") -> None:
        self._intake = intake
        self._settings = settings
        _instances.add(self)

    def running(self) -> "Lifecycle | None":
        """Return the start that runs now."""
        lifecycle = self.lifecycle
        return lifecycle if lifecycle is not None and lifecycle.engine.life.is_up else None

    @property
    def place(self) -> "Place | None":
        """Where the tasks of the manager live; None is memory only."""
        return self._settings().place

    def new_store(self) -> "Store":
        """Return a store at the place of the manager, not opened yet, or a store in memory if it has none."""
        if self.place is not None:
            settings = self._settings()
            return self.place.new_store(synchronous=settings.synchronous, recovery=settings.recovery)
        from taskmanager.store.memory import MemoryStore

        return MemoryStore()

    def check_start(self) -> None:
        """Raise `ConfigurationError` if the manager runs already.

        Raise `WrongProcess` in a child that was forked while its parent had the file open, or ran the manager.
        """
        if (lifecycle := self.lifecycle) is not None and not lifecycle.engine.inbox.is_loop_closed():
            _check_process(lifecycle)
            raise ConfigurationError("the manager runs already; stop it before starting it again")
        if self.place is None:
            return
        try:
            self.place.check_process()
        except WrongProcess:
            self._intake().is_forked = True  # what is enqueued from now on would be held for a start that cannot come
            raise

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Set `lifecycle` in this block. Another task, or thread, may have begun to start the manager meanwhile."""
        with self._intake().keys.lock:
            self.check_start()
            yield

    def forget(self, lifecycle: "Lifecycle") -> None:
        """Note that a start has failed or was stopped. Another one may have begun since."""
        if self.lifecycle is lifecycle:
            self.lifecycle = None

    def check_stop(self, lifecycle: "Lifecycle") -> None:
        """Raise where a stop would wait for ever: in another loop, or in a task of the manager.

        A start of another process, or of a closed loop, may be stopped anywhere: the stop only forgets it.
        """
        if not (lifecycle.engine.intake.is_forked or lifecycle.engine.inbox.is_loop_closed()):
            check_loop(lifecycle)
            refuse_inside(lifecycle.engine.dispatcher, "stop()", _STOP_OUTSIDE)

    # Tasks that the application writes in its own transaction.

    def submit(
        self, connection: Any, call: "tuple[Definition, CallOptions]", args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | Coroutine[Any, Any, str]:
        """Insert a task through the connection, and return its id. Await the id if the connection is asynchronous."""
        live, place = self._submitted(call, args, kwargs)
        inserted = place.insert_through(connection, live.row())
        return live.task_id if inserted is None else self._when_inserted(inserted, live)

    async def _when_inserted(self, inserted: Coroutine[Any, Any, None], live: LiveTask) -> str:
        await inserted
        self._expect(live)
        return live.task_id

    def insert_statement(
        self, call: "tuple[Definition, CallOptions]", args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, tuple[object, ...]]:
        """Return the SQL that inserts a task, and its parameters."""
        live, place = self._submitted(call, args, kwargs)
        return place.insert_statement(live.row())

    def _submitted(
        self, call: "tuple[Definition, CallOptions]", args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "tuple[LiveTask, Place]":
        (definition, options), place = call, self.place
        if place is None or not definition.is_persisted:
            why = _IN_MEMORY if definition.is_persisted else "it is memory-only; give it persist=True"
            raise ConfigurationError(f"task {definition.name!r} cannot be written in a transaction: {why}")
        place.check_process()
        live = self._intake().make(definition, options, args, kwargs)
        self._expect(live)
        return live, place

    def _expect(self, live: LiveTask) -> None:
        """Look often for a task that a transaction of the application is writing."""
        if (lifecycle := self.lifecycle) is not None:
            lifecycle.expect_submission(live.task_id, live.tags_text)

    def cut_short(self) -> None:
        """End the wait of a stop, or of a start for its file, because a second signal came."""
        if (lifecycle := self.lifecycle) is not None:
            lifecycle.cut_short()

    def status(self) -> "ManagerStatus":
        """Describe the manager and its instance. It reads memory only."""
        from taskmanager.duties.reports import report_of
        from taskmanager.model.report import status_of

        running, starting, intake = self.running(), self.lifecycle, self._intake()
        upcoming = () if running is None else running.duties.upcoming_schedules()
        report = None if starting is None else report_of(starting.engine, max_queues=None, max_tasks=0)
        return status_of(report, intake.door.value, len(intake.held), upcoming)

    def needed(self) -> "Lifecycle":
        """Return the start that runs now.

        Raises `ManagerStopped` if there is none, and `ConfigurationError` outside of its loop.
        """
        running = self.running()
        if running is None:
            raise ManagerStopped("the manager does not run; use `async with manager:` or await manager.start()")
        check_loop(running)
        return running

    def call(self, what: Awaitable[T], timeout_s: float | None) -> T:
        """Run what can be awaited on the loop of the manager, and wait for it in this thread."""
        try:
            check_timeout(timeout_s)
            loop = self._loop_for_threads()
        except BaseException:
            if isinstance(what, Coroutine):
                what.close()  # or Python would warn that nobody awaited it
            raise
        waiting = without_exit(what)
        try:
            future = asyncio.run_coroutine_threadsafe(waiting, loop)
        except RuntimeError:  # the loop was closed in this moment
            waiting.close()
            raise ManagerStopped("the manager has stopped") from None
        try:
            found = result_here(future, timeout_s, loop)
        except CancelledError:
            raise ManagerStopped(_STOPPED_MEANWHILE) from None
        except TimeoutError:
            if future.done():
                raise
            raise TimeoutError(f"the call has not ended after {timeout_s:g} s") from None
        finally:
            if not loop.is_closed():
                future.cancel()
        return value_in(found)

    def _loop_for_threads(self) -> asyncio.AbstractEventLoop:
        running = self.running()
        if running is None:
            raise ManagerStopped("the manager does not run; use `with manager.in_thread():`")
        if _is_here(running):
            raise ConfigurationError("this is the loop of the manager, which a call would block; await it instead")
        refuse_inside(running.engine.dispatcher, "a call", "return what it needs, or make the task async and await it")
        return running.engine.life.loop

    def hint_of_no_start(self, live: LiveTask) -> Hint | None:
        """Start a timer for a hint: a start that was forgotten, or not awaited, looks like a task that hangs."""
        if self.running() is not None:
            return None
        return Hint(partial(self._say_no_start, live))

    def enter_before_start(self, waiters: Callable[[], Waiters], waiter: "asyncio.Future[Any]") -> Waiters | None:
        """Put a future into a list of waiters, and return the list; None if the manager runs by now.

        A start takes the lock when it comes up. After that only its loop changes the list, or has emptied it already.
        """
        with self._intake().keys.lock:
            if self.running() is not None:
                return None
            (entered := waiters()).append(waiter)
            return entered

    def _say_no_start(self, live: LiveTask) -> bool:
        """Warn once per manager. Return False to be called again, because a start is under way."""
        if self.running() is not None or self._intake().has_warned:
            return True
        if self.lifecycle is not None:  # the start may wait for a locked file, and may fail
            return False
        self._intake().has_warned = True
        of, extra = (live.definition.name, live.task_id), extra_of(live)
        if any(each is not self and each.is_started_on(self.place) for each in list(_instances)):
            logger.warning(
                "task %s (%s) is waited for, and its manager was never started, while another one on the same file, "
                "%s, runs in this process: was the module imported twice, as __main__ and by its name? Make the "
                "manager in a module of its own, and import it from there",
                *of, self.place, extra=extra,
            )  # fmt: skip
        else:
            logger.warning("task %s (%s) is waited for, and its manager was never started; %s", *of, HOW, extra=extra)
        return True

    def is_started_on(self, place: "Place | None") -> bool:
        """Whether this manager runs, or is starting, on that database."""
        return self.lifecycle is not None and self.place is not None and self.place.is_same(place)

    def is_of_another_loop(self) -> bool:
        """Whether the manager runs in another loop than the calling one. Raises if its loop will never run again."""
        running = self.running()
        return running is not None and not _is_here(running)

    async def in_its_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Let `work` run in the loop of the manager, and wait for it here."""
        running = self.running()
        assert running is not None, "asked without a look at is_of_another_loop()"
        loop = running.engine.life.loop
        hint = None if loop.is_running() else Hint(partial(say_no_loop, loop))
        try:
            return await result_from(loop, work)
        except CancelledError:
            raise ManagerStopped(_STOPPED_MEANWHILE) from None
        finally:
            if hint is not None:
                hint.cancel()

    async def join(self, tags: Mapping[str, str] | None, timeout: float | None) -> None:
        """Wait until nothing accepted or claimed here is unfinished."""
        check_tags(tags)
        check_timeout(timeout)
        lifecycle = self.needed()
        engine = lifecycle.engine
        refuse_inside(engine.dispatcher, "join()", "await the handles you need instead")
        try:
            await lifecycle.records.join(dict(tags or {}), timeout)
        except TimeoutError:
            if timeout is None:
                raise
            where = "they wait in the file, or run in another process: see `taskmanager status`"
            left = f"{counted(len(engine.live), 'task')} here" if engine.live else where
            raise TimeoutError(f"join: not all tasks have ended after {timeout:g} s; {left}") from None

    def find_live(self, task_id: str) -> LiveTask | None:
        """The task in memory, if it is there."""
        running = self.running()
        if running is None:
            return self._intake().find_held(task_id)
        inbox = running.engine.inbox
        inbox.look()
        return running.records.find_live(task_id) or inbox.find(task_id)

    def newest(self, ended: LiveTask) -> LiveTask | None:
        """Return the run for which the handle of an ended task stands by now: this one, or its run after a retry.

        Returns None if only the store knows that run.
        """
        newest = self._intake().keys.newest(ended)
        if newest is None and (live := self.find_live(ended.task_id)) is not ended:
            return live
        return newest

    async def wait_for(self, task_id: str, hold: Callable[[LiveTask], None], *, was_accepted: bool) -> Ending:
        """Wait for the ending of a task that is not in the memory of this instance, and return it.

        After a stop nobody reads the store. A task that was accepted here gets the ending that the stop gave to others.
        """
        if was_accepted and self.running() is None:
            return GOES_ON
        engine = self.needed().engine
        await engine.inbox.caught_up()
        live = engine.live.get(task_id)
        if live is not None:
            hold(live)
            ending = cast("Ending", await wait_in(live.waiters_list()))
            engine.follower.saw(task_id, ending.status)
            return ending
        unsaved = engine.writer.unsaved_ended.get(task_id)
        if unsaved is not None and unsaved.ending is not None:
            return unsaved.ending
        return await engine.follower.watch(task_id, hold)

    async def info_of(self, task_id: str, include_attempts: bool) -> "TaskInfo":
        """The record behind a handle; raises `UnknownTask` when there is none."""
        info = await self.needed().records.get(task_id, include_attempts=include_attempts)
        if info is None:
            raise unknown_task(task_id)
        self.needed().engine.follower.saw(task_id, info.status)
        return info

    def cancel_now(self, task_id: str, live: LiveTask | None) -> bool:
        """Ask at once for a cancellation, in memory or through the store in the background. From any thread."""
        if live is not None and live.status.is_terminal:
            return False
        lifecycle = self.running()
        if lifecycle is None:
            return live is not None and self._intake().cancel_held(live)
        _check_process(lifecycle)
        if _running_loop() is lifecycle.engine.life.loop:
            return lifecycle.actions.cancel_now(task_id, live)
        # From another thread, such as that of a route that is no coroutine. The end of the task will be the answer.
        try:
            lifecycle.engine.life.loop.call_soon_threadsafe(self.cancel_now, task_id, live)
        except RuntimeError:  # the loop was closed without a stop: there is nobody to ask
            return False
        return True

    def hurry(self, live: LiveTask) -> None:
        """Write this task soon, because a caller waits until it is saved."""
        running = self.running()
        if running is not None and live.saving.is_dirty:
            running.engine.writer.mark(live)

    def last_status(self, task_id: str) -> TaskStatus | None:
        """Return the status of a task that was elsewhere: from memory if it is here now, else as the store had it."""
        running = self.running()
        if running is None:
            return None
        engine = running.engine
        live = engine.live.get(task_id)
        return engine.follower.last_status.get(task_id) if live is None or live.has_left else live.status

    def running_attempts(self) -> "Mapping[str, Attempt]":
        """Return the running attempts by the ids of their tasks."""
        running = self.running()
        return {} if running is None else running.engine.runner.running

    def degraded_reason(self) -> str | None:
        """Why the store takes no writes now, or None."""
        running = self.running()
        return None if running is None else running.engine.writer.degraded_reason
