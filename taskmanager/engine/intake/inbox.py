"""What comes into memory: the inbox, with the turn that accepts its tasks.

A call may come from anywhere: from another thread, from code that runs while the loop does not, from a signal handler
or a finalizer that interrupts the engine between two of its lines. So a call only puts its task here and asks the loop
for a turn. Memory changes in that turn, or when code on the loop looks a task up and must find what came before.

Others may fill the inbox as fast as the loop empties it. So no step waits for an empty inbox. A turn accepts one
helping. A caller that needs all earlier tasks waits for the last of these, over as many turns as that takes.
"""

import asyncio
import contextlib
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections import deque
from collections.abc import Callable, Container, Iterator, Sized
from typing import Any, Final

from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import ARRIVED
from taskmanager.engine.words.waiters import resolve, wait_in
from taskmanager.engine.write.outbox import HISTORY_BATCH
from taskmanager.engine.write.writer import Writer
from taskmanager.model.errors import ManagerStopped
from taskmanager.model.states import COMPLETED

HELPING: Final = 500
HELPING_S: Final = 0.005
"""A turn accepts at most this many tasks, and lasts at most this long. Then the rest of the application runs."""
_LOOK_EVERY: Final = 32
"""A turn looks at the clock after this many tasks. One look costs a tenth of accepting one task."""


def loop_is_closed(live: LiveTask) -> ManagerStopped:
    """Return the error for a call whose loop will never run again."""
    return ManagerStopped(
        f"the event loop that the manager was started in is closed, and {live.definition.name} was not accepted; use "
        "`async with manager:` or manager.run(main), and enqueue while it runs"
    )


