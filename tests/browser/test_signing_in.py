"""Getting in with a token, from another machine over plain HTTP, and not getting in by a name that was bent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser import content
from tests.browser.conftest import NO_BROWSER, Visit
from tests.browser.serving import serving, web
from tests.browser.visiting import browser_path

NAME: Final = "tasks.test"
"""A name that leads to this machine. A browser trusts it no more than that of another one."""
TOKEN: Final = "a token that nobody guesses"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One that finds this machine under that name, and nobody else."""
    path = browser_path()
    if path is None:
        pytest.skip(NO_BROWSER)
    rules = f"MAP {NAME} 127.0.0.1, EXCLUDE 127.0.0.1, MAP * ~NOTFOUND"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=[f"--host-resolver-rules={rules}"])
        yield found
        found.close()


@pytest.fixture
def database(made_database: Path, tmp_path: Path) -> Path:
    """A file that belongs to this test."""
    return content.copy(made_database, tmp_path)


def test_token_opens_the_pages_over_plain_http(visit: Visit, database: Path) -> None:
    """It leaves the address at once. Forms work, although browsers say less of where they come from than with https.

    A link from another site does not bring the cookie along; from there it is one click more.
    """
    with serving(database, *web(database, "--token", TOKEN)) as server:
        url = f"http://{NAME}:{urlsplit(server.url()).port}"
        with visit(url) as visitor:
            page = visitor.go(f"queues?token={TOKEN}")
            assert page.url == f"{url}/queues"
            button = page.locator("main form[action$='queues/pause'] button").first
            button.click()
            expect(page.locator("#said")).to_contain_text("is paused")
            visitor.complaints.forgive("401")
            page.goto(f"data:text/html,<a href='{url}/tasks'>tasks</a>")
            page.get_by_role("link").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("This dashboard does not know you")
            page.get_by_role("link", name="Open this page again").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")
            assert page.url == f"{url}/tasks"


def test_page_of_another_name_gets_nothing(visit: Visit, database: Path) -> None:
    """The name of another site may lead to this machine; its scripts would then be at home here."""
    with serving(database, *web(database)) as server:
        url = f"http://{NAME}:{urlsplit(server.url()).port}"
        with visit(url) as visitor:
            visitor.complaints.forgive("421")
            page = visitor.go("queues")
            assert "answers to" in page.inner_text("body")
            assert page.evaluate("fetch('healthz').then((answer) => answer.status)") == 421
            assert page.evaluate("fetch('static/dashboard.css').then((answer) => answer.status)") == 421
