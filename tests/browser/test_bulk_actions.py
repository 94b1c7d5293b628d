"""What people do to all tasks of a filter: they see how many first, and can stop in the middle."""

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import shop
from tests.browser.conftest import Visit
from tests.browser.serving import Served
from tests.browser.visiting import Visitor

CANCELLED = (
    "SELECT count(*) FROM taskmanager_tasks"
    " WHERE queue_name = 'newsletter' AND (status = 'CANCELLED' OR cancel_requested_at IS NOT NULL)"
)
"""Who holds a task takes notice of the request; the owner of some is dead, and whoever recovers them does."""
COUNT = 1_200  # more than two requests act on


def with_many_tasks(database: Path) -> None:
    """Put waiting tasks into a file, as another program does in its own transaction."""
    call = shop.send_mail.with_options(queue_name="newsletter")
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        for number in range(COUNT):
            statement, values = shop.manager.insert_statement(call, f"many-{number}@example.org")
            connection.execute(statement, values)


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


def test_long_action_goes_on_by_itself_to_its_end(visit: Visit, of_own_file: Served) -> None:
    """Page by page, each in a request of its own, and the bar says how far."""
    with_many_tasks(of_own_file.server.database)
    with visit(of_own_file.url) as visitor:
        page = visitor.go("bulk/cancel?queue=newsletter")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(f"{COUNT + 12:,} tasks cancelled")
    assert of_own_file.one(CANCELLED) == COUNT + 12


def test_long_action_is_stopped_between_two_pages(visit: Visit, of_own_file: Served) -> None:
    """What is done stays done, and nothing else is."""
    with_many_tasks(of_own_file.server.database)
    with visit(of_own_file.url, has_script=False) as visitor:
        page = visitor.go("bulk/cancel?queue=newsletter")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("button", name="Go on")).to_be_visible()
        done = of_own_file.one(CANCELLED)
        assert 0 < done < COUNT
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("progressbar")).to_be_visible()
        page.get_by_role("link", name="Stop").click()
        expect(page.get_by_role("heading", name="Tasks")).to_be_visible()
    assert done < of_own_file.one(CANCELLED) < COUNT


def test_tasks_of_a_filter_are_taken_away_as_a_file(visit: Visit, of_file: Served) -> None:
    """As JSON with what they are, and as CSV in which no text becomes a formula."""
    with visit(of_file.url) as visitor:
        as_json = downloaded(visitor, "JSON")
        as_csv = downloaded(visitor, "CSV")
    found = json.loads(as_json)
    assert {each["task_name"] for each in found} == {shop.HOSTILE_TASK}
    assert len(as_csv.splitlines()) > len(found)
    assert not [line for line in as_csv.splitlines() if line.startswith("=") or ",=" in line or ',"=' in line]


def downloaded(visitor: Visitor, kind: str) -> str:
    """The text of the file that a link gives."""
    page = visitor.go("tasks?status=FAILED&tag=hostile:formula")
    with page.expect_download() as waiting:
        page.get_by_role("link", name=kind, exact=True).click()
    return Path(waiting.value.path()).read_text(encoding="utf-8-sig")
