"""What holds on every page: it reads the same without scripts, is small, and what rows hold is text in it."""

from collections.abc import Callable
from typing import Final, NamedTuple

import pytest
from playwright.sync_api import Browser, Request

from tests.browser.pages import PAGES, each_page
from tests.browser.serving import Served
from tests.browser.visiting import visiting

MAX_BYTES: Final = 150_000
LOOK_TWICE: Final = """async () => {
    const look = (headers) => fetch(location.href, {headers: {"X-Live": "1", ...headers}, cache: "no-store"});
    const first = await look({});
    return (await look({"If-None-Match": first.headers.get("ETag")})).status;
}"""
LASTING_TEXT: Final = """(main) => {
    const copy = main.cloneNode(true);
    for (const each of copy.querySelectorAll("time")) each.textContent = "";
    return copy.textContent.replace(/[0-9]+/g, "").replace(/\\s+/g, " ");
}"""
OWNED: Final = "owned"  # what the hostile texts make of the title, if they can
INJECTED: Final = (
    "main script, main img, main b:text-is('bold'), main em:text-is('digest'), main [onerror], main [onfocus],"
    " main [autofocus], main a[href^='java' i]"
)


class Seen(NamedTuple):
    """What a browser has seen of a page."""

    title: str
    headings: list[str]
    text: str  # without what goes on by itself
    injected_count: int
    bytes_sent: int  # with nothing in the cache, styles and scripts included
    second_look: int | None  # the status of the answer to a second look for news; None if it looks for none


@pytest.fixture(scope="module")
def seen(browser: Browser, of_file: Served) -> Callable[[str], Seen]:
    """Visits each page once, for all rules."""
    found: dict[str, Seen] = {}

    def visited(name: str) -> Seen:
        if name not in found:
            found[name] = see(browser, of_file, name)
        return found[name]

    return visited


def see(browser: Browser, served: Served, name: str) -> Seen:
    """Visit a page, and look for news as its script does, but at once."""
    requests: list[Request] = []
    with visiting(browser, served.url) as visitor:
        page = visitor.page
        page.clock.install()  # it stands still, so the script asks nothing
        page.on("requestfinished", lambda request: requests.append(request))
        visitor.go(PAGES[name](served)).wait_for_load_state("networkidle")
        bytes_sent = sum(request.sizes()["responseBodySize"] for request in requests)
        headings, text = page.locator("h1").all_inner_texts(), page.locator("main").evaluate(LASTING_TEXT)
        is_live = page.locator("main[data-live]").count()
        second_look = page.evaluate(LOOK_TWICE) if is_live else None
        return Seen(page.title(), headings, text, page.locator(INJECTED).count(), bytes_sent, second_look)


@each_page
def test_page_can_be_read_without_scripts(
    browser: Browser, of_file: Served, seen: Callable[[str], Seen], name: str
) -> None:
    """The same text is there."""
    with visiting(browser, of_file.url, has_script=False) as visitor:
        found = visitor.go(PAGES[name](of_file)).locator("main").evaluate(LASTING_TEXT)
    assert found == seen(name).text


@each_page
def test_page_takes_hostile_texts_for_texts(seen: Callable[[str], Seen], name: str) -> None:
    """What rows hold makes no element, no handler and no link; a policy against scripts is only the second line."""
    assert seen(name).title != OWNED
    assert seen(name).injected_count == 0


@each_page
def test_page_says_where_one_is(seen: Callable[[str], Seen], name: str) -> None:
    """By one heading, and by its title, which the tab shows."""
    (heading,) = seen(name).headings
    assert seen(name).title.split()[0] in heading


@each_page
def test_page_is_small(seen: Callable[[str], Seen], name: str) -> None:
    """Somebody with a telephone waits for at most 150 kB."""
    assert seen(name).bytes_sent <= MAX_BYTES


@each_page
def test_page_without_news_is_answered_in_a_word(seen: Callable[[str], Seen], name: str) -> None:
    """304 and no page, for as long as nothing changes but the time that has passed."""
    assert seen(name).second_look in (304, None)
