"""One instance at one moment, as frozen words for programs, and as the JSON that other processes see of it."""

from collections import Counter
from collections.abc import Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from taskmanager.codec.safe import dumps_safe
from taskmanager.codec.values import loads
from taskmanager.engine.attempt import Attempt
from taskmanager.engine.engine import Engine
from taskmanager.engine.intake import Intake
from taskmanager.engine.live_task import Phase
from taskmanager.engine.queue_state import QueueState
from taskmanager.model.clock import SECOND_US, from_us
from taskmanager.model.logger import logger
from taskmanager.model.status import LaneStatus, ManagerStatus, QueueStatus, ScheduleInfo

MAX_SHOWN_TASKS: Final = 100
"""Running tasks that other processes see of an instance; those that report progress go first, then the oldest."""
MAX_SHOWN_QUEUES: Final = 50
MAX_SHOWN_CHARS: Final = 200
"""Of the text that a task reports with its progress, and of the reason why a duty fails."""
MAX_SHOWN_NAMES: Final = 500
"""An instance that knows more functions does not say which: the text is written whenever something in it changes."""
OLDEST_SEARCH: Final = 2_000
"""Tasks in memory that are looked at, in the order of their arrival, for the oldest that waits in each queue."""
UNSAVED_SHOWN_S: Final = 2.0
"""A change that waits longer than this for its commit is worth a word; all others wait for some milliseconds."""


def live_text(engine: Engine) -> str:
    """`live_document` as the JSON of `taskmanager_instances.live_tasks`."""
    return dumps_safe(live_document(engine))


def live_document(engine: Engine) -> dict[str, Any]:
    """What nobody can see in the file: running tasks and their progress, memory-only work, limits, the store's health.

    Nothing in it changes by the mere passing of time, so that an idle instance has nothing to write. Instants are
    microseconds since 1970 UTC.
    """
    engine.inbox.look()
    queues, unlisted = fullest(engine.dispatcher.queues)
    running = engine.runner.running.values()
    oldest_s = engine.writer.oldest_unsaved_s() or 0.0
    memory_only = Counter(each.live.queue_name for each in running if not each.live.is_persisted)
    shown = sorted(running, key=lambda each: (each.live.progress_text is None, each.started_at))[:MAX_SHOWN_TASKS]
    return {
        "is_stopping": engine.is_stopping,
        "heartbeat_s": engine.settings.recovery.runner_heartbeat_interval_ms / 1000,
        "task_names": sorted(engine.definitions) if len(engine.definitions) <= MAX_SHOWN_NAMES else None,
        "lanes": {name: {"running": s.running, "limit": s.limit} for name, s in engine.dispatcher.lanes.items()},
        "queues": {str(name): _queue_document(queue, memory_only[name]) for name, queue in queues.items()},
        "unlisted_queues": {"count": len(unlisted), "waiting": sum(each.waiting for each in unlisted)},
        "oldest_waiting": {str(name): at for name, at in _oldest_waiting(engine).items() if name in queues},
        "memory_only": {
            "running": memory_only.total(),
            "waiting": max(0, sum(each.waiting - each.stored_waiting for each in (*queues.values(), *unlisted))),
        },
        "running_count": len(running),
        "stuck_count": len(engine.runner.abandoned),
        "unsaved_count": engine.writer.unsaved_count if oldest_s > UNSAVED_SHOWN_S else 0,
        "unsaved_since": _tenth(engine.clock.now_us() - oldest_s * SECOND_US) if oldest_s > UNSAVED_SHOWN_S else None,
        "unwritten_count": len(engine.writer.outbox.unsaved_ended),
        "degraded_since": engine.writer.degraded_since,
        "failing_duties": {name: why[:MAX_SHOWN_CHARS] for name, why in sorted(_failing(engine).items())},
        "tasks": [_task_document(each) for each in shown],
    }


def facts_at_rest(engine: Engine) -> tuple[object, ...] | None:
    """All that `live_document` depends on while this instance has no task at all, at a tenth of its price; None while
    it has any.
    """
    runner, writer = engine.runner, engine.writer
    if engine.live or engine.inbox or runner.running or runner.abandoned or writer.unsaved_count:
        return None
    return (
        engine.is_stopping,
        len(engine.definitions),
        tuple(slots.running for slots in engine.dispatcher.lanes.values()),
        tuple((queue.waiting, queue.slots.running) for queue in engine.dispatcher.queues.values()),
        len(writer.outbox.unsaved_ended),
        writer.degraded_since,
        tuple(sorted(_failing(engine).items())),
    )


