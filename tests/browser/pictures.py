"""Makes the pictures of the documents: `python -m tests.browser.pictures`, or `make pictures`."""

import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from tests.browser import content
from tests.browser.serving import SHOP, Served, serving
from tests.browser.visiting import Theme, browser_path, visiting
from tests.crash.harness import ROOT

DOCS: Final = ROOT / "docs"
HEIGHT: Final = 1_180
PICTURES: Final[tuple[tuple[str, str, Theme], ...]] = (
    ("dashboard-light", "", "light"),
    ("dashboard-dark", "", "dark"),
    ("dashboard-workflow", "workflows/weather-running", "dark"),
)
"""The name of the file, the address and the theme."""


def main(folder: Path = DOCS) -> None:
    """Let a shop work, and take a picture of each."""
    with tempfile.TemporaryDirectory(prefix="shop-") as made, sync_playwright() as playwright:
        database = Path(made) / "tasks.db"
        content.make(database, "busy")
        browser = playwright.chromium.launch(executable_path=browser_path())
        with serving(database, *SHOP) as server:
            shown = Served(server, "/tasks")
            for number in range(5):
                shown.tell("build-report", {"args": [f"2025-{12 - number}", 93 - 17 * number]})
            for name, address, theme in PICTURES:
                with visiting(browser, shown.url, theme=theme, height=HEIGHT) as visitor:
                    page = visitor.go(address)
                    page.wait_for_load_state("networkidle")
                    page.screenshot(path=folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else DOCS)
