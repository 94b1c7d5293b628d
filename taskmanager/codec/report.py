"""Turns the report of an instance into the JSON of `taskmanager_instances.live_tasks`, and back.

Another version, or somebody else, may have written the text. What is not as expected is left out, and is no error.
"""

import math
from collections.abc import Mapping
from typing import Any

from taskmanager.codec.safe import dumps_safe, loads_flat
from taskmanager.codec.values import INT64_MAX
from taskmanager.model.errors import ArgumentError
from taskmanager.model.report import InstanceReport, LaneReport, QueueReport, RunningTask, Suspect


def dumps_report(report: InstanceReport) -> str:
    """Return the text that other processes read.

    It tells what is not in the file: the progress of running tasks, memory-only work, limits, and failures.
    """
    queues = dict(sorted(report.queues.items()))
    oldest = {name: each.oldest_waiting_since for name, each in queues.items() if each.oldest_waiting_since is not None}
    document = {
        "is_stopping": report.is_stopping,
        "heartbeat_s": report.heartbeat_s,
        "task_names": None if report.task_names is None else sorted(report.task_names),
        **({} if report.run_queues is None else {"run_queues": sorted(report.run_queues)}),
        "lanes": {name: {"running": each.running_count, "limit": each.limit} for name, each in report.lanes.items()},
        "queues": {str(name): _queue_document(each) for name, each in queues.items()},
        "unlisted_queues": {"count": report.unlisted_queue_count, "waiting": report.unlisted_waiting_count},
        "oldest_waiting": oldest,
        "memory_only": {"running": report.memory_only_running, "waiting": report.memory_only_waiting},
        "running_count": report.running_count,
        "stuck_count": report.abandoned_count,
        "unsaved_count": report.unsaved_count,
        "unsaved_since": report.unsaved_since,
        "unwritten_count": report.unwritten_count,
        "degraded_since": report.degraded_since,
        "failing_duties": report.failing_duties,
        "tasks": [_task_document(each) for each in report.tasks],
        **({} if report.suspect is None else {"suspect": _suspect_document(report.suspect)}),
    }
    return dumps_safe(document)


def _queue_document(queue: QueueReport) -> dict[str, Any]:
    document: dict[str, Any] = {"waiting": queue.waiting_count, "running": queue.running_count, "limit": queue.limit}
    document["scope"] = "file" if queue.is_shared_limit else "instance"
    if queue.memory_only_waiting or queue.memory_only_running:
        document["memory_only"] = {"waiting": queue.memory_only_waiting, "running": queue.memory_only_running}
    return document


def _task_document(task: RunningTask) -> dict[str, Any]:
    has_progress = task.done is not None or task.text
    return {
        "task_id": task.task_id,
        "task_name": task.task_name,
        "queue_name": task.queue_name,
        "attempt": task.attempt,
        "started_at": task.started_at,
        "is_persisted": task.is_persisted,
        "progress": {"done": task.done, "total": task.total, "text": task.text} if has_progress else None,
    }


def _suspect_document(suspect: Suspect) -> dict[str, Any]:
    return {**_task_document(suspect.task), "held_count": suspect.held_count}


def loads_report(text: str | None, instance_id: str, started_at: int = 0, taken_at: int = 0) -> InstanceReport:
    """Return the report in a text. If there is no text that can be read, return a report that says nothing."""
    try:
        top = _mapping(loads_flat(text) if text else None)
    except ArgumentError:
        top = {}
    memory, unlisted = _mapping(top.get("memory_only")), _mapping(top.get("unlisted_queues"))
    oldest, queues, lanes = (_mapping(top.get(name)) for name in ("oldest_waiting", "queues", "lanes"))
    tasks, names, run_queues = top.get("tasks"), top.get("task_names"), top.get("run_queues")
    each_queue = {str(name): _queue(_mapping(each), oldest.get(name)) for name, each in queues.items()}
    unlisted_waiting_count = _count(unlisted.get("waiting"))
    return InstanceReport(
        instance_id=instance_id,
        started_at=started_at,
        taken_at=taken_at,
        heartbeat_s=number_or_none(top.get("heartbeat_s")),
        is_stopping=top.get("is_stopping") is True,
        running_count=_count(top.get("running_count")),
        abandoned_count=_count(top.get("stuck_count")),
        unsaved_count=_count(top.get("unsaved_count")),
        unsaved_since=_whole(top.get("unsaved_since")),
        unwritten_count=_count(top.get("unwritten_count")),
        degraded_since=_whole(top.get("degraded_since")),
        failing_duties={str(name): str(why) for name, why in _mapping(top.get("failing_duties")).items()},
        memory_only_running=_count(memory.get("running")),
        memory_only_waiting=_count(memory.get("waiting")),
        lanes={str(name): _lane(_mapping(each)) for name, each in lanes.items()},
        queues=each_queue,
        waiting_count=unlisted_waiting_count + sum(each.waiting_count for each in each_queue.values()),
        unlisted_queue_count=_count(unlisted.get("count")),
        unlisted_waiting_count=unlisted_waiting_count,
        tasks=tuple(
            task for each in (tasks if isinstance(tasks, list) else ()) for task in _task(_mapping(each), instance_id)
        ),
        suspect=_suspect(_mapping(top.get("suspect")), instance_id),
        task_names=frozenset(map(str, names)) if isinstance(names, list) else None,
        run_queues=frozenset(map(str, run_queues)) if isinstance(run_queues, list) else None,
    )


def _lane(found: Mapping[str, Any]) -> LaneReport:
    return LaneReport(running_count=_count(found.get("running")), limit=_whole(found.get("limit")))


def _queue(found: Mapping[str, Any], oldest: object) -> QueueReport:
    memory = _mapping(found.get("memory_only"))
    return QueueReport(
        waiting_count=_count(found.get("waiting")),
        running_count=_count(found.get("running")),
        limit=_whole(found.get("limit")),
        is_shared_limit=found.get("scope") == "file",
        oldest_waiting_since=_whole(oldest),
        memory_only_waiting=_count(memory.get("waiting")),
        memory_only_running=_count(memory.get("running")),
    )


def _task(found: Mapping[str, Any], instance_id: str) -> tuple[RunningTask, ...]:
    """Return the task, or nothing if its facts cannot be read."""
    task_id, name, started_at = found.get("task_id"), found.get("task_name"), _whole(found.get("started_at"))
    if not isinstance(task_id, str) or not isinstance(name, str) or started_at is None:
        return ()
    progress = _mapping(found.get("progress"))
    text = progress.get("text")
    task = RunningTask(
        task_id=task_id,
        task_name=name,
        queue_name=str(found.get("queue_name", "")),
        instance_id=instance_id,
        attempt=_count(found.get("attempt")),
        started_at=started_at,
        is_persisted=found.get("is_persisted") is True,
        done=number_or_none(progress.get("done")),
        total=number_or_none(progress.get("total")),
        text=text if isinstance(text, str) else "",
    )
    return (task,)


def _suspect(found: Mapping[str, Any], instance_id: str) -> Suspect | None:
    return next((Suspect(task, _count(found.get("held_count"))) for task in _task(found, instance_id)), None)


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _count(found: object) -> int:
    return max(0, _whole(found) or 0)


def _whole(found: object) -> int | None:
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) <= INT64_MAX:
        return found
    return None


def number_or_none(found: object) -> float | None:
    """Return a finite number within 64 bits, or None."""
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    return _whole(found)
