"""The page of workflows: those that stand in no other one, newest first, each with how far it has come."""

from collections.abc import Sequence
from typing import Final, NamedTuple, get_args

from starlette.requests import Request

from taskmanager.console.figures import MAX_CHARS, cause, stored_error
from taskmanager.model.workflows import ENDED_WORKFLOW, WorkflowRow, WorkflowStatus
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.windows import Cursor
from taskmanager.store.sql.workflow_rows import fetch_workflows
from taskmanager.store.sql.workflow_views import Progress, progress_of
from taskmanager.web.filters import cursor_of, cursor_text
from taskmanager.web.render import View
from taskmanager.web.site import site_of

PAGE: Final = 50
STATUSES: Final[tuple[str, ...]] = get_args(WorkflowStatus)


class Line(NamedTuple):
    """One row of the list."""

    row: WorkflowRow
    progress: Progress
    why: str

    @property
    def ended_at(self) -> int | None:
        """Return when the workflow has ended, or None if it has not."""
        return (self.row.completed_at or self.row.updated_at) if self.row.status in ENDED_WORKFLOW else None


async def show(request: Request) -> View:
    """Show the workflows of the filter that the address is."""
    given = request.query_params
    status, name = given.get("status", "").upper(), given.get("name", "").strip()
    status = status if status in STATUSES else ""
    before = cursor_of(given.get("before", ""))
    lines = await site_of(request).source.look(_look, status or None, name or None, before)
    last = lines[PAGE - 1].row if len(lines) > PAGE else None
    older = None if last is None else cursor_text((last.sent_at, last.id))
    shown = {
        "lines": lines[:PAGE], "older": older, "status_asked": status, "name_asked": name, "statuses": STATUSES,
        "is_first": before is None,
    }  # fmt: skip
    return View("workflows.html", shown)


def _look(connection: Session, status: str | None, name: str | None, before: Cursor | None) -> Sequence[Line]:
    rows = fetch_workflows(connection, status, name, PAGE + 1, before)
    progress = progress_of(connection, [row.id for row in rows])
    return [Line(row, progress.get(row.id, Progress(0, 0)), _why(row)) for row in rows]


def _why(row: WorkflowRow) -> str:
    code, message = stored_error(row.error)
    return "" if code is None else cause(code, message, MAX_CHARS)