class Inbox:
    """Of one start. Filled from any thread, under the lock of the intake; emptied by the loop only."""

    def __init__(
        self,
        live: Sized,
        dispatcher: Dispatcher,
        writer: Writer,
        accept: Callable[[LiveTask], None],
        dispatch: Callable[[], None],
        max_pending: int | None = None,
        followed: Container[object] = (),
    ) -> None:
        self._live = live
        self._dispatcher = dispatcher
        self._writer = writer
        writer.wants_turn = self.kick
        self._accept = accept
        self._dispatch = dispatch
        self._followed = followed
        self._max_pending = max_pending
        self._fits_until = 0
        """There is room for certain until so many tasks have come in, by calls and from the store."""
        self._arrived: deque[LiveTask] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._turn_waiters: list[asyncio.Future[Any]] = []
        self._entered_count = 0
        """Tasks that were put in, of all queues."""
        self.queue, self._queues = dispatcher.queue, dispatcher.queues
        self.is_loop_closed = self._loop.is_closed
        """Whether the loop is closed. Then nobody will ever empty the inbox."""

    def __len__(self) -> int:
        return len(self._arrived)

    def __iter__(self) -> Iterator[LiveTask]:
        """Iterate over the tasks that are in it at this moment. May be called from anywhere."""
        return iter(list(self._arrived))

    def __repr__(self) -> str:
        return f"<Inbox of {len(self)}, its turn is {'due' if self._is_due else 'not due'}>"

    # In.

    def put(self, live: LiveTask) -> None:
        """Hand over a task. When the loop is closed, keep nothing and raise `ManagerStopped`."""
        queue = self._queues.get(live.queue_name) or self.queue(live.queue_name)
        queue.entered += 1
        self._entered_count += 1
        self._arrived.append(live)
        if self._is_due:
            return
        try:
            self._ring()
        except RuntimeError:  # it was closed in this moment
            self._arrived.remove(live)
            queue.entered -= 1
            self._entered_count -= 1
            raise loop_is_closed(live) from None

    def _ring(self) -> None:
        self._is_due = True
        try:
            if _running_loop() is self._loop and asyncio.current_task() is not None:
                self._loop.call_soon(self._turn)
            else:
                self._loop.call_soon_threadsafe(self._turn)  # the loop may be asleep
        except RuntimeError:
            self._is_due = False
            raise

    def tell(self, call: Callable[..., object], *args: object) -> None:
        """Let the loop make this call soon. May be called from anywhere.

        A closed loop needs no such call: the next start looks at everything.
        """
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)

    # Out, by the loop.

    def kick(self) -> None:
        """Ask for a turn soon, because something may start."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def leave_loop(self) -> None:
        """Ask for no turn any more, because the loop will not run again."""
        self._is_due = True

    def _turn(self) -> None:
        self._writer.turn_began()
        try:
            self._take_in()
            self._dispatch()
        finally:
            self._writer.turn_ended()

    def _take_in(self) -> None:
        try:
            self._take()
        finally:  # while a turn is marked as due, nobody asks for another one
            self._is_due = False  # callers that enqueued during the turn have asked for none: that is done below
            if self._arrived:
                self.kick()
            if self._turn_waiters:
                waiters, self._turn_waiters = self._turn_waiters, []
                resolve(waiters, None)

    def _take(self) -> None:
        """Accept one helping."""
        arrived, time = self._arrived, self._loop.time
        until_s = time() + HELPING_S
        for number in range(1, HELPING + 1):
            try:
                live = arrived.popleft()
            except IndexError:
                return
            self._accept(live)
            if number % _LOOK_EVERY == 0 and time() >= until_s:
                return

    def look(self) -> None:
        """Accept one helping, for a caller that looks at memory and cannot wait. Does nothing away from the loop."""
        if self._arrived and _running_loop() is self._loop:
            self._take()

    def find(self, task_id: str) -> LiveTask | None:
        """Return the task of that id, if it is here. May be called from anywhere."""
        return next((live for live in self if live.task_id == task_id), None)

    async def caught_up(self) -> None:
        """Return when everything that was handed over before this call is accepted. One helping is accepted at once."""
        try:
            last = self._arrived[-1]
        except IndexError:
            return
        self._take()
        while last.phase is ARRIVED:  # a turn is due as long as it is
            await wait_in(self._turn_waiters)

    def take_all(self) -> None:
        """Accept everything now. Call it only after the door is closed, when nobody fills the inbox any more."""
        while self._arrived:
            self._take()

    # How full memory is.

    def unsaved_count(self) -> int:
        """Count what `max_pending` limits: tasks that wait in memory, and ends and changes that are not stored yet."""
        history = self._writer.outbox.unsaved_history_count
        if self._writer.degraded_since is None:
            history = max(0, history - HISTORY_BATCH)  # less than that just waits for its interval
        return self.waiting_count + self._dispatcher.unsaved_end_count + history

    @property
    def unwritten_count(self) -> int:
        """What `max_pending` limits during a stop."""
        return len(self._arrived) + self._writer.unsaved_count

    @property
    def waiting_count(self) -> int:
        """Tasks that wait in memory, of all queues."""
        return self._entered_count - self._dispatcher.left_count

    def is_full(self) -> bool:
        """Whether `max_pending` is reached."""
        most = self._max_pending
        if most is None or self._entered_count + self._dispatcher.returned_count < self._fits_until:
            return False
        return self._certain_room(most) <= 0 and self.unsaved_count() >= most

    def _is_half_full(self) -> bool:
        """Whether half of `max_pending` may be used."""
        most = self._max_pending
        if most is None:
            return False
        half, came = most - most // 2, self._entered_count + self._dispatcher.returned_count
        return self._fits_until - came <= half and self._certain_room(most) <= half

    def _certain_room(self, most: int) -> int:
        """Return for how many more tasks there is room for certain, and note until when there is any.

        What is here counts at most once later, and more comes only by calls and from the store. So no exact count is
        needed before as many have come.
        """
        outbox, dispatcher = self._writer.outbox, self._dispatcher
        here = self.waiting_count + len(self._live) + dispatcher.unsaved_end_count + outbox.unsaved_history_count
        self._fits_until = self._entered_count + dispatcher.returned_count + most - here
        return most - here

    def end(self, live: LiveTask) -> None:
        """Hand the end of a task to the writer."""
        if not live.is_persisted:
            self._writer.record(live)
        elif self._may_wait(live):
            self._writer.end(live)
        else:
            self._writer.mark(live)

    def _may_wait(self, live: LiveTask) -> bool:
        """Tell whether the end may wait for the next commit: that of a first run that succeeds, and nobody asks for it.

        Somebody asks for an end who waits for it or for all that there is, a process that died of the task before, the
        schedule of the task, a queue whose limit holds for the file, and callers who may soon find memory full.
        """
        if live.status is not COMPLETED or live.start_count != 1 or self._writer.is_rushed:
            return False
        if live.waiters or live.save_waiters or live.successor or live.crash_count or live.scheduled_for is not None:
            return False
        if live.task_id in self._followed or self._is_half_full():
            return False
        return not self._dispatcher.has_queues_in_file or self.queue(live.queue_name).shared_limit is None
