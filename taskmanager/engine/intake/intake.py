"""The way in: checks a call, makes the task, and hands it to the engine. Safe from any thread; never blocks.

Everything that can be wrong with a call is found here, before anything is kept. The lock is held for the last, short
part only: it makes "is there room, is the key free, is the door open" one decision with the entry itself.

A call may also interrupt another one in its own thread: from a signal handler, a finalizer, or a handler of our own log
lines. So the lock can be taken again by who holds it, and the engine is not touched: it finds the task in the inbox.
"""

import atexit
import os
import weakref
from collections.abc import Iterable, Sequence
from contextvars import copy_context
from enum import Enum
from typing import Any, Final

from taskmanager.codec.arguments import NO_ARGUMENTS
from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.intake.inbox import Inbox, loop_is_closed
from taskmanager.engine.intake.keys import Keys
from taskmanager.engine.run import child
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import NOT_SAVED, Ending, LiveTask
from taskmanager.engine.words.outcome import extra_of
from taskmanager.engine.words.settings import Settings
from taskmanager.engine.words.waiters import tell
from taskmanager.model.call_options import NO_OPTIONS, CallOptions
from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.config import QueueConfig
from taskmanager.model.errors import (
    ConfigurationError,
    ManagerStopped,
    ManagerStopping,
    NotPersisted,
    QueueFull,
    WrongProcess,
)
from taskmanager.model.ids import keyed_task_id, new_task_id
from taskmanager.model.logger import logger
from taskmanager.model.program_end import at_child_end
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode, TaskStatus
from taskmanager.model.wording import counted

HELD_PATIENCE_S: Final = 10
"""A call that comes so long after the first one that waits for a start says so: nobody may be going to start it."""
HOW_TO_START: Final = (
    "start it with lifespan=manager.lifespan on the outermost application, with `async with manager:` or with "
    "manager.run(main)"
)


class Door(Enum):
    """What happens to a call now."""

    HELD = "held until start"
    OPEN = "open"
    DRAINING = "draining"
    STOPPED = "stopped"


_OPEN, _DRAINING = Door.OPEN, Door.DRAINING  # each call asks, and to look them up takes four times as long

_intakes: "weakref.WeakSet[Intake]" = weakref.WeakSet()


