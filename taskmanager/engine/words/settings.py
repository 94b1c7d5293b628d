"""The settings of a manager, checked once for every start of it."""

import os
from collections.abc import Collection, Sequence
from typing import Literal

from taskmanager.model.checks import is_storable
from taskmanager.model.config import (
    ExceptionMapper,
    QueueConfig,
    RecoveryConfig,
    is_int,
    list_fault,
    mapper_faults,
    own_code_fault,
    queue_name_fault,
    raise_faults,
)
from taskmanager.model.dataclass import dataclass
from taskmanager.model.states import Lane
from taskmanager.store.place import Place

LARGE_THREADS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Numbers with their units; see `TaskManager` for their meaning. Raises `ConfigurationError` with every fault."""

    place: Place | None
    snapshot_interval_s: float
    commit_interval_s: float
    synchronous: Literal["full", "normal"]
    concurrency: int
    threads: int
    processes: int
    queues: tuple[QueueConfig, ...]
    max_pending: int | None
    max_in_memory: int
    recovery: RecoveryConfig
    drain_timeout_s: float
    store_poll_s: float
    instance_name: str | None
    run_queues: frozenset[str] | None

    def lanes(self) -> dict[Lane, int]:
        """Return the limit of each lane."""
        return {"async": self.concurrency, "thread": self.threads, "process": self.processes}

    def runs(self, queue_name: str) -> bool:
        """Return whether this instance runs the tasks of that queue. Without `run_queues` it runs all."""
        return self.run_queues is None or queue_name in self.run_queues

    @property
    def role(self) -> str:
        """Return which queues it runs, for messages: "run_queues=('mail',)"."""
        return f"run_queues={None if self.run_queues is None else tuple(sorted(self.run_queues))}"

    @property
    def only_enqueues(self) -> bool:
        """Whether this instance runs no queue at all."""
        return self.run_queues is not None and not self.run_queues

    def __post_init__(self) -> None:
        faults = []
        for name in ("concurrency", "threads", "processes", "max_in_memory"):
            value = getattr(self, name)
            if not is_int(value) or value < 1:
                faults.append(f"{name} must be a whole number from 1, not {value!r}")
        if self.max_pending is not None and (not is_int(self.max_pending) or self.max_pending < 1):
            faults.append(f"max_pending must be a whole number from 1, or None, not {self.max_pending!r}")
        for name, low in (
            ("snapshot_interval_s", 0.001),
            ("commit_interval_s", 0.0),
            ("drain_timeout_s", 0.0),
            ("store_poll_s", 0.001),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < 1e9:
                faults.append(f"{name.removesuffix('_s')} must be seconds, at least {low:g}, not {value!r}")
        if self.synchronous not in ("full", "normal"):
            faults.append(f"synchronous must be 'full' or 'normal', not {self.synchronous!r}")
        if not isinstance(self.recovery, RecoveryConfig):
            faults.append(f"recovery must be a RecoveryConfig, not {self.recovery!r}")
        if self.instance_name is not None and not is_storable(self.instance_name):
            faults.append(f"instance_name must be text or None, not {self.instance_name!r}")
        faults.extend(_queue_faults(self.queues))
        raise_faults("TaskManager", faults)


def threads_of(asked: int | None) -> int:
    """Return what was asked for, or as many as the standard library's pool has: enough for waiting, not to drown in."""
    return min(LARGE_THREADS, (os.cpu_count() or 1) + 4) if asked is None else asked


def processes_of(asked: int | None) -> int:
    """Return what was asked for, or one per core."""
    return (os.cpu_count() or 1) if asked is None else asked


def _queue_faults(queues: Sequence[object]) -> list[str]:
    faults = [f"queues must hold QueueConfig, not {each!r}" for each in queues if not isinstance(each, QueueConfig)]
    names = [each.name for each in queues if isinstance(each, QueueConfig)]
    faults.extend(f"queue {name!r} is configured twice" for name in sorted({n for n in names if names.count(n) > 1}))
    return faults


def check_collections(
    queues: object, exception_mapper: ExceptionMapper | None, default_code: str, run_queues: Collection[str] | None
) -> frozenset[str] | None:
    """Check values that are copied into the settings, before that. Return the queues that are run, None for all.

    Raises `ConfigurationError`.
    """
    code_fault = own_code_fault(default_code, "default_unhandled_error_code")
    faults = [code_fault, list_fault("queues", queues, "QueueConfig"), *mapper_faults(exception_mapper)]
    faults += _run_queues_faults(run_queues)
    raise_faults("TaskManager", [fault for fault in faults if fault])
    return None if run_queues is None else frozenset(run_queues)


def _run_queues_faults(run_queues: object) -> list[str]:
    if run_queues is None:
        return []
    if isinstance(run_queues, str):  # it would be read as the names of its letters
        return [f"run_queues must hold the names of queues, as in ({run_queues!r},), not be the text {run_queues!r}"]
    if not isinstance(run_queues, Collection):
        return [f"run_queues must hold the names of queues, or be None for all of them, not {run_queues!r}"]
    return [f"run_queues: {fault}" for fault in map(queue_name_fault, run_queues) if fault]
