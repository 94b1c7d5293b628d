"""A live task and its row are two forms of one record."""

import pytest

from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import Phase
from taskmanager.model.record import Expected, TaskRow
from taskmanager.model.states import TaskStatus
from tests.unit.engine_lives import LIGHT, WORK, definition_of, new_live

RETRIED = definition_of(retries=4)

CLAIMED = TaskRow(
    task_id="t1",
    task_name="work",
    queue_name="mail",
    priority=3,
    args="[1]",
    kwargs='{"a":2}',
    status="CLAIMED",
    sent_at=10,
    enqueued_at=11,
    claimed_at=12,
    claimed_by_worker_id="me",
    started_at=None,
    completed_at=None,
    failed_at=None,
    result=None,
    failed_reason=None,
    error_code=None,
    good_until=99,
    retry_count=1,
    max_retries=4,
    next_retry_at=11,
    start_count=5,
    crash_count=2,
    snooze_count=3,
    task_options='{"persist":true}',
    tags='{"user":"1"}',
    idempotency_key="key",
    enqueue_sha="sha",
    scheduled_for=7,
    cancel_requested_at=13,
    progress='{"done":1}',
    log="[]",
    worker_pid=None,
    worker_hostname=None,
    worker_process_name=None,
    finalizing_at=None,
    finalizing_by_worker_id=None,
    claim_expires_at=None,
    is_workflow_task=1,
    created_at=10,
    updated_at=14,
)
"""A row as a claim gives it, with everything filled that a waiting row may have."""


def test_a_claimed_row_lives_and_is_written_back_as_it_was() -> None:
    """Whatever is in it came from somebody's call or history, and must not get lost on the way through memory."""
    live = LiveTask.from_row(CLAIMED, RETRIED, None)
    assert live.row() == CLAIMED
    assert live.saving.committed == Expected("CLAIMED", "me", 5)
    assert live.is_saved


def test_every_column_of_a_row_is_filled_in_the_example() -> None:
    """A column that is added later has to be looked at here."""
    ends = {"started_at", "completed_at", "failed_at", "result", "failed_reason", "error_code"}
    runs = {"worker_pid", "worker_hostname", "worker_process_name"}
    later = {"finalizing_at", "finalizing_by_worker_id", "claim_expires_at"}
    assert {name for name, value in CLAIMED._asdict().items() if value is None} == ends | runs | later


def test_an_ended_row_is_taken_over_with_its_end() -> None:
    """So that a handle of an existing task sees what the store says."""
    ended = CLAIMED._replace(
        status="FAILED", started_at=15, failed_at=16, result='{"err":{}}', failed_reason="it broke", error_code="BOOM"
    )
    live = new_live(RETRIED, task_id="t1")
    live.call_args = (1,)
    live.adopt(ended)
    assert live.row() == ended
    assert live.status is TaskStatus.FAILED
    assert not live.call_args


def test_texts_in_a_row_are_plain_texts() -> None:
    """The driver looks for an adapter for every value that is not exactly one, and other code compares them."""
    assert type(new_live().row().status) is str
    assert type(new_live().expectation().status) is str


@pytest.mark.parametrize("phase", list(Phase))
def test_the_phases_that_wait(phase: Phase) -> None:
    """A task that has its slot, its end or another owner does not."""
    live = new_live()
    live.phase = phase
    assert live.is_awaiting_store == (phase is Phase.FREEING)
    assert live.is_waiting == (
        live.is_awaiting_store or phase in (Phase.ARRIVED, Phase.BEHIND, Phase.ACCEPTED, Phase.DELAYED, Phase.READY)
    )
    assert live.has_left == (phase is Phase.LEFT)


def test_saved_means_that_the_file_holds_the_newest_state() -> None:
    """Not an older one, and not one that is being written."""
    live = new_live()
    assert not live.is_saved
    live.saving.committed = live.expectation()
    assert live.is_saved
    live.saving.is_dirty = True
    assert not live.is_saved
    live.saving.is_dirty, live.status = False, TaskStatus.RUNNING
    assert not live.is_saved


@pytest.mark.parametrize(
    ("definition", "key", "answers"),
    [(WORK, None, [False, True]), (WORK, "k", [None, True]), (LIGHT, None, [False, True]), (LIGHT, "k", [False, True])],
    ids=["persisted", "persisted, keyed", "memory only", "memory only, keyed"],
)
def test_only_a_persisted_key_has_to_wait_for_the_store_to_know_whether_it_is_new(
    definition: object, key: str | None, answers: list[bool | None]
) -> None:
    """None is: not known yet."""
    live = new_live(definition)  # type: ignore[arg-type]
    live.idempotency_key = key
    found = [live.duplicate_answer()]
    live.is_duplicate = True
    assert [*found, live.duplicate_answer()] == answers
