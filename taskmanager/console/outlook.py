"""Tells what happens next with a task, and when, from its row and from what is known of its owner and its queue."""

from collections.abc import Iterable, Sequence
from shlex import quote as shell_word
from typing import Final, NamedTuple

from taskmanager.console.figures import MAX_WHOLE_ID
from taskmanager.duties.recovery import orphan_of
from taskmanager.engine.words.definition import timeout_of
from taskmanager.model.clock import SECOND_US
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow, UnreadableRow
from taskmanager.model.report import Suspect
from taskmanager.model.states import TaskStatus
from taskmanager.model.steps import StepRow
from taskmanager.model.workflows import HELD, WorkflowRow
from taskmanager.rules.recovery import judge_orphan
from taskmanager.store.place import Place
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.statistics import OwnWorkflow, said_by

_SHORT_ID: Final = 8


class Surroundings(NamedTuple):
    """What the outlook of a task needs beside its row.

    `owner` is the instance that has the task, and `suspect` is what runs alone there.
    """

    now_us: int
    owner: InstanceRow | None = None
    is_owner_dead: bool = False
    living_count: int = 0
    is_queue_run: bool = True
    is_function_known: bool = True
    is_queue_paused: bool = False
    workflow_id: str | None = None
    suspect: Suspect | None = None


def living(known: Iterable[InstanceRow], place: Place | None) -> list[InstanceRow]:
    """Return the instances that are not dead. A manager in memory has no place, and lives."""
    return [each for each in known if place is None or not place.is_dead(each.instance_id)]


def surroundings(
    row: TaskRow,
    known: Sequence[InstanceRow],
    place: Place | None,
    now_us: int,
    workflow: OwnWorkflow | None = None,
    *,
    is_paused: bool,
) -> Surroundings:
    """Return the surroundings of a task, from the rows of the instances and who of them lives.

    `place` is None for a manager in memory, which is the only instance there.
    """
    owner_id = row.claimed_by_worker_id
    alive = [said_by(each) for each in living(known, place)]
    runners = [each.task_names for each in alive if each.runs(row.queue_name)]
    owner = next((each for each in known if each.instance_id == owner_id), None)
    return Surroundings(
        now_us=now_us,
        owner=owner,
        is_owner_dead=place is not None and owner_id is not None and place.is_dead(owner_id),
        living_count=len(alive),
        is_queue_run=bool(runners),
        is_function_known=any(names is None or row.task_name in names for names in runners),
        is_queue_paused=is_paused,
        workflow_id=None if workflow is None else workflow.workflow_id,
        suspect=None if owner is None else said_by(owner).suspect,
    )


class Outlook(NamedTuple):
    """A sentence about the next step, and the instant of that step, if it is known."""

    text: str
    at: int | None = None


def outlook(row: TaskRow, around: Surroundings, steps: Sequence[StepRow] = ()) -> Outlook:
    """Return what will become of the task if nobody does anything about it. `steps` are the records that it has."""
    status = TaskStatus(row.status)
    if status.is_terminal:
        return _ended(row, status)
    if row.claimed_by_worker_id == HELD:
        name = _told(around.workflow_id or "ID")
        return Outlook(f"its workflow is paused; `taskmanager workflow resume {name}` lets it go on")
    if row.claimed_by_worker_id is not None and around.is_owner_dead:
        return _orphaned(row, around)
    if isinstance(row, UnreadableRow) and status is not TaskStatus.RUNNING:
        return Outlook("it is FAILED when its turn comes, unless what cannot be read in its row is mended before")
    if row.cancel_requested_at is not None:
        return Outlook("a cancel was requested; its instance ends it")
    return _running(row, around) if status is TaskStatus.RUNNING else _waiting(row, around, steps)


def _told(workflow_id: str) -> str:
    """Return as much of an id as a command needs: all of it if somebody has chosen it, else its end."""
    return shell_word(workflow_id if len(workflow_id) <= MAX_WHOLE_ID else workflow_id[-_SHORT_ID:])


