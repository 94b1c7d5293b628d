"""Writes one row per interval that says how this instance is: tasks, memory, processor, configuration."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from taskmanager.engine.claiming import CLAIM_PAGE
from taskmanager.engine.engine import Engine
from taskmanager.engine.report import report_of
from taskmanager.model.report import QueueReport
from taskmanager.model.states import WAITING
from taskmanager.store.protocol import WorkerState

_MB = 1024 * 1024


class WorkerStates:
    """The snapshots of one instance. `psutil` is loaded with the first one."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._store, self._live = engine, engine.store, engine.live
        self._identity, self._settings = engine.identity, engine.settings
        self._process: Any = None

    async def run_once(self) -> None:
        """Append one snapshot."""
        await self._store.save_worker_state(self._snapshot())

    def _snapshot(self) -> WorkerState:
        report, identity, settings = report_of(self._engine, max_tasks=0), self._identity, self._settings
        process = self._measured_process()
        children = _children_memory(process)
        with process.oneshot():
            memory, memory_percent = process.memory_info().rss / _MB, process.memory_percent()
        return WorkerState(
            worker_id=report.instance_id,
            snapshot_at=report.taken_at,
            hostname=identity.hostname,
            pid=identity.pid,
            processes=len(children),
            queues=json.dumps(sorted(report.queues)),
            tasks_running=report.running_count,
            tasks_claimed=sum(live.status in WAITING and live.owner is not None for live in self._live.values()),
            memory_usage_mb=memory,
            children_memory_mb=sum(children) / _MB,
            cpu_percent=process.cpu_percent(),
            memory_percent=memory_percent,
            max_claim_batch=CLAIM_PAGE,
            max_claim_per_worker=settings.max_in_memory,
            cluster_wide_cap=_file_wide_limit(report.queues.values()),
            queue_priorities=_by_queue({name: queue.priority for name, queue in report.queues.items()}),
            queue_max_concurrency=_by_queue({name: queue.limit for name, queue in report.queues.items()}),
            recovery_config=json.dumps(asdict(settings.recovery)),
            worker_started_at=report.started_at,
        )

    def _measured_process(self) -> Any:
        if self._process is None:
            import psutil

            self._process = psutil.Process()
            self._process.cpu_percent()  # the first call only starts the measurement
        return self._process


def _children_memory(process: Any) -> list[int]:
    """Resident bytes of each child; one that ends meanwhile is left out."""
    import psutil

    found = []
    for child in process.children(recursive=True):
        try:
            found.append(child.memory_info().rss)
        except psutil.Error:
            continue
    return found


def _file_wide_limit(queues: Iterable[QueueReport]) -> int | None:
    """Return how many tasks may run at once in all instances, of the queues with such a limit; None without one."""
    limits = [each.limit for each in queues if each.is_shared_limit and each.limit is not None]
    return sum(limits) if limits else None


def _by_queue(values: Mapping[str, object]) -> str:
    return json.dumps(dict(sorted(values.items())))
