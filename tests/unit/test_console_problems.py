"""What is said first on a bad day: for each kind of trouble one line, and one line that says what to do."""

from dataclasses import replace
from typing import Any, Final

import pytest

from taskmanager.console.overview import Health, Mend, Overview, StorageView
from taskmanager.console.problems import problems_of
from taskmanager.model.clock import HOUR_US
from taskmanager.model.report import MAX_HELD, Suspect
from taskmanager.model.states import TaskStatus
from taskmanager.store.statistics import Pace, TaskFailures
from tests.unit.console_overviews import BUSY, EMPTY, NOW, SECOND, instance, queue
from tests.unit.console_overviews import task as running_task

ROOM: Final = 77
"""Columns beside the mark, on the narrowest terminal that everybody has."""
WAITING: Final = {**EMPTY.counts, TaskStatus.PENDING: 3}
KINDS: Final[list[tuple[dict[str, Any], dict[str, int], str]]] = [
    (
        {"instances": (instance("web", 812, degraded_since=NOW - 90 * SECOND, unsaved_count=1),)},
        {},
        "web (pid 812) has been unable to write the file for 1m, 1 record unsaved",
    ),
    (
        {"instances": (instance("web", 812, Health.DEAD, silent_s=185.0, held_count=1000),)},
        {},
        "web (pid 812) died 3m ago and holds 1,000+ unfinished tasks",
    ),
    (
        {"instances": (instance("web", 812, Health.DEAD, held_count=1), instance("api", 1))},
        {},
        "web (pid 812) died 1s ago and holds 1 unfinished task",
    ),
    ({}, {"gone": 2}, "2 unfinished tasks belong to instances that are gone"),
    (
        {"instances": (instance("web", 812, Health.FROZEN, silent_s=90.0),)},
        {},
        "web (pid 812) is frozen: its process exists, but has been silent for 1m",
    ),
    (
        {"instances": (instance("web", 812, unsaved_since=NOW - 12 * SECOND),)},
        {},
        "the oldest unsaved change of web (pid 812) has waited for 12s",
    ),
    (
        {"instances": (instance("web", 812, failing_duties={"reaper": "OSError: no"}),)},
        {},
        "the reaper of web (pid 812) keeps failing",
    ),
    (
        {"instances": (instance("web", 812, abandoned_count=2),)},
        {},
        "2 tasks of web (pid 812) still execute after their time limit",
    ),
    (
        {"instances": (instance("web", 812, suspect=Suspect(running_task("app:import", 12), 12)),)},
        {},
        "12 tasks wait for app:import (mport-12), which runs alone after a crash",
    ),
    ({"counts": WAITING}, {}, "3 tasks wait, and no instance is running"),
    ({"hour": Pace(NOW - HOUR_US, 40, 30)}, {}, "30 of 40 attempts of the last hour failed"),
    (
        {"queues": (queue("mail", 0, 600, is_paused=True), queue("reports", 0, 0, is_paused=True))},
        {},
        "queue mail is paused, and 600 tasks wait in it",
    ),
    (
        {"hour": Pace(NOW - HOUR_US, 40, 30), "most_failing": (TaskFailures("mail:send", 30, "SMTP_REFUSED"),)},
        {},
        "30 of 40 attempts of the last hour failed",
    ),
    (
        {"storage": StorageView(path="tasks.db", log_bytes=300 * 1024 * 1024)},
        {},
        "the log beside the database (-wal) has grown to 315 MB",
    ),
    ({"storage": StorageView(path="tasks.db", disk_free_bytes=1_000_000)}, {}, "only 1.0 MB left on the disk"),
]


@pytest.mark.parametrize(("changes", "owned", "text"), KINDS, ids=[text for _, _, text in KINDS])
def test_each_trouble_is_named_with_what_to_do(changes: dict[str, Any], owned: dict[str, int], text: str) -> None:
    """Both lines fit eighty columns: half an advice is none."""
    overview: Overview = replace(EMPTY, **changes)
    held = {each.row.instance_id: each.held_count for each in overview.instances}
    (problem,) = problems_of(overview, {**owned, **held})
    assert problem.text == text
    assert len(problem.text) <= ROOM
    assert 0 < len(problem.advice) <= ROOM


def test_a_good_day_has_none() -> None:
    """Neither has an empty file, a stopped application without work, or a dead instance that holds nothing."""
    quiet = replace(BUSY, storage=BUSY.storage._replace(log_bytes=0))
    assert problems_of(quiet, {each.row.instance_id: 7 for each in quiet.instances}) == ()
    assert problems_of(EMPTY, {}) == ()
    assert problems_of(replace(EMPTY, instances=(instance("web", 812, Health.DEAD),)), {}) == ()


def test_the_worst_comes_first() -> None:
    """What is at risk, before what merely waits."""
    overview = replace(
        EMPTY,
        counts=WAITING,
        instances=(instance("web", 812, Health.DEAD, held_count=1),),
        storage=StorageView(path="tasks.db", log_bytes=10**9),
    )
    assert [each.severity for each in problems_of(overview, {"web-812": 1})] == ["error", "warning", "warning"]


def test_paused_queue_is_resumed_where_the_dashboard_shows_it() -> None:
    """What one press mends has a press; any other problem leads to the page that shows it."""
    paused = replace(EMPTY, queues=(queue("mail", 0, 600, is_paused=True),))
    (problem,) = problems_of(paused, {})
    assert problem.mends == (Mend("Resume", "queues/resume", {"queue": "mail"}),)


@pytest.mark.parametrize(
    ("health", "age_s", "held_count"),
    [(Health.ALIVE, 10, 3), (Health.ALIVE, 60, 0), (Health.DEAD, 60, 3), (Health.FROZEN, 60, 3)],
    ids=["it has just begun", "nothing waits", "dead", "frozen"],
)
def test_task_that_runs_alone_is_no_problem_by_itself(health: Health, age_s: int, held_count: int) -> None:
    """After a crash that is the ordinary case, and what is not alive tells nothing of now."""
    suspect = Suspect(running_task("app:import", age_s), held_count)
    told = problems_of(replace(EMPTY, instances=(instance("web", 812, health, suspect=suspect),)), {})
    assert not [each for each in told if "runs alone" in each.text]


def test_task_that_runs_alone_is_shown_with_what_ends_it() -> None:
    """By its id, as a shell and an address take it. What is in memory only can be cancelled from nowhere else."""
    alone = running_task("app:import", 60)._replace(task_id="a/b; rm *")
    overview = replace(EMPTY, instances=(instance("web", 812, suspect=Suspect(alone, MAX_HELD)),))
    (problem,) = problems_of(overview, {})
    assert problem.text.startswith("1,000+ tasks wait")
    assert problem.advice == "look: taskmanager show '/b; rm *'; to end it: taskmanager cancel '/b; rm *'"
    assert problem.mends == (Mend("Show it", "tasks/a%2Fb%3B%20rm%20%2A"),)
    light = Suspect(alone._replace(is_persisted=False), 1)
    (problem,) = problems_of(replace(EMPTY, instances=(instance("web", 812, suspect=light),)), {})
    assert "taskmanager cancel" not in problem.advice
    assert len(problem.advice) <= ROOM


def test_tasks_that_nobody_knows_are_shown_by_the_filter_of_their_name() -> None:
    """A name is text of somebody else, and must not end the address."""
    (problem,) = problems_of(EMPTY, {}, {"shop&co:send": 3})
    assert problem.mends == (Mend("Waiting tasks", "tasks?status=PENDING&task=shop%26co%3Asend"),)
