"""Finds the problems in an overview, and says what to do about each."""

from collections.abc import Iterator, Mapping
from shlex import quote as shell_word
from typing import Final
from urllib.parse import quote, urlencode

from taskmanager.console.figures import kind, short, size, workflow_label
from taskmanager.console.overview import Health, InstanceView, Mend, Overview, Problem
from taskmanager.model.clock import SECOND_US
from taskmanager.model.report import MAX_HELD
from taskmanager.model.wording import counted
from taskmanager.store.statistics import OWNED_CAP

LOG_WARNING_BYTES: Final = 256 * 1024 * 1024
DISK_WARNING_BYTES: Final = 100 * 1000 * 1000
FAILING_SHARE: Final = 0.5
FAILING_LEAST: Final = 10
ALONE_US: Final = 10 * SECOND_US
"""A task that runs alone is worth a word when it has run for so long; most have ended by then."""
NO_TASKS: Final[Mapping[str, int]] = {}


def problems_of(
    overview: Overview,
    owned: Mapping[str, int],
    unknown: Mapping[str, int] = NO_TASKS,
    unrun: Mapping[str, int] = NO_TASKS,
) -> tuple[Problem, ...]:
    """Return the problems, worst first: what is at risk, then what stands still, then what may become a problem.

    `owned` counts the unfinished tasks of each owner. `unknown` counts the tasks that wait for each function that no
    living instance knows, `unrun` those in each queue that no living instance runs.
    """
    standing_still = (*_held_up(overview), *_standing_still(overview, unknown, unrun))
    return (*_at_risk(overview, owned), *standing_still, *_to_come(overview))


def _error(text: str, advice: str, *mends: Mend) -> Problem:
    return Problem(severity="error", text=text, advice=advice, mends=mends)


def _warning(text: str, advice: str, *mends: Mend) -> Problem:
    return Problem(severity="warning", text=text, advice=advice, mends=mends)


_RECOVER: Final = Mend("Recover now", "instances/recover", {})
_INSTANCES: Final = Mend("Instances", "instances")


def _tasks_like(label: str, **filters: str) -> Mend:
    """Lead to the tasks with these properties."""
    return Mend(label, f"tasks?{urlencode(filters)}")


def _named(view: InstanceView) -> str:
    """`web (pid 812)`."""
    return f"{view.name} (pid {view.row.pid})"


def _tasks(count: int, verb: str, noun: str = "task", *, is_capped: bool = False) -> str:
    """`1 task waits`, `3 tasks wait`."""
    return f"{counted(count, noun, is_capped=is_capped)} {verb}{'s' if count == 1 else ''}"


def _at_risk(overview: Overview, owned: Mapping[str, int]) -> Iterator[Problem]:
    take_over = "the next start takes over; without one: taskmanager recover"
    if overview.with_health(Health.ALIVE):
        take_over = "a living instance takes over at its next check; at once: taskmanager recover"
    for each in overview.instances:
        since, count = each.report.degraded_since, each.report.unsaved_count
        if since is not None:
            unsaved = f", {counted(count, 'record')} unsaved" if count else ""
            text = f"{_named(each)} has been unable to write the file for {short(overview.taken_at - since)}{unsaved}"
            yield _error(text, "why: taskmanager doctor", _INSTANCES)
    for each in overview.with_health(Health.DEAD):
        if each.held_count:
            held = counted(each.held_count, "unfinished task", is_capped=each.held_count >= OWNED_CAP)
            yield _error(f"{_named(each)} died {_silent(each)} ago and holds {held}", take_over, _RECOVER)
    known = {each.row.instance_id for each in overview.instances}
    count = sum(number for owner, number in owned.items() if owner not in known)
    if count:
        held = _tasks(count, "belong", "unfinished task", is_capped=count >= OWNED_CAP)
        yield _error(f"{held} to instances that are gone", take_over, _RECOVER)
    for each in overview.with_health(Health.FROZEN):
        text = f"{_named(each)} is frozen: its process exists, but has been silent for {_silent(each)}"
        yield _error(text, "stopped, swapping, or unable to write the file? see taskmanager doctor", _INSTANCES)
    for each in overview.instances:
        for name in each.report.failing_duties:
            text = f"the {name} of {_named(each)} keeps failing"
            yield _error(text, "why: its log, or taskmanager status --json", _INSTANCES)


def _silent(view: InstanceView) -> str:
    return short(round(view.silent_s * SECOND_US))


