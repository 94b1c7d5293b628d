"""The page of one workflow: its graph with the status of each node, live, what has failed, and a table of the nodes.

The graph of a workflow never changes, so it is read and placed once. A look reads the status of each node, and all else
of those nodes alone that it shows.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from taskmanager.console.acts import act_on_workflow, failed_tasks, retry_workflow, told_of_workflow
from taskmanager.console.figures import MAX_CHARS, cause, cut, exact, stored_error, took
from taskmanager.console.outlook import living, workflow_outlook
from taskmanager.console.workflow_tree import counts_of_statuses, tree_of
from taskmanager.model.clock import LAST_US
from taskmanager.model.errors import UnknownTask
from taskmanager.model.states import WAITING
from taskmanager.model.wording import counted, why
from taskmanager.model.workflows import ENDED_WORKFLOW, WorkflowRow
from taskmanager.store.place import Place
from taskmanager.store.protocol import Store
from taskmanager.store.sql.queries import instances
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.workflow_pages import (
    NodeAbout,
    WorkflowHead,
    node_ids_of,
    node_statuses,
    nodes_about,
    workflow_head,
    workflow_outline,
    workflow_statuses,
)
from taskmanager.store.sql.workflow_views import Progress, progress_of, view_of, workflow_ids_like
from taskmanager.web import values
from taskmanager.web.forms import audit
from taskmanager.web.graph import MAX_BOXES, Box, Layout, layout_of
from taskmanager.web.render import MAX_LIKE, View, done, refusal, segment, those_like
from taskmanager.web.site import Site, site_of

MAX_ROWS: Final = 100
MAX_FAILED: Final = 5
MAX_PLANS: Final = 32
BATCH: Final = 500
_ORDER: Final = ("FAILED", "RUNNING", "ENQUEUED", "READY", "PENDING", "SKIPPED", "COMPLETED")
"""What a person should know first: of a graph that has more nodes than the table, and of nodes that share a box.

What has not ended comes before what was skipped, so that a box whose nodes wait does not look as if it were over.
"""
_AFTER: Final = re.compile(r"\d+(?=[,\]])")
_AFTER_SHOWN: Final = 3


class Plans:
    """The layouts of the workflows that were looked at last. Threads share them."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], Layout] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<Plans of {len(self._found)} workflows>"

    def of(self, connection: Session, row: WorkflowRow) -> Layout:
        """Return the layout of the graph of a workflow."""
        key = row.id, row.created_at, row.definition_key
        found = self._found.get(key)
        if found is None:
            nodes = workflow_outline(connection, row.id)
            found = layout_of(tree_of(nodes, MAX_BOXES), len(nodes))
        with self._lock:
            self._found.pop(key, None)
            self._found[key] = found
            while len(self._found) > MAX_PLANS:
                del self._found[next(iter(self._found))]
        return found


_plans: Final = Plans()


class Found(NamedTuple):
    """What one look at a workflow has found. `about` has the nodes that are shown."""

    head: WorkflowHead
    layout: Layout
    statuses: Mapping[int, str]
    about: Mapping[int, NodeAbout]
    rows: Sequence[int]
    names: Mapping[int, str]
    children: Mapping[str, tuple[str, Progress]]
    is_running: bool


class Shown(NamedTuple):
    """A box with what stands in it. `address` is that of its task or its workflow, below the dashboard."""

    box: Box
    status: str
    words: str
    address: str | None
    title: str


class Node(NamedTuple):
    """A node in the table."""

    about: NodeAbout
    words: str
    error: str
    after: str
    address: str | None


async def show(request: Request) -> View | RedirectResponse:
    """Show a workflow. A part of its id leads to it."""
    site, wanted = site_of(request), request.path_params["workflow_id"]
    start = _start_of(request.query_params.get("from", ""))
    found = await site.source.look(_look, site.source.place, wanted, start)
    if found is not None:
        return View("workflow.html", _page(site, found) | {"start": start, "max_rows": MAX_ROWS})
    ids = await site.source.look(workflow_ids_like, wanted.strip(), MAX_LIKE + 1)
    if ids:
        return those_like(request, "workflow", wanted, ids)
    cure = "look for it in the list of workflows; a record is deleted when it is older than the application keeps them"
    return refusal(404, f"there is no workflow {cut(wanted, MAX_CHARS)}", cure)


