"""Sends all tasks of a filter as a file: CSV for a spreadsheet, JSON for a program; without arguments and results.

The file is made page by page while it is sent, and as fast as the browser takes it, so a million tasks need no more
memory than a thousand. If it cannot come to its end, because the application stops or the viewer may see no more, its
last line says so.
"""

import asyncio
import csv
import io
import json
import re
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from taskmanager.console.documents import record_document
from taskmanager.console.figures import iso
from taskmanager.engine.engine import Engine
from taskmanager.model.clock import from_us
from taskmanager.model.errors import StoreError
from taskmanager.model.escaping import escaped
from taskmanager.model.record import PAYLOAD, TaskRow
from taskmanager.store.sql.scanning import scan
from taskmanager.store.sql.search import Search, error_messages
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.windows import Cursor
from taskmanager.store.sql.workflow_views import workflows_of
from taskmanager.store.statistics import OwnWorkflow
from taskmanager.web.filters import read_filter, told
from taskmanager.web.forms import audit
from taskmanager.web.guard import still_allowed
from taskmanager.web.render import refuse
from taskmanager.web.site import site_of
from taskmanager.web.source import Source

PAGE: Final = 500
ASK_S: Final = 30.0
"""How often it is asked again whether the viewer may see the rest."""
STALL_S: Final = 60.0
"""How long the browser may take for one page. Then it is not waited for any longer."""
LOOK_S: Final = 0.25
"""How often it is looked meanwhile whether this process is about to end."""
MAX_MESSAGE_CHARS: Final = 1_000
COLUMNS: Final = (
    "task_id", "task_name", "queue_name", "status", "priority", "sent_at", "enqueued_at", "started_at", "completed_at",
    "failed_at", "start_count", "retry_count", "max_retries", "next_retry_at", "error_code", "error_message", "tags",
    "idempotency_key", "scheduled_for", "workflow_id", "node_id", "worker_hostname", "worker_pid",
)  # fmt: skip
_INSTANTS: Final = tuple(name for name in COLUMNS if name.endswith("_at") or name == "scheduled_for")
_FORMULA: Final = re.compile(r"""(?:^[\s"'`]*|[;\t][\s"'`]*)[=+\-@\t\r＝＋－＠]""")
"""Where a spreadsheet begins to compute: where a cell begins, and behind a `;`, which parts cells in some countries."""

Document = dict[str, Any]


class Form(NamedTuple):
    """How tasks are written: what is told of each, each page of them, and what stands before and behind all pages."""

    suffix: str
    media_type: str
    document: Callable[[TaskRow, OwnWorkflow | None], Document]
    head: str
    page: Callable[[Sequence[Document], bool], str]
    foot: str


class Part(NamedTuple):
    """A page of tasks as text. The next one begins behind `reached`; it is None at the end."""

    text: str
    reached: Cursor | None


async def as_csv(request: Request) -> Response:
    """Send the tasks as CSV."""
    return await _export(request, CSV)


async def as_json(request: Request) -> Response:
    """Send the tasks as JSON: an array of what `taskmanager list --json` shows."""
    return await _export(request, JSON)


async def _export(request: Request, form: Form) -> Response:
    site = site_of(request)
    now_us = site.source.clock.now_us()
    asked = read_filter(request.query_params.multi_items(), now_us)
    if asked.faults:
        return refuse(request, 400, " ".join(asked.faults), "go back, and change the filter")
    search = asked.search(looks_in_arguments=site.looks_in_arguments)
    page = partial(_page, form=form, search=search, is_hidden=site.hide_arguments)
    first = await site.source.read(page, asked.before, True)  # a fault of the file is a page that says so
    audit(request, "exported", [told(asked)])
    name = f"tasks-{from_us(now_us):%Y-%m-%d-%H%M}.{form.suffix}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    if request.method == "HEAD":
        return Response(headers=headers, media_type=form.media_type)
    parts = _parts(request, form, page, first)
    return _Download(parts, headers=headers, media_type=form.media_type).of(site.source)


async def _parts(
    request: Request, form: Form, page: Callable[[Session, Cursor | None, bool], Part], found: Part
) -> AsyncIterator[str]:
    source = site_of(request).source
    engine, asked_s = source.running(), source.clock.elapsed_s()
    yield form.head
    is_first = True
    while True:
        yield found.text
        is_first = is_first and not found.text
        if found.reached is None:
            break
        end = "the application stops" if is_stopping(source, engine) else None
        if end is None and source.clock.elapsed_s() - asked_s >= ASK_S:
            asked_s = source.clock.elapsed_s()
            end = None if await still_allowed(request) else "you may see no more tasks"
        if end is None:
            try:
                found = await source.read(page, found.reached, is_first)
                continue
            except StoreError as exc:
                end = str(exc)
        yield form.page([{"task_id": f"This file is not complete: {end}."}], is_first)
        break
    yield form.foot


