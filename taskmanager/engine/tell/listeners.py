"""Tells the functions of the application that listen what happens to the tasks of this instance.

The loop notes each event in a tuple, and passes on what one turn has brought, so a listener costs it little. Sync
functions run in one thread of their own, async ones each in a task of the loop, one event at a time. So each function
hears its events in order, and nothing that it does (to raise, to block, to hang) reaches a task. What it cannot keep up
with is dropped, and counted.

An event of a persisted task is told when its row is in the store: the answers of the writer name the state that the
row had. Where the store takes no writes, an end is told when the waiters are told. Each instance tells what it has done
itself, so listeners hear of what another instance did in that one.
"""

import asyncio
import contextlib
import threading
from collections.abc import Container, Iterable, Sequence
from contextvars import Context
from typing import Final

from taskmanager.engine.run import child
from taskmanager.engine.tell.ears import Ear
from taskmanager.engine.tell.events import EventReader, Noted, Untold, has_snoozed
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.loops import let_loop_close
from taskmanager.engine.write.outbox import Sent
from taskmanager.model.gil import Lending
from taskmanager.model.hooks import EventKind, Hooks, Listener, TaskEvent
from taskmanager.model.logger import logger
from taskmanager.model.record import (
    AttemptRow,
    Expected,
    NewWrite,
    StartWrite,
    SuccessWrite,
    TaskRow,
    TaskWrite,
    Write,
    expected_of,
)
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted
from taskmanager.rules.events import END_KINDS, is_end, steps_between
from taskmanager.store.on_failure import enqueued_by
from taskmanager.store.protocol import CommitReport

SLICE: Final = 100
"""Events that the thread tells one function before it looks at the next one."""
_ENDS: Final = frozenset(END_KINDS.values())
CLOSE_PATIENCE_S: Final = 1.0
"""How long a stop waits, in all, for functions that are still to hear something."""
CLEANUP_SHARE: Final = 0.2
"""The part of it that cancelled async functions have to end. `asyncio.run` would wait for them without an end."""


