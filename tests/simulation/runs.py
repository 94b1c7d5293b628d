"""The execution log: which user code runs where, and the rules that no start of it may break."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskmanager.model.states import TaskStatus
from tests.simulation.jobs import NARROW_LIMIT, ONCE, UNSAFE, queue_of

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World


TOKENS_US = 100
"""A claim stamps what it starts with its token, which is ahead of the clock where one moment has several claims."""
SLOW_COMMIT_US = 10_000_000
"""How long before its commit a start may have been stamped."""


@dataclass(eq=False)
class Run:
    """One start of user code."""

    process: "Process"
    name: str
    task_id: str
    attempt: int
    instance_id: str | None
    life: int
    may_be_unrecorded: bool
    """It began while its process could not write, or a moment later."""
    is_waiting: bool = False
    """It awaits a handle, and its slot is lent."""

    @property
    def is_abandoned(self) -> bool:
        """Whether its time was over, and the thread that still works at it was left alone."""
        engine = self.process.engine
        abandoned = () if engine is None else engine.runner.abandoned
        return any((each.task_id, each.number) == (self.task_id, self.attempt) for each in abandoned)

    @property
    def lane(self) -> str:
        return next((lane for lane in ("thread", "process") if lane in self.name), "async")

    @property
    def is_shared(self) -> bool:
        """Its queue has one limit for the whole file."""
        return self.name.startswith("shared")


class Runs:
    """What runs now, and how often everything has started."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.now: list[Run] = []
        self.starts: Counter[tuple[str, int]] = Counter()
        self.begun: set[tuple[str, int, str | None]] = set()
        """The same with the instance: one may begin an attempt without its start in the file, another one with it."""
        self.lives: Counter[tuple[str, int]] = Counter()
        """Starts of one task in one of its lives: a retry asked for by a person begins another one."""
        self.crashed: set[tuple[str, int]] = set()
        """Attempts whose child died."""
        self.answered: set[tuple[str, int]] = set()
        """Attempts that middleware has answered for, perhaps before a child was up to run them."""
        self.total = 0
        self._starters: defaultdict[str, set[Process]] = defaultdict(set)
        self._by_the_lost_file: set[str] = set()

    def begin(self, process: "Process", name: str, task_id: str, attempt: int) -> Run:
        """User code starts; every rule about that is judged here."""
        life, may_be_unrecorded = self._world.checks.revived[task_id], process.may_begin_unrecorded
        run = Run(process, name, task_id, attempt, process.instance_id, life, may_be_unrecorded)
        self.total += 1
        self._world.log(process, "runs", name, task_id, attempt)
        self._starters[task_id].add(process)
        self.begun.add((task_id, attempt, run.instance_id))
        if self._goes_by_the_lost_file(run):
            self._by_the_lost_file.add(task_id)
        if not process.manager._settings.runs(queue_of(name)):
            self._world.fault(f"{name} {task_id} runs in {process}, which does not run its queue")
        self._judge_repetition(run)
        self._judge_claim(run)
        for other in self.now:
            # Who puts an ended task back from another process cannot know that its old thread still works.
            is_same = other.task_id == task_id and other.life == run.life
            is_same = is_same and not (self._is_unrecorded(other) or self._is_unrecorded(run))
            if other.task_id == task_id and other.instance_id == run.instance_id:
                self._world.fault(f"{name} {task_id} runs twice at once in {process}")
            elif is_same and not (other.process.was_out or process.was_out or self._is_split(task_id)):
                self._world.fault(f"{name} {task_id} runs in {process} while it runs in {other.process}")
        self._judge_suspects(run)
        self._world.pauses.judge(run)
        self.now.append(run)
        self.check_limits(run)
        return run

    def is_asked_for(self, run: Run) -> None:
        """The run asks for another one itself."""
        self.lives[run.task_id, self._world.checks.revived[run.task_id]] -= 1

    def end(self, run: Run) -> None:
        """User code has ended."""
        if run in self.now:
            self.now.remove(run)
            self._world.log(run.process, "ran", run.name, run.task_id, run.attempt)

    def drop(self, process: "Process") -> None:
        """The process is gone."""
        self.now = [run for run in self.now if run.process is not process]

    def forget(self, task_id: str) -> None:
        """Its record was deleted; another task of the same key begins at its first attempt."""
        for key in [key for key in self.starts if key[0] == task_id]:
            del self.starts[key]
        self.begun = {key for key in self.begun if key[0] != task_id}

    def _goes_by_the_lost_file(self, run: Run) -> bool:
        start = (run.task_id, run.attempt, run.instance_id)
        return not run.process.view.is_current or start in self._world.checks.started_nowhere

    def _is_unrecorded(self, run: Run) -> bool:
        """Whether it is safe to repeat, and runs although its process could not write the start. The file says that it
        waits there, so an idle instance may take it over, and may have done so before.
        """
        start = (run.task_id, run.attempt, run.instance_id or "")
        is_recorded = self._world.checks.started.get(start) == run.life  # and not only in a file that is lost
        return run.name not in UNSAFE and run.may_be_unrecorded and not is_recorded

    def _is_split(self, task_id: str) -> bool:
        """One process has started it by the file that was deleted and another one by the new file: until it looks, who
        has the old one open cannot know of the others.
        """
        return task_id in self._by_the_lost_file and len(self._starters[task_id]) > 1

    def _is_of_a_record_that_is_gone(self, run: Run) -> bool:
        """It was started by a file that was lost, and its key names another task by now, which has not begun."""
        checks, start = self._world.checks, (run.task_id, run.attempt, run.instance_id or "")
        row, sent_at = checks.rows.get(run.task_id), checks.started_nowhere.get(start)
        if row is None or sent_at in (None, row.sent_at):
            return False
        return (row.status, row.start_count, row.claimed_by_worker_id) != (TaskStatus.RUNNING, *start[1:])

    def _judge_repetition(self, run: Run) -> None:
        if self._is_of_a_record_that_is_gone(run):
            return
        self.starts[run.task_id, run.attempt] += 1
        life = (run.task_id, self._world.checks.revived[run.task_id])
        self.lives[life] += 1
        if self._is_split(run.task_id):
            return
        if run.name in UNSAFE and self.starts[run.task_id, run.attempt] > 1:
            self._world.fault(
                f"attempt {run.attempt} of {run.name} {run.task_id} starts twice, and is not safe to repeat"
            )
        if run.name in ONCE and self.lives[life] > 1:
            self._world.fault(f"{run.name} {run.task_id} starts again, though nobody asked for it")

    def _judge_claim(self, run: Run) -> None:
        """A start is in the store before user code runs, and it is this one's."""
        if run.name == "memory":
            return
        checks, process = self._world.checks, run.process
        engine = process.engine
        if engine is None:
            return
        is_degraded = engine.dispatcher.is_store_degraded or engine.writer.degraded_since is not None
        if run.name not in UNSAFE and (is_degraded or run.may_be_unrecorded):
            return
        claim = (run.task_id, run.attempt, engine.identity.instance_id)
        if claim not in checks.started:
            self._world.fault(f"{run.name} {run.task_id} attempt {run.attempt} runs before its start is in the store")
        row = checks.rows.get(run.task_id)
        is_ours = row is not None and row.status == TaskStatus.RUNNING and row.start_count == run.attempt
        is_gone = row is None and run.task_id in checks.gone
        was_lost = self._goes_by_the_lost_file(run) or is_gone or run.task_id in checks.behind
        if not is_ours and not process.was_out and not was_lost:
            self._world.fault(f"{run.name} {run.task_id} attempt {run.attempt} starts on the row {row}")

    def _judge_suspects(self, run: Run) -> None:
        """A task under which its process has died runs beside no other such one, and while it runs nothing starts that
        is not safe to repeat. By the stamps of the starts: what got its slot at the same moment may begin in any order.
        They say nothing where the wall clock was set between the two starts. An attempt is over at its timeout, though
        its thread goes on.
        """
        mine, changed_us = self._suspect_since(run), self._world.checks.changed_us
        for other in self.now:
            since = self._suspect_since(other)
            if other.instance_id != run.instance_id or other.is_waiting or (mine is None and since is None):
                continue
            if other.is_abandoned:
                continue
            if mine is not None and since is not None:
                self._world.fault(f"{run.name} {run.task_id} runs beside {other.task_id}, and both are suspects")
            row = self._world.checks.rows.get(run.task_id)
            began = 0 if row is None else row.started_at or 0
            if row is not None and row.started_at == row.claimed_at:
                began -= TOKENS_US
            first_us, then_us = changed_us.get(run.task_id, 0), changed_us.get(other.task_id, 0)
            stamped_us = min(first_us, then_us) - SLOW_COMMIT_US
            is_set_between = any(stamped_us <= at_us <= max(first_us, then_us) for at_us in run.process.stepped_us)
            is_later = began > since and first_us >= then_us if since is not None else False
            if run.name in UNSAFE and is_later and not is_set_between:
                self._world.fault(f"{run.name} {run.task_id} starts beside {other.task_id}, which is a suspect")

    def _suspect_since(self, run: Run) -> int | None:
        """When it started, where it is one."""
        row = self._world.checks.rows.get(run.task_id)
        is_its = row is not None and row.status == TaskStatus.RUNNING and row.start_count == run.attempt
        return row.started_at if row is not None and is_its and row.crash_count else None

    def check_limits(self, run: Run) -> None:
        """No instance runs more than its lanes, or a queue of it, allow; and all together no more than a queue of the
        file.
        """
        world = self._world
        mine = [each for each in self.now if each.instance_id == run.instance_id and not each.is_waiting]
        for lane, limit in (("async", world.concurrency), ("process", world.process_count)):
            in_lane = sum(each.lane == lane for each in mine)
            if in_lane > limit:
                world.fault(f"{run.process} runs {in_lane} tasks in its {lane} lane of {limit}")
        narrow = sum(each.name.startswith("narrow") for each in mine)
        if narrow > NARROW_LIMIT:
            world.fault(f"{run.process} runs {narrow} tasks of a queue limited to {NARROW_LIMIT}")
        self._check_shared(run)

    def _check_shared(self, run: Run) -> None:
        """What was taken over from a process that was out does not count: it hears of that at its next write."""
        alike = [each for each in self.now if each.is_shared and queue_of(each.name) == queue_of(run.name)]
        holders = [each for each in alike if not each.is_waiting and self._holds_place(each)]
        limit = self._world.shared_limit
        # Who still works on a file that was deleted counts by that one.
        if run.is_shared and len(holders) > limit and not self._world.loss_count:
            told = [(each.process, each.name, each.task_id) for each in holders]
            self._world.fault(f"{len(holders)} tasks of a queue limited to {limit} in the file run at once: {told}")

    def _holds_place(self, run: Run) -> bool:
        row = self._world.checks.rows.get(run.task_id)
        return not run.process.was_out or (row is not None and row.claimed_by_worker_id == run.instance_id)
