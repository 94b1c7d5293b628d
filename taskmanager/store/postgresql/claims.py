"""Taking free rows, and those of other instances, on PostgreSQL: see `Session.take`.

One statement finds the rows, locks them, decides which of them start, changes them, and returns them as they are now.

It hops through the priorities of the queue, and reads the due rows of each in the order of the index
`taskmanager_tasks_ready`, without a lock. Each row that it reads it looks up by its id, to lock it. What another claim
has locked is skipped, so no claim waits for another one. The parts are read row by row: as soon as enough rows are
locked, nothing more is read, and no row is locked that is not taken. A join that reads all of one side first is ruled
out by LATERAL, and by the arrays of ids that the updates are given.

Rows of functions that nobody here knows are read and passed over. If so many were passed over that the rest was not
read, the statement takes nothing, and another one is asked. That one goes by `taskmanager_tasks_free`, which leads with
the function, and sorts what it finds for each function. It looks at four times as many rows as it may take, because
others may have locked the best ones; and if they have locked all of these, or have taken them meanwhile, it looks once
more, at many more.
"""

from typing import Any, Final

from taskmanager.model.record import TaskRow
from taskmanager.store.postgresql.floors import FOUND_LEVELS, GIVEN_LEVELS, Floors
from taskmanager.store.postgresql.seldom import TOOK_US
from taskmanager.store.postgresql.writing import numbers, texts
from taskmanager.store.protocol import ClaimRequest
from taskmanager.store.sql.claims import BETTER, IN_QUEUE, IS_FREE, IS_PLAIN, WAITS
from taskmanager.store.sql.queries import hops
from taskmanager.store.sql.rows import packed_rows
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import TASK_COLUMNS

_SCANNED_PER_ROW: Final = 10
_SCANNED_AT_LEAST: Final = 1_000
_SORTED_PER_ROW: Final = 4
_ABOVE_ALL_PRIORITIES: Final = 1 << 15
_QUEUE: Final = 0x71756575
"""The first half of the lock of a queue with a limit; the second is made of the schema and the name of the queue."""

_IS_KNOWN: Final = "task_name = ANY (CAST(:task_names AS text[]))"
# The planner does not look into a CASE. Else it takes one of the partial indexes of free rows, where an id stands last,
# and reads all of that for each row: it hopes that next to nothing is free, as was so when the table was analyzed.
_BY_ID: Final = "t.id = c.id AND CASE WHEN t.id = c.id THEN"
ROW: Final = f"json_build_array({', '.join(f't.{name}' for name in TASK_COLUMNS)}) AS row"

# The slots are given as functions, each with the number of its lane and how many slots that has. Which rows start is
# what `rules.claims.started` says: the best of each lane, as many as it has slots, and the best of all these.
_STARTED: Final = f"""
in_lanes AS (
    SELECT f.*, lane.slots,
        row_number() OVER (PARTITION BY lane.number ORDER BY f.priority, f.enqueued_at, f.id) AS place
    FROM found AS f JOIN unnest(CAST(:names AS text[]), CAST(:lanes AS bigint[]), CAST(:slots AS bigint[]))
        AS lane (task_name, number, slots) ON lane.task_name = f.task_name
    WHERE f.is_plain
),
begun AS MATERIALIZED (
    SELECT id FROM in_lanes WHERE place <= slots ORDER BY priority, enqueued_at, id LIMIT :starting
),
started AS (
    UPDATE taskmanager_tasks AS t
    SET status = 'RUNNING', claimed = 0, start_count = t.start_count + 1, claimed_at = :now,
        claimed_by_worker_id = :owner, started_at = :now, updated_at = :now, next_retry_at = NULL, progress = NULL,
        worker_pid = :worker_pid, worker_hostname = :worker_hostname, worker_process_name = :worker_process_name
    WHERE t.id = ANY (ARRAY(SELECT id FROM begun)) AND NOT (SELECT is_cut FROM cut)
    RETURNING {ROW}
)
"""