def workflow_outlook(row: WorkflowRow, *, is_running: bool) -> str:
    """Return what will become of a workflow if nobody does anything. `is_running`: an instance runs somewhere."""
    name = _told(row.id)
    if row.status == "PAUSED":
        return f"nothing of it starts before `taskmanager workflow resume {name}`"
    if row.status in ("FAILED", "CANCELLED"):
        return f"nothing; `taskmanager workflow retry {name}` runs again what has failed, and goes on from there"
    if row.status == "COMPLETED":
        return "nothing"
    if row.status == "PENDING":
        return "it begins when the node is ready that it stands in"
    what = (
        "it ends when what still runs has ended; the rest was cancelled" if row.cancelled_at else "it goes on by itself"
    )
    return what if is_running else f"{what}, when the application runs; no instance does now"


def _ended(row: TaskRow, status: TaskStatus) -> Outlook:
    part = row.task_id[-_SHORT_ID:]
    if isinstance(row, UnreadableRow):
        return Outlook("nothing; what cannot be read in its row must be mended before it can run again")
    if row.args is None or row.kwargs is None:
        return Outlook("nothing; its arguments could not be stored, so it cannot be run again")
    if status is TaskStatus.COMPLETED:
        return Outlook(f"nothing; `taskmanager retry --force {part}` runs it again")
    return Outlook(f"nothing; `taskmanager retry {part}` runs it again")


def _orphaned(row: TaskRow, around: Surroundings) -> Outlook:
    verdict = judge_orphan(orphan_of(row), around.now_us, random_01=0.5)
    what = "lets it wait again" if verdict.status is TaskStatus.PENDING else f"makes it {verdict.status}"
    return Outlook(f"its instance is dead; the next start, or `taskmanager recover`, {what} ({verdict.reason})")


def _running(row: TaskRow, around: Surroundings) -> Outlook:
    where = _place(around.owner)
    timeout_s = timeout_of(row.task_options)
    if timeout_s is None or row.started_at is None:
        return Outlook(f"it runs {where}")
    return Outlook(f"it runs {where}, and times out", row.started_at + round(timeout_s * SECOND_US))


def _sleeping(step: StepRow, paused: str) -> Outlook:
    """Return how a task goes on that sleeps for this record."""
    if step.waits_for is None:
        return Outlook(f"step {escaped(step.name)} is tried again{paused}", step.due_at)
    if not step.waits_for:
        return Outlook(f"it sleeps, and goes on{paused}", step.due_at)
    at_last = "" if step.due_at is None else ", and times out"
    return Outlook(f"it waits for the event {escaped(step.waits_for)}{paused}{at_last}", step.due_at)


def _waiting(row: TaskRow, around: Surroundings, steps: Sequence[StepRow]) -> Outlook:
    paused = f"; queue {escaped(row.queue_name)} is paused" if around.is_queue_paused else ""
    if row.good_until is not None and row.good_until <= max(around.now_us, row.enqueued_at):
        return Outlook("it expires, because it cannot start in time", row.good_until)
    if row.enqueued_at > around.now_us:
        if (asleep := next((each for each in steps if each.wakes_at is not None), None)) is not None:
            return _sleeping(asleep, paused)
        is_retry = row.next_retry_at == row.enqueued_at
        what = f"retry {row.retry_count} of {row.max_retries} is due" if is_retry else "it is due"
        return Outlook(f"{what}{paused}", row.enqueued_at)
    if row.claimed_by_worker_id is not None:
        if around.suspect is not None and _waits_beside(row, around.suspect):
            task = around.suspect.task
            what = f"until task {escaped(task.task_name)} ({escaped(task.task_id[-_SHORT_ID:])}) has ended"
            return Outlook(f"it waits {what}, which runs alone because its process died before{paused}")
        return Outlook(f"it waits for a slot {_place(around.owner)}{paused}")
    if not around.living_count:
        return Outlook(f"it starts when the application does{paused}")
    if not around.is_queue_run:
        return Outlook(f"it waits for a worker: no running instance runs queue {escaped(row.queue_name)}{paused}")
    if not around.is_function_known:
        return Outlook(f"it waits for a release that has its function: no running instance knows it{paused}")
    return Outlook(f"it starts when an instance that knows the function has room{paused}")


def _waits_beside(row: TaskRow, suspect: Suspect) -> bool:
    """Return whether the task may not start while the suspect runs."""
    is_held = row.crash_count > 0 or not orphan_of(row).requeue_on_interrupt
    return is_held and row.task_id != suspect.task.task_id


def _place(owner: InstanceRow | None) -> str:
    if owner is None:
        return "in an instance that is not registered"
    return f"in process {owner.pid} on {escaped(owner.hostname)}"
