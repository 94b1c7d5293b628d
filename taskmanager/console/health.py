"""Says in one word whether tasks are accepted and kept now, for probes: of one manager, or of all that share a file."""

from datetime import datetime
from typing import Literal, NamedTuple

from taskmanager.console.overview import Health, Overview
from taskmanager.model.clock import SECOND_US, from_us
from taskmanager.model.report import ManagerStatus

Word = Literal["ok", "degraded", "stopping", "not running"]


class HealthReport(NamedTuple):
    """What `/healthz` answers. Durations are seconds. Reasons are left out: the answer may be open to everybody."""

    status: Word
    storage_degraded_since: datetime | None
    oldest_waiting_s: float | None
    oldest_unsaved_s: float | None
    waiting_count: int
    running_count: int
    abandoned_count: int
    failing_duties: list[str]


def health_of(status: ManagerStatus) -> HealthReport:
    """Return the health of a manager with this status."""
    word: Word = "not running"
    if status.state == "draining":
        word = "stopping"
    elif status.state == "open":
        word = "ok" if status.storage_degraded_since is None else "degraded"
    return HealthReport(
        status=word,
        storage_degraded_since=status.storage_degraded_since,
        oldest_waiting_s=status.oldest_waiting_s,
        oldest_unsaved_s=status.oldest_unsaved_s,
        waiting_count=status.waiting_count,
        running_count=status.running_count,
        abandoned_count=status.abandoned_count,
        failing_duties=sorted(status.failing_duties),
    )


def health_of_all(overview: Overview) -> HealthReport:
    """Return the health of all instances together. It is as bad as that of the worst one that lives."""
    reports = [each.report for each in overview.instances if each.health is Health.ALIVE]
    degraded = [each.degraded_since for each in reports if each.degraded_since is not None]
    unsaved = [each.unsaved_since for each in reports if each.unsaved_since is not None]
    waiting = [each.oldest_waiting_since for each in overview.queues if each.oldest_waiting_since is not None]
    word: Word = "degraded" if degraded else "ok"
    if not reports:
        word = "not running"
    elif all(each.is_stopping for each in reports):
        word = "stopping"
    return HealthReport(
        status=word,
        storage_degraded_since=from_us(min(degraded)) if degraded else None,
        oldest_waiting_s=(overview.taken_at - min(waiting)) / SECOND_US if waiting else None,
        oldest_unsaved_s=(overview.taken_at - min(unsaved)) / SECOND_US if unsaved else None,
        waiting_count=sum(each.waiting_count for each in overview.queues),
        running_count=sum(each.running_count for each in overview.queues),
        abandoned_count=sum(each.abandoned_count for each in reports),
        failing_duties=sorted({name for each in reports for name in each.failing_duties}),
    )
