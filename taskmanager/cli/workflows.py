"""`taskmanager workflows` and `workflow`: look at graphs of tasks, and act on a whole one."""

from typing import Final, get_args

import click

from taskmanager.cli.database import SHOWN_IDS, read, write
from taskmanager.cli.options import answer, answer_json, draw, file_options, screen
from taskmanager.console.acts import act_on_workflow, failed_tasks, retry_workflow, told_of_workflow
from taskmanager.console.documents import view_document, workflow_document
from taskmanager.console.outlook import living, workflow_outlook
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import StoreError, UnknownTask
from taskmanager.model.escaping import escaped
from taskmanager.model.wording import counted
from taskmanager.model.workflows import WorkflowStatus
from taskmanager.store.place import Place
from taskmanager.store.sql.queries import instances
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.workflow_views import WorkflowView, find_workflows, view_of, workflow_ids_like

LIST_EPILOG: Final = """\b
Examples:
  taskmanager workflows
  taskmanager workflows --status FAILED
  taskmanager workflows --name import --limit 100 --json

Workflows that stand in another one are shown there. "nodes" says how many have ended, and of how many.
"""
EPILOG: Final = """\b
Examples:
  taskmanager workflow show import-7
  taskmanager workflow pause import-7      nothing more of it starts
  taskmanager workflow resume import-7
  taskmanager workflow cancel import-7
  taskmanager workflow retry import-7      run again what has failed

A beginning or an end of the id is enough, if no other workflow shares it.
"""


class Status(click.Choice[str]):
    """The status of a workflow, in upper or lower case."""

    def __init__(self) -> None:
        super().__init__(get_args(WorkflowStatus), case_sensitive=False)


@click.command(epilog=LIST_EPILOG)
@click.option("--status", type=Status(), metavar="STATUS", help="Only workflows with this status, e.g. RUNNING.")
@click.option("--name", metavar="NAME", help="Only workflows of this name.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, metavar="N",
    help="At most this many workflows.",
)  # fmt: skip
@file_options
def workflows(status: str | None, name: str | None, limit: int, db: Place, as_json: bool) -> None:
    """List workflows, newest first."""
    with read(db) as connection, connection.snapshot():
        found = find_workflows(connection, status, name, limit)
    if as_json:
        answer_json([workflow_document(row, progress) for row, progress in found])
    elif found:
        from taskmanager.console.terminal.workflow import workflow_table  # not for --json

        draw(workflow_table(found, SystemClock().now_us(), screen().width))
    else:
        click.echo("no workflows" if status is None and name is None else "no such workflows")


@click.command(epilog=EPILOG)
@click.argument("action", type=click.Choice(["show", "pause", "resume", "cancel", "retry"]))
@click.argument("workflow_id", metavar="ID")
@file_options
def workflow(action: str, workflow_id: str, db: Place, as_json: bool) -> None:
    """Show the graph of a workflow; pause, resume, cancel or retry it."""
    with read(db) as connection, connection.snapshot():
        wanted = the_workflow(connection, workflow_id)
        view = view_of(connection, wanted) if action in ("show", "retry") else None
        alive = living(instances(connection), db)
    if view is None:
        _act(action, wanted, db, as_json=as_json)
    elif action == "retry":
        _retry(view, db, as_json=as_json)
    else:
        _show(view, as_json=as_json, is_running=bool(alive))


def the_workflow(connection: Session, part: str) -> str:
    """Return the id that begins or ends with `part`. Raise `UnknownTask` if there is none, or more than one."""
    found = workflow_ids_like(connection, part.strip(), SHOWN_IDS + 1)
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(found[:SHOWN_IDS]) + (" and more" if len(found) > SHOWN_IDS else "")
        raise UnknownTask(f"{part!r} is ambiguous: {some}; give more of the id")
    raise UnknownTask(f"there is no workflow {part!r}; `taskmanager workflows` shows the ids")


def _show(view: WorkflowView, *, as_json: bool, is_running: bool) -> None:
    following = workflow_outlook(view.row, is_running=is_running)
    if as_json:
        answer_json({**view_document(view), "next": following})
        return
    from taskmanager.console.terminal.workflow import WorkflowPage  # not for --json

    draw(WorkflowPage(view, following, SystemClock().now_us()))


def _act(action: str, workflow_id: str, db: Place, *, as_json: bool) -> None:
    is_done, status = write(db, lambda store: act_on_workflow(store, action, workflow_id, SystemClock()))
    if not is_done:
        raise StoreError(f"workflow {workflow_id} is {status}; there is nothing to {action}, and nothing was changed")
    document = {"workflow_id": workflow_id, "status": status}
    answer(document, f"workflow {workflow_id} {told_of_workflow(action, status)}", as_json=as_json)


def _retry(view: WorkflowView, db: Place, *, as_json: bool) -> None:
    failed = failed_tasks(view)
    if not failed:
        advice = (
            "" if view.row.status not in ("FAILED", "CANCELLED") else "; start it again under its id, which goes on"
        )
        raise StoreError(f"workflow {view.row.id} is {view.row.status}, and no task of it has failed{advice}")

    done = write(db, lambda store: retry_workflow(store, failed, SystemClock()))
    if as_json:
        answer_json({"workflow_id": view.row.id, "retried": done, "refused": sorted(set(failed) - set(done))})
    else:
        then = f", until `taskmanager workflow resume {view.row.id}`" if view.row.status == "PAUSED" else ""
        click.echo(escaped(f"workflow {view.row.id}: {counted(len(done), 'failed task')} put back to wait{then}"))
    if len(done) < len(failed):
        raise click.exceptions.Exit(1)
