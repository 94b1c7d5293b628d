-- Sleeps and waits are records among the steps of their task: `waits_for` is NULL for a step, empty for a sleep, and else
-- the name of an event. An event is received when a record names it.
ALTER TABLE taskmanager_steps ADD COLUMN waits_for TEXT;
ALTER TABLE taskmanager_steps ADD COLUMN due_at INTEGER;
ALTER TABLE taskmanager_steps ADD COLUMN event_id INTEGER;

CREATE TABLE taskmanager_events (
    id INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES taskmanager_tasks (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value TEXT,
    key TEXT,
    sent_at INTEGER NOT NULL,
    UNIQUE (task_id, key)
) STRICT;

CREATE UNIQUE INDEX taskmanager_steps_event_id ON taskmanager_steps (event_id) WHERE event_id IS NOT NULL;
