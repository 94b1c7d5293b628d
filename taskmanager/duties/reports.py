"""Writes what an instance says of itself: its report, for other processes, and a row per interval that is kept.

The report is in the row of the instance, as JSON: what only memory knows. It is written at most once a second, and only
when it says something new. An idle instance writes nothing.
"""

import json
from dataclasses import asdict
from typing import Any

from taskmanager.codec.report import dumps_report
from taskmanager.engine.claiming import CLAIM_PAGE
from taskmanager.engine.engine import Engine
from taskmanager.engine.report import report_of
from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.report import InstanceReport
from taskmanager.model.states import WAITING
from taskmanager.store.protocol import WorkerState

_MB = 1024 * 1024


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
            await self._store.save_instance(self._identity.row(report.taken_at, live_tasks=dumps_report(report)))
        except StoreUnavailable as exc:
            logger.debug("the live tasks could not be shown: %s", exc)
            return False
        self._written = report
        return True

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
            queues=json.dumps(list(queues)),
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
