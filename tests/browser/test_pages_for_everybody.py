"""What every page is for those who look at it: of any theme, on a screen of any size, with any aid.

With $TASKMANAGER_PICTURES=FOLDER each page is also left there as a picture, to be looked at.
"""

import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Visit
from tests.browser.pages import PAGES, each_page
from tests.browser.serving import Served
from tests.browser.visiting import Theme

AXE: Final = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
HARMFUL: Final = ("serious", "critical")
WIDTHS: Final[Mapping[Theme, tuple[int, ...]]] = {"light": (320, 2_560), "dark": (768,)}
HEIGHT: Final = 900
SMALL_TARGETS: Final = """() => {
    const targets = document.querySelectorAll("button, .button, input, select, textarea, nav a, .tile, summary, .tag");
    const isSmall = ({width, height}) => width && height && (width < 23.5 || height < 23.5);
    const label = (each) => each.closest("label") ?? each;
    return [...targets].filter((each) => isSmall(label(each).getBoundingClientRect())).map((each) => each.outerHTML);
}"""


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


@pytest.mark.parametrize("theme", WIDTHS)
@each_page
def test_page_can_be_used_by_everybody(visit: Visit, of_file: Served, name: str, theme: Theme) -> None:
    """Nothing serious is found by axe-core: names, roles, contrast, structure.

    Nothing has to be moved to the side, on a telephone (which is also a page of 1280 pixels at four times its size) or
    on a large screen; only tables and graphs may move in their boxes. What is pressed has 24 pixels, but for links in
    a text.
    """
    with visit(of_file.url, theme=theme, height=HEIGHT) as visitor:
        page = visitor.go(PAGES[name](of_file))
        take_picture(page, f"{name}-{theme}")
        found = list(findings(page))
        for width in WIDTHS[theme]:
            page.set_viewport_size({"width": width, "height": HEIGHT})
            take_picture(page, f"{name}-{width}")
            if moved := overflow_px(page):
                found.append(f"at {width} pixels it can be moved to the side by {moved}")
            found += [f"at {width} pixels this is a small target: {target}" for target in page.evaluate(SMALL_TARGETS)]
    assert not found, "\n".join(found)
