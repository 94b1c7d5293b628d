"""Reads. Each finishes within one call, so no read transaction outlives it and pins the log.

Rows come back packed as one JSON text: a result of five hundred rows is one `sqlite3_step`, not five hundred, and each
step would have to win the GIL back from a busy event loop.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from taskmanager.model.record import PAYLOAD, SENDER_KEY, AttemptRow, TaskRow
from taskmanager.model.states import LIVE, TaskStatus
from taskmanager.model.steps import StepRow
from taskmanager.model.workflows import HELD
from taskmanager.store.protocol import InstanceRow, News, TaskFilter
from taskmanager.store.sql.rows import (
    Undecodable,
    is_odd_id,
    packed,
    packed_rows,
    read_attempt,
    read_row,
    status_of,
    unpacked,
)
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import ATTEMPT_COLUMNS, TASK_COLUMNS, is_live, quoted

_TASK: Final = ", ".join(f"t.{name}" for name in TASK_COLUMNS)
CARRIES: Final = """
NOT EXISTS (
    SELECT 1 FROM json_each(:tags) AS asked WHERE NOT EXISTS (
        SELECT 1 FROM json_each(iif(json_valid(t.tags), t.tags, '{}')) AS tag
        WHERE tag.key = asked.key AND tag.value = asked.value
    )
)
"""
"""A task `t` carries all of `tags`, which is an object in JSON."""
SUMMARY: Final = ", ".join(f"NULL AS {name}" if name in PAYLOAD else f"t.{name}" for name in TASK_COLUMNS)
"""The columns of a row in a list."""
_NAMES: Final = ", ".join(TASK_COLUMNS)
_UNDECODABLE: Final = "\ufffd"


def task_rows(
    connection: Session,
    source: str,
    parameters: Sequence[Any] | dict[str, Any],
    columns: str = _TASK,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[TaskRow]:
    """The tasks `t` of `source`, which is all that follows FROM. Each query is done in a block of its own `around` it.

    PostgreSQL takes no second query in a transaction in which the first one has failed.
    """
    packed = f"SELECT json_group_array(json_array({_NAMES})) FROM (SELECT {columns} FROM {source})"
    try:
        with around():
            (text,) = connection.execute(packed, parameters).fetchone()
    except connection.too_large:
        # Together longer than the longest text that the database makes (1 GB); one by one they are not.
        with around():
            return [read_row(row) for row in connection.execute(f"SELECT {columns} FROM {source}", parameters)]
    return packed_rows(text)


def hops(source: str, where: str, *columns: str, given: str = "", limit: int | None = None) -> str:
    """Return a WITH clause for the values that stand in these columns, with which an index begins.

    It goes from each value straight to the next one, so it costs by the number of values, not of rows. The table
    `each_COLUMN` holds the values of a column, beside those of the columns before it, and a NULL at the end of each
    series. `given` is a query for the values of the first column. With a `limit`, no table gets more rows than that; it
    has the first value of each series before any second one.
    """
    tables, bound = [], "" if limit is None else f" LIMIT {limit}"
    for place, column in enumerate(columns):
        keys, table, parent = columns[:place], f"each_{column}", f"each_{columns[place - 1]}"
        if given and not keys:
            tables.append(f"{table} ({column}) AS ({given})")
            continue
        first = _least(source, where, column, keys, parent)
        from_parent = f"FROM {parent} WHERE {keys[-1]} IS NOT NULL" if keys else ""
        following = _least(source, f"{column} > {table}.{column} AND {where}", column, keys, table)
        tables.append(
            f"{table} ({', '.join((*keys, column))}) AS"
            f" ({first} {from_parent} UNION ALL {following} FROM {table} WHERE {column} IS NOT NULL{bound})"
        )
    return f"WITH RECURSIVE {', '.join(tables)}"


def _least(source: str, where: str, column: str, keys: Sequence[str], table: str) -> str:
    same = "".join(f"{key} = {table}.{key} AND " for key in keys)
    shown = "".join(f"{table}.{key}, " for key in keys)
    return f"SELECT {shown}(SELECT min({column}) FROM {source} WHERE {same}{where})"


def fetch(connection: Session, task_id: str) -> TaskRow | None:
    """See `Store.fetch`."""
    query = f"SELECT {_TASK} FROM taskmanager_tasks AS t WHERE t.id = CAST(? AS TEXT)"
    row = connection.execute(query, (whole_id(connection, task_id),)).fetchone()
    return None if row is None else read_row(row)


def whole_id(connection: Session, task_id: str) -> str:
    """The id as it stands in the file, where somebody gives one that is not UTF-8 as he has seen it."""
    if _UNDECODABLE not in task_id or isinstance(task_id, Undecodable):
        return task_id
    found = connection.execute("SELECT id FROM taskmanager_tasks").fetchall()
    return next((each for (each,) in found if each == task_id), task_id)


def fetch_attempts(connection: Session, task_id: str) -> list[AttemptRow]:
    """See `Store.fetch_attempts`."""
    names = ", ".join(ATTEMPT_COLUMNS)
    query = f"SELECT {names} FROM taskmanager_task_attempts WHERE task_id = CAST(? AS TEXT) ORDER BY attempt"
    return [read_attempt(row) for row in connection.execute(query, (task_id,)).fetchall()]


def fetch_steps(connection: Session, task_id: str) -> list[StepRow]:
    """See `Store.fetch_steps`."""
    names = ", ".join(StepRow._fields)
    query = f"SELECT {names} FROM taskmanager_steps WHERE task_id = CAST(? AS TEXT) ORDER BY id"
    return [StepRow._make(row) for row in connection.execute(query, (task_id,)).fetchall()]


def fetch_ids(connection: Session, task_ids: Sequence[str], columns: str = _TASK) -> dict[str, TaskRow]:
    """See `Store.fetch_ids`."""
    if not task_ids:
        return {}
    source = "json_each(?) AS wanted JOIN taskmanager_tasks AS t ON t.id = wanted.value"
    rows = task_rows(connection, source, (json.dumps(list(task_ids)),), columns)
    rows += filter(None, [fetch(connection, each) for each in task_ids if is_odd_id(each)])
    return {row.task_id: row for row in rows}


def fetch_many(connection: Session, wanted: TaskFilter) -> list[TaskRow]:
    """See `Store.fetch_many`."""
    conditions, given = fitting(wanted)
    return newest(connection, conditions, given, wanted.limit)


def find_ids(connection: Session, wanted: TaskFilter, statuses: Collection[TaskStatus]) -> list[str]:
    """See `Store.find_ids`."""
    conditions, given = fitting(wanted)
    return ids_of(connection, [f"t.status IN ({quoted(sorted(statuses))})", *conditions], given)


def ids_of(connection: Session, conditions: Sequence[str], parameters: dict[str, Any]) -> list[str]:
    """The ids of all for which that holds, oldest first: the order in which a batch works through them."""
    source = f"SELECT t.id FROM taskmanager_tasks AS t {where(conditions)} ORDER BY t.sent_at, t.id"
    return packed(connection, f"SELECT json_group_array(id) FROM ({source})", parameters)


def fitting(wanted: TaskFilter) -> tuple[list[str], dict[str, Any]]:
    """The conditions for a task `t` to fit, and their parameters."""
    names = ("status", "task_name", "queue_name", "task_id", "error_code")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(wanted, name)) is not None}
    conditions = [f"t.{'id' if name == 'task_id' else name} = CAST(:{name} AS TEXT)" for name in given]
    if wanted.before is not None:
        given["before_at"], given["before_id"] = wanted.before
        conditions.append("(t.sent_at, t.id) < (:before_at, CAST(:before_id AS TEXT))")
    if wanted.since is not None:
        given["since"] = wanted.since
        conditions.append("t.updated_at >= :since")
    if wanted.tags:
        given["tags"] = json.dumps(dict(wanted.tags))
        conditions.append(CARRIES)
    return conditions, given


def newest(connection: Session, conditions: Sequence[str], parameters: dict[str, Any], limit: int) -> list[TaskRow]:
    """At most `limit` rows for which all of that holds, newest first, without their `PAYLOAD`."""
    source = f"taskmanager_tasks AS t {where(conditions)} ORDER BY t.sent_at DESC, t.id DESC LIMIT :limit"
    return task_rows(connection, source, parameters | {"limit": limit}, SUMMARY)


def where(conditions: Sequence[str]) -> str:
    """The clause that wants all of them; none where there are none."""
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


def first_unfinished(connection: Session, sender: str, tags: Mapping[str, str], since: int = 0) -> int | None:
    """See `Store.first_unfinished`. It ends with the first that it finds, and sees no row that has ended."""
    carries = f" AND {CARRIES}" if tags else ""
    firsts = [
        f"""
        SELECT * FROM (
            SELECT t.sent_at FROM taskmanager_tasks AS t INDEXED BY taskmanager_tasks_status
            WHERE t.status = '{status}' AND t.status <> 'COMPLETED' AND t.sent_at >= :since
                AND instr(t.task_options, :sender) > 0 {carries}
            ORDER BY t.sent_at LIMIT 1
        )
        """
        for status in sorted(LIVE)
    ]
    given = {"since": since, "sender": f'{SENDER_KEY}"{sender}"', "tags": json.dumps(dict(tags))}
    found = connection.execute(f"SELECT min(sent_at) FROM ({' UNION ALL '.join(firsts)})", given).fetchone()
    return None if found[0] is None else int(found[0])


# Without statistics the planner takes the status index instead, and reads rows of everybody.
_OWNED: Final = f"""
taskmanager_tasks AS t INDEXED BY taskmanager_tasks_owned
WHERE t.claimed_by_worker_id IN (SELECT value FROM json_each(:owners)) AND t.id > CAST(:after AS TEXT)
    AND {is_live("t.")}
