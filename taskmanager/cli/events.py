"""`taskmanager send`: send an event to a task that waits for it, also while the application is down."""

from typing import Final

import click

from taskmanager.cli.database import read, the_task, write
from taskmanager.cli.options import answer, file_options
from taskmanager.codec.results import encode_event
from taskmanager.codec.values import loads
from taskmanager.console.acts import patiently
from taskmanager.model.checks import check_event
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import ArgumentError, QueueFull, StoreError
from taskmanager.model.steps import EventRow, SendReport
from taskmanager.rules.steps import MAX_UNREAD
from taskmanager.store.place import Place
from taskmanager.store.protocol import Store

EPILOG: Final = """\b
Examples:
  taskmanager send 4c1f3a approval '{"by": "ann"}'
  taskmanager send 4c1f3a go                        the value is null
  taskmanager send 4c1f3a paid 100 --key payment-7  stored once

The task gets it from `await wait_for("approval", Approval)`, now or when it comes there. The value is read as the type
that the task waits for; one that does not fit raises ArgumentError in the task. It is stored as plain JSON, also where
the application encrypts.
"""


@click.command(epilog=EPILOG)
@click.argument("task_id", metavar="ID")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="[JSON]", default="null")
@click.option("--key", help="Store an event of this key once.")
@file_options
def send(task_id: str, name: str, value: str, key: str | None, db: Place, as_json: bool) -> None:
    """Send an event to a task, which waits for it or will."""
    check_event(task_id, name, key)
    try:
        text = encode_event(name, loads(value), None)
    except ArgumentError as exc:
        raise click.UsageError(f'the value must be JSON, such as 7, \'"yes"\' or \'{{"by": "ann"}}\': {exc}') from exc
    with read(db) as connection:
        wanted = the_task(connection, task_id)
    event = EventRow(wanted, name, text, key, SystemClock().now_us())

    async def work(store: Store) -> SendReport:
        return await patiently(lambda: store.send_event(event))

    outcome = write(db, work).outcome
    if outcome == "full":
        raise QueueFull(f"task {wanted} has {MAX_UNREAD:_} events that it has not received; send it no more now")
    if outcome != "stored":
        raise StoreError(f"task {wanted} has ended; `taskmanager show {wanted}` tells how")
    answer({"task_id": wanted, "name": name, "key": key}, f"sent {name} to task {wanted}", as_json=as_json)
