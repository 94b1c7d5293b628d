"""When changes are committed that nobody asks for, and what the answers to commits mean."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from taskmanager.engine.words.live_task import NOT_SAVED, LiveTask, Saving
from taskmanager.engine.words.phases import RUNNING, STARTING
from taskmanager.engine.words.waiters import resolve
from taskmanager.engine.write.outbox import Outbox, Places, Sent
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow, UnreadableRow, Write, expected_of
from taskmanager.model.states import LIVE, WAITING
from taskmanager.model.workflows import HELD
from taskmanager.store.protocol import CommitReport
from taskmanager.store.workflow_protocol import Advance

LATE_AGAIN_S: Final = 0.05
"""The pause after a commit that could not be begun."""
MOST_LATE: Final = 512
"""How many late ends go with one commit."""


class DueTime:
    """Work that may wait for a while: a timer, and whether its time has come."""

    def __init__(self, wait_s: float, on_due: Callable[[], None]) -> None:
        self._wait_s = wait_s
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self.is_now = False

    def begin(self) -> None:
        """There is work: its time comes after the wait, unless it is being waited for already."""
        if self.is_now:
            self._on_due()  # it came when there was nothing to do, and nobody may have looked since
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self.hurry)

    def shorten(self, wait_s: float) -> None:
        """Its time comes after this wait, which is shorter than the one that has begun."""
        if self.is_now:
            self._on_due()
        else:
            self.close()
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.hurry)

    def hurry(self) -> None:
        """Its time has come."""
        self.close()
        self.is_now = True
        self._on_due()

    def close(self) -> None:
        """The timer rings no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Patience:
    """How long changes wait that nobody asks for: plain ends, and tasks that were only accepted."""

    def __init__(self, wait_s: float, wake: Callable[[], None], outbox: Outbox) -> None:
        self._due = DueTime(wait_s, self._end)
        self.is_over = False
        """Whether all of them are written now."""
        self._wake = wake
        self._outbox = outbox
        self._rush_count = 0

    @property
    def is_rushed(self) -> bool:
        """Whether somebody waits for all that there is, so that every end is urgent."""
        return self._rush_count > 0

    def begin(self) -> None:
        """One more waits."""
        if not self.is_over:  # else the writer looks anyway
            self._due.begin()

    def renew(self) -> None:
        """None waits any more: the next one waits anew."""
        self.is_over = self._due.is_now = False

    def hurry(self) -> None:
        """Let those that wait be written now."""
        if self._outbox.waiting_count:
            self._due.hurry()

    def rush(self) -> None:
        """Let every end be urgent from now on, as in a stop."""
        self._rush_count += 1
        self.hurry()

    @contextlib.contextmanager
    def rushed(self) -> Iterator[None]:
        """Let every end be urgent inside this block."""
        self.rush()
        try:
            yield
        finally:
            self._rush_count -= 1

    def _end(self) -> None:
        if self._outbox.waiting_count:
            self.is_over = True
            self._wake()
        else:
            self.renew()

    def close(self) -> None:
        """The timer rings no more."""
        self._due.close()


class Late(NamedTuple):
    """Plain ends that the thread has taken, and the commit that it has begun with them."""

    entry_count: int
    ends: list[Sent]
    report: Coroutine[Any, Any, CommitReport]


BeginCommit = Callable[[Sequence[Write], asyncio.AbstractEventLoop], Coroutine[Any, Any, CommitReport]]


