"""Makes the pictures of the documents: `python -m tests.browser.pictures`, or `make pictures`."""

import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from tests.browser import content
from tests.browser.serving import SHOP, serving
from tests.browser.visiting import Theme, browser_path, visiting
from tests.crash.harness import ROOT

DOCS: Final = ROOT / "docs"
PICTURES: Final[tuple[tuple[str, str, Theme], ...]] = (
    ("dashboard-light", "", "light"),
    ("dashboard-dark", "", "dark"),
    ("dashboard-workflow", "workflows/weather-running", "light"),
)
"""The name of the file, the address and the theme."""


def main(folder: Path = DOCS) -> None:
    """Let a shop work, and take a picture of each."""
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        database = Path(made) / "tasks.db"
        content.make(database, is_killed=False)
        browser = playwright.chromium.launch(executable_path=browser_path())
        with serving(database, *SHOP) as server:
            for name, address, theme in PICTURES:
                with visiting(browser, f"{server.url()}/tasks", theme=theme) as visitor:
                    page = visitor.go(address)
                    page.wait_for_load_state("networkidle")
                    page.screenshot(path=folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else DOCS)
