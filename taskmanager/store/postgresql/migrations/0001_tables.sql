-- Instants are bigint microseconds since 1970 UTC, flags are 0 or 1, JSON is text. Texts are ordered by their bytes.
-- Names of tables and columns are those of the file, so that one SQL reads both.
--
-- An update that changes any column of an index, or of the condition of one, adds an entry to each index that the new row
-- belongs to. Every start and end changes the status, which the claim must find by an index. So what a start or an end
-- costs is the number of indexes that hold all rows: the key and `sent_at`. All others hold the rows of few statuses.

CREATE TABLE taskmanager_tasks (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    task_name text COLLATE "C" NOT NULL,
    queue_name text COLLATE "C" NOT NULL,
    priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 100),
    args text COLLATE "C",
    kwargs text COLLATE "C",
    status text COLLATE "C" NOT NULL CHECK (
        status IN ('PENDING', 'CLAIMED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED', 'INTERRUPTED')
    ),
    sent_at bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    claimed_at bigint,
    claimed_by_worker_id text COLLATE "C",
    started_at bigint,
    completed_at bigint,
    failed_at bigint,
    result text COLLATE "C",
    failed_reason text COLLATE "C",
    error_code text COLLATE "C",
    good_until bigint,
    retry_count integer NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    max_retries integer NOT NULL DEFAULT 0 CHECK (max_retries >= 0),
    next_retry_at bigint,
    start_count integer NOT NULL DEFAULT 0 CHECK (start_count >= 0),
    crash_count integer NOT NULL DEFAULT 0 CHECK (crash_count >= 0),
    snooze_count integer NOT NULL DEFAULT 0 CHECK (snooze_count >= 0),
    task_options text COLLATE "C" NOT NULL DEFAULT '{}',
    tags text COLLATE "C",
    idempotency_key text COLLATE "C",
    enqueue_sha text COLLATE "C",
    scheduled_for bigint,
    cancel_requested_at bigint,
    progress text COLLATE "C",
    log text COLLATE "C",
    worker_pid bigint,
    worker_hostname text COLLATE "C",
    worker_process_name text COLLATE "C",
    finalizing_at bigint,
    finalizing_by_worker_id text COLLATE "C",
    claim_expires_at bigint,
    is_workflow_task smallint NOT NULL DEFAULT 0 CHECK (is_workflow_task IN (0, 1)),
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    claimed smallint NOT NULL DEFAULT 0,
    CONSTRAINT claimed_says_claimed CHECK (claimed = (status = 'CLAIMED')::integer),
    CONSTRAINT claimed_has_owner CHECK (status <> 'CLAIMED' OR claimed_by_worker_id IS NOT NULL),
    CONSTRAINT running_has_owner_and_start CHECK (
        status <> 'RUNNING' OR (claimed_by_worker_id IS NOT NULL AND started_at IS NOT NULL AND start_count >= 1)
    ),
    CONSTRAINT completed_at_says_completed CHECK ((completed_at IS NOT NULL) = (status = 'COMPLETED')),
    CONSTRAINT error_code_is_final CHECK (
        error_code IS NULL OR status IN ('FAILED', 'CANCELLED', 'EXPIRED', 'INTERRUPTED')
    )
) WITH (
    fillfactor = 80,
    -- A task leaves one or two dead rows. Twentieths of the table keep the scans of its indexes rare, and their dead
    -- entries few.
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_limit = 1000
);

CREATE INDEX taskmanager_tasks_sent_at ON taskmanager_tasks (sent_at);
-- Nearly all rows are COMPLETED, and what all rows have in common needs no index: they are what is left when the others
-- are counted.
CREATE INDEX taskmanager_tasks_status ON taskmanager_tasks (status, sent_at) WHERE status <> 'COMPLETED';
-- Limits that hold for all instances count what is claimed, by queue.
CREATE INDEX taskmanager_tasks_claimed ON taskmanager_tasks (queue_name) WHERE claimed = 1;
-- What nobody holds and may expire there.
CREATE INDEX taskmanager_tasks_good_until ON taskmanager_tasks (good_until)
    WHERE good_until IS NOT NULL AND claimed_by_worker_id IS NULL AND status = 'PENDING';
