"""`taskmanager.store.sql.scanning`: every task that fits is found once, in pages, while others change."""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmanager.model.record import PAYLOAD, TaskRow
from taskmanager.model.states import TaskStatus
from taskmanager.store.sql import scanning, windows
from taskmanager.store.sql.scanning import (
    TEXT_ROWS,
    Counted,
    count_up_to,
    newest_matching,
    page_ids,
    scan,
)
from taskmanager.store.sql.search import Search, exactly
from taskmanager.store.sqlite.session import SqliteSession
from tests.contract.rows import task
from tests.unit.stored_rows import COLUMNS, database, put

Place = tuple[int, str]
LATER: Place = (10_000, "")
WORDS = (
    "50%",
    "a_b",
    "star*",
    "what?",
    'say "hi"',
    "back\\slash",
    "line\nbreak",
    "Müller",
    "ÉTÉ",
    "日本",
    "\0nul",
    "ß",
)


@pytest.fixture
def connection() -> Iterator[SqliteSession]:
    with database() as made:
        yield made


def made(number: int, chance: random.Random) -> TaskRow:
    """A row of some status, with words in all places where a text is looked for."""
    status = chance.choice(["PENDING", "COMPLETED", "COMPLETED", "FAILED", "FAILED", "CANCELLED", "RUNNING"])
    word, sent_at = chance.choice(WORDS), chance.choice([7, 8, 9, number])
    error = {"err": {"error_code": "E", "message": chance.choice(WORDS), "data": None}}
    row = task(
        f"{chance.randrange(10**6):06d}-{number}",
        status=status,
        task_name=chance.choice(["app:send", "app:send[1]", "job", "Job", "st*r", "st?r"]),
        queue_name=chance.choice(["mail", "slow"]),
        sent_at=sent_at,
        updated_at=sent_at + chance.randrange(50),
        tags=chance.choice([None, "{}", '{"customer":"42"}', '{"customer":"42","word":%s}' % json.dumps(word)]),
        args=json.dumps([chance.choice(WORDS)], ensure_ascii=chance.random() < 0.5),
        kwargs=json.dumps({"to": chance.choice(WORDS)}, ensure_ascii=False),
    )
    if status in ("FAILED", "CANCELLED"):
        code = chance.choice(["TIMEOUT", "TIMEOUT", "E"])
        row = row._replace(error_code=code, failed_at=sent_at, result=json.dumps(error, ensure_ascii=False))
    return row


def place(row: TaskRow) -> Place:
    return row.sent_at, row.task_id


def has_text(row: TaskRow, text: str, in_arguments: bool) -> bool:
    """What is stored has the text as it is, or as one of the two ways to write it in JSON."""
    columns = [row.task_id, row.task_name, row.tags, row.failed_reason, row.result if row.error_code else None]
    if in_arguments:
        columns += [row.args, row.kwargs]
    needles = [text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]]
    return any(needle.casefold() in column.casefold() for column in columns if column for needle in needles)


def fits(row: TaskRow, search: Search) -> bool:
    """The filter, in plain Python."""
    tags = json.loads(row.tags or "{}")
    signs = re.findall(r"\\[*?]|.", search.task_name or "*", re.DOTALL)
    pattern = "".join({"*": ".*", "?": "."}.get(sign, re.escape(sign[-1])) for sign in signs)
    return (
        (not search.statuses or row.status in search.statuses)
        and re.fullmatch(pattern, row.task_name, re.DOTALL) is not None
        and search.queue_name in (None, row.queue_name)
        and search.error_code in (None, row.error_code)
        and all(tags.get(name) == value for name, value in search.tags)
        and (search.changed_since is None or row.updated_at >= search.changed_since)
        and (search.text is None or has_text(row, search.text, search.looks_in_arguments))
    )


def expected(rows: Sequence[TaskRow], search: Search) -> list[Place]:
    return sorted((place(row) for row in rows if fits(row, search)), reverse=True)


def pages(
    connection: SqliteSession,
    search: Search,
    limit: int,
    budget_s: float,
    between: Callable[[], None] = lambda: None,
) -> list[Place]:
    """Read to the end, from each place that was reached."""
    found: list[Place] = []
    after = None
    while True:
        page = scan(connection, search, limit, budget_s=budget_s, after=after)
        assert len(page.rows) <= limit
        found += [place(row) for row in page.rows]
        if page.reached is None:
            return found
        assert after is None or page.reached < after, "it gets further"
        after = page.reached
        between()


