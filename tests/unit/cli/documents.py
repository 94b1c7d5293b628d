"""The JSON documents of the command line, field by field; one field more or less is a failed test."""

import re
from typing import Any, Final

import msgspec

Instant = str

INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class StepDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One step, as docs/command-line.md has it."""

    task_id: str
    number: int | None
    key: str | None
    name: str
    started_at: Instant
    ended_at: Instant | None
    attempts: int
    result: object
    error_code: str | None
    error_message: str | None
    is_final: bool
    waits_for: str | None
    due_at: Instant | None
    event_id: int | None


class AttemptDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One attempt, as docs/command-line.md has it."""

    task_id: str
    attempt: int
    outcome: str
    will_retry: bool
    started_at: Instant
    finished_at: Instant
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    created_at: Instant


class NextDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What comes next."""

    text: str
    at: Instant | None


class RecordDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One record, as docs/command-line.md has it."""

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    args: list[Any] | str | None
    kwargs: dict[str, Any] | str | None
    status: str
    sent_at: Instant
    enqueued_at: Instant
    claimed_at: Instant | None
    claimed_by_worker_id: str | None
    started_at: Instant | None
    completed_at: Instant | None
    failed_at: Instant | None
    result: dict[str, Any] | str | None
    failed_reason: str | None
    error_code: str | None
    good_until: Instant | None
    retry_count: int
    max_retries: int
    next_retry_at: Instant | None
    start_count: int
    crash_count: int
    snooze_count: int
    task_options: dict[str, Any]
    tags: dict[str, str] | None
    idempotency_key: str | None
    enqueue_sha: str | None
    scheduled_for: Instant | None
    cancel_requested_at: Instant | None
    progress: dict[str, Any] | None
    log: list[dict[str, Any]] | None
    worker_pid: int | None
    worker_hostname: str | None
    worker_process_name: str | None
    finalizing_at: Instant | None
    finalizing_by_worker_id: str | None
    claim_expires_at: Instant | None
    is_workflow_task: bool
    created_at: Instant
    updated_at: Instant
    workflow_id: str | None
    node_id: str | None


class ShownDocument(RecordDocument, forbid_unknown_fields=True, kw_only=True):
    """A record with its attempts, its steps and what comes next."""

    attempts: list[AttemptDocument]
    steps: list[StepDocument]
    next: NextDocument


class AnswerDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What became of one task that was acted on."""

    task_id: str
    done: bool
    outcome: str
    remark: str | None


class CheckDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One look of `doctor`."""

    name: str
    ok: bool
    found: str
    advice: str | None


class DiagnosisDocument(msgspec.Struct, forbid_unknown_fields=True):
    """All of them."""

    db: str
    findings: int
    checks: list[CheckDocument]


class RecoveryDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What `recover` gave back."""

    dead_instances: int
    recovered: int
    of_frozen: int
    of_workflows: int
    tasks: list[dict[str, str | None]]


class BackupDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What `backup` made."""

    db: str
    file: str
    size_bytes: int
