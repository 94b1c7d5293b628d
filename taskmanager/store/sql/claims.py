"""Taking and freeing rows that wait. A claim costs by the rows it may take, never by the rows that lie there.

Two indexes hold the free rows. `taskmanager_tasks_ready` leads with the queue, then priority and due time: a claim hops
through the priorities that exist, and takes the first due rows of each. Delayed rows are stepped over as a range. With
20 functions that costs a claim of 100 rows 0.05 ms, where the other index costs 0.95 ms, because it finds as many rows
for each of the functions.

Rows of functions that nobody here knows are stepped over one by one, 120 ns each, so a claim looks at a limited number
of rows. If these were not enough, it uses `taskmanager_tasks_free`, which leads with the function: it never sees the
unknown ones.
"""

import json
from collections.abc import Collection, Sequence
from typing import Final

from taskmanager.model.clock import LAST_US
from taskmanager.model.record import TaskRow, UnreadableRow, expected_of
from taskmanager.model.workflows import HELD
from taskmanager.store.constraints import failed, row_faults, unreadable
from taskmanager.store.noted import Noted
from taskmanager.store.on_failure import enqueued_by
from taskmanager.store.protocol import FREE_COUNT_CAP, MAX_FREE, ClaimRequest, FreeQueue, WaitingLevel
from taskmanager.store.sql.counting import Counting, counted
from taskmanager.store.sql.queries import hops, task_rows
from taskmanager.store.sql.rows import Undecodable, packed
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import DUE, END_UNREADABLE, IS_PAUSE, ON_FAILURE, SLEEPS, is_live
from taskmanager.store.sql.workflows import advance

_FREE: Final = "taskmanager_tasks INDEXED BY taskmanager_tasks_free"
IS_FREE: Final = "status = 'PENDING' AND claimed_by_worker_id IS NULL"
IN_QUEUE: Final = "queue_name = CAST(:queue_name AS TEXT)"

# A name that is not UTF-8 cannot be a part of JSON.
_NAMES: Final = "SELECT value FROM json_each(:task_names) UNION ALL SELECT CAST(:odd_name AS TEXT)"
BETTER: Final = f"{IN_QUEUE} AND priority < :better_than AND {IS_FREE}"
CANDIDATES: Final = f"""
{hops(_FREE, BETTER, "task_name", "priority", given=_NAMES)}
SELECT json_group_array(row) FROM (
    SELECT t.rowid AS row FROM each_priority AS level JOIN taskmanager_tasks AS t ON t.rowid IN (
        SELECT rowid FROM {_FREE}
        WHERE task_name = level.task_name AND {IN_QUEUE} AND priority = level.priority
            AND enqueued_at <= :now AND {IS_FREE}
        ORDER BY enqueued_at, id LIMIT :limit
    )
    ORDER BY t.priority, t.enqueued_at, t.id LIMIT :limit
)
"""


def _in_order(index: str, which: str, more: str = "") -> str:
    """Rows of a queue that are due, in the order of an index that begins with it, as many as are looked at.

    The levels come in order, and the rows of each in that of the index. An ORDER BY would sort all that could be taken.
    """
    return f"""
        SELECT t.rowid AS row, t.task_name{more}
        FROM each_priority AS level CROSS JOIN taskmanager_tasks AS t INDEXED BY {index}
        WHERE {IN_QUEUE} AND t.priority = level.priority AND t.enqueued_at <= :now AND {which}
        LIMIT :scanned
    """