def _start_of(text: str) -> int | None:
    """Return the first index that the table shows in the order of the graph; None: what matters most comes first."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _look(connection: Session, place: Place | None, workflow_id: str, start: int | None) -> Found | None:
    head = workflow_head(connection, workflow_id)
    if head is None:
        return None
    layout, statuses = _plans.of(connection, head.row), node_statuses(connection, workflow_id)
    rows = _rows_of(statuses) if start is None else sorted(statuses)[start : start + MAX_ROWS]
    drawn = {box.indexes[0] for box in layout.boxes if len(box.indexes) == 1}
    about = nodes_about(connection, workflow_id, drawn | set(rows))
    named = {index for each in about.values() for index in _after(each)[:_AFTER_SHOWN]}
    inside = [each.sub_workflow_id for each in about.values() if each.sub_workflow_id is not None]
    progress, states = progress_of(connection, inside), workflow_statuses(connection, inside)
    return Found(
        head=head,
        layout=layout,
        statuses=statuses,
        about=about,
        rows=rows,
        names=node_ids_of(connection, workflow_id, named),
        children={each: (states[each], progress[each]) for each in inside if each in states and each in progress},
        is_running=bool(living(instances(connection), place)),
    )


def _rows_of(statuses: Mapping[int, str]) -> list[int]:
    """Return the nodes that matter most, in the order of the graph."""
    rank = {status: number for number, status in enumerate(_ORDER)}
    return sorted(sorted(statuses, key=lambda each: (rank.get(statuses[each], 0), each))[:MAX_ROWS])


def _after(about: NodeAbout) -> list[int]:
    """Return the first of the nodes that it depends on. The text may be a beginning."""
    return [int(each) for each in _AFTER.findall(about.dependencies)]


def _page(site: Site, found: Found) -> dict[str, Any]:
    row, now_us = found.head.row, site.source.clock.now_us()
    counts = Counter(found.statuses.values())
    code, message = stored_error(row.error)
    has_result = row.status == "COMPLETED" and row.output_task_index is not None
    boxes = [_shown(box, found, now_us) for box in found.layout.boxes]
    nodes = list(_nodes(found, now_us))
    return {
        "row": row,
        "why": why(code, message, max_chars=MAX_CHARS) if code else "",
        "next": workflow_outlook(row, is_running=found.is_running),
        "counts": counts_of_statuses(counts),
        "node_count": len(found.statuses),
        "ended_count": sum(counts[each] for each in ("COMPLETED", "FAILED", "SKIPPED")),
        "result": values.result(found.head.result, is_hidden=site.hide_arguments) if has_result else None,
        "took_all": "" if row.completed_at is None else exact(row.completed_at - row.sent_at),
        "layout": found.layout,
        "boxes": boxes,
        "lines": _lines(found.layout, boxes),
        "failed": [each for each in nodes if each.about.status == "FAILED"][:MAX_FAILED],
        "failed_count": counts["FAILED"],
        "nodes": nodes,
        "is_open": row.status not in ENDED_WORKFLOW,
        "can_retry": counts["FAILED"] > 0,
    }


def _lines(layout: Layout, boxes: Sequence[Shown]) -> dict[str, str]:
    """Return the lines behind boxes that are complete, and all others, each as one path."""
    done = [boxes[each.source].status == "COMPLETED" for each in layout.edges]
    paths = {"done": "", "open": ""}
    for is_done, edge in zip(done, layout.edges, strict=True):
        paths["done" if is_done else "open"] += edge.path
    return paths


def _shown(box: Box, found: Found, now_us: int) -> Shown:
    if len(box.indexes) > 1:
        counts = Counter(found.statuses.get(each, "PENDING") for each in box.indexes)
        words = ", ".join(f"{number:,} {word}" for word, number in counts_of_statuses(counts).items())
        return Shown(box, together(counts), words, None, f"{box.name}: {words}")
    about = found.about.get(box.indexes[0])
    status = found.statuses.get(box.indexes[0], "PENDING")
    words = ", ".join([status.lower(), *(() if about is None else _said_of(about, found, now_us))])
    error = "" if about is None else _error(about)
    title = f"{box.name} ({box.task_name}): {words}{f': {error}' if error else ''}"
    return Shown(box, status, words, None if about is None else _address(about), title)


def together(counts: Mapping[str, int]) -> str:
    """Return the status of many nodes as one: that which a person should know first."""
    return next((status for status in _ORDER if counts.get(status)), "PENDING")


def _address(about: NodeAbout) -> str | None:
    if about.sub_workflow_id is not None:
        return f"workflows/{segment(about.sub_workflow_id)}"
    return None if about.task_id is None else f"tasks/{segment(about.task_id)}"


def _said_of(about: NodeAbout, found: Found, now_us: int) -> Iterator[str]:
    """Yield what is to be said of a node beside its status. None of it goes on with time."""
    if (child := found.children.get(about.sub_workflow_id or "")) is not None:
        yield f"{child[1].ended:,} of {counted(child[1].total, 'node')}"
    elif about.started_at is not None and about.completed_at is not None:
        yield took(about.completed_at - about.started_at)
    if about.start_count is not None and about.start_count > 1:
        yield f"{about.start_count} attempts"
    if about.task_status in WAITING and about.enqueued_at is not None:
        if about.is_held:
            yield "held"
        elif about.enqueued_at >= LAST_US:
            yield "waits for an event"
        elif about.enqueued_at > now_us:
            yield "waits for a retry" if about.is_retry else "not due yet"


def _error(about: NodeAbout) -> str:
    if about.status != "FAILED":
        return ""
    code, message = stored_error(about.error)
    return cause(code or about.error_code or "", message, 0)


def _nodes(found: Found, now_us: int) -> Iterator[Node]:
    for index in found.rows:
        if (about := found.about.get(index)) is not None:
            words = ", ".join(_said_of(about, found, now_us))
            yield Node(about, words, _error(about), _after_words(about, found.names), _address(about))


def _after_words(about: NodeAbout, names: Mapping[int, str]) -> str:
    indexes = _after(about)
    shown = [cut(names.get(each, str(each)), 60) for each in indexes[:_AFTER_SHOWN]]
    if not about.dependencies.endswith("]"):
        shown.append("many more")
    elif len(indexes) > _AFTER_SHOWN:
        shown.append(f"{len(indexes) - _AFTER_SHOWN} more")
    sign = {"any": "any of ", "quorum": f"{about.min_success} of "}.get(about.join_type, "") if len(indexes) > 1 else ""
    return sign + ", ".join(shown)


# What people do to it.


async def pause(request: Request) -> Response:
    """Let nothing more of a workflow start."""
    return await _act(request, "pause")


async def resume(request: Request) -> Response:
    """Let a workflow go on."""
    return await _act(request, "resume")


async def cancel(request: Request) -> Response:
    """Cancel what has not ended of a workflow."""
    return await _act(request, "cancel")


async def _act(request: Request, action: str) -> Response:
    source, workflow_id = site_of(request).source, request.path_params["workflow_id"]
    is_done, status = await source.act(lambda store: act_on_workflow(store, action, workflow_id, source.clock))
    if status == "gone":
        raise UnknownTask(f"there is no workflow {workflow_id}")
    if is_done:
        audit(request, {"pause": "paused", "resume": "resumed"}.get(action, "cancelled") + " workflow", [workflow_id])
        said = told_of_workflow(action, status)
    else:
        said = f"is {status}; there is nothing to {action}, and nothing was changed"
    return done(request, f"workflows/{segment(workflow_id)}", f"Workflow {workflow_id} {said}.")


async def retry(request: Request) -> Response:
    """Run again what has failed of a workflow."""
    source, workflow_id = site_of(request).source, request.path_params["workflow_id"]
    view = await source.read(view_of, workflow_id)
    if view is None:
        raise UnknownTask(f"there is no workflow {workflow_id}")
    failed = list(failed_tasks(view).items())

    async def put_back(store: Store) -> int:
        done: list[str] = []
        for start in range(0, len(failed), BATCH):  # what was done is in the log, also if the rest cannot be
            some = await retry_workflow(store, dict(failed[start : start + BATCH]), source.clock)
            audit(request, f"retried in workflow {workflow_id}", some)
            done += some
        return len(done)

    count = await source.act(put_back) if failed else 0
    said = f"{counted(count, 'failed task')} put back to wait" if count else "no task of it can be run again"
    return done(request, f"workflows/{segment(workflow_id)}", f"Workflow {workflow_id}: {said}.")
