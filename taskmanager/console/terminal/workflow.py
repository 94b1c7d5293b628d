"""Draws workflows: a table of them, and one with its graph as a tree, each node with its status and how long it took.

`├─` says "after this node", `├┄` says "inside of it": the nodes of a child workflow, or those of many that have failed.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from taskmanager.console.figures import MAX_CHARS, cause, clock, exact, relative, short, stored_error, took
from taskmanager.console.terminal.colours import FAILED_STYLE, style_of
from taskmanager.console.terminal.grid import GAP, NARROW_BELOW, cut_end, cut_front
from taskmanager.console.terminal.record import result_text
from taskmanager.console.workflow_tree import Branch, counts_of, tree_of
from taskmanager.model.clock import LAST_US
from taskmanager.model.escaping import escaped
from taskmanager.model.states import WAITING
from taskmanager.model.wording import counted, why
from taskmanager.model.workflows import ENDED_WORKFLOW, NodeRow, WorkflowRow
from taskmanager.store.sql.workflow_views import Progress, WorkflowView

MAX_LINES: Final = 500
"""Of a graph with more lines, `--json` has all nodes."""
_FAILED_SHOWN: Final = 3  # of many alike nodes
_OTHERS_SHOWN: Final = 3
_STATUS_WIDTH: Final = 9
_TOOK_WIDTH: Final = 7
_LEAST_REMARK: Final = 16
_DEFAULT_QUEUE: Final = "default"
_DRAWN: Final = ("├", "└", "│", "─", "┄")
_ASCII: Final = ("|", "`", "|", "-", ".")


class _Line(NamedTuple):
    """A line of the tree: what stands left of its name, and left of the lines that follow below it."""

    guide: str
    below: str
    name: str
    nodes: Sequence[NodeRow]
    status: str
    error: str
    remark: str


class _Item(NamedTuple):
    """A branch that is still to be drawn."""

    branch: Branch
    guide: str
    rest: str
    view: WorkflowView


class WorkflowPage(NamedTuple):
    """One workflow, as a rich renderable. `next_text` says what becomes of it."""

    view: WorkflowView
    next_text: str
    now_us: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(*_head(self), Text(""), *_tree(self, options.max_width, is_ascii=options.ascii_only))


def _head(page: WorkflowPage) -> Iterator[Text | Table]:
    row, progress = page.view.row, page.view.progress
    line = Text.assemble((escaped(row.name), "bold"), "  ", (row.status, style_of(row.status)))
    line.append(f"  {progress.ended:,} of {counted(progress.total, 'node')}")
    code, message = stored_error(row.error)
    if code:
        line.append(f"  {why(code, message, max_chars=MAX_CHARS)}", style_of(row.status))
    yield line.append(f"\n{escaped(row.id)}")
    yield Text("")
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(page):
        if value:
            table.add_row(name, Text(value) if isinstance(value, str) else value)
    yield table
    yield Text("")
    yield Text.assemble(("Next: ", "bold"), page.next_text)


def _facts(page: WorkflowPage) -> Iterator[tuple[str, Text | str]]:
    row, now = page.view.row, page.now_us
    yield "nodes", _counts(page.view.nodes)
    has_result = row.status == "COMPLETED" and row.output_task_index is not None
    yield "result", result_text(row.result) if has_result else ""
    policy = "a failure pauses it" if row.on_error == "pause" else "a failure fails it, other branches run on"
    yield "policy", policy if row.success_policy is None else f"{policy}; success by its own cases"
    yield "inside", "" if row.parent_workflow_id is None else f"workflow {escaped(row.parent_workflow_id)}"
    yield "sent", f"{clock(row.sent_at)} UTC ({relative(row.sent_at, now)})"
    if row.cancelled_at is not None:
        yield "cancel", f"requested {clock(row.cancelled_at)} UTC ({relative(row.cancelled_at, now)})"
    if row.completed_at is not None:
        after = exact(row.completed_at - row.sent_at)
        yield "ended", f"{clock(row.completed_at)} UTC ({relative(row.completed_at, now)}), {after} after it was sent"


# The tree.


def _tree(page: WorkflowPage, width: int, *, is_ascii: bool) -> Iterator[Text]:
    lines = list(islice(_lines(page, _ASCII if is_ascii else _DRAWN), MAX_LINES + 1))
    shown = lines[:MAX_LINES]
    remark_room = 0 if width < NARROW_BELOW else GAP + _LEAST_REMARK
    most = width - _STATUS_WIDTH - _TOOK_WIDTH - 2 * GAP - remark_room
    tree = min(most, max((cell_len(line.guide + line.name) for line in shown), default=0))
    yield Text("Nodes", "bold")
    for line in shown:
        yield from _drawn(line, tree, width, page.now_us)
    if len(lines) > MAX_LINES:
        number = page.view.progress.total
        yield Text(f"the first {MAX_LINES} lines of {counted(number, 'node')}; --json has all of them", "dim")


def _lines(page: WorkflowPage, signs: Sequence[str]) -> Iterator[_Line]:
    """Yield the lines from the top. A graph may be deeper than Python's stack."""
    tee, corner, bar, after, inside = signs
    stack = [_Item(branch, "", "", page.view) for branch in reversed(tree_of(page.view.nodes))]
    while stack:
        branch, guide, rest, view = stack.pop()
        members, child_view = _inside(branch, view)
        following = [(each, inside, child_view) for each in members] + [(each, after, view) for each in branch.below]
        below = f"{rest}{bar if following else ' '} "
        about = _status(branch.nodes[0], view), _error(branch, view), _remark(branch, view, page.now_us)
        yield _Line(guide, below, escaped(branch.name), branch.nodes, *about)
        for number, (each, dash, its_view) in enumerate(reversed(following)):
            sign, on = (tee, bar) if number else (corner, " ")
            stack.append(_Item(each, f"{rest}{sign}{dash} ", f"{rest}{on}  ", its_view))


