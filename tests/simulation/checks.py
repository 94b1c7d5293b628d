"""Safety, judged after every call that wrote: what a row may become, and by whom."""

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

from taskmanager.model.record import AttemptRow, TaskRow, expected_of
from taskmanager.model.states import LIVE, TERMINAL, WAITING, TaskStatus, can_move
from taskmanager.model.workflows import HELD
from tests.simulation.batches import fits
from tests.simulation.failures import Failures
from tests.simulation.faults import READS
from tests.simulation.jobs import UNSAFE
from tests.simulation.process import WOKEN_US
from tests.simulation.tally import Tally

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World


def _reachable() -> frozenset[tuple[str, str]]:
    """Pairs of statuses with a way of legal moves between them on which nothing ends: one write may carry it all."""
    pairs = {(a, b) for a, b in product(TaskStatus, TaskStatus) if can_move(a, b)}
    while True:
        more = {(a, d) for (a, b), (c, d) in product(pairs, pairs) if b is c and b in LIVE} - pairs
        if not more:
            return frozenset((a.value, b.value) for a, b in pairs)
        pairs |= more


THE_END = "the end"
UNSTARTED = ("ARGUMENT_MISMATCH", "WORKFLOW_CHECK_FAILED")
"""A node that fails with these has never begun."""
REACHABLE = _reachable()
STORE_POLL_US = 250_000
"""The default, as every process has it."""
RETENTION_US = 3_600_000_000
"""The retention of every seed that has one."""


def _replaces(row: TaskRow) -> bool:
    """Whether it is the record of a memory-only task with a key, and may stand in the place of an earlier one's."""
    return row.task_name == "memory" and row.idempotency_key is not None


