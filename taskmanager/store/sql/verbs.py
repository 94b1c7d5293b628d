"""The verbs of a store that are functions over a session, whatever database it is connected to."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, TypeVarTuple

from taskmanager.model.clock import Clock
from taskmanager.model.record import TaskRow
from taskmanager.rules.figures import Span
from taskmanager.store.protocol import ClaimRequest, TaskFilter
from taskmanager.store.sql import (
    claims,
    events,
    pruning,
    queries,
    transitions,
    workflow_recovery,
    workflow_reopening,
    workflow_rows,
    workflows,
)
from taskmanager.store.sql import instances as instance_rows
from taskmanager.store.sql import schedules as schedule_state
from taskmanager.store.sql.counting import Counting, add_counted
from taskmanager.store.sql.pruning import BatchSize
from taskmanager.store.sql.session import Session

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


_Work = Callable[Concatenate[Session, P], R]
_Verb = Callable[Concatenate["Verbs", P], Coroutine[Any, Any, R]]


def _reads(work: _Work[P, R]) -> _Verb[P, R]:
    """Make a verb of a function that reads."""

    async def verb(self: "Verbs", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._read(lambda connection: work(connection, *args, **kwargs))

    return verb


def _writes(work: _Work[P, R]) -> _Verb[P, R]:
    """Make a verb of a function that writes."""

    async def verb(self: "Verbs", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._write(partial(work, **kwargs), *args)

    return verb


def _counts(work: Callable[Concatenate[Session, Counting, P], R]) -> _Verb[P, R]:
    """Make a verb of a function that writes, and whose ends of tasks are counted."""

    async def verb(self: "Verbs", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._write(lambda connection: work(connection, self._counting, *args, **kwargs))

    return verb


_DELETED: Final = ("tasks", "workflows", "heartbeats", "worker states", "figures", "pages")


class Verbs:
    """What all databases answer alike. The store of each says how its connections are used.

    `clock` tells which instants are so far away that the figures do not count them.
    """

    def __init__(self, clock: Clock) -> None:
        self._counting = Counting(clock)
        self._batches = {what: BatchSize() for what in _DELETED}

    async def _read(self, work: Callable[[Session, *Ts], R], *args: *Ts) -> R:
        raise NotImplementedError

    async def _write(self, work: Callable[[Session, *Ts], R], *args: *Ts) -> R:
        raise NotImplementedError

    async def _write_unsynced(self, work: Callable[[Session, *Ts], R], *args: *Ts) -> R:
        """A write whose commit does not wait for the disk, because after a power cut it would simply be done again."""
        raise NotImplementedError

    most_claimed_together = 50
    """Each takes some 0.1 ms more of the transaction."""

    async def claim(self, *requests: ClaimRequest) -> list[TaskRow]:
        if all(request.starting is None for request in requests):
            return await self._write_unsynced(claims.claim, requests, self._counting)
        # What has run must not be free again after a power cut.
        return await self._write(claims.claim, requests, self._counting)

    async def free_waiting(self, owner: str, now: int, limit: int, per_queue: int | None = None) -> int:
        return await self._write_unsynced(claims.free_waiting, owner, now, limit, per_queue)

    async def purge(self, wanted: TaskFilter, older_than: int | None, limit: int) -> int:
        sizes = self._batches["tasks"], self._batches["workflows"]
        return await self._write_unsynced(pruning.purge, *sizes, wanted, older_than, limit)

    async def prune_heartbeats(self, cutoff: int, limit: int) -> int:
        return await self._write_unsynced(pruning.prune_heartbeats, self._batches["heartbeats"], cutoff, limit)

    async def prune_worker_states(self, cutoff: int, limit: int) -> int:
        return await self._write_unsynced(pruning.prune_worker_states, self._batches["worker states"], cutoff, limit)

    async def add_figures(self) -> None:
        if self._counting.has_any:
            await self._write_unsynced(add_counted, self._counting)

    async def prune_figures(self, span: Span, since: int, limit: int) -> int:
        return await self._write_unsynced(pruning.prune_figures, self._batches["figures"], span, since, limit)

    # What needs no more than its statement.

    latest_stamp = _reads(claims.latest_stamp)
    free_queues = _reads(claims.free_queues)
    waiting_levels = _reads(claims.waiting_levels)
    fetch_taken = _reads(claims.fetch_taken)
    best_waiting = _reads(claims.best_waiting)
    fetch = _reads(queries.fetch)
    fetch_attempts = _reads(queries.fetch_attempts)
    fetch_steps = _reads(queries.fetch_steps)
    fetch_event = _reads(events.fetch_event)
    fetch_ids = _reads(queries.fetch_ids)
    fetch_many = _reads(queries.fetch_many)
    find_ids = _reads(queries.find_ids)
    first_unfinished = _reads(queries.first_unfinished)
    fetch_owned = _reads(queries.fetch_owned)
    fetch_owned_ids = _reads(queries.fetch_owned_ids)
    fetch_orphans = _reads(queries.fetch_orphans)
    fetch_expired = _reads(queries.fetch_expired)
    fetch_cancel_requests = _reads(queries.fetch_cancel_requests)
    counts = _reads(queries.counts)
    instances = _reads(queries.instances)
    news = _reads(queries.news)
    heartbeats = _reads(instance_rows.heartbeats)
    paused_queues = _reads(queries.paused_queues)
    schedules = _reads(schedule_state.fetch)
    busy_schedules = _reads(schedule_state.busy)
    fetch_workflow = _reads(workflow_rows.fetch_workflow)
    fetch_workflows = _reads(workflow_rows.fetch_workflows)
    fetch_nodes = _reads(workflow_rows.fetch_nodes)
    fetch_node = _reads(workflow_rows.fetch_node)
    node_start = _reads(workflow_rows.node_start)
    fetch_without_workflow = _reads(workflow_recovery.fetch_without_workflow)

    fetch_claim = _writes(claims.fetch_claim)  # behind every claim that was asked for before
    release = _writes(claims.release)
    make_due = _writes(claims.make_due)
    send_event = _writes(events.send_event)
    request_cancel = _writes(transitions.request_cancel)
    save_instance = _writes(instance_rows.save_instance)
    forget_instances = _writes(instance_rows.forget_instances)
    save_worker_state = _writes(instance_rows.save_worker_state)
    set_paused = _writes(transitions.set_paused)
    declare_schedules = _writes(schedule_state.declare)
    fire_schedules = _writes(schedule_state.fire)
    set_schedule_paused = _writes(schedule_state.set_paused)
    start_workflow = _writes(workflows.start)
    reopen_workflow = _counts(workflow_reopening.reopen)
    pause_workflow = _writes(workflows.pause)
    resume_workflow = _counts(workflows.resume)
    cancel_workflow = _counts(workflows.cancel)
    recover_workflows = _counts(workflow_recovery.recover)
