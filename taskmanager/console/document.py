"""Reads what an instance says of itself in `taskmanager_instances.live_tasks`.

The text was written by another version perhaps, or by somebody else: what is not as expected is left out, never an
error.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from taskmanager.codec.columns import loads_flat
from taskmanager.codec.values import INT64_MAX
from taskmanager.console.picture import LaneSight, RunningSight
from taskmanager.engine.report import MAX_SHOWN_TASKS
from taskmanager.model.errors import ArgumentError
from taskmanager.store.statistics import Held, Started


class QueueWord(NamedTuple):
    """What one instance says of one queue."""

    waiting_count: int
    running_count: int
    limit: int | None
    is_shared_limit: bool
    """The limit holds for all instances together."""
    oldest_waiting_since: int | None
    memory_only_waiting: int = 0
    memory_only_running: int = 0


NO_QUEUE: Final = QueueWord(0, 0, None, False, None)


class Document(NamedTuple):
    """What one instance says of itself."""

    heartbeat_s: float | None = None
    is_stopping: bool = False
    running_count: int = 0
    stuck_count: int = 0
    unsaved_count: int = 0
    unsaved_since: int | None = None
    unwritten_count: int = 0
    degraded_since: int | None = None
    failing_duties: Mapping[str, str] = {}
    memory_only_running: int = 0
    memory_only_waiting: int = 0
    lanes: Mapping[str, LaneSight] = {}
    queues: Mapping[str, QueueWord] = {}
    unlisted_queue_count: int = 0
    unlisted_waiting_count: int = 0
    """Of the queues that it has besides: it lists the fullest."""
    tasks: tuple[RunningSight, ...] = ()
    task_names: frozenset[str] | None = None
    """The functions that it knows; None where it does not say."""

    def as_in_file(self, instance_id: str, held: Sequence[Held], started: Iterable[Started]) -> "Document":
        """The same with the persisted tasks as the file has them: what it says itself is up to a second older.

        `held` and `started` are its own. An instance that cannot write to the file knows better.
        """
        if self.degraded_since is not None:
            return self
        mine = {each.queue_name: each for each in held}
        names = [*self.queues, *(name for name in mine if name not in self.queues and not self.unlisted_queue_count)]
        queues = {name: _in_file(self.queues.get(name, NO_QUEUE), mine.get(name)) for name in names}
        runs = {(each.task_id, each.attempt): each for each in started}
        told = [task for task in self.tasks if not task.is_persisted or (task.task_id, task.attempt) in runs]
        for task in told:
            runs.pop((task.task_id, task.attempt), None)
        return self._replace(
            running_count=self.memory_only_running + sum(each.running_count for each in held),
            queues=queues,
            unlisted_waiting_count=sum(each.waiting_count for each in held if each.queue_name not in queues),
            tasks=(*told, *(_just_started(each, instance_id) for each in runs.values()))[:MAX_SHOWN_TASKS],
        )


def _in_file(word: QueueWord, held: Held | None) -> QueueWord:
    waiting, running = (0, 0) if held is None else (held.waiting_count, held.running_count)
    return word._replace(
        waiting_count=word.memory_only_waiting + waiting, running_count=word.memory_only_running + running
    )


def _just_started(run: Started, instance_id: str) -> RunningSight:
    return RunningSight(
        task_id=run.task_id,
        task_name=run.task_name,
        queue_name=run.queue_name,
        instance_id=instance_id,
        attempt=run.attempt,
        started_at=run.started_at,
        is_persisted=True,
    )


def parse(text: str | None, instance_id: str) -> Document:
    """The document of one row; an empty one where there is none."""
    try:
        found = loads_flat(text) if text else {}
    except ArgumentError:
        found = {}
    return read(found, instance_id)


def read(found: object, instance_id: str) -> Document:
    """The same from what is parsed already, or was never text."""
    top = _mapping(found)
    memory = _mapping(top.get("memory_only"))
    oldest = _mapping(top.get("oldest_waiting"))
    queues = _mapping(top.get("queues"))
    unlisted = _mapping(top.get("unlisted_queues"))
    lanes = _mapping(top.get("lanes"))
    tasks = top.get("tasks")
    names = top.get("task_names")
    return Document(
        heartbeat_s=number(top.get("heartbeat_s")),
        is_stopping=top.get("is_stopping") is True,
        running_count=_count(top.get("running_count")),
        stuck_count=_count(top.get("stuck_count")),
        unsaved_count=_count(top.get("unsaved_count")),
        unsaved_since=_instant(top.get("unsaved_since")),
        unwritten_count=_count(top.get("unwritten_count")),
        degraded_since=_instant(top.get("degraded_since")),
        failing_duties={str(name): str(why) for name, why in _mapping(top.get("failing_duties")).items()},
        memory_only_running=_count(memory.get("running")),
        memory_only_waiting=_count(memory.get("waiting")),
        lanes={str(name): _lane(_mapping(each)) for name, each in lanes.items()},
        queues={str(name): _queue(_mapping(each), oldest.get(name)) for name, each in queues.items()},
        unlisted_queue_count=_count(unlisted.get("count")),
        unlisted_waiting_count=_count(unlisted.get("waiting")),
        tasks=tuple(
            task for each in (tasks if isinstance(tasks, list) else ()) for task in _task(_mapping(each), instance_id)
        ),
        task_names=frozenset(map(str, names)) if isinstance(names, list) else None,
    )


def _lane(found: Mapping[str, Any]) -> LaneSight:
    return LaneSight(running_count=_count(found.get("running")), limit=_instant(found.get("limit")))


def _queue(found: Mapping[str, Any], oldest: object) -> QueueWord:
    return QueueWord(
        waiting_count=_count(found.get("waiting")),
        running_count=_count(found.get("running")),
        limit=_instant(found.get("limit")),
        is_shared_limit=found.get("scope") == "file",
        oldest_waiting_since=_instant(oldest),
        memory_only_waiting=_count(_mapping(found.get("memory_only")).get("waiting")),
        memory_only_running=_count(_mapping(found.get("memory_only")).get("running")),
    )


def _task(found: Mapping[str, Any], instance_id: str) -> tuple[RunningSight, ...]:
    task_id, name, started_at = found.get("task_id"), found.get("task_name"), _instant(found.get("started_at"))
    if not isinstance(task_id, str) or not isinstance(name, str) or started_at is None:
        return ()
    progress = _mapping(found.get("progress"))
    text = progress.get("text")
    return (
        RunningSight(
            task_id=task_id,
            task_name=name,
            queue_name=str(found.get("queue_name", "")),
            instance_id=instance_id,
            attempt=_count(found.get("attempt")),
            started_at=started_at,
            is_persisted=found.get("is_persisted") is True,
            done=number(progress.get("done")),
            total=number(progress.get("total")),
            text=text if isinstance(text, str) else "",
        ),
    )


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _count(found: object) -> int:
    return max(0, _instant(found) or 0)


def _instant(found: object) -> int | None:
    is_number = isinstance(found, int) and not isinstance(found, bool) and abs(found) <= INT64_MAX
    return found if is_number else None  # type: ignore[return-value]  # it is one


def number(found: object) -> float | None:
    """A number that can be reckoned with, or None."""
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    return _instant(found)
