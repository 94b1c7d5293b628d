-- Workflows: graphs of tasks. Who ends the task of a node readies its dependents in the same transaction, so a node has
-- all that its task needs but its inputs, and counts what it depends on: no list is read to judge it.
CREATE TABLE taskmanager_workflows (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    status TEXT NOT NULL CHECK (
        status = 'PENDING' OR status = 'RUNNING' OR status = 'PAUSED' OR status = 'COMPLETED' OR status = 'FAILED'
        OR status = 'CANCELLED'
    ),
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
CREATE INDEX taskmanager_workflows_parent ON taskmanager_workflows (parent_workflow_id)
    WHERE parent_workflow_id IS NOT NULL;

-- What may be large stands last: the counters are read and written without it.
CREATE TABLE taskmanager_workflow_tasks (
    id INTEGER PRIMARY KEY,
    workflow_id TEXT NOT NULL REFERENCES taskmanager_workflows (id) ON DELETE CASCADE,
    task_index INTEGER NOT NULL CHECK (task_index >= 0),
    status TEXT NOT NULL CHECK (
        status = 'PENDING' OR status = 'READY' OR status = 'ENQUEUED' OR status = 'RUNNING' OR status = 'COMPLETED'
        OR status = 'FAILED' OR status = 'SKIPPED'
    ),
    open INTEGER NOT NULL CHECK (open >= 0),
    completed INTEGER NOT NULL CHECK (completed >= 0),
    failed INTEGER NOT NULL CHECK (failed >= 0),
    inputs_open INTEGER NOT NULL CHECK (inputs_open >= 0),
    inputs_failed INTEGER NOT NULL CHECK (inputs_failed >= 0),
    join_type TEXT NOT NULL CHECK (join_type = 'all' OR join_type = 'any' OR join_type = 'quorum'),
    min_success INTEGER,
    allow_failed_deps INTEGER NOT NULL CHECK (allow_failed_deps IN (0, 1)),
    is_optional INTEGER NOT NULL CHECK (is_optional IN (0, 1)),
    is_subworkflow INTEGER NOT NULL CHECK (is_subworkflow IN (0, 1)),
    -- Whether the nodes that depend on it count its end; not yet while the workflow is paused.
    is_passed_on INTEGER NOT NULL DEFAULT 0 CHECK (is_passed_on IN (0, 1)),
    -- Whether somebody has resumed the workflow since it failed.
    is_accepted INTEGER NOT NULL DEFAULT 0 CHECK (is_accepted IN (0, 1)),
    task_id TEXT,
    sub_workflow_id TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    completed_at INTEGER,
    delay_us INTEGER NOT NULL CHECK (delay_us >= 0),
    priority INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 100),
    max_retries INTEGER NOT NULL CHECK (max_retries >= 0),
    node_id TEXT NOT NULL,
    task_name TEXT NOT NULL,
    queue_name TEXT NOT NULL,
    task_options TEXT NOT NULL,
    tags TEXT,
    dependencies TEXT NOT NULL,
    sub_workflow_summary TEXT,
    args TEXT,
    kwargs TEXT,
    args_from TEXT,
    result TEXT,
    error TEXT,
    UNIQUE (workflow_id, task_index),
    UNIQUE (workflow_id, node_id)
) STRICT;

CREATE UNIQUE INDEX taskmanager_workflow_tasks_task_id ON taskmanager_workflow_tasks (task_id)
    WHERE task_id IS NOT NULL;
-- Whether a workflow has a node that has not ended.
CREATE INDEX taskmanager_workflow_tasks_open ON taskmanager_workflow_tasks (workflow_id, status)
    WHERE status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED');

-- What another program has left half done: an end of which no dependent knows, and a node that waits for nothing.
CREATE INDEX taskmanager_workflow_tasks_untold ON taskmanager_workflow_tasks (workflow_id)
    WHERE is_passed_on = 0 AND status IN ('COMPLETED', 'FAILED', 'SKIPPED');
CREATE INDEX taskmanager_workflow_tasks_idle ON taskmanager_workflow_tasks (workflow_id)
    WHERE status = 'PENDING' AND open = 0 AND inputs_open = 0;

-- Live tasks of nodes, among which are those whose workflow is gone.
CREATE INDEX taskmanager_tasks_of_workflows ON taskmanager_tasks (id)
    WHERE is_workflow_task = 1 AND status IN ('PENDING', 'CLAIMED', 'RUNNING');

CREATE TABLE taskmanager_workflow_edges (
    workflow_id TEXT NOT NULL REFERENCES taskmanager_workflows (id) ON DELETE CASCADE,
    from_index INTEGER NOT NULL,
    to_index INTEGER NOT NULL,
    means INTEGER NOT NULL CHECK (means BETWEEN 1 AND 7),
    PRIMARY KEY (workflow_id, from_index, to_index)
) STRICT, WITHOUT ROWID;
