"""What is to be written, in the order in which it matters.

Plain ends that nobody waits for come first: they go with any commit, so that no start is committed before an end that
freed its slot. Then changes: a start holds a slot until it is committed, and other ends have waiters. Then tasks that
were only accepted, when their `commit_interval` is over: often they are started by then, and one row is written instead
of two. Then the history of memory-only tasks.

A task that is taken is in flight until the whole batch is settled, or put back where it stood; there is one batch at a
time. So how far a line has got is one number, and a flush needs no more than the places that it waits for: it is over
when these are passed.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, NamedTuple, TypeVar

from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.waiters import resolve
from taskmanager.engine.write.history import ENDED_PLAINLY, HistoryLine, Packed, UnsavedEnded
from taskmanager.engine.write.writes import write_of
from taskmanager.model.record import AttemptRow, Expected, HistoryWrite, PlainCall, Write

HISTORY_SLICE: Final = 16
"""Memory-only records that are worth a commit soon. A commit of hundreds holds up the loop, and every request that the
application serves beside it, for longer than many small ones do.
"""
HISTORY_BATCH: Final = 512
"""Memory-only records that are written at once."""
NOTHING: Final = Expected("", None, 0)
"""History is written once, and nothing will ever be expected of it."""
T = TypeVar("T")
_new_tuple = tuple.__new__
"""A NamedTuple's own constructor costs a call more, for each task that is written."""


class Sent(NamedTuple):
    """One task as it is sent: to apply the answer, or to put it back."""

    live: LiveTask
    state: Expected
    base: Expected | None
    """The state in the store that this is to follow."""
    write: Write


class Line(Generic[T]):
    """First in, first out; what is put back, or tried again, goes to the front. Places are numbered for good."""

    def __init__(self) -> None:
        self.entries: deque[T] = deque()
        self.passed_count = 0
        """Entries that have left it, and were not put back."""

    @property
    def end(self) -> int:
        """The place behind the last entry: everything that is in the line now has left it when that is passed."""
        return self.passed_count + len(self.entries)

    def pop(self) -> T:
        """The first one leaves."""
        self.passed_count += 1
        return self.entries.popleft()

    def put_back(self, entry: T) -> None:
        """It has left in vain."""
        self.passed_count -= 1
        self.entries.appendleft(entry)

    def advance(self, is_meant: Callable[[T], bool]) -> None:
        """An entry that was made a moment ago counts as one that has left in vain."""
        for behind, entry in enumerate(reversed(self.entries), 1):
            if is_meant(entry):
                del self.entries[-behind]
                self.put_back(entry)
                return


class Places(NamedTuple):
    """How far the lines have to get, that is what a flush waits for."""

    plain: int
    changed: int
    history: int

    def or_behind(self, other: "Places") -> "Places":
        """Both have to be passed."""
        return Places(*map(max, self, other))


def unpacked(entry: Packed, calls: Sequence[PlainCall]) -> HistoryWrite:
    """Return a packed record, which has a number in the place of its call, as it is sent."""
    return _new_tuple(HistoryWrite, (entry[0], calls[entry[1]], *entry[2:]))


