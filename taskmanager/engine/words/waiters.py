"""Waits for tasks: in this event loop or another one, in a task of its own, or for a task of another instance.

A coroutine that waits puts a future into a list, and the engine resolves it. A task that waits lends its slot. A task
that awaits its own handle, or that of a task which waits for it in turn, would wait for ever. So it gets an error where
that is certain: in a wait without a time limit, by the task itself or through `asyncio.gather`. A wait in something
that the task has begun beside itself need not keep it from ending, and what other instances run is not known here.

The end of a task that this instance does not run is read from its row, whenever the store has changed. So is the end
of a workflow.

Those who wait for room in a queue stand in a line, and only the first one looks.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final, cast

from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.definition import carries
from taskmanager.engine.words.live_task import Ending, LiveTask
from taskmanager.engine.words.loops import AGAIN_AFTER_S
from taskmanager.model.context import current
from taskmanager.model.errors import ConfigurationError, StoreUnavailable, unknown_task, unknown_workflow
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow
from taskmanager.model.result import TaskResult
from taskmanager.model.states import TaskStatus
from taskmanager.model.workflows import ENDED_WORKFLOW, WorkflowRow
from taskmanager.store.protocol import Store

PAGE: Final = 500
SEEN_PAGE: Final = 100
"""The same of tasks that have ended: their results may be large."""
MAX_SEEN: Final = 10_000
"""How many tasks keep their last status for handles that nobody waits for any more."""

Waiters = list["asyncio.Future[Any]"]


# Futures in a list.


async def wait_in(waiters: Waiters) -> Any:
    """Wait for a new future in a list that the engine resolves, and leave the list when cancelled."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    waiters.append(future)
    try:
        return await future
    finally:
        if future.cancelled() and future in waiters:
            waiters.remove(future)


def resolve(waiters: "Iterable[asyncio.Future[Any]] | None", outcome: Any) -> None:
    """Give a result, or an exception, to futures of this loop or of others."""
    if waiters:
        _resolve_in(asyncio.get_running_loop(), waiters, outcome)


def _resolve_in(here: asyncio.AbstractEventLoop, waiters: "Iterable[asyncio.Future[Any]]", outcome: Any) -> None:
    for waiter in waiters:
        if waiter.get_loop() is here:
            _set(waiter, outcome)
        else:
            tell(waiter, outcome)


def tell(waiter: "asyncio.Future[Any]", outcome: Any) -> None:
    """Give a result, or an exception, from any thread. Where the loop is closed nobody waits any more."""
    with contextlib.suppress(RuntimeError):
        waiter.get_loop().call_soon_threadsafe(_set, waiter, outcome)


def _set(waiter: "asyncio.Future[Any]", outcome: Any) -> None:
    if waiter.done():
        return
    if isinstance(outcome, BaseException):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)


class RoomWaiters(dict[str, "deque[asyncio.Event]"]):
    """Who waits for room in each queue, in the order in which they came.

    Only the first of a queue looks whether there is room, and lets the next one look when it goes. If thousands wait,
    and all of them looked at each place that comes free, the loop would do nothing else.
    """

    async def wait(self, queue_name: str, is_full: Callable[[str], bool]) -> None:
        """Return when that queue is not full."""
        line, turn = self.setdefault(queue_name, deque()), asyncio.Event()
        line.append(turn)
        try:
            while line[0] is not turn or is_full(queue_name):
                turn.clear()
                await turn.wait()
        finally:
            line.remove(turn)
            if not line:
                self.pop(queue_name, None)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and what waited in it is collected
                    line[0].set()

    def look(self) -> None:
        """There may be room."""
        for line in self.values():
            line[0].set()

    def let_all_in(self) -> None:
        """There is room for everybody, or nothing is taken in any more."""
        for line in self.values():
            for turn in line:
                turn.set()


async def ended(live: LiveTask) -> Ending:
    """Return the ending of a task that is here, whoever waits for it besides."""
    if live.is_published and live.ending is not None:
        return live.ending
    return cast("Ending", await wait_in(live.waiters_list()))


# A task that waits.


def running_attempt() -> Attempt | None:
    """Return the attempt that the calling code belongs to, as long as that lasts."""
    attempt = current.get(None)
    return attempt if isinstance(attempt, Attempt) and not attempt.is_over else None


