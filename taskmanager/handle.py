"""`TaskHandle`: await a task, ask for its state, cancel it."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast
from weakref import ref

from taskmanager.current_instance import CurrentInstance, Hint
from taskmanager.engine.intake.intake import never_written
from taskmanager.engine.words.live_task import NOT_SAVED, Ending, LiveTask
from taskmanager.engine.words.waiters import Waiters, lent_slot, running_attempt, wait_in
from taskmanager.model.checks import check_timeout
from taskmanager.model.errors import (
    ManagerStopped,
    NotPersisted,
    StoreError,
    StoreUnavailable,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskInterrupted,
    TaskNotCompleted,
    WrongProcess,
)
from taskmanager.model.record import TaskInfo
from taskmanager.model.result import TaskResult
from taskmanager.model.states import LIVE, TaskStatus

R_co = TypeVar("R_co", covariant=True)

_process = object()
"""An object per process: a forked child makes a new one."""


def _forked() -> None:
    global _process  # one value for the whole process
    _process = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class TaskHandle(Generic[R_co]):
    """One accepted task. The task runs whether you keep the handle or not. After a retry it stands for the new run."""

    __slots__ = ("__weakref__", "_cause", "_first", "_found", "_instance", "_live", "_process", "_seen", "_task_id")

    def __init__(self, instance: CurrentInstance, task_id: str, live: LiveTask | None, found: bool = False) -> None:
        self._instance = instance
        self._task_id = task_id
        self._live = live
        self._found = True if found else None
        self._process = _process
        self._seen: TaskStatus | None = None
        self._first: TaskHandle[R_co] | None = None
        self._cause: tuple[Ending, BaseException] | None = None
        if live is None:
            return
        if live.holder is None:
            live.holder = ref(self)
        else:
            self._hold(live)

    def _hold(self, live: LiveTask) -> None:
        """Be the handle that is given what the task raises. If there is one already, remember that one, to ask it."""
        first = None if live.holder is None else cast("TaskHandle[R_co] | None", live.holder())
        if first is None:
            live.holder = ref(self)
        self._first = None if first is self else first

    @property
    def task_id(self) -> str:
        """The id. It stays the same over restarts, and `manager.handle(task_id)` makes a handle of it again."""
        return self._task_id

    @property
    def status(self) -> TaskStatus:
        """The last status known here. For a task of another instance it is the last one seen in the file."""
        live = self._newest()
        if live is not None and not live.has_left:
            return live.status
        self._seen = self._instance.last_status(self._task_id) or self._seen
        return self._seen or (TaskStatus.PENDING if live is None else live.status)

    @property
    def is_duplicate(self) -> bool | None:
        """Whether the idempotency key named an existing task. None until that is known: after `saved()` it is."""
        return self._live.duplicate_answer() if self._found is None and self._live is not None else self._found

    def _newest(self) -> LiveTask | None:
        if self._live is None or self._live.status in LIVE:
            return self._live
        newest = self._instance.newest(self._live)
        if newest is not None and newest is not self._live:
            self._found = bool(self.is_duplicate)  # it is about the call that returned this handle
            self._live = newest
            self._hold(newest)
        return newest

    def __await__(self) -> Generator[Any, None, R_co]:
        """Wait for the task and return its value.

        Raises `TaskFailed`, `TaskCancelled`, `TaskExpired` or `TaskInterrupted` if it has none. Cancelling the waiter
        never cancels the task.
        """
        return self._value().__await__()

    async def _value(self) -> R_co:
        return self._value_of(await self._ending())

    def _value_of(self, ending: Ending) -> R_co:
        if ending.status is TaskStatus.COMPLETED and ending.result.is_ok():
            return cast("R_co", ending.result.ok_value)
        raise not_completed(self._task_id, ending) from self._cause_of(ending)

    def _cause_of(self, ending: Ending) -> BaseException | None:
        """Return what the task raised in this process, if it failed with that."""
        if self._first is not None:
            return self._first._cause_of(ending)  # noqa: SLF001  # of another handle
        found = self._cause
        return found[1] if found is not None and found[0] is ending and ending.status is TaskStatus.FAILED else None

    async def result(self, *, timeout: float | None = None) -> TaskResult[R_co]:
        """Wait for the task and return its `TaskResult`, a value or an error. A failure raises nothing.

        Raises `TimeoutError` after `timeout` seconds.
        """
        check_timeout(timeout)
        try:
            async with asyncio.timeout(timeout):
                return (await self._ending(is_bounded=timeout is not None)).result
        except TimeoutError:
            if timeout is None:
                raise
            raise TimeoutError(f"task {self._task_id} has not ended after {timeout:g} s; it is {self.status}") from None

    async def _ending(self, *, is_bounded: bool = False) -> Ending:
        live = self._newest()
        if live is not None and live.ending is not None and live.is_published:
            return live.ending
        if self._instance.is_of_another_loop():
            # The task could end between a look at it from here and the entry into its list of waiters.
            return await self._instance.in_its_loop(self._ending(is_bounded=is_bounded))
        if running_attempt() is None:
            return await self._end_of(live)
        async with lent_slot(self._task_id, self._instance.running_attempts(), is_bounded=is_bounded):
            return await self._end_of(live)

    def _end_of(self, live: LiveTask | None) -> "Coroutine[Any, Any, Ending]":
        if live is None or live.has_left:
            return self._end_from_afar(live)
        self._hold(live)
        return self._wait(live, live.waiters_list, self._ending)

    async def _end_from_afar(self, live: LiveTask | None) -> Ending:
        ending = await self._instance.wait_for(self._task_id, self._hold, was_accepted=live is not None)
        if live is not None and live.has_left:
            live.status = ending.status
        self._seen = self._seen if ending.requeued else ending.status
        return ending

    def _wait(
        self, live: LiveTask, waiters: Callable[[], Waiters], again: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Coroutine[Any, Any, Any]:
        """Return the wait. Each coroutine around another one costs every wait a step, so there is none without need."""
        self._check_process(live)
        hint = self._instance.hint_of_no_start(live)
        return wait_in(waiters()) if hint is None else self._wait_for_start(hint, waiters, again)

    async def _wait_for_start(
        self, hint: Hint, waiters: Callable[[], Waiters], again: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Wait in a list of waiters, or in another way if the manager was started meanwhile by another thread."""
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        entered = self._instance.enter_before_start(waiters, waiter)
        try:
            return await (again() if entered is None else waiter)
        finally:
            hint.cancel()
            if entered is not None and waiter.cancelled() and waiter in entered:
                entered.remove(waiter)

    def wait(self, *, timeout: float | None = None) -> R_co:
        """Wait in this thread for the task, and return its value, as `await` does on an event loop.

        Raises the same, `TimeoutError` after `timeout` seconds, `ConfigurationError` on the loop of the manager and
        inside its tasks, and `ManagerStopped` if the manager does not run and the end is not known here.
        """
        try:
            return self._instance.call(self, timeout)
        except ManagerStopped:
            live = self._newest()
            if live is None or live.ending is None or not live.is_published:
                raise
        return self._value_of(live.ending)

    async def saved(self, *, timeout: float | None = None) -> None:
        """Wait until the task is committed: from then on it survives SIGKILL and power loss.

        Raises `NotPersisted` for a memory-only task, `StoreUnavailable` or `TimeoutError` after `timeout` seconds,
        `StoreError` if the record cannot be stored at all, and `UnknownTask` for an id that does not exist.
        """
        check_timeout(timeout)
        live = self._newest()
        if self._instance.is_of_another_loop():
            await self._instance.in_its_loop(self.saved(timeout=timeout))
            return
        if live is None:
            await self.info()  # what can be found is in the file; what cannot, never was
            return
        if live.has_left or (live.saving.committed is not None and not live.is_unconfirmed):
            return
        if not live.is_persisted:
            raise NotPersisted(
                f"task {live.definition.name} is memory-only; declare it with persist=True, or the manager with "
                "requeue_pending=True"
            )
        if live.saving.rejection is not None:
            raise StoreError(f"task {self._task_id} cannot be stored: {live.saving.rejection}")
        if live.is_published and live.status in (TaskStatus.PENDING, TaskStatus.INTERRUPTED):
            raise StoreUnavailable(f"task {self._task_id} was not written before the manager stopped; enqueue it again")
        if live.saving is NOT_SAVED:
            raise never_written(live)
        self._instance.hurry(live)
        try:
            async with asyncio.timeout(timeout):
                await self._wait(live, live.save_waiters_list, self.saved)
        except TimeoutError:
            reason = self._instance.degraded_reason()
            if reason is not None:
                raise StoreUnavailable(f"task {self._task_id} is not saved yet: {reason}") from None
            if timeout is None:
                raise
            raise TimeoutError(f"task {self._task_id} is not saved after {timeout:g} s") from None

    async def info(self, *, include_attempts: bool = False) -> TaskInfo:
        """Return the whole record as it is now. Raises `UnknownTask` if there is none, or none any more."""
        if self._instance.is_of_another_loop():
            return await self._instance.in_its_loop(self.info(include_attempts=include_attempts))
        return await self._instance.info_of(self._task_id, include_attempts)

    def cancel(self) -> bool:
        """Ask at once for the task to be cancelled. Return False if it is known to have ended.

        A task that was asked may still end in another way. If it is not in the memory of this instance, only the file
        knows whether it exists: `await manager.cancel(task_id)` asks there, and gives the answer.
        """
        live = self._newest()
        if live is not None and not (live.status.is_terminal or live.has_left):
            self._check_process(live)
        return self._instance.cancel_now(self._task_id, live)

    def _check_process(self, live: LiveTask) -> None:
        """Raise `WrongProcess` for a task that was in memory when this process was forked: nobody here runs it."""
        if live is self._live and self._process is not _process:
            raise WrongProcess(
                f"task {self._task_id} was enqueued in the process that this one was forked from; use its handle there"
            )

    def __repr__(self) -> str:
        return f"<TaskHandle {self._task_id} {self.status}>"


def not_completed(task_id: str, ending: Ending) -> TaskNotCompleted:
    """Return what is raised where the value of a task, or of a workflow, is awaited that has none."""
    error = ending.result.err_value
    status = ending.status
    if status is TaskStatus.CANCELLED:
        return TaskCancelled(task_id, status, error)
    if status is TaskStatus.EXPIRED:
        return TaskExpired(task_id, status, error)
    if status in (TaskStatus.COMPLETED, TaskStatus.FAILED):
        return TaskFailed(task_id, status, error)
    return TaskInterrupted(task_id, status, error, ending.requeued)
