"""Makes the report of an engine. This is the only module that knows all parts of an engine."""

from collections import Counter
from collections.abc import Collection, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Final

from taskmanager.codec.report import number_or_none
from taskmanager.codec.values import loads
from taskmanager.engine.attempt import Attempt
from taskmanager.engine.engine import Engine
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.phases import READY
from taskmanager.engine.queue_state import QueueState
from taskmanager.model.clock import SECOND_US
from taskmanager.model.logger import logger
from taskmanager.model.report import InstanceReport, LaneReport, MemoryReport, QueueReport, RunningTask, TaskInMemory
from taskmanager.rules.limits import Slots

MAX_SHOWN_TASKS: Final = 100
"""Running tasks that other processes see of an instance; those that report progress go first, then the oldest."""
MAX_SHOWN_QUEUES: Final = 50
MAX_SHOWN_CHARS: Final = 200
"""Of the text that a task reports with its progress."""
MAX_SHOWN_NAMES: Final = 500
"""An instance that knows more functions does not say which: the text is written whenever something in it changes."""
OLDEST_SEARCH: Final = 2_000
"""Tasks in memory that are looked at, in the order of their arrival, for the oldest that waits in each queue."""
MAX_COUNTED: Final = 20_000
"""Tasks in memory that are told one by one; with more, the loop would feel it, and what queues count must do."""


def report_of(
    engine: Engine,
    *,
    max_queues: int | None = MAX_SHOWN_QUEUES,
    max_tasks: int = MAX_SHOWN_TASKS,
    has_memory: bool = False,
) -> InstanceReport:
    """Return what the engine is like now: its fullest queues, and some of its running tasks.

    With `has_memory` it tells of every task in memory, unless there are more than `MAX_COUNTED`.
    """
    inbox, dispatcher, runner, writer = engine.inbox, engine.dispatcher, engine.runner, engine.writer
    inbox.look()
    clock, running = engine.clock, runner.running.values()
    queues, unlisted = _fullest(dispatcher.queues, max_queues)
    now, oldest_s = clock.now_us(), writer.oldest_unsaved_s()
    memory_only = Counter(each.live.queue_name for each in running if not each.live.is_persisted)
    oldest = _oldest_waiting(engine)
    waiting = sum(each.waiting - each.stored_waiting for each in (*queues.values(), *unlisted))
    return InstanceReport(
        instance_id=engine.identity.instance_id,
        started_at=engine.identity.started_at,
        taken_at=now,
        heartbeat_s=engine.settings.recovery.runner_heartbeat_interval_ms / 1000,
        is_stopping=engine.life.is_stopping,
        running_count=len(running),
        waiting_count=inbox.waiting_count,
        abandoned_count=len(runner.abandoned),
        unsaved_count=writer.unsaved_count,
        unsaved_since=None if oldest_s is None else round(now - oldest_s * SECOND_US),
        unwritten_count=len(writer.unsaved_ended),
        degraded_since=writer.degraded_since,
        failing_duties=_failing(engine),
        memory_only_running=memory_only.total(),
        memory_only_waiting=max(0, waiting),
        lanes={name: _lane(each) for name, each in dispatcher.lanes.items()},
        queues={name: _queue(each, oldest.get(name), memory_only[name]) for name, each in queues.items()},
        unlisted_queue_count=len(unlisted),
        unlisted_waiting_count=sum(each.waiting for each in unlisted),
        tasks=_tasks(running, max_tasks, engine.identity.instance_id),
        task_names=frozenset(engine.definitions) if len(engine.definitions) <= MAX_SHOWN_NAMES else None,
        tally=dict(engine.settlement.tally),
        memory=_memory(engine) if has_memory else None,
    )


def status_report(engine: Engine | None) -> InstanceReport | None:
    """Return the report for `status()`, with every queue and without the tasks; None while there is no engine."""
    return None if engine is None else report_of(engine, max_queues=None, max_tasks=0)


def _fullest(
    queues: Mapping[str, QueueState], most: int | None = MAX_SHOWN_QUEUES
) -> tuple[dict[str, QueueState], list[QueueState]]:
    """Return the `most` queues in which most tasks wait and run, and the other queues."""
    found = list(queues.items())  # other threads may add one at any time
    if most is None or len(found) <= most:
        return dict(found), []
    listed = dict(nsmallest(most, found, key=lambda each: (-each[1].waiting - each[1].slots.running, each[0])))
    return listed, [queue for name, queue in found if name not in listed]


def _lane(slots: Slots) -> LaneReport:
    return LaneReport(running_count=slots.running, limit=slots.limit)


def _queue(queue: QueueState, oldest: int | None, memory_only_running: int) -> QueueReport:
    config = queue.config
    return QueueReport(
        waiting_count=queue.waiting,
        running_count=queue.slots.running,
        limit=config.max_concurrency,
        is_shared_limit=config.scope == "file",
        oldest_waiting_since=oldest,
        memory_only_waiting=max(0, queue.waiting - queue.stored_waiting),
        memory_only_running=memory_only_running,
        is_paused=queue.is_paused,
        priority=config.priority,
    )


def _oldest_waiting(engine: Engine) -> dict[str, int]:
    """Return since when the oldest task of each queue waits. Memory keeps tasks in the order of their arrival."""
    found: dict[str, int] = {}
    for live in islice(engine.live.values(), OLDEST_SEARCH):
        if live.phase is READY and live.enqueued_at < found.get(live.queue_name, live.enqueued_at + 1):
            found[live.queue_name] = live.enqueued_at
    return found


def _failing(engine: Engine) -> dict[str, str]:
    """Return the failing duties with their reasons. A disabled log counts as one."""
    return dict(engine.failing_duties) if logger.trouble is None else {**engine.failing_duties, "log": logger.trouble}


def _tasks(running: Collection[Attempt], most: int, instance_id: str) -> tuple[RunningTask, ...]:
    """Return the running tasks: first those that report progress, then the oldest."""
    if not most:
        return ()
    shown = sorted(running, key=lambda each: (each.live.progress_text is None, each.started_at))
    return tuple(_task(each, instance_id) for each in shown[:most])


def _task(attempt: Attempt, instance_id: str) -> RunningTask:
    live = attempt.live
    progress = loads(live.progress_text) if live.progress_text else {}
    done, total = progress.get("done"), progress.get("total")
    return RunningTask(
        task_id=live.task_id,
        task_name=live.definition.name,
        queue_name=live.queue_name,
        instance_id=instance_id,
        attempt=attempt.number,
        started_at=attempt.started_at,
        is_persisted=live.is_persisted,
        done=number_or_none(done),
        total=number_or_none(total),
        text=str(progress.get("text") or "")[:MAX_SHOWN_CHARS],
    )


def _memory(engine: Engine) -> MemoryReport | None:
    """Return every task in memory, those with an unwritten end included, or None if there are too many."""
    unsaved = engine.writer.unsaved_ended
    if len(engine.live) + len(unsaved) > MAX_COUNTED:
        return None
    lives = {live.task_id: live for live in {**unsaved, **engine.live}.values()}
    tasks = {task_id: TaskInMemory(live.status, _stored(live), live.sent_at) for task_id, live in lives.items()}
    attempts = ((live.definition.name, row) for live in lives.values() for row in live.attempts_due)
    return MemoryReport(tasks, tuple(attempts))


def _stored(live: LiveTask) -> str | None:
    """Return the status that the task has in the store, or None if it has no row there."""
    committed = live.saving.committed
    return None if committed is None else committed.status