def _inside(branch: Branch, view: WorkflowView) -> tuple[list[Branch], WorkflowView]:
    """Return what is shown inside of a line: the child workflow of one node, or the failed ones of many."""
    first = branch.nodes[0]
    if len(branch.nodes) > 1:
        failed = [node for node in branch.nodes if node.status == "FAILED"]
        return [Branch([node], branch.depth, is_part=True) for node in failed[:_FAILED_SHOWN]], view
    child = view.children.get(first.sub_workflow_id or "")
    return (tree_of(child.nodes), child) if child is not None else ([], view)


def _error(branch: Branch, view: WorkflowView) -> str:
    """Return why a node has failed. If the error is sealed, its code is known from the task."""
    node = branch.nodes[0]
    if len(branch.nodes) > 1 or node.status != "FAILED":
        return ""
    code, message = stored_error(node.error)
    task = view.tasks.get(node.task_id or "")
    return cause(code or (task and task.error_code) or "", message, 0)


def _remark(branch: Branch, view: WorkflowView, now_us: int) -> str:
    node = branch.nodes[0]
    parts = [] if len(branch.nodes) > 1 else list(_said_of(node, view, now_us))
    if node.queue_name != _DEFAULT_QUEUE and not branch.is_part:
        parts.append(f"queue {escaped(node.queue_name)}")
    if node.is_optional:
        parts.append("optional")
    if branch.others:
        names = [escaped(each.name) for each in branch.others[:_OTHERS_SHOWN]]
        more = len(branch.others) - len(names)
        sign = "or" if node.join_type == "any" else "+"
        parts.append(f"{sign} {', '.join(names)}{f' and {more:,} more' if more else ''}")
    if node.join_type == "quorum":
        parts.append(f"needs {node.min_success}")
    return ", ".join(parts)


def _said_of(node: NodeRow, view: WorkflowView, now_us: int) -> Iterator[str]:
    child, task = view.children.get(node.sub_workflow_id or ""), view.tasks.get(node.task_id or "")
    if child is not None:
        progress = child.progress
        yield f"workflow, {progress.ended:,} of {counted(progress.total, 'node')}"
    if task is None:
        return
    if task.start_count > 1:
        yield f"{task.start_count} attempts"
    if task.status == "PENDING" and task.is_held:
        yield "held"
    elif task.status == "PENDING" and task.enqueued_at >= LAST_US:
        yield "waits for an event"
    elif task.status == "PENDING" and task.enqueued_at > now_us:
        yield f"{'retry' if task.is_retry else 'due'} {relative(task.enqueued_at, now_us)}"
    elif task.status in WAITING:
        yield f"waits for {short(now_us - task.enqueued_at)}"


