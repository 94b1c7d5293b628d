"""What people do on the pages: with a question where it cannot be undone, an answer in words, and a line in the log."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served


def row(page: Page, name: str) -> Any:
    """The line of a table that is about this."""
    return page.locator("tr", has=page.get_by_role("rowheader", name=name, exact=True))


def paused_queues(served: Served) -> int:
    """How many there are in the file."""
    found: int = served.one("SELECT count(*) FROM taskmanager_queues WHERE paused_at IS NOT NULL")
    return found


@pytest.mark.parametrize("has_script", [True, False])
def test_queue_is_paused_and_resumed_by_a_button(visit: Visit, of_own_file: Served, has_script: bool) -> None:
    """Also without scripts: the buttons are forms."""
    before = paused_queues(of_own_file)
    with visit(of_own_file.url, has_script=has_script) as visitor:
        page = visitor.go("queues")
        row(page, "default").get_by_role("button", name="Pause").click()
        expect(row(page, "default")).to_contain_text("Paused")
        expect(page.get_by_role("status")).to_contain_text("default")
        assert paused_queues(of_own_file) == before + 1
        row(page, "default").get_by_role("button", name="Resume").click()
        expect(row(page, "default")).not_to_contain_text("Paused")
    assert paused_queues(of_own_file) == before
    assert re.search(r"127\.0\.0\.1.*default", of_own_file.server.log()), of_own_file.server.log()


def test_action_is_not_repeated_by_reloading_the_page(visit: Visit, of_own_file: Served) -> None:
    """A form leads to a page that can be loaded again, and gone back from."""
    with visit(of_own_file.url) as visitor:
        page = visitor.go("queues")
        row(page, "default").get_by_role("button", name="Pause").click()
        expect(row(page, "default")).to_contain_text("Paused")
        row(page, "default").get_by_role("button", name="Resume").click()
        expect(row(page, "default")).not_to_contain_text("Paused")
        page.reload()
        expect(row(page, "default")).not_to_contain_text("Paused")


def test_reader_sees_no_button_that_acts(visit: Visit, of_own_file: Served) -> None:
    """And all that there is to read."""
    with visit(of_own_file.url, extra_http_headers={"x-may": "read"}) as visitor:
        page = visitor.go("queues")
        expect(row(page, "default")).to_be_visible()
        expect(page.locator("main").get_by_role("button")).to_have_count(0)
        expect(page.locator("main form[method=post]")).to_have_count(0)


def test_stranger_sees_nothing(visit: Visit, of_own_file: Served) -> None:
    """Not even which queues there are."""
    with visit(of_own_file.url, extra_http_headers={"x-may": "nothing"}) as visitor:
        visitor.complaints.forgive("was answered with 403")
        page = visitor.go("queues")
        expect(page.locator("body")).to_contain_text("not allowed")
        expect(page.locator("body")).not_to_contain_text("default")


def test_form_of_another_site_does_nothing(visit: Visit, of_own_file: Served) -> None:
    """A page that somebody else has made cannot press our buttons, also while its reader is let in here."""
    before = paused_queues(of_own_file)
    action = f"{of_own_file.url}/queues/pause"
    foreign = f"""<form method=post action="{action}"><input name=queue value=default><button>Win</button></form>"""
    with visit(of_own_file.url) as visitor:
        page = visitor.go("queues")
        visitor.complaints.forgive("was answered with 403")
        page.route("http://foreign.example/", lambda route: route.fulfill(body=foreign, content_type="text/html"))
        page.goto("http://foreign.example/")
        page.get_by_role("button").click()
        expect(page.locator("body")).to_contain_text("nothing was done")
    assert paused_queues(of_own_file) == before


def test_dead_instance_is_recovered_by_the_button_beside_the_problem(visit: Visit, of_own_file: Served) -> None:
    """What it held waits for the next start, or has failed; the problem is gone."""
    held = "SELECT count(*) FROM taskmanager_tasks WHERE status IN ('CLAIMED', 'RUNNING')"
    assert of_own_file.one(held) > 0
    with visit(of_own_file.url) as visitor:
        page = visitor.go("")
        page.get_by_role("button", name="Recover now").click()
        expect(page.get_by_role("status")).to_contain_text("recovered")
        expect(page.get_by_role("button", name="Recover now")).to_have_count(0)
    assert of_own_file.one(held) == 0


def test_problem_of_a_paused_queue_is_mended_where_it_is_told(visit: Visit, of_own_file: Served) -> None:
    """As `status` says the command, the page has the button."""
    with visit(of_own_file.url) as visitor:
        page = visitor.go("")
        problem = page.get_by_role("listitem").filter(has_text="newsletter is paused")
        problem.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("status")).to_contain_text("newsletter")
    assert paused_queues(of_own_file) == 0


def test_schedule_is_paused_resumed_and_run(visit: Visit, of_shop: Served) -> None:
    """A run asks first, for it cannot be taken back."""
    runs = "SELECT count(*) FROM taskmanager_tasks WHERE task_name = 'shop.reports:nightly'"
    before = of_shop.one(runs)
    with visit(of_shop.url) as visitor:
        page = visitor.go("schedules")
        nightly, weekly = page.locator("tr", has_text="nightly report"), page.locator("tr", has_text="<em>digest</em>")
        weekly.get_by_role("button", name="Resume").click()
        expect(weekly).not_to_contain_text("Paused")
        weekly.get_by_role("button", name="Pause").click()
        expect(weekly).to_contain_text("Paused")
        nightly.get_by_role("button", name="Run now").click()
        page.get_by_role("dialog").get_by_role("button", name="No").click()
        assert of_shop.one(runs) == before
        nightly.get_by_role("button", name="Run now").click()
        page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        expect(page.get_by_role("status")).to_contain_text("nightly report")
    assert of_shop.one(runs) == before + 1
