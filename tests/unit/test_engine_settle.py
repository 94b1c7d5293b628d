"""The settlement: what an attempt came to becomes the next state of its task, and one row in its history."""

from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.codec.safe import MAX_TEXT_CHARS
from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.run.settle import Next, Settlement
from taskmanager.engine.words.attempt import Attempt, StopReason
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import NO_WORKER, LiveTask
from taskmanager.engine.words.outcome import MAX_REASON_CHARS, Outcome, describe, failure_of
from taskmanager.engine.words.phases import Phase
from taskmanager.model.config import RetryPolicy
from taskmanager.model.result import TaskError
from taskmanager.model.states import AttemptOutcome, BuiltInTaskCode, TaskStatus, can_move
from taskmanager.store.protocol import InstanceRow
from tests.unit.engine_lives import LIGHT, WORK, Ticks, around, definition_of, new_live, running

ME = InstanceRow("me", "web", "host", 7, "main", "boot", 0, None, None, 0)
NOBODY = Dispatcher({"async": 1, "thread": 1, "process": 1}, [])
BOOM = Outcome("failed", error=TaskError("BOOM", "it broke"), reason="Traceback")
CRASH = Outcome("crashed", error=TaskError(BuiltInTaskCode.WORKER_CRASHED, "the child died"), reason="the child died")
TWICE = RetryPolicy.fixed([10, 20], auto_retry_for=["BOOM", "WORKER_CRASHED"], jitter=False)


class Scene:
    """One task that runs its n-th attempt, and what becomes of it."""

    def __init__(self, definition: Definition = WORK, **fields: Any) -> None:
        self.clock = Ticks()
        self.clock.now = 5_000
        self.settlement = Settlement(ME, self.clock, lambda: 0.5, crash_budget=3)
        self.live = new_live(definition, task_id="t")
        self.begin()
        for name, value in fields.items():
            setattr(self.live, name, value)

    def begin(self) -> Attempt:
        self.settlement.begin(self.live, self.clock.now_us())
        self.attempt = Attempt(self.live, around(NOBODY))
        return self.attempt

    def settle(self, outcome: Outcome) -> Next:
        """The outcome, and that the step is a legal one, with the task's slots cleared as its state wants."""
        step = self.settlement.settle(self.live, self.attempt, outcome)
        assert can_move(TaskStatus.RUNNING, self.live.status)
        assert (self.live.ending is None) == (step.delay_s is not None)
        if self.live.status is TaskStatus.PENDING:
            assert self.live.started_at is self.live.worker.pid is self.live.claimed_at is None
        return step

    def history(self) -> list[tuple[int, str, bool, str | None]]:
        return [(a.attempt, a.outcome, bool(a.will_retry), a.error_code) for a in self.live.attempts_due]


def ending_of(live: LiveTask) -> Any:
    assert live.ending is not None
    return live.ending


def test_a_start_names_who_runs_it_and_counts() -> None:
    """The state that is committed before user code runs; taking it back leaves no trace of it."""
    scene = Scene()
    live = scene.live
    assert (live.status, live.start_count, live.started_at, live.owner) == (TaskStatus.RUNNING, 1, 5_000, "me")
    assert live.worker == (7, "host", "main")
    scene.settlement.unbegin(live)
    assert (live.status, live.start_count, live.started_at, live.worker) == (TaskStatus.PENDING, 0, None, NO_WORKER)


@pytest.mark.req("DS-015", "DS-044", "DS-049", "DS-050")
def test_a_value_completes_the_task() -> None:
    """With its result in stored form, and an attempt without an error."""
    scene = Scene()
    assert scene.settle(Outcome("ok", value={"a": 1})) == Next(None)
    assert (scene.live.status, scene.live.completed_at, scene.live.failed_at) == (TaskStatus.COMPLETED, 5_000, None)
    assert scene.live.result_text == '{"ok":{"a":1}}'
    assert ending_of(scene.live).result.ok_value == {"a": 1}
    assert scene.history() == [(1, "COMPLETED", False, None)]


def test_a_value_that_cannot_be_stored_is_a_success_all_the_same() -> None:
    """It is there for who waits here; the record says why it is nowhere else."""
    scene = Scene()
    value = object()
    scene.settle(Outcome("ok", value=value))
    assert scene.live.status is TaskStatus.COMPLETED
    assert ending_of(scene.live).result.ok_value is value
    assert "RESULT_NOT_AVAILABLE" in (scene.live.result_text or "")