def _drawn(line: _Line, tree: int, width: int, now_us: int) -> Iterator[Text]:
    """Yield a line of the tree, and below it what has no room there."""
    guide = cut_front(line.guide, max(tree // 2, tree - cell_len(line.name)))
    name = cut_front(line.name, tree - cell_len(guide))
    drawn = Text.assemble((guide, "dim"), set_cell_size(name, tree - cell_len(guide)), " " * GAP)
    is_many = len(line.nodes) > 1
    rest: list[Text] = []
    for text in (_counts(line.nodes) if is_many else _state(line, now_us), Text(line.remark, "dim")):
        if text and not rest and drawn.cell_len + text.cell_len <= width:
            drawn.append_text(text).append(" " * GAP)
        elif text:
            rest.append(text)
    yield _one_line(drawn)
    if line.error:
        rest.insert(0, Text(line.error, FAILED_STYLE))
    for text in rest:
        yield _one_line(_cut(Text.assemble((cut_front(line.below, tree), "dim"), text), width))


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _one_line(line: Text) -> Text:
    line.rstrip()
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _status(node: NodeRow, view: WorkflowView) -> str:
    """Return the status of a node; of a child that runs, that of its workflow, which may be paused."""
    child = view.children.get(node.sub_workflow_id or "")
    return node.status if child is None or node.status != "RUNNING" else child.row.status


def _state(line: _Line, now_us: int) -> Text:
    (node,) = line.nodes
    time = "" if node.started_at is None else took((node.completed_at or now_us) - node.started_at)
    return Text.assemble((f"{line.status:<{_STATUS_WIDTH}}", style_of(line.status)), f"{time:>{GAP + _TOOK_WIDTH}}")


def _counts(nodes: Sequence[NodeRow]) -> Text:
    text = Text()
    for word, number in counts_of(nodes).items():
        text.append(", " if text else "").append(f"{number:,} {word}", style_of(word.upper()))
    return text


# The table.

_NARROW: Final = 70
_WIDE: Final = 110
_MOST_ID: Final = 36
_SHORT_ID: Final = 16
_MOST_NAME: Final = 20
_WHEN_WIDTH: Final = 7


def workflow_table(rows: Sequence[tuple[WorkflowRow, Progress]], now_us: int, width: int) -> Table:
    """Draw workflows (one at least) in `width` columns; no line wraps."""
    ids = [escaped(row.id) for row, _ in rows]
    nodes = [f"{progress.ended:,} of {progress.total:,}" for _, progress in rows]
    errors = [_why(row) for row, _ in rows]
    is_narrow = width < _NARROW
    has_errors = not is_narrow and any(errors)
    nodes_width = max(len("nodes"), *map(len, nodes))
    room = width - _STATUS_WIDTH - nodes_width - _WHEN_WIDTH - 3 * GAP
    most_id = room if is_narrow else _SHORT_ID if has_errors and width < _WIDE else _MOST_ID
    id_width = min(most_id, max(map(cell_len, ids)))
    room -= id_width + GAP
    longest = max(len("workflow"), *(cell_len(escaped(row.name)) for row, _ in rows))
    name_width = min(longest, room, _MOST_NAME if has_errors else room)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("id", width=id_width, no_wrap=True)
    if not is_narrow:
        table.add_column("workflow", width=name_width, no_wrap=True)
    table.add_column("status", width=_STATUS_WIDTH, no_wrap=True)
    table.add_column("nodes", justify="right", width=nodes_width, no_wrap=True)
    if has_errors:
        table.add_column("error", max_width=room - name_width - GAP, no_wrap=True, overflow="ellipsis")
    table.add_column("when", justify="right", width=_WHEN_WIDTH, no_wrap=True, overflow="ellipsis")
    for (row, _), workflow_id, part, error in zip(rows, ids, nodes, errors, strict=True):
        table.add_row(
            Text(cut_front(workflow_id, id_width)),
            *([] if is_narrow else [Text(cut_end(escaped(row.name), name_width))]),
            Text(row.status, style_of(row.status)),
            Text(part),
            *([Text(error)] if has_errors else []),
            Text(_when(row, now_us)),
        )
    return table


def _why(row: WorkflowRow) -> str:
    code, message = stored_error(row.error)
    return "" if code is None else cause(code, message, 0)


def _when(row: WorkflowRow, now_us: int) -> str:
    """Return `for 44s`: so long it has been there; `2d ago`: when it ended."""
    if row.status in ENDED_WORKFLOW:
        return relative(row.completed_at or row.updated_at, now_us)
    return f"for {short(max(0, now_us - row.sent_at))}"
