"""What a person at a terminal asks: which tasks look like this, and which one is meant by part of its id."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from taskmanager.model.record import TaskRow
from taskmanager.model.states import TaskStatus
from taskmanager.store.protocol import TaskFilter
from taskmanager.store.sql.queries import fetch_ids, fitting, ids_of, instances, newest, whole_id
from taskmanager.store.sql.rows import bindable
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import quoted
from taskmanager.store.statistics import said_by

_HEX_AND_DASH: Final = frozenset("0123456789abcdefABCDEF-")
_SIGN: Final = re.compile(r"\\?[*?]")
"""A wildcard, or one that stands for itself."""
_AS_GLOB: Final = {r"\*": "[*]", r"\?": "[?]"}


class Search(NamedTuple):
    """Which tasks; what is empty or None is any.

    `task_name` may hold the wildcards `*` and `?`; behind a backslash they stand for themselves. `changed_since`:
    microseconds UTC; the last change of an ended task is its end. `before` is a task id: only older records than that
    one. The functions of `scanning` look for a `text` in the id, the name, the tags, the error and the arguments. Where
    these are hidden from people, they are left out.
    """

    statuses: tuple[TaskStatus, ...] = ()
    task_name: str | None = None
    queue_name: str | None = None
    error_code: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    changed_since: int | None = None
    before: str | None = None
    text: str | None = None
    looks_in_arguments: bool = True

    @property
    def is_everything(self) -> bool:
        """Whether nothing narrows it down."""
        return self._replace(looks_in_arguments=True) == Search()


def find(connection: Session, search: Search, limit: int) -> list[TaskRow]:
    """At most `limit` rows, newest first by (sent_at, id), without their `PAYLOAD`."""
    return newest(connection, *conditions_of(search), limit)


def error_messages(connection: Session, task_ids: Sequence[str], max_chars: int) -> dict[str, str]:
    """The beginning of the message of each that has ended with an error, as far as its result is not sealed."""
    query = """
        SELECT t.id, substr(json_extract(t.result, '$.err.message'), 1, ?) FROM json_each(?) AS wanted
        JOIN taskmanager_tasks AS t ON t.id = wanted.value
        WHERE t.error_code IS NOT NULL AND json_valid(t.result)
    """
    rows = connection.execute(query, (max_chars, json.dumps(list(task_ids)))).fetchall()
    return {task_id: message for task_id, message in rows if isinstance(message, str)}


def find_ids(connection: Session, search: Search) -> list[str]:
    """The ids of all of them, oldest first: the order in which a batch works through them."""
    return ids_of(connection, *conditions_of(search))


def ids_like(connection: Session, part: str, limit: int) -> list[str]:
    """Ids that are `part`, or begin or end with it; at most `limit`. A whole id is never ambiguous."""
    whole = whole_id(connection, part)
    if fetch_ids(connection, [whole]):
        return [whole]
    if not part or not set(part) <= _HEX_AND_DASH:
        return []
    query = """
        SELECT id FROM taskmanager_tasks WHERE id >= :part AND id < :part || 'g'
        UNION SELECT id FROM taskmanager_tasks WHERE substr(id, -:size) = :part
        ORDER BY id LIMIT :limit
    """
    rows = connection.execute(query, {"part": part.lower(), "size": len(part), "limit": limit})
    return [task_id for (task_id,) in rows]


class Elsewhere(NamedTuple):
    """A task that runs in the memory of an instance and is not in the file."""

    task_id: str
    task_name: str
    instance_id: str
    pid: int
    hostname: str


def memory_only(connection: Session) -> list[Elsewhere]:
    """Tasks that run and are not in the file, as far as their instances show them; those of dead instances too."""
    return [
        Elsewhere(task.task_id, task.task_name, row.instance_id, row.pid, row.hostname)
        for row in instances(connection)
        if row.stopped_at is None
        for task in said_by(row).tasks
        if not task.is_persisted
    ]


def queue_names(connection: Session) -> frozenset[str]:
    """Every queue that a task, a pause or an instance has named."""
    query = "SELECT queue_name FROM taskmanager_tasks UNION SELECT queue_name FROM taskmanager_queues"
    names = {name for (name,) in connection.execute(query)}
    for row in instances(connection):
        names.update(said_by(row).queues)
    return frozenset(names)


def task_names(connection: Session) -> frozenset[str]:
    """Every function of which there is a task."""
    return frozenset(name for (name,) in connection.execute("SELECT DISTINCT task_name FROM taskmanager_tasks"))


def is_pattern(task_name: str) -> bool:
    """Whether it has wildcards that no backslash precedes."""
    return any(sign in "*?" for sign in _SIGN.findall(task_name))


def exactly(task_name: str) -> str:
    """Return what finds the function of this very name, which may have a `*` in it."""
    return re.sub(r"[*?]", r"\\\g<0>", task_name)


def conditions_of(search: Search) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions of a search on a task `t`, and their parameters. The text is not among them.

    What stands behind the result in a row comes last, because SQLite goes through a large result to get there.
    """
    name, pattern = search.task_name, None
    if name is not None:
        name, pattern = (None, name) if is_pattern(name) else (re.sub(r"\\([*?])", r"\1", name), None)
    wanted = TaskFilter(
        None, name, search.queue_name, tags=search.tags, error_code=search.error_code, since=search.changed_since
    )
    conditions, given = fitting(wanted)
    if search.statuses:
        conditions.insert(0, f"t.status IN ({quoted(search.statuses)})")
    if pattern is not None:
        given["pattern"] = _glob(pattern)
        conditions.insert(0, "t.task_name GLOB CAST(:pattern AS TEXT)")
    if search.before is not None:
        given["before"] = search.before
        conditions.append(
            "(t.sent_at, t.id) < (SELECT b.sent_at, b.id FROM taskmanager_tasks AS b"
            " WHERE b.id = CAST(:before AS TEXT))"
        )
    return conditions, {name: bindable(value) if isinstance(value, str) else value for name, value in given.items()}


def _glob(pattern: str) -> str:
    """Return a pattern of SQLite, in which `[` would begin a set. Many `*` in a row are one, and cost no more."""
    return re.sub(r"\*+", "*", _SIGN.sub(lambda sign: _AS_GLOB.get(sign[0], sign[0]), pattern.replace("[", "[[]")))
