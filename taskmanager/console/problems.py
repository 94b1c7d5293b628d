"""What a person should know before anything else, and what to do about it. Decided from what is seen, nothing more."""

from collections.abc import Iterator, Mapping
from shlex import quote as shell_word
from typing import Final

from taskmanager.console.cause import kind
from taskmanager.console.durations import short
from taskmanager.console.figures import plural, size
from taskmanager.console.picture import Health, InstanceSight, Picture, Problem
from taskmanager.model.clock import SECOND_US
from taskmanager.store.statistics import OWNED_CAP

LOG_WARNING_BYTES: Final = 256 * 1024 * 1024
DISK_WARNING_BYTES: Final = 100 * 1000 * 1000
FAILING_SHARE: Final = 0.5
FAILING_LEAST: Final = 10


NO_TASKS: Final[Mapping[str, int]] = {}


def named(instance: InstanceSight) -> str:
    """`web (pid 812)`."""
    return f"{instance.instance_name or instance.hostname} (pid {instance.pid})"


def problems_of(
    picture: Picture, owned: Mapping[str, int], unknown: Mapping[str, int] = NO_TASKS
) -> tuple[Problem, ...]:
    """The worst first: what is at risk, then what stands still, then what may become a problem."""
    return (
        *_degraded(picture),
        *_dead(picture),
        *_orphans(picture, owned),
        *_frozen(picture),
        *_failing_duties(picture),
        *_unsaved(picture),
        *_stuck(picture),
        *_nobody_works(picture),
        *_unknown(unknown),
        *_failing(picture),
        *_paused(picture),
        *_storage(picture),
    )


def _degraded(picture: Picture) -> Iterator[Problem]:
    for each in picture.instances:
        if each.degraded_since is not None:
            duration = short(picture.taken_at - each.degraded_since)
            text = f"{named(each)} has been unable to write the file for {duration}"
            unsaved = f", {plural(each.unsaved_count, 'record')} unsaved" if each.unsaved_count else ""
            yield Problem(severity="error", text=text + unsaved, advice="why: taskmanager doctor")


def _dead(picture: Picture) -> Iterator[Problem]:
    for each in picture.with_health(Health.DEAD):
        if each.held_count:
            held = plural(each.held_count, "unfinished task", is_capped=each.held_count >= OWNED_CAP)
            text = f"{named(each)} died {short(round(each.silent_s * SECOND_US))} ago and holds {held}"
            yield Problem(severity="error", text=text, advice=_take_over(picture))


def _take_over(picture: Picture) -> str:
    if picture.with_health(Health.ALIVE):
        return "a living instance takes over at its next check; at once: taskmanager recover"
    return "the next start takes over; without one: taskmanager recover"


def _orphans(picture: Picture, owned: Mapping[str, int]) -> Iterator[Problem]:
    count = sum(owned[owner] for owner in owned.keys() - {each.instance_id for each in picture.instances})
    if count:
        held = plural(count, "unfinished task", is_capped=count >= OWNED_CAP)
        verb = "belongs" if count == 1 else "belong"
        text = f"{held} {verb} to instances that are gone"
        yield Problem(severity="error", text=text, advice=_take_over(picture))


def _frozen(picture: Picture) -> Iterator[Problem]:
    for each in picture.with_health(Health.FROZEN):
        silent = short(round(each.silent_s * SECOND_US))
        yield Problem(
            severity="error",
            text=f"{named(each)} is frozen: its process exists, but has been silent for {silent}",
            advice="stopped, swapping, or unable to write the file? see taskmanager doctor",
        )


def _unsaved(picture: Picture) -> Iterator[Problem]:
    for each in picture.instances:
        if each.unsaved_since is not None and each.degraded_since is None:
            age = short(picture.taken_at - each.unsaved_since)
            text = f"the oldest unsaved change of {named(each)} has waited for {age}"
            yield Problem(
                severity="warning",
                text=text,
                advice="its event loop is blocked, or the disk is slow: taskmanager doctor",
            )


