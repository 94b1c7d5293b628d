"""What holds on every page: it reads the same without scripts, is small, and what rows hold is text in it."""

from collections.abc import Callable
from typing import Final, NamedTuple

import pytest
from playwright.sync_api import Browser

from tests.browser.pages import PAGES, each_page
from tests.browser.serving import Served
from tests.browser.visiting import is_look, visiting

MAX_BYTES: Final = 150_000
LOOK_MS: Final = 1_500
OWNED: Final = "owned"  # what the hostile texts make of the title, if they can
INJECTED: Final = (
    "main script, main img, main b:text-is('bold'), main em:text-is('digest'), main [onerror], main [onfocus],"
    " main [autofocus], main a[href^='java' i]"
)


class Seen(NamedTuple):
    """What a browser has seen of a page."""

    title: str
    headings: list[str]
    text: str
    injected_count: int
    bytes_sent: int  # with nothing in the cache, styles and scripts included
    looks: list[int]  # the statuses of the answers by which it has kept itself up to date


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
    """Visit a page, and stay for two looks at what is new."""
    sizes: list[int] = []
    looks: list[int] = []
    with visiting(browser, served.url) as visitor:
        page = visitor.page
        page.clock.install()
        page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
        visitor.go(PAGES[name](served)).wait_for_load_state("networkidle")
        bytes_sent = sum(sizes)
        headings, text = page.locator("h1").all_inner_texts(), page.locator("main").inner_text()
        for _ in range(2 * page.locator("main[data-live]").count()):
            with page.expect_response(is_look) as answer:
                page.clock.run_for(LOOK_MS)
            answer.value.finished()
            looks.append(answer.value.status)
        return Seen(page.title(), headings, text, page.locator(INJECTED).count(), bytes_sent, looks)


@each_page
def test_page_can_be_read_without_scripts(
    browser: Browser, of_file: Served, seen: Callable[[str], Seen], name: str
) -> None:
    """The same text is there."""
    with visiting(browser, of_file.url, has_script=False) as visitor:
        found = visitor.go(PAGES[name](of_file)).locator("main").inner_text()
    assert without_digits(found) == without_digits(seen(name).text)


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
    assert seen(name).looks in ([200, 304], [])


def without_digits(text: str) -> str:
    """A text without its figures: times go on between two looks."""
    return " ".join("".join(" " if letter.isdigit() else letter for letter in text).split())
