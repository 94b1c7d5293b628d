"""The pages of one task, of schedules and of one workflow, as a person uses them."""

from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served

FAILED = "task_name = 'shop.orders:charge' AND status = 'FAILED'"


def row(page: Page, name: str) -> Any:
    """The line of a table that is about this."""
    return page.locator("tr", has=page.get_by_role("rowheader", name=name))


def places(page: Page) -> Any:
    """Where each box of the graph stands."""
    found = "all => all.map(each => [each.id, each.getAttribute('x'), each.getAttribute('y')])"
    return page.locator(".graph svg.box").evaluate_all(found)


def test_progress_of_a_task_moves_while_its_page_is_open(visit: Visit, of_shop: Served) -> None:
    """What a task reports is not in its row; the instance tells it."""
    task_id = of_shop.tell("build-report", {"args": ["2026-04", 10]})
    with visit(of_shop.url) as visitor:
        page = visitor.go(f"tasks/{task_id}")
        expect(page.locator("main")).to_contain_text("10 of 100 (10%)")
        page.evaluate("window.isTheSame = true")
        of_shop.tell("progress", 55)
        expect(page.locator("main")).to_contain_text("55 of 100 (55%)")
        of_shop.tell("gate")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Completed")
        assert page.evaluate("window.isTheSame")


def test_graph_changes_in_place(visit: Visit, of_shop: Served) -> None:
    """Each box stays where it is, and takes the sign and the words of its status."""
    with visit(of_shop.url) as visitor, visit(of_shop.url) as other:
        page = visitor.go("workflows/weather-paused")
        before = places(page)
        expect(page.get_by_role("heading", level=1)).to_contain_text("Paused")
        page.evaluate("window.isTheSame = true")
        other.go("workflows/weather-paused").get_by_role("button", name="Resume").click()
        expect(page.get_by_role("heading", level=1)).not_to_contain_text("Paused")
        expect(page.locator(".graph")).not_to_contain_text("pending")
        assert page.evaluate("window.isTheSame")
        assert places(page) == before


def test_box_of_a_graph_is_opened_by_the_keyboard(visit: Visit, of_file: Served) -> None:
    """A graph is made of links, and leads to what has failed."""
    with visit(of_file.url) as visitor:
        page = visitor.go("workflows/weather-failed")
        page.locator(".graph svg.box.bad a").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text("shop.weather:fetch")
        page.get_by_role("link", name="weather-failed").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("weather")


def test_task_is_enqueued_again_with_other_arguments(visit: Visit, of_own_file: Served) -> None:
    """A fault is told, nothing that was typed is lost, and at last there is the new task."""
    with visit(of_own_file.url) as visitor:
        visitor.complaints.forgive("answered with 422")
        page = visitor.go(f"tasks/{of_own_file.task_id(FAILED)}")
        page.get_by_role("link", name="Enqueue with other arguments").click()
        page.get_by_label("Positional arguments").fill("[5, 2.5")
        page.get_by_role("button", name="Enqueue").click()
        expect(page.get_by_role("alert")).to_be_visible()
        expect(page.get_by_label("Positional arguments")).to_have_value("[5, 2.5")
        page.get_by_label("Positional arguments").fill("[5, 2.5]")
        page.get_by_role("button", name="Enqueue").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Pending")
        expect(page.get_by_role("status")).to_contain_text("is enqueued")
        expect(page.locator("main")).to_contain_text("2.5")


def test_schedule_is_run_after_a_question(visit: Visit, of_own_file: Served) -> None:
    """One run more cannot be undone, so the page asks; then it leads to the task of that run."""
    with visit(of_own_file.url) as visitor:
        page = visitor.go("schedules")
        row(page, "sweep").get_by_role("button", name="Run now").click()
        page.get_by_role("button", name="No", exact=True).click()
        row(page, "sweep").get_by_role("button", name="Run now").click()
        page.get_by_role("button", name="Yes", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("shop.stock:sweep")
        assert of_own_file.one("SELECT run_count FROM taskmanager_schedule_state WHERE schedule_name = 'sweep'") == 2


def test_paused_workflow_is_resumed_by_its_button(visit: Visit, of_own_file: Served) -> None:
    """The page says what has become of it."""
    with visit(of_own_file.url) as visitor:
        page = visitor.go("workflows/weather-paused")
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("status")).to_contain_text("goes on")
        expect(page.get_by_role("button", name="Resume")).to_have_count(0)