class Checks:
    """What was promised, and the rows as they were when somebody last wrote."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.failures = Failures(world)
        self.tally = Tally(world)
        self.rows: dict[str, TaskRow] = {}
        self.attempts: dict[tuple[str, int], AttemptRow] = {}
        self._fresh: dict[tuple[str, int], AttemptRow] = {}
        self._outdated: set[tuple[str, int]] = set()
        """Attempts of a node that was started anew because its workflow went with a file: that they are gone, or others
        in their place, is seen at the next look at all attempts.
        """
        self.saved: set[str] = set()
        self.started: dict[tuple[str, int, str], int] = {}
        """The starts that were in the store, each with the life of its task in which it was last."""
        self.started_nowhere: dict[tuple[str, int, str], int] = {}
        """Starts that stand in a file that was lost, and when their tasks were sent. Their code begins, though the new
        file may be open by then.
        """
        self.revived: Counter[str] = Counter()
        """How often a task that had ended was put back."""
        self.purged: set[str] = set()
        self.rolled_back: set[str] = set()
        """Tasks of transactions that were rolled back."""
        self.gone: dict[str, int] = {}
        """What only a file held that was deleted, also what was written to it after that, and when it was sent."""
        self.kept: dict[str, Process] = {}
        """Tasks that were in the memory of a process when it made the file anew."""
        self.behind: dict[str, str] = {}
        """Tasks that an instance held when an older copy was put in the place of the file, and has not written to it
        yet. What it runs goes on, and must not be begun again.
        """
        self._ended_nowhere: set[str] = set()
        """Tasks that have ended by a file that was lost, and not by the older copy in its place."""
        self._lost_runs: set[tuple[str, int]] = set()
        """Attempts that an older copy says are running."""
        self.changed_us: dict[str, int] = {}
        """When a task changed last, by the time of the simulation."""
        self.may_revive: set[str] = set()
        """Tasks for which somebody asked that: `retry`, or the same key again."""

    def promised(self, task_id: str) -> None:
        """`saved()` has returned."""
        if task_id not in self.rows and task_id in self.gone:
            # It was saved in a file that is not there any more. Who has it in memory writes it anew, but who awaited
            # that commit may hear of it after the new file was opened and before anything is written to it.
            return
        self.saved.add(task_id)
        if task_id not in self.rows and task_id not in self.purged:
            self._world.fault(f"{task_id} was called saved, and is not in the store")

    def taken_back(self, task_id: str) -> None:
        """The transaction that wrote it was rolled back."""
        self.rolled_back.add(task_id)

    def lose(self) -> None:
        """The file was deleted: what no living process holds in memory is gone, and what one holds must come back."""
        held: set[str] = set()
        for each in self._world.alive:
            held.update(each.held_ids)
        for task_id, row in self.rows.items():
            self.gone[task_id] = row.sent_at
            if task_id not in held:
                self._begin_anew(task_id)
        self.saved.clear()
        self.rows, self.attempts = {}, {}

    def restore(self, rows: dict[str, TaskRow], attempts: dict[tuple[str, int], AttemptRow]) -> None:
        """An older copy was put in the place of the file: what no living process holds goes on as it says."""
        held = {task_id: each.instance_id or "" for each in self._world.alive for task_id in each.held_ids}
        for task_id, row in self.rows.items():
            self.gone[task_id] = row.sent_at
            if task_id not in held:
                self._begin_anew(task_id)
        self.behind = {task_id: holder for task_id, holder in held.items() if task_id in rows}
        self._lost_runs = {(row.task_id, row.start_count) for row in rows.values() if row.status == TaskStatus.RUNNING}
        self.saved.clear()
        self.rows, self.attempts = rows, attempts

    def leaves(self, process: "Process", but: frozenset[str] = frozenset()) -> None:
        """What it held and holds no more, for it has died or has written the end to the lost file, goes on as the older
        copy says.
        """
        for task_id, holder in list(self.behind.items()):
            if holder in process.instance_ids and task_id not in but:
                self._fall_back(task_id)

    def _fall_back(self, task_id: str) -> None:
        self.behind.pop(task_id, None)
        self._begin_anew(task_id)

    def _judge_behind(self, process: "Process", old: TaskRow, new: TaskRow) -> bool:
        """Whether this row of an older copy is written over by who has the task; others may take it until then."""
        holder = self.behind.get(old.task_id)
        if holder is None:
            return False
        if new.claimed_by_worker_id not in (None, holder) and process.instance_id != holder:
            self._fall_back(old.task_id)
            return False
        is_claim = new.status == TaskStatus.CLAIMED != old.status  # it does not know that it is its own yet
        if process.instance_id == holder and not is_claim:
            del self.behind[old.task_id]
        return process.instance_id == holder

    def _begin_anew(self, task_id: str) -> None:
        """Its record is gone: who names that id again means another task."""
        self.revived[task_id] += 1
        self._world.runs.forget(task_id)

    def observe(self, process: "Process", verb: str, args: tuple[Any, ...]) -> None:
        """`process` has called `verb`; compare what stands there with what stood there."""
        if verb in READS:
            return
        if self._world.loss_count and verb != THE_END:
            self._note_lost(process, verb)
            if not process.view.is_current:
                return  # what it has written is in no file that anybody finds
        rows = self._world.disk.rows(is_last=verb == THE_END)
        if rows is None:
            return
        attempts = self._fresh = self._world.disk.attempts()
        self._judge_attempts(rows, attempts)
        for task_id, old in self.rows.items():
            new = rows.get(task_id)
            if new is None:
                self._judge_purge(process, verb, args, old)
            elif new is not old and new != old:
                self._judge_change(process, verb, old, new)
        for task_id, new in rows.items():
            if task_id not in self.rows:
                self._judge_new(process, verb, new)
        self.failures.judge(self.rows, rows)
        self.tally.observe(self.rows, rows)
        if verb == THE_END:
            self.tally.judge()
        self._world.hearing.wrote(process, verb, self.rows, rows)
        fresh = [row for task_id, row in rows.items() if task_id not in self.rows]
        self.rows, self.attempts = rows, attempts
        self._world.workflows.observe(process, verb)
        if self._world.timetable.entries:
            self._world.timetable.observe(process, verb, args, fresh)

    def _judge_new(self, process: "Process", verb: str, new: TaskRow) -> None:
        if self.gone.get(new.task_id, new.sent_at) != new.sent_at:
            self._begin_anew(new.task_id)  # the same key again, and nothing is known of the record that had it
        self._note(process, verb, new)
        self._judge_start(new)
        self._world.batches.judge(None, new, f"{new} by {verb} of {process}")
        if new.task_id in self.rolled_back:
            self._world.fault(f"{new.task_id} was rolled back, and is there by {verb} of {process}: {new}")

    def _note_lost(self, process: "Process", verb: str) -> None:
        """It writes to the file that was deleted until it looks whether that is there; then all in memory must come."""
        if not process.view.is_current:
            for row in process.view.rows():
                if row.task_id not in self.rows:
                    self.gone[row.task_id] = row.sent_at
                if row.status == TaskStatus.RUNNING:
                    start = (row.task_id, row.start_count, row.claimed_by_worker_id or "")
                    self.started[start] = self.revived[row.task_id]
                    self.started_nowhere[start] = row.sent_at
                if row.status in TERMINAL and row.task_id in self.rows and row.task_id not in self._ended_nowhere:
                    self._ended_nowhere.add(row.task_id)
                    self._fall_back(row.task_id)
        elif verb == "open" and process.has_outlived_the_file:
            self.kept |= dict.fromkeys(process.held_ids, process)
        if self.behind and (verb == "open" or not process.view.is_current):
            self.leaves(process, but=frozenset(process.held_ids))

    def is_late_news(self, row: TaskRow) -> bool:
        """Whether it was stamped by a clock that was ahead, and written when everybody had started who looks for such
        rows: a stop makes them, and the file may be out of reach until the clock was corrected.
        """
        began_us = max((each.began_us for each in self._world.up()), default=0)
        return row.updated_at > self._world.clock.now_us() and self.changed_us.get(row.task_id, 0) >= began_us

    def _note(self, process: "Process", verb: str, row: TaskRow) -> None:
        self.changed_us[row.task_id] = self._world.now_us
        self._world.log(
            process, verb, row.task_name, row.task_id, row.status, row.claimed_by_worker_id, row.start_count
        )
        if row.status == TaskStatus.RUNNING:
            self.started[row.task_id, row.start_count, row.claimed_by_worker_id or ""] = self.revived[row.task_id]

    def _judge_change(self, process: "Process", verb: str, old: TaskRow, new: TaskRow) -> None:
        fault = self._world.fault
        what = (
            f"{old.task_name} {old.task_id}, {old.status} {old.start_count} of {old.claimed_by_worker_id}, becomes "
            f"{new.status} {new.start_count} of {new.claimed_by_worker_id} by {verb} of {process}"
        )
        place = (old.status, old.claimed_by_worker_id, old.start_count)
        had_started = self._has_started_since(process, old, new)
        if place != (new.status, new.claimed_by_worker_id, new.start_count):
            self._note(process, verb, new)
        is_behind = self._judge_behind(process, old, new)
        is_snoozed = new.snooze_count > old.snooze_count
        # An attempt whose start was taken back before user code ran leaves none.
        has_run = (old.task_id, old.start_count, old.claimed_by_worker_id) in self._world.runs.begun
        is_again = (
            has_run
            and new.status == old.status
            and new.start_count > old.start_count
            and old.status == TaskStatus.RUNNING
        )
        if old.status != new.status and (old.status, new.status) not in REACHABLE:
            fault(f"no legal way: {what}")
        has_changed = new._replace(cancel_requested_at=old.cancel_requested_at) != old
        if old.status in TERMINAL and has_changed and not had_started:
            self._judge_revival(old, new, what)
        self._world.batches.judge(old, new, what)
        if new.start_count < old.start_count and old.status not in TERMINAL and not self._is_begun_anew(new):
            fault(f"the start count went back: {what}")
        if is_again and not is_snoozed and not is_behind and (old.task_id, old.start_count) not in self._fresh:
            fault(f"an attempt left no row: {what}")
        if not had_started:
            self._judge_owner(process, verb, old, new, what)
        if new.start_count > old.start_count:
            self._judge_start(new)
        if old.status == TaskStatus.RUNNING and new.crash_count > old.crash_count:
            self._judge_crash(process, old, new, what)
        if new.status == TaskStatus.EXPIRED != old.status and (new.good_until or new.updated_at) > new.updated_at:
            fault(f"expired before its time, {new.good_until}, at {new.updated_at}: {what}")
        if new.status == TaskStatus.COMPLETED and old.status != TaskStatus.COMPLETED:
            ended = self._fresh.get((new.task_id, new.start_count))
            if ended is None or ended.outcome != "COMPLETED":
                fault(f"completed without its attempt: {what}")

    def _has_started_since(self, process: "Process", old: TaskRow, new: TaskRow) -> bool:
        """Whether it has started the task by a file that was lost, or ended it while it could write none, and who has
        it now does not know yet: that counts, and the other row, which waits or has ended with fewer starts, is written
        over.
        """
        ended = self._fresh.get((new.task_id, new.start_count))
        has_run = ended is not None and ended.worker_id == process.instance_id
        start = (new.task_id, new.start_count, process.instance_id or "")
        is_before = old.status != TaskStatus.RUNNING and old.start_count < new.start_count
        return bool(self._world.loss_count) and is_before and (has_run or start in self.started)

    def _judge_start(self, row: TaskRow) -> None:
        """Where one write carries a start and what came of it, only the row of the attempt would tell when."""
        is_late = row.good_until is not None and row.started_at is not None and row.started_at >= row.good_until
        if row.status == TaskStatus.RUNNING and is_late:
            self._world.fault(f"{row.task_name} {row.task_id} starts at {row.started_at}, good until {row.good_until}")

    def _judge_crash(self, process: "Process", old: TaskRow, new: TaskRow, what: str) -> None:
        """Who was there when a process died is a suspect; only one that was so before, and alone, is guilty."""
        # A memory-only task is in the file once somebody has asked for another run of its record: no safer than others.
        if old.task_name in {*UNSAFE, "memory"} or old.cancel_requested_at is not None:
            return
        runs_on = old.status == new.status == TaskStatus.RUNNING and old.start_count == new.start_count
        if runs_on and self._world.loss_count:  # nobody has judged it: its instance knows of a death from a lost file
            return
        is_guilty = new.crash_count >= self._world.crash_budget
        if old.claimed_by_worker_id != process.instance_id:  # else its child has died, and nothing beside it
            mates = [
                row
                for row in self.rows.values()
                if row.claimed_by_worker_id == old.claimed_by_worker_id and row.status == old.status and row.crash_count
            ]
            is_guilty = is_guilty and mates == [old]
        is_put_away = new.status == TaskStatus.FAILED and new.error_code == "WORKER_CRASHED"
        if is_guilty != is_put_away:
            self._world.fault(f"{'guilty' if is_guilty else 'innocent'}, after {new.crash_count} deaths: {what}")

    def _judge_revival(self, old: TaskRow, new: TaskRow, what: str) -> None:
        if self._world.batches.is_asked("retry_all", old):
            self.may_revive.add(old.task_id)
        is_node = bool(new.is_workflow_task) and self._world.workflows.may_change(new.task_id)
        if old.task_id not in self.may_revive and not is_node and not self._is_begun_anew(new):
            changed = [name for name in TaskRow._fields if getattr(old, name) != getattr(new, name)]
            self._world.fault(f"an ended task changed {changed}: {what}")
        if (is_node or self._is_begun_anew(new)) and new.start_count < old.start_count:
            self._outdated |= {key for key in self._fresh if key[0] == new.task_id}
        if self._is_begun_anew(new):
            self._world.runs.forget(new.task_id)
        self.revived[old.task_id] += 1

    def _is_begun_anew(self, row: TaskRow) -> bool:
        """Whether the workflow of a node went with the file. What lived on in memory is no task of the graph in the
        file that came: its node begins when that says so.
        """
        return bool(self._world.loss_count and row.is_workflow_task and not row.start_count)

    def _judge_owner(self, process: "Process", verb: str, old: TaskRow, new: TaskRow, what: str) -> None:
        """Only its owner changes an owned row; others when that is dead, or was silent too long."""
        owner = old.claimed_by_worker_id
        if new.is_workflow_task and self._is_of_its_workflow(verb, old, new, what):
            return
        is_same = (old.status, owner, old.start_count) == (new.status, new.claimed_by_worker_id, new.start_count)
        if verb == "request_cancel":
            if not is_same:
                self._world.fault(f"a request changed more than it should: {what}")
            return
        if old.status in TERMINAL or owner is None or owner in process.instance_ids:
            return
        if owner == process.instance_id:
            return
        if verb == "claim":
            self._judge_take_over(process, old, new, what)
            return
        holder = self._world.process_of(owner)
        if holder is None or not holder.is_living_as(owner):
            return
        if self._has_started_since(process, old, new):
            return
        if self._world.is_dead(owner) and (not holder.is_stopping or self._has_let_go(holder, old)):
            return  # it has stopped, and could not write everything
        was_blocked = holder.last_blocked_us + WOKEN_US > self._world.now_us
        if old.status != TaskStatus.RUNNING and was_blocked:
            return  # while its loop is blocked its claimer is silent, so that others take what waits
        if not self._was_silent(holder) or self._was_kept_out(holder, process):
            silent_us = self._world.now_us - holder.last_beat_us
            self._world.fault(f"taken from a living owner, silent for {silent_us / 1e6:.1f} s: {what}")

    def _is_of_its_workflow(self, verb: str, old: TaskRow, new: TaskRow, what: str) -> bool:
        """Whether somebody has paused its workflow, which takes it out of every memory, or has cancelled that; or its
        workflow went with a file, and it is ended wherever it waits.
        """
        if old.claimed_by_worker_id == HELD and new.status in (TaskStatus.CLAIMED, TaskStatus.RUNNING):
            self._world.fault(f"its workflow is paused: {what}")
        if new.claimed_by_worker_id == HELD or (self._world.loss_count and new.error_code == "WORKFLOW_STOPPED"):
            return old.status in WAITING
        return verb == "cancel_workflow" and expected_of(old) == expected_of(new)

    def _judge_take_over(self, process: "Process", old: TaskRow, new: TaskRow, what: str) -> None:
        """An idle instance starts what has waited long enough at another one, and nothing else."""
        fault = self._world.fault
        is_start = (new.status, new.claimed_by_worker_id) == (TaskStatus.RUNNING, process.instance_id)
        if old.status not in WAITING or not is_start or new.start_count != 1:
            fault(f"a claim has taken more than what waits to be started: {what}")
        if old.crash_count or old.good_until is not None or old.cancel_requested_at is not None:
            fault(f"what is taken over is not plain: {what}")
        if (new.started_at or 0) - old.enqueued_at < STORE_POLL_US:
            fault(f"it was due for {(new.started_at or 0) - old.enqueued_at} us when it was taken over: {what}")
        if old.task_name.startswith("shared"):
            fault(f"what has a place in the file is taken over: {what}")
        suspect = None if process.engine is None else process.engine.dispatcher.suspect
        # One that begins while the claim is on its way is alone all the same: what was claimed waits.
        if suspect is not None and (suspect.started_at or 0) < (new.claimed_at or 0):
            fault(f"taken over beside the suspect {suspect}: {what}")

    def _has_let_go(self, holder: "Process", row: TaskRow) -> bool:
        """Whether its stop, which is not over, was written to a file that is lost: the copy in its place still names
        it, and nothing of the task goes on there.
        """
        is_executing = any(run.process is holder and run.task_id == row.task_id for run in self._world.runs.now)
        return self._world.loss_count > 0 and not holder.view.is_current and not is_executing

    def _was_silent(self, holder: "Process") -> bool:
        """So long that others may take it for dead; or it was, and they have looked a moment before it woke."""
        now_us = self._world.now_us
        return now_us - holder.last_beat_us >= self._world.stale_us or now_us - holder.woke_us <= WOKEN_US

    def _was_kept_out(self, holder: "Process", observer: "Process") -> bool:
        """Whether everybody was, for a part of that silence, and has had the time to know it who acts on it."""
        is_recent = self._world.now_us - self._world.locked_until_us < self._world.stale_us
        return is_recent and not (holder.was_out or observer.was_out)

    def _judge_purge(self, process: "Process", verb: str, args: tuple[Any, ...], old: TaskRow) -> None:
        """Only ended records go, those that are meant, and by retention only what is old and was not made so."""
        what = f"{old.task_name} {old.task_id}, {old.status}, has disappeared by {verb}{args} of {process}"
        self.purged.add(old.task_id)
        self._begin_anew(old.task_id)  # a key may name another task now
        if verb != "purge" or old.status not in TERMINAL:
            self._world.fault(what)
            return
        wanted, older_than, _ = args
        ended_at = max(old.sent_at, old.completed_at or old.failed_at or old.updated_at)
        given = {"status": wanted.status, "error_code": wanted.error_code, "tags": dict(wanted.tags) or None}
        is_meant = fits(old, {name: value for name, value in given.items() if value is not None})
        if not is_meant or (older_than is not None and ended_at >= older_than):
            self._world.fault(f"{what}, and was not meant")
        trusted_us = self._world.trusted_us(process)
        if not process.is_purge_asked and (older_than is None or older_than > trusted_us - RETENTION_US):
            self._world.fault(f"{what}, and was not old")

    def _judge_attempts(self, rows: dict[str, TaskRow], attempts: dict[tuple[str, int], AttemptRow]) -> None:
        for key, old in self.attempts.items():
            new, row = attempts.get(key), rows.get(key[0])
            if row is not None and (self._is_begun_anew(row) or _replaces(row)):
                continue
            if new is not old and new != old and key in self._outdated:
                self._outdated.discard(key)
            elif new is not old and new != old and (key in attempts or key[0] in rows):
                self._world.fault(f"attempt {key} changed from {old} to {attempts.get(key)}")
        for key in attempts.keys() - self.attempts.keys():
            row = rows.get(key[0])
            if row is None or key[1] > row.start_count:
                self._world.fault(f"attempt {key} of a row that counts {row and row.start_count} starts")
            self._judge_outcome(attempts[key])

    def _judge_outcome(self, attempt: AttemptRow) -> None:
        key, runs = (attempt.task_id, attempt.attempt), self._world.runs
        has_begun = self._world.loss_count or runs.starts[key] or key in runs.answered
        is_too_late = attempt.error_code == "TASK_TIMEOUT"  # no child has come up for it within its time
        if attempt.outcome in ("COMPLETED", "FAILED") and not has_begun and not is_too_late:
            self._world.fault(f"an attempt has ended, and its code never began: {attempt}")
        if attempt.outcome == "FAILED" and (attempt.error_message or "").startswith("CancelledError"):
            self._world.fault(f"an attempt that was interrupted is said to have failed: {attempt}")
        if attempt.outcome == "WORKER_FAILURE" and not self._has_crashed(attempt):
            self._world.fault(f"an attempt is said to have crashed, and nothing has died: {attempt}")

    def _has_crashed(self, attempt: AttemptRow) -> bool:
        """Its child or its process died, or its process was silent for so long that it seemed so."""
        holder = self._world.process_of(attempt.worker_id or "")
        if holder is None or not holder.is_living_as(attempt.worker_id):
            return True
        if holder.was_out or self._was_silent(holder):
            return True
        return (attempt.task_id, attempt.attempt) in self._world.runs.crashed | self._lost_runs

    def at_rest(self) -> None:
        """Nothing is left to be written, and nobody has stopped yet: what lived in memory is in the new file."""
        for task_id, holder in self.kept.items():
            if task_id not in self.rows and task_id not in self.purged and holder.has_outlived_the_file:
                self._world.fault(f"{task_id} of {holder} is not in the new file")

    def at_the_end(self) -> None:
        """Everything that was accepted and saved has ended, and its record is whole."""
        self._world.hearing.at_the_end(self.rows)
        for task_id in self.saved - self.purged:
            row = self.rows.get(task_id)
            if row is None or row.status not in TERMINAL:
                self._world.fault(f"{task_id} was saved and is {row and row.status} at the end")
        for row in self.rows.values():
            if row.status not in TERMINAL:
                self._world.fault(f"{row.task_name} {row.task_id} never ends: {row}")
            last = self.attempts.get((row.task_id, row.start_count))
            is_judged = not self._world.loss_count and row.status in ("COMPLETED", "FAILED", "INTERRUPTED")
            if is_judged and last is None and row.error_code not in UNSTARTED:
                self._world.fault(f"{row.task_name} {row.task_id} is {row.status} without attempt {row.start_count}")