def ids_in_pages(connection: SqliteSession, search: Search, until: Place, limit: int, budget_s: float) -> list[Place]:
    found: list[Place] = []
    after = None
    while True:
        page = page_ids(connection, search, until, after, limit, budget_s=budget_s)
        assert page.task_ids == [task_id for _, task_id in page.places]
        found += page.places
        if page.reached is None:
            return found
        after = page.reached


def several(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.sampled_from(values)


SEARCHES = st.builds(
    Search,
    statuses=st.lists(st.sampled_from(TaskStatus), max_size=3).map(tuple),
    task_name=several(
        [
            "job",
            "app:*",
            "*",
            "*ob",
            "?ob",
            "app:send[1]",
            "app:send[*",
            "no",
            "j*b?",
            "st*r",
            "st\\*r",
            "st\\?*",
            "**r",
        ]
    ),
    queue_name=several(["mail", "none"]),
    error_code=several(["TIMEOUT", "E", "NONE"]),
    tags=st.sampled_from([(), (("customer", "42"),), (("customer", "42"), ("word", "50%")), (("x", "y"),)]),
    changed_since=several([0, 20, 1_000]),
    text=several(
        [*WORDS, "%", "_", "*", "?", '"', "\\", "'", "müLLER", "été", "SAY", "customer", "timeout", "1", "zz"]
    ),
    before=st.none(),
    looks_in_arguments=st.booleans(),
)


@pytest.fixture(autouse=True, scope="module")
def small_windows() -> Iterator[None]:
    """Small numbers, so that few rows need many windows, and walks along the ids."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "FIRST_SIZE", 4)
        patch.setattr(windows, "TIES", 6)
        patch.setattr(scanning, "FEW", 3)
        patch.setattr(scanning, "FIRST_SIZE", 2)
        yield


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(0, 60),
    search=SEARCHES,
    limit=st.integers(1, 9),
    is_hasty=st.booleans(),
)
def test_scanning_finds_what_a_plain_filter_finds(
    seed: int, size: int, search: Search, limit: int, is_hasty: bool
) -> None:
    """In pages, newest first, and the same oldest first, whether there is time for one window or for all."""
    chance, budget_s = random.Random(seed), 0.0 if is_hasty else 5.0
    rows = [made(number, chance) for number in range(size)]
    with database() as connection:
        put(connection, *rows)
        wanted = expected(rows, search)
        assert pages(connection, search, limit, budget_s) == wanted
        assert ids_in_pages(connection, search, LATER, limit, budget_s) == wanted[::-1]
        counted = count_up_to(connection, search, 1_000, budget_s)
        assert counted.count <= len(wanted)
        assert counted == Counted(len(wanted), False) or counted.is_capped
        if not is_hasty:
            assert counted == Counted(len(wanted), False)
            assert count_up_to(connection, search, 2, budget_s) == Counted(min(2, len(wanted)), len(wanted) > 2)
            assert newest_matching(connection, search, budget_s=budget_s) == next(iter(wanted), None)
        elif counted.reached is not None:
            assert [each for each in wanted if each > counted.reached][: counted.count] == wanted[: counted.count]


@given(seed=st.integers(0, 2**32), search=SEARCHES, limit=st.integers(1, 9), is_hasty=st.booleans())
def test_scanning_neither_skips_nor_repeats_while_rows_change(
    seed: int, search: Search, limit: int, is_hasty: bool
) -> None:
    """Every task that fits all the time comes once, though others come, change and go meanwhile."""
    chance = random.Random(seed)
    rows = {row.task_id: row for row in (made(number, chance) for number in range(40))}
    with database() as connection:
        put(connection, *rows.values())
        steady = dict(rows)

        def change() -> None:
            new = made(chance.randrange(200), chance)
            if new.task_id not in rows:
                rows[new.task_id] = new
                put(connection, new)
            for task_id in chance.sample(sorted(rows), 3):
                connection.execute("DELETE FROM taskmanager_tasks WHERE id = ?", (task_id,))
                steady.pop(task_id, None)
                old = rows.pop(task_id)
                if chance.random() < 0.7:  # it has changed
                    rows[task_id] = old._replace(
                        **made(0, chance)._asdict() | {"task_id": task_id, "sent_at": old.sent_at}
                    )
                    put(connection, rows[task_id])

        found = pages(connection, search, limit, 0.0 if is_hasty else 5.0, change)
        assert found == sorted(set(found), reverse=True)
        assert set(expected(list(steady.values()), search)) <= set(found)


def test_scanning_an_empty_file_is_complete_at_once(connection: SqliteSession) -> None:
    """Nothing is there, and nothing more to look at."""
    for search in (Search(), Search((TaskStatus.FAILED,)), Search(text="x"), Search(error_code="E")):
        assert scan(connection, search, 10) == ([], None)
        assert count_up_to(connection, search) == Counted(0, False)
        assert newest_matching(connection, search) is None
        assert page_ids(connection, search, LATER, None, 10) == ([], None)


def test_scanning_goes_on_where_the_last_row_was_deleted(connection: SqliteSession) -> None:
    """A place is the instant and the id, so it needs no row."""
    put(connection, *(task(f"t{number}", sent_at=number) for number in range(10)))
    page = scan(connection, Search(), 3)
    assert page.reached == (7, "t7")
    connection.execute("DELETE FROM taskmanager_tasks WHERE id = 't7'")
    assert [row.task_id for row in scan(connection, Search(), 3, after=page.reached).rows] == ["t6", "t5", "t4"]


def test_scanning_loads_no_payload(connection: SqliteSession) -> None:
    """A list needs none of the columns that may be large."""
    put(connection, task("t1", args="[1]", log='[{"at": 1}]', progress='{"percent": 5}', tags='{"a": "b"}'))
    (row,) = scan(connection, Search(), 5).rows
    assert [getattr(row, name) for name in PAYLOAD] == [None] * len(PAYLOAD)
    assert (row.progress, row.tags) == ('{"percent": 5}', '{"a": "b"}')


def test_scanning_passes_unreadable_rows(connection: SqliteSession) -> None:
    """Ids and names that are not UTF-8 are found and passed; nobody can name a lone surrogate in a file."""
    plain = dict(zip(COLUMNS, task("t1"), strict=True))
    odd = [plain | {"id": b"t\xff%d" % number, "task_name": b"na\xc3", "args": b'["\xfe"]'} for number in range(30)]
    put(connection, plain, *odd)
    assert len(pages(connection, Search(), 4, 0.0)) == 31
    assert len(ids_in_pages(connection, Search(), LATER, 4, 0.0)) == 31
    assert len(pages(connection, Search(text="na\ufffd"), 4, 0.0)) == 30
    for text in ("\ud800", "na\udcc3", "t\0"):
        assert pages(connection, Search(text=text), 4, 0.0) == []
        assert pages(connection, Search(task_name=text, queue_name=text, error_code=text), 4, 0.0) == []
        assert pages(connection, Search(task_name=f"{text}*", tags=((text, text),)), 4, 0.0) == []
        assert count_up_to(connection, Search(error_code=text)) == Counted(0, False)
        assert scan(connection, Search(), 50, after=(100, text)).reached is None


def test_scanning_for_a_text_ends_after_so_many_tasks(connection: SqliteSession) -> None:
    """Those are counted that fit the rest of the search. The reader can go on from there."""
    rows = ((f"{number:06d}", "FAILED" if number % 2 else "PENDING", number) for number in range(3 * TEXT_ROWS))
    connection.executemany(
        "INSERT INTO taskmanager_tasks (id, task_name, queue_name, priority, status, sent_at, enqueued_at, created_at,"
        " updated_at) VALUES (?, 'job', 'default', 50, ?, ?, 0, 0, 0)",
        rows,
    )
    page = scan(connection, Search((TaskStatus.FAILED,), text="000001"), 10, budget_s=60)
    assert page == ([], (TEXT_ROWS + 1, ""))
    assert page.reached is not None
    rest = scan(connection, Search((TaskStatus.FAILED,), text="000001"), 10, budget_s=60, after=page.reached)
    assert ([row.task_id for row in rest.rows], rest.reached) == (["000001"], None)
    assert count_up_to(connection, Search(text="0"), 10**6, 60) == Counted(TEXT_ROWS, True, (2 * TEXT_ROWS, ""))


@pytest.mark.parametrize("name", ["job", "st*r", "wh?t", "back\\slash", "back\\*slash", "set[1]", "\\"])
def test_search_for_exactly_a_name_finds_that_one_alone(connection: SqliteSession, name: str) -> None:
    """A link to the tasks of a function must not mean others, whatever signs its name has."""
    others = ["star", "what", "back\\xslash", "set1", "jobs"]
    put(connection, *(task(each, task_name=each) for each in [name, *others]))
    assert [row.task_name for row in scan(connection, Search(task_name=exactly(name)), 9).rows] == [name]
