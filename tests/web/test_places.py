"""The dashboard of a file and of a server: the same pages, actions and files, whichever it is."""

import asyncio
import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from taskmanager import TaskManager, Workflow
from taskmanager.store.place import place_at
from taskmanager.store.sql.queries import counts
from taskmanager.web.local import everybody_here, file_dashboard
from tests.crash.harness import wait_for
from tests.web.pages import text_of, walk
from tests.web.test_bulk import follow, form_in
from tests.web.visitor import Visitor, visit

if TYPE_CHECKING:
    from tests.servers import Cluster

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["file", "server"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of a database that is not there yet."""
    if request.param == "file":
        return str(tmp_path / "tasks.db")
    url: str = request.getfixturevalue("schema_url")
    return url


class World:
    """A manager with tasks of every kind."""

    def __init__(self, home: str) -> None:
        self.manager = TaskManager(home)
        self.gate = asyncio.Event()
        manager = self.manager

        @manager.task(persist=True, name="app:good")
        async def good(number: int) -> int:
            return number

        @manager.task(persist=True, name="app:bad", queue_name="mail")
        async def bad(to: str) -> None:
            raise ValueError(f"no such <mailbox>: {to}")

        @manager.task(persist=True, name="app:waits", requeue_on_interrupt=True)
        async def waits() -> None:
            await self.gate.wait()

        @manager.task(name="app:memory")
        async def memory() -> None:
            await self.gate.wait()

        manager.schedule(every=3_600, args=(7,), name="hourly")(good)
        self.good, self.bad, self.waits, self.memory = good, bad, waits, memory

    async def fill(self, failed_count: int = 3) -> None:
        """Enqueue, and wait for what can end."""
        for each in [self.bad.with_options(tags={"to": "x%_'"}).enqueue(f"n{each}") for each in range(failed_count)]:
            await each.result()
        self.good.with_options(delay=3_600).enqueue(2)
        workflow = Workflow[int]("chain")
        workflow.output(workflow.add(self.good, workflow.add(self.good, 1).value))
        await (await self.manager.start_workflow(workflow, workflow_id="chain-1"))
        self.memory.enqueue()
        await self.waits.enqueue().saved()


def place_visitor(home: str) -> Visitor:
    """Return a visitor of the database itself, whose application may be down."""
    return Visitor(file_dashboard(place_at(home), everybody_here, hosts=None))


async def test_places_show_every_page_of_every_kind_of_data(home: str) -> None:
    """No page asks what one of the two databases does not understand."""
    world = World(home)
    async with world.manager, visit(world.manager) as visitor:
        await world.fill()
        seen = {address: answer.status_code async for address, answer in walk(visitor)}
        assert {address: code for address, code in seen.items() if code != 200} == {}
        assert len(seen) > 40
        for words in ("text=mailbox", "tag=to%3Dx%25_%27", "error=UNHANDLED_EXCEPTION&since=1h", "task=app:*"):
            assert "app:bad" in text_of(await visitor.text(f"tasks?{words}")), words
        world.gate.set()


async def test_places_export_and_retry_what_a_filter_finds(home: str) -> None:
    """The application is down: what is retried waits for it."""
    world = World(home)
    async with world.manager:
        await world.fill()
        world.gate.set()
    async with place_visitor(home) as visitor:
        table = (await visitor.get("tasks/export.csv?status=FAILED")).content.decode("utf-8-sig")
        assert len(list(csv.DictReader(io.StringIO(table, newline="")))) == 3
        assert len(json.loads((await visitor.get("tasks/export.json?task=app:bad")).content)) == 3
        page = await visitor.get("bulk/retry?status=FAILED&task=app:bad")
        form = form_in(page.text)
        assert form is not None, page.text
        await follow(visitor, page.text)
        await visitor.post("queues/pause", {"queue": "mail"})
        assert "mail" in await visitor.text("queues")
    with place_at(home).read() as session:
        found = counts(session)
    assert (found.get("FAILED", 0), found.get("PENDING", 0)) == (0, 4)


async def test_places_leave_a_trace_of_each_write(home: str) -> None:
    """A page is drawn anew after each write, and not before."""
    world = World(home)
    place = place_at(home).for_many_looks()
    async with world.manager:
        wait_for(lambda: place.traces() == place.traces(), lambda: "nothing writes")
        before = place.traces()
        await world.good.enqueue(1).saved()
        assert place.traces() != before


async def test_places_on_a_server_keep_two_sessions_and_make_lost_ones_anew(
    schema_url: str, cluster: "Cluster"
) -> None:
    """To connect for every look is dear, and a restart of the server must not need one of the dashboard."""
    world = World(schema_url)
    async with world.manager:
        await world.good.enqueue(1).saved()
    mine = "FROM pg_stat_activity WHERE application_name LIKE 'taskmanager%'"
    async with place_visitor(schema_url) as visitor:
        pages = ("", "tasks", "instances", "queues", "schedules", "failures", "workflows")
        answers = await asyncio.gather(*(visitor.get(page) for page in pages))
        assert {each.status_code for each in answers} == {200}
        assert 1 <= len(cluster.psql(f"SELECT pid {mine}")) <= 2
        cluster.psql(f"SELECT pg_terminate_backend(pid) {mine}")
        assert "app:good" in await visitor.text("tasks?task=app:good")