def _looked(which: str, of_level: str = "", more: str = "") -> str:
    """Rows of a queue that are due, level by level, each in the order of the index that begins with what is given."""
    return f"""
        SELECT r.* FROM each_priority AS level, LATERAL (
            SELECT t.id, t.task_name, t.enqueued_at{more} FROM taskmanager_tasks AS t
            WHERE {of_level} {IN_QUEUE} AND t.priority = level.priority AND t.enqueued_at <= :due_at AND {which}
            ORDER BY t.enqueued_at, t.id LIMIT :scanned
        ) AS r
        WHERE level.priority IS NOT NULL AND NOT (SELECT wakes FROM state)
    """


def _statement(levels: str, looked: str, chosen: str, which: str, others_stay: str = "") -> str:
    """Return the whole statement. `looked` reads without a lock, of which `chosen` may be taken while it is `which`."""
    return f"""
{levels},
state AS MATERIALIZED (
    SELECT NOT CAST(:is_awake AS boolean) AND EXISTS (SELECT 1 FROM taskmanager_steps WHERE wakes_at <= :now) AS wakes
),
looked AS MATERIALIZED ({looked} LIMIT :scanned),
found AS MATERIALIZED (
    SELECT r.* FROM ({chosen}) AS c, LATERAL (
        SELECT t.id, t.priority, t.enqueued_at, t.task_name, {IS_PLAIN} AS is_plain
        FROM taskmanager_tasks AS t WHERE {_BY_ID} {which} END FOR NO KEY UPDATE SKIP LOCKED
    ) AS r
    LIMIT :limit
),
cut AS MATERIALIZED (
    SELECT CASE WHEN CAST(:may_be_cut AS boolean) AND (SELECT count(*) FROM found) < :limit
        THEN (SELECT count(*) FROM looked) >= :scanned ELSE false END AS is_cut
),
{_STARTED},
claimed AS (
    UPDATE taskmanager_tasks AS t
    SET status = 'CLAIMED', claimed = 1, claimed_at = :now, claimed_by_worker_id = :owner, updated_at = :now
    WHERE t.id = ANY (ARRAY(SELECT id FROM found {others_stay} EXCEPT ALL SELECT id FROM begun))
        AND NOT (SELECT is_cut FROM cut)
    RETURNING {ROW}
)
SELECT json_group_array(row), (SELECT wakes FROM state), (SELECT is_cut FROM cut), {TOOK_US}
FROM (SELECT row FROM started UNION ALL SELECT row FROM claimed) AS taken
"""


_IN_ORDER: Final = _looked(IS_FREE, "t.enqueued_at >= level.floor AND"), f"SELECT id FROM looked WHERE {_IS_KNOWN}"
READY: Final = _statement(FOUND_LEVELS, *_IN_ORDER, IS_FREE)
ABOVE_FLOORS: Final = _statement(GIVEN_LEVELS, *_IN_ORDER, IS_FREE)
# Those that were woken stand in front of all others of their priority.
SLEPT: Final = _statement(FOUND_LEVELS, *_IN_ORDER, f"{IS_FREE} AND t.snooze_count > 0")
BY_FUNCTION: Final = _statement(
    hops("taskmanager_tasks", BETTER, "task_name", "priority", given="SELECT unnest(CAST(:task_names AS text[]))"),
    _looked(IS_FREE, "t.task_name = level.task_name AND") + "ORDER BY level.priority, r.enqueued_at, r.id",
    "SELECT id FROM looked",
    IS_FREE,
)
# What has run before may have code that goes on there, in a thread that nobody can end.
OF_OTHERS: Final = _statement(
    hops("taskmanager_tasks", f"{IN_QUEUE} AND {WAITS}", "priority"),
    _looked(WAITS, more=f", t.claimed_by_worker_id AS owner, t.start_count = 0 AND {IS_PLAIN} AS is_plain"),
    f"""
        SELECT id FROM (
            SELECT id, row_number() OVER () AS number FROM looked
            WHERE owner <> :owner AND is_plain AND {_IS_KNOWN} LIMIT 2 * :limit
        ) AS plain WHERE number % 2 = 1
    """,
    f"{WAITS} AND t.claimed_by_worker_id <> :owner AND t.start_count = 0 AND {IS_PLAIN}",
    others_stay="WHERE false",
)
# A task that has begun goes ahead of those that have not: it takes its place by the time at which it was sent. What
# another claim has locked is woken, or taken, by that one.
_WAKE: Final = f"""
WITH due AS MATERIALIZED (
    SELECT id, task_id FROM taskmanager_steps WHERE wakes_at <= :now ORDER BY wakes_at LIMIT 1000
    FOR NO KEY UPDATE SKIP LOCKED
),
asleep AS MATERIALIZED (
    SELECT t.id FROM taskmanager_tasks AS t
    WHERE t.id = ANY (ARRAY(SELECT task_id FROM due)) AND {IS_FREE} AND t.enqueued_at <= :now
    FOR NO KEY UPDATE SKIP LOCKED
),
woken AS (
    UPDATE taskmanager_tasks AS t SET enqueued_at = min(t.enqueued_at, t.sent_at, :now)
    WHERE t.id = ANY (ARRAY(SELECT id FROM asleep))
)
UPDATE taskmanager_steps AS s SET wakes_at = NULL WHERE s.id = ANY (ARRAY(SELECT id FROM due))
"""


