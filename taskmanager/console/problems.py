"""Decides what a person should know before anything else, and what to do about it, from what is seen alone."""

from collections.abc import Iterator, Mapping
from shlex import quote as shell_word
from typing import Final

from taskmanager.console.cause import kind
from taskmanager.console.figures import plural, short, size
from taskmanager.console.overview import Health, InstanceView, Overview, Problem
from taskmanager.model.clock import SECOND_US
from taskmanager.store.statistics import OWNED_CAP

LOG_WARNING_BYTES: Final = 256 * 1024 * 1024
DISK_WARNING_BYTES: Final = 100 * 1000 * 1000
FAILING_SHARE: Final = 0.5
FAILING_LEAST: Final = 10
NO_TASKS: Final[Mapping[str, int]] = {}


def problems_of(
    overview: Overview, owned: Mapping[str, int], unknown: Mapping[str, int] = NO_TASKS
) -> tuple[Problem, ...]:
    """Return the worst first: what is at risk, then what stands still, then what may become a problem.

    `owned` counts the unfinished tasks of each owner, `unknown` those that wait for each function which no living
    instance has.
    """
    alive_or_frozen = overview.with_health(Health.ALIVE, Health.FROZEN)
    return (
        *(each for view in overview.instances for each in _degraded(view, overview.taken_at)),
        *(each for view in overview.with_health(Health.DEAD) for each in _dead(view, overview)),
        *_orphans(overview, owned),
        *(_frozen(view) for view in overview.with_health(Health.FROZEN)),
        *(each for view in overview.instances for each in _failing_duties(view)),
        *(each for view in overview.instances for each in _unsaved(view, overview.taken_at)),
        *(each for view in overview.instances for each in _abandoned(view)),
        *(() if alive_or_frozen else _nobody_works(overview.waiting_count)),
        *_unknown(unknown),
        *_failing(overview),
        *_paused(overview),
        *_storage(overview),
    )


def _error(text: str, advice: str) -> Problem:
    return Problem(severity="error", text=text, advice=advice)


def _warning(text: str, advice: str) -> Problem:
    return Problem(severity="warning", text=text, advice=advice)


def named(view: InstanceView) -> str:
    """`web (pid 812)`."""
    return f"{view.name} (pid {view.row.pid})"


def _held(count: int) -> str:
    return plural(count, "unfinished task", is_capped=count >= OWNED_CAP)


def _waits(count: int) -> str:
    return "waits" if count == 1 else "wait"


def _degraded(view: InstanceView, now: int) -> Iterator[Problem]:
    since, count = view.report.degraded_since, view.report.unsaved_count
    if since is not None:
        unsaved = f", {plural(count, 'record')} unsaved" if count else ""
        text = f"{named(view)} has been unable to write the file for {short(now - since)}{unsaved}"
        yield _error(text, "why: taskmanager doctor")


def _silent(view: InstanceView) -> str:
    return short(round(view.silent_s * SECOND_US))


def _dead(view: InstanceView, overview: Overview) -> Iterator[Problem]:
    if view.held_count:
        text = f"{named(view)} died {_silent(view)} ago and holds {_held(view.held_count)}"
        yield _error(text, _who_takes_over(overview))


def _who_takes_over(overview: Overview) -> str:
    if overview.with_health(Health.ALIVE):
        return "a living instance takes over at its next check; at once: taskmanager recover"
    return "the next start takes over; without one: taskmanager recover"


def _orphans(overview: Overview, owned: Mapping[str, int]) -> Iterator[Problem]:
    known = {each.row.instance_id for each in overview.instances}
    count = sum(number for owner, number in owned.items() if owner not in known)
    if count:
        verb = "belongs" if count == 1 else "belong"
        yield _error(f"{_held(count)} {verb} to instances that are gone", _who_takes_over(overview))


def _frozen(view: InstanceView) -> Problem:
    return _error(
        f"{named(view)} is frozen: its process exists, but has been silent for {_silent(view)}",
        "stopped, swapping, or unable to write the file? see taskmanager doctor",
    )


def _failing_duties(view: InstanceView) -> Iterator[Problem]:
    for name in view.report.failing_duties:
        yield _error(f"the {name} of {named(view)} keeps failing", "why: its log, or taskmanager status --json")


def _unsaved(view: InstanceView, now: int) -> Iterator[Problem]:
    since = view.report.unsaved_since
    if since is not None and view.report.degraded_since is None:
        text = f"the oldest unsaved change of {named(view)} has waited for {short(now - since)}"
        yield _warning(text, "its event loop is blocked, or the disk is slow: taskmanager doctor")


def _abandoned(view: InstanceView) -> Iterator[Problem]:
    if count := view.report.abandoned_count:
        what = "executes after its" if count == 1 else "execute after their"
        text = f"{plural(count, 'task')} of {named(view)} still {what} time limit"
        yield _warning(text, "which: taskmanager list --code TASK_TIMEOUT; a thread ends only by itself")


def _nobody_works(waiting: int) -> Iterator[Problem]:
    if waiting:
        text = f"{plural(waiting, 'task')} {_waits(waiting)}, and no instance is running"
        yield _warning(text, "start your application, or: taskmanager run MODULE:MANAGER")


def _unknown(unknown: Mapping[str, int]) -> Iterator[Problem]:
    if unknown:
        count, names = sum(unknown.values()), sorted(unknown, key=lambda name: (-unknown[name], name))
        more = f" and {plural(len(names) - 1, 'other function')}" if len(names) > 1 else ""
        what = f"{plural(count, 'task')} {_waits(count)} for {names[0]}{more}"
        advice = f"import the module that defines it; which: taskmanager list --task {shell_word(names[0])}"
        yield _warning(f"{what}, which no running instance knows", advice)


def _failing(overview: Overview) -> Iterator[Problem]:
    failed, ended = overview.hour.failed_count, overview.hour.ended_count
    if failed < FAILING_LEAST or failed <= FAILING_SHARE * ended:
        return
    advice = "taskmanager watch shows the newest"
    if overview.most_failing:
        worst = overview.most_failing[0]
        why = kind(worst.last_error_code, worst.last_error_message)
        advice = f"mostly {why}: taskmanager list --task {shell_word(worst.task_name)}"
    yield _warning(f"{failed:,} of {plural(ended, 'attempt')} of the last hour failed", advice)


def _paused(overview: Overview) -> Iterator[Problem]:
    for each in overview.queues:
        if each.is_paused and each.waiting_count:
            waiting = plural(each.waiting_count, "task", is_capped=each.is_waiting_capped)
            text = f"queue {each.queue_name} is paused, and {waiting} {_waits(each.waiting_count)} in it"
            yield _warning(text, f"to go on: taskmanager resume {shell_word(each.queue_name)}")


def _storage(overview: Overview) -> Iterator[Problem]:
    log, free = overview.storage.log_bytes, overview.storage.disk_free_bytes
    if log >= LOG_WARNING_BYTES:
        text = f"the log beside the database (-wal) has grown to {size(log)}"
        yield _warning(text, "some program keeps a read transaction open; which one: taskmanager doctor")
    if free is not None and free < DISK_WARNING_BYTES:
        yield _error(f"only {size(free)} left on the disk", "free some space, or purge: taskmanager purge --help")
