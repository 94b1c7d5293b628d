"""Makes the overview that an instance shows of itself: from its memory, which is newer than the file, and its store.

Memory is read on the event loop. `console()` also reads the file there, which takes some milliseconds. `live()` reads
the file in a thread.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from taskmanager.console.observer import Observer
from taskmanager.console.overview import NO_COUNTS, Overview, Problem
from taskmanager.duties.reports import report_of
from taskmanager.engine.engine import Engine
from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.model.errors import StoreError
from taskmanager.model.record import AttemptRow
from taskmanager.model.report import InstanceReport
from taskmanager.model.states import TERMINAL, AttemptOutcome, TaskStatus
from taskmanager.store.statistics import MAX_LINES, Failure, FileSize, Pace, Statistics, StoreOverview

READ_S: Final = 1.0  # the least time between two looks at the file
COST_FACTOR: Final = 50.0  # a look at the file that took so long is made again after so many times as long


class InstanceObserver:
    """Makes overviews of one start. It keeps the answer of the store for a second, or longer if the store is slow."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._store, self._clock, self._identity = engine, engine.store, engine.clock, engine.identity
        self._place = engine.settings.place
        self._observer = Observer(self._place, self._clock, engine.presence)
        self._found: StoreOverview | None = None
        self._fault: str | None = None
        self._marked: InstanceReport | None = None
        """The report that was made when the store was looked at."""
        self._next_look_s = 0.0
        self._asked_count = 0

    def look_again(self) -> None:
        """Read the file for the next overview, however new the last look is, and whether or not one is going on."""
        self._asked_count += 1
        self._next_look_s = 0.0

    def overview(self) -> Overview:
        """Return the overview, with the file read at once."""
        report = report_of(self._engine, has_memory=True)
        if self._is_due() and self.look():
            self._marked = report
        return self._drawn(report)

    async def overview_aside(self) -> Overview:
        """Return the overview, with the file read in a thread."""
        if self._place is None:
            return self.overview()
        report = report_of(self._engine, has_memory=True)
        if self._is_due():
            if await asyncio.to_thread(self.look, counts_all=True):
                self._marked = report
            report = report_of(self._engine, has_memory=True)
        return self._drawn(report)

    def look(self, *, counts_all: bool = False) -> bool:
        """Read the store, and return whether that was possible. `counts_all` counts every row, which may take long."""
        began_s, asked_count = self._clock.elapsed_s(), self._asked_count
        try:
            self._found, self._fault = self._store.overview(self._clock.now_us(), counts_all=counts_all), None
        except StoreError as exc:
            self._fault = str(exc)
        took_s = self._clock.elapsed_s() - began_s
        if asked_count == self._asked_count:
            self._next_look_s = began_s + max(READ_S, took_s * COST_FACTOR)
        return self._fault is None

    def _is_due(self) -> bool:
        return self._clock.elapsed_s() >= self._next_look_s

    def _drawn(self, report: InstanceReport) -> Overview:
        now, memory, shown = report.taken_at, report.memory, report.for_others()
        found, counts, capped = self._found or StoreOverview(_nothing(now), NO_COUNTS)
        memory_counts = Counter(counts)
        if memory is None:  # too many to be told one by one
            ended = []
            memory_counts[TaskStatus.PENDING] += shown.memory_only_waiting
            memory_counts[TaskStatus.RUNNING] += shown.memory_only_running
        else:
            ended = [_as_failure(row, task_name) for task_name, row in memory.attempts]
            shown = replace(shown, unwritten_count=0)
            _add_memory(memory_counts, report, self._marked)
        together = {status: max(0, number) for status, number in memory_counts.items()}
        others = tuple(row for row in found.instances if row.instance_id != report.instance_id)
        found = replace(_with_ended(found, ended, now), instances=(self._identity._replace(updated_at=now), *others))
        overview = self._observer.overview(found, together, shown, capped)
        if self._fault is None:
            return overview
        problem = Problem(severity="error", text=self._fault, advice="shown is what memory knows")
        return replace(overview, problems=(problem, *overview.problems))


def _add_memory(counts: Counter[TaskStatus], report: InstanceReport, marked: InstanceReport | None) -> None:
    """Bring the counts of the store up to date with memory. They are as old as the marked report.

    Tasks that were in memory then are subtracted under their stored status, and tasks of memory now are added. Changes
    by other instances come with the next look at the store.
    """
    now = {} if report.memory is None else report.memory.tasks
    then = {} if marked is None or marked.memory is None else marked.memory.tasks
    for task_id, before in then.items():
        if before.stored is not None:
            counts[TaskStatus(before.stored)] -= 1
        if before.status.is_terminal and now.get(task_id, before).status.is_terminal:  # nobody has retried it
            counts[before.status] += 1
    for task_id, task in now.items():
        if not task.status.is_terminal:
            counts[task.status] += 1
        if task_id not in then and marked is not None and task.stored is not None and task.sent_at < marked.taken_at:
            counts[TaskStatus.PENDING] -= 1  # it was a free row then, and was claimed since
    for status in TERMINAL:  # all that have ended since, whether they are in memory still or not
        counts[status] += report.tally.get(status.value, 0) - (0 if marked is None else marked.tally.get(status, 0))


def _as_failure(row: AttemptRow, task_name: str) -> Failure:
    code, message = row.error_code or "", row.error_message
    return Failure(
        row.task_id, task_name, row.attempt, row.outcome, code, message, row.finished_at, bool(row.will_retry)
    )


def _with_ended(found: Statistics, ended: Sequence[Failure], now: int) -> Statistics:
    """Return the statistics with the attempts that are not in the store yet."""
    failed = [each for each in ended if each.outcome in (AttemptOutcome.FAILED, AttemptOutcome.WORKER_FAILURE)]

    def more(pace: Pace) -> Pace:
        new = sum(each.finished_at >= pace.since for each in ended)
        new_failed = sum(each.finished_at >= pace.since for each in failed)
        return Pace(pace.since, pace.ended_count + new, pace.failed_count + new_failed)

    newest = sorted([*failed, *found.failures], key=lambda each: each.finished_at, reverse=True)
    return replace(
        found, taken_at=now, minute=more(found.minute), hour=more(found.hour), failures=tuple(newest[:MAX_LINES])
    )


def _nothing(now: int) -> Statistics:
    minute, hour = Pace(now - MINUTE_US, 0, 0), Pace(now - HOUR_US, 0, 0)
    return Statistics(taken_at=now, beats={}, owned={}, minute=minute, hour=hour, size=FileSize(0, 0, 0))
