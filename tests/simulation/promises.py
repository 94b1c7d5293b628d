"""What a call that came back has promised: of a pause, a flush, a join, and of a wait for a task."""

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from taskmanager.model.record import TaskRow
from taskmanager.model.states import TERMINAL, BuiltInTaskCode, TaskStatus
from tests.simulation.jobs import UNSAFE, queue_of

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.runs import Run
    from tests.simulation.world import World

LOOKED_US = 1_500_000
"""By then every instance with nothing in its way has heard of a pause."""


class Pause(NamedTuple):
    """One that came back. `begun` are the attempts that had their slot by then."""

    process: "Process"
    since_us: int
    begun: frozenset[tuple[str, int]]


class Pauses:
    """The pauses of queues that nobody has asked to end."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._pauses: defaultdict[str, list[Pause]] = defaultdict(list)
        self._resuming: defaultdict[str, list[Process]] = defaultdict(list)
        self._resumed: defaultdict[str, int] = defaultdict(int)

    def lose(self) -> None:
        """The file was deleted, and what stood in it; who is up writes it anew, for all it knows."""
        self._pauses.clear()

    async def pause(self, process: "Process", queue: str) -> None:
        """A call of the application."""
        resumed, lost = self._resumed[queue], self._world.loss_count
        was_current = process.view.is_current
        await process.manager.pause(queue)
        is_being_resumed = any(each.is_alive for each in self._resuming[queue])
        if resumed != self._resumed[queue] or is_being_resumed:
            return
        if not (was_current and process.view.is_current) or lost != self._world.loss_count:
            return  # it was written to a file that is gone, perhaps a moment before that was seen
        live = {} if process.engine is None else process.engine.live
        begun = frozenset((each.task_id, each.start_count) for each in live.values() if not each.is_waiting)
        self._pauses[queue].append(Pause(process, self._world.now_us, begun))

    async def resume(self, process: "Process", queue: str) -> None:
        """A call of the application: it takes effect at some moment until it comes back, and perhaps where it fails."""
        self._resumed[queue] += 1
        self._resuming[queue].append(process)
        self._pauses[queue].clear()
        try:
            await process.manager.resume(queue)
        finally:
            self._resuming[queue].remove(process)

    def judge(self, run: "Run") -> None:
        """User code starts."""
        process, queue = run.process, queue_of(run.name)
        for pause in self._pauses[queue]:
            if (run.task_id, run.attempt) not in pause.begun and self._knows(process, pause, self._started_us(run)):
                ago_s = (self._world.now_us - pause.since_us) / 1e6
                self._world.fault(
                    f"{run.name} {run.task_id} attempt {run.attempt} starts in {process}, {ago_s:.3f} s after "
                    f"{pause.process} has paused its queue {queue}"
                )

    def _started_us(self, run: "Run") -> int:
        """When it was started in the file: a child may be long in coming up for it."""
        checks, row = self._world.checks, self._world.checks.rows.get(run.task_id)
        place = None if row is None else (row.status, row.start_count, row.claimed_by_worker_id)
        is_its = place == (TaskStatus.RUNNING, run.attempt, run.instance_id)
        return checks.changed_us.get(run.task_id, 0) if is_its else self._world.now_us

    def _knows(self, process: "Process", pause: Pause, started_us: int) -> bool:
        if process is pause.process or process.began_us > pause.since_us:
            return True
        is_told = started_us - pause.since_us > LOOKED_US
        return is_told and process.is_undisturbed_since(pause.since_us)


async def flush(process: "Process") -> None:
    """Everything that was accepted or has ended by then is committed when it comes back. What a stop before could not
    write, and said so, is known to nobody since.
    """
    checks = process.world.checks
    accepted = process.held_ids
    handles = {task_id: each for task_id, each in process.handles.items() if task_id not in process.unwritten}
    ended = {task_id: handle.status for task_id, handle in handles.items() if handle.status in TERMINAL}
    await process.manager.flush()
    if process.world.loss_count:
        return  # it may have been committed to the file that is gone
    for task_id in {*accepted, *ended} - checks.purged:
        row = checks.rows.get(task_id)
        is_saved = row is not None and (row.status in TERMINAL or task_id not in ended or task_id in checks.may_revive)
        if not is_saved and not (row is not None and _is_taken_over(process, row, ended[task_id])):
            process.world.fault(f"{task_id} was there before a flush of {process}, and is {row} after it")


async def follow(process: "Process", task_id: str) -> None:
    """The end that is told of a task which another process has run is the one that stands in the store."""
    checks, handle = process.world.checks, process.manager.handle(task_id)
    seen = process.world.loss_count, checks.revived[task_id], process.began_us
    result = await handle.result()
    row, is_ended = checks.rows.get(task_id), handle.status in TERMINAL
    process.world.log(process, "is told of", task_id, handle.status, result)
    if row is None or not is_ended or row.claimed_by_worker_id in process.instance_ids:
        return
    if result.is_err() and result.err_value.error_code == BuiltInTaskCode.MANAGER_STOPPED:
        return  # of a call of its key that its process could not write, and of which it knows no other task
    own = process.handles.get(task_id)
    is_own = process.was_degraded and own is not None and own.status == handle.status
    if is_own or _is_taken_over(process, row, handle.status):
        return  # it ended here while nothing could be written, and another one that could has taken it over
    is_same = row.status == handle.status and (row.status == TaskStatus.COMPLETED or not result.is_ok())
    if not is_same and seen == (process.world.loss_count, checks.revived[task_id], process.began_us):
        process.world.fault(f"{process} is told that {task_id} is {handle.status}, {result}; it is {row}")


async def join(process: "Process", tags: dict[str, str] | None) -> None:
    """Everything that this start has accepted by then (with these tags) has ended when it comes back."""
    checks, began_us, lost = process.world.checks, process.began_us, process.world.loss_count
    group = None if tags is None else tags["group"]
    mine = [
        task_id
        for task_id, (since_us, its_group) in process.accepted.items()
        if since_us == began_us and group in (None, its_group)
    ]
    await process.manager.join(tags=tags, timeout=5.0)
    if process.began_us != began_us or process.world.loss_count != lost:
        return
    for task_id in {*mine} - checks.may_revive - checks.purged:
        row, told = checks.rows.get(task_id), process.handles[task_id].status
        if row is None and process.world.loss_count:
            continue  # it went with a file
        is_told = told in TERMINAL and (row is None or process.was_degraded)  # before it could be written
        if not is_told and (row is None or row.status not in TERMINAL):
            process.world.fault(f"{task_id} was there before a join of {process}, is {told} after it, and {row}")


async def wait_for_room(process: "Process", queue: str) -> None:
    """There is room when it comes back, for as long as nobody else runs."""
    await process.manager.wait_for_room(queue)
    if process.manager._intake.is_full(queue):
        process.world.fault(f"{process} has waited for room in {queue}, and it is full")


def _is_taken_over(process: "Process", row: TaskRow, told: TaskStatus) -> bool:
    """Whether another instance has taken the task over while this one could not write. A cancel follows the row, to
    whoever claims it next. What is safe to repeat may have run here without its start in the file, and runs again
    there: the end that was told here is refused, like any write of who has lost its claim. So is that of a run which
    others have judged to be a crash, because its process was cut off for so long.
    """
    if not process.was_degraded:
        return False
    attempts = [each for each in process.world.checks.attempts.values() if each.task_id == row.task_id]
    if any(each.outcome == "WORKER_FAILURE" and each.worker_id in process.instance_ids for each in attempts):
        return True
    if told is TaskStatus.CANCELLED:
        return row.cancel_requested_at is not None
    owner = row.claimed_by_worker_id
    return owner is not None and owner not in process.instance_ids and row.task_name not in UNSAFE
