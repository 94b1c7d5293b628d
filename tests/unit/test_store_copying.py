"""A copy has every row and every column, may be cut short anywhere, and harms nothing that is there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskmanager.model.errors import StoreError
from taskmanager.model.steps import EventRow
from taskmanager.store import copying
from taskmanager.store.copy_tables import COPIED, SMALL
from taskmanager.store.copying import Copied, copy
from taskmanager.store.place import Place, place_at
from taskmanager.store.sql import events
from taskmanager.store.sql.session import Session
from tests.contract.rows import FREE_ROW
from tests.unit.stored_rows import COLUMNS
from tests.unit.stored_rows import database as schema_in_memory

ODD_TEXT = "é\U0001f600 \"quoted\" 'it''s' \\n \\\\ {a,b} NULL %s :name ? [x]\n\ttail "
GIVEN_ANEW = {"taskmanager_task_attempts": "id", "taskmanager_steps": "id", "taskmanager_workflow_tasks": "id"}
ENDED = "UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = 500, updated_at = 500"
VALUES: dict[str, dict[str, Any]] = {
    "taskmanager_tasks": {
        "id": "full", "priority": 7, "status": "FAILED", "completed_at": None, "is_workflow_task": 1, "claimed": 0,
        "task_options": '{"persist": true}', "tags": '{"a": "b"}',
    },
    "taskmanager_task_attempts": {"task_id": "full", "outcome": "FAILED", "will_retry": 1},
    "taskmanager_events": {"task_id": "full", "id": 41},
    "taskmanager_steps": {"task_id": "full", "kind": "step", "is_final": 1, "event_id": 41},
    "taskmanager_workflows": {
        "id": "w", "status": "FAILED", "on_error": "pause", "root_workflow_id": "w", "depth": 1,
    },
    "taskmanager_workflow_tasks": {
        "workflow_id": "w", "status": "FAILED", "join_type": "quorum", "allow_failed_deps": 1, "is_optional": 1,
        "is_subworkflow": 1, "is_passed_on": 1, "is_accepted": 1, "priority": 9, "task_id": "full",
    },
    "taskmanager_workflow_edges": {"workflow_id": "w", "means": 3},
    "taskmanager_schedule_state": {},
    "taskmanager_queues": {},
    "taskmanager_figures": {"span": 60},
}  # fmt: skip
"""What a row must have that else has a value of its own in each column."""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Session]:
    with place_at(str(tmp_path / "from.db")).write() as session:
        yield session


@pytest.fixture(params=["file", "server"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    with _other(request, tmp_path).write() as session:
        yield session


def _other(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    is_file = request.param == "file"
    return place_at(str(tmp_path / "to.db") if is_file else request.getfixturevalue("schema_url"))


def columns_of(table: str) -> dict[str, str]:
    """Every column of a table with its type, as SQLite has them."""
    with schema_in_memory() as connection:
        return {name: kind for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")}


def put(session: Session, table: str, **values: Any) -> None:
    marks = ", ".join("?" * len(values))
    session.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def task(session: Session, task_id: str, **changes: Any) -> None:
    put(session, "taskmanager_tasks", **{**dict(zip(COLUMNS, FREE_ROW, strict=True)), "id": task_id, **changes})


def fill(session: Session) -> None:
    """One row in each table, with a value of its own in each column."""
    for table, given in VALUES.items():
        columns = columns_of(table)
        made = {
            name: 100 + number if kind == "INTEGER" else f"{name}: {ODD_TEXT}"
            for number, (name, kind) in enumerate(columns.items())
        }
        put(session, table, **made | given)


def dump(session: Session) -> dict[str, list[tuple[Any, ...]]]:
    """All that is copied; numbers that are given anew are left out."""
    found = {}
    for table in COPIED:
        names = [name for name in columns_of(table) if name != GIVEN_ANEW.get(table)]
        found[table] = sorted(session.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall(), key=repr)
    return found


def copied(done: Copied) -> int:
    return sum(each.copied for each in done.tables)


def ids(session: Session) -> list[str]:
    return [each for (each,) in session.execute("SELECT id FROM taskmanager_tasks ORDER BY id").fetchall()]


def cut_after(pages: int) -> Callable[[], None]:
    """Raise what ends a copy after so many pages."""
    left = iter(range(pages))

    def check() -> None:
        if next(left, None) is None:
            raise InterruptedError

    return check


def test_copying_keeps_every_column_of_every_table(file: Session, other: Session, tmp_path: Path) -> None:
    """There and back again. A column that a later version adds is one that this test fills."""
    fill(file)
    task(file, "z", args=f'["{"x" * 100_000}"]')
    before = dump(file)
    assert all(before.values())
    done = copy(file, other)
    assert dump(other) == before
    assert [(each.table, each.source, each.target) for each in done.tables if each.source != each.target] == []
    with place_at(str(tmp_path / "back.db")).write() as back:
        copy(other, back)
        assert dump(back) == before


def test_copying_again_adds_nothing(file: Session, other: Session) -> None:
    fill(file)
    copy(file, other)
    before = dump(other)
    again = copy(file, other)
    assert copied(again) == again.newer == 0
    assert dump(other) == before


@pytest.mark.parametrize("pages", range(6))
def test_copying_goes_on_where_it_was_cut_short(
    file: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """After any page: nothing is doubled, and what is there is not written again."""
    monkeypatch.setattr(copying, "PAGE", 2)
    fill(file)
    for number in range(7):
        task(file, f"t{number}")
    with place_at(str(tmp_path / "to.db")).write() as other:
        with pytest.raises(InterruptedError):
            copy(file, other, check=cut_after(pages))
        there = len(ids(other))
        assert there == min(2 * pages, 8)
        done = copy(file, other)
        assert next(each.copied for each in done.tables if each.table == "tasks") == 8 - there
        assert dump(other) == dump(file)


def test_copying_replaces_what_has_changed_since(file: Session, other: Session) -> None:
    """A task that has ended meanwhile must not run once more there; its steps and attempts are those of now."""
    for task_id in ("a", "b"):
        task(file, task_id)
    put(file, "taskmanager_steps", task_id="a", kind="step", number=1, key="", name="s", started_at=1, attempts=1,
        is_final=0)  # fmt: skip
    copy(file, other)
    file.execute(
        "UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = 500, updated_at = 500 WHERE id = 'a'"
    )
    file.execute("DELETE FROM taskmanager_steps")
    put(file, "taskmanager_task_attempts", task_id="a", attempt=1, outcome="COMPLETED", will_retry=0, started_at=1,
        finished_at=500, created_at=500)  # fmt: skip
    done = copy(file, other)
    assert [(each.table, each.copied) for each in done.tables if each.copied] == [("tasks", 1), ("task_attempts", 1)]
    assert dump(other) == dump(file)


def test_copying_leaves_alone_what_is_newer(file: Session, other: Session) -> None:
    task(file, "a")
    copy(file, other)
    other.execute(ENDED)
    file.execute("UPDATE taskmanager_tasks SET priority = 1, updated_at = 400")
    before = dump(other)
    assert copy(file, other).newer == 1
    assert dump(other) == before


def test_copying_brings_events_that_came_later(file: Session, other: Session) -> None:
    """An event changes no row of a task but when it is due, and that does not say when it was changed."""
    task(file, "a")
    copy(file, other)
    put(file, "taskmanager_events", task_id="a", name="paid", value="1", key=None, sent_at=700)
    copy(file, other)
    assert dump(other) == dump(file)


def test_copying_goes_on_with_nodes_that_have_ended(file: Session, other: Session) -> None:
    """Nodes go on without a change of the row of their workflow."""
    fill(file)
    copy(file, other)
    file.execute("UPDATE taskmanager_workflow_tasks SET status = 'COMPLETED', completed_at = 900")
    copy(file, other)
    assert dump(other) == dump(file)


def test_copying_refuses_a_place_with_other_tasks(file: Session, other: Session) -> None:
    """And changes nothing there, unless it is told to keep both."""
    fill(file)
    task(other, "theirs")
    with pytest.raises(StoreError, match="such as task theirs"):
        copy(file, other)
    assert ids(other) == ["theirs"]
    copy(file, other, is_into=True)
    assert ids(other) == ["full", "theirs"]


def test_copying_gives_events_whose_numbers_are_taken_new_ones(file: Session, other: Session) -> None:
    """Steps name what they have received by its number."""
    fill(file)
    put(file, "taskmanager_events", id=42, task_id="full", name="second", value="2", key=None, sent_at=1)
    task(other, "theirs")
    put(other, "taskmanager_events", id=41, task_id="theirs", name="n", value="theirs", key=None, sent_at=1)
    copy(file, other, is_into=True)
    rows = other.execute("SELECT id, task_id, name FROM taskmanager_events ORDER BY id").fetchall()
    assert [(number, of) for number, of, _ in rows] == [(41, "theirs"), (43, "full"), (44, "full")]
    assert rows[-1][2] == "second"
    assert other.execute("SELECT event_id FROM taskmanager_steps").fetchall() == [(43,)]


def test_copying_leaves_numbers_free_for_new_events(file: Session, other: Session) -> None:
    """A server counts by itself, and does not look which numbers are taken."""
    fill(file)
    task(file, "a")
    copy(file, other)
    assert events.send_event(other, EventRow("a", "n", "1", None, 1)).outcome == "stored"
    ((number,),) = other.execute("SELECT id FROM taskmanager_events WHERE task_id = 'a'").fetchall()
    assert number > 41


def test_copying_frees_what_waited_in_memory(file: Session, other: Session) -> None:
    """What ran keeps its owner, so that the next start judges it; what a workflow holds stays held."""
    owned = {"claimed_by_worker_id": "gone", "claimed_at": 5}
    task(file, "claimed", status="CLAIMED", claimed=1, claim_expires_at=9, **owned)
    task(file, "held", claimed_by_worker_id="held")
    task(file, "running", status="RUNNING", started_at=6, start_count=1, **owned)
    task(file, "unwanted", cancel_requested_at=8, **owned)
    task(file, "waiting", **owned)
    assert copy(file, other).freed == 2
    query = "SELECT id, status, claimed_by_worker_id, claimed_at, claimed FROM taskmanager_tasks ORDER BY id"
    assert other.execute(query).fetchall() == [
        ("claimed", "PENDING", None, None, 0),
        ("held", "PENDING", "held", None, 0),
        ("running", "RUNNING", "gone", 5, 0),
        ("unwanted", "PENDING", "gone", 5, 0),
        ("waiting", "PENDING", None, None, 0),
    ]


def test_copying_names_rows_that_are_refused_and_takes_the_others(file: Session, other: Session) -> None:
    """One row harms no other. Of a task whose history is wrong only that is left out."""
    for task_id in "abcde":
        task(file, task_id)
    put(file, "taskmanager_queues", queue_name="q", paused_at=1)
    file.execute("PRAGMA ignore_check_constraints = ON")
    file.execute("UPDATE taskmanager_tasks SET priority = 1000 WHERE id = 'b'")
    file.execute("UPDATE taskmanager_tasks SET retry_count = -1 WHERE id = 'd'")
    put(file, "taskmanager_task_attempts", task_id="e", attempt=-1, outcome="FAILED", will_retry=0, started_at=1,
        finished_at=1, created_at=1)  # fmt: skip
    done = copy(file, other)
    assert [(each.table, each.key) for each in done.left_out] == [
        ("task", "b"), ("task", "d"), ("attempts of task", "e")
    ]  # fmt: skip
    assert "Failing row" not in "".join(each.reason for each in done.left_out)
    assert ids(other) == ["a", "c", "e"]
    assert other.execute("SELECT queue_name FROM taskmanager_queues").fetchall() == [("q",)]


def test_copying_replaces_what_a_server_cannot_hold(file: Session, schema_url: str) -> None:
    """Also in an id, whose attempts are found by it; and a second copy does not take them for other tasks."""
    for task_id in (b"bad\xff", b"nul\x00"):
        row = {**dict(zip(COLUMNS, FREE_ROW, strict=True)), "id": task_id, "result": "a\0b", "tags": '{"a": "\\u0000"}'}
        marks = ", ".join("CAST(? AS TEXT)" if name == "id" else "?" for name in row)
        file.execute(f"INSERT INTO taskmanager_tasks ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
        file.execute(
            "INSERT INTO taskmanager_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at,"
            " created_at) VALUES (CAST(? AS TEXT), 1, 'FAILED', 0, 1, 1, 1)",
            (task_id,),
        )
    with place_at(schema_url).write() as other:
        done = copy(file, other)
        assert done.left_out == []
        assert done.changed_texts == 2 + 2 + 2 + 2
        assert ids(other) == ["bad\ufffd", "nul\ufffd"]
        assert (
            other.execute("SELECT result, tags FROM taskmanager_tasks").fetchall()
            == [("a\ufffdb", '{"a": "\ufffd"}')] * 2
        )
        assert len(other.execute("SELECT 1 FROM taskmanager_task_attempts").fetchall()) == 2
        assert copied(copy(file, other)) == 0


def test_copying_keeps_bytes_that_are_no_text_in_a_file(file: Session, tmp_path: Path) -> None:
    """Two ids that look alike are two tasks."""
    for task_id in (b"bad\xfe", b"bad\xff", b"nul\x00"):
        row = {**dict(zip(COLUMNS, FREE_ROW, strict=True)), "id": task_id}
        marks = ", ".join("CAST(? AS TEXT)" if name == "id" else "?" for name in row)
        file.execute(f"INSERT INTO taskmanager_tasks ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
    with place_at(str(tmp_path / "to.db")).write() as other:
        copy(file, other)
        assert copied(copy(file, other)) == 0
        found = other.execute("SELECT hex(id) FROM taskmanager_tasks ORDER BY id").fetchall()
        assert [bytes.fromhex(each) for (each,) in found] == [b"bad\xfe", b"bad\xff", b"nul\x00"]


def test_copying_stores_nothing_that_is_read_back_as_something_else(file: Session, tmp_path: Path) -> None:
    """A trigger of somebody may change what is written."""
    task(file, "a")
    with place_at(str(tmp_path / "to.db")).write() as other:
        other.execute(
            "CREATE TRIGGER theirs AFTER INSERT ON taskmanager_tasks"
            " BEGIN UPDATE taskmanager_tasks SET priority = 3; END"
        )
        with pytest.raises(StoreError, match="stored as another one"):
            copy(file, other)
        assert ids(other) == []


def test_copying_knows_all_columns_of_the_small_tables() -> None:
    for small in SMALL:
        assert {*small.columns} == columns_of(small.table).keys()


def test_copying_takes_pages_that_are_not_too_large(file: Session, tmp_path: Path, monkeypatch: Any) -> None:
    """Memory holds one page of each database."""
    monkeypatch.setattr(copying, "PAGE_BYTES", 250)
    for number in range(6):
        task(file, f"t{number}", args="x" * 100)
    pages = []
    with place_at(str(tmp_path / "to.db")).write() as other:
        copy(file, other, progress=lambda done, total: pages.append(done))
        assert pages == [0, 2, 4, 6]
        assert dump(other) == dump(file)
