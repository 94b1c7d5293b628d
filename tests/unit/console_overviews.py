"""Overviews to be drawn: a busy file, a file on a bad day, one that stands still, an empty one."""

from typing import Any, Final

from taskmanager.console.overview import (
    NO_COUNTS,
    Durations,
    Health,
    InstanceView,
    Overview,
    Problem,
    QueueView,
    StorageView,
)
from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.model.report import InstanceReport, LaneReport, RunningTask
from taskmanager.model.states import TaskStatus
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.statistics import Failure, NextRun, Pace, TaskFailures, TaskPace

SECOND: Final = 1_000_000
NOW: Final = 1_772_370_000 * SECOND  # 2026-03-01 13:00:00 UTC


def instance(name: str, pid: int, health: Health = Health.ALIVE, **more: Any) -> InstanceView:
    """An instance as it is seen; `more` are facts of the view, of its row, or of its report."""
    view: dict[str, Any] = {"health": health, "seen_at": NOW - SECOND, "silent_s": 1.0, "held_count": 0}
    view |= {fact: more.pop(fact) for fact in view if fact in more}
    row = InstanceRow(
        f"{name}-{pid}", name, "host-1", pid, "MainProcess", None, more.pop("started_at", NOW - 3 * HOUR_US), None,
        None, NOW,
    )  # fmt: skip
    report = InstanceReport(instance_id=row.instance_id, started_at=row.started_at, taken_at=NOW, **more)
    return InstanceView(row=row, report=report, **view)


def queue(name: str, running: int, waiting: int, **more: object) -> QueueView:
    facts: dict[str, object] = {
        "queue_name": name,
        "running_count": running,
        "waiting_count": waiting,
        "is_waiting_capped": False,
        "limit": None,
        "oldest_waiting_since": None,
        "is_paused": False,
    }
    return QueueView(**{**facts, **more})  # type: ignore[arg-type]


def task(name: str, age_s: float, done: float | None = None, total: float | None = None, text: str = "") -> RunningTask:
    return RunningTask(
        task_id=f"id-{name}-{age_s}",
        task_name=name,
        queue_name="default",
        instance_id="web-812",
        attempt=1,
        started_at=NOW - round(age_s * SECOND),
        is_persisted=True,
        done=done,
        total=total,
        text=text,
    )


def failure(name: str, code: str, ago_s: int, *, attempt: int = 1, again: bool = False) -> Failure:
    message = "ConnectionRefusedError: smtp.example.org refused the connection"
    return Failure(f"id-{ago_s}", name, attempt, "FAILED", code, message, NOW - ago_s * SECOND, again)


def schedule(
    name: str, next_at: int | None, last_at: int | None, *, is_paused: bool = False, is_declared: bool = True
) -> NextRun:
    return NextRun(name, f"jobs:{name}", "30 2 * * * UTC", next_at, last_at, is_paused, is_declared)


ASYNC: Final = {"async": LaneReport(running_count=7, limit=100)}

EMPTY: Final = Overview(
    taken_at=NOW,
    counts=NO_COUNTS,
    minute=Pace(NOW - MINUTE_US, 0, 0),
    hour=Pace(NOW - HOUR_US, 0, 0),
    storage=StorageView(path="tasks.db", file_bytes=102_400, disk_free_bytes=120_000_000_000, schema_version=2),
)

BUSY: Final = Overview(
    taken_at=NOW,
    counts={
        **NO_COUNTS,
        TaskStatus.PENDING: 12_300,
        TaskStatus.RUNNING: 9,
        TaskStatus.COMPLETED: 1_204_332,
        TaskStatus.FAILED: 27,
        TaskStatus.CANCELLED: 3,
    },
    instances=(
        instance("web", 812, running_count=7, waiting_count=40, lanes=ASYNC),
        instance("worker", 9013, running_count=2, waiting_count=300, is_stopping=True),
    ),
    queues=(
        queue("default", 7, 12_260, is_waiting_capped=True, oldest_waiting_since=NOW - 4 * SECOND),
        queue("mail", 2, 40, limit=5, oldest_waiting_since=NOW - 7200 * SECOND),
        queue("reports", 0, 0, limit=2, is_paused=True),
    ),
    minute=Pace(NOW - MINUTE_US, 738, 0),
    hour=Pace(NOW - HOUR_US, 29_160, 27),
    waited=Durations(950, 4_200, 1_204_000),
    ran=Durations(12_000, 30_080_000, 125_000_000),
    running=(
        task("reports:build_report", 63, 62, 100, "page 62 of 100"),
        task("shop.jobs.images.thumbnails:resize_every_image", 3, 0, 40),
        task("crawler:crawl", 700, 1204, None, "https://example.org/a/very/long/path"),
        task("shop.jobs:reindex", 4000),
        task("bad\x1b[2Jname\ntwo", 1, 3, 3, "line\ntwo\x07"),
    ),
    slowest=(
        TaskPace("reports:build_report", 8, 0, 30_080_000, 40_100_000),
        TaskPace("mail:send_mail", 473, 83, 968_000, 1_990_000),
        TaskPace("shop.jobs:resize_image", 97, 0, 340, 950),
    ),
    most_failing=(
        TaskFailures("mail:send_mail", 83, "SMTP_REFUSED"),
        TaskFailures("crawler:crawl", 2, "UNHANDLED_EXCEPTION"),
    ),
    failures=(
        failure("mail:send_mail", "SMTP_REFUSED", 3, again=True),
        failure("mail:send_mail", "SMTP_REFUSED", 61, attempt=3),
        failure("crawler:crawl", "UNHANDLED_EXCEPTION", 4000),
    ),
    schedules=(
        schedule("nightly-report", NOW + 3 * HOUR_US, NOW - 21 * HOUR_US),
        schedule("cleanup", NOW + 24 * HOUR_US, None, is_declared=False),
        schedule("weekly", None, NOW - 200 * HOUR_US, is_paused=True),
    ),
    storage=StorageView(
        path="/srv/app/data/tasks.db",
        file_bytes=412_000_000,
        unused_bytes=200_000_000,
        log_bytes=4_120_000,
        disk_free_bytes=120_000_000_000,
        schema_version=2,
    ),
    last_activity_at=NOW - SECOND,
)

