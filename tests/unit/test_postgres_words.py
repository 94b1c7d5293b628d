"""What SQLite's words become in PostgreSQL, each rule on a small example."""

import pytest

from taskmanager.store.postgresql.words import translated
from taskmanager.store.sql.queries import CARRIES


def said(sql: str) -> str:
    """The translation with single spaces."""
    return " ".join(translated(sql).split())


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("id = ? AND at < :now", "id = %s AND at < %(now)s"),
        ("number % 2", "number %% 2"),
        ("SELECT 'is it 5% of ? or :all', \"rowid\"", "SELECT 'is it 5%% of ? or :all', \"rowid\""),
        ("'it''s iif(a, b, c)'", "'it''s iif(a, b, c)'"),
    ],
)
def test_words_of_placeholders_are_psycopg_s_outside_of_texts(sql: str, expected: str) -> None:
    """`%` is doubled everywhere, since psycopg looks for placeholders in texts too."""
    assert said(sql) == expected


def test_words_in_comments_stay_as_they_are() -> None:
    """A comment is space. It is kept, since whoever reads the log of the server may need it."""
    assert translated("SELECT a -- iif(?, b) it's\n/* max(a, b) */ FROM t") == (
        "SELECT a -- iif(?, b) it's\n/* max(a, b) */ FROM t"
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("FROM t INDEXED BY t_id WHERE a", "FROM t WHERE a"),
        ("FROM a CROSS JOIN t AS b INDEXED BY t_id ON b.id = a.id", "FROM a JOIN t AS b ON b.id = a.id"),
        ("FROM a CROSS JOIN t WHERE b", "FROM a CROSS JOIN t WHERE b"),
        ("UPDATE OR IGNORE t SET a = 1", "UPDATE t SET a = 1"),
    ],
)
def test_words_for_the_planner_of_sqlite_are_left_out(sql: str, expected: str) -> None:
    """PostgreSQL chooses indexes and the order of joins itself, and skips no row that a constraint refuses."""
    assert said(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a AND (t.b = 'x' OR t.b = 'y' OR t.b = 'z') LIMIT ?", "a AND (t.b IN ('x', 'y', 'z')) LIMIT %s"),
        ("NOT (b = 'x' OR b = 'y' OR b = 'z')", "NOT (b IN ('x', 'y', 'z'))"),
        ("(b = 'x' OR b = 'y')", "(b = 'x' OR b = 'y')"),
        ("(b = 'x' OR c = 'y' OR b = 'z')", "(b = 'x' OR c = 'y' OR b = 'z')"),
        ("(b = 'x' OR b = 'y' AND b = 'z')", "(b = 'x' OR b = 'y' AND b = 'z')"),
        ("(b = 'x' OR b < 'y' OR b = 'z')", "(b = 'x' OR b < 'y' OR b = 'z')"),
        ("(b = ? OR b = ? OR b = ?)", "(b = %s OR b = %s OR b = %s)"),
        ("f(b, c)", "f(b, c)"),
    ],
)
def test_words_that_compare_a_column_with_texts_become_a_list(sql: str, expected: str) -> None:
    """SQLite would make a table of it. PostgreSQL stops at a LIMIT there."""
    assert said(sql) == expected


def test_words_for_the_id_of_a_row_are_its_id() -> None:
    """PostgreSQL has no rowid. It is a part of no other name."""
    assert said("SELECT rowid, t.rowid, rowids") == "SELECT id, t.id, rowids"


def test_words_of_a_recursion_have_no_limit() -> None:
    """PostgreSQL knows none there, but behind it."""
    assert said("WITH RECURSIVE a (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a LIMIT 9) SELECT n FROM a LIMIT 3") == (
        "WITH RECURSIVE a (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a) SELECT n FROM a LIMIT 3"
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a IS b", "a IS NOT DISTINCT FROM b"),
        ("a IS NOT :b", "a IS DISTINCT FROM %(b)s"),
        ("a IS CAST(? AS TEXT)", "a IS NOT DISTINCT FROM CAST(%s AS TEXT)"),
        ("a IS NULL AND b IS NOT NULL", "a IS NULL AND b IS NOT NULL"),
        ("a IS TRUE AND b IS NOT FALSE", "a IS TRUE AND b IS NOT FALSE"),
    ],
)
def test_words_for_equal_or_both_null_are_those_of_the_standard(sql: str, expected: str) -> None:
    """IS with anything but NULL and truth values compares in SQLite alone."""
    assert said(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a LIKE :text ESCAPE '\\'", "a ILIKE %(text)s ESCAPE '\\'"),
        ("a GLOB ? AND b", None),
    ],
)
def test_words_of_patterns_compare_as_sqlite_does(sql: str, expected: str | None) -> None:
    """LIKE does not tell upper from lower case, and GLOB, which does, has the wildcards of files."""
    if expected is None:
        assert said(sql).startswith("a LIKE replace(")
        assert said(sql).endswith("'?') AND b")
    else:
        assert said(sql) == expected