@pytest.mark.req("DS-016", "DS-018", "DS-019", "PR-48")
def test_a_failure_without_a_policy_is_final() -> None:
    """Code, message and traceback are recorded; the row and its attempt agree."""
    scene = Scene()
    assert scene.settle(BOOM) == Next(None)
    live = scene.live
    assert (live.status, live.failed_at, live.error_code) == (TaskStatus.FAILED, 5_000, "BOOM")
    assert live.failed_reason == "Traceback"
    assert ending_of(live).result.err_value.message == "it broke"
    assert scene.history() == [(1, "FAILED", False, "BOOM")]


def test_what_an_attempt_says_is_bounded() -> None:
    """A message may hold the whole answer of a server, and each attempt of a task has one."""
    scene = Scene()
    scene.settle(Outcome("failed", error=TaskError("BROKEN", "x" * 1_000_000), reason="x"))
    (row,) = scene.live.attempts_due
    assert len(row.error_message or "") == MAX_TEXT_CHARS


@pytest.mark.req("DS-011", "DS-024", "DS-026", "DS-046", "DS-057")
def test_retries_are_counted_until_none_is_left() -> None:
    """Each waits as long as its policy says, and knows that it is a retry."""
    scene = Scene(definition_of(retry_policy=TWICE))
    for number, delay_s in ((1, 10.0), (2, 20.0)):
        assert scene.settle(BOOM) == Next(delay_s, is_retry=True)
        live = scene.live
        assert (live.status, live.retry_count) == (TaskStatus.PENDING, number)
        assert live.next_retry_at == live.enqueued_at == 5_000 + int(delay_s * 1_000_000)
        assert live.owner == "me"
        scene.begin()
        assert live.next_retry_at is None
    assert scene.settle(BOOM) == Next(None)
    assert scene.live.status is TaskStatus.FAILED
    assert scene.history() == [(1, "FAILED", True, "BOOM"), (2, "FAILED", True, "BOOM"), (3, "FAILED", False, "BOOM")]


def test_a_code_outside_the_policy_is_not_retried() -> None:
    """However many retries are left."""
    scene = Scene(definition_of(retry_policy=TWICE))
    assert scene.settle(BOOM._replace(error=TaskError("OTHER"))) == Next(None)
    assert scene.live.status is TaskStatus.FAILED


def test_a_retry_that_would_miss_good_until_is_not_planned() -> None:
    """It could only expire."""
    wait_us = 10 * 1_000_000
    just = Scene(definition_of(retry_policy=TWICE), good_until=5_000 + wait_us + 1)
    assert just.settle(BOOM).delay_s == 10.0
    late = Scene(definition_of(retry_policy=TWICE), good_until=5_000 + wait_us)
    assert late.settle(BOOM) == Next(None)
    assert late.live.status is TaskStatus.FAILED


def test_a_snooze_spends_no_attempt() -> None:
    """It leaves no row in the history, and the count of retries where it was."""
    scene = Scene(retry_count=1)
    assert scene.settle(Outcome("snoozed", delay_s=30.0)) == Next(30.0)
    live = scene.live
    assert (live.status, live.snooze_count, live.retry_count) == (TaskStatus.PENDING, 1, 1)
    assert (live.enqueued_at, live.next_retry_at) == (5_000 + 30_000_000, None)
    assert scene.history() == []


def test_a_cancelled_attempt_is_interrupted_and_its_task_cancelled() -> None:
    """Also where the task might be repeated: somebody wanted it to end."""
    scene = Scene(definition_of(requeue_on_interrupt=True, retries=3))
    scene.attempt.stop_reason = StopReason.CANCEL
    assert scene.settle(Outcome("stopped")) == Next(None)
    assert scene.live.status is TaskStatus.CANCELLED
    assert scene.history() == [(1, "INTERRUPTED", False, "TASK_CANCELLED")]


@pytest.mark.req("PR-10", "PR-11", "PR-20", "PR-21", "PR-49")
@pytest.mark.parametrize(
    ("definition", "status"),
    [
        (WORK, TaskStatus.INTERRUPTED),
        (LIGHT, TaskStatus.INTERRUPTED),
        (definition_of(requeue_on_interrupt=True), TaskStatus.PENDING),
    ],
    ids=["persisted", "memory only", "safe to repeat"],
)
def test_a_stop_requeues_what_is_safe_to_repeat_and_interrupts_the_rest(
    definition: Definition, status: TaskStatus
) -> None:
    """A requeued one is free at once, spends no retry, and its waiters learn that it goes on."""
    scene = Scene(definition)
    scene.attempt.stop_reason = StopReason.SHUTDOWN
    assert scene.settle(Outcome("stopped")) == Next(None)
    assert scene.live.status is status
    assert ending_of(scene.live).requeued == (status is TaskStatus.PENDING)
    assert (scene.live.owner is None) == (status is TaskStatus.PENDING)
    assert scene.live.retry_count == 0
    assert scene.history() == [(1, "INTERRUPTED", False, "TASK_INTERRUPTED")]


