"""The state of a schedule as it stands in the store, and the two changes that are made to it."""

import json
from collections.abc import Collection
from typing import Final, NamedTuple

from taskmanager.model.record import TaskRow

SCHEDULE_TAG: Final = "schedule"
"""The tag in which each run names its schedule."""


def tags_of_runs(schedule_name: str) -> str:
    """Return the tags of each run of a schedule as they are stored. Unfinished runs are found by this text."""
    return json.dumps({SCHEDULE_TAG: schedule_name}, separators=(",", ":"), ensure_ascii=False)


class ScheduleRow(NamedTuple):
    """One row of `taskmanager_schedule_state`. Instants are microseconds UTC.

    If `next_run_at` is None, it has to be computed. `definition` is the timing in words, `template` the task to run, as
    JSON. `owner_id` is the instance whose definition this is; `is_declared` says whether it is still there.
    """

    schedule_name: str
    last_run_at: int | None
    next_run_at: int | None
    last_task_id: str | None
    run_count: int
    config_hash: str
    paused_at: int | None
    updated_at: int
    owner_id: str
    task_name: str
    definition: str
    template: str
    is_declared: bool


class ScheduleDeclaration(NamedTuple):
    """A schedule as one instance defines it. `next_run_at` counts only if the store has no such timing yet."""

    schedule_name: str
    config_hash: str
    task_name: str
    definition: str
    template: str
    next_run_at: int | None

    def onto(self, row: ScheduleRow | None, owner: str, now: int) -> ScheduleRow | None:
        """Return the row after `owner` has declared this, or None if the row stays as it is.

        An owner that is still there keeps an equal definition. It also keeps its own against that of an instance that
        started earlier (ids sort by start). A paused schedule stays paused.
        """
        mine = (owner, self.task_name, self.definition, self.template)
        if row is None:
            return ScheduleRow(
                self.schedule_name, None, self.next_run_at, None, 0, self.config_hash, None, now, *mine, True
            )
        is_same = row.config_hash == self.config_hash
        if row.is_declared and (is_same or row.owner_id > owner):
            return None
        return ScheduleRow(
            self.schedule_name,
            row.last_run_at,
            row.next_run_at if row.definition == self.definition else self.next_run_at,
            row.last_task_id,
            row.run_count,
            self.config_hash,
            row.paused_at,
            now,
            *mine,
            True,
        )


class ScheduleFire(NamedTuple):
    """One step of a schedule: run `task` (None drops the fire), and go on with `next_run_at`.

    It wins only while the row has `expected_hash` and `expected_next`, and is not paused unless a person asked for it.
    With `is_alone` it wins only while every run of the schedule has ended.
    """

    schedule_name: str
    expected_hash: str
    expected_next: int | None
    next_run_at: int | None
    task: TaskRow | None
    now: int
    is_manual: bool = False
    is_alone: bool = False

    def wins(self, row: ScheduleRow | None, busy: Collection[str]) -> bool:
        """Return whether the precondition holds. `busy` has the schedules with a run that has not ended."""
        return (
            row is not None
            and not (self.is_alone and self.schedule_name in busy)
            and row.config_hash == self.expected_hash
            and row.next_run_at == self.expected_next
            and (row.paused_at is None or self.is_manual)
        )
