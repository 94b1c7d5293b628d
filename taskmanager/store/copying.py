"""Copies all tasks and workflows, schedules, pauses and figures from one database to another.

It goes page by page in the order of the ids, and each page is one transaction. What is there already is found by its
id, so a copy that was cut short goes on where it was, and one that is done again adds nothing. A row that has changed
since it was copied is copied again, with all that belongs to it; one that is the newer one where it is copied to stays.

Each page is read back and compared before its transaction ends.

Waiting rows of instances are free in the copy: nobody there holds them in memory. A running one keeps its owner, so the
next start judges it as one whose process has died.

A row that the other database refuses is left out, and named; it takes none of its page with it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from taskmanager.model.errors import StoreError
from taskmanager.model.record import TaskRow
from taskmanager.model.states import WAITING
from taskmanager.model.workflows import HELD
from taskmanager.store.copy_tables import (
    ATTEMPTS,
    COPIED,
    EVENTS,
    FAMILIES,
    FIGURE_COLUMNS,
    FIGURES,
    SMALL,
    STEPS,
    TASKS,
    Child,
    Family,
    Small,
)
from taskmanager.store.sql.rows import Undecodable, is_odd_id
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import FIGURE_KEY, Kind, Row

PAGE: Final = 500
PAGE_BYTES: Final = 8_000_000
"""A page ends here, or with the first row that is larger."""
LOOK_PAGE: Final = 5_000
"""How many ids are compared at once."""
_TAGS: Final = TASKS.columns.index("tags")
_EVENT_ID_OF_EVENT: Final = EVENTS.columns.index("event_id")
_EVENT_ID_OF_STEP: Final = STEPS.columns.index("event_id")
_NO_UTF8: Final = "\ufffd"
Children = dict[Child, list[Row]]


class LeftOut(NamedTuple):
    """A row that the other database has refused, with what belongs to it."""

    table: str
    key: str
    reason: str


class TableCount(NamedTuple):
    """How many rows of one table were copied, and how many are in both databases now."""

    table: str
    copied: int
    source: int
    target: int


class Copied(NamedTuple):
    """What has come of a copy."""

    tables: list[TableCount]
    newer: int
    """Tasks and workflows that were left alone: what was there had changed later."""
    freed: int
    """Tasks that waited in the memory of an instance, and are free in the copy."""
    changed_texts: int
    """Texts in which a character was replaced that the other database cannot hold."""
    left_out: list[LeftOut]


def copy(
    source: Session,
    target: Session,
    *,
    is_into: bool = False,
    check: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Copied:
    """Copy everything. `check` is called before each page, and raises what ends the copy.

    `progress` hears how many tasks and workflows of how many have been looked at.

    Raises `StoreError` if `target` has tasks or workflows that `source` has not, unless `is_into`; and if what was
    written is read back as something else, in which case nothing of that page is stored.
    """
    copier = _Copier(source, target, check, progress)
    if not is_into:
        copier.refuse_others()
    copier.run()
    return copier.result()


class _Copier:
    """One copy."""

    def __init__(
        self, source: Session, target: Session, check: Callable[[], None], progress: Callable[[int, int], None]
    ) -> None:
        self._source = source
        self._target = target
        self._check = check
        self._progress = progress
        self._done = 0
        self._written = Counter[str]()
        self._newer = self._freed = self._changed = 0
        self._left_out: list[LeftOut] = []

    def refuse_others(self) -> None:
        """Raise `StoreError` if there is a task or a workflow that the source does not have."""
        for family in FAMILIES[:2]:
            for ids in _ids(self._target, family.table):
                known = _ages(self._source, family, (self._source.holdable((each,))[0] for each in ids))
                for each in ids:
                    # One with such a character may be that of an id that could not be copied as it is.
                    if _exact(each) not in known and _NO_UTF8 not in each:
                        raise StoreError(
                            f"it has tasks of its own already, such as {family.label} {each}, and nothing was copied; "
                            "give an empty place, or --into to keep both"
                        )

    def run(self) -> None:
        """Copy all tables."""
        families = {each.table for each in FAMILIES}
        total = sum(_count(self._source, table) for table in families)
        self._progress(0, total)
        for family in FAMILIES:
            after: str | None = None
            while keys := self._keys(family, after):
                self._check()
                self._copy_page(family, keys)
                after = keys[-1][0]
                self._done += len(keys)
                self._progress(self._done, total)
        for small in SMALL:
            self._copy_small(small)
        self._copy_figures()

    def result(self) -> Copied:
        """Count what is in both databases."""
        tables = [
            TableCount(
                table.removeprefix("taskmanager_"),
                self._written[table],
                _count(self._source, table),
                _count(self._target, table),
            )
            for table in COPIED
        ]
        return Copied(tables, self._newer, self._freed, self._changed, self._left_out)

    # Tasks and workflows

    def _keys(self, family: Family, after: str | None) -> list[tuple[str, int]]:
        """Return the ids of the next page, each with its age."""
        conditions = [family.condition] if family.condition else []
        if after is not None:
            conditions.append("t.id > CAST(? AS TEXT)")
        which = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT t.id, {family.age}, {family.weight} FROM {family.table} AS t{which} ORDER BY t.id LIMIT {PAGE}"
        found = self._source.execute(query, () if after is None else (after,)).fetchall()
        total = 0
        for number, (_, _, weight) in enumerate(found):
            total += weight
            if total > PAGE_BYTES and number:
                return [(key, age) for key, age, _ in found[:number]]
        return [(key, age) for key, age, _ in found]

    def _copy_page(self, family: Family, keys: list[tuple[str, int]]) -> None:
        names = {_exact(key): self._target.holdable((key,))[0] for key, _ in keys}
        there = _ages(self._target, family, names.values())
        ages = {_exact(names[_exact(key)]): age for key, age in keys}
        wanted = {key for key, age in ages.items() if there.get(key, age - 1) < age}
        self._newer += sum(there.get(key, age) > age for key, age in ages.items())
        if not wanted:
            return
        with self._source.snapshot():
            rows, children = self._read(family, keys[0][0], keys[-1][0], wanted)
        try:
            self._put(family, rows, children, ages)
        except self._target.faults as error:
            if not self._target.is_rows_fault(error):
                raise
            for row in rows:
                self._put_alone(family, row, children, ages)

    def _read(self, family: Family, first: str, last: str, wanted: set[str | bytes]) -> tuple[list[Row], Children]:
        """Read all columns of those rows, and what belongs to them, in the form that the target can hold."""
        within = "{0} >= CAST(? AS TEXT) AND {0} <= CAST(? AS TEXT)"
        which = within.format("t.id") + (f" AND {family.condition}" if family.condition else "")
        columns = ", ".join(f"t.{name}" for name in family.columns)
        query = f"SELECT {columns} FROM {family.table} AS t WHERE {which} ORDER BY t.id"
        tags = _TAGS if family is TASKS else None
        rows = self._holdable(self._source.execute(query, (first, last)).fetchall(), wanted, tags)
        if family is TASKS:
            rows = [self._free(row) for row in rows]
        children: Children = {}
        for child in family.children:
            query = (
                f"SELECT {child.select} FROM {child.table} WHERE {within.format(child.owner)}"
                f" ORDER BY {child.owner}, {child.order}"
            )
            children[child] = self._holdable(self._source.execute(query, (first, last)).fetchall(), wanted)
        return rows, children

    def _holdable(self, rows: Iterable[Row], wanted: set[str | bytes], tags: int | None = None) -> list[Row]:
        found = []
        for row in rows:
            made = self._target.holdable(row, tags)
            if _exact(made[0]) in wanted:
                if made is not row:
                    self._changed += sum(new is not old for new, old in zip(made, row, strict=True))
                found.append(made)
        return found

    def _free(self, row: Row) -> Row:
        task = TaskRow._make(row)
        if task.status not in WAITING or task.claimed_by_worker_id in (None, HELD):
            return row
        if task.cancel_requested_at is not None:  # the next start ends it, as one whose owner is gone
            return row
        self._freed += 1
        return tuple(task._replace(status="PENDING", claimed_at=None, claimed_by_worker_id=None, claim_expires_at=None))

    def _put_alone(self, family: Family, row: Row, children: Children, ages: dict[str | bytes, int]) -> None:
        own = {child: [each for each in rows if _exact(each[0]) == _exact(row[0])] for child, rows in children.items()}
        error = self._refused(family, row, own, ages)
        if error is None:
            return
        label = family.label
        if own.get(ATTEMPTS):  # nothing goes on from them, so the task can be without
            own[ATTEMPTS] = []
            if self._refused(family, row, own, ages) is None:
                label = f"attempts of {label}"
        self._left_out.append(_left_out(label, row, error))

    def _refused(self, family: Family, row: Row, children: Children, ages: dict[str | bytes, int]) -> Exception | None:
        """Write one row. Return why the database refuses it, if it does."""
        try:
            self._put(family, [row], children, ages)
        except self._target.faults as error:
            if not self._target.is_rows_fault(error):
                raise
            return error
        return None

    def _put(self, family: Family, rows: list[Row], children: Children, ages: dict[str | bytes, int]) -> None:
        """Write these rows with what belongs to them in one transaction, and read them back.

        Another copy, or the application, may have come in between: what is newer by now stays.
        """
        written = Counter[str]()
        with self._target.transaction():
            there = _ages(self._target, family, (row[0] for row in rows))
            rows = [row for row in rows if there.get(_exact(row[0]), -1) < ages[_exact(row[0])]]
            keys = {_exact(row[0]) for row in rows}
            children = {child: [row for row in found if _exact(row[0]) in keys] for child, found in children.items()}
            old = [row[0] for row in rows if _exact(row[0]) in there]
            for child in reversed(family.children):
                for which, values in _chosen(child.owner, old):
                    self._target.execute(f"DELETE FROM {child.table} WHERE {which}", values)
            if children.get(EVENTS):
                self._number_events(children)
            _write(self._target, family.kind, rows)
            for child, found in children.items():
                _write(self._target, child.kind, found)
                written[child.table] += len(found)
            if children.get(EVENTS):
                self._target.skip_ids(EVENTS.table)
            written[family.table] += len(rows)
            self._compare(family, rows, children)
        self._written += written

    def _number_events(self, children: Children) -> None:
        """Keep the numbers of events, unless they are taken: then all events of that task get new ones, and its steps
        name these.
        """
        numbers = [row[_EVENT_ID_OF_EVENT] for row in children[EVENTS]]
        query = "SELECT id FROM taskmanager_events WHERE id IN (SELECT CAST(value AS INTEGER) FROM json_each(?))"
        taken = {number for (number,) in self._target.execute(query, (json.dumps(numbers),)).fetchall()}
        if not taken:
            return
        (last,) = self._target.execute("SELECT max(id) FROM taskmanager_events").fetchone()
        last = max(last, *numbers)
        moved = {_exact(row[0]) for row in children[EVENTS] if row[_EVENT_ID_OF_EVENT] in taken}
        new: dict[tuple[str | bytes, int], int] = {}
        for row in children[EVENTS]:
            if _exact(row[0]) in moved:
                last += 1
                new[_exact(row[0]), row[_EVENT_ID_OF_EVENT]] = last
        for child, place in ((EVENTS, _EVENT_ID_OF_EVENT), (STEPS, _EVENT_ID_OF_STEP)):
            children[child] = [
                (*row[:place], new.get((_exact(row[0]), row[place]), row[place]), *row[place + 1 :])
                for row in children[child]
            ]

    def _compare(self, family: Family, rows: list[Row], children: Children) -> None:
        """Read back what was written. Raises `StoreError` if it is not the same."""
        keys = [row[0] for row in rows]
        tables = [(family.table, "id", ", ".join(family.columns), rows)]
        tables += [(child.table, child.owner, child.select, found) for child, found in children.items()]
        for table, key, columns, expected in tables:
            found = Counter[Row]()
            for which, values in _chosen(key, keys):
                found.update(self._target.execute(f"SELECT {columns} FROM {table} WHERE {which}", values).fetchall())
            if found != Counter(map(tuple, expected)):
                different = next(iter((Counter(map(tuple, expected)) - found) or (found - Counter(expected))))
                raise StoreError(
                    f"a row of {table} that belongs to {different[0]} was stored as another one than it was read; "
                    "nothing of its page was kept. Please report this"
                )

    # The other tables

    def _copy_small(self, small: Small) -> None:
        rows = self._source.execute(f"SELECT {', '.join(small.columns)} FROM {small.table}").fetchall()
        for row in rows:
            made = self._target.holdable(row)
            self._changed += sum(new is not old for new, old in zip(made, row, strict=True))
            try:
                with self._target.transaction():
                    self._written[small.table] += self._target.execute(small.insert, made).rowcount
            except self._target.faults as error:
                if not self._target.is_rows_fault(error):
                    raise
                self._left_out.append(
                    LeftOut(small.table.removeprefix("taskmanager_"), made[0], str(error).partition("\n")[0])
                )

    def _copy_figures(self) -> None:
        after: Row = (0, -1, "", "")
        key = ", ".join(FIGURE_KEY)
        query = (
            f"SELECT {', '.join(FIGURE_COLUMNS)} FROM taskmanager_figures"
            f" WHERE ({key}) > (?, ?, CAST(? AS TEXT), CAST(? AS TEXT)) ORDER BY {key} LIMIT {PAGE}"
        )
        while rows := self._source.execute(query, after).fetchall():
            self._check()
            after = rows[-1][:4]
            made = [self._target.holdable(row) for row in rows]
            with self._target.transaction():
                self._written["taskmanager_figures"] += _write(self._target, FIGURES, made)


def _exact(text: str) -> str | bytes:
    """Return what is equal only for the same id. Two that are not UTF-8 may look alike."""
    return text.raw if isinstance(text, Undecodable) else text


def _left_out(what: str, row: Row, error: Exception) -> LeftOut:
    """What comes behind the first line of an error may be all that the row holds."""
    return LeftOut(what, row[0], str(error).partition("\n")[0])


def _count(session: Session, table: str) -> int:
    return int(session.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _ids(session: Session, table: str) -> Iterator[list[str]]:
    """Yield all ids, in pages."""
    query = f"SELECT id FROM {table} ORDER BY id LIMIT {LOOK_PAGE}"
    found = session.execute(query).fetchall()
    while found:
        yield [each for (each,) in found]
        query = f"SELECT id FROM {table} WHERE id > CAST(? AS TEXT) ORDER BY id LIMIT {LOOK_PAGE}"
        found = session.execute(query, found[-1]).fetchall()


def _chosen(column: str, ids: Sequence[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield SQL and values that choose the rows of these ids. JSON cannot name all of them."""
    plain = [each for each in ids if not is_odd_id(each)]
    if plain:
        yield f"{column} IN (SELECT value FROM json_each(?))", (json.dumps(plain, ensure_ascii=False),)
    for each in ids:
        if is_odd_id(each):
            yield f"{column} = CAST(? AS TEXT)", (each,)


def _ages(session: Session, family: Family, ids: Iterable[str]) -> dict[str | bytes, int]:
    """Return those of these ids that are there, each with its age."""
    found: dict[str | bytes, int] = {}
    for which, values in _chosen("t.id", list(ids)):
        query = f"SELECT t.id, {family.age} FROM {family.table} AS t WHERE {which}"
        found.update((_exact(key), age) for key, age in session.execute(query, values).fetchall())
    return found


def _write(session: Session, kind: Kind, rows: Sequence[Row]) -> int:
    """Write these rows. Texts that are no UTF-8 look like others, so they are not told apart in a statement of many."""
    if not rows:
        return 0
    if any(isinstance(value, Undecodable) for row in rows for value in row):
        return sum(session.write(kind, [row]) for row in rows)
    return session.write(kind, rows)
