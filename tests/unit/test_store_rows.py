"""`taskmanager.store.sql.rows`: rows in which something cannot be read, beside others that are as they should be."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager.model.record import AttemptRow, TaskRow, TaskWrite, UnreadableRow, expected_of
from taskmanager.model.schedule import ScheduleFire
from taskmanager.model.states import TaskStatus
from taskmanager.rules.claims import Room, Starting
from taskmanager.store.protocol import ClaimRequest, CommitReport, TaskFilter
from taskmanager.store.sql.health import unreadable
from taskmanager.store.sql.search import Search, find, find_ids, ids_like, memory_only, queue_names
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.backup import back_up
from taskmanager.store.sqlite.health import faults
from taskmanager.store.sqlite.reading import open_read_only
from tests.acceptance.odd_files import DEAD, FREE, LOST, NOW, OTHERS, RUNNING, insert, made_file
from tests.contract.rows import task
from tests.sessions import connect

pytestmark = pytest.mark.anyio

CUT = b"caf\xc3"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


async def written(path: Path, *rows: dict[str, Any], table: str = "taskmanager_tasks") -> SqliteStore:
    """A store on a file with these rows, which nothing has checked."""
    with closing(await made_file(path)) as connection:
        for row in rows:
            insert(connection, table, row)
        connection.execute("COMMIT")
    store = SqliteStore(path)
    await store.open()
    return store


def claim_of(*names: str, limit: int = 10, queue_name: str = "default") -> ClaimRequest:
    return ClaimRequest("me", names or ("add",), queue_name, limit, NOW + 1)


SLOTS = Starting(9, (Room(frozenset({"add"}), 9),), 7, "host", "main")


async def test_a_row_is_read_as_far_as_it_can_be(path: Path) -> None:
    """Its id and every readable column, undecodable text with U+FFFD, unreadable columns empty, and one sentence."""
    store = await written(path, {"id": "odd", **FREE, "args": CUT, "tags": "{", "log": "[1]", "idempotency_key": "k"})
    row = await store.fetch("odd")
    await store.close()
    assert isinstance(row, UnreadableRow)
    assert (row.task_id, row.kwargs, row.idempotency_key, row.sent_at) == ("odd", "{}", "k", NOW)
    assert (row.args, row.tags, row.log) == ("caf\ufffd", None, None)
    reason = "args is not UTF-8, tags is not the JSON that belongs there, log is not the JSON that belongs there"
    assert row.failed_reason == f"the record cannot be read: {reason}"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("args", CUT),
        ("tags", '{"a": 1}'),
        ("log", '["line"]'),
        ("task_options", '{"a":' * 200 + "1" + "}" * 200),
        ("priority", 500),
        ("retry_count", -1),
        ("start_count", 2**62),
        ("start_count", 2**63 - 1),
        ("error_code", "BAD"),
        ("completed_at", 5),
    ],
)
@pytest.mark.parametrize("taken_as", ["CLAIMED", "RUNNING"])
async def test_a_claim_fails_what_cannot_run_and_takes_the_rest(
    path: Path, column: str, value: Any, taken_as: str
) -> None:
    """Whoever would claim it ends it, in the same transaction; what could not be read stays in the file. It was never
    started, so its starts are as many as they were.
    """
    await _claim_odd(path, column, value, taken_as)


@pytest.mark.parametrize(("column", "value"), [("worker_hostname", b"\xff"), ("progress", "[" * 5_000)])
async def test_a_claim_fails_what_no_start_would_write_anew(path: Path, column: str, value: Any) -> None:
    """A claim that starts the row writes these columns, so that it can run then."""
    await _claim_odd(path, column, value, "CLAIMED")
    again = path.with_name("again.db")
    store = await written(again, {"id": "odd", **FREE, column: value})
    (row,) = await store.claim(claim_of()._replace(starting=SLOTS))
    assert (type(row), row.status) == (TaskRow, "RUNNING")
    await store.close()


async def _claim_odd(path: Path, column: str, value: Any, taken_as: str) -> None:
    store = await written(
        path, {"id": "a", **FREE}, {"id": "odd", **FREE, column: value}, {"id": "z", **FREE, "sent_at": NOW + 1}
    )
    slots = SLOTS if taken_as == "RUNNING" else None
    claimed = {row.task_id: row for row in await store.claim(claim_of()._replace(starting=slots))}
    assert {each: row.status for each, row in claimed.items()} == {"a": taken_as, "odd": "FAILED", "z": taken_as}
    assert claimed["odd"].start_count == 0
    assert isinstance(claimed["odd"], UnreadableRow)
    assert column in (claimed["odd"].failed_reason or "")
    assert await store.claim(claim_of()) == []
    row = await store.fetch("odd")
    assert row is not None
    assert (row.status, row.error_code, row.claimed_by_worker_id) == ("FAILED", "UNHANDLED_EXCEPTION", None)
    await store.close()
    with closing(connect(path)) as connection:
        connection.text_factory = bytes
        (left,) = connection.execute(f"SELECT {column} FROM taskmanager_tasks WHERE id = 'odd'").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchone() == (b"ok",)
    if isinstance(value, bytes | str) and column != "error_code":
        assert left == (value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("column", ["task_name", "queue_name"])
async def test_rows_of_an_unreadable_name_are_found_and_ended(path: Path, column: str) -> None:
    """No instance will ever know such a function or queue; the look-up says so, and a claim for it ends them."""
    store = await written(path, {"id": "odd", **FREE, column: CUT}, {"id": "a", **FREE})
    free = {each.is_readable: each for each in await store.free_queues()}
    assert (free[True].task_name, free[True].count) == ("add", 1)
    odd = free[False]
    assert getattr(odd, column) == "caf\ufffd"
    (ended,) = await store.claim(claim_of(odd.task_name, queue_name=odd.queue_name))
    assert (ended.task_id, ended.status) == ("odd", "FAILED")
    assert [each.is_readable for each in await store.free_queues()] == [True]
    await store.close()


async def test_an_id_that_is_not_utf8_can_be_named_and_passed(path: Path) -> None:
    """Whoever reads page by page gets past it, and whoever has seen the id can act on it."""
    odd = {**RUNNING, "claimed_by_worker_id": b"\x80"}
    store = await written(path, {"id": b"\xfe", **odd}, {"id": b"\x80", **odd}, {"id": "a", **odd, "sent_at": NOW - 1})
    seen: list[TaskRow] = []
    while rows := await store.fetch_orphans(["me"], limit=1, after=seen[-1].task_id if seen else ""):
        seen += rows
        assert len(seen) < 9
    assert [row.task_id for row in seen] == ["a", "\ufffd", "\ufffd"]
    for row in seen:
        ended = row._replace(status="CANCELLED", claimed_by_worker_id=None, failed_at=NOW)
        report = await store.commit([TaskWrite(ended, expected_of(row))])
        assert (report.lost, report.rejected) == ({}, {})
    assert {row.status for row in await store.fetch_many(TaskFilter())} == {"CANCELLED"}
    await store.close()
    with open_read_only(path) as connection:
        assert ids_like(connection, "\ufffd", 5) == ["\ufffd"]
        assert len(find_ids(connection, Search())) == 3
        assert len(find(connection, Search(before=ids_like(connection, "\ufffd", 5)[0]), 9)) in (1, 2)


async def test_an_end_of_an_unreadable_row_repeats_its_precondition(path: Path) -> None:
    """Like every write: what has changed since it was read is left alone."""
    store = await written(path, {"id": "odd", **RUNNING, "args": CUT})
    row = await store.fetch("odd")
    assert row is not None
    ended = row._replace(status="FAILED", claimed_by_worker_id=None, failed_at=NOW)
    for wrong in (
        expected_of(row)._replace(owner="other"),
        expected_of(row)._replace(status="CLAIMED"),
        expected_of(row)._replace(start_count=2),
    ):
        report = await store.commit([TaskWrite(ended, wrong)])
        assert {*report.lost, *report.rejected} == {"odd"}
    assert await store.fetch("odd") == row
    await store.close()


async def test_a_status_of_another_version_counts_as_failed_and_can_be_purged(path: Path) -> None:
    """Nobody can do anything with it but look at it and delete it."""
    store = await written(path, {"id": "odd", **LOST, "status": "SNOOZING"}, {"id": "a", **FREE})
    assert (await store.counts())[TaskStatus.FAILED] == 1
    row = await store.fetch("odd")
    assert row is not None
    assert row.status == "FAILED"
    assert "SNOOZING" in (row.failed_reason or "")
    assert await store.purge(TaskFilter(), None, 10) == 1
    assert [row.task_id for row in await store.fetch_many(TaskFilter())] == ["a"]
    await store.close()


async def test_unexpected_parts_of_an_instance_document_are_left_out(path: Path) -> None:
    """Documents are written by other versions, and by others: what is not as expected is left out."""
    texts = ("{", "[" * 5_000, '{"tasks": ["x", {"task_id": 1}], "queues": [1]}', '{"tasks": 5, "queues": "q"}')
    rows = [
        {**OTHERS["taskmanager_instances"], "instance_id": f"i{n}", "live_tasks": each} for n, each in enumerate(texts)
    ]
    store = await written(path, *rows, table="taskmanager_instances")
    await store.close()
    with open_read_only(path) as connection:
        assert memory_only(connection) == []
        assert queue_names(connection) == frozenset()


async def test_a_row_that_contradicts_itself_holds_no_other_back(path: Path) -> None:
    """Freeing what a dead instance has, or a stop, is one statement for many rows."""
    held = {**FREE, "claimed_by_worker_id": DEAD}
    store = await written(path, {"id": "odd", **held, "completed_at": 5}, {"id": "a", **held}, {"id": "b", **held})
    assert await store.free_waiting(DEAD, NOW, 10) == 2
    assert await store.release(DEAD, NOW) == 0
    assert await store.make_due(NOW) == 0
    assert await store.request_cancel(["odd"], NOW)
    await store.close()


@pytest.mark.parametrize("column", ["worker_hostname", "worker_process_name", "args", "id"])
async def test_the_attempt_of_an_unreadable_row_is_written_once(path: Path, column: str) -> None:
    """Its text is what is shown of the row, under the id that the row has."""
    odd = {"id": "odd", **RUNNING, "worker_hostname": "h", "worker_process_name": "p", "args": "[]", column: CUT}
    store = await written(path, odd)
    (row,) = await store.fetch_orphans([], limit=1)
    ended = row._replace(status="FAILED", claimed_by_worker_id=None, failed_at=NOW)
    attempt = AttemptRow(
        row.task_id, 1, "WORKER_FAILURE", 0, NOW, NOW, "WORKER_CRASHED", "gone", "gone", DEAD, row.worker_hostname, 1,
        row.worker_process_name, NOW,
    )  # fmt: skip
    assert await store.commit([TaskWrite(ended, expected_of(row), (attempt,))]) == CommitReport({}, {})
    assert await store.fetch_attempts(row.task_id) == [attempt]
    await store.close()
    with open_read_only(path) as connection:
        assert faults(connection) == []


async def test_an_id_or_owner_with_a_nul_cannot_be_read(path: Path) -> None:
    """JSON in SQLite ends a text there, so that a list of such names is one of others. Other text may hold one."""
    owned = {**RUNNING, "claimed_by_worker_id": "o\0o"}
    rows = {"a\0b": FREE, "a": {**FREE, "sent_at": NOW + 1}, "told": {**LOST, "failed_reason": "a\0b"}, "owned": owned}
    store = await written(path, *({"id": task_id, **row} for task_id, row in rows.items()))
    assert list(await store.fetch_ids(["a\0b"])) == ["a", "a\0b"]
    assert {row.task_id: row.status for row in await store.claim(claim_of())} == {"a": "CLAIMED", "a\0b": "FAILED"}
    found = await store.fetch_ids(list(rows))
    assert [task_id for task_id, row in found.items() if isinstance(row, UnreadableRow)] == ["owned", "a\0b"]
    assert await store.fetch("owned") == found["owned"]
    await store.close()


async def test_a_schedule_goes_on_whatever_its_row_says(path: Path) -> None:
    """A count that is full stays full, and a next run in no year of the calendar is computed anew."""
    full = {**OTHERS["taskmanager_schedule_state"], "run_count": 2**63 - 1}
    far = {**full, "schedule_name": "far", "run_count": 5, "next_run_at": 2**62}
    store = await written(path, full, far, table="taskmanager_schedule_state")
    fires = [ScheduleFire("s", "h", NOW, NOW + 1, task("t1"), NOW), ScheduleFire("far", "h", None, NOW + 1, None, NOW)]
    assert await store.fire_schedules(fires) == frozenset()
    assert {row.run_count: row.next_run_at for row in await store.schedules()} == {5: NOW + 1, 2**63 - 1: NOW + 1}
    assert await store.fetch("t1")
    await store.close()


@pytest.mark.parametrize("odd", [{"priority": 500}, {"completed_at": 5}, {"tags": "{"}, {"start_count": -1}])
async def test_doctor_names_the_row_and_calls_the_file_sound(path: Path, odd: dict[str, Any]) -> None:
    """A row that breaks a `CHECK` is one row: it needs no backup put in its place, and keeps nobody from making one."""
    await (await written(path, {"id": "odd", **FREE, **odd}, {"id": "a", **FREE})).close()
    with open_read_only(path) as connection:
        assert faults(connection) == []
        assert unreadable(connection) == ["odd"]
        assert back_up(connection, path, path.with_name("copy.db"), is_replacing=False)
    with open_read_only(path.with_name("copy.db")) as connection:
        assert find_ids(connection, Search()) == ["a", "odd"]
