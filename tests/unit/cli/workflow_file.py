"""A file with workflows in every state, written at one frozen instant, for the screens that show them."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any, Final

from taskmanager import Task, TaskManager, Workflow
from taskmanager.engine.words.definition import Definition
from taskmanager.model.ids import child_workflow_id, node_task_id
from taskmanager.model.workflows import Graph
from taskmanager.store.sql.workflow_views import NodeTask, WorkflowView
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.workflow_graph import graph_of
from tests.sessions import connect
from tests.unit.cli.rich_file import HOUR, MINUTE, NOW, SECOND

manager = TaskManager("never-opened.db", requeue_pending=True)
REFUSED: Final = "ConnectionRefusedError: [Errno 111] Connection refused by warehouse.example.org"
COLUMNS: Final = 1_000


@manager.task(name="app.imports:fetch")
async def fetch(url: str) -> str:
    """Begin."""
    return url


@manager.task(name="app.imports:parse", queue_name="cpu", retries=3)
def parse(text: str) -> list[str]:
    """Take what was fetched."""
    return text.split()


@manager.task(name="app.imports:count", queue_name="cpu")
def count(rows: list[str], column: int) -> int:
    """One of many."""
    return len(rows[column])


@manager.task(name="app.imports:render")
async def render(parts: list[int]) -> str:
    """Take many."""
    return str(parts)


@manager.task(name="app.imports:note")
async def note(text: str) -> str:
    """Do anything else."""
    return text


def graph(workflow: Workflow[Any], workflow_id: str, sent_at: int) -> Graph:
    """The rows of a workflow, as its start makes them."""

    def definition_of(task: Task[..., Any]) -> Definition:
        return task.bound(manager)[0]

    return graph_of(workflow, workflow_id, definition_of, sent_at)


def importing(columns: int) -> Workflow[str]:
    """A fan-out with what comes after it, a child workflow, and what depends on several nodes."""
    wf: Workflow[Any] = Workflow("import")
    page = wf.add(fetch, "https://example.org")
    rows = wf.add(parse, page.value)
    counts = [wf.add(count, rows.value, column) for column in range(columns)]
    report = wf.add(render, [each.value for each in counts]).named("report")
    clean: Workflow[Any] = Workflow("clean")
    first = clean.add(note, "split").named("split")
    clean.add(note, "wash").named("wash").after(first)
    inner = wf.add_workflow(clean, node_id="clean").after(rows)
    wf.add(note, "audit").named("audit").after(report, rows, inner, allow_failed=True)
    wf.optional(inner)
    return wf.output(report)


def releasing() -> Workflow[str]:
    """A short one, which a failure pauses."""
    wf: Workflow[Any] = Workflow("release", on_error="pause")
    build = wf.add(note, "build").named("build")
    mirrors = [wf.add(note, name).named(f"upload-{name}").after(build) for name in ("ann", "bob", "cyd")]
    wf.add(note, "announce").named("announce").after(*mirrors, join="any")
    return wf.output(wf.add(note, "archive").named("archive").after(*mirrors, join="quorum", min_success=2))


def running_view() -> WorkflowView:
    """The first of them in memory, at an instant that is good to look at."""
    made, states = graph(importing(COLUMNS), "import-7", NOW - 4 * MINUTE), dict[int, tuple[str, int, int | None]]()
    states |= {0: ("COMPLETED", 230, 10), 1: ("COMPLETED", 219, 9), COLUMNS + 3: ("RUNNING", 190, None)}
    states |= {index: ("COMPLETED" if index != 400 else "FAILED", 200, 11) for index in range(2, 814)}
    states |= dict.fromkeys(range(814, 817), ("RUNNING", 60, None))
    nodes = [node for node in made.nodes if node.workflow_id == "import-7"]
    for index, (status, ago_s, took_s) in states.items():
        begun, error = NOW - ago_s * SECOND, _error() if status == "FAILED" else None
        ended = None if took_s is None else begun + took_s * SECOND
        nodes[index] = nodes[index]._replace(status=status, started_at=begun, completed_at=ended, error=error)
    tasks = {"parse": NodeTask("COMPLETED", 3, NOW, None, is_retry=False, is_held=False)}
    nodes[1] = nodes[1]._replace(task_id="parse")
    split, wash = (node for node in made.nodes if node.workflow_id != "import-7")
    split = split._replace(status="COMPLETED", started_at=NOW - 190 * SECOND, completed_at=NOW - 90 * SECOND)
    wash = wash._replace(status="RUNNING", started_at=NOW - 90 * SECOND)
    root, clean = (row._replace(status="RUNNING") for row in made.workflows)
    return WorkflowView(root, nodes, tasks, {clean.id: WorkflowView(clean, [split, wash], {}, {})})


def write(database: Path, columns: int = COLUMNS) -> None:
    """Put workflows into a file that is there."""
    asyncio.run(fill(database, columns))


async def fill(database: Path, columns: int) -> None:
    """Do that in an event loop."""
    store = SqliteStore(database)
    await store.open()
    for workflow, name, age_us in (
        (importing(columns), "import-7", 4 * MINUTE),
        (releasing(), "release-2026-03", HOUR),
        (importing(2), "019cebe4-5b00-7000-8000-000000000063", 26 * HOUR),
        (releasing(), "release-2026-02", 500 * HOUR),
    ):
        await store.start_workflow(graph(workflow, name, NOW - age_us), NOW - age_us)
    await store.close()
    with contextlib.closing(connect(database)) as connection, connection:
        _play(connection, columns)


def _play(connection: SqliteSession, columns: int) -> None:
    """Let the first one run, the second be paused, the third have failed, and the fourth be done."""
    clean = child_workflow_id("import-7", columns + 3)
    connection.execute("UPDATE taskmanager_workflows SET status = 'RUNNING', started_at = ? WHERE id = ?", (NOW, clean))
    end = columns * 812 // 1000
    for index in range(columns + 2):
        if index < 2:
            state = ("COMPLETED", 230 - 10 * index, 10 * SECOND - 850_000 * index)
        elif index < end:
            state = ("COMPLETED" if index % 300 else "FAILED", 200, 11 * SECOND)
        elif index < end + 3:
            state = ("RUNNING", 63 + index % 7, None)
        elif index < end + 103:
            state = ("ENQUEUED", None, None)
        else:
            continue
        _node(connection, "import-7", index, *state, starts=3 if index == 1 else 0)
    _set(connection, "import-7", columns + 3, "RUNNING", 190, None)
    _node(connection, clean, 0, "COMPLETED", 190, 100 * SECOND)
    _node(connection, clean, 1, "ENQUEUED", None, None, due_at=NOW + 40 * SECOND, starts=1)
    connection.execute("UPDATE taskmanager_tasks SET next_retry_at = enqueued_at WHERE enqueued_at > ?", (NOW,))
    for index, state in enumerate((("COMPLETED", 3_500, 61 * SECOND), ("FAILED", 3_400, 2 * SECOND))):
        _node(connection, "release-2026-03", index, *state)
    _node(connection, "release-2026-03", 2, "ENQUEUED", None, None, owner="held")
    _node(connection, "release-2026-03", 3, "RUNNING", 3_300, None)
    connection.execute("UPDATE taskmanager_workflows SET status = 'PAUSED' WHERE id = 'release-2026-03'")
    connection.execute(  # but the first one, whose end another program has written
        "UPDATE taskmanager_workflow_tasks SET is_passed_on = 1"
        " WHERE workflow_id = 'import-7' AND task_index > 0 AND completed_at IS NOT NULL"
    )
    failed = "019cebe4-5b00-7000-8000-000000000063"
    _node(connection, failed, 0, "FAILED", 26 * 3_600, 3 * SECOND, starts=2)
    connection.execute(
        "UPDATE taskmanager_workflow_tasks SET status = 'SKIPPED', completed_at = ? WHERE workflow_id = ? AND status ="
        " 'PENDING'",
        (NOW - 26 * HOUR + 3 * SECOND, failed),
    )
    connection.execute(
        "UPDATE taskmanager_workflows SET status = 'FAILED', error = ?, completed_at = ? WHERE id = ?",
        (_error(), NOW - 26 * HOUR + 3 * SECOND, failed),
    )
    for index in range(6):
        _node(connection, "release-2026-02", index, "COMPLETED", 500 * 3_600 - index, 400 * SECOND)
    connection.execute(
        "UPDATE taskmanager_workflows SET status = 'COMPLETED', completed_at = ? WHERE id = 'release-2026-02'",
        (NOW - 499 * HOUR,),
    )


def _error() -> str:
    return json.dumps({"err": {"error_code": "UNHANDLED_EXCEPTION", "message": REFUSED, "data": None}})


def _set(
    connection: SqliteSession, workflow_id: str, index: int, status: str, ago_s: int | None, took_us: int | None
) -> None:
    started_at = None if ago_s is None else NOW - ago_s * SECOND
    has_ended = status in ("COMPLETED", "FAILED")
    connection.execute(
        "UPDATE taskmanager_workflow_tasks SET status = ?, started_at = ?, completed_at = ?, error = ?, result = ?"
        " WHERE workflow_id = ? AND task_index = ?",
        (
            status, started_at,
            (started_at or 0) + (took_us or 0) if has_ended else None, _error() if status == "FAILED" else None,
            '{"ok":{"pages":12}}' if status == "COMPLETED" else None, workflow_id, index,
        ),
    )  # fmt: skip


def _node(
    connection: SqliteSession, workflow_id: str, index: int, status: str, ago_s: int | None, took_us: int | None,
    *, starts: int = 0, owner: str | None = None, due_at: int = NOW - 70 * SECOND,
) -> None:  # fmt: skip
    """Let a node have this status, with the task that belongs to it."""
    _set(connection, workflow_id, index, status, ago_s, took_us)
    task_id = node_task_id(workflow_id, index)
    connection.execute(
        "UPDATE taskmanager_workflow_tasks SET task_id = ? WHERE workflow_id = ? AND task_index = ?",
        (task_id, workflow_id, index),
    )
    started_at = None if ago_s is None else NOW - ago_s * SECOND
    ended_at = None if started_at is None or took_us is None else started_at + took_us
    connection.execute("DELETE FROM taskmanager_tasks WHERE id = ?", (task_id,))
    values: dict[str, Any] = {
        "id": task_id, "queue_name": "default", "priority": 50, "args": "[]", "kwargs": "{}",
        "status": "PENDING" if status == "ENQUEUED" else status, "sent_at": NOW - 4 * MINUTE, "enqueued_at": due_at,
        "started_at": started_at, "completed_at": ended_at if status == "COMPLETED" else None,
        "failed_at": ended_at if status == "FAILED" else None, "start_count": starts or int(started_at is not None),
        "claimed_by_worker_id": "i-alive" if status == "RUNNING" else owner,
        "error_code": "UNHANDLED_EXCEPTION" if status == "FAILED" else None,
        "result": _error() if status == "FAILED" else None, "task_options": '{"persist":true}', "is_workflow_task": 1,
        "created_at": NOW - 4 * MINUTE, "updated_at": NOW - MINUTE,
        "task_name": connection.execute(
            "SELECT task_name FROM taskmanager_workflow_tasks WHERE task_id = ?", (task_id,)
        ).fetchone()[0],
    }  # fmt: skip
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO taskmanager_tasks ({names}) VALUES ({marks})", tuple(values.values()))
