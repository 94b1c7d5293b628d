"""What holds on every page: it reads the same without scripts, is small, and what rows hold is text in it."""

from typing import Final

from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.pages import PAGES, each_page
from tests.browser.serving import Served
from tests.browser.visiting import is_look

MAX_BYTES: Final = 150_000
OWNED: Final = "owned"  # what the hostile texts make of the title, if they can
INJECTED: Final = (
    "main script, main img, main b:text-is('bold'), main em:text-is('digest'), main [onerror], main [onfocus],"
    " main [autofocus], main a[href^='java' i]"
)


@each_page
def test_page_can_be_read_without_scripts(visit: Visit, of_file: Served, name: str) -> None:
    """The same text is there."""
    with visit(of_file.url) as visitor:
        wanted = visitor.go(PAGES[name](of_file)).locator("main").inner_text()
    with visit(of_file.url, has_script=False) as visitor:
        found = visitor.go(PAGES[name](of_file)).locator("main").inner_text()
    assert without_digits(found) == without_digits(wanted)


@each_page
def test_page_takes_hostile_texts_for_texts(visit: Visit, of_file: Served, name: str) -> None:
    """What rows hold makes no element, no handler and no link; a policy against scripts is only the second line."""
    with visit(of_file.url) as visitor:
        page = visitor.go(PAGES[name](of_file))
        assert page.title() != OWNED
        assert page.locator(INJECTED).count() == 0


@each_page
def test_page_says_where_one_is(visit: Visit, of_file: Served, name: str) -> None:
    """By one heading, and by its title, which the tab shows."""
    with visit(of_file.url) as visitor:
        page = visitor.go(PAGES[name](of_file))
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        expect(page.get_by_role("heading", level=1)).to_contain_text(page.title().split()[0])


@each_page
def test_page_is_small_and_without_news_costs_a_word(visit: Visit, of_file: Served, name: str) -> None:
    """With nothing in the cache it has 150 kB at most, styles and scripts included. Then it is 304 and no page.

    For as long as nothing changes but the time that has passed.
    """
    sizes: list[int] = []
    with visit(of_file.url) as visitor:
        visitor.page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
        page = visitor.go(PAGES[name](of_file))
        page.wait_for_load_state("networkidle")
        before = len(sizes)
        if page.locator("main[data-live]").count():
            page.wait_for_event("response", lambda response: is_look(response) and response.status == 304)
    assert sum(sizes[:before]) <= MAX_BYTES, sizes


def without_digits(text: str) -> str:
    """A text without its figures: times go on between two looks."""
    return " ".join("".join(" " if letter.isdigit() else letter for letter in text).split())
