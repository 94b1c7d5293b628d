"""What holds on every page: a browser has no complaint, nor have the checks of accessibility, at any size and theme.

With $TASKMANAGER_PICTURES=FOLDER each page is also left there as a picture, to be looked at.
"""

import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.pages import PAGES
from tests.browser.serving import Served
from tests.browser.visiting import Theme, is_look

AXE: Final = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
HARMFUL: Final = ("serious", "critical")
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
NARROW, WIDE = 320, 2_560
MAX_BYTES: Final = 150_000
OWNED: Final = "owned"  # what the hostile texts make of the title, if they can
INJECTED: Final = (
    "main script, main img, main b, main em, main [onerror], main [onfocus], main [autofocus], main a[href^='java' i]"
)

each_page = pytest.mark.parametrize("name", PAGES)
each_theme = pytest.mark.parametrize("theme", THEMES)


def findings(page: Page) -> Iterator[str]:
    """What axe finds that keeps people from using a page."""
    page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate("axe.run()")
    for rule in found["violations"]:
        if rule["impact"] in HARMFUL:
            for node in rule["nodes"]:
                yield f"{rule['impact']} {rule['id']}: {node['html']}: {node['failureSummary']}"


def overflow_px(page: Page) -> int:
    """How far a page can be moved to the side."""
    return int(page.evaluate("scrollTo(9999, 0), scrollX"))


def take_picture(page: Page, name: str) -> None:
    """Leave it where pictures are wanted, if they are."""
    folder = os.environ.get("TASKMANAGER_PICTURES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@each_theme
@each_page
def test_page_can_be_used_by_everybody(visit: Visit, of_file: Served, name: str, theme: Theme) -> None:
    """Nothing serious is found by axe-core: names, roles, contrast, structure."""
    with visit(of_file.url, theme=theme) as visitor:
        page = visitor.go(PAGES[name](of_file))
        take_picture(page, f"{name}-{theme}")
        found = list(findings(page))
    assert not found, "\n".join(found)


@each_page
def test_page_needs_no_scrolling_to_the_side_when_narrow(visit: Visit, of_file: Served, name: str) -> None:
    """At 320 pixels, which is a page of 1280 at four times its size, only tables and graphs move in their boxes."""
    with visit(of_file.url, width=NARROW) as visitor:
        page = visitor.go(PAGES[name](of_file))
        take_picture(page, f"{name}-{NARROW}")
        assert overflow_px(page) == 0


@each_page
def test_page_fits_a_large_screen(visit: Visit, of_file: Served, name: str) -> None:
    """It goes on working, and lines do not become too long to read."""
    with visit(of_file.url, width=WIDE, height=1_440) as visitor:
        page = visitor.go(PAGES[name](of_file))
        take_picture(page, f"{name}-{WIDE}")
        assert overflow_px(page) == 0


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
    """By its title, which the tab shows, and by one heading."""
    with visit(of_file.url) as visitor:
        page = visitor.go(PAGES[name](of_file))
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_have_count(1)
        assert page.title() == f"{heading.inner_text()} · tasks.db"


@each_page
def test_page_is_small(visit: Visit, of_file: Served, name: str) -> None:
    """Somebody with a phone, and nothing in the cache, waits for at most 150 kB, styles and scripts included."""
    sizes: list[int] = []
    with visit(of_file.url) as visitor:
        visitor.page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
        visitor.go(PAGES[name](of_file)).wait_for_load_state("networkidle")
    assert sum(sizes) <= MAX_BYTES, sizes


@each_page
def test_page_without_news_is_answered_in_a_word(visit: Visit, of_file: Served, name: str) -> None:
    """304 and no page, as long as nothing changes but the time that has passed."""
    with visit(of_file.url) as visitor:
        page = visitor.go(PAGES[name](of_file))
        page.wait_for_event("response", lambda response: is_look(response) and response.status == 304)


def without_digits(text: str) -> str:
    """A text without its figures: times go on between two looks."""
    return " ".join("".join(" " if letter.isdigit() else letter for letter in text).split())