ELEMENTS = "jsonb_array_elements_text((%(ids)s)::jsonb)"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("id IN (SELECT value FROM json_each(:ids))", f'id = ANY (ARRAY(SELECT {ELEMENTS} COLLATE "C"))'),
        ("id NOT IN (SELECT value FROM json_each(:ids))", f'id <> ALL (ARRAY(SELECT {ELEMENTS} COLLATE "C"))'),
        (
            "id IN (SELECT CAST(value AS INTEGER) FROM json_each(:ids))",
            f"id = ANY (ARRAY(SELECT CAST({ELEMENTS} AS bigint)))",
        ),
        ("id IN (SELECT id FROM t)", "id IN (SELECT id FROM t)"),
        ("SELECT value FROM json_each(:ids) UNION", f'SELECT {ELEMENTS} COLLATE "C" AS value UNION'),
        (
            "FROM json_each(:ids) AS v CROSS JOIN t ON t.id = v.value ORDER BY v.key",
            f"FROM {ELEMENTS} WITH ORDINALITY AS v (value, key) JOIN t ON t.id = v.value ORDER BY v.key",
        ),
    ],
)  # fmt: skip
def test_words_of_values_in_json_are_an_array_or_a_table(sql: str, expected: str) -> None:
    """An array is one condition for an index. Values are text, unless they are cast, in the order of their bytes."""
    assert said(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a FROM (SELECT 1 AS a)", "SELECT a FROM (SELECT 1 AS a) AS unnamed"),
        ("SELECT a FROM (SELECT 1 AS a) AS b", "SELECT a FROM (SELECT 1 AS a) AS b"),
    ],
)
def test_words_name_each_query_that_stands_as_a_table(sql: str, expected: str) -> None:
    """Before version 16 PostgreSQL wants a name."""
    assert said(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("json_group_array(json_array(a, b))", "coalesce(json_agg(json_build_array(a, b)), '[]'::json)::text"),
        ("json_group_array(a) FILTER (WHERE b)", "coalesce(json_agg(a) FILTER (WHERE b), '[]'::json)::text"),
        ("sum(a), count(*)", "(sum(a))::bigint, count(*)"),
        ("sum(a) FILTER (WHERE b)", "(sum(a) FILTER (WHERE b))::bigint"),
    ],
)
def test_words_of_aggregates_give_what_those_of_sqlite_give(sql: str, expected: str) -> None:
    """No rows are an empty array, and a sum of integers is an integer."""
    assert said(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("iif(a = max(b, c), f(d, e), NULL)", "CASE WHEN a = greatest(b, c) THEN f(d, e) ELSE NULL END"),
        ("min(a), min(a, b), max((SELECT max(a, b)))", "min(a), least(a, b), max((SELECT greatest(a, b)))"),
        ("instr(a, ?) > 0", "strpos(a, %s) > 0"),
        ("length(CAST(t.args AS BLOB)), length(a)", "octet_length(t.args), length(a)"),
        ("CAST(avg(a) AS INTEGER), CAST(? AS TEXT)", "CAST(avg(a) AS bigint), CAST(%s AS TEXT)"),
        ("substr(a, -:size), substr(a, 3)", "right(a, (%(size)s)::integer), substr(a, 3)"),
        ("substr(a, 1, 2), substr(a, 1, ?)", "substr(a, 1, 2), substr(a, 1, (%s)::integer)"),
        ("printf('%020d', a) || b", "lpad((a)::text, 20, '0') || b"),
        ("json_extract(a, '$.err.message')", "((a)::jsonb #>> '{err,message}')"),
        ("json_valid(a)", "(jsonb_typeof(taskmanager_json(a)) <> 'string')"),
        ("json_extract(a, '$[0]')", "((a)::jsonb #>> '{0}')"),
    ],
)
def test_words_of_functions_are_those_that_do_the_same(sql: str, expected: str) -> None:
    """Of arguments that are calls themselves, each is translated in its place."""
    assert said(sql) == expected


def test_words_for_carrying_tags_are_the_operator_of_an_index() -> None:
    """SQLite compares tag by tag. It is the only condition that is not translated word by word."""
    assert said(f"a AND {CARRIES} AND b") == "a AND CAST(t.tags AS jsonb) @> taskmanager_json(%(tags)s) AND b"


def test_words_that_no_rule_knows_stay_as_they_are() -> None:
    """Also their spaces, and brackets, which name the values of a row."""
    sql = "INSERT INTO t (a, b)\n  SELECT [a], coalesce( [b], 1 ) FROM (VALUES) AS v\tWHERE a <> b"
    assert translated(sql) == sql
