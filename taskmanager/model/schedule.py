"""The state of a schedule as it stands in the store, and the two changes that are made to it."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from taskmanager.model.record import TaskRow
from taskmanager.model.states import TaskStatus

SCHEDULE_TAG: Final = "schedule"
"""The tag by which a task names the schedule that it is a run of."""


def tags_of_runs(schedule_name: str) -> str:
    """The tags of each run of a schedule, to the letter: an unfinished one is found by them."""
    return json.dumps({SCHEDULE_TAG: schedule_name}, separators=(",", ":"), ensure_ascii=False)


class ScheduleRow(NamedTuple):
    """One row of `taskmanager_schedule_state`. Instants are microseconds UTC.

    `next_run_at` None: to be computed. `definition` is the timing in words, `template` the task to run (JSON).
    `owner_id` is the instance whose definition this is; `is_declared` whether that instance is still there.
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


def busy_of(live: Iterable[TaskRow], schedules: Mapping[str, ScheduleRow], names: Collection[str]) -> frozenset[str]:
    """Those of the names with a run among the live rows; see `Store.busy_schedules`."""
    by_tags = {tags_of_runs(name): name for name in names}
    runs = [(by_tags[row.tags], row) for row in live if row.scheduled_for is not None and row.tags in by_tags]
    return frozenset(name for name, row in runs if not _is_left_behind(row, schedules.get(name)))


def _is_left_behind(run: TaskRow, schedule: ScheduleRow | None) -> bool:
    """Whether it waits for whoever knows the task that the schedule ran before it was declared otherwise."""
    is_free = run.status == TaskStatus.PENDING and run.claimed_by_worker_id is None
    return is_free and schedule is not None and schedule.task_name != run.task_name


class ScheduleDeclaration(NamedTuple):
    """A schedule as one instance defines it. `next_run_at` counts where the store has no such timing yet."""

    schedule_name: str
    config_hash: str
    task_name: str
    definition: str
    template: str
    next_run_at: int | None

    def onto(self, row: ScheduleRow | None, owner: str, now: int) -> ScheduleRow | None:
        """The row as it stands once `owner` has declared this; None when it is left as it is.

        An owner that is there keeps the definition against an equal one, and against another one of an instance that
        started before it (their ids sort by their start). A paused schedule stays paused.
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
    """One step of a schedule: run `task` (None: a fire is dropped), and go on with `next_run_at`.

    Wins only while the row says `expected_hash` and `expected_next`; and, unless a person asked for it, is not paused.
    With `is_alone`, only while no run of the schedule is unfinished.
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
        """Whether the precondition holds; `busy`: the schedules with a run that has not ended."""
        return (
            row is not None
            and not (self.is_alone and self.schedule_name in busy)
            and row.config_hash == self.expected_hash
            and row.next_run_at == self.expected_next
            and (row.paused_at is None or self.is_manual)
        )