def _failing_duties(picture: Picture) -> Iterator[Problem]:
    for each in picture.instances:
        for name in each.failing_duties:
            text = f"the {name} of {named(each)} keeps failing"
            yield Problem(severity="error", text=text, advice="why: its log, or taskmanager status --json")


def _stuck(picture: Picture) -> Iterator[Problem]:
    for each in picture.instances:
        if each.stuck_count:
            verb, whose = ("executes", "its") if each.stuck_count == 1 else ("execute", "their")
            text = f"{plural(each.stuck_count, 'task')} of {named(each)} still {verb} after {whose} time limit"
            yield Problem(
                severity="warning",
                text=text,
                advice="which: taskmanager list --code TASK_TIMEOUT; a thread ends only by itself",
            )


def _nobody_works(picture: Picture) -> Iterator[Problem]:
    waiting = picture.waiting_count
    is_anybody_there = picture.with_health(Health.ALIVE) or picture.with_health(Health.FROZEN)
    if waiting and not is_anybody_there:
        verb = "waits" if waiting == 1 else "wait"
        yield Problem(
            severity="warning",
            text=f"{plural(waiting, 'task')} {verb}, and no instance is running",
            advice="start your application, or: taskmanager run MODULE:MANAGER",
        )


def _unknown(unknown: Mapping[str, int]) -> Iterator[Problem]:
    """`unknown`: how many tasks wait for each function that no living instance has."""
    if unknown:
        count, names = sum(unknown.values()), sorted(unknown, key=lambda name: (-unknown[name], name))
        verb = "waits" if count == 1 else "wait"
        more = f" and {plural(len(names) - 1, 'other function')}" if len(names) > 1 else ""
        yield Problem(
            severity="warning",
            text=f"{plural(count, 'task')} {verb} for {names[0]}{more}, which no running instance knows",
            advice=f"import the module that defines it; which: taskmanager list --task {shell_word(names[0])}",
        )


def _failing(picture: Picture) -> Iterator[Problem]:
    hour = picture.hour
    if hour.failed_count >= FAILING_LEAST and hour.failed_count > FAILING_SHARE * hour.ended_count:
        yield Problem(
            severity="warning",
            text=f"{hour.failed_count:,} of {plural(hour.ended_count, 'attempt')} of the last hour failed",
            advice=_most_failing(picture),
        )


def _most_failing(picture: Picture) -> str:
    if not picture.most_failing:
        return "taskmanager watch shows the newest"
    worst = picture.most_failing[0]
    why = kind(worst.last_error_code, worst.last_error_message)
    return f"mostly {why}: taskmanager list --task {shell_word(worst.task_name)}"


def _paused(picture: Picture) -> Iterator[Problem]:
    for each in picture.queues:
        if each.is_paused and each.waiting_count:
            waiting = plural(each.waiting_count, "task", is_capped=each.is_waiting_capped)
            verb = "waits" if each.waiting_count == 1 else "wait"
            yield Problem(
                severity="warning",
                text=f"queue {each.queue_name} is paused, and {waiting} {verb} in it",
                advice=f"to go on: taskmanager resume {shell_word(each.queue_name)}",
            )


def _storage(picture: Picture) -> Iterator[Problem]:
    storage = picture.storage
    if storage.log_bytes >= LOG_WARNING_BYTES:
        text = f"the log beside the database (-wal) has grown to {size(storage.log_bytes)}"
        yield Problem(
            severity="warning",
            text=text,
            advice="some program keeps a read transaction open; which one: taskmanager doctor",
        )
    if storage.disk_free_bytes is not None and storage.disk_free_bytes < DISK_WARNING_BYTES:
        text = f"only {size(storage.disk_free_bytes)} left on the disk"
        yield Problem(severity="error", text=text, advice="free some space, or purge: taskmanager purge --help")