class Listeners:
    """The listeners of one start, in its loop."""

    def __init__(self, hooks: Hooks, reader: EventReader) -> None:
        self._hooks, self._read = hooks, reader.read
        self._loop = asyncio.get_running_loop()
        self._ears: dict[Listener, Ear] = {}
        self._kinds: frozenset[EventKind] = frozenset()
        self._noted: list[Noted] = []
        self._untold = Untold()
        self._ring = threading.Event()
        self._thread: threading.Thread | None = None
        self._thread_over: asyncio.Future[None] = self._loop.create_future()
        self._is_telling = self._is_closing = self._is_over = False
        self._lending = Lending.fairly(self._has_work)
        self.look()

    def __repr__(self) -> str:
        return f"<Listeners {', '.join(map(repr, self._ears.values()))}>"

    def look(self) -> None:
        """Let every listener hear that was registered by now."""
        for fn, kinds in self._hooks.listeners.items():
            ear = self._ears.get(fn) or self._ears.setdefault(fn, Ear(fn))
            ear.kinds = kinds
        self._kinds = frozenset[EventKind]().union(*self._hooks.listeners.values())

    def troubles(self) -> dict[str, str]:
        """Return, for each function with which something is wrong, what that is."""
        found = {f"listener {ear.name}": ear.trouble() for ear in self._ears.values()}
        return {name: trouble for name, trouble in found.items() if trouble is not None}

    # What happens to tasks. All of it is called on the loop.

    def accepted(self, live: LiveTask) -> None:
        """Tell that a memory-only task has come in."""
        if "enqueued" in self._kinds:
            self._note(("enqueued", live.sent_at, live.start_count, live, None, None, None))

    def runs(self, live: LiveTask) -> None:
        """Tell that the code of a memory-only task begins. Of a persisted one the commit of its start tells that."""
        if not live.is_persisted and "started" in self._kinds:
            row = None if live.start_count == 1 else live.row()
            self._note(("started", live.started_at or 0, live.start_count, live, row, None, None))

    def claimed(self, live: LiveTask, known: Expected | None) -> None:
        """Tell that a row was claimed, and perhaps started by the claim. `known` is its last state that was known here.

        The row may be there by a write of ours that is not answered yet: that is told first. If others have had the row
        meanwhile, only the start by the claim is told.
        """
        state = live.expectation()
        count = state.start_count - (state.status == "RUNNING")
        self._catch_up(live.task_id, count)
        before = live.saving.told or known
        is_ours = not live.is_duplicate and (count == 0 if before is None else before.start_count == count)
        if not is_ours or is_end(before) or before == state:
            before = Expected("PENDING", None, count)
        live.saving.told = state
        self._tell_made(live.row(), count)
        self._change(before, state, (), live, live.row())

    def made(self, task_ids: Iterable[str], *, is_once: bool) -> None:
        """Note rows that a write of ours puts into the store. They are told of when they are claimed here, because only
        the store knows before what the tasks of nodes are. Rows that other instances take are not told.
        """
        (self._untold.makes_once if is_once else self._untold.makes)(task_ids)

    def readied(self, task_ids: Iterable[str]) -> None:
        """Note rows of tasks that a workflow has readied. They are told of like those of `made`."""
        self._untold.makes_nodes(task_ids)

    def sends(self, batch: Sequence[Sent]) -> None:
        """Note that these changes are on their way. What a failure enqueues may be claimed before they are answered."""
        self._untold.sends(batch)
        for sent in batch:
            write = sent.write
            if type(write) is TaskWrite and (then := enqueued_by(write.row, write.attempts)) is not None:
                self._untold.makes_once([then.task_id])

    def put_made(self, row: TaskRow, *, is_ours: bool) -> None:
        """Tell of a row that was to be made and stands in the store now, if our write has put it there (`is_ours`)."""
        if self._untold.take_made(row.task_id, is_ours=is_ours) and is_ours:
            self.put(row)

    def waits_again(self, live: LiveTask, began_at: int) -> None:
        """Tell that a run, which began at `began_at`, has ended without the end of its task."""
        if has_snoozed(live):
            self._untold.snoozes(live.task_id, live.start_count, began_at)
        if not live.is_persisted:
            after = live.expectation()
            self._change(after._replace(status="RUNNING"), after, live.attempts_due[-1:], live, live.row())

    def ends(self, live: LiveTask) -> None:
        """Tell the end of a task to listeners when its waiters are told, unless its row in the store has it already."""
        is_success = live.status is TaskStatus.COMPLETED  # most are, and to look one up costs more than all the rest
        kind = "completed" if is_success else END_KINDS.get(live.status._value_)
        if kind is None:
            return
        if not live.is_persisted:
            if kind in self._kinds:
                self._note((kind, live.updated_at, live.start_count, live, None, None, None))
            return
        saving, after = live.saving, live.expectation()
        if saving.committed != after:
            before, saving.told = saving.told or saving.committed, after
            self._change(before, after, live.attempts_due, live, live.row())

    def committed(self, batch: Sequence[Sent], report: CommitReport, arrived: Container[str]) -> None:
        """Tell the changes of persisted tasks that a batch has brought into the store, but for those that the report
        names. `arrived` are the lost ones whose rows an earlier write of ours has brought there.
        """
        is_troubled = bool(report.lost or report.rejected)
        for sent in batch:
            live = sent.live
            if not live.is_persisted or (not is_troubled and self._is_plain(live, sent.state, sent.write)):
                continue
            if live.task_id not in report.rejected and (live.task_id not in report.lost or live.task_id in arrived):
                try:
                    self._is_written(live, sent, report)
                except Exception:  # a mistake of ours with an event must not keep anything from being saved
                    logger.critical("what happened to task %s could not be told", live.task_id, exc_info=True)
        self._untold.answered()

    def _is_plain(self, live: LiveTask, state: Expected, write: Write) -> bool:
        """Tell a lean change, as nearly all changes are. Return False for any other one, and for one that does not
        follow what was told.
        """
        told = live.saving.told
        if type(write) is SuccessWrite and (told is None or told[::2] == ("RUNNING", 1)):
            self._tell(("completed", write.completed_at, 1, live, None, None, None))
        elif type(write) is StartWrite and (told is None or told[2] == 0):
            self._tell(("started", write.started_at, 1, live, None, None, None))
        elif type(write) is NewWrite and told is None:
            self._tell(("enqueued", write.sent_at, 0, live, None, None, None))
            if write.started_at is not None:
                self._tell(("started", write.started_at, 1, live, None, None, None))
        else:
            return False
        live.saving.told = state
        return True

    def _is_written(self, live: LiveTask, sent: Sent, report: CommitReport) -> None:
        write, state = sent.write, sent.state
        row = write.row if type(write) is TaskWrite else None
        if (found := report.lost.get(live.task_id)) is not None:  # an earlier commit of ours has arrived after all
            row, state = found, expected_of(found)
        self._has_arrived(sent, state, row)

    def _has_arrived(self, sent: Sent, state: Expected, row: TaskRow | None) -> None:
        live, attempts = sent.live, sent.write.attempts
        if row is not None and (then := enqueued_by(row, attempts)) is not None:
            self.put_made(then, is_ours=True)
        told = live.saving.told
        if is_end(told) or (told is not None and state.start_count < told.start_count):
            return  # it was told when its waiters were, or with the claim that has found it
        live.saving.told = state
        self._change(sent.base if told is None else told, state, attempts, live, row)

    def _tell_made(self, row: TaskRow, start_count: int) -> None:
        """Tell that a free row was enqueued which goes on before the write that made it is answered."""
        if self._untold.take_made(row.task_id):
            at = row.enqueued_at if start_count else row.sent_at
            self._tell(("enqueued", at, start_count, None, row, None, None))

    def _catch_up(self, task_id: str, start_count: int) -> None:
        """Tell of the write that has brought a free row to its state, if that is not answered yet: the row goes on."""
        sent = self._untold.write_to(task_id, Expected("PENDING", None, start_count))
        if sent is not None and sent.live.saving.told != sent.state:
            self._has_arrived(sent, sent.state, sent.write.row if type(sent.write) is TaskWrite else None)

    def moved(self, write: TaskWrite) -> None:
        """Tell that a duty of this instance has changed a row whose task is not in memory."""
        row = write.row
        count = write.expected.start_count if write.expected is not None else 0
        self._catch_up(write.task_id, count)
        self._tell_made(row, count)
        self._change(write.expected, expected_of(row), write.attempts, None, row)
        self._follow(row, write.attempts)

    def put(self, row: TaskRow) -> None:
        """Tell that a schedule, a failure or a retry has put a free row into the store."""
        self._tell(("enqueued", row.updated_at, row.start_count, None, row, None, None))

    def ended(self, row: TaskRow) -> None:
        """Tell that a row whose task is not in memory has ended: a person has ended it, or it cannot be read."""
        self._catch_up(row.task_id, row.start_count)
        self._tell_made(row, row.start_count)
        self._tell((END_KINDS[row.status], row.updated_at, row.start_count, None, row, None, None))
        self._follow(row, ())

    def _follow(self, row: TaskRow, attempts: Sequence[AttemptRow]) -> None:
        if (then := enqueued_by(row, attempts)) is not None:
            self.put(then)

    def _change(
        self,
        before: Expected | None,
        after: Expected,
        attempts: Sequence[AttemptRow],
        live: LiveTask | None,
        row: TaskRow | None,
    ) -> None:
        """Tell the events between two states. Without a row they are read from the task, which has run once at most."""
        now = row or live
        assert now is not None
        snoozed = self._untold.snoozed_runs(now.task_id, before, after)
        for kind, count, attempt in steps_between(before, after, attempts, snoozed):
            at = now.updated_at
            if kind == "enqueued":
                at = at if count else now.sent_at
                self._untold.take_made(now.task_id)  # a write without an answer was to make it: do not tell it twice
            elif kind == "started":
                run = next((each for each in attempts if each.attempt == count), None)
                at = now.started_at or at if run is None else run.started_at
            elif attempt is not None:
                at = attempt.finished_at
            self._tell((kind, at, count, live, row, attempt, snoozed.get(count) if kind == "snoozed" else None))

    def _tell(self, told: Noted) -> None:
        if told[0] in _ENDS and (about := told[3] or told[4]) is not None:
            self._untold.ends(about.task_id)
        if told[0] in self._kinds:
            self._note(told)

    def _note(self, told: Noted) -> None:
        if not self._noted:
            self._loop.call_soon(self._pass_on, context=Context())
        self._noted.append(told)

    # Who hears it.

    def _pass_on(self) -> None:
        """Give each function what the last turn has brought, and wake those that have something to hear."""
        noted, self._noted = self._noted, []
        for ear in self._ears.values():
            ear.take(noted if ear.kinds >= self._kinds else [each for each in noted if each[0] in ear.kinds])
            if ear.waiting and ear.is_async:
                self._begin(ear)
            elif ear.waiting:
                self._ring_thread()

    def _begin(self, ear: Ear) -> None:
        if ear.task is None and not self._is_over:
            ear.task = self._loop.create_task(self._tell_async(ear), name=f"listener {ear.name}", context=Context())
            ear.task.add_done_callback(lambda _: self._ended(ear))

    def _ended(self, ear: Ear) -> None:
        """Begin again for what has come meanwhile, or if somebody has cancelled it."""
        ear.task = None
        if ear.waiting:
            self._begin(ear)

    async def _tell_async(self, ear: Ear) -> None:
        child.listener.set(ear)
        while ear.waiting and not self._is_over:
            await ear.hear_async(TaskEvent(ear.waiting.popleft(), self._read))

    # In the thread.

    def _ring_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="taskmanager-listeners", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system gives no thread: it is tried again with the next events
                return
            self._thread = thread
        self._ring.set()
        self._lending.begin(self._loop)

    def _has_work(self) -> bool:
        """Whether the thread has something to tell, or is telling it: that does not count as waiting any more."""
        waits = any(ear.waiting and not ear.is_async for ear in list(self._ears.values()))
        return not self._is_over and (waits or self._is_telling)

    def _work(self) -> None:
        ears = self._ears
        while not self._is_over:
            self._ring.wait()
            self._ring.clear()
            is_last = self._is_closing  # asked first: what came before the close is there by now
            self._is_telling = True
            while True in [self._tell_slice(ear) for ear in list(ears.values()) if not ear.is_async]:
                pass
            self._is_telling = False
            if is_last:
                break
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(self._thread_over.set_result, None)

    def _tell_slice(self, ear: Ear) -> bool:
        """Tell one function some of what waits for it. Return whether more does."""
        waiting, hear, read = ear.waiting, ear.hear, self._read
        child.listener.set(ear)
        count = min(SLICE, len(waiting))
        for _ in range(count):
            if self._is_over:
                return False
            hear(TaskEvent(waiting.popleft(), read))
        return bool(waiting)

    # The end.

    @property
    def is_ending(self) -> bool:
        """Whether a stop waits for the thread."""
        return self._is_closing and not self._is_over and self._thread is not None and not self._thread_over.done()

    async def close(self) -> None:
        """Tell what is left, for a second in all. Leave behind what does not end when it is cancelled."""
        self._pass_on()
        self._is_closing = True
        tasks = {ear.task: ear for ear in self._ears.values() if ear.task is not None}
        self._ring.set()
        pending = [*tasks] if self._thread is None else [*tasks, self._thread_over]
        if pending:
            await asyncio.wait(pending, timeout=CLOSE_PATIENCE_S * (1 - CLEANUP_SHARE))
        self.leave()
        for each in tasks:
            each.cancel()
        if tasks:
            _, stubborn = await asyncio.wait(tasks, timeout=CLOSE_PATIENCE_S * CLEANUP_SHARE)
            for each in stubborn:
                text = "listener %s goes on though it was cancelled; the stop does not wait for it"
                logger.warning(text, tasks[each].name)
                tasks[each].is_left_behind = True
                let_loop_close(each)
        for ear in self._ears.values():
            if ear.waiting:
                text = "listener %s was not told of %s: the stop waits %g s for listeners"
                patience_s = CLOSE_PATIENCE_S * (1 - CLEANUP_SHARE)
                logger.warning(text, ear.name, counted(len(ear.waiting), "event"), patience_s)

    def leave(self) -> None:
        """Tell nothing more."""
        self._is_over = self._is_closing = True
        self._ring.set()
