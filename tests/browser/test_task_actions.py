"""What people do on the page of one task, and what they see there while it goes on."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served
from tests.browser.visiting import Visitor, is_look

FAILED_MAIL = "task_name = 'shop.mail:send' AND status = 'FAILED' AND json_extract(tags, '$.customer') = 'bob'"
REPORT = "task_name = 'shop.reports:build' AND status = 'RUNNING'"
STATUS = "SELECT status FROM taskmanager_tasks WHERE id = ?"


@pytest.fixture
def visitor(visit: Visit, of_shop: Served) -> Iterator[Visitor]:
    with visit(of_shop.url) as found:
        yield found


def answer(page: Page, said: str) -> None:
    """Answer the question that is asked."""
    page.get_by_role("dialog").get_by_role("button", name=said).click()
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_task_is_retried_and_its_attempts_are_added(visitor: Visitor, of_shop: Served) -> None:
    """After a question; those of before stay."""
    failed = of_shop.task_id(FAILED_MAIL)
    starts = of_shop.one("SELECT start_count FROM taskmanager_tasks WHERE id = ?", failed)
    page = visitor.go(f"tasks/{failed}")
    page.get_by_role("button", name="Retry").click()
    answer(page, "No")
    assert of_shop.one(STATUS, failed) == "FAILED"
    page.get_by_role("button", name="Retry").click()
    answer(page, "Yes")
    expect(page.get_by_role("status")).to_contain_text(failed)
    expect(page.locator("tr[id^='attempt-']")).to_have_count(starts + 2)


@pytest.mark.parametrize("where", [REPORT, "task_name = 'shop.reports:build' AND status = 'PENDING'"])
def test_task_that_runs_or_waits_is_cancelled(visitor: Visitor, of_shop: Served, where: str) -> None:
    """And the page shows by itself that it has ended."""
    wanted = of_shop.task_id(where)
    page = visitor.go(f"tasks/{wanted}")
    page.get_by_role("button", name="Cancel").click()
    answer(page, "Yes")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert of_shop.one(STATUS, wanted) == "CANCELLED"


def test_task_is_enqueued_again_with_other_arguments(visitor: Visitor, of_shop: Served) -> None:
    """What is wrong with them is said beside what was typed; then it is a new task, with the tags of the old one."""
    refused = of_shop.task_id("task_name = 'shop.orders:charge' AND json_extract(tags, '$.order') = 'refused'")
    page = visitor.go(f"tasks/{refused}")
    page.get_by_role("link", name="Enqueue with other arguments").click()
    expect(page.get_by_label("Positional arguments")).to_have_value("[4711, 99.5]")
    page.get_by_label("Named arguments").fill('{"is_refused": maybe}')
    visitor.complaints.forgive("was answered with 4")
    page.get_by_role("button", name="Enqueue").click()
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page.get_by_label("Named arguments")).to_have_value('{"is_refused": maybe}')
    page.get_by_label("Named arguments").fill('{"is_refused": false}')
    page.get_by_role("button", name="Enqueue").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Completed")
    assert refused not in page.url
    expect(page.get_by_text("receipt-4711")).to_be_visible()


def test_progress_of_a_running_task_moves(visitor: Visitor, of_shop: Served) -> None:
    """In its page and on the overview, without being loaded again."""
    running = of_shop.task_id(REPORT)
    page = visitor.go(f"tasks/{running}")
    page.evaluate("window.isTheSame = true")
    of_shop.tell("progress", 80)
    expect(page.get_by_text("page 80")).to_be_visible()
    expect(page.locator("main progress")).to_have_js_property("value", 0.8)
    of_shop.tell("gate")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Completed")
    assert page.evaluate("window.isTheSame")
    visitor.go("")
    expect(page.get_by_text("page 80")).to_have_count(0)


def test_traceback_stays_open_while_the_page_goes_on(visitor: Visitor, of_shop: Served) -> None:
    """Whoever reads is not interrupted, and whoever has closed it does not see it again."""
    page = visitor.go(f"tasks/{of_shop.task_id(FAILED_MAIL)}")
    first = page.locator("main details").first
    was_open = first.evaluate("details => details.open")
    first.locator("summary").click()
    page.wait_for_event("response", lambda each: is_look(each) and each.status == 200)
    page.wait_for_event("response", is_look)
    assert first.evaluate("details => details.open") is not was_open


def test_memory_only_task_has_a_page(visitor: Visitor) -> None:
    """Also while it runs, and the page says what it is."""
    page = visitor.go("")
    page.get_by_role("link", name="shop.cache:warm").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("shop.cache:warm")
    expect(page.locator("main")).to_contain_text(re.compile("memory.only", re.IGNORECASE))


def test_large_result_is_cut_and_its_size_is_told(visitor: Visitor, of_shop: Served) -> None:
    """Nobody waits for 8 MB in a page."""
    page = visitor.go(f"tasks/{of_shop.task_id('length(result) > 1000000')}")
    expect(page.locator("section", has=page.get_by_role("heading", name="Result"))).to_contain_text("8.4 MB")
    assert len(page.locator("main").inner_text()) < 100_000


def test_page_of_a_task_that_is_not_there_says_so(visitor: Visitor) -> None:
    """With an answer that programs understand, too."""
    visitor.complaints.forgive("was answered with 404")
    page = visitor.go("tasks/01a22b1b-0000-7000-8000-000000000000")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("main")).to_contain_text("task")