def refuse_inside(keeper: object, call: str, instead: str) -> None:
    """Raise `ConfigurationError` in a task of the manager whose slots `keeper` gives: it would wait for that task."""
    attempt = running_attempt()
    if attempt is not None and attempt.keeper is keeper:
        raise ConfigurationError(f"{call} inside task {attempt.task_name} would wait for that task; {instead}")


@contextlib.asynccontextmanager
async def lent_slot(task_id: str | None, running: Mapping[str, Attempt], *, is_bounded: bool) -> AsyncIterator[None]:
    """Lend the slot of the calling task while a block waits for a task, or with None for something else.

    Raises `ConfigurationError` where that would be for ever.
    """
    attempt = running_attempt()
    if attempt is None:
        yield
        return
    if task_id is not None:
        _check(attempt, task_id, running, is_bounded=is_bounded)
    if not (attempt.live.definition.is_async or attempt.is_surrounded):
        yield
        return
    waiter = None if is_bounded else asyncio.current_task()
    attempt.begin_wait(waiter, task_id)
    try:
        yield
    finally:
        await attempt.end_wait(waiter)


def _check(attempt: Attempt, task_id: str, running: Mapping[str, Attempt], *, is_bounded: bool) -> None:
    if task_id == attempt.task_id:
        raise ConfigurationError(
            f"task {attempt.task_name} ({task_id}) awaits its own handle, and would wait for ever; let it return, and "
            "await the handle outside of it"
        )
    if is_bounded or not attempt.is_held_up_by(asyncio.current_task()):
        return
    seen, waited_for = {task_id}, [task_id]
    while waited_for:
        other = running.get(waited_for.pop())
        awaited = () if other is None else other.surely_awaited()
        if attempt.task_id in awaited:
            raise ConfigurationError(
                f"task {attempt.task_name} ({attempt.task_id}) awaits task {task_id}, which waits for it, so that "
                "neither would ever end; let one of them return what the other needs"
            )
        waited_for.extend(each for each in awaited if each not in seen)
        seen.update(awaited)


# The end of a task.


