"""What every page is for those who look at it: of any theme, on a screen of any size, with any aid.

With $TASKMANAGER_PICTURES=FOLDER each page is also left there as a picture, to be looked at.
"""

import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from playwright.sync_api import Page

from tests.browser.conftest import Visit
from tests.browser.pages import PAGES, each_page
from tests.browser.serving import Served
from tests.browser.visiting import Theme

AXE: Final = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
# Only the violations leave the browser: what passed is thousands of elements, and to tell it takes longer than to look.
FIND_HARM: Final = """async (options) => {
    const {violations} = await axe.run({resultTypes: ["violations"], ...options});
    const harmful = violations.filter(({impact}) => impact === "serious" || impact === "critical");
    return harmful.flatMap(({impact, id, nodes}) => nodes.map(
        ({html, failureSummary}) => `${impact} ${id}: ${html}: ${failureSummary}`));
}"""
# The themes differ in nothing but colours. The other rules have looked at the same elements in the light one.
COLOURS: Final = {"runOnly": ["cat.color"], "rules": {"color-contrast-enhanced": {"enabled": False}}}
RULES: Final[Mapping[Theme, Mapping[str, object]]] = {"light": {}, "dark": COLOURS}
WIDTHS: Final[Mapping[Theme, tuple[int, ...]]] = {"light": (320, 2_560), "dark": (768,)}
WIDTH: Final = 1_280
HEIGHT: Final = 900
SMALL_TARGETS: Final = """() => {
    const targets = document.querySelectorAll("button, .button, input, select, textarea, nav a, .tile, summary, .tag");
    const isSmall = ({width, height}) => width && height && (width < 23.5 || height < 23.5);
    const label = (each) => each.closest("label") ?? each;
    return [...targets].filter((each) => isSmall(label(each).getBoundingClientRect())).map((each) => each.outerHTML);
}"""


def resize(page: Page, width: int) -> None:
    """Give its window another width."""
    page.set_viewport_size({"width": width, "height": HEIGHT})


def findings(page: Page, name: str, theme: Theme) -> Iterator[str]:
    """Say what keeps people from using a page in a theme: what axe finds, and what does not fit into a window."""
    page.emulate_media(color_scheme=theme)
    resize(page, WIDTH)
    take_picture(page, f"{name}-{theme}")
    found: list[str] = page.evaluate(FIND_HARM, RULES[theme])
    yield from (f"{theme}: {harm}" for harm in found)
    for width in WIDTHS[theme]:
        resize(page, width)
        take_picture(page, f"{name}-{width}")
        if moved := overflow_px(page):
            yield f"at {width} pixels it can be moved to the side by {moved}"
        yield from (f"at {width} pixels this is a small target: {target}" for target in page.evaluate(SMALL_TARGETS))


def overflow_px(page: Page) -> int:
    """How far a page can be moved to the side."""
    return int(page.evaluate("scrollTo(9999, 0), scrollX"))


def take_picture(page: Page, name: str) -> None:
    """Leave it where pictures are wanted, if they are."""
    folder = os.environ.get("TASKMANAGER_PICTURES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@each_page
def test_page_can_be_used_by_everybody(visit: Visit, of_file: Served, name: str) -> None:
    """Nothing serious is found by axe-core: names, roles, contrast, structure. In the dark theme the same elements have
    other colours, so only the rules about colours look again.

    Nothing has to be moved to the side, on a telephone (which is also a page of 1280 pixels at four times its size) or
    on a large screen; only tables and graphs may move in their boxes. What is pressed has 24 pixels, but for links in
    a text.
    """
    with visit(of_file.url, width=WIDTH, height=HEIGHT) as visitor:
        page = visitor.go(PAGES[name](of_file))
        page.evaluate(AXE)
        found = [each for theme in WIDTHS for each in findings(page, name, theme)]
    assert not found, "\n".join(found)
