"""Walks along the tasks in the order of (sent_at, id), in windows, until a budget of time is used up.

No index serves every filter, and one per filter would cost each insert. So a filter without an index of its own is
looked for in windows: each is one statement, and the next one is as large as the time left allows. A walk tells how far
it got. The place of a task in the order never changes, so whoever goes on from there neither skips nor repeats one.

Thousands of tasks may have the same `sent_at`, because one statement has inserted them. SQLite would sort them by id
again for each page, so a walk goes along the ids there.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from taskmanager.model.clock import Clock, SystemClock
from taskmanager.store.sql.rows import bindable
from taskmanager.store.sql.session import Session

Cursor = tuple[int, str]
"""A place in the order: `sent_at` and id."""

TOP_ID: Final = "\U0010ffff"
"""An id that is greater than all others."""
NEWEST: Final[Cursor] = (2**63 - 1, "")
OLDEST: Final[Cursor] = (-(2**63), TOP_ID)
FIRST_SIZE: Final = 16
MOST_SIZE: Final = 100_000
GROWTH: Final = 8
TIES: Final = 5_000
"""Tasks of one instant that are sorted by id at once."""
_ENOUGH: Final = 0.1
"""The share of the budget that is not worth another window."""
_SHARE: Final = 0.25
"""The share of the budget that a window may take. It may take more than the ones before: its rows may be larger."""
_BY_SENT_AT: Final = "taskmanager_tasks_sent_at"
_BY_STATUS: Final = "taskmanager_tasks_status"
_BY_ERROR: Final = "taskmanager_tasks_error_code"
_BY_ID: Final = "sqlite_autoindex_taskmanager_tasks_1"


class Index(NamedTuple):
    """The index that a walk goes along: by time alone, or by time within these statuses, which are not COMPLETED.

    So few rows of one that `is_small` fit that they are read in one window.
    """

    name: str = _BY_SENT_AT
    statuses: tuple[str, ...] = ()
    is_small: bool = False

    @property
    def condition(self) -> str:
        """Return what holds for all its rows. SQLite finds the partial index by the second half."""
        if not self.statuses:
            return "TRUE"
        return f"t.status IN ({', '.join(map(repr, self.statuses))}) AND t.status <> 'COMPLETED'"

    def parts(self) -> list[str]:
        """Return the conditions of the parts of the index. Each part is in the order of time."""
        if not self.statuses:
            return ["TRUE"]
        return [f"t.status = '{status}' AND t.status <> 'COMPLETED'" for status in self.statuses]


def by_time() -> Index:
    """Return the index of all tasks."""
    return Index()


def by_status(statuses: Sequence[str]) -> Index:
    """Return the index of the tasks of these statuses, which are not COMPLETED."""
    return Index(_BY_STATUS, tuple(str(status) for status in statuses))


def by_error() -> Index:
    """Return the index of few tasks with the same error code, which a filter names."""
    return Index(_BY_ERROR, is_small=True)


class Order(NamedTuple):
    """The direction of a walk."""

    sign: str
    direction: str
    nearest: str
    done_id: str
    """In a place, this id says that all tasks of the instant have been looked at."""
    begin_id: str
    """And this one that none of them has been."""

    @property
    def back(self) -> str:
        """Return the sign of what comes before a place in this order."""
        return "<" if self.sign == ">" else ">"


NEWEST_FIRST: Final = Order("<", "DESC", "max", "", TOP_ID)
OLDEST_FIRST: Final = Order(">", "ASC", "min", TOP_ID, "")


class Window(NamedTuple):
    """A part of a walk: the rows `t` of `table` for which `condition` holds. `reached` is None at the end."""

    table: str
    condition: str
    given: dict[str, Any]
    reached: Cursor | None


class Budget:
    """The time for a walk, and how large its next window may be. The first is small: its rows may have megabytes."""

    def __init__(self, budget_s: float, clock: Clock | None = None, most: int = MOST_SIZE) -> None:
        self._clock: Clock = clock or SystemClock()
        self._budget_s, self._began_s = budget_s, self._clock.elapsed_s()
        self._last_s = self._began_s
        self.most = most
        self.size = min(FIRST_SIZE, most)

    @property
    def is_over(self) -> bool:
        """Return whether too little is left for another window."""
        left_s = self._began_s + self._budget_s - self._clock.elapsed_s()
        return self.most <= 0 or left_s <= self._budget_s * _ENOUGH

    @property
    def is_late(self) -> bool:
        """Return whether the time is up."""
        return self._clock.elapsed_s() >= self._began_s + self._budget_s

    def note(self) -> None:
        """Note that a window of this size has been looked at, and choose the size of the next one."""
        now_s = self._clock.elapsed_s()
        took_s, left_s = max(now_s - self._last_s, 1e-6), self._began_s + self._budget_s - now_s
        self._last_s = now_s
        wanted = int(self.size * max(0.0, min(left_s / 2, self._budget_s * _SHARE)) / took_s)
        self.size = max(1, min(wanted, self.size * GROWTH, self.most))


def windows(
    connection: Session,
    index: Index,
    order: Order,
    start: Cursor,
    budget: Budget,
    until: Cursor | None = None,
) -> Iterator[Window]:
    """Yield the windows behind `start` and up to `until`, at least one of them, until the time is over."""
    place: Cursor | None = start
    while place is not None:
        window = _next(connection, index, order, place, budget.size, until)
        yield window
        place = window.reached
        budget.note()
        if budget.is_over:
            return


def _next(connection: Session, index: Index, order: Order, place: Cursor, size: int, until: Cursor | None) -> Window:
    at, task_id = place
    limits, given = _limits(order, until)
    given |= {"at": at, "id": bindable(task_id)}
    table = f"taskmanager_tasks AS t INDEXED BY {index.name}"
    if index.is_small:
        behind = f"(t.sent_at, t.id) {order.sign} (:at, CAST(:id AS TEXT))"
        return Window(table, f"{behind} AND {limits}", given, None)
    if task_id != order.done_id:
        return _instant(connection, index, order, place, size, limits, given)
    edge, far = _edges(connection, index, order, at, size, until)
    base = f"{index.condition} AND t.sent_at {order.sign} :at AND {limits}"
    if edge is None:
        return Window(table, base, given, None)
    # So many tasks have that instant that the walk goes along their ids.
    is_crowded = far == edge
    within = f"t.sent_at {order.back}{'' if is_crowded else '='} :edge"
    reached = (edge, order.begin_id if is_crowded else order.done_id)
    return Window(table, f"{within} AND {base}", given | {"edge": edge}, reached)


def _limits(order: Order, until: Cursor | None) -> tuple[str, dict[str, Any]]:
    if until is None:
        return "TRUE", {}
    given = {"until_at": until[0], "until_id": bindable(until[1])}
    return f"(t.sent_at, t.id) {order.back}= (:until_at, CAST(:until_id AS TEXT))", given


def _edges(
    connection: Session, index: Index, order: Order, at: int, size: int, until: Cursor | None
) -> tuple[int | None, int | None]:
    """Return the instant that is so many tasks away, and the one that is `TIES` further."""
    limit = "TRUE" if until is None else f"t.sent_at {order.back}= :until_at"
    parts = []
    for part in index.parts():
        one = (
            f"SELECT t.sent_at FROM taskmanager_tasks AS t INDEXED BY {index.name}"
            f" WHERE {part} AND t.sent_at {order.sign} :at AND {limit} ORDER BY t.sent_at {order.direction}"
        )
        parts.append(
            f"SELECT ({one} LIMIT 1 OFFSET :size - 1) AS edge, ({one} LIMIT 1 OFFSET :size - 1 + {TIES}) AS far"
        )
    query = f"SELECT {order.nearest}(edge), {order.nearest}(far) FROM ({' UNION ALL '.join(parts)})"
    given = {"at": at, "size": size, "until_at": None if until is None else until[0]}
    edge, far = connection.execute(query, given).fetchone()
    return edge, far


def _instant(
    connection: Session,
    index: Index,
    order: Order,
    place: Cursor,
    size: int,
    limits: str,
    given: dict[str, Any],
) -> Window:
    """Return a window of the tasks of one instant."""
    table = f"taskmanager_tasks AS t INDEXED BY {index.name}"
    condition = f"{index.condition} AND t.sent_at = :at AND t.id {order.sign} CAST(:id AS TEXT) AND {limits}"
    some = f"SELECT 1 FROM {table} WHERE {index.condition} AND t.sent_at = :at LIMIT {TIES + 1}"
    (count,) = connection.execute(f"SELECT count(*) FROM ({some})", {"at": place[0]}).fetchone()
    if count <= TIES:
        return Window(table, condition, given, (place[0], order.done_id))
    query = (
        f"SELECT t.id FROM taskmanager_tasks AS t WHERE t.id {order.sign} CAST(:id AS TEXT)"
        f" ORDER BY t.id {order.direction} LIMIT 1 OFFSET :size - 1"
    )
    found = connection.execute(query, {"id": given["id"], "size": size}).fetchone()
    table = f"taskmanager_tasks AS t INDEXED BY {_BY_ID}"
    if found is None:
        return Window(table, condition, given, (place[0], order.done_id))
    within = f"t.id {order.back}= CAST(:edge_id AS TEXT) AND {condition}"
    return Window(table, within, given | {"edge_id": bindable(found[0])}, (place[0], found[0]))
