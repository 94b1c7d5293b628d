"""One instance as a rich table, and the same kept up to date on the terminal."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from taskmanager.model.status import ManagerStatus

REFRESH_S: Final = 0.5


def instance_view(status: ManagerStatus) -> RenderableType:
    """The state of one instance: its lanes, its queues, its store."""
    lanes = Table("lane", "running", "limit", title="Lanes", title_justify="left")
    for name, lane in status.lanes.items():
        lanes.add_row(name, str(lane.running), str(lane.limit))
    queues = Table("queue", "waiting", "running", "limit", "", title="Queues", title_justify="left")
    for name, queue in sorted(status.queues.items()):
        limit = "-" if queue.limit is None else str(queue.limit)
        queues.add_row(name, str(queue.waiting), str(queue.running), limit, "paused" if queue.is_paused else "")
    return Group(_headline(status), lanes, queues) if status.instance_id else _headline(status)


def _headline(status: ManagerStatus) -> Text:
    if status.instance_id is None:
        return Text(f"not running, {status.held_count} tasks held for the start")
    text = Text(f"{status.running_count} running, {status.waiting_count} waiting, {status.unsaved_count} unsaved")
    if status.abandoned_count:
        text.append(f", {status.abandoned_count} stuck", style="yellow")
    if status.storage_degraded_since is not None:
        text.append(f", storage degraded since {status.storage_degraded_since:%H:%M:%S} UTC", style="bold red")
    return text


@asynccontextmanager
async def live_view(status: Callable[[], ManagerStatus]) -> AsyncIterator[None]:
    """Show the instance while the block runs."""
    with Live(instance_view(status()), auto_refresh=False) as live:
        showing = asyncio.get_running_loop().create_task(_keep_showing(live, status), name="taskmanager-live")
        try:
            yield
        finally:
            showing.cancel()
            await asyncio.wait([showing])
            live.update(instance_view(status()), refresh=True)


async def _keep_showing(live: Live, status: Callable[[], ManagerStatus]) -> None:
    while True:
        live.update(instance_view(status()), refresh=True)
        await asyncio.sleep(REFRESH_S)