_SCANNED_PER_ROW: Final = 10
_SCANNED_AT_LEAST: Final = 1_000
READY_CANDIDATES: Final = f"""
{hops("taskmanager_tasks INDEXED BY taskmanager_tasks_ready", BETTER, "priority")}
SELECT json_group_array(row), count(*) FROM (
    SELECT row FROM ({_in_order("taskmanager_tasks_ready", IS_FREE)})
    WHERE task_name IN (SELECT value FROM json_each(:task_names)) LIMIT :limit
)
"""
# Those that were woken stand in front of all others of their priority.
_SLEPT: Final = f"""
{hops("taskmanager_tasks INDEXED BY taskmanager_tasks_ready", BETTER, "priority")}
SELECT json_group_array(row) FROM (
    SELECT row FROM ({_in_order("taskmanager_tasks_ready", IS_FREE, ", t.snooze_count")})
    WHERE snooze_count > 0 AND task_name IN (SELECT value FROM json_each(:task_names)) LIMIT :limit
)
"""
# One more start must fit into the column; and such a count cannot be read.
IS_PLAIN: Final = f"""
    t.crash_count = 0 AND t.good_until IS NULL AND t.cancel_requested_at IS NULL AND t.start_count < {2**31 - 1}
"""
_CLAIMED_AT: Final = f"""
taskmanager_tasks AS t INDEXED BY taskmanager_tasks_owned
WHERE t.claimed_by_worker_id = CAST(? AS TEXT) AND {is_live("t.")} AND t.claimed_at = ?
"""
WAITS: Final = (
    f"claimed_by_worker_id IS NOT NULL AND status IN ('PENDING', 'CLAIMED') AND claimed_by_worker_id <> '{HELD}'"
)
_HELD: Final = "taskmanager_tasks INDEXED BY taskmanager_tasks_waiting"
_OTHERS_SCANNED_AT_LEAST: Final = 100
_OF_OTHERS: Final = _in_order(
    "taskmanager_tasks_waiting", WAITS, f", t.start_count, t.claimed_by_worker_id AS owner, {IS_PLAIN} AS is_plain"
)
# What has run before may have code that goes on there, in a thread that nobody can end.
OTHERS: Final = f"""
{hops(_HELD, f"{IN_QUEUE} AND {WAITS}", "priority")}
SELECT json_group_array(json_array(row, task_name)) FROM (
    SELECT row, task_name FROM ({_OF_OTHERS})
    WHERE owner <> :owner AND is_plain AND start_count = 0
        AND task_name IN (SELECT value FROM json_each(:task_names))
    LIMIT :limit
)
"""
_TAKEN_AWAY: Final = """
json_each(?) AS wanted CROSS JOIN taskmanager_tasks AS t ON t.id = wanted.value
WHERE t.claimed_by_worker_id IS NOT NULL AND t.claimed_by_worker_id <> CAST(? AS TEXT)
"""
_LEVELS: Final = f"""
{hops(_HELD, WAITS, "queue_name", "priority")}
SELECT queue_name, priority, (
    SELECT min(enqueued_at) FROM {_HELD}
    WHERE queue_name = level.queue_name AND priority = level.priority AND {WAITS}
) FROM each_priority AS level WHERE priority IS NOT NULL LIMIT ?
"""


_ABOVE_ALL_PRIORITIES: Final = 1e19
"""Also above those that no version would write: who claims such a row finds out."""
_FREED: Final = f"""
    status = 'PENDING', claimed = 0, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL,
    updated_at = :now,
    {DUE}
"""
_NEVER_RAN: Final = f"""
    {_FREED}, started_at = NULL, worker_pid = NULL, worker_hostname = NULL, worker_process_name = NULL
"""
_BEGUN_AT: Final = f"""
    claimed_by_worker_id = CAST(:owner AS TEXT) AND {is_live()} AND status = 'RUNNING'
    AND claimed_at = :unanswered AND started_at = :unanswered
"""
# The three statuses are there for the owner index, the two for the meaning.
_WAITS_AT: Final = f"claimed_by_worker_id = CAST(:owner AS TEXT) AND {is_live()} AND status IN ('PENDING', 'CLAIMED')"


class _MustBeAlone(Exception):
    """A row that cannot be read belongs to a workflow, whose other rows change with it."""


