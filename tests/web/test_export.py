"""The tasks of a filter as a file."""

import csv
import io
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from taskmanager import TaskManager
from taskmanager.web import dashboard, export
from tests.browser.serving import Server, web
from tests.web.rows import DATABASE, first_failure, multiply, query
from tests.web.visitor import Visitor, visit

pytestmark = pytest.mark.anyio


def rows_of(content: bytes) -> list[dict[str, str]]:
    """Return the rows as a spreadsheet reads them."""
    return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))


async def exported(folder: Path, address: str, **options: Any) -> Any:
    async with visit(TaskManager(folder / DATABASE), "read", **options) as visitor:
        answer = await visitor.get(address)
        assert answer.status_code == 200
        return rows_of(answer.content) if "csv" in address else json.loads(answer.content)


@pytest.mark.parametrize("address", ["tasks/export.csv?task=fail", "tasks/export.json?task=fail"])
async def test_export_holds_every_task_of_the_filter_once(tmp_path: Path, address: str) -> None:
    """It is made in pages, and nobody can tell where one has ended."""
    await first_failure(tmp_path)
    multiply(tmp_path, 2 * export.PAGE + 3)
    await first_failure(tmp_path, "other")
    found = await exported(tmp_path, address)
    ids = query(tmp_path, "SELECT id FROM taskmanager_tasks WHERE task_name = 'fail' ORDER BY sent_at DESC")
    assert [(row["task_id"],) for row in found] == ids


async def test_export_names_a_file_of_its_kind(tmp_path: Path) -> None:
    """The browser saves it, and never shows it as a page."""
    await first_failure(tmp_path)
    async with visit(TaskManager(tmp_path / DATABASE)) as visitor:
        for suffix, media_type in (("csv", "text/csv; charset=utf-8"), ("json", "application/json")):
            headers = (await visitor.get(f"tasks/export.{suffix}")).headers
            assert headers["content-type"] == media_type
            assert headers["content-disposition"].startswith('attachment; filename="tasks-')
            assert headers["content-disposition"].endswith(f'.{suffix}"')
            assert headers["x-content-type-options"] == "nosniff"


async def test_export_has_no_arguments_and_results(tmp_path: Path) -> None:
    """They may be large, and secret."""
    await first_failure(tmp_path)
    query(tmp_path, 'UPDATE taskmanager_tasks SET args = \'["secret"]\', log = \'[{"text": "secret"}]\'')
    (document,) = await exported(tmp_path, "tasks/export.json")
    assert "secret" not in json.dumps(document)
    assert document["error_message"] == "ValueError: no"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("=1+1", "'=1+1"), ("+1", "'+1"), ("-1", "'-1"), ("@SUM(A1)", "'@SUM(A1)"), (" =1", " '=1"),
        ('"=1', "\"'=1"), ("'=1", "''=1"), ("\t=1", "\\t=1"), ("\r=1", "\\r=1"), ("\n=1", "\\n=1"), ("＝1", "'＝1"),
        ("a;=1", "a;'=1"), ('a; "=1', "a; \"'=1"), ("a=1", "a=1"), ("a-b", "a-b"), ("", ""), ("a\u202eb", "a\\u202eb"),
        ("a\ud800b", "a\\ud800b"), ("a\0b", "a\\x00b"), ("ü", "ü"), (5, "5"), (-5, "-5"), (None, ""),
        ({"a": "ü"}, '{"a": "ü"}'),
    ],
)  # fmt: skip
def test_cell_is_never_a_formula(value: object, shown: str) -> None:
    """A name that a customer has chosen must not run in the spreadsheet of whoever opens the file."""
    assert export.cell(value) == shown


async def test_export_writes_names_that_break_others(tmp_path: Path) -> None:
    """Quotes, line ends, other directions of writing and bytes that are no text stay in their cell."""
    await first_failure(tmp_path)
    name = '=cmd|"x",\n\u202e;'
    query(tmp_path, "UPDATE taskmanager_tasks SET task_name = ?, queue_name = CAST(x'ff3d' AS TEXT)", name)
    (row,) = await exported(tmp_path, "tasks/export.csv")
    assert row["task_name"] == '\'=cmd|"x",\\n\\u202e;'
    assert row["queue_name"] == "\ufffd="
    (document,) = await exported(tmp_path, "tasks/export.json")
    assert document["task_name"] == name


@pytest.mark.parametrize("address", ["tasks/export.csv?status=NOPE", "tasks/export.json?tag=a"])
async def test_export_of_a_filter_with_a_fault_is_refused(tmp_path: Path, address: str) -> None:
    """A file with all tasks would be taken for what was asked for."""
    await first_failure(tmp_path)
    async with visit(TaskManager(tmp_path / DATABASE)) as visitor:
        assert (await visitor.get(address)).status_code == 400


async def test_export_asks_again_whether_the_viewer_may_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file takes minutes, and who has left the company a minute ago gets no more of it."""
    await first_failure(tmp_path)
    multiply(tmp_path, 3 * export.PAGE)
    monkeypatch.setattr(export, "ASK_S", 0.0)
    answers = iter(["read", "read", None])
    async with Visitor(dashboard(TaskManager(tmp_path / DATABASE), auth=lambda _request: next(answers))) as visitor:
        rows = rows_of((await visitor.get("tasks/export.csv")).content)
    assert len(rows) == 2 * export.PAGE + 1
    assert rows[-1]["task_id"] == "This file is not complete: you may see no more tasks."


class _Stopping:
    """A server such as uvicorn, which has heard a signal and waits for its last answers."""

    should_exit = True

    def handle_exit(self, *_: object) -> None: ...


async def test_export_that_a_stop_cuts_short_says_so(tmp_path: Path) -> None:
    """Half a file must not be taken for the whole."""
    await first_failure(tmp_path)
    multiply(tmp_path, 3 * export.PAGE)
    before = signal.signal(signal.SIGTERM, _Stopping().handle_exit)
    try:
        documents = await exported(tmp_path, "tasks/export.json")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(documents) == export.PAGE + 1
    assert documents[-1] == {"task_id": "This file is not complete: the application stops."}


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.parametrize("reads_on", [True, False])
async def test_server_stops_while_a_file_is_sent(tmp_path: Path, reads_on: bool) -> None:
    """A browser that reads on is told that it has half a file; one that takes nothing any more is left."""
    await first_failure(tmp_path)
    multiply(tmp_path, 40_000)
    server = Server(tmp_path / DATABASE, *web(tmp_path / DATABASE))
    try:
        address = urlsplit(server.url())
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall(f"GET /tasks/export.json HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
            assert client.recv(1)
            if reads_on:
                server.process.send_signal(signal.SIGTERM)
                content = b"".join(iter(lambda: client.recv(65_536), b""))
                assert b"This file is not complete: the application stops." in content
            server.stop()
    finally:
        server.kill()