def take(session: Session, request: ClaimRequest, limit: int, floors: Floors) -> list[TaskRow]:
    """See `Session.take`. `floors` are those of the queue."""
    known = _given(request, limit)
    if request.others_due_at is not None:
        text, *_ = session.execute(OF_OTHERS, known).fetchone()
        return packed_rows(text)
    if request.has_slept and not floors.may_seek_woken():
        return []
    best = SLEPT if request.has_slept else READY
    rows, wakes, is_cut = _take_best(session, best, known, floors)
    if wakes:
        session.execute(_WAKE, {"now": request.now})
        text, _, is_cut, _ = session.execute(best, known | {"is_awake": True}).fetchone()
        rows = packed_rows(text)
    return _by_function(session, known, limit) if is_cut else rows


def _by_function(session: Session, known: dict[str, Any], limit: int) -> list[TaskRow]:
    rows: list[TaskRow] = []
    for scanned in (_SORTED_PER_ROW * limit, known["scanned"]):
        given = known | {"scanned": scanned, "may_be_cut": False, "is_awake": True}
        text, *_ = session.execute(BY_FUNCTION, given).fetchone()
        if rows := packed_rows(text):
            break
    return rows


def _take_best(session: Session, best: str, known: dict[str, Any], floors: Floors) -> tuple[list[TaskRow], bool, bool]:
    given = floors.given(session, known) if best is READY else None
    found = session.execute(ABOVE_FLOORS if given else best, known | {"floors": given}).fetchone()
    text, wakes, is_cut, took_us = found
    rows = packed_rows(text)
    if given is None:
        floors.note(took_us, len(rows))
    if best is SLEPT and not (wakes or rows):
        floors.note_none_woken(took_us)
    return rows, wakes, is_cut


def _given(request: ClaimRequest, limit: int) -> dict[str, Any]:
    """The parameters of these statements."""
    starting, is_over = request.starting, request.others_due_at is not None
    lanes = {name: lane for lane in (starting.rooms if starting else ()) for name in lane.task_names}
    of_lanes = {lane: number for number, lane in enumerate(dict.fromkeys(lanes.values()))}
    return {
        "task_names": texts(sorted(set(request.task_names))),
        "queue_name": request.queue_name,
        "better_than": _ABOVE_ALL_PRIORITIES if request.better_than is None or is_over else request.better_than,
        "due_at": request.others_due_at if is_over else request.now,
        "now": request.now,
        "owner": request.owner,
        "limit": limit,
        "scanned": limit if request.has_slept else _SCANNED_PER_ROW * limit + _SCANNED_AT_LEAST,
        "is_awake": is_over,
        "may_be_cut": not (request.has_slept or is_over),
        "names": texts(list(lanes)),
        "lanes": numbers([of_lanes[lane] for lane in lanes.values()]),
        "slots": numbers([lane.slot_count for lane in lanes.values()]),
        "starting": starting.limit if starting else 0,
        "worker_pid": starting and starting.worker_pid,
        "worker_hostname": starting and starting.worker_hostname,
        "worker_process_name": starting and starting.worker_process_name,
    }


def hold_queue(session: Session, queue_name: str, schema: int) -> None:
    """Let no other transaction hold this queue until the one that is open is over.

    The number of the schema keeps queues of the same name apart.
    """
    session.execute(f"SELECT pg_advisory_xact_lock({_QUEUE}, hashtext(?))", (f"{schema} {queue_name}",))
