-- A sleep and a wait are records among the steps, with their numbers. `waits_for` is NULL for a step, empty for a sleep,
-- and else the name of the event. `due_at` is when it is over, or when a step is tried again. `wakes_at` is there while
-- the record has put its task to sleep: when that is woken. `event_id` is the event that a wait has received.
ALTER TABLE taskmanager_steps ADD COLUMN waits_for TEXT;
ALTER TABLE taskmanager_steps ADD COLUMN due_at INTEGER;
ALTER TABLE taskmanager_steps ADD COLUMN wakes_at INTEGER;
ALTER TABLE taskmanager_steps ADD COLUMN event_id INTEGER;
-- An event is received when a record of its task names it. So what forgets the records gives the events back. The number
-- alone would not do: a task whose file was replaced names events that are those of others in the new file.
CREATE UNIQUE INDEX taskmanager_steps_received ON taskmanager_steps (task_id, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX taskmanager_steps_wakes_at ON taskmanager_steps (wakes_at) WHERE wakes_at IS NOT NULL;
CREATE INDEX taskmanager_steps_asleep ON taskmanager_steps (task_id, waits_for) WHERE wakes_at IS NOT NULL;
CREATE TABLE taskmanager_events (
    id INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES taskmanager_tasks (id) ON DELETE CASCADE,
    name TEXT NOT NULL CHECK (name <> ''),
    value TEXT NOT NULL,
    key TEXT,
    sent_at INTEGER NOT NULL,
    UNIQUE (task_id, key)
) STRICT;
CREATE INDEX taskmanager_events_name ON taskmanager_events (task_id, name);
