"""The list of tasks: a person filters it, is at it while tasks arrive, and acts on one task or on all of the filter."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served
from tests.browser.visiting import is_look
from tests.web.rows import multiply


def ids_in(page: Page) -> list[str | None]:
    """The ids of the rows, from the top."""
    return [row.get_attribute("data-id") for row in page.locator("tr[data-id]").all()]


def count(served: Served, status: str) -> int:
    """How many tasks of the file have that status."""
    found: int = served.one("SELECT count(*) FROM taskmanager_tasks WHERE status = ?", status)
    return found


def make_many_failures(served: Served, many: int) -> int:
    """Let the file have so many failed tasks more, and return how many there are."""
    multiply(served.server.database.parent, many, of=failed(served))
    return count(served, "FAILED")


def failed(served: Served) -> str:
    return served.task_id("task_name = 'shop.orders:charge' AND status = 'FAILED'")


def test_list_does_not_move_under_the_pointer(visit: Visit, of_shop: Served) -> None:
    """What arrives meanwhile is counted, and comes in when the pointer has left."""
    with visit(of_shop.url) as visitor:
        page = visitor.go("tasks")
        before = ids_in(page)
        page.locator("tr[data-id]").nth(2).hover()
        new = [of_shop.tell("resize", {"args": [f"new-{number}.jpg", 320]}) for number in range(2)]
        expect(page.get_by_role("link", name="2 new")).to_be_visible()
        assert ids_in(page) == before
        page.get_by_role("heading", level=1).hover()
        expect(page.get_by_role("link", name="2 new")).to_have_count(0)
        assert ids_in(page)[:2] == new[::-1]


def test_older_page_keeps_its_rows(visit: Visit, of_shop: Served) -> None:
    """Who reads page two reads on, whatever arrives on page one."""
    with visit(of_shop.url) as visitor:
        page = visitor.go("tasks")
        page.locator("main a[rel=next]").click()
        expect(page.get_by_role("link", name="Newest")).to_be_visible()
        before = ids_in(page)
        of_shop.tell("resize", {"args": ["new.jpg", 320]})
        page.wait_for_event("response", lambda response: is_look(response) and response.status in (200, 304))
        assert ids_in(page) == before


@pytest.mark.parametrize("has_script", [True, False])
def test_all_tasks_of_a_filter_are_retried_page_by_page(visit: Visit, of_own_file: Served, has_script: bool) -> None:
    """With scripts the pages follow each other; without them each has a button."""
    total = make_many_failures(of_own_file, 1_700)
    with visit(of_own_file.url, has_script=has_script) as visitor:
        page = visitor.go("tasks?status=FAILED")
        page.get_by_role("link", name="Retry all").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Retry {total:,} failed tasks?")
        page.get_by_role("button", name="Retry").click()
        ended: Any = page.get_by_role("heading", name=f"{total:,} tasks retried")
        next_one = page.get_by_role("button", name="Go on")
        while not has_script:
            expect(next_one.or_(ended)).to_be_visible()
            if ended.is_visible():
                break
            with page.expect_navigation():
                next_one.click()
        expect(ended).to_be_visible()
    assert count(of_own_file, "FAILED") == 0


def test_retry_of_many_tasks_is_stopped_by_a_link(visit: Visit, of_own_file: Served) -> None:
    """What was not done yet is left as it was."""
    total = make_many_failures(of_own_file, 30_000)
    with visit(of_own_file.url) as visitor:
        page = visitor.go("bulk/retry?status=FAILED")
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("link", name="Stop").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")
    assert 0 < count(of_own_file, "FAILED") < total


@pytest.mark.parametrize("kind", ["CSV", "JSON"])
def test_list_is_saved_as_a_file(visit: Visit, of_file: Served, kind: str) -> None:
    """With the filter of the list."""
    with visit(of_file.url) as visitor:
        page = visitor.go("tasks?status=FAILED&task=shop.orders:charge")
        with page.expect_download() as download:
            page.get_by_role("link", name=kind).click()
        assert download.value.suggested_filename.endswith(kind.lower())
        content = download.value.path().read_text("utf-8-sig")
        assert failed(of_file) in content
        assert content.count("shop.orders:charge") == len(ids_in(page))
