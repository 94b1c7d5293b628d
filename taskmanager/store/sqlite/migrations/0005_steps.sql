-- What the steps of a task came to, so that a later run does not repeat them. `number` is 0 where a key names the step,
-- and `key` is empty where its number does. A patch is what `patched` has answered for a version, which is its key.
CREATE TABLE taskmanager_steps (
    id INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES taskmanager_tasks (id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('step', 'patch')),
    number INTEGER NOT NULL CHECK (number >= 0),
    key TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    attempts INTEGER NOT NULL CHECK (attempts >= 1),
    result TEXT,
    error_code TEXT,
    error_message TEXT,
    is_final INTEGER NOT NULL CHECK (is_final IN (0, 1)),
    UNIQUE (task_id, kind, number, key)
) STRICT;
