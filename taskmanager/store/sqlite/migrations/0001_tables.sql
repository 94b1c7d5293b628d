-- Instants are INTEGER microseconds since 1970 UTC, flags are 0 or 1, JSON is TEXT.
-- Inserting a finished task must touch few b-trees, so every index that only serves live rows is partial.

CREATE TABLE taskmanager_tasks (
    id TEXT NOT NULL PRIMARY KEY,
    task_name TEXT NOT NULL,
    queue_name TEXT NOT NULL,
    priority INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 100),
    args TEXT,
    kwargs TEXT,
    status TEXT NOT NULL CHECK (
        status = 'PENDING' OR status = 'CLAIMED' OR status = 'RUNNING' OR status = 'COMPLETED' OR status = 'FAILED'
        OR status = 'CANCELLED' OR status = 'EXPIRED' OR status = 'INTERRUPTED'
    ),
    sent_at INTEGER NOT NULL,
    enqueued_at INTEGER NOT NULL,
    claimed_at INTEGER,
    claimed_by_worker_id TEXT,
    started_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    result TEXT,
    failed_reason TEXT,
    error_code TEXT,
    good_until INTEGER,
    retry_count INTEGER NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    max_retries INTEGER NOT NULL DEFAULT 0 CHECK (max_retries >= 0),
    next_retry_at INTEGER,
    start_count INTEGER NOT NULL DEFAULT 0 CHECK (start_count >= 0),
    crash_count INTEGER NOT NULL DEFAULT 0 CHECK (crash_count >= 0),
    snooze_count INTEGER NOT NULL DEFAULT 0 CHECK (snooze_count >= 0),
    task_options TEXT NOT NULL DEFAULT '{}',
    tags TEXT,
    idempotency_key TEXT,
    enqueue_sha TEXT,
    scheduled_for INTEGER,
    cancel_requested_at INTEGER,
    progress TEXT,
    log TEXT,
    worker_pid INTEGER,
    worker_hostname TEXT,
    worker_process_name TEXT,
    finalizing_at INTEGER,
    finalizing_by_worker_id TEXT,
    claim_expires_at INTEGER,
    is_workflow_task INTEGER NOT NULL DEFAULT 0 CHECK (is_workflow_task IN (0, 1)),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    claimed INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT claimed_says_claimed CHECK (claimed = (status = 'CLAIMED')),
    CONSTRAINT claimed_has_owner CHECK (status <> 'CLAIMED' OR claimed_by_worker_id IS NOT NULL),
    CONSTRAINT running_has_owner_and_start CHECK (
        status <> 'RUNNING' OR (claimed_by_worker_id IS NOT NULL AND started_at IS NOT NULL AND start_count >= 1)
    ),
    CONSTRAINT completed_at_says_completed CHECK ((completed_at IS NOT NULL) = (status = 'COMPLETED')),
    CONSTRAINT error_code_is_final CHECK (
        error_code IS NULL
        OR status = 'FAILED' OR status = 'CANCELLED' OR status = 'EXPIRED' OR status = 'INTERRUPTED'
    )
) STRICT;

CREATE INDEX taskmanager_tasks_sent_at ON taskmanager_tasks (sent_at);
-- Nearly all rows are COMPLETED, and what all rows have in common needs no index: they are what is left when the others
-- are counted.
CREATE INDEX taskmanager_tasks_status ON taskmanager_tasks (status, sent_at) WHERE status <> 'COMPLETED';
CREATE INDEX taskmanager_tasks_queue_name ON taskmanager_tasks (queue_name)
    WHERE claimed_by_worker_id IS NULL AND status = 'PENDING';
-- The queue's name is there for limits that hold for all instances: they count what is claimed, by queue.
CREATE INDEX taskmanager_tasks_claimed ON taskmanager_tasks (claimed, queue_name) WHERE claimed = 1;
-- Every condition is evaluated twice per changed row: a test for NULL is the cheapest, so it stands alone or first.
-- What nobody holds and may expire there.
CREATE INDEX taskmanager_tasks_good_until ON taskmanager_tasks (good_until)
    WHERE good_until IS NOT NULL AND claimed_by_worker_id IS NULL AND status = 'PENDING';
CREATE INDEX taskmanager_tasks_next_retry_at ON taskmanager_tasks (next_retry_at) WHERE next_retry_at IS NOT NULL;
CREATE INDEX taskmanager_tasks_error_code ON taskmanager_tasks (error_code) WHERE error_code IS NOT NULL;
-- What may be claimed, best first. It leads with the task name, so that rows nobody can run cost a claim nothing.
CREATE INDEX taskmanager_tasks_free ON taskmanager_tasks (task_name, queue_name, priority, enqueued_at, id)
    WHERE claimed_by_worker_id IS NULL AND status = 'PENDING';