def _page(
    connection: Session, after: Cursor | None, is_first: bool, *, form: Form, search: Search, is_hidden: bool
) -> Part:
    """Return the tasks behind that place as text. To write 500 of them takes 10 ms, in which no loop should stand."""
    found = scan(connection, search, PAGE, after=after)
    messages = error_messages(connection, [row.task_id for row in found.rows], MAX_MESSAGE_CHARS)
    workflows = workflows_of(connection, [row.task_id for row in found.rows if row.is_workflow_task])
    documents = [
        {**form.document(row, workflows.get(row.task_id)), "error_message": messages.get(row.task_id)}
        for row in found.rows
    ]
    shown = [_without_progress(each) for each in documents] if is_hidden else documents
    return Part(form.page(shown, is_first) if shown else "", found.reached)


def _without_progress(document: Document) -> Document:
    """Leave out a progress, whose text may be an argument."""
    return {**document, "progress": None} if "progress" in document else document


def is_stopping(source: Source, engine: Engine | None) -> bool:
    """Return whether this process is about to end, so that nobody waits for what is still being sent.

    uvicorn tells no application of a signal before its last answer has ended. But it says so itself: the handler of
    the signal is a method of the server, which has `should_exit`.
    """
    if engine is not None and (source.running() is not engine or engine.life.is_stopping):
        return True
    servers = [getattr(signal.getsignal(number), "__self__", None) for number in (signal.SIGTERM, signal.SIGINT)]
    return any(getattr(server, "should_exit", False) is True for server in servers)


class _Download(StreamingResponse):
    """A file that is sent while it is made. It does not wait for a browser that takes nothing any more.

    Then it ends without its last message, and the server closes the connection, so the browser knows that it failed.
    """

    def of(self, source: Source) -> "_Download":
        """Return this, with what tells whether the process is about to end."""
        self._source, self._engine = source, source.running()
        return self

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for part in self.body_iterator:
            if part and not await self._has_sent(send, str(part).encode()):
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _has_sent(self, send: Send, part: bytes) -> bool:
        sending = asyncio.ensure_future(send({"type": "http.response.body", "body": part, "more_body": True}))
        deadline_s = self._source.clock.elapsed_s() + STALL_S
        try:
            while not (await asyncio.wait({sending}, timeout=LOOK_S))[0]:
                if is_stopping(self._source, self._engine) or self._source.clock.elapsed_s() >= deadline_s:
                    return False
        finally:
            sending.cancel()
        await sending
        return True


# The two forms.


def _csv_document(row: TaskRow, workflow: OwnWorkflow | None) -> Document:
    """Return what the columns show. To parse what they do not would take twice as long."""
    values = row._asdict()
    for name in _INSTANTS:
        values[name] = None if values[name] is None else iso(values[name])
    return values if workflow is None else {**values, **workflow._asdict()}


def _csv_page(documents: Sequence[Document], _is_first: bool) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([cell(document.get(name)) for name in COLUMNS] for document in documents)
    return text.getvalue()


def cell(value: object) -> str:
    """Return a value as a cell that no spreadsheet takes for a formula, and no reader for something else."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not text.isprintable():  # a file has a million cells, and nearly all of them are
        text = escaped(text)
    return _FORMULA.sub(lambda match: f"{match[0][:-1]}'{match[0][-1]}", text)


def _json_document(row: TaskRow, workflow: OwnWorkflow | None) -> Document:
    """Return the document of a task without the columns that a list does not read."""
    return {name: value for name, value in record_document(row, workflow).items() if name not in PAYLOAD}


def _json_page(documents: Sequence[Document], is_first: bool) -> str:
    lines = ",\n".join(json.dumps(document) for document in documents)
    return lines if is_first else f",\n{lines}"


# Excel takes a file for UTF-8 only if it begins with this mark.
CSV: Final = Form("csv", "text/csv; charset=utf-8", _csv_document, f"\ufeff{','.join(COLUMNS)}\r\n", _csv_page, "")
JSON: Final = Form("json", "application/json", _json_document, "[\n", _json_page, "\n]\n")
