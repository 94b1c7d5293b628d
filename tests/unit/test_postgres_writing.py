"""Arrays as PostgreSQL reads them, and what the statements for many rows have in common."""

from typing import Any

import psycopg
import pytest

from taskmanager.store.postgresql import writing
from taskmanager.store.sql import statements as sql
from tests.servers import Cluster

ODD = ["", "NULL", None, "null", "{}", '{"a": "b\\"c"}', "a\\", '\\"', '"', ",", "-", " ", "\t\n", "é€😀", "\\N", "''"]


class Noted:
    """A session that notes what it is told to do."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.rowcount = 1

    def execute(self, text: str, values: Any) -> "Noted":
        """Note it."""
        self.told.append((text, values))
        return self


@pytest.mark.parametrize("values", [ODD, ODD[:2], [None], [""], ["\0"[:0]], ["a", "b"]], ids=str)
def test_texts_are_read_back_as_they_were(cluster: Cluster, values: list[str | None]) -> None:
    """Whatever a text holds that means something in the text of an array."""
    with psycopg.connect(cluster.url()) as connection:
        found = connection.execute("SELECT * FROM unnest(%s::text[])", (writing.texts(values),)).fetchall()
    assert found == [(value,) for value in values]


def test_numbers_are_read_back_as_they_were(cluster: Cluster) -> None:
    """Flags come as truth values too."""
    values = [0, -1, None, 2**63 - 1, -(2**63), True, False]
    with psycopg.connect(cluster.url()) as connection:
        found = connection.execute("SELECT * FROM unnest(%s::bigint[])", (writing.numbers(values),)).fetchall()
    assert found == [(value,) for value in values]


@pytest.mark.parametrize("values", [["a", "\0"], ["a\0,b"], ["\0-", None], ["\0"], [b"a"], [1, None]], ids=repr)
def test_texts_that_cannot_be_stored_are_a_data_error(values: list[Any]) -> None:
    """As psycopg itself has it for a single value. No value may be taken for what joins the others."""
    with pytest.raises(psycopg.DataError):
        writing.texts(values)


def test_writing_one_row_needs_no_array() -> None:
    """The statement is another one then: single rows are frequent, and are planned with what they are."""
    told = Noted()
    writing.write(told, sql.FORGET_STEPS, [("a",)])  # type: ignore[arg-type]  # all that it needs
    assert told.told[0][1] == {"id": "a"}
    assert "unnest" not in told.told[0][0]


def test_writing_shares_what_all_rows_have_in_common() -> None:
    """Only what may be alike is compared, so that a kind has few statements."""
    kind = sql.Kind(
        "[id] [tags] [args] [log] FROM (VALUES) AS v", ("id", "tags", "args", "log", "at"), ("tags", "args")
    )
    told = Noted()
    rows = [("t0", "same", "a", "x", 1), ("t1", "same", "b", "x", 1)]
    writing.write(told, kind, rows)  # type: ignore[arg-type]  # all that it needs
    text = (
        "v.c1 CAST(:tags AS text) v.c2 v.c3"
        " FROM unnest(CAST(:id AS text[]), CAST(:args AS text[]), CAST(:log AS text[])) AS v(c1, c2, c3)"
    )
    assert told.told == [(text, {"id": '{"t0","t1"}', "tags": "same", "args": '{"a","b"}', "log": '{"x","x"}'})]


def test_writing_goes_in_the_order_of_ids() -> None:
    """Two writers that want the same rows lock them in the same order. Rows of one id stay in theirs."""
    told = Noted()
    writing.write(told, sql.FORGET_STEPS, [("b",), ("c",), ("a",)])  # type: ignore[arg-type]  # all that it needs
    assert told.told[0][1] == {"id": '{"a","b","c"}'}


def test_writing_a_key_twice_takes_two_statements() -> None:
    """PostgreSQL refuses a statement that would replace a row of its own; the later one replaces the earlier one."""
    kind = sql.Kind("[id] [at] FROM (VALUES) AS v ON CONFLICT (id) DO UPDATE", ("id", "at"), ())
    told = Noted()
    rows = [("a", 1), ("b", 2), ("a", 3), ("a", 4)]
    assert writing.write(told, kind, rows) == 3  # type: ignore[arg-type]  # all that it needs
    assert [values for _, values in told.told] == [
        {"id": '{"a","b"}', "at": "{1, 2}"},
        {"id": "a", "at": 3},
        {"id": "a", "at": 4},
    ]


def test_writing_nothing_asks_nothing() -> None:
    """A commit asks for each kind of row, whether there are any."""
    told = Noted()
    assert writing.write(told, sql.INSERT, []) == 0  # type: ignore[arg-type]  # all that it needs
    assert told.told == []