def claim(
    connection: Session, requests: Sequence[ClaimRequest], counting: Counting | None = None, *, is_beside: bool = True
) -> list[TaskRow]:
    """See `Store.claim`. What it starts and ends is counted, if somebody counts."""
    requests = [each for each in requests if _may_find(connection, each)]
    if not requests:
        return []
    try:
        rows: list[TaskRow] = []
        with counted(connection, counting, is_beside=is_beside) as noted:
            for each in requests:
                rows += _claimed(connection, each.after(len(rows)), noted, is_beside=is_beside)
        return rows
    except _MustBeAlone:
        return claim(connection, requests, counting, is_beside=False)
    except connection.too_large:  # together longer than the longest text (1 GB); the rest is found by the next look
        if all(each.limit == 1 for each in requests):
            raise
        fewer = [each._replace(limit=each.limit // 8 or 1) for each in requests]
        return claim(connection, fewer, counting, is_beside=is_beside)


def _may_find(connection: Session, request: ClaimRequest) -> bool:
    if not request.task_names or request.limit < 1:
        return False
    # Without the lock for writing first: a busy instance needs that.
    return not (request.has_slept or request.others_due_at is not None) or connection.may_take(request)


def _claimed(connection: Session, request: ClaimRequest, noted: Noted, *, is_beside: bool) -> list[TaskRow]:
    limit = request.limit
    if limit > 0 and request.file_limit is not None:
        limit = min(limit, _places(connection, request, request.file_limit))
    claimed = connection.take(request, limit) if limit > 0 else []
    if not all(map(_is_taken, claimed)):
        if is_beside and any(row.is_workflow_task and not _is_taken(row) for row in claimed):
            raise _MustBeAlone
        claimed = [row if _is_taken(row) else _ended(connection, row, request.now, noted) for row in claimed]
    noted.note_claimed(claimed, request.now)
    return sorted(claimed, key=lambda row: (row.priority, row.enqueued_at, row.task_id))


def fetch_claim(connection: Session, owner: str, claimed_at: int) -> list[TaskRow]:
    """See `Store.fetch_claim`. The commit of a claim whose answer was lost may still be under way: it is waited for."""
    with connection.transaction():
        rows = task_rows(connection, _CLAIMED_AT, (owner, claimed_at))
    return sorted(rows, key=lambda row: (row.priority, row.enqueued_at, row.task_id))


def candidates(connection: Session, request: ClaimRequest, limit: int) -> str:
    """The rowids of the best rows that may be claimed, as JSON."""
    wanted = _wanted(request.task_names, request.queue_name, request.now, limit, request.better_than)
    if request.has_slept:
        (rows,) = connection.execute(_SLEPT, wanted | {"scanned": limit}).fetchone()
        return str(rows)
    scanned = {"scanned": _SCANNED_PER_ROW * limit + _SCANNED_AT_LEAST}
    rows, count = connection.execute(READY_CANDIDATES, wanted | scanned).fetchone()
    if count < limit:
        (rows,) = connection.execute(CANDIDATES, wanted).fetchone()
    return str(rows)


def _is_taken(row: TaskRow) -> bool:
    return type(row) is TaskRow and row.status in ("CLAIMED", "RUNNING")


def _ended(connection: Session, row: TaskRow, now: int, noted: Noted) -> UnreadableRow:
    """A row that cannot run, FAILED: nobody else would ever do it. Where it is started already, that does not count."""
    if not isinstance(row, UnreadableRow):
        row = unreadable(row, row_faults(row))
    ended = failed(row, now)
    if row.status == "RUNNING" and row.start_count:
        ended = ended._replace(start_count=row.start_count - 1)
    if connection.write(END_UNREADABLE, [ended + expected_of(row)]):
        if (enqueued := enqueued_by(ended)) is not None:
            connection.write(ON_FAILURE, [enqueued])
        if ended.is_workflow_task:
            advance(connection, [ended.task_id], now, noted)
    return ended


def best_waiting(connection: Session, task_names: Collection[str], queue_name: str, now: int) -> str | None:
    """See `Store.best_waiting`."""
    query = f"SELECT task_name FROM taskmanager_tasks WHERE rowid IN (SELECT value FROM json_each(({CANDIDATES})))"
    found = connection.execute(query, _wanted(task_names, queue_name, now, 1)).fetchone()
    return None if found is None else str(found[0])


def _wanted(
    task_names: Collection[str], queue_name: str, now: int, limit: int, better_than: int | None = None
) -> dict[str, str | float | None]:
    """The parameters of `CANDIDATES`."""
    return {
        "task_names": json.dumps(sorted(set(task_names))),
        "odd_name": next((name for name in task_names if isinstance(name, Undecodable)), None),
        "queue_name": queue_name,
        "limit": limit,
        "now": now,
        "better_than": _ABOVE_ALL_PRIORITIES if better_than is None else better_than,
    }


def waiting_levels(connection: Session, limit: int) -> list[WaitingLevel]:
    """See `Store.waiting_levels`."""
    rows = connection.execute(_LEVELS, (limit,)).fetchall()
    return sorted(WaitingLevel._make(row) for row in rows if Undecodable not in map(type, row))


def fetch_taken(connection: Session, task_ids: Sequence[str], owner: str) -> dict[str, TaskRow]:
    """See `Store.fetch_taken`."""
    rows = task_rows(connection, _TAKEN_AWAY, (json.dumps(list(task_ids)), owner))
    return {row.task_id: row for row in rows}


def others(connection: Session, request: ClaimRequest, due_at: int, limit: int) -> list[tuple[int, str]]:
    """The rowids and functions of the best rows that wait at other instances."""
    wanted = _wanted(request.task_names, request.queue_name, due_at, 2 * limit)
    scanned = {"owner": request.owner, "scanned": _SCANNED_PER_ROW * limit + _OTHERS_SCANNED_AT_LEAST}
    return packed(connection, OTHERS, wanted | scanned)


_COUNT_LENT: Final = """
SELECT count(*) FROM json_each(?) AS v CROSS JOIN taskmanager_tasks AS t ON t.id = v.value
WHERE t.status = 'RUNNING' AND t.claimed_by_worker_id = ?
"""


def _places(connection: Session, request: ClaimRequest, file_limit: int) -> int:
    """How many may be claimed. No other claim counts them before this one is committed."""
    taken = connection.count_taken(request.queue_name, request.now)
    lent = 0
    if request.lenders:
        (lent,) = connection.execute(_COUNT_LENT, (json.dumps(list(request.lenders)), request.owner)).fetchone()
    return max(0, int(lent) - request.borrowed) + max(0, file_limit - taken)


def release(connection: Session, owner: str, now: int, unanswered: int | None = None) -> int:
    """See `Store.release`."""
    parameters = {"now": now, "owner": owner, "unanswered": unanswered}
    owned = "taskmanager_tasks INDEXED BY taskmanager_tasks_owned"
    with connection.transaction():
        count = connection.execute(f"UPDATE OR IGNORE {owned} SET {_FREED} WHERE {_WAITS_AT}", parameters).rowcount
        if unanswered is not None:
            count += connection.execute(
                f"UPDATE OR IGNORE {owned} SET {_NEVER_RAN} WHERE {_BEGUN_AT}", parameters
            ).rowcount
    return count


_MAY_RUN: Final = f"{_WAITS_AT} AND cancel_requested_at IS NULL AND (good_until IS NULL OR good_until > :now)"
_ANY_LEFT: Final = f"""
SELECT rowid FROM taskmanager_tasks INDEXED BY taskmanager_tasks_owned WHERE {_MAY_RUN} LIMIT :limit
"""
_FIRST_LEFT: Final = f"""
{hops(_HELD, WAITS, "queue_name")}
SELECT t.rowid FROM each_queue_name AS each JOIN taskmanager_tasks AS t ON t.rowid IN (
    SELECT rowid FROM {_HELD} WHERE queue_name = each.queue_name AND {WAITS} AND {_MAY_RUN}
    ORDER BY priority, enqueued_at, id LIMIT :per_queue
)
LIMIT :limit
"""


def free_waiting(connection: Session, owner: str, now: int, limit: int, per_queue: int | None = None) -> int:
    """See `Store.free_waiting`. One statement for all of them: nothing of a row has to be known to free it."""
    which = _ANY_LEFT if per_queue is None else _FIRST_LEFT
    with connection.transaction():
        return connection.execute(
            f"UPDATE OR IGNORE taskmanager_tasks SET {_NEVER_RAN}, failed_reason = NULL WHERE rowid IN ({which})",
            {"now": now, "owner": owner, "limit": limit, "per_queue": per_queue},
        ).rowcount


def latest_stamp(connection: Session, until: int = LAST_US) -> int:
    """See `Store.latest_stamp`: the ends of two indexes, and a few rows."""
    (found,) = connection.execute(
        """
        SELECT max(
            coalesce((SELECT max(sent_at) FROM taskmanager_tasks WHERE sent_at <= :until), 0),
            coalesce((SELECT max(updated_at) FROM taskmanager_instances WHERE updated_at <= :until), 0),
            coalesce((SELECT sent_at FROM taskmanager_heartbeats WHERE sent_at <= :until ORDER BY id DESC LIMIT 1), 0)
        )
        """,
        {"until": until},
    ).fetchone()
    return int(found)


def make_due(connection: Session, now: int) -> int:
    """See `Store.make_due`. It reads every free row that is not due, so it is for clocks that were stepped only."""
    with connection.transaction():
        return connection.execute(
            f"""
            UPDATE {_FREE} SET {DUE}, updated_at = :now
            WHERE {IS_FREE} AND enqueued_at > :now AND updated_at > :now
                AND (enqueued_at <= updated_at OR ({IS_PAUSE} AND NOT {SLEEPS}))
            """,
            {"now": now},
        ).rowcount


_OF_FREE_QUEUES: Final = f"""
SELECT level.task_name, level.queue_name,
    (
        SELECT count(*) FROM (
            SELECT 1 FROM {_FREE}
            WHERE task_name = level.task_name AND queue_name = level.queue_name AND {IS_FREE} LIMIT :count_cap
        )
    ),
    min((
        SELECT min(enqueued_at) FROM {_FREE}
        WHERE task_name = level.task_name AND queue_name = level.queue_name AND priority = level.priority AND {IS_FREE}
    ))
FROM each_priority AS level WHERE level.priority IS NOT NULL
GROUP BY level.task_name, level.queue_name
ORDER BY level.task_name, level.queue_name
"""
_FREE_LEVELS: Final = "task_name", "queue_name", "priority"
_FREE_QUEUES: Final = hops(_FREE, IS_FREE, *_FREE_LEVELS) + _OF_FREE_QUEUES
_SOME_FREE_QUEUES: Final = hops(_FREE, IS_FREE, *_FREE_LEVELS, limit=2 * MAX_FREE + 2) + _OF_FREE_QUEUES
"""A series ends with a NULL, so at most every second row is one: when rows are left out, `MAX_FREE` are there."""


def free_queues(connection: Session, count_cap: int = FREE_COUNT_CAP, *, is_bounded: bool = False) -> list[FreeQueue]:
    """See `Store.free_queues`. With `is_bounded`, some may be left out where they are `MAX_FREE` or more."""
    rows = connection.execute(_SOME_FREE_QUEUES if is_bounded else _FREE_QUEUES, {"count_cap": count_cap}).fetchall()
    return [FreeQueue._make((*row, Undecodable not in map(type, row))) for row in rows]
