"""What the listeners of each instance are told: events in the order of a life, each once, and none left out.

What happens to a task in one instance only is told there, so the events of such a task are a word of a grammar. A kill
cuts a word off. Who hears it late, or hears nothing, is no subject here: the events are judged as they are noted, which
takes no turn of a loop, so that a seed is the same one whether anybody listens or not.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from taskmanager.engine.tell.events import Noted
from taskmanager.engine.tell.listeners import Listeners
from taskmanager.model.record import TaskRow

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

LETTERS: Final = {
    "enqueued": "e", "started": "s", "retrying": "r", "snoozed": "z", "requeued": "q",
    "completed": "C", "failed": "F", "cancelled": "X", "expired": "E", "interrupted": "I",
}  # fmt: skip
LIFE: Final = re.compile(r"(es([rzq]s)*[rzq]?[CFXI]|e[XE]|es([rzq]s)*[rzq]E)*(e(s([rzq]s)*[rzq]?)?)?")
"""The lives of a task, the last of which may go on. One that was put into the file by others begins with its start."""


class Hearing:
    """The words of all tasks, and who has written to which row."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._words: defaultdict[tuple[str, str], str] = defaultdict(str)
        self._counts: dict[tuple[str, str], int] = {}
        self._writers: defaultdict[str, set[str]] = defaultdict(set)
        self._odd: set[str] = set()
        """Tasks of which an instance may have written something that it never heard of, or that was deleted."""
        self._unread: dict[Listeners, Noted] = {}
        self.is_answered = True
        """Whether the call of the store that is made now is answered."""

    def wrote(self, process: "Process", verb: str, before: Mapping[str, TaskRow], rows: Mapping[str, TaskRow]) -> None:
        """`process` has changed rows by one call of its store."""
        sent = () if process.engine is None else process.engine.writer.outbox.in_flight
        own = {each.write.task_id for each in sent}
        for task_id, row in rows.items():
            old = before.get(task_id)
            if old is row or old == row:
                continue
            # What the application has put into the file, nobody has heard of.
            self._writers[task_id].add("" if verb == "submit" else process.instance_id or "")
            if row.is_workflow_task:  # the row was made by the end of another task, of which only a claim is told
                self._odd.add(task_id)
            is_step = old is None or (old.status, old.start_count) != (row.status, row.start_count)
            is_heard = task_id in own or verb == "claim" or (self.is_answered and not process.is_stopping)
            if is_step and not is_heard:
                self._odd.add(task_id)  # nobody asks again what has become of it
        self._odd |= before.keys() - rows.keys()

    def heard(self, listeners: Listeners, noted: Noted) -> None:
        """One event was noted. The one before is read now, when its task has gone on."""
        reader: Any = listeners._read.__self__  # type: ignore[attr-defined]  # a bound method
        instance_id: str = reader._who.instance_id
        last = self._unread.get(listeners)
        self._unread[listeners] = noted
        if last is not None:
            self._read(listeners, last)
        kind, _, start_count, live, row, *_ = noted
        task_id = row.task_id if live is None else live.task_id  # type: ignore[union-attr]  # one of them is there
        self._words[instance_id, task_id] += LETTERS[kind]
        if kind == "started" and not self._world.loss_count and task_id not in self._odd:
            if start_count <= self._counts.get((instance_id, task_id), 0):
                self._world.fault(f"{instance_id} is told twice that {task_id} was started {start_count} times")
            self._counts[instance_id, task_id] = start_count

    def _read(self, listeners: Listeners, noted: Noted) -> None:
        kind, _, start_count, *_ = noted
        task, error, duration_s = listeners._read(noted)
        status = "RUNNING" if kind == "started" else "PENDING" if kind in ("enqueued", *_AGAIN) else kind.upper()
        if (task.status, task.start_count) != (status, start_count):
            self._world.fault(f"{kind} {start_count} of {task.task_id} is read as {task.status} {task.start_count}")
        if (kind in ("failed", "retrying")) != (error is not None) and kind not in _MAY_HAVE_ERROR:
            self._world.fault(f"{kind} of {task.task_id} is read with the error {error}")
        if (kind == "completed") > (duration_s is not None):
            self._world.fault(f"nobody knows how long {task.task_id} took")

    def at_the_end(self, rows: Mapping[str, TaskRow]) -> None:
        """Judge the words of the tasks that one instance alone has had from the beginning to the end."""
        if self._world.loss_count:
            return
        for (instance_id, task_id), word in self._words.items():
            row, writers = rows.get(task_id), self._writers[task_id]
            if task_id in self._odd or writers - {instance_id}:
                continue
            if LIFE.fullmatch(word) is None:
                self._world.fault(f"{instance_id} is told {word!r} of {row and row.task_name} {task_id}")
            process = self._world.process_of(instance_id)
            has_stopped = process is not None and (process.has_closed or instance_id != process.instance_ids[-1])
            if has_stopped and row is not None and LETTERS.get(row.status.lower()) != word[-1:]:
                self._world.fault(f"{instance_id} is told {word!r} of {row.task_name} {task_id}, {row.status}")


_AGAIN: Final = ("retrying", "snoozed", "requeued")
_MAY_HAVE_ERROR: Final = ("cancelled", "expired", "interrupted", "requeued")
