"""An open page keeps itself up to date: in place, only while somebody looks, and at no cost while nothing changes."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served
from tests.browser.visiting import Visitor, is_look

MINUTE_MS = 60_000
HIDDEN = """
Object.defineProperty(document, 'hidden', {get: () => !!window.isHidden});
window.hide = (isHidden) => { window.isHidden = isHidden; document.dispatchEvent(new Event('visibilitychange')); };
"""


class Looks:
    """The requests by which a page keeps itself up to date."""

    def __init__(self, page: Page) -> None:
        self.statuses: list[int] = []
        page.on("response", self._on_response)

    def _on_response(self, response: Any) -> None:
        if is_look(response):
            self.statuses.append(response.status)


@pytest.fixture
def visitor(visit: Visit, of_shop: Served) -> Iterator[Visitor]:
    with visit(of_shop.url) as found:
        yield found


def row(page: Page, queue: str) -> Any:
    """The line of a queue."""
    return page.locator("tr", has=page.get_by_role("rowheader", name=queue))


def waiting_count(page: Page, queue: str) -> Any:
    """The cell that says how many tasks wait in it."""
    return row(page, queue).get_by_role("cell").nth(1)


def unfinished_count(shop: Served, queue: str) -> int:
    """How many tasks of a queue wait or run."""
    found: int = shop.one(
        "SELECT count(*) FROM taskmanager_tasks WHERE queue_name = ? AND status IN ('PENDING', 'CLAIMED', 'RUNNING')",
        queue,
    )
    return found


def test_page_shows_what_happens_without_being_loaded_again(visitor: Visitor, of_shop: Served) -> None:
    """The same document goes on: what a person has marked, opened or scrolled to stays."""
    page = visitor.go("queues")
    page.evaluate("window.isTheSame = true")
    for number in range(77):
        of_shop.tell("load", {"args": [f"new-{number}.csv"]})
    expect(waiting_count(page, "imports")).to_have_text(str(unfinished_count(of_shop, "imports") - 1))
    assert page.evaluate("window.isTheSame")


def test_switch_ends_the_looks_and_begins_them_again(visitor: Visitor) -> None:
    """Also on the page that is opened next: who has paused wants to read."""
    page = visitor.page
    page.clock.install()
    looks = Looks(page)
    visitor.go("queues")
    page.get_by_role("button", name="Live").click()
    page.clock.run_for(MINUTE_MS)
    visitor.go("queues")
    expect(page.get_by_role("button", name="Paused")).to_be_visible()
    page.clock.run_for(MINUTE_MS)
    assert looks.statuses == []
    with page.expect_response(is_look):
        page.get_by_role("button", name="Paused").click()


def test_hidden_page_asks_nothing_until_it_is_seen_again(visitor: Visitor) -> None:
    """A browser full of forgotten pages is no load."""
    page = visitor.page
    page.add_init_script(HIDDEN)
    page.clock.install()
    looks = Looks(page)
    visitor.go("queues")
    page.evaluate("hide(true)")
    page.clock.run_for(10 * MINUTE_MS)
    assert looks.statuses == []
    with page.expect_response(is_look):
        page.evaluate("hide(false)")


def test_focus_stays_where_it_is_when_the_page_changes(visitor: Visitor, of_shop: Served) -> None:
    """Somebody who is about to press a button by the keyboard presses that button."""
    page = visitor.go("queues")
    button = row(page, "default").get_by_role("button")
    button.focus()
    of_shop.tell("load", {"args": ["a-new-one.csv"]})
    expect(waiting_count(page, "imports")).to_have_text(str(unfinished_count(of_shop, "imports") - 1))
    expect(button).to_be_focused()


def test_page_says_when_the_server_is_away_and_when_it_is_back(visitor: Visitor) -> None:
    """What is shown then is old, and whoever looks must know; nothing has to be done to go on."""
    page = visitor.go("queues")
    visitor.complaints.forgive("net::ERR_CONNECTION_REFUSED")
    page.route("**/queues", lambda route: route.abort("connectionrefused"))
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.unroute("**/queues")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_open_page_lets_the_application_stop(visitor: Visitor, of_shop: Served) -> None:
    """A server waits for the requests under way, and a page that is only open has none that goes on."""
    visitor.complaints.forgive("net::ERR_")
    visitor.go("queues")
    of_shop.tell("gate")
    of_shop.server.stop()
    expect(visitor.page.get_by_role("alert")).to_contain_text("does not answer")


def test_form_that_is_being_filled_in_stays_as_it_is(visitor: Visitor, of_shop: Served) -> None:
    """Also where the focus has left the field: what was typed is not lost while the list goes on."""
    page = visitor.go("tasks")
    page.get_by_label("Function").fill("shop.")
    page.get_by_role("heading", name="Tasks").click()
    count = page.locator(".list-head .count")
    before = count.inner_text()
    of_shop.tell("load", {"args": ["a.csv"]})
    expect(count).not_to_have_text(before)
    expect(page.get_by_label("Function")).to_have_value("shop.")


def test_marked_text_stays_marked(visitor: Visitor, of_shop: Served) -> None:
    """So that it can be copied from a page that lives."""
    page = visitor.go("queues")
    marked = "getSelection().selectAllChildren(document.querySelector('#queue-mail th')), getSelection().toString()"
    assert page.evaluate(marked) == "mail"
    of_shop.tell("load", {"args": ["a.csv"]})
    expect(waiting_count(page, "imports")).to_have_text(str(unfinished_count(of_shop, "imports") - 1))
    assert page.evaluate("getSelection().toString()") == "mail"
