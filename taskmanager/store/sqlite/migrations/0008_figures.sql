-- What has happened, counted by the minute and by the hour: charts need no look at the rows of tasks.
-- Of a span of `span` seconds that begins at `at`. `waited_3` counts the starts that had waited for less than 4 * 4 * 4
-- times 1.024 ms, and not for less than 4 * 4 times that; `ran_3` the same of ends and how long the last attempt took.
-- The last counts all that is longer. An empty name stands for all tasks that are too many to be told apart.
CREATE TABLE taskmanager_figures (
    span INTEGER NOT NULL CHECK (span IN (60, 3600)),
    at INTEGER NOT NULL,
    task_name TEXT NOT NULL,
    queue_name TEXT NOT NULL,
    started INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    interrupted INTEGER NOT NULL DEFAULT 0,
    retried INTEGER NOT NULL DEFAULT 0,
    waited_0 INTEGER NOT NULL DEFAULT 0, waited_1 INTEGER NOT NULL DEFAULT 0, waited_2 INTEGER NOT NULL DEFAULT 0, waited_3 INTEGER NOT NULL DEFAULT 0,
    waited_4 INTEGER NOT NULL DEFAULT 0, waited_5 INTEGER NOT NULL DEFAULT 0, waited_6 INTEGER NOT NULL DEFAULT 0, waited_7 INTEGER NOT NULL DEFAULT 0,
    waited_8 INTEGER NOT NULL DEFAULT 0, waited_9 INTEGER NOT NULL DEFAULT 0, waited_10 INTEGER NOT NULL DEFAULT 0, waited_11 INTEGER NOT NULL DEFAULT 0,
    waited_12 INTEGER NOT NULL DEFAULT 0, waited_13 INTEGER NOT NULL DEFAULT 0, waited_14 INTEGER NOT NULL DEFAULT 0, waited_15 INTEGER NOT NULL DEFAULT 0,
    ran_0 INTEGER NOT NULL DEFAULT 0, ran_1 INTEGER NOT NULL DEFAULT 0, ran_2 INTEGER NOT NULL DEFAULT 0, ran_3 INTEGER NOT NULL DEFAULT 0,
    ran_4 INTEGER NOT NULL DEFAULT 0, ran_5 INTEGER NOT NULL DEFAULT 0, ran_6 INTEGER NOT NULL DEFAULT 0, ran_7 INTEGER NOT NULL DEFAULT 0,
    ran_8 INTEGER NOT NULL DEFAULT 0, ran_9 INTEGER NOT NULL DEFAULT 0, ran_10 INTEGER NOT NULL DEFAULT 0, ran_11 INTEGER NOT NULL DEFAULT 0,
    ran_12 INTEGER NOT NULL DEFAULT 0, ran_13 INTEGER NOT NULL DEFAULT 0, ran_14 INTEGER NOT NULL DEFAULT 0, ran_15 INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (span, at, task_name, queue_name)
) STRICT, WITHOUT ROWID;