class Outbox:
    """The lines of plain ends, of changes and of history, and the waiting room of tasks that were only accepted.

    Of a persisted task that is dirty there is one valid entry, among the plain ends, in the waiting room or, if it is
    urgent, in the line of changes; further ones are skipped when they come up. Of history there are no others than
    valid entries.
    """

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._plain: Line[Sent] = Line()
        self.plain_lock = threading.Lock()
        """Held by whoever takes plain ends: the loop, or the thread that keeps their deadline while that is blocked."""
        self.changed: Line[LiveTask] = Line()
        self._accepted: deque[LiveTask] = deque()
        self.history: HistoryLine[Sent] = HistoryLine()
        self.unsaved_ended = UnsavedEnded(self._find_packed)
        """History, and persisted tasks whose end was told before it could be written."""
        self._dirty_count = 0
        """Of persisted tasks. Changed in `_make_dirty` and `_make_clean` only."""
        self.in_flight: Sequence[Sent] = ()
        """The batch that was taken: it is in the store, or due again, when its commit has ended."""
        self._in_flight_count = self._history_in_flight_count = 0
        """Of persisted tasks, and of history, in it."""
        self._in_flight_since_s: float | None = None
        """When the oldest change in it was made."""

    def __repr__(self) -> str:
        changed, history = len(self.changed.entries), len(self.history)
        plain = len(self._plain.entries)
        return f"<Outbox {plain} plain ends, {changed} changed, {len(self._accepted)} accepted, {history} of history>"

    @property
    def unsaved_count(self) -> int:
        """Records that the store does not hold in their newest state, those in flight included."""
        return self._dirty_count + self._in_flight_count + self.unsaved_history_count

    @property
    def unsaved_history_count(self) -> int:
        """Those of them that are history of memory-only tasks."""
        return self.history.end - self.history.passed_count + self._history_in_flight_count

    @property
    def has_history(self) -> bool:
        """Whether history waits."""
        return self.history.end > self.history.passed_count

    @property
    def waiting_count(self) -> int:
        """Plain ends, and tasks that were only accepted; some of these may have changed since."""
        return len(self._plain.entries) + len(self._accepted)

    def oldest_s(self) -> float | None:
        """How long the oldest change of a persisted task has been waiting for its commit, or for the end of it."""
        queues = ([sent.live for sent in list(self._plain.entries)], self.changed.entries, self._accepted)
        heads = (next((live for live in queue if live.saving.is_dirty), None) for queue in queues)
        since_s = [live.saving.unsaved_since_s for live in heads if live is not None]
        # A commit under way may hang on a lock for as long as SQLite waits for it; what it carries is not saved either.
        if self._in_flight_since_s is not None:
            since_s.append(self._in_flight_since_s)
        return self._elapsed_s() - min(since_s) if since_s else None

    def attempts_in_flight(self, task_id: str) -> Iterator[AttemptRow]:
        """Attempts that the commit under way takes along."""
        return chain.from_iterable(sent.write.attempts for sent in self.in_flight if sent.write.task_id == task_id)

    def attempts_in_history(self, task_id: str) -> Iterator[AttemptRow]:
        """Attempts of an ended memory-only task, of all its runs if its key was enqueued again."""
        for sent in self._history_as_it_was():
            if sent.live.task_id == task_id:
                yield from sent.write.attempts

    def _history_as_it_was(self) -> Iterator[Sent]:
        """History that is not packed."""
        return (each for each in self.history.others() if each.live is not ENDED_PLAINLY)

    def unsaved(self) -> Iterator[LiveTask]:
        """Every task that is not written; of the history of memory-only tasks, those that did not end plainly."""
        ended = [sent.live for sent in (*self._plain.entries, *self._history_as_it_was())]
        return chain(ended, self.changed.entries, self._accepted)

    def give_up_waiters(self, exc: Exception) -> None:
        """Nobody will write any more, so nobody may wait for it."""
        for live in self.unsaved():
            waiters, live.save_waiters = live.save_waiters, None
            resolve(waiters, exc)

    # In.

    def accept(self, live: LiveTask) -> None:
        """A new task that nobody waits for."""
        live.saving.unsaved_since_s = self._elapsed_s()
        self._make_dirty(live)
        self._accepted.append(live)

    def end(self, live: LiveTask, write: Write) -> None:
        """A plain end that nobody waits for, and how it is sent: nothing of it changes any more."""
        live.saving.unsaved_since_s = self._elapsed_s()
        self._make_dirty(live)
        self._plain.entries.append(_new_tuple(Sent, (live, live.expectation(), live.saving.committed, write)))

    def change(self, live: LiveTask) -> None:
        """A change that must not wait. A task that was only accepted so far is written with it."""
        if not live.saving.is_dirty:
            live.saving.unsaved_since_s = self._elapsed_s()
            self._make_dirty(live)
        elif live.saving.is_urgent:
            return
        self._hurry(live)

    def record(self, live: LiveTask, write: Write) -> None:
        """A memory-only task has ended, and this is its record: nothing of it changes any more."""
        ended = self.unsaved_ended
        if type(write) is HistoryWrite:
            number = ended.numbers.get(write[1])
            if number is None:
                number = ended.number(write[1], live.definition)
            self.history.pack((write[0], number, *write[2:]))
            ended.packed[write[0]] = None
        else:
            self.history.append(_new_tuple(Sent, (live, NOTHING, None, write)))
            ended.kept[live.task_id] = live

    def record_ordinary(self, live: LiveTask) -> None:
        """The same of a task to which nothing unusual was done (see `LiveTask.is_ordinary`), in its first run."""
        ended = self.unsaved_ended
        what = live.definition, live.queue_name, live.priority
        number = ended.of_ordinary.get(what)
        if number is None:
            self.record(live, write := write_of(live, None))
            if type(write) is HistoryWrite:
                ended.of_ordinary[what] = ended.numbers[write[1]]
            return
        if live.encodes_later:
            live.store_arguments()
        times = live.sent_at, live.started_at, live.completed_at
        said = (live.task_id, number, live.args_text, live.kwargs_text, live.tags_text, *times, live.result_text)
        self.history.pack(said)
        ended.packed[live.task_id] = None

    def hurry_all(self) -> Places:
        """Nothing may wait any more. The places that are passed when all this is written."""
        while self._accepted:
            live = self._accepted.popleft()
            if live.saving.is_dirty and not live.saving.is_urgent:
                self._hurry(live)
        return Places(self._plain.end, self.changed.end, self.history.end)

    def _hurry(self, live: LiveTask) -> None:
        live.saving.is_urgent = True
        self.changed.entries.append(live)

    def _make_dirty(self, live: LiveTask) -> None:
        live.saving.is_dirty = True
        self._dirty_count += 1

    def _make_clean(self, live: LiveTask) -> None:
        live.saving.is_dirty = live.saving.is_urgent = False
        self._dirty_count -= 1

    # Out.

    def take(self, limit: int, *, with_accepted: bool, with_history: bool) -> Sequence[Sent]:
        """The next batch, of at most `limit` tasks: each is in flight from here on, until all are settled or put back.

        Only when that has happened the next batch is taken.
        """
        batch = self._take_plain(limit)
        taken = self._take_changed(limit - len(batch), batch)
        if with_accepted:
            self._take_accepted(taken, limit - len(batch))
        for live in taken:
            base = live.saving.committed
            batch.append(_new_tuple(Sent, (live, live.expectation(), base, write_of(live, base))))
            live.attempts_due = ()
            if (due := live.steps_due) is not None:
                due.send()
        self._in_flight_count = len(batch)
        self._in_flight_since_s = batch[0].live.saving.unsaved_since_s if batch else None
        if with_history:
            calls = self.unsaved_ended.calls
            batch += [
                entry
                if type(entry) is Sent
                else _new_tuple(Sent, (ENDED_PLAINLY, NOTHING, None, unpacked(entry, calls)))
                for entry in self.history.pop_many(limit - len(batch))
            ]
        self._history_in_flight_count = len(batch) - self._in_flight_count
        self.in_flight = batch
        return batch

    def _find_packed(self, task_id: str) -> HistoryWrite:
        """Return the record of a task that has ended plainly. Looks at all of them, the last ones first."""
        if (packed := self.history.find(task_id)) is not None:
            return unpacked(packed, self.unsaved_ended.calls)
        sent = (each.write for each in chain(self.history.others(), self.in_flight))
        found = next((each for each in sent if isinstance(each, HistoryWrite) and each.task_id == task_id), None)
        if found is None:
            raise KeyError(task_id)
        return found

    def as_it_was(self, sent: Sent) -> Sent:
        """Return what was sent with its task, which is made anew if it was packed."""
        write = sent.write
        if isinstance(write, HistoryWrite) and sent.live is ENDED_PLAINLY:
            return sent._replace(live=self.unsaved_ended.revived(write))
        return sent

    def _take_plain(self, limit: int) -> list[Sent]:
        batch: list[Sent] = []
        if not self._plain.entries:
            return batch
        with self.plain_lock:
            while len(batch) < limit and self._plain.entries:
                sent = self._plain.pop()
                if self._is_valid(sent):
                    self._leaves(sent.live)
                    batch.append(sent)
        return batch

    @staticmethod
    def _is_valid(sent: Sent) -> bool:
        saving = sent.live.saving
        return saving.is_dirty and not saving.is_urgent

    def _leaves(self, live: LiveTask) -> None:
        """Its plain end is on the way to the store."""
        self._make_clean(live)
        live.attempts_due = ()

    # Plain ends whose deadline a thread keeps. Both threads hold `plain_lock` for what they take.

    def plain_age_s(self) -> float | None:
        """Return how long the first plain end has been waiting, or None if there is none. From any thread."""
        try:
            since_s = self._plain.entries[0].live.saving.unsaved_since_s
        except IndexError:
            return None
        return self._elapsed_s() - since_s

    def take_late(self, limit: int) -> tuple[int, list[Sent]]:
        """Take the first plain ends out of their line, in the thread: how many entries, and the valid ones of them."""
        taken: list[Sent] = []
        while len(taken) < limit and self._plain.entries:
            taken.append(self._plain.entries.popleft())
        return len(taken), [sent for sent in taken if self._is_valid(sent)]

    def put_late_back(self, taken: Sequence[Sent]) -> None:
        """Nothing could be begun with these."""
        self._plain.entries.extendleft(reversed(taken))

    def take_over(self, entry_count: int, late: Sequence[Sent]) -> None:
        """What the thread has taken is the batch in flight now. What has changed since is written once more."""
        self._plain.passed_count += entry_count
        for sent in late:
            if self._is_valid(sent):
                self._leaves(sent.live)
        self.in_flight = late
        self._in_flight_count = len(late)
        self._in_flight_since_s = late[0].live.saving.unsaved_since_s if late else None

    def _take_changed(self, limit: int, plain: Sequence[Sent]) -> list[LiveTask]:
        taken: list[LiveTask] = []
        keyed_ids = {sent.live.task_id for sent in plain if sent.live.idempotency_key is not None}
        line = self.changed
        while len(taken) < limit and line.entries:
            live = line.entries[0]
            if live.saving.is_dirty and live.has_left:  # given up since
                self._make_clean(live)
                self._forget_ended(live)
            if not live.saving.is_dirty:  # written already, from further ahead
                line.pop()
                continue
            if live.idempotency_key is not None:
                if live.task_id in keyed_ids:
                    break  # one key, two tasks: the end of the first is written before the second asks for the key
                keyed_ids.add(live.task_id)
            line.pop()
            self._make_clean(live)
            taken.append(live)
        return taken

    def _take_accepted(self, taken: list[LiveTask], limit: int) -> None:
        while len(taken) < limit and self._accepted:
            live = self._accepted.popleft()
            if live.saving.is_dirty and not live.saving.is_urgent:
                self._make_clean(live)
                taken.append(live)

    def put_back(self) -> None:
        """The batch could not be written, or nobody knows, and goes first, in its order. What has changed meanwhile is
        dirty already; the states are read anew when it is tried again.

        It fits into the next batch as it did into this one, so nothing of it is in the line when places are compared.
        """
        for sent in reversed(self._land()):
            live, state, _, write = sent
            if not live.is_persisted:
                self.history.put_back(sent)
                continue
            saving = live.saving
            if state not in saving.in_doubt:
                saving.in_doubt = (*saving.in_doubt, state)
            live.attempts_due = (*write.attempts, *live.attempts_due)
            if not saving.is_dirty:
                self._make_dirty(live)
            saving.is_urgent = True
            self.changed.put_back(live)

    def settle(self) -> None:
        """The batch is written, except for what the store refuses."""
        batch = self._land()
        kept, packed = self.unsaved_ended.kept, self.unsaved_ended.packed
        if kept or packed:
            for sent in batch:
                if sent.live is ENDED_PLAINLY:
                    packed.pop(sent.write.task_id, None)
                else:
                    self._forget_ended(sent.live)

    def _land(self) -> Sequence[Sent]:
        """Nothing is in flight any more."""
        batch, self.in_flight = self.in_flight, ()
        self._in_flight_count = self._history_in_flight_count = 0
        self._in_flight_since_s = None
        return batch

    def _forget_ended(self, live: LiveTask) -> None:
        kept = self.unsaved_ended.kept
        if not live.saving.is_dirty and kept.get(live.task_id) is live:
            del kept[live.task_id]

    def try_again(self, live: LiveTask, *, was_dirty: bool) -> Places:
        """A task that was just settled is to be written again: that is done with the next batch, as if put back.
        The places that are passed when all of these are written.
        """
        places = Places(self._plain.passed_count, self.changed.passed_count, self.history.passed_count)
        if live.is_published and not live.has_left:
            self.unsaved_ended.kept[live.task_id] = live  # it was told, and is still found nowhere but here
        if not live.is_persisted:
            self.history.advance(lambda entry: isinstance(entry, Sent) and entry.live is live)
        elif not was_dirty:
            self.changed.advance(lambda entry: entry is live)
        else:  # it has changed meanwhile; the entry of that is skipped when it comes up
            live.saving.is_urgent = True
            self.changed.put_back(live)
        return places

    def has_passed(self, places: Places) -> bool:
        """Whether everything before these places is settled. Between two batches only."""
        if self._plain.passed_count < places.plain:
            return False
        return self.changed.passed_count >= places.changed and self.history.passed_count >= places.history
