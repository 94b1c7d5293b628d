"""Visits pages, and hears everything that a browser has to say against them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect

Theme = Literal["light", "dark"]

# The first is the same browser without the windows of a desktop, which take longer to open than a page.
NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_MS: Final = 30_000
SEARCHES: Final = 5
expect.set_options(timeout=PATIENCE_MS)
REPORT_VIOLATIONS: Final = """
document.addEventListener('securitypolicyviolation', (event) => console.error(
    `policy ${event.violatedDirective} refuses ${event.blockedURI} in ${event.sourceFile}:${event.lineNumber}`));
"""


def browser_path() -> str | None:
    """The browser that is used: that of $TASKMANAGER_BROWSER, or the first that is installed."""
    asked = os.environ.get("TASKMANAGER_BROWSER")
    return next(filter(None, map(shutil.which, [asked] if asked else NAMES)), None)


@dataclass
class Complaints:
    """What a browser said against the pages of one visit."""

    told: list[str] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)
    """Parts of complaints that the test itself brings about."""

    def listen(self, page: Page) -> None:
        """Hear of a page from now on."""
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._tell(f"uncaught: {error}"))
        page.on("requestfailed", self._on_failed_request)
        page.on("response", self._on_response)
        page.on("crash", lambda _: self._tell("the page crashed"))

    def _tell(self, text: str) -> None:
        self.told.append(text)

    def _on_console(self, message: ConsoleMessage) -> None:
        # It says this of each answer from 400, which `_on_response` tells with its address.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self._tell(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def _on_failed_request(self, request: Request) -> None:
        # Aborted: the page was left while it asked, or its script has stopped waiting.
        if request.failure != "net::ERR_ABORTED":
            self._tell(f"{request.method} {request.url} failed: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self._tell(f"{response.request.method} {response.url} was answered with {response.status}")

    def forgive(self, part: str) -> None:
        """Expect complaints that contain this."""
        self.forgiven.append(part)

    def left(self) -> list[str]:
        """Those that nobody expects."""
        return [text for text in self.told if not any(part in text for part in self.forgiven)]


class Visitor:
    """Somebody with a browser of their own: a theme, a size of window, and no cookies yet."""

    def __init__(self, browser: Browser, url: str, **wishes: Any) -> None:
        self.complaints = Complaints()
        self._url = url
        self._context = browser.new_context(
            base_url=f"{url}/", locale="en-GB", timezone_id="Europe/Berlin", reduced_motion="reduce", **wishes
        )
        self._context.set_default_timeout(PATIENCE_MS)
        self._context.add_init_script(REPORT_VIOLATIONS)
        self.page = self.another_page()

    def another_page(self) -> Page:
        """One more tab."""
        page = self._context.new_page()
        self.complaints.listen(page)
        return page

    def go(self, address: str = "") -> Page:
        """Visit an address relative to the root of the dashboard, and return the page when it is there.

        A search gives up in time, and says so. On a busy machine that may be soon, so it is asked for again.
        """
        for _ in range(SEARCHES):
            self.page.goto(f"{self._url}/{address}")
            if not self.page.get_by_text("This search was long").count():
                break
        return self.page

    def leave(self) -> None:
        """Close the window."""
        self._context.close()


def is_look(response: Response) -> bool:
    """Whether a page that is open has asked for this, to keep itself up to date."""
    return "x-live" in response.request.headers


@contextmanager
def visiting(
    browser: Browser,
    url: str,
    *,
    theme: Theme = "light",
    width: int = 1_280,
    height: int = 800,
    has_script: bool = True,
    **wishes: Any,
) -> Iterator[Visitor]:
    """Somebody who visits, and in the end has no reason to complain."""
    visitor = Visitor(
        browser, url, color_scheme=theme, viewport={"width": width, "height": height}, java_script_enabled=has_script,
        **wishes,
    )  # fmt: skip
    try:
        yield visitor
    finally:
        visitor.leave()
    assert not visitor.complaints.left(), "\n".join(visitor.complaints.left())