class LateEnds:
    """The thread of one writer that commits plain ends while the event loop is blocked, and the commit it has begun.

    Code of the application may hold the loop for seconds. An end that waits for the next commit would wait as long, and
    would be taken for a crash if the process died meanwhile. So a thread keeps the deadline. It sends what was made
    when the task ended, calls no code of the application, and changes no task: the loop does that when it goes on.
    """

    def __init__(self, outbox: Outbox, wait_s: float, begin_commit: BeginCommit, wake: Callable[[], None]) -> None:
        self._outbox = outbox
        self._wait_s = wait_s
        self._begin_commit = begin_commit
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._has_ends = threading.Event()
        self._is_closed = threading.Event()
        self.late: Late | None = None
        """What was begun and is not taken. The loop may look at any time."""
        threading.Thread(target=self._run, name="taskmanager-late-ends", daemon=True).start()

    def __repr__(self) -> str:
        late = 0 if self.late is None else len(self.late.ends)
        return f"<LateEnds {'closed' if self._is_closed.is_set() else 'open'}, {late} begun>"

    def watch(self) -> None:
        """There is an end that may wait."""
        if not self._has_ends.is_set():
            self._has_ends.set()

    def take(self) -> Late | None:
        """Return what was begun, once."""
        with self._outbox.plain_lock:
            late, self.late = self.late, None
            return late

    def close(self) -> None:
        """Begin nothing more."""
        with self._outbox.plain_lock:
            self._is_closed.set()
        self._has_ends.set()

    def _run(self) -> None:
        """Look once in an interval, as long as ends come: to be woken for each of them would cost more than they do."""
        while not self._is_closed.is_set():
            self._has_ends.wait()
            self._has_ends.clear()
            left_s = self._wait_s - (self._outbox.plain_age_s() or 0.0)
            if left_s > 0:
                self._is_closed.wait(left_s)
            elif not self._begin():
                self._is_closed.wait(LATE_AGAIN_S)
            if self._outbox.plain_age_s() is not None:
                self._has_ends.set()

    def _begin(self) -> bool:
        """Begin to commit what waits; False when that cannot be done now."""
        with self._outbox.plain_lock:
            if self.late is not None or self._is_closed.is_set():
                return False
            entry_count, ends = self._outbox.take_late(MOST_LATE)
            try:
                report = self._begin_commit([sent.write for sent in ends], self._loop)
            except StoreError:
                self._outbox.put_late_back(ends)
                return False
            self.late = Late(entry_count, ends, report)
        with contextlib.suppress(RuntimeError):  # the loop was closed; who writes in its place takes what was begun
            self._loop.call_soon_threadsafe(self._wake)
        return True


def _is_ours(live: LiveTask, row: TaskRow, listener: "WriterListener") -> bool:
    """Whether the row says what we wrote ourselves: in a commit that seemed to fail, or by a claim meanwhile.

    The owner alone proves nothing: who recovers a task leaves there who had it, and that must stay refused.
    """
    found = expected_of(row)
    if live.is_unconfirmed:
        # Any other row is an earlier task of the key, also one that reads like what was sent.
        return found in live.saving.in_doubt and row.sent_at == live.sent_at
    # What was in doubt at a failover may have arrived before it.
    if live.saving.is_written_anew and found not in live.saving.in_doubt:
        return live.has_overtaken(row) and _is_left_to_us(live, row, listener)
    # Of a row that cannot be read the count is a guess, by which no write would ever win.
    is_as_known = found == live.saving.committed and not isinstance(row, UnreadableRow)
    return is_as_known or found in live.saving.in_doubt


def _is_left_to_us(live: LiveTask, row: TaskRow, listener: "WriterListener") -> bool:
    """Whether nobody else has taken or ended the task since the older copy of the file that has this row came."""
    owner = row.claimed_by_worker_id
    count = live.start_count - (live.phase is STARTING)  # without a start of which no code has run
    has_fewer_starts, has_begun = row.start_count < count, live.phase is RUNNING or live.status.is_terminal
    if owner is None and row.status in LIVE:  # with more starts somebody else has run it since
        return has_begun or row.start_count <= count
    if owner is None:
        # What has ended with as many starts was ended by somebody since, unless the task was put back after that end.
        return has_fewer_starts or live.run_number > 0
    if listener.is_me(owner):  # though the task may have been freed here since
        return True
    if owner == HELD:  # its workflow is paused: what has begun here ends, and nothing of it begins
        return has_fewer_starts and has_begun
    # What waits with fewer starts is not begun anywhere, and what runs at a dead owner runs nowhere. If it were
    # recovered, the same attempt would start again. Once it is written over, no owner of it can start it.
    is_before = has_fewer_starts and row.status in LIVE and not isinstance(row, UnreadableRow)
    return is_before and (row.status in WAITING or listener.is_dead(owner))


class WriterListener(Protocol):
    """Hears what became of the writes: the engine."""

    def committed(self, live: LiveTask) -> None: ...
    def lost(self, live: LiveTask, row: TaskRow | None) -> None: ...
    def rejected(self, live: LiveTask, reason: str) -> None: ...
    def degraded(self, exc: StoreError) -> None: ...
    def restored(self) -> None: ...
    def advanced(self, advance: Advance) -> None: ...
    def written(self) -> None: ...
    def is_me(self, instance_id: str) -> bool: ...
    def is_dead(self, instance_id: str) -> bool: ...


