"""The row that the contract tests start from."""

from taskmanager.model.record import TaskRow

FREE_ROW = TaskRow(**dict.fromkeys(TaskRow._fields))._replace(
    task_id="t1",
    task_name="app:job",
    queue_name="default",
    priority=50,
    args="[]",
    kwargs="{}",
    status="PENDING",
    sent_at=100,
    enqueued_at=100,
    retry_count=0,
    max_retries=0,
    start_count=0,
    crash_count=0,
    snooze_count=0,
    task_options='{"persist": true}',
    is_workflow_task=0,
    created_at=100,
    updated_at=100,
)
"""A persisted task that waits and that nobody has."""
