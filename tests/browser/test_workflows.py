"""The graph of a workflow goes on while one looks, and what people do to it is done to what has not ended."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served
from tests.browser.visiting import Visitor

STATUS = "SELECT status FROM taskmanager_workflows WHERE id = ?"


@pytest.fixture
def visitor(visit: Visit, of_shop: Served) -> Iterator[Visitor]:
    with visit(of_shop.url) as found:
        yield found


def press(page: Page, name: str) -> None:
    """Press a button, and say yes to its question."""
    page.get_by_role("button", name=name, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Yes").click()


def heading_says(page: Page, status: str) -> None:
    """Wait until the page says by itself that the workflow has come to that."""
    expect(page.get_by_role("heading", level=1)).to_contain_text(status)


@pytest.mark.parametrize("status", ["Running", "Paused", "Completed", "Failed"])
def test_list_of_workflows_is_filtered_by_status(visit: Visit, of_file: Served, status: str) -> None:
    """By links, which are addresses."""
    with visit(of_file.url) as visitor:
        page = visitor.go("workflows")
        page.get_by_role("navigation", name="Status").get_by_role("link", name=status).click()
        wanted = of_file.one(
            "SELECT count(*) FROM taskmanager_workflows WHERE parent_workflow_id IS NULL AND status = ?", status.upper()
        )
        expect(page.locator("tbody tr").filter(has_text=status)).to_have_count(wanted)
        expect(page.locator("tbody tr")).to_have_count(wanted)


def test_each_node_of_a_graph_leads_to_its_task(visit: Visit, of_file: Served) -> None:
    """A node that has failed, from the picture to the traceback with one click."""
    with visit(of_file.url) as visitor:
        page = visitor.go("workflows/weather-failed")
        page.locator(".graph a", has_text="fetch-Atlantis").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("shop.weather:fetch")
        expect(page.locator("main")).to_contain_text("Atlantis is on no map")
        page.get_by_role("link", name="weather-failed").first.click()
        heading_says(page, "Failed")


def test_graph_goes_on_without_being_loaded_again(visitor: Visitor, of_shop: Served) -> None:
    """What ends turns to ended in its place; what was late is cancelled, so that all of it comes to an end."""
    page = visitor.go("workflows/weather-running")
    page.evaluate("window.isTheSame = true")
    heading_says(page, "Running")
    ended = page.locator("main progress").first
    before = ended.evaluate("bar => bar.value")
    of_shop.tell("gate")
    expect(page.locator("main")).not_to_contain_text("4 running")
    assert ended.evaluate("bar => bar.value") > before
    press(page, "Cancel")
    heading_says(page, "Cancelled")


def test_workflow_is_paused_and_resumed(visitor: Visitor, of_shop: Served) -> None:
    """What runs goes on to its end meanwhile."""
    page = visitor.go("workflows/weather-running")
    page.get_by_role("button", name="Pause").click()
    heading_says(page, "Paused")
    assert of_shop.one(STATUS, "weather-running") == "PAUSED"
    page.get_by_role("button", name="Resume").click()
    heading_says(page, "Running")


def test_failed_nodes_are_retried_from_the_page(visitor: Visitor, of_shop: Served) -> None:
    """What had completed does not run again; Atlantis is on no map the second time either."""
    starts = (
        "SELECT sum(t.start_count) FROM taskmanager_tasks AS t"
        " JOIN taskmanager_workflow_tasks AS n ON n.task_id = t.id WHERE n.workflow_id = 'weather-failed'"
    )
    before = of_shop.one(starts)
    page = visitor.go("workflows/weather-failed")
    press(page, "Retry what has failed")
    expect(page.get_by_role("status")).to_be_visible()
    heading_says(page, "Failed")
    assert of_shop.one(starts) == before + 1


def test_workflow_in_a_workflow_is_one_click_away(visit: Visit, of_file: Served) -> None:
    """It is one node of the graph that it belongs to, and leads there and back."""
    with visit(of_file.url) as visitor:
        page = visitor.go("workflows/delivery-done")
        page.locator(".graph a", has_text="forecast").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("forecast")
        page.get_by_role("link", name="delivery-done").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("delivery")