class Follower:
    """Tells those who wait the ends of tasks: of those that run here, and of those that this instance does not run."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: Store, decode: Callable[[TaskRow], TaskResult[Any]]
    ) -> None:
        self._loop = loop
        self._store = store
        self._decode = decode
        self._waiting: dict[str, Waiters] = {}
        self._workflows: dict[str, Waiters] = {}
        self._ended_here: set[str] = set()
        """Workflows that somebody waits for, and that have ended by a write of this instance."""
        self._listening: dict[str, list[Callable[[LiveTask], None]]] = {}
        self.last_status: dict[str, TaskStatus] = {}
        """The status that was seen last of tasks that are not in memory. The latest look stands last."""
        self._taken: dict[str, str | None] = {}
        """Tasks of this instance that others run or may run, with their tags, unless it is known that they ended."""
        self.coming: dict[str, float] = {}
        """Tasks that a transaction of the application may still bring, and until when. The last to give up is last."""
        self._over: Ending | None = None
        self.needs_look = False
        """Whether the next look is due, whatever the store says of changes: one has failed, or somebody asks for it."""
        self.begins_to_wait: Callable[[], None] = lambda: None
        """Called when somebody is about to wait."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._workflows)

    def __contains__(self, task_id: object) -> bool:
        """Whether somebody waits for this task from afar."""
        return task_id in self._waiting

    def __repr__(self) -> str:
        return f"<Follower of {len(self._waiting)} tasks>"

    def leave_loop(self) -> None:
        """Use the loop that runs now: the earlier one will not run again."""
        self._loop = asyncio.get_running_loop()

    def tell_end(self, live: LiveTask) -> None:
        """Tell the ending of a task to all who wait for it."""
        waiters, live.waiters = live.waiters, None
        is_followed = live.task_id in self._waiting or live.task_id in self.last_status
        if not (waiters or is_followed):
            return
        ending = live.ending
        assert ending is not None
        if waiters:
            _resolve_in(self._loop, waiters, ending)
        if is_followed:
            self.notice(live.task_id, ending)

    async def watch(self, task_id: str, came_here: Callable[[LiveTask], None] | None = None) -> Ending:
        """Return the ending of a task, whichever instance runs it. A store that cannot be read is waited for.

        `came_here` is called when this instance claims the task. Raises `UnknownTask` when there is no such record.
        """
        if self._over is not None:  # a wait that begins in the last turns of a stop would last for ever
            return self._over
        if came_here is not None:
            self._listening.setdefault(task_id, []).append(came_here)
        try:
            return cast("Ending", await self._watch(self._waiting, task_id, self.look))
        finally:
            _leave(self._listening, task_id, came_here)

    async def watch_workflow(self, workflow_id: str) -> WorkflowRow | None:
        """Return the row of a workflow when it has ended, or None if the manager stops before.

        Raises `UnknownTask` when there is no such workflow.
        """
        if self._over is not None:
            return None
        return cast("WorkflowRow | None", await self._watch(self._workflows, workflow_id, self.look_at_workflows))

    async def _watch(
        self, waiting: dict[str, Waiters], key: str, look: Callable[[list[str]], Awaitable[None]]
    ) -> Ending | WorkflowRow | None:
        future: asyncio.Future[Any] = self._loop.create_future()
        self.begins_to_wait()
        waiting.setdefault(key, []).append(future)
        try:
            try:
                await look([key])
            except StoreUnavailable as exc:
                logger.debug("%s is followed as soon as the store can be read: %s", key, exc)
                self.needs_look = True
            found: Ending | WorkflowRow | None = await future
            return found
        finally:
            _leave(waiting, key, future)

    def follow(self, task_id: str, waiters: Waiters) -> None:
        """Watch a task for waiters that are there already, and tell them."""
        watching = self._loop.create_task(self.watch(task_id), name="taskmanager-follower")
        watching.add_done_callback(partial(self._pass_on, task_id, waiters))

    def take_over(self, live: LiveTask) -> None:
        """Let the waiters of a task that is not ours (any more) wait for its row to end."""
        self.saw(live.task_id, live.status)
        if live.waiters:
            waiters, live.waiters = live.waiters, None
            self.follow(live.task_id, waiters)

    def _pass_on(self, task_id: str, waiters: Waiters, done: "asyncio.Task[Ending]") -> None:
        if done.cancelled():  # by code that cancels every task there is
            self._loop.call_later(AGAIN_AFTER_S, self.follow, task_id, waiters)
        else:
            resolve(waiters, done.exception() or done.result())

    def came_here(self, live: LiveTask) -> None:
        """Tell that a row was claimed here. Handles that know its task from the store are to hear of its end."""
        self._taken.pop(live.task_id, None)
        self.saw(live.task_id, live.status)
        for listener in self._listening.get(live.task_id, ()):
            listener(live)

    def saw(self, task_id: str, status: TaskStatus) -> None:
        """Note the status that the handles of a task tell from now on, while it is not in memory."""
        self.last_status.pop(task_id, None)
        self.last_status[task_id] = status
        if len(self.last_status) > MAX_SEEN:
            del self.last_status[next(iter(self.last_status))]

    def taken_away(self, task_id: str, tags_text: str | None) -> None:
        """Note a task of this instance that another one has taken, or may take: `join` waits for it too."""
        self._taken[task_id] = tags_text

    def may_come(self, task_id: str, tags_text: str | None, until_s: float) -> None:
        """Note a task that a transaction of the application may bring: from its commit on `join` waits for it."""
        self.coming.pop(task_id, None)
        self.coming[task_id] = until_s
        self.taken_away(task_id, tags_text)

    def has_coming(self, now_s: float) -> bool:
        """Return whether there is a task that a transaction may bring, and that has not been given up by this time."""
        return bool(self.coming) and now_s < next(reversed(self.coming.values()))

    async def has_unfinished(self, tags: dict[str, str]) -> bool:
        """Return whether a task (with these tags) that another instance has taken from here has not ended."""
        unknown = [task_id for task_id, text in self._taken.items() if carries(text, tags)]
        for start in range(0, len(unknown), PAGE):
            if not await self._have_ended(unknown[start : start + PAGE]):
                return True
        return False

    async def forget_ended(self) -> None:
        """Forget the oldest taken tasks that have ended, so that the list does not grow where nobody calls `join`."""
        while (oldest := list(islice(self._taken, PAGE))) and await self._have_ended(oldest):
            if oldest[0] in self._taken:  # it may still come
                return

    def have_come(self, task_ids: Iterable[str]) -> None:
        """Note that the transactions of these are over: their rows are there."""
        for task_id in task_ids:
            self.coming.pop(task_id, None)

    async def forget_late(self) -> None:
        """Forget tasks that no transaction has brought in time. What has come is one of the taken tasks from now on."""
        now_s = self._loop.time()
        if late := list(takewhile(lambda each: self.coming[each] <= now_s, self.coming)):
            await self._have_ended(late)
            for task_id in late:
                if self.coming.get(task_id, now_s) <= now_s:
                    self.coming.pop(task_id, None)

    async def _have_ended(self, task_ids: list[str]) -> bool:
        """Return whether all of these that are in the store have ended. Forget those that have, and those that are not
        there, unless they may still come.
        """
        rows, now_s = await self._store.fetch_ids(task_ids), self._loop.time()
        live = [each for each in task_ids if (row := rows.get(each)) and not TaskStatus(row.status).is_terminal]
        for task_id in set(task_ids).difference(live):
            if task_id in rows or self.coming.get(task_id, now_s) <= now_s:
                self._taken.pop(task_id, None)
        return not live

    async def see_ends(self) -> None:
        """Read what tasks have come to that had not ended when they were seen last: their handles tell it then."""
        unknown = [task_id for task_id, status in self.last_status.items() if not status.is_terminal]
        for start in range(0, len(unknown), SEEN_PAGE):
            for task_id, row in (await self._store.fetch_ids(unknown[start : start + SEEN_PAGE])).items():
                self.saw(task_id, TaskStatus(row.status))

    async def look_at_all(self, *, is_changed: bool = True) -> None:
        """Read the row of every followed task once, and those of followed workflows.

        If nobody else has written and no look was asked for, only the workflows that have ended here are read.
        """
        task_ids, was_due, self.needs_look = list(self._waiting), self.needs_look, False
        is_done = False
        try:
            for start in range(0, len(task_ids), PAGE):
                await self.look(task_ids[start : start + PAGE])
            await self.look_at_workflows(list(self._workflows if is_changed or was_due else self._ended_here))
            is_done = True
        finally:
            self.needs_look = self.needs_look or not is_done  # somebody may have asked for the next one meanwhile

    async def look(self, task_ids: list[str]) -> None:
        """Read these rows, and wake the waiters of tasks that have ended or do not exist."""
        rows = await self._store.fetch_ids(task_ids)
        for task_id in task_ids:
            row = rows.get(task_id)
            if row is None:
                resolve(self._waiting.pop(task_id, None), unknown_task(task_id))
                continue
            status = TaskStatus(row.status)
            if status.is_terminal:
                self.notice(task_id, Ending(status, self._decode(row)))
            elif task_id in self._waiting:
                self.saw(task_id, status)

    async def look_at_workflows(self, workflow_ids: list[str]) -> None:
        """Read these rows, and wake the waiters of workflows that have ended or do not exist."""
        for each in workflow_ids:
            self._ended_here.discard(each)  # it may end while it is read
            row = await self._store.fetch_workflow(each)
            if row is None or row.status in ENDED_WORKFLOW:
                resolve(self._workflows.pop(each, None), unknown_workflow(each) if row is None else row)

    def workflows_ended(self, workflow_ids: Iterable[str]) -> bool:
        """Note that a write of this instance has ended these. Return whether somebody waits for one of them."""
        ended = [each for each in workflow_ids if each in self._workflows]
        self._ended_here.update(ended)
        return bool(ended)

    def notice(self, task_id: str, ending: Ending) -> None:
        """Tell the waiters of a task that it has ended, where another instance ran it or it is not in memory."""
        self._taken.pop(task_id, None)
        waiters = self._waiting.pop(task_id, None)
        if waiters is None and task_id not in self.last_status:
            return
        resolve(waiters, ending)
        if self._over is None:  # that one is no end, only the last that is heard of the task here
            self.saw(task_id, ending.status)

    def end_all(self, ending: Ending) -> None:
        """Give this ending to all waiters, and to later ones: after the stop nobody reads the store for them."""
        self._over = ending
        for task_id in list(self._waiting):
            self.notice(task_id, ending)
        for waiters in list(self._workflows.values()):
            resolve(waiters, None)


def _leave(book: "dict[str, list[Any]]", task_id: str, entry: object) -> None:
    entries = book.get(task_id)
    if entries and entry in entries:
        entries.remove(entry)
        if not entries:
            del book[task_id]
