"""Writes one row per interval that says how this instance is: tasks, memory, processor, configuration."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from taskmanager.engine.claiming import CLAIM_PAGE
from taskmanager.engine.engine import Engine
from taskmanager.engine.report import fullest
from taskmanager.model.config import QueueConfig
from taskmanager.model.states import WAITING
from taskmanager.store.protocol import WorkerState

_MB = 1024 * 1024


class WorkerStates:
    """The snapshots of one instance. `psutil` is loaded with the first one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._process: Any = None

    async def run_once(self) -> None:
        """Append one snapshot."""
        await self._engine.store.save_worker_state(self._snapshot())

    def _snapshot(self) -> WorkerState:
        engine, settings = self._engine, self._engine.settings
        process = self._measured_process()
        queues, _ = fullest(engine.dispatcher.queues)
        children = _children_memory(process)
        with process.oneshot():
            memory, memory_percent = process.memory_info().rss / _MB, process.memory_percent()
        return WorkerState(
            worker_id=engine.identity.instance_id,
            snapshot_at=engine.clock.now_us(),
            hostname=engine.identity.hostname,
            pid=engine.identity.pid,
            processes=len(children),
            queues=json.dumps(sorted(queues)),
            tasks_running=len(engine.runner.running),
            tasks_claimed=sum(live.status in WAITING and live.owner is not None for live in engine.live.values()),
            memory_usage_mb=memory,
            children_memory_mb=sum(children) / _MB,
            cpu_percent=process.cpu_percent(),
            memory_percent=memory_percent,
            max_claim_batch=CLAIM_PAGE,
            max_claim_per_worker=settings.max_in_memory,
            cluster_wide_cap=_file_wide_limit(queue.config for queue in queues.values()),
            queue_priorities=_by_queue({name: queue.config.priority for name, queue in queues.items()}),
            queue_max_concurrency=_by_queue({name: queue.config.max_concurrency for name, queue in queues.items()}),
            recovery_config=json.dumps(asdict(settings.recovery)),
            worker_started_at=engine.identity.started_at,
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


def _file_wide_limit(queues: Iterable[QueueConfig]) -> int | None:
    """How many tasks may run at once in all instances together, of the queues with such a limit; None without one."""
    limits = [each.max_concurrency or 0 for each in queues if each.is_limited_in_file]
    return sum(limits) if limits else None


def _by_queue(values: Mapping[str, object]) -> str:
    return json.dumps(dict(sorted(values.items())))
