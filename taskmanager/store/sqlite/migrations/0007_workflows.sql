-- Workflows: graphs of tasks. Who ends the task of a node readies its dependents in the same transaction, so a node has
-- all that its task needs but its inputs, and counts what it depends on: no list is read to judge it.
CREATE TABLE taskmanager_workflows (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')),
    on_error TEXT NOT NULL CHECK (on_error IN ('fail', 'pause')),
    output_task_index INTEGER,
    success_policy TEXT,
    result TEXT,
    error TEXT,
    definition_key TEXT NOT NULL,
    parent_workflow_id TEXT,
    parent_task_index INTEGER,
    depth INTEGER NOT NULL CHECK (depth >= 0),
    root_workflow_id TEXT NOT NULL REFERENCES taskmanager_workflows (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    sent_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    completed_at INTEGER,
    cancelled_at INTEGER,
    updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX taskmanager_workflows_sent_at ON taskmanager_workflows (sent_at, id);
CREATE INDEX taskmanager_workflows_status ON taskmanager_workflows (status, sent_at) WHERE status <> 'COMPLETED';
CREATE INDEX taskmanager_workflows_root ON taskmanager_workflows (root_workflow_id);

CREATE TABLE taskmanager_workflow_tasks (
    id INTEGER PRIMARY KEY,
    workflow_id TEXT NOT NULL REFERENCES taskmanager_workflows (id) ON DELETE CASCADE,
    task_index INTEGER NOT NULL CHECK (task_index >= 0),
    node_id TEXT NOT NULL,
    task_name TEXT NOT NULL,
    args TEXT,
    kwargs TEXT,
    queue_name TEXT NOT NULL,
    priority INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 100),
    max_retries INTEGER NOT NULL CHECK (max_retries >= 0),
    task_options TEXT NOT NULL,
    tags TEXT,
    delay_us INTEGER NOT NULL CHECK (delay_us >= 0),
    dependencies TEXT NOT NULL,
    args_from TEXT,
    allow_failed_deps INTEGER NOT NULL CHECK (allow_failed_deps IN (0, 1)),
    join_type TEXT NOT NULL CHECK (join_type IN ('all', 'any', 'quorum')),
    min_success INTEGER,
    is_optional INTEGER NOT NULL CHECK (is_optional IN (0, 1)),
    is_subworkflow INTEGER NOT NULL CHECK (is_subworkflow IN (0, 1)),
    sub_workflow_id TEXT,
    sub_workflow_summary TEXT,
    status TEXT NOT NULL CHECK (
        status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED')
    ),
    task_id TEXT,
    open INTEGER NOT NULL CHECK (open >= 0),
    completed INTEGER NOT NULL CHECK (completed >= 0),
    failed INTEGER NOT NULL CHECK (failed >= 0),
    inputs_open INTEGER NOT NULL CHECK (inputs_open >= 0),
    inputs_failed INTEGER NOT NULL CHECK (inputs_failed >= 0),
    result TEXT,
    error TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    completed_at INTEGER,
    UNIQUE (workflow_id, task_index),
    UNIQUE (workflow_id, node_id)
) STRICT;

CREATE UNIQUE INDEX taskmanager_workflow_tasks_task_id ON taskmanager_workflow_tasks (task_id)
    WHERE task_id IS NOT NULL;
-- Whether a workflow has a node that has not ended.
CREATE INDEX taskmanager_workflow_tasks_open ON taskmanager_workflow_tasks (workflow_id, status)
    WHERE status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED');

CREATE TABLE taskmanager_workflow_edges (
    workflow_id TEXT NOT NULL REFERENCES taskmanager_workflows (id) ON DELETE CASCADE,
    from_index INTEGER NOT NULL,
    to_index INTEGER NOT NULL,
    means INTEGER NOT NULL CHECK (means BETWEEN 1 AND 7),
    PRIMARY KEY (workflow_id, from_index, to_index)
) STRICT, WITHOUT ROWID;
