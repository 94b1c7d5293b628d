"""The pages of workflows."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager, Workflow
from taskmanager.web.workflow import MAX_ROWS, together
from tests.web.visitor import manager_on, visit

pytestmark = pytest.mark.anyio


class World:
    """A manager with some functions for workflows."""

    def __init__(self, folder: Path) -> None:
        self.manager: TaskManager = manager_on(folder)
        self.gate = asyncio.Event()
        self.is_broken = True

        @self.manager.task(name="app:fetch", persist=True)
        async def fetch(city: str) -> str:
            if city == "Atlantis" and self.is_broken:
                raise LookupError("<b>Atlantis</b> is on no map")
            if city == "slow":
                await self.gate.wait()
            return city

        @self.manager.task(name="app:render", persist=True)
        async def render(cities: list[str]) -> str:
            return ", ".join(cities)

        self.fetch, self.render = fetch, render

    def workflow(self, *cities: str, **options: Any) -> Workflow[str]:
        """Fetch each city, and then render all of them."""
        workflow = Workflow[str]("weather", **options)
        found = [workflow.add(self.fetch, city).named(f"fetch-{city}") for city in cities]
        return workflow.output(workflow.add(self.render, [each.value for each in found]).named("report"))


def main_of(html: str) -> str:
    """Return the content of a page."""
    return html.partition("<main")[2].partition("</main>")[0]


async def test_graph_shows_each_node_with_its_status_and_task(tmp_path: Path) -> None:
    """Each node is a box that leads to its task, and stands in the table too; a part of the id leads to the page."""
    world = World(tmp_path)
    async with world.manager, visit(world.manager) as visitor:
        handle = await world.manager.start_workflow(world.workflow("Rome", "Oslo"), workflow_id="trip-7")
        await handle
        html = await visitor.text("workflows/trip-7")
        assert html.count('class="box good') == 3
        assert re.search(r'<path class="edge done" d="M[^"]+M[^"]+"', html)
        for each in await handle.nodes():
            assert html.count(f'href="../tasks/{each.task_id}"') == 2
        assert "Rome, Oslo" in html  # the result
        answer = await visitor.get("workflows/trip")
        assert (answer.status_code, answer.headers["location"]) == (307, "../workflows/trip-7")
        assert (await visitor.get("workflows/none")).status_code == 404
        listed = main_of(await visitor.text("workflows"))
        assert 'href="./workflows/trip-7"' in listed
        assert "3 of 3" in listed


async def test_failed_node_is_shown_with_its_error_and_retried(tmp_path: Path) -> None:
    """The page of a failed workflow names what has failed, and its button runs that again."""
    world = World(tmp_path)
    async with world.manager, visit(world.manager) as visitor:
        handle = await world.manager.start_workflow(world.workflow("Rome", "Atlantis"), workflow_id="trip")
        await handle.result()
        html = await visitor.text("workflows/trip")
        assert "LookupError: &lt;b&gt;Atlantis&lt;/b&gt; is on no map" in html
        assert "<b>Atlantis" not in html
        assert "nothing; a retry runs again what has failed" in html
        async with visit(world.manager, read_only=True) as reader:
            assert "taskmanager workflow retry trip" in await reader.text("workflows/trip")
        world.is_broken = False
        answer = await visitor.post("workflows/trip/retry", {})
        assert (answer.status_code, answer.headers["location"]) == (303, "../../workflows/trip")
        assert await handle == "Rome, Atlantis"


async def test_workflow_is_paused_resumed_and_cancelled(tmp_path: Path) -> None:
    """The buttons do what the command line does, and only those are there that do something."""
    world = World(tmp_path)
    async with world.manager, visit(world.manager) as visitor:
        handle = await world.manager.start_workflow(world.workflow("slow"), workflow_id="trip")
        assert 'action="../workflows/trip/pause"' in await visitor.text("workflows/trip")
        await visitor.post("workflows/trip/pause", {})
        assert await handle.status() == "PAUSED"
        html = await visitor.text("workflows/trip")
        assert ('action="../workflows/trip/resume"' in html, 'action="../workflows/trip/pause"' in html) == (
            True,
            False,
        )
        await visitor.post("workflows/trip/resume", {})
        assert await handle.status() == "RUNNING"
        await visitor.post("workflows/trip/cancel", {})
        world.gate.set()
        assert not (await handle.result()).is_ok()
        assert await handle.status() == "CANCELLED"
        assert "<form" not in main_of(await visitor.text("workflows/trip"))
        assert (await visitor.post("workflows/none/pause", {})).status_code == 400


@pytest.mark.parametrize(
    "workflow_id", ["a/b c", "50%", "<b>", "é?#&", "pause", "x/pause", "a/", "/a", "a//b", "a/..", "~"]
)
async def test_workflow_is_found_whatever_its_id_is(tmp_path: Path, workflow_id: str) -> None:
    """An id is chosen by the application, and is one segment of the address."""
    world = World(tmp_path)
    async with world.manager, visit(world.manager) as visitor:
        handle = await world.manager.start_workflow(world.workflow("slow"), workflow_id=workflow_id)
        found = re.search(r'href="\./(workflows/[^"?]+)"', main_of(await visitor.text("workflows")))
        assert found is not None
        html = await visitor.text(found[1])
        action = re.search(r'action="\.\./(workflows/[^"]+/pause)"', html)
        assert action is not None
        assert (await visitor.post(action[1], {})).headers["location"].startswith("../../workflows/")
        assert await handle.status() == "PAUSED"
        world.gate.set()
        await handle.resume()
        await handle


async def test_child_workflow_is_a_box_that_leads_to_its_page(tmp_path: Path) -> None:
    """A workflow in a workflow has a page of its own, which leads back."""
    world = World(tmp_path)
    async with world.manager, visit(world.manager) as visitor:
        workflow = Workflow[str]("delivery")
        child = workflow.add_workflow(world.workflow("Oslo"), node_id="forecast")
        workflow.output(workflow.add(world.render, ["x"]).named("sign").after(child))
        await (await world.manager.start_workflow(workflow, workflow_id="delivery"))
        html = await visitor.text("workflows/delivery")
        assert "2 of 2 nodes" in html
        found = re.search(r'href="\.\./(workflows/[0-9a-f-]{36})"', html)
        assert found is not None
        assert 'href="../workflows/delivery"' in await visitor.text(found[1])


async def test_list_is_filtered_and_paged(tmp_path: Path) -> None:
    """The filter is the address, and an older page begins where the newer one has ended."""
    world = World(tmp_path)
    async with world.manager, visit(world.manager) as visitor:
        for number in range(53):
            await (await world.manager.start_workflow(world.workflow("Rome"), workflow_id=f"trip-{number:02}"))
        first = main_of(await visitor.text("workflows?name=weather&status=COMPLETED"))
        older = re.search(r'href="\./(workflows\?[^"]+before[^"]+)"', first)
        assert older is not None
        second = main_of(await visitor.text(older[1].replace("&amp;", "&")))
        seen = re.findall(r'id="workflow-(trip-\d+)"', first + second)
        assert sorted(seen) == [f"trip-{number:02}" for number in range(53)]
        assert "No workflow fits" in await visitor.text("workflows?status=FAILED")


async def test_large_fan_out_is_one_box_and_a_bounded_table(tmp_path: Path) -> None:
    """Of thousands of nodes the page has a line, and those first that have failed."""
    world = World(tmp_path)
    async with world.manager, visit(world.manager) as visitor:
        workflow = Workflow[str]("wide")
        for number in range(MAX_ROWS + 50):
            workflow.add(world.fetch, "Rome").named(f"node-{number}")
        workflow.add(world.fetch, "Atlantis").named("last")
        handle = await world.manager.start_workflow(workflow, workflow_id="wide")
        await handle.result()
        html = await visitor.text("workflows/wide")
        assert f"fetch ×{MAX_ROWS + 51}" in html
        assert html.count('<tr id="node-') == MAX_ROWS
        assert f'<tr id="node-{MAX_ROWS + 50}"' in html  # the one that has failed
        rest = await visitor.text(f"workflows/wide?from={MAX_ROWS}")
        assert re.findall(r'<tr id="node-(\d+)"', rest) == [str(each) for each in range(MAX_ROWS, MAX_ROWS + 51)]


async def test_hidden_result_of_a_workflow_is_hidden(tmp_path: Path) -> None:
    """What a workflow has come to is a result as that of a task is."""
    world = World(tmp_path)
    async with world.manager, visit(world.manager, hide_arguments=True) as visitor:
        await (await world.manager.start_workflow(world.workflow("secret"), workflow_id="trip"))
        assert '>"secret' not in await visitor.text("workflows/trip")
        assert "Hidden on this dashboard" in await visitor.text("workflows/trip")


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ({"COMPLETED": 3}, "COMPLETED"),
        ({"COMPLETED": 3, "SKIPPED": 1}, "SKIPPED"),
        ({"PENDING": 3, "SKIPPED": 1}, "PENDING"),
        ({"COMPLETED": 3, "PENDING": 1}, "PENDING"),
        ({"RUNNING": 1, "ENQUEUED": 5}, "RUNNING"),
        ({"RUNNING": 1, "FAILED": 1, "COMPLETED": 9}, "FAILED"),
        ({}, "PENDING"),
    ],
)
def test_many_nodes_have_the_status_that_matters_first(counts: dict[str, int], status: str) -> None:
    """A failure among thousands is seen, and a group is complete only when each of its nodes is."""
    assert together(counts) == status