ORDER BY t.id LIMIT :limit
"""
# An owner has few rows that run, among thousands that wait.
_RUNNING: Final = """
taskmanager_tasks AS t INDEXED BY taskmanager_tasks_status
WHERE t.status = 'RUNNING' AND t.status <> 'COMPLETED'
    AND t.claimed_by_worker_id IN (SELECT value FROM json_each(:owners)) AND t.id > CAST(:after AS TEXT)
ORDER BY t.id LIMIT :limit
"""
_NOT_COMPLETED: Final = "taskmanager_tasks INDEXED BY taskmanager_tasks_status WHERE status <> 'COMPLETED'"
OWNED: Final = "taskmanager_tasks INDEXED BY taskmanager_tasks_owned"
IS_OWNED: Final = f"claimed_by_worker_id IS NOT NULL AND {is_live()} AND claimed_by_worker_id <> '{HELD}'"
"""An instance has it, dead or alive. What is held waits for its workflow."""


def _first_owner(above: str, below: str) -> str:
    all_above = f"FROM {OWNED} WHERE claimed_by_worker_id {above} AND {IS_OWNED}"
    first, bounded = (
        f"(SELECT claimed_by_worker_id {which} ORDER BY claimed_by_worker_id LIMIT 1)"
        for which in (all_above, f"{all_above} AND claimed_by_worker_id < {below}")
    )
    return f"CASE WHEN {below} IS NULL THEN {first} ELSE {bounded} END"


# Owners are few and their rows many. What a living one has had stays in the index until it can be cleared away, and is
# never read: between two of the living it is hopped from one dead owner to the next.
_ORPHANS: Final = f"""
taskmanager_tasks AS t WHERE t.rowid IN (SELECT value FROM json_each((
    WITH RECURSIVE dead_owner (owner, next_living) AS (
        SELECT {_first_owner(">= low.value", "high.value")}, high.value
        FROM json_each(:above) AS low JOIN json_each(:below) AS high ON high.key = low.key
        UNION ALL
        SELECT {_first_owner("> dead_owner.owner", "dead_owner.next_living")}, next_living
        FROM dead_owner WHERE owner IS NOT NULL
    )
    SELECT json_group_array(orphan.value) FROM dead_owner CROSS JOIN json_each((
        SELECT json_group_array(row) FROM (
            SELECT rowid AS row FROM {OWNED}
            WHERE claimed_by_worker_id = dead_owner.owner AND id > CAST(:after AS TEXT) AND {is_live()}
            ORDER BY id LIMIT :limit
        )
    )) AS orphan
)))
ORDER BY t.id LIMIT :limit
"""
_JUST_ABOVE: Final = "\x01"
"""A text with this behind it is the first one above that text."""


def fetch_owned(
    connection: Session, owners: Collection[str], *, limit: int, after: str = "", is_running: bool = False
) -> list[TaskRow]:
    """See `Store.fetch_owned`."""
    wanted = {"owners": json.dumps(list(owners)), "after": after, "limit": limit}
    return task_rows(connection, _RUNNING if is_running else _OWNED, wanted)


def fetch_owned_ids(connection: Session, owner: str, *, limit: int, after: str = "") -> list[str]:
    """See `Store.fetch_owned_ids`. The index holds all that is asked for."""
    query = f"""
        SELECT json_group_array(id) FROM (
            SELECT id FROM taskmanager_tasks INDEXED BY taskmanager_tasks_owned
            WHERE claimed_by_worker_id = ? AND id > CAST(? AS TEXT) AND {is_live()} ORDER BY id LIMIT ?
        )
    """
    return packed(connection, query, (owner, after, limit))


def fetch_orphans(
    connection: Session,
    live_owners: Collection[str],
    *,
    limit: int,
    after: str = "",
    is_summary: bool = False,
) -> list[TaskRow]:
    """See `Store.fetch_orphans`."""
    living = sorted({HELD, *live_owners})
    above, below = ["", *(each + _JUST_ABOVE for each in living)], [*living, None]
    wanted = {"above": json.dumps(above), "below": json.dumps(below), "after": after, "limit": limit}
    return task_rows(connection, _ORPHANS, wanted, SUMMARY if is_summary else _TASK, connection.by_indexes)


_EXPIRED: Final = """
taskmanager_tasks AS t INDEXED BY taskmanager_tasks_good_until
WHERE t.good_until <= :now AND t.claimed_by_worker_id IS NULL AND t.status = 'PENDING'
ORDER BY t.good_until, t.id LIMIT :limit
"""


def fetch_expired(connection: Session, now: int, *, limit: int) -> list[TaskRow]:
    """See `Store.fetch_expired`."""
    return task_rows(connection, _EXPIRED, {"now": now, "limit": limit})


_CANCEL_REQUESTS: Final = f"""
SELECT json_group_array(id) FROM taskmanager_tasks INDEXED BY taskmanager_tasks_cancel
WHERE claimed_by_worker_id = ? AND cancel_requested_at IS NOT NULL AND {is_live()}
"""
_INSTANCES: Final = f"""
SELECT {", ".join(InstanceRow._fields)} FROM taskmanager_instances ORDER BY started_at, instance_id
"""
_PAUSED: Final = "SELECT queue_name FROM taskmanager_queues WHERE paused_at IS NOT NULL"


def fetch_cancel_requests(connection: Session, owner: str) -> list[str]:
    """See `Store.fetch_cancel_requests`."""
    return sorted(packed(connection, _CANCEL_REQUESTS, (owner,)))


def counts(connection: Session) -> dict[TaskStatus, int]:
    """See `Store.counts`. Indexes alone answer it: the completed are all rows without the others."""
    query = f"SELECT status, count(*) FROM {_NOT_COMPLETED} GROUP BY status"
    with connection.snapshot():
        found = connection.execute(query).fetchall()
        (total,) = connection.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
    counted = dict.fromkeys(TaskStatus, 0) | {TaskStatus.COMPLETED: total - sum(number for _, number in found)}
    for status, number in found:
        counted[status_of(status)] += number
    return counted


def counts_up_to(connection: Session, cap: int) -> tuple[dict[TaskStatus, int], frozenset[TaskStatus]]:
    """Count at most `cap` rows of each status. Return the counts, and the statuses that may have more rows.

    If there is one, COMPLETED is among these, and is not counted.
    """
    some = f"SELECT count(*) FROM (SELECT 1 FROM {_NOT_COMPLETED} AND status = ? LIMIT {cap})"
    with connection.snapshot():
        counted = {each: connection.execute(some, (each.value,)).fetchone()[0] for each in TaskStatus}
        (total,) = connection.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
    capped = frozenset(each for each, number in counted.items() if number >= cap)
    if capped:
        return counted, capped | {TaskStatus.COMPLETED}
    return counted | {TaskStatus.COMPLETED: total - sum(counted.values())}, capped


def instances(connection: Session) -> list[InstanceRow]:
    """See `Store.instances`."""
    return [InstanceRow._make(row) for row in connection.execute(_INSTANCES).fetchall()]


def paused_queues(connection: Session) -> frozenset[str]:
    """See `Store.paused_queues`."""
    return frozenset(name for (name,) in connection.execute(_PAUSED).fetchall())


def news(connection: Session, instance_id: str) -> News:
    """See `Store.news`."""
    with connection.together():
        rows, paused = connection.execute(_INSTANCES), connection.execute(_PAUSED)
        requests = connection.execute(_CANCEL_REQUESTS, (instance_id,))
    return News(
        [InstanceRow._make(row) for row in rows.fetchall()],
        frozenset(name for (name,) in paused.fetchall()),
        sorted(unpacked(requests.fetchone()[0])),
    )


def paused_since(connection: Session) -> dict[str, int]:
    """Return since when each paused queue is paused."""
    return dict(
        connection.execute(
            "SELECT queue_name, paused_at FROM taskmanager_queues WHERE paused_at IS NOT NULL"
        ).fetchall()
    )