class Intake:
    """One per manager, for all its starts."""

    def __init__(self, clock: Clock, *, max_pending: int | None, queues: Sequence[QueueConfig]) -> None:
        self.clock = clock
        self.door = Door.HELD
        self.held: list[LiveTask] = []
        self.inbox: Inbox | None = None
        self.keys = Keys()
        self._max_pending = max_pending
        self._queue_limits = {each.name: each.max_pending for each in queues if each.max_pending is not None}
        self._limited_in_file = frozenset(each.name for each in queues if each.is_limited_in_file)
        self._settings: Settings | None = None
        """Those of the latest start, if they say that some queues are not run here."""
        self._has_queues_in_file = bool(self._limited_in_file)
        self._lock = self.keys.lock
        self.has_warned = False
        """Whether it was said that nobody has started the manager."""
        self.is_forked = False
        _intakes.add(self)

    def __repr__(self) -> str:
        return f"<Intake {self.door.value}, {len(self.held)} held>"

    # The call.

    def hand_over(self, live: LiveTask) -> tuple[LiveTask, bool]:
        """Hand over a task that was made before; and whether its key named a task that is here already."""
        inbox = self.inbox
        with self._lock:
            if inbox is None or inbox is not self.inbox or inbox.is_loop_closed():
                inbox = self._check_open(live)
            if live.idempotency_key is not None and (existing := self.keys.find(live)) is not None:
                return existing, True
            if inbox is None:
                self._hold(live)
            else:
                self._check_room(live, inbox)
            if live.idempotency_key is not None:
                self.keys.give(live)  # before the loop has the task, and may take its key away again
            if inbox is not None:
                try:
                    inbox.put(live)
                except ManagerStopped:
                    self.keys.left(live)
                    raise
        return live, False

    def make(
        self, definition: Definition, options: CallOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> LiveTask:
        """A checked task that nobody has yet: for `submit_in`, or to be handed over later."""
        if self.is_forked or child.is_lane_child:
            self._check_process()
        arguments = definition.arguments
        arguments.check(args, kwargs)
        key = options.idempotency_key
        task_id = new_task_id() if key is None else keyed_task_id(definition.name, key)
        live = LiveTask(definition, task_id, self.clock.now_us())
        if definition.is_persisted:
            live.args_text, live.kwargs_text = arguments.encode(args, kwargs)
        else:
            live.is_ordinary = options is NO_OPTIONS or options.is_ordinary
            live.call_args, live.call_kwargs = args, kwargs or None  # an empty one takes 64 bytes a task
            if not arguments.is_plain(args, kwargs):
                live.args_text, live.kwargs_text = definition.stored_arguments(args, kwargs)
            elif args or kwargs:
                live.encodes_later = True
            else:
                live.args_text, live.kwargs_text = NO_ARGUMENTS
        live.context = copy_context()
        if options is not NO_OPTIONS:
            self._set_options(live, definition, options)
        if self._has_queues_in_file and not definition.is_persisted:
            self._check_in_memory(live)
        if key is not None:
            live.idempotency_key = key
            self._digest(live, args, kwargs)
        return live

    def _check_in_memory(self, live: LiveTask) -> None:
        """Refuse a memory-only task of a queue whose tasks wait in the file."""
        name, queue_name = live.definition.name, live.queue_name
        if queue_name in self._limited_in_file:
            raise ConfigurationError(
                f'queue {queue_name!r} has a limit for the whole file (scope="file"), which counts what stands '
                f"there; {name} is memory-only: give it persist=True, or another queue"
            )
        if self._settings is not None and not self._settings.runs(queue_name):
            raise ConfigurationError(
                f"{name} is memory-only, and this instance does not run its queue {queue_name!r} ({self._settings.role}"
                "), so nobody would run it; give the task persist=True, or add its queue to run_queues"
            )

    def _check_process(self) -> None:
        if child.is_lane_child or (self.is_forked and self.inbox is not None):
            raise WrongProcess(
                "tasks cannot be enqueued in a child process; return the work to the parent and enqueue it there"
            )
        if self.is_forked:
            raise WrongProcess(
                "this process was forked and its manager is not started here; start it, which can be done unless the "
                "parent had the file open at the fork, or return the work to the parent and enqueue it there"
            )

    def _set_options(self, live: LiveTask, definition: Definition, options: CallOptions) -> None:
        """Say of the task what this call asks beyond the definition."""
        if options.queue_name:
            live.queue_name = options.queue_name
        if options.priority is not None:
            live.priority = options.priority
        if options.timeout_s is not None:
            live.timeout_s = options.timeout_s
            live.options_text = definition.options_for(options.timeout_s)
        live.tags_text = options.tags_text
        live.good_until = options.good_until_us
        if options.delay_s:
            live.delay(options.delay_s, self.clock.elapsed_s())
        elif options.run_at_us is not None and options.run_at_us > live.sent_at:
            live.enqueued_at = options.run_at_us

    @staticmethod
    def _digest(live: LiveTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = live.definition.arguments
        if live.args_text is None or live.kwargs_text is None:
            if not arguments.is_plain(args, kwargs):
                return
            live.store_arguments()
        if live.args_text is not None and live.kwargs_text is not None:
            live.enqueue_sha = arguments.digest(args, kwargs)

    # Under the lock.

    def _check_open(self, live: LiveTask) -> Inbox | None:
        """Return where the call goes, None for a start that is to come. Refuse it where nobody would run its task."""
        if self.inbox is not None and self.inbox.is_loop_closed():
            raise loop_is_closed(live)
        if self.door is Door.STOPPED:
            raise ManagerStopped(f"the manager has stopped; start it again before enqueueing {live.definition.name}")
        return self.inbox

    def _hold(self, live: LiveTask) -> None:
        self._check_held_room(live)
        if self._has_queues_in_file and not live.is_persisted:  # a start may have begun since it was made
            self._check_in_memory(live)
        self.held.append(live)
        at_child_end(warn_of_held_tasks)
        self._warn_of_no_start(live)

    def _check_room(self, live: LiveTask, inbox: Inbox) -> None:
        if self.door is not _OPEN and not live.is_persisted:
            raise ManagerStopping(
                f"the manager is stopping and takes persisted tasks only; {live.definition.name} is memory-only: "
                "enqueue it after the next start, or give it persist=True"
            )
        limit = self._reached_limit(live.queue_name, inbox)
        if limit is not None:
            raise self._full(live.queue_name, limit)

    def _reached_limit(self, queue_name: str, inbox: Inbox) -> int | None:
        """The limit that leaves no room for a task of that queue now."""
        most = self._max_pending
        if self.door is _DRAINING:  # what waits would make no room before the next start
            return most if most is not None and inbox.unwritten_count >= most else None
        if self._queue_limits:
            limit = self._queue_limits.get(queue_name)
            if limit is not None and inbox.queue(queue_name).pending >= limit:
                return limit
        return most if inbox.is_full() else None

    def _check_held_room(self, live: LiveTask) -> None:
        limit = self._queue_limits.get(live.queue_name)
        if limit is not None and sum(each.queue_name == live.queue_name for each in self.held) >= limit:
            raise self._full(live.queue_name, limit)
        if self._max_pending is not None and len(self.held) >= self._max_pending:
            raise self._full(live.queue_name, self._max_pending)

    def _warn_of_no_start(self, live: LiveTask) -> None:
        """Warn once that no start has come. A server whose lifespan does not start the manager shows no error."""
        if self.has_warned or live.sent_at - self.held[0].sent_at < HELD_PATIENCE_S * SECOND_US:
            return
        self.has_warned = True
        logger.warning(
            "%s was enqueued more than %d s after %s, and their manager has not started yet: %s wait in memory, and "
            "are lost with this process; %s",
            live.definition.name, HELD_PATIENCE_S, self.held[0].definition.name, counted(len(self.held), "task"),
            HOW_TO_START, extra=extra_of(live),
        )  # fmt: skip

    @staticmethod
    def _full(queue_name: str, limit: int) -> QueueFull:
        return QueueFull(
            f"queue {queue_name!r} is full ({limit} waiting); await manager.wait_for_room({queue_name!r}) and try again"
        )

    # The life of the manager.

    def open(self, inbox: Inbox) -> None:
        """Hand tasks to `inbox` from now on. Those that were held go first."""
        with self._lock:
            self.inbox = inbox
            self.door = Door.OPEN
            held, self.held = self.held, []
            for live in held:
                inbox.put(live)

    def drain(self) -> None:
        """Memory-only tasks are refused from now on."""
        with self._lock:
            if self.door is not Door.STOPPED:
                self.door = Door.DRAINING

    def close(self) -> None:
        """Everything is refused from now on. What came in last is still in the inbox, which nobody fills any more."""
        with self._lock:
            self.door = Door.STOPPED
            self.inbox = None
            self.keys.forget_all()

    def reopen_for_start(self, settings: Settings) -> None:
        """A second start holds calls until it is open; so does the first one of a forked child.

        Raises `WrongProcess` in a child of the process lane, which reads the main module of the program as well, and
        `ConfigurationError` if tasks are held that nobody would run.
        """
        if child.is_lane_child or child.is_loading_main:
            raise WrongProcess(
                "a child of the process lane cannot start a manager; the child imports the main module of the program, "
                'so start the manager there under `if __name__ == "__main__":`'
            )
        with self._lock:
            self._take_role(settings)
            self.is_forked = False
            if self.door is Door.STOPPED:
                self.keys.forget_all()  # what came in last was accepted after the door was closed
            self.door = Door.HELD

    def _take_role(self, settings: Settings) -> None:
        """From here on refuse memory-only tasks of queues that are not run here."""
        lost = [live for live in self.held if not (live.is_persisted or settings.runs(live.queue_name))]
        if lost:
            queues = ", ".join(sorted({repr(live.queue_name) for live in lost}))
            raise ConfigurationError(
                f"nobody would run {counted(len(lost), 'memory-only task')} enqueued before the start: this instance "
                f"does not run the queue {queues} ({settings.role}); give such tasks persist=True, or add their queue "
                "to run_queues"
            )
        self._settings = None if settings.run_queues is None else settings
        self._has_queues_in_file = bool(self._limited_in_file) or self._settings is not None

    def forget_idle_queues(self, dispatcher: Dispatcher) -> None:
        """Nobody enters a queue while it is looked whether anything is in it."""
        with self._lock:
            dispatcher.forget_idle()

    def forked(self) -> None:
        """This is a child now. What ran in the parent stays the parent's, and so does what was held for its start.

        A server that loads the application first and forks its workers then starts the manager in each of them.
        """
        self.is_forked = True
        self.keys.forked(is_started=self.inbox is not None)
        self._lock = self.keys.lock
        if self.inbox is None:
            self.held = []

    def is_full(self, queue_name: str) -> bool:
        """Whether `enqueue` to that queue would raise `QueueFull` now."""
        return self.inbox is not None and self._reached_limit(queue_name, self.inbox) is not None

    def find_held(self, task_id: str) -> LiveTask | None:
        """The task of that id, if it is held for the start."""
        with self._lock:
            return next((live for live in self.held if live.task_id == task_id), None)

    def cancel_held(self, live: LiveTask) -> bool:
        """Take a task out that is held for the start."""
        with self._lock:
            if live not in self.held:
                return False
            self.held.remove(live)
            self.keys.cancelled_unstarted(live)
        error = TaskError(BuiltInTaskCode.TASK_CANCELLED, "cancelled before the manager was started")
        live.status = TaskStatus.CANCELLED
        live.ending = Ending(TaskStatus.CANCELLED, TaskResult(err=error))
        live.is_published = True
        for waiter in live.waiters or ():
            tell(waiter, live.ending)
        for waiter in live.save_waiters or ():
            tell(waiter, never_written(live))
        live.waiters = live.save_waiters = None
        live.saving = NOT_SAVED
        return True


def put_right(held: Iterable[LiveTask], by_us: int) -> None:
    """Put right when these were sent, because the clock by which they were stamped is off. An instant that the caller
    has named stays.
    """
    for live in held:
        if live.enqueued_at == live.sent_at or live.is_pausing:
            live.enqueued_at += by_us
        live.sent_at += by_us
        live.updated_at += by_us


def never_written(live: LiveTask) -> NotPersisted:
    """Return the error for waiters on the record of a task that was cancelled before the start."""
    return NotPersisted(f"task {live.task_id} was cancelled before the start, and never written")


def _tell_forked() -> None:
    for intake in list(_intakes):
        intake.forked()


@atexit.register
def warn_of_held_tasks() -> None:
    """At the end of the process: what was held for a start that never came is lost, and said."""
    for intake in list(_intakes):
        if intake.held:
            held = counted(len(intake.held), "task")
            logger.warning("%s enqueued to a manager that was never started: lost with this process", held)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_forked)
