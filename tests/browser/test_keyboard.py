"""Everything can be reached by keys, and single letters do something only where they are wanted."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served


@pytest.fixture
def queues(visit: Visit, of_file: Served) -> Iterator[Page]:
    with visit(of_file.url) as visitor:
        yield visitor.go("queues")


def test_question_mark_lists_the_keys(queues: Page) -> None:
    """And Escape closes the list."""
    queues.keyboard.press("?")
    expect(queues.get_by_role("dialog", name="Keyboard")).to_be_visible()
    queues.keyboard.press("Escape")
    expect(queues.get_by_role("dialog", name="Keyboard")).to_be_hidden()


def test_first_tab_leads_past_the_links_of_the_pages(queues: Page) -> None:
    """Somebody who uses keys need not go through them on each page."""
    queues.keyboard.press("Tab")
    expect(queues.get_by_role("link", name="Skip to the content")).to_be_focused()
    queues.keyboard.press("Enter")
    expect(queues.locator("main")).to_be_focused()


def test_focus_can_be_seen(queues: Page) -> None:
    """Each thing that the Tab key comes to has a frame."""
    for _ in range(12):
        queues.keyboard.press("Tab")
        outline = queues.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", queues.evaluate("document.activeElement.outerHTML")
