"""One instance at one moment, as frozen words for programs and for the console."""

from taskmanager.engine.engine import Engine
from taskmanager.model.clock import from_us
from taskmanager.model.status import LaneStatus, ManagerStatus, QueueStatus


def status_of(engine: Engine, state: str) -> ManagerStatus:
    """What `manager.status()` says while it runs; `state` is what its door does with a call now."""
    dispatcher, writer = engine.dispatcher, engine.writer
    since = writer.degraded_since
    return ManagerStatus(
        state=state,
        instance_id=engine.identity.instance_id,
        started_at=from_us(engine.identity.started_at),
        storage_degraded_since=None if since is None else from_us(since),
        oldest_unsaved_s=writer.oldest_unsaved_s(),
        unsaved_count=writer.unsaved_count,
        waiting_count=sum(queue.waiting for queue in dispatcher.queues.values()),
        running_count=len(engine.runner.running),
        abandoned_count=len(engine.runner.abandoned),
        lanes={name: LaneStatus(running=s.running, limit=s.limit or 0) for name, s in dispatcher.lanes.items()},
        queues={
            name: QueueStatus(
                running=queue.slots.running,
                limit=queue.slots.limit,
                waiting=queue.waiting,
                is_paused=queue.is_paused,
            )
            for name, queue in dispatcher.queues.items()
        },
    )
