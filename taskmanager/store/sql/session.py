"""One connection to a database, as the verbs see it. Each database has its own, and a test may have another.

All SQL here is written as SQLite reads it, in a form that other databases understand too, or that their session puts
into their words. What differs by more than words is a method.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from taskmanager.model.record import TaskRow, Write
    from taskmanager.store.protocol import ClaimRequest
    from taskmanager.store.sql.statements import Kind, Row
    from taskmanager.store.statistics import FileSize

Values = Sequence[Any] | Mapping[str, Any]


class Found(Protocol):
    """What a statement has found or changed."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows that are left."""
        ...


class Session(Protocol):
    """One connection. Used by one thread at a time."""

    faults: ClassVar[tuple[type[Exception], ...]]
    """What a statement raises if a row, or the database, does not let it through."""
    too_large: ClassVar[type[Exception]]
    """What a query raises whose rows are too large together for one text."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def execute(self, sql: str, values: Values = ..., /) -> Found:
        """Do one statement, whose values are named (`:name`) or in order (`?`)."""
        ...

    def together(self) -> AbstractContextManager[object]:
        """Send what is executed in the block in one way to the database. The answers are read after it."""
        ...

    def executemany(self, sql: str, rows: Iterable[Values], /) -> object:
        """Do one statement for each of these rows."""
        ...

    def transaction(self, *, is_beside: bool = False) -> AbstractContextManager[None]:
        """Open a transaction that writes, which is over when the block is, whatever happened in it.

        No other one writes meanwhile. But those that are `is_beside` do, each beside the others of that kind: of them
        every statement repeats its precondition, and nothing that they do depends on rows that they do not write.
        """
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all queries of the block see the database as it was at the first one. A block inside another joins it.

        Keep the block short: it holds back the log of SQLite, and in PostgreSQL what may be cleared away.
        """
        ...

    def by_indexes(self) -> AbstractContextManager[None]:
        """Let the queries of the block be done by the indexes that they name, whatever the database expects to find.

        It may expect few rows, and not know of the many that have ended and cannot be cleared away.
        """
        ...

    def write(self, kind: "Kind", rows: "Sequence[Row]", changed_ids: set[str] | None = None) -> int:
        """Write these rows. Return how many have changed something; their ids are added to `changed_ids`."""
        ...

    @property
    def write_all(self) -> "Callable[[Sequence[tuple[Kind, Sequence[Row]]]], list[int]] | None":
        """What writes the rows of several kinds, in this order, and returns of each how many have changed something.

        None where that saves nothing, because no database is far away.
        """
        ...

    def storable(self, write: "Write") -> "Write":
        """Return the write with texts that the database can hold, and that can be read by people."""
        ...

    def holdable(self, row: "Row", tags: int | None = None) -> "Row":
        """Return a row of another database with texts that this one can hold: the same row where it can hold all.

        `tags` is the place of the tags of a task, which may be looked into here.
        """
        ...

    def skip_ids(self, table: str) -> None:
        """Let the ids that the database gives in this table be greater than all that are there."""
        ...

    def may_take(self, request: "ClaimRequest") -> bool:
        """Whether a look without a lock finds anything for a claim of what others have, or of what was snoozed."""
        ...

    def take(self, request: "ClaimRequest", limit: int) -> "list[TaskRow]":
        """Take at most `limit` rows for a claim, and start some, in the transaction that is open.

        Return them as they are now, in any order. Those that could not be taken are among them.
        """
        ...

    def count_taken(self, queue_name: str, now: int) -> int:
        """Count the CLAIMED and RUNNING rows of a queue, for a claim that is stamped `now`.

        No other transaction counts those of this queue until the one that is open is over.
        """
        ...

    def is_rows_fault(self, error: Exception) -> bool:
        """Whether no retry will make this row storable, as opposed to trouble of the database."""
        ...

    def size(self) -> "FileSize":
        """Return how large the database is."""
        ...

    def tidy(self) -> None:
        """Do at once, behind a transaction that has deleted much, what else a later commit would have to do."""
        ...