-- A code may be longer than an entry of a b-tree, and is only ever compared.
CREATE INDEX taskmanager_tasks_error_code ON taskmanager_tasks USING hash (error_code) WHERE error_code IS NOT NULL;
-- What may be claimed in one queue, best first, whatever the function.
CREATE INDEX taskmanager_tasks_ready ON taskmanager_tasks (queue_name, priority, enqueued_at, id, task_name)
    WHERE claimed_by_worker_id IS NULL AND status = 'PENDING';
-- The same, with the function first: rows that nobody can run cost a claim nothing.
CREATE INDEX taskmanager_tasks_free ON taskmanager_tasks (task_name, queue_name, priority, enqueued_at, id)
    WHERE claimed_by_worker_id IS NULL AND status = 'PENDING';
-- What waits in the memory of an instance, in the same order: another one that is idle may take it over.
CREATE INDEX taskmanager_tasks_waiting ON taskmanager_tasks (queue_name, priority, enqueued_at, id)
    WHERE claimed_by_worker_id IS NOT NULL AND status IN ('PENDING', 'CLAIMED');
CREATE INDEX taskmanager_tasks_owner ON taskmanager_tasks (claimed_by_worker_id, id)
    WHERE claimed_by_worker_id IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING');
-- Whether a schedule has a run that has not ended: all its runs have the same tags, which may be long.
CREATE INDEX taskmanager_tasks_scheduled ON taskmanager_tasks USING hash (tags)
    WHERE scheduled_for IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING');
CREATE INDEX taskmanager_tasks_cancel ON taskmanager_tasks (claimed_by_worker_id)
    WHERE cancel_requested_at IS NOT NULL;
-- Live tasks of nodes, among which are those whose workflow is gone.
CREATE INDEX taskmanager_tasks_of_workflows ON taskmanager_tasks (id)
    WHERE is_workflow_task = 1 AND status IN ('PENDING', 'CLAIMED', 'RUNNING');
-- For people: WHERE tags::jsonb @> '{"customer": "7"}'. It also refuses tags that are no JSON.
CREATE INDEX taskmanager_tasks_tags ON taskmanager_tasks USING gin ((tags::jsonb) jsonb_path_ops)
    WHERE tags IS NOT NULL;

CREATE TABLE taskmanager_task_attempts (
    id bigint GENERATED BY DEFAULT AS IDENTITY,
    task_id text COLLATE "C" NOT NULL,
    attempt integer NOT NULL CHECK (attempt >= 1),
    outcome text COLLATE "C" NOT NULL CHECK (outcome IN ('COMPLETED', 'FAILED', 'WORKER_FAILURE', 'INTERRUPTED')),
    will_retry smallint NOT NULL CHECK (will_retry IN (0, 1)),
    started_at bigint NOT NULL,
    finished_at bigint NOT NULL,
    error_code text COLLATE "C",
    error_message text COLLATE "C",
    failed_reason text COLLATE "C",
    worker_id text COLLATE "C",
    worker_hostname text COLLATE "C",
    worker_pid bigint,
    worker_process_name text COLLATE "C",
    created_at bigint NOT NULL,
    -- The number is not the key: nobody asks for an attempt by it, and an index of it would cost every attempt.
    PRIMARY KEY (task_id, attempt)
);
ALTER TABLE taskmanager_task_attempts ADD CONSTRAINT taskmanager_task_attempts_of_task
    FOREIGN KEY (task_id) REFERENCES taskmanager_tasks (id) ON DELETE CASCADE;
CREATE INDEX taskmanager_task_attempts_finished_at ON taskmanager_task_attempts (finished_at);
-- The failures of the last hour, without a look at all that went well in it.
CREATE INDEX taskmanager_task_attempts_failed ON taskmanager_task_attempts (finished_at) WHERE error_code IS NOT NULL;

CREATE TABLE taskmanager_heartbeats (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    task_id text COLLATE "C",
    sender_id text COLLATE "C" NOT NULL,
    role text COLLATE "C" NOT NULL CHECK (role IN ('claimer', 'runner')),
    sent_at bigint NOT NULL,
    hostname text COLLATE "C",
    pid bigint
);
CREATE INDEX taskmanager_heartbeats_sender_id ON taskmanager_heartbeats (sender_id, role, sent_at DESC);

