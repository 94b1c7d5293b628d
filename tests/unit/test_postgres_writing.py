"""Arrays as PostgreSQL reads them, and what the statements for many rows have in common."""

from typing import Any

import psycopg
import pytest

from taskmanager.store.postgresql import writing
from taskmanager.store.sql import statements as sql
from tests.servers import Cluster
from tests.unit.postgres_sessions import Connected, session

__all__ = ["session"]  # a fixture

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


@pytest.mark.parametrize("values", [ODD, ODD[:2], [None], [""], [], ["a", "b"]], ids=str)
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


def test_writing_changes_many_rows_with_one_statement(session: Connected) -> None:
    """Rows that are not what the writer last saw stay, and their ids are not returned."""

    def rows(kind: sql.Kind, **known: Any) -> list[sql.Row]:
        named = [{"id": f"t{number:03}", "result": f'["{number}"]', **known} for number in range(300)]
        return [tuple(each.get(name) for name in kind.columns) for each in named]

    given: Any = session  # all that it needs
    call = {"task_name": "app:job", "queue_name": "q", "priority": 50, "max_retries": 1, "task_options": "{}"}
    assert writing.write(given, sql.NEW, rows(sql.NEW, args="[]", sent_at=100, **call)) == 300
    assert writing.write(given, sql.NEW, rows(sql.NEW, args="[]", sent_at=100, **call)) == 0
    session.execute("UPDATE taskmanager_tasks SET claimed_by_worker_id = 'me', start_count = 1 WHERE id <> 't007'")
    seen = {"expected_status": "PENDING", "expected_owner": "me", "expected_start_count": 1, "worker_pid": 7}
    assert writing.write(given, sql.START, rows(sql.START, started_at=200, **seen)) == 299
    seen |= {"expected_status": "RUNNING", "expected_start_count": 2}
    changed: set[str] = set()
    ends = rows(sql.SUCCESS, started_at=200, completed_at=300, **seen)
    assert writing.write(given, sql.SUCCESS, ends, changed) == 299
    assert changed == {row[0] for row in ends} - {"t007"}
    assert writing.write(given, sql.FIRST_ATTEMPTS[sql.SUCCESS], ends) == 300
    query = "SELECT status, start_count, worker_pid, result FROM taskmanager_tasks WHERE id IN ('t007', 't299')"
    found = session.execute(f"{query} ORDER BY id").fetchall()
    assert found == [("PENDING", 0, None, None), ("COMPLETED", 2, 7, '["299"]')]


def test_writing_knows_which_columns_are_numbers(session: Connected) -> None:
    """A name means the same in all tables, so one list will do."""
    query = """
        SELECT column_name, data_type FROM information_schema.columns
        WHERE table_schema = ? AND table_name NOT IN ('taskmanager_pending', 'taskmanager_history')
    """
    found = session.execute(query, (session.schema,)).fetchall()
    assert {kind for name, kind in found if name in writing.NUMBERS} == {"bigint", "integer", "smallint"}
    used = {name for kind in (sql.INSERT, sql.ATTEMPT, sql.STEP_RECORD, sql.FIGURES, *sql.GRAPH) for name in kind.used}
    assert used - writing.NUMBERS <= {name for name, kind in found if kind == "text"}
