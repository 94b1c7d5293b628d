"""Makes the report of an instance, and writes what it says of itself: for other processes, and to be kept.

The report for others is in the row of the instance, as JSON: what only memory knows. It is written at most once a
second, and only when it says something new. An idle instance writes nothing.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from taskmanager.codec.report import dumps_report, number_or_none
from taskmanager.codec.values import loads
from taskmanager.engine.choose.queue_state import QueueState
from taskmanager.engine.engine import Engine
from taskmanager.engine.look.claiming import CLAIM_PAGE
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import READY
from taskmanager.model.clock import SECOND_US
from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.report import (
    MAX_HELD,
    InstanceReport,
    LaneReport,
    MemoryReport,
    QueueReport,
    RunningTask,
    Suspect,
    TaskInMemory,
    WorkerState,
)
from taskmanager.model.states import WAITING

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
_MB: Final = 1024 * 1024


class Reports:
    """The reports of one instance. `psutil` is loaded with the first worker state."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._store, self._live = engine, engine.store, engine.live
        self._identity, self._settings = engine.identity, engine.settings
        self._written: InstanceReport | None = None
        self._process: Any = None

    async def show(self) -> bool:
        """Write the row of the instance if it would say something new; return whether it did."""
        report = report_of(self._engine).for_others()
        if report == self._written or report.degraded_since is not None:
            return False
        try:
            await self._write(report)
        except StoreUnavailable as exc:
            logger.debug("the live tasks could not be shown: %s", exc)
            return False
        return True

    async def write_anew(self) -> None:
        """Write the row of the instance, whatever was written before. Raises `StoreError`."""
        await self._write(report_of(self._engine).for_others())

    async def _write(self, report: InstanceReport) -> None:
        row = self._identity._replace(
            started_at=report.started_at, live_tasks=dumps_report(report), updated_at=report.taken_at
        )
        await self._store.save_instance(row)
        self._written = report

    async def add_worker_state(self) -> None:
        """Append a row that says how the instance is: tasks, memory, processor, configuration."""
        await self._store.save_worker_state(self._worker_state())

    def _worker_state(self) -> WorkerState:
        import psutil

        if self._process is None:
            self._process = psutil.Process()
            self._process.cpu_percent()  # the first call only starts the measurement
        process, children = self._process, []
        for child in process.children(recursive=True):
            try:
                children.append(child.memory_info().rss)
            except psutil.Error:  # it has ended meanwhile
                continue
        with process.oneshot():
            memory, memory_percent = process.memory_info().rss / _MB, process.memory_percent()
        report, identity, settings = report_of(self._engine, max_tasks=0), self._identity, self._settings
        queues = dict(sorted(report.queues.items()))
        shared_limits = [each.limit for each in queues.values() if each.is_shared_limit and each.limit is not None]
        return WorkerState(
            worker_id=report.instance_id,
            snapshot_at=report.taken_at,
            hostname=identity.hostname,
            pid=identity.pid,
            processes=len(children),
            queues=json.dumps(list(queues) if settings.run_queues is None else sorted(settings.run_queues)),
            tasks_running=report.running_count,
            tasks_claimed=sum(live.status in WAITING and live.owner is not None for live in self._live.values()),
            memory_usage_mb=memory,
            children_memory_mb=sum(children) / _MB,
            cpu_percent=process.cpu_percent(),
            memory_percent=memory_percent,
            max_claim_batch=CLAIM_PAGE,
            max_claim_per_worker=settings.max_in_memory,
            cluster_wide_cap=sum(shared_limits) or None,
            queue_priorities=json.dumps({name: queue.priority for name, queue in queues.items()}),
            queue_max_concurrency=json.dumps({name: queue.limit for name, queue in queues.items()}),
            recovery_config=json.dumps(asdict(settings.recovery)),
            worker_started_at=report.started_at,
        )


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
    now, oldest_s, oldest = clock.now_us(), writer.oldest_unsaved_s(), _oldest_waiting(engine)
    memory_only = Counter(each.live.queue_name for each in running if not each.live.is_persisted)
    return InstanceReport(
        instance_id=engine.identity.instance_id,
        started_at=engine.started_at,
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
        memory_only_waiting=max(0, sum(each.waiting - each.stored_waiting for each in (*queues.values(), *unlisted))),
        lanes={name: LaneReport(each.running, each.limit) for name, each in dispatcher.lanes.items()},
        queues={name: _queue(each, oldest.get(name), memory_only[name]) for name, each in queues.items()},
        unlisted_queue_count=len(unlisted),
        unlisted_waiting_count=sum(each.waiting for each in unlisted),
        tasks=_tasks(running, max_tasks, engine.identity.instance_id),
        suspect=_suspect(engine) if max_tasks else None,
        task_names=frozenset(engine.definitions) if len(engine.definitions) <= MAX_SHOWN_NAMES else None,
        run_queues=engine.settings.run_queues,
        tally=dict(engine.settlement.tally),
        memory=_memory(engine) if has_memory else None,
    )


def _failing(engine: Engine) -> dict[str, str]:
    """Return the failing duties with their reasons. A disabled log counts as one, and so does each faulty listener."""
    listeners = engine.life.listeners
    found = {**engine.failing_duties, **({} if listeners is None else listeners.troubles())}
    return found if logger.trouble is None else {**found, "log": logger.trouble}


def _fullest(queues: Mapping[str, QueueState], most: int | None) -> tuple[dict[str, QueueState], list[QueueState]]:
    """Return the `most` queues in which most tasks wait and run, and the other queues."""
    found = list(queues.items())  # other threads may add one at any time
    if most is None or len(found) <= most:
        return dict(found), []
    listed = dict(nsmallest(most, found, key=lambda each: (-each[1].waiting - each[1].slots.running, each[0])))
    return listed, [queue for name, queue in found if name not in listed]


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


def _tasks(running: Collection[Attempt], most: int, instance_id: str) -> tuple[RunningTask, ...]:
    """Return the running tasks: first those that report progress, then the oldest."""
    if not most:
        return ()
    shown = sorted(running, key=lambda each: (each.live.progress_text is None, each.started_at))
    return tuple(_task(each, instance_id) for each in shown[:most])


def _suspect(engine: Engine) -> Suspect | None:
    """Return the task that runs alone, and how many ready tasks may not start beside it."""
    dispatcher, runner = engine.dispatcher, engine.runner
    suspect = dispatcher.suspect
    attempt = None if suspect is None else runner.running.get(suspect.task_id)
    if attempt is None:
        return None
    held = (
        live.task_id
        for queue in dispatcher.queues.values()
        if queue.is_open
        for key, source in queue.sources.items()
        if key.needs_store or key.is_suspect
        for live in source
        if live.phase is READY
    )
    return Suspect(_task(attempt, engine.identity.instance_id), len(set(islice(held, MAX_HELD))))


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
        text=(str(progress.get("text") or "") or _steps_of(attempt))[:MAX_SHOWN_CHARS],
    )


def _steps_of(attempt: Attempt) -> str:
    """Name the steps that run, for a task that says nothing of its progress."""
    names = () if attempt.steps is None else attempt.steps.running_names
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else ""


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