class Flushes:
    """Those who wait until all that was unsaved when they asked is in the store."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Places, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<Flushes, {len(self._waiting)} waiting>"

    def wait_for(self, places: Places) -> "asyncio.Future[None]":
        """Done when these places are passed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((places, done))
        return done

    def extend(self, places: Places) -> None:
        """What they wait for is to be written once more: they wait for these places too."""
        self._waiting = [(each.or_behind(places), done) for each, done in self._waiting]

    def end(self, has_passed: Callable[[Places], bool]) -> None:
        """Tell those whose places are passed."""
        waiting, self._waiting = self._waiting, []
        for places, done in waiting:
            if has_passed(places):
                resolve([done], None)
            else:
                self._waiting.append((places, done))

    def give_up(self, exc: Exception) -> None:
        """Nobody will write any more."""
        waiting, self._waiting = self._waiting, []
        resolve([done for _, done in waiting], exc)


class Answers:
    """Takes in what became of the tasks of each batch, for one writer."""

    def __init__(
        self, outbox: Outbox, flushes: Flushes, mark: Callable[[LiveTask], None], listener: WriterListener
    ) -> None:
        self._outbox = outbox
        self._flushes = flushes
        self._mark = mark
        self._listener = listener
        self._has_history_again = False
        self.arrived: set[str] = set()
        """The tasks of the last batch whose writes lost to an earlier one of this instance, which had no answer."""

    def take_in(self, batch: Sequence[Sent], report: CommitReport) -> bool:
        """Tell everybody what became of theirs. Return whether a record of history must be written once more."""
        self._has_history_again = False
        self.arrived = set()
        is_troubled = bool(report.lost or report.rejected)
        for sent in map(self._outbox.as_it_was, batch) if is_troubled else batch:
            live = sent[0]
            if not live.is_persisted and not is_troubled:
                continue
            try:
                if is_troubled and live.task_id in report.rejected:
                    self._absorb_rejection(sent, report.rejected[live.task_id])
                elif is_troubled and live.task_id in report.lost:
                    self._absorb_loss(sent, report.lost[live.task_id])
                elif live.is_persisted:  # nothing follows from a record of history that is in the store
                    self._absorb_win(sent)
            except Exception:
                # A mistake of ours with one task must not keep the others, and all that come, from being saved.
                logger.critical("what became of task %s could not be taken in", live.task_id, exc_info=True)
        return self._has_history_again

    def _absorb_win(self, sent: Sent) -> None:
        live, state, base, _ = sent
        saving = live.saving
        if saving.committed is base:  # else its row was claimed again before this answer came
            saving.committed = state
        # A start that was taken back meanwhile has arrived; the count of a row never goes back.
        live.start_count = max(live.start_count, state.start_count)
        saving.is_written_anew = False
        if saving.in_doubt:
            saving.in_doubt = ()
        self._listener.committed(live)

    def _absorb_rejection(self, sent: Sent, reason: str) -> None:
        live = sent.live
        with self._another_try(live):
            _take_attempts_back(sent.live, sent.write)
            self._listener.rejected(live, reason)

    def _absorb_loss(self, sent: Sent, row: TaskRow | None) -> None:
        """A write whose precondition did not hold. Our own row there means that an earlier commit did arrive
        after all.
        """
        live, saving = sent.live, sent.live.saving
        with self._another_try(live):
            if row is None or not _is_ours(live, row, self._listener):
                self._listener.lost(live, row)
                return
            self.arrived.add(live.task_id)
            saving.committed = expected_of(row)
            # A start that was taken back here may be the one that arrived; the count of a row never goes back.
            live.start_count = max(live.start_count, row.start_count)
            saving.in_doubt = ()
            _take_attempts_back(sent.live, sent.write)
            if live.saving.committed == live.expectation() and not (live.attempts_due or live.steps_due):
                saving.is_written_anew = False  # the copy holds the newest state, so all that changes it comes later
                self._listener.committed(live)
            else:
                self._mark(live)

    @contextlib.contextmanager
    def _another_try(self, live: LiveTask) -> Iterator[None]:
        """The task may have to be written once more; callers of flush() keep waiting for it then."""
        if live.saving is NOT_SAVED:
            live.saving = Saving()
        was_dirty, history = live.saving.is_dirty, self._outbox.history
        before = history.end
        yield
        is_history_again = not live.is_persisted and history.end > before
        if live.saving.is_dirty or is_history_again:
            self._flushes.extend(self._outbox.try_again(live, was_dirty=was_dirty))
            self._has_history_again |= is_history_again


def _take_attempts_back(live: LiveTask, write: Write) -> None:
    """They are due again. Those of a memory-only task have stayed with it."""
    if live.is_persisted:
        live.attempts_due = (*write.attempts, *live.attempts_due)