CREATE TABLE taskmanager_worker_states (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    worker_id text COLLATE "C" NOT NULL,
    snapshot_at bigint NOT NULL,
    hostname text COLLATE "C",
    pid bigint,
    processes bigint,
    queues text COLLATE "C",
    tasks_running bigint,
    tasks_claimed bigint,
    memory_usage_mb double precision,
    children_memory_mb double precision,
    cpu_percent double precision,
    memory_percent double precision,
    max_claim_batch bigint,
    max_claim_per_worker bigint,
    cluster_wide_cap bigint,
    queue_priorities text COLLATE "C",
    queue_max_concurrency text COLLATE "C",
    recovery_config text COLLATE "C",
    worker_started_at bigint
);
CREATE INDEX taskmanager_worker_states_worker_id ON taskmanager_worker_states (worker_id, snapshot_at DESC);
CREATE INDEX taskmanager_worker_states_snapshot_at ON taskmanager_worker_states (snapshot_at);

-- Small tables whose rows change often have room on their pages, so that a change touches no index.
CREATE TABLE taskmanager_schedule_state (
    schedule_name text COLLATE "C" NOT NULL PRIMARY KEY,
    last_run_at bigint,
    next_run_at bigint,
    last_task_id text COLLATE "C",
    run_count bigint NOT NULL DEFAULT 0 CHECK (run_count >= 0),
    config_hash text COLLATE "C" NOT NULL,
    paused_at bigint,
    updated_at bigint NOT NULL,
    owner_id text COLLATE "C" NOT NULL,
    task_name text COLLATE "C" NOT NULL,
    definition text COLLATE "C" NOT NULL,
    template text COLLATE "C" NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE taskmanager_instances (
    instance_id text COLLATE "C" NOT NULL PRIMARY KEY,
    instance_name text COLLATE "C",
    hostname text COLLATE "C" NOT NULL,
    pid bigint NOT NULL,
    process_name text COLLATE "C" NOT NULL,
    boot_id text COLLATE "C",
    started_at bigint NOT NULL,
    stopped_at bigint,
    live_tasks text COLLATE "C",
    updated_at bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE taskmanager_queues (
    queue_name text COLLATE "C" NOT NULL PRIMARY KEY,
    paused_at bigint
) WITH (fillfactor = 50);

-- What the steps of a task came to, so that a later run does not repeat them. `number` is 0 where a key names the step,
-- and `key` is empty where its number does. A patch is what `patched` has answered for a version, which is its key.
-- A sleep and a wait are records among the steps, with their numbers. `waits_for` is NULL for a step, empty for a sleep,
-- and else the name of the event. `due_at` is when it is over, or when a step is tried again. `wakes_at` is there while
-- the record has put its task to sleep: when that is woken. `event_id` is the event that a wait has received.
CREATE TABLE taskmanager_steps (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    task_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('step', 'patch')),
    number bigint NOT NULL CHECK (number >= 0),
    key text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    digest text COLLATE "C",
    started_at bigint NOT NULL,
    ended_at bigint,
    attempts bigint NOT NULL CHECK (attempts >= 1),
    result text COLLATE "C",
    error_code text COLLATE "C",
    error_message text COLLATE "C",
    is_final smallint NOT NULL CHECK (is_final IN (0, 1)),
    waits_for text COLLATE "C",
    due_at bigint,
    wakes_at bigint,
    event_id bigint,
    UNIQUE (task_id, kind, number, key)
);
ALTER TABLE taskmanager_steps ADD CONSTRAINT taskmanager_steps_of_task
    FOREIGN KEY (task_id) REFERENCES taskmanager_tasks (id) ON DELETE CASCADE;
-- An event is received when a record of its task names it. So what forgets the records gives the events back.
CREATE UNIQUE INDEX taskmanager_steps_received ON taskmanager_steps (task_id, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX taskmanager_steps_wakes_at ON taskmanager_steps (wakes_at) WHERE wakes_at IS NOT NULL;
CREATE INDEX taskmanager_steps_asleep ON taskmanager_steps (task_id, waits_for) WHERE wakes_at IS NOT NULL;

CREATE TABLE taskmanager_events (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    task_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL CHECK (name <> ''),
    value text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    sent_at bigint NOT NULL,
    UNIQUE (task_id, key)
);
ALTER TABLE taskmanager_events ADD CONSTRAINT taskmanager_events_of_task
    FOREIGN KEY (task_id) REFERENCES taskmanager_tasks (id) ON DELETE CASCADE;
CREATE INDEX taskmanager_events_name ON taskmanager_events (task_id, name);

-- Workflows: graphs of tasks. Who ends the task of a node readies its dependents in the same transaction, so a node has
-- all that its task needs but its inputs, and counts what it depends on: no list is read to judge it.
CREATE TABLE taskmanager_workflows (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL CHECK (
        status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')
    ),
    on_error text COLLATE "C" NOT NULL CHECK (on_error IN ('fail', 'pause')),
    output_task_index bigint,
    success_policy text COLLATE "C",
    result text COLLATE "C",
    error text COLLATE "C",
    definition_key text COLLATE "C" NOT NULL,
    parent_workflow_id text COLLATE "C",
    parent_task_index bigint,
    depth bigint NOT NULL CHECK (depth >= 0),
    root_workflow_id text COLLATE "C" NOT NULL,
    sent_at bigint NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint,
    completed_at bigint,
    cancelled_at bigint,
    updated_at bigint NOT NULL
);
ALTER TABLE taskmanager_workflows ADD CONSTRAINT taskmanager_workflows_of_root
    FOREIGN KEY (root_workflow_id) REFERENCES taskmanager_workflows (id) ON DELETE CASCADE
    DEFERRABLE INITIALLY DEFERRED;
CREATE INDEX taskmanager_workflows_sent_at ON taskmanager_workflows (sent_at, id);
CREATE INDEX taskmanager_workflows_status ON taskmanager_workflows (status, sent_at) WHERE status <> 'COMPLETED';
CREATE INDEX taskmanager_workflows_root ON taskmanager_workflows (root_workflow_id);
CREATE INDEX taskmanager_workflows_parent ON taskmanager_workflows (parent_workflow_id)
    WHERE parent_workflow_id IS NOT NULL;

-- The counters change with every end that a node depends on. No index knows them, so that such a change touches none.
CREATE TABLE taskmanager_workflow_tasks (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    workflow_id text COLLATE "C" NOT NULL,
    task_index bigint NOT NULL CHECK (task_index >= 0),
    status text COLLATE "C" NOT NULL CHECK (
        status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED')
    ),
    open bigint NOT NULL CHECK (open >= 0),
    completed bigint NOT NULL CHECK (completed >= 0),
    failed bigint NOT NULL CHECK (failed >= 0),
    inputs_open bigint NOT NULL CHECK (inputs_open >= 0),
    inputs_failed bigint NOT NULL CHECK (inputs_failed >= 0),
    join_type text COLLATE "C" NOT NULL CHECK (join_type IN ('all', 'any', 'quorum')),
    min_success bigint,
    allow_failed_deps smallint NOT NULL CHECK (allow_failed_deps IN (0, 1)),
    is_optional smallint NOT NULL CHECK (is_optional IN (0, 1)),
    is_subworkflow smallint NOT NULL CHECK (is_subworkflow IN (0, 1)),
    -- Whether the nodes that depend on it count its end; not yet while the workflow is paused.
    is_passed_on smallint NOT NULL DEFAULT 0 CHECK (is_passed_on IN (0, 1)),
    -- Whether somebody has resumed the workflow since it failed.
    is_accepted smallint NOT NULL DEFAULT 0 CHECK (is_accepted IN (0, 1)),
    task_id text COLLATE "C",
    sub_workflow_id text COLLATE "C",
    created_at bigint NOT NULL,
    started_at bigint,
    completed_at bigint,
    delay_us bigint NOT NULL CHECK (delay_us >= 0),
    priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 100),
    max_retries bigint NOT NULL CHECK (max_retries >= 0),
    node_id text COLLATE "C" NOT NULL,
    task_name text COLLATE "C" NOT NULL,
    queue_name text COLLATE "C" NOT NULL,
    task_options text COLLATE "C" NOT NULL,
    tags text COLLATE "C",
    dependencies text COLLATE "C" NOT NULL,
    sub_workflow_summary text COLLATE "C",
    args text COLLATE "C",
    kwargs text COLLATE "C",
    args_from text COLLATE "C",
    result text COLLATE "C",
    error text COLLATE "C",
    UNIQUE (workflow_id, task_index),
    UNIQUE (workflow_id, node_id)
) WITH (fillfactor = 80);
ALTER TABLE taskmanager_workflow_tasks ADD CONSTRAINT taskmanager_workflow_tasks_of_workflow
    FOREIGN KEY (workflow_id) REFERENCES taskmanager_workflows (id) ON DELETE CASCADE;
CREATE UNIQUE INDEX taskmanager_workflow_tasks_task_id ON taskmanager_workflow_tasks (task_id)
    WHERE task_id IS NOT NULL;
-- Whether a workflow has a node that has not ended.
CREATE INDEX taskmanager_workflow_tasks_open ON taskmanager_workflow_tasks (workflow_id, status)
    WHERE status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED');
-- What another program has left half done: an end of which no dependent knows.
CREATE INDEX taskmanager_workflow_tasks_untold ON taskmanager_workflow_tasks (workflow_id)
    WHERE is_passed_on = 0 AND status IN ('COMPLETED', 'FAILED', 'SKIPPED');

CREATE TABLE taskmanager_workflow_edges (
    workflow_id text COLLATE "C" NOT NULL,
    from_index bigint NOT NULL,
    to_index bigint NOT NULL,
    means smallint NOT NULL CHECK (means BETWEEN 1 AND 7),
    PRIMARY KEY (workflow_id, from_index, to_index)
);
ALTER TABLE taskmanager_workflow_edges ADD CONSTRAINT taskmanager_workflow_edges_of_workflow
    FOREIGN KEY (workflow_id) REFERENCES taskmanager_workflows (id) ON DELETE CASCADE;

-- What has happened, counted by the minute and by the hour: charts need no look at the rows of tasks.
-- Of a span of `span` seconds that begins at `at`. `waited_3` counts the starts that had waited for less than 4 * 4 * 4
-- times 1.024 ms, and not for less than 4 * 4 times that; `ran_3` the same of ends and how long the last attempt took.
-- The last counts all that is longer. An empty name stands for all tasks that are too many to be told apart.
CREATE TABLE taskmanager_figures (
    span smallint NOT NULL CHECK (span IN (60, 3600)),
    at bigint NOT NULL,
    task_name text COLLATE "C" NOT NULL,
    queue_name text COLLATE "C" NOT NULL,
    started bigint NOT NULL DEFAULT 0,
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    expired bigint NOT NULL DEFAULT 0,
    interrupted bigint NOT NULL DEFAULT 0,
    retried bigint NOT NULL DEFAULT 0,
    waited_0 bigint NOT NULL DEFAULT 0, waited_1 bigint NOT NULL DEFAULT 0, waited_2 bigint NOT NULL DEFAULT 0, waited_3 bigint NOT NULL DEFAULT 0,
    waited_4 bigint NOT NULL DEFAULT 0, waited_5 bigint NOT NULL DEFAULT 0, waited_6 bigint NOT NULL DEFAULT 0, waited_7 bigint NOT NULL DEFAULT 0,
    waited_8 bigint NOT NULL DEFAULT 0, waited_9 bigint NOT NULL DEFAULT 0, waited_10 bigint NOT NULL DEFAULT 0, waited_11 bigint NOT NULL DEFAULT 0,
    waited_12 bigint NOT NULL DEFAULT 0, waited_13 bigint NOT NULL DEFAULT 0, waited_14 bigint NOT NULL DEFAULT 0, waited_15 bigint NOT NULL DEFAULT 0,
    ran_0 bigint NOT NULL DEFAULT 0, ran_1 bigint NOT NULL DEFAULT 0, ran_2 bigint NOT NULL DEFAULT 0, ran_3 bigint NOT NULL DEFAULT 0,
    ran_4 bigint NOT NULL DEFAULT 0, ran_5 bigint NOT NULL DEFAULT 0, ran_6 bigint NOT NULL DEFAULT 0, ran_7 bigint NOT NULL DEFAULT 0,
    ran_8 bigint NOT NULL DEFAULT 0, ran_9 bigint NOT NULL DEFAULT 0, ran_10 bigint NOT NULL DEFAULT 0, ran_11 bigint NOT NULL DEFAULT 0,
    ran_12 bigint NOT NULL DEFAULT 0, ran_13 bigint NOT NULL DEFAULT 0, ran_14 bigint NOT NULL DEFAULT 0, ran_15 bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (span, at, task_name, queue_name)
) WITH (fillfactor = 50);
