"""The state of schedules. A fire is one transaction: the schedule moves on exactly if the task of its fire is there."""

import json
from collections.abc import Collection, Sequence
from typing import Any, Final

from taskmanager.model.schedule import SCHEDULE_TAG, ScheduleDeclaration, ScheduleFire, ScheduleRow, tags_of_runs
from taskmanager.store.constraints import encodable
from taskmanager.store.sql.queries import fetch_ids
from taskmanager.store.sql.rows import packed, read_schedule
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import INSERT, is_live

_COLUMNS: Final = ScheduleRow._fields[:-1]
_NAMES: Final = ", ".join(_COLUMNS)
_BY_NEXT: Final = "ORDER BY next_run_at IS NULL, next_run_at, schedule_name"
_IS_DECLARED: Final = "s.owner_id IN (SELECT instance_id FROM taskmanager_instances)"

_NUMBERS: Final = frozenset({"last_run_at", "next_run_at", "run_count", "paused_at", "updated_at"})
_VALUES: Final = ", ".join(
    f"CAST(json_extract(v.value, '$[{place}]') AS {'INTEGER' if name in _NUMBERS else 'TEXT'})"
    for place, name in enumerate(_COLUMNS)
)
# Without WHERE, SQLite would take ON for that of a join.
_SAVE: Final = f"""
INSERT INTO taskmanager_schedule_state ({_NAMES}) SELECT {_VALUES} FROM json_each(?) AS v WHERE TRUE
ON CONFLICT (schedule_name) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name != "schedule_name")}
"""
_MOVE: Final = """
UPDATE taskmanager_schedule_state AS s SET
    next_run_at = CAST(json_extract(v.value, '$[1]') AS INTEGER),
    updated_at = CAST(json_extract(v.value, '$[2]') AS INTEGER),
    last_run_at = iif(
        json_extract(v.value, '$[3]') IS NULL, last_run_at, CAST(json_extract(v.value, '$[2]') AS INTEGER)
    ),
    last_task_id = coalesce(json_extract(v.value, '$[3]'), last_task_id),
    run_count = min(run_count, 9223372036854775806) + iif(json_extract(v.value, '$[3]') IS NULL, 0, 1)
FROM json_each(?) AS v WHERE s.schedule_name = json_extract(v.value, '$[0]')
"""
_BUSY: Final = f"""
SELECT json_group_array(DISTINCT tags)
FROM taskmanager_tasks AS t INDEXED BY taskmanager_tasks_of_schedules
WHERE scheduled_for IS NOT NULL AND {is_live()} AND tags IN (SELECT value FROM json_each(?))
AND (status <> 'PENDING' OR claimed_by_worker_id IS NOT NULL OR task_name = coalesce(
    (SELECT s.task_name FROM taskmanager_schedule_state AS s
        WHERE s.schedule_name = json_extract(t.tags, '$.{SCHEDULE_TAG}')),
    task_name
))
"""


def declare(connection: Session, declared: Sequence[ScheduleDeclaration], owner: str, now: int) -> frozenset[str]:
    """See `Store.declare_schedules`."""
    with connection.transaction():
        there = {row.schedule_name: row for row in fetch(connection, [each.schedule_name for each in declared])}
        made = [each.onto(there.get(each.schedule_name), owner, now) for each in declared]
        rows = [row for row in made if row is not None]
        connection.execute(_SAVE, (json.dumps([row[:-1] for row in rows]),))
    return frozenset(row.schedule_name for row in rows)


def fire(connection: Session, fires: Sequence[ScheduleFire]) -> frozenset[str]:
    """See `Store.fire_schedules`."""
    tasks = {each.schedule_name: encodable(each.task) for each in fires if each.task is not None}
    with connection.transaction():
        there = {row.schedule_name: row for row in fetch(connection, [each.schedule_name for each in fires])}
        unfinished = busy(connection, [each.schedule_name for each in fires if each.is_alone])
        winners = [each for each in fires if each.wins(there.get(each.schedule_name), unfinished)]
        before = fetch_ids(connection, [each.task.task_id for each in winners if each.task is not None])
        fresh = {name: task for name, task in tasks.items() if task.task_id not in before}
        connection.write(INSERT, [fresh[each.schedule_name] for each in winners if each.schedule_name in fresh])
        moves = [
            (name, each.next_run_at, each.now, fresh[name].task_id if name in fresh else None)
            for each in winners
            for name in [each.schedule_name]
        ]
        connection.execute(_MOVE, (json.dumps(moves),))
    return frozenset(each.schedule_name for each in fires) - {each.schedule_name for each in winners}


def fetch(
    connection: Session,
    names: Collection[str] | None = None,
    limit: int | None = None,
    changed_since: int | None = None,
) -> list[ScheduleRow]:
    """See `Store.schedules`."""
    parameters: dict[str, Any] = {"limit": 2**63 - 1 if limit is None else limit, "since": changed_since}
    conditions = [] if changed_since is None else ["s.updated_at >= :since"]
    if names is not None:
        conditions.append("s.schedule_name IN (SELECT value FROM json_each(:names))")
        parameters["names"] = json.dumps(list(names))
    query = f"""
        SELECT json_group_array(json_array({_NAMES}, is_declared)) FROM (
            SELECT s.*, {_IS_DECLARED} AS is_declared FROM taskmanager_schedule_state AS s
            {"WHERE" if conditions else ""} {" AND ".join(conditions)} {_BY_NEXT} LIMIT :limit
        )
    """
    return [read_schedule(row) for row in packed(connection, query, parameters)]


def busy(connection: Session, names: Collection[str]) -> frozenset[str]:
    """See `Store.busy_schedules`."""
    by_tags = {tags_of_runs(name): name for name in names}
    return frozenset(by_tags[tags] for tags in packed(connection, _BUSY, (json.dumps(list(by_tags)),)))


def set_paused(connection: Session, name: str, paused: bool, now: int) -> bool:
    """See `Store.set_schedule_paused`. Pausing again keeps the instant of the first time."""
    if paused:
        change = "paused_at = coalesce(paused_at, :now)"
    else:
        change = "next_run_at = CASE WHEN paused_at IS NULL THEN next_run_at END, paused_at = NULL"
    with connection.transaction():
        changed = connection.execute(
            f"UPDATE taskmanager_schedule_state SET {change}, updated_at = :now WHERE schedule_name = :name",
            {"name": name, "now": now},
        )
    return changed.rowcount == 1