def _held_up(overview: Overview) -> Iterator[Problem]:
    """Tell of tasks that run alone because of a crash, and hold up others."""
    for each in overview.with_health(Health.ALIVE):
        suspect = each.report.suspect
        if suspect is None or not suspect.held_count or overview.taken_at - suspect.task.started_at <= ALONE_US:
            continue
        task, part = suspect.task, shell_word(suspect.task.task_id[-8:])
        waiting = _tasks(suspect.held_count, "wait", is_capped=suspect.held_count >= MAX_HELD)
        advice = f"look: taskmanager show {part}; to end it: taskmanager cancel {part}"
        if not task.is_persisted:
            advice = "it is in memory only: if it does not end, only its application can cancel it"
        mends = (Mend("Show it", f"tasks/{quote(task.task_id, safe='')}"),)
        text = f"{waiting} for {task.task_name} ({task.task_id[-8:]}), which runs alone after a crash"
        yield _warning(text, advice, *mends)


def _standing_still(overview: Overview, unknown: Mapping[str, int], unrun: Mapping[str, int]) -> Iterator[Problem]:
    for each in overview.instances:
        since = each.report.unsaved_since
        if since is not None and each.report.degraded_since is None:
            age = short(overview.taken_at - since)
            text = f"the oldest unsaved change of {_named(each)} has waited for {age}"
            yield _warning(text, "its event loop is blocked, or the disk is slow: taskmanager doctor", _INSTANCES)
    for each in overview.instances:
        if count := each.report.abandoned_count:
            what = "executes after its" if count == 1 else "execute after their"
            text = f"{counted(count, 'task')} of {_named(each)} still {what} time limit"
            advice = "which: taskmanager list --code TASK_TIMEOUT; a thread ends only by itself"
            yield _warning(text, advice, _tasks_like("Timed out tasks", error="TASK_TIMEOUT"))
    if overview.waiting_count and not overview.with_health(Health.ALIVE, Health.FROZEN):
        text = f"{_tasks(overview.waiting_count, 'wait')}, and no instance is running"
        yield _warning(text, "start your application, or: taskmanager run MODULE:MANAGER")
    if unrun:
        queues = sorted(unrun, key=lambda name: (-unrun[name], name))
        more = f" and {counted(len(queues) - 1, 'other queue')}" if len(queues) > 1 else ""
        text = f"{_tasks(sum(unrun.values()), 'wait')} in queue {queues[0]}{more}, which no running instance runs"
        advice = f"start a worker: taskmanager run MODULE:MANAGER --queue {shell_word(queues[0])}"
        yield _warning(text, advice, _tasks_like("Waiting tasks", status="PENDING", queue=queues[0]))
    if unknown:
        names = sorted(unknown, key=lambda name: (-unknown[name], name))
        more = f" and {counted(len(names) - 1, 'other function')}" if len(names) > 1 else ""
        text = f"{_tasks(sum(unknown.values()), 'wait')} for {names[0]}{more}, which no running instance knows"
        advice = f"import the module that defines it; which: taskmanager list --task {shell_word(names[0])}"
        yield _warning(text, advice, _tasks_like("Waiting tasks", status="PENDING", task=names[0]))


def _to_come(overview: Overview) -> Iterator[Problem]:
    failed, ended = overview.hour.failed_count, overview.hour.ended_count
    if failed >= FAILING_LEAST and failed > FAILING_SHARE * ended:
        advice = "taskmanager watch shows the newest"
        for worst in overview.most_failing[:1]:
            why = kind(worst.last_error_code, worst.last_error_message)
            advice = f"mostly {why}: taskmanager list --task {shell_word(worst.task_name)}"
        text = f"{failed:,} of {counted(ended, 'attempt')} of the last hour failed"
        yield _warning(text, advice, Mend("Failures", "failures"))
    for each in overview.queues:
        if each.is_paused and each.waiting_count:
            waiting = _tasks(each.waiting_count, "wait", is_capped=each.is_waiting_capped)
            text = f"queue {each.queue_name} is paused, and {waiting} in it"
            resume = Mend("Resume", "queues/resume", {"queue": each.queue_name})
            yield _warning(text, f"to go on: taskmanager resume {shell_word(each.queue_name)}", resume)
    paused = [each for each in overview.workflows if each.status == "PAUSED"]
    if paused:
        more = (
            f", and so {'is' if len(paused) == 2 else 'are'} {counted(len(paused) - 1, 'other')}" if paused[1:] else ""
        )
        advice = f"to go on: taskmanager workflow resume {shell_word(paused[0].workflow_id)}"
        mend = Mend("Resume", f"workflows/{quote(paused[0].workflow_id, safe='')}/resume", {})
        if more:
            mend = Mend("Paused workflows", "workflows?status=PAUSED")
        yield _warning(f"workflow {workflow_label(paused[0])}{more} {'are' if more else 'is'} paused", advice, mend)
    log, free = overview.storage.log_bytes, overview.storage.disk_free_bytes
    if log >= LOG_WARNING_BYTES:
        text = f"the log beside the database (-wal) has grown to {size(log)}"
        yield _warning(text, "some program keeps a read transaction open; which one: taskmanager doctor")
    if free is not None and free < DISK_WARNING_BYTES:
        yield _error(f"only {size(free)} left on the disk", "free some space, or purge: taskmanager purge --help")
