"""`taskmanager.store.sql.failures`: what fails, grouped by function and code."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator

import pytest

from taskmanager.model.record import TaskRow
from taskmanager.store.sql import windows
from taskmanager.store.sql.failures import MESSAGE_CHARS, FailureGroup, FailureGroups, failure_groups
from taskmanager.store.sqlite.session import SqliteSession
from tests.contract.rows import task
from tests.unit.stored_rows import COLUMNS, database, put


@pytest.fixture
def connection() -> Iterator[SqliteSession]:
    with database() as made:
        yield made


def failed(task_id: str, at: int, message: str = "no", **changes: object) -> TaskRow:
    result = json.dumps({"err": {"error_code": "E", "message": message, "data": None}})
    row = task(task_id, status="FAILED", error_code="E", failed_at=at, sent_at=at - 5, result=result)
    return row._replace(**changes)  # type: ignore[arg-type]


def test_failures_are_grouped_with_the_last_message(connection: SqliteSession) -> None:
    """The last one is the one that failed last, whenever it was sent."""
    put(
        connection,
        failed("a1", 100, "first"),
        failed("a2", 300, "last", sent_at=1),
        failed("a3", 200, "middle", sent_at=299),
        failed("b1", 400, "other", task_name="other"),
        failed("c1", 50, "late", error_code="LATE"),
        task("done", status="COMPLETED"),
        task("gone", status="CANCELLED", error_code="E", failed_at=999),
    )
    assert failure_groups(connection, 5) == FailureGroups(
        [
            FailureGroup("other", "E", 1, 400, 400, "b1", "other"),
            FailureGroup("app:job", "E", 3, 100, 300, "a2", "last"),
            FailureGroup("app:job", "LATE", 1, 50, 50, "c1", "late"),
        ],
        3,
        None,
    )


def test_failures_since_an_instant_are_counted_alone(connection: SqliteSession) -> None:
    """A group says when its first one failed since then."""
    put(connection, *(failed(f"t{at}", at) for at in (100, 200, 300)))
    found = failure_groups(connection, 5, since=200)
    assert found.groups == [FailureGroup("app:job", "E", 2, 200, 300, "t300", "no")]


def test_failures_are_the_same_in_windows_of_any_size(
    connection: SqliteSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of many windows are put together as those of one."""
    chance = random.Random(5)
    rows = [
        failed(f"t{number}", chance.randrange(300), task_name=chance.choice("abc"), error_code=chance.choice("XY"))
        for number in range(400)
    ]
    put(connection, *rows)
    wanted = defaultdict(list)
    for row in rows:
        wanted[row.task_name, row.error_code].append(row)
    for size in (1, 7, 1_000):
        monkeypatch.setattr(windows, "FIRST_SIZE", size)
        monkeypatch.setattr(windows, "MOST_SIZE", size)
        monkeypatch.setattr(windows, "TIES", size)
        found = failure_groups(connection, 60).groups
        assert {(group.task_name, group.error_code): group[2:5] for group in found} == {
            key: (len(each), min(row.failed_at for row in each), max(row.failed_at for row in each))
            for key, each in wanted.items()
        }


def test_failures_say_how_far_the_time_has_sufficed(connection: SqliteSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest are counted first."""
    monkeypatch.setattr(windows, "FIRST_SIZE", 3)
    put(connection, *(failed(f"t{at}", at, sent_at=at) for at in range(10)))
    found = failure_groups(connection, 0)
    assert found.groups == [FailureGroup("app:job", "E", 3, 7, 9, "t9", "no")]
    assert found.reached == (7, "")


def test_failures_of_many_groups_are_cut_and_counted(connection: SqliteSession) -> None:
    """A hundred thousand functions do not make a page of a hundred thousand lines."""
    put(connection, *(failed(f"t{at}", at, task_name=f"job-{at}") for at in range(9)))
    found = failure_groups(connection, 5, limit=2)
    assert [group.task_name for group in found.groups] == ["job-8", "job-7"]
    assert (found.group_count, found.reached) == (9, None)


def test_failures_that_cannot_be_read_are_counted(connection: SqliteSession) -> None:
    """Names that are not UTF-8, a result that is no JSON or sealed, no code, no instant: each is a group."""
    plain = dict(zip(COLUMNS, failed("t", 10), strict=True))
    put(
        connection,
        plain | {"id": b"a\xff", "task_name": b"na\xc3"},
        plain | {"id": "b", "task_name": "b", "result": "{"},
        plain | {"id": "c", "task_name": "c", "result": '{"$sealed":"x"}'},
        plain | {"id": "d", "task_name": "d", "error_code": None, "failed_at": None, "sent_at": 7},
        plain | {"id": "e", "task_name": "e", "result": json.dumps({"err": {"message": "long " * 1_000}})},
    )
    found = {group.task_name: group for group in failure_groups(connection, 5).groups}
    assert found["na\ufffd"].last_task_id == "a\ufffd"
    assert (found["b"].message, found["c"].message) == (None, None)
    assert found["d"][1:] == (None, 1, 7, 7, "d", None)
    assert len(found["e"].message or "") == MESSAGE_CHARS


def test_failures_of_an_empty_file_are_none(connection: SqliteSession) -> None:
    """Nothing has failed."""
    assert failure_groups(connection) == FailureGroups([], 0, None)