def test_a_dead_child_costs_what_is_safe_to_repeat_no_retry_until_its_budget_is_spent() -> None:
    """A task that kills each child is failed in the end."""
    scene = Scene(definition_of(requeue_on_interrupt=True))
    for count in (1, 2):
        assert scene.settle(CRASH) == Next(0.0)
        assert (scene.live.crash_count, scene.live.retry_count) == (count, 0)
        scene.begin()
    assert scene.settle(CRASH) == Next(None)
    assert (scene.live.status, scene.live.error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
    assert [outcome for _, outcome, *_ in scene.history()] == [AttemptOutcome.WORKER_FAILURE] * 3


@pytest.mark.req("HB-22", "HB-23", "HB-24")
def test_a_dead_child_is_retried_only_by_a_policy_that_says_so() -> None:
    """What is not safe to repeat is not repeated blindly."""
    with_policy = Scene(definition_of(retry_policy=TWICE))
    assert with_policy.settle(CRASH) == Next(10.0, is_retry=True)
    without = Scene(definition_of(retries=3))
    assert without.settle(CRASH) == Next(None)
    assert without.live.error_code == "WORKER_CRASHED"


def test_a_release_frees_the_row_and_says_that_it_goes_on() -> None:
    """Whoever waits is told so."""
    live = new_live()
    live.claimed_at = 4
    scene = Scene()
    scene.settlement.begin(live, scene.clock.now_us())  # committed, but the manager stops, and user code does not begin
    scene.settlement.release(live)
    row = live.row()
    assert (row.status, row.claimed_by_worker_id, row.claimed_at, row.started_at) == ("PENDING", None, None, None)
    assert row.worker_pid is row.worker_hostname is row.worker_process_name is None
    assert ending_of(live).requeued


@pytest.mark.parametrize(
    ("phase", "enqueued_at", "expected"),
    [
        (Phase.READY, 9_000, 5_000),
        (Phase.READY, 3_000, 3_000),
        (Phase.DELAYED, 9_000, 9_000),
        (Phase.DELAYED, 7_000, 5_000),
    ],
    ids=["ready", "ready for long, which keeps its place", "delayed", "due before the clock was set back"],
)
def test_what_is_due_stays_due_when_it_is_released(phase: Phase, enqueued_at: int, expected: int) -> None:
    """Also where the wall clock says by now that its moment is still to come; a real delay is kept."""
    scene, live = Scene(), new_live()
    live.phase, live.enqueued_at, live.updated_at = phase, enqueued_at, 8_000
    scene.settlement.release(live)
    assert live.enqueued_at == expected


def test_an_error_whose_codec_fails_ends_the_task_all_the_same() -> None:
    """And is not stored in plain text."""

    class Broken:
        def encode(self, data: bytes, /) -> bytes:
            raise RuntimeError("no key")

        def decode(self, data: bytes, /) -> bytes:
            raise RuntimeError("no key")

    async def work() -> None: ...

    manager = TaskManager("never-opened.db", codec=Broken())
    scene = Scene(manager.task(name="work", persist=True)(work).bound()[0])
    scene.settle(BOOM)
    assert scene.live.status is TaskStatus.FAILED
    assert "it broke" not in (scene.live.result_text or "")
    assert "RESULT_NOT_AVAILABLE" in (scene.live.result_text or "")


def test_an_exception_gives_its_code_and_its_words() -> None:
    """A reserved code that a mapper names stays one of the built-in ones."""
    live = new_live(definition_of(exception_mapper={ValueError: "BAD_INPUT"}))
    assert failure_of(live.definition, ValueError("x")).error == TaskError("BAD_INPUT", "ValueError: x")
    error = failure_of(live.definition, KeyError()).error
    assert error == TaskError(BuiltInTaskCode.UNHANDLED_EXCEPTION, "KeyError")


def test_a_traceback_is_cut_in_its_middle() -> None:
    """One failing recursion must not fill the file; the first and the last frames say most."""

    def dive(depth: int) -> None:
        if not depth:
            raise RuntimeError("the end " * MAX_REASON_CHARS)
        dive(depth - 1)

    with pytest.raises(RuntimeError) as caught:
        dive(5)
    text = describe(caught.value)
    assert len(text) < MAX_REASON_CHARS + 100
    assert text.startswith("Traceback")
    assert "left out" in text


def test_the_attempt_of_a_later_start_has_its_number() -> None:
    """It counts committed starts, those that came to nothing included."""
    live = new_live()
    live.start_count = 4
    assert running(live, NOBODY).number == 5