CREATE INDEX taskmanager_tasks_owner ON taskmanager_tasks (claimed_by_worker_id, id)
    WHERE claimed_by_worker_id IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING');
-- Whether a schedule has a run that has not ended: all its runs have the same tags.
CREATE INDEX taskmanager_tasks_scheduled ON taskmanager_tasks (tags)
    WHERE scheduled_for IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING');
CREATE INDEX taskmanager_tasks_cancel ON taskmanager_tasks (claimed_by_worker_id)
    WHERE cancel_requested_at IS NOT NULL;

CREATE TABLE taskmanager_task_attempts (
    id INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES taskmanager_tasks (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    outcome TEXT NOT NULL CHECK (
        outcome = 'COMPLETED' OR outcome = 'FAILED' OR outcome = 'WORKER_FAILURE' OR outcome = 'INTERRUPTED'
    ),
    will_retry INTEGER NOT NULL CHECK (will_retry IN (0, 1)),
    started_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    failed_reason TEXT,
    worker_id TEXT,
    worker_hostname TEXT,
    worker_pid INTEGER,
    worker_process_name TEXT,
    created_at INTEGER NOT NULL,
    UNIQUE (task_id, attempt)
) STRICT;

CREATE INDEX taskmanager_task_attempts_error_code ON taskmanager_task_attempts (error_code)
    WHERE error_code IS NOT NULL;
CREATE INDEX taskmanager_task_attempts_finished_at ON taskmanager_task_attempts (finished_at DESC);
-- The failures of the last hour, without a look at all that went well in it.
CREATE INDEX taskmanager_task_attempts_failed ON taskmanager_task_attempts (finished_at DESC, outcome, error_code, task_id)
    WHERE error_code IS NOT NULL;

CREATE TABLE taskmanager_heartbeats (
    id INTEGER PRIMARY KEY,
    task_id TEXT,
    sender_id TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('claimer', 'runner')),
    sent_at INTEGER NOT NULL,
    hostname TEXT,
    pid INTEGER
) STRICT;

CREATE INDEX taskmanager_heartbeats_task_id ON taskmanager_heartbeats (task_id, role, sent_at DESC);
CREATE INDEX taskmanager_heartbeats_sender_id ON taskmanager_heartbeats (sender_id, role, sent_at DESC);

CREATE TABLE taskmanager_worker_states (
    id INTEGER PRIMARY KEY,
    worker_id TEXT NOT NULL,
    snapshot_at INTEGER NOT NULL,
    hostname TEXT,
    pid INTEGER,
    processes INTEGER,
    queues TEXT,
    tasks_running INTEGER,
    tasks_claimed INTEGER,
    memory_usage_mb REAL,
    children_memory_mb REAL,
    cpu_percent REAL,
    memory_percent REAL,
    max_claim_batch INTEGER,
    max_claim_per_worker INTEGER,
    cluster_wide_cap INTEGER,
    queue_priorities TEXT,
    queue_max_concurrency TEXT,
    recovery_config TEXT,
    worker_started_at INTEGER
) STRICT;

CREATE INDEX taskmanager_worker_states_worker_id ON taskmanager_worker_states (worker_id, snapshot_at DESC);
CREATE INDEX taskmanager_worker_states_snapshot_at ON taskmanager_worker_states (snapshot_at);

CREATE TABLE taskmanager_schedule_state (
    schedule_name TEXT NOT NULL PRIMARY KEY,
    last_run_at INTEGER,
    next_run_at INTEGER,
    last_task_id TEXT,
    run_count INTEGER NOT NULL DEFAULT 0 CHECK (run_count >= 0),
    config_hash TEXT NOT NULL,
    paused_at INTEGER,
    updated_at INTEGER NOT NULL,
    owner_id TEXT NOT NULL,
    task_name TEXT NOT NULL,
    definition TEXT NOT NULL,
    template TEXT NOT NULL
) STRICT;

CREATE TABLE taskmanager_instances (
    instance_id TEXT NOT NULL PRIMARY KEY,
    instance_name TEXT,
    hostname TEXT NOT NULL,
    pid INTEGER NOT NULL,
    process_name TEXT NOT NULL,
    boot_id TEXT,
    started_at INTEGER NOT NULL,
    stopped_at INTEGER,
    live_tasks TEXT,
    updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE taskmanager_queues (
    queue_name TEXT NOT NULL PRIMARY KEY,
    paused_at INTEGER
) STRICT;
