"""What people do to all tasks of a filter: they see how many first, and can stop in the middle."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served

CANCELLED = (
    "SELECT count(*) FROM taskmanager_tasks"
    " WHERE queue_name = 'newsletter' AND (status = 'CANCELLED' OR cancel_requested_at IS NOT NULL)"
)
"""Who holds a task takes notice of the request; the owner of some is dead, and whoever recovers them does."""


@pytest.mark.parametrize("has_script", [True, False])
def test_all_tasks_of_a_filter_are_cancelled(visit: Visit, of_own_file: Served, has_script: bool) -> None:
    """The count stands in the question and in the answer."""
    with visit(of_own_file.url, has_script=has_script) as visitor:
        page = visitor.go("tasks?queue=newsletter&status=PENDING&status=CLAIMED")
        page.get_by_role("link", name="Cancel all").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Cancel 12")
        assert of_own_file.one(CANCELLED) == 0
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("12 tasks")
        page.get_by_role("link", name="Back to the list").click()
        expect(page.get_by_role("heading", name="Tasks")).to_be_visible()
    assert of_own_file.one(CANCELLED) == 12


def test_failures_of_one_kind_are_retried(visit: Visit, of_shop: Served) -> None:
    """From the page that groups them, and those alone."""
    with visit(of_shop.url) as visitor:
        page = visitor.go("failures")
        kind = page.locator("tr", has_text="PAYMENT_REFUSED")
        count = int(kind.locator(".count").inner_text())
        kind.get_by_role("link", name="Retry").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(f"Retry {count}")
        page.get_by_role("button", name="Retry").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(f"{count} tasks retried")
        again = "SELECT count(*) FROM taskmanager_tasks WHERE start_count > 3 AND status = 'FAILED' AND error_code = ?"
        visitor.go("failures")
        expect(kind.locator(".when.last")).to_contain_text("s ago")
    assert of_shop.one(again, "PAYMENT_REFUSED") == count


def test_tasks_that_are_sent_after_the_question_are_not_meant(visit: Visit, of_shop: Served) -> None:
    """Nobody has seen them in the count."""
    with visit(of_shop.url) as visitor:
        page = visitor.go("bulk/cancel?queue=imports")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Cancel 3")
        later = of_shop.tell("load", {"args": ["sent-later.csv"]})
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("3 tasks")
        visitor.go(f"tasks/{later}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Running")