def _tenth(instant_us: float) -> int:
    """To the tenth of a second: worked out again later, it is the same."""
    return round(instant_us / 100_000) * 100_000


def fullest(queues: Mapping[str, QueueState]) -> tuple[dict[str, QueueState], list[QueueState]]:
    """As many as are shown, those in which most waits and runs; and the others."""
    found = list(queues.items())
    if len(found) <= MAX_SHOWN_QUEUES:
        return dict(sorted(found)), []
    most = nsmallest(MAX_SHOWN_QUEUES, found, key=lambda each: (-each[1].waiting - each[1].slots.running, each[0]))
    shown = dict(sorted(most))
    return shown, [queue for name, queue in found if name not in shown]


def _queue_document(queue: QueueState, memory_only_running: int) -> dict[str, Any]:
    running, limit = queue.slots.running, queue.config.max_concurrency
    document: dict[str, Any] = {"waiting": queue.waiting, "running": running, "limit": limit}
    document["scope"] = queue.config.scope
    waiting = max(0, queue.waiting - queue.stored_waiting)
    if waiting or memory_only_running:
        document["memory_only"] = {"waiting": waiting, "running": memory_only_running}
    return document


def _oldest_waiting(engine: Engine) -> dict[str, int]:
    """Per queue, since when the oldest task waits for a slot. Tasks of memory stand in the order of their arrival."""
    found: dict[str, int] = {}
    for live in islice(engine.live.values(), OLDEST_SEARCH):
        if live.phase is Phase.READY and live.enqueued_at < found.get(live.queue_name, live.enqueued_at + 1):
            found[live.queue_name] = live.enqueued_at
    return found


def _failing(engine: Engine) -> dict[str, str]:
    """What goes on beside the tasks and fails, and why; the log too, where nobody would read of it."""
    return dict(engine.failing_duties) if logger.trouble is None else {**engine.failing_duties, "log": logger.trouble}


def _task_document(attempt: Attempt) -> dict[str, Any]:
    live = attempt.live
    return {
        "task_id": live.task_id,
        "task_name": live.definition.name,
        "queue_name": live.queue_name,
        "attempt": attempt.number,
        "started_at": attempt.started_at,
        "is_persisted": live.is_persisted,
        "progress": _progress_document(live.progress_text) if live.progress_text else None,
    }


def _progress_document(text: str) -> dict[str, Any]:
    progress: dict[str, Any] = loads(text)
    return {**progress, "text": str(progress.get("text") or "")[:MAX_SHOWN_CHARS]}


def status_of(engine: Engine | None, intake: Intake, schedules: tuple[ScheduleInfo, ...] = ()) -> ManagerStatus:
    """What `manager.status()` says; `engine` is the start that runs now, or None."""
    if engine is None:
        return ManagerStatus(state=intake.door.value, held_count=len(intake.held))
    dispatcher, writer = engine.dispatcher, engine.writer
    since = writer.degraded_since
    oldest = min(_oldest_waiting(engine).values(), default=None)
    return ManagerStatus(
        state=intake.door.value,
        instance_id=engine.identity.instance_id,
        started_at=from_us(engine.identity.started_at),
        storage_degraded_since=None if since is None else from_us(since),
        oldest_unsaved_s=writer.oldest_unsaved_s(),
        unsaved_count=writer.unsaved_count,
        waiting_count=engine.inbox.waiting_count,
        oldest_waiting_s=None if oldest is None else max(0.0, (engine.clock.now_us() - oldest) / SECOND_US),
        running_count=len(engine.runner.running),
        abandoned_count=len(engine.runner.abandoned),
        failing_duties=_failing(engine),
        lanes={name: LaneStatus(running=s.running, limit=s.limit or 0) for name, s in dispatcher.lanes.items()},
        queues={
            name: QueueStatus(
                running=queue.slots.running,
                limit=queue.config.max_concurrency,
                waiting=queue.waiting,
                is_paused=queue.is_paused,
            )
            for name, queue in list(dispatcher.queues.items())  # other threads may add one at any time
        },
        schedules=schedules,
    )