BAD_DAY: Final = Overview(
    taken_at=NOW,
    problems=(
        Problem(
            severity="error",
            text="web (pid 812) died 3m ago and holds 4 unfinished tasks",
            advice="a living instance takes over at its next check; at once: taskmanager recover",
        ),
        Problem(
            severity="error",
            text="worker (pid 9013) is frozen: its process exists, but has been silent for 2m",
            advice="stopped, swapping, or unable to write the file? see taskmanager doctor",
        ),
    ),
    counts={**NO_COUNTS, TaskStatus.PENDING: 3, TaskStatus.RUNNING: 4, TaskStatus.FAILED: 1},
    instances=(
        instance("web", 812, Health.DEAD, silent_s=185.0, held_count=4),
        instance("worker", 9013, Health.FROZEN, silent_s=130.0, running_count=1),
        instance("api", 77, degraded_since=NOW - 5 * SECOND, unsaved_count=120),
    ),
    queues=(queue("default", 1, 3, oldest_waiting_since=NOW - 180 * SECOND),),
    minute=Pace(NOW - MINUTE_US, 0, 0),
    hour=Pace(NOW - HOUR_US, 0, 0),
    storage=StorageView(path="tasks.db", file_bytes=102_400, log_bytes=1_000, schema_version=2),
    last_activity_at=NOW - 26 * HOUR_US,
)

SHOWCASE: Final = Overview(
    taken_at=NOW,
    counts={
        **NO_COUNTS,
        TaskStatus.PENDING: 343,
        TaskStatus.RUNNING: 9,
        TaskStatus.COMPLETED: 18_332,
        TaskStatus.FAILED: 27,
    },
    instances=(
        instance("web", 812, running_count=7, waiting_count=343, lanes=ASYNC),
        instance(
            "worker",
            9013,
            running_count=2,
            started_at=NOW - 26 * HOUR_US,
            lanes={"process": LaneReport(running_count=2, limit=2)},
        ),
    ),
    queues=(
        queue("mail", 5, 331, limit=5, oldest_waiting_since=NOW - 42 * SECOND),
        queue("default", 2, 12),
        queue("reports", 2, 0, limit=2),
    ),
    minute=Pace(NOW - MINUTE_US, 738, 2),
    hour=Pace(NOW - HOUR_US, 29_160, 104),
    running=(
        task("reports:build", 63, 62, 100, "page 62 of 100"),
        task("reports:build", 12, 9, 100, "page 9 of 100"),
        task("images:resize", 7, 1204, 1300, "photos/beach.jpg"),
        task("crawler:crawl", 700, 1204, None, "example.org/news"),
        task("mail:send", 2),
        task("mail:send", 1),
        task("mail:send", 1),
        task("mail:send", 1),
        task("mail:send", 0),
    ),
    slowest=(
        TaskPace("reports:build", 8, 0, 90_080_000, 141_100_000),
        TaskPace("mail:send", 900, 3, 968_000, 1_990_000),
    ),
    most_failing=(TaskFailures("mail:send", 102, "SMTP_REFUSED"),),
    failures=(
        failure("mail:send", "SMTP_REFUSED", 3, again=True),
        failure("mail:send", "SMTP_REFUSED", 44, again=True),
        failure("mail:send", "SMTP_REFUSED", 61, attempt=3),
        failure("crawler:crawl", "TASK_TIMEOUT", 700, again=True),
    ),
    schedules=(schedule("nightly-report", NOW + 3 * HOUR_US, NOW - 21 * HOUR_US),),
    storage=StorageView(
        path="tasks.db", file_bytes=9_400_000, log_bytes=4_120_000, disk_free_bytes=120_000_000_000, schema_version=2
    ),
    last_activity_at=NOW - SECOND,
)
"""For the pictures in the documents."""
