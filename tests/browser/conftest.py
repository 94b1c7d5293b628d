"""A real browser, and what it visits. Without a browser these tests are left out."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser import content
from tests.browser.serving import SHOP, Served, serving, web
from tests.browser.visiting import Visitor, browser_path, visiting

NO_BROWSER = (
    "tests of the dashboard in a browser: none is installed (on Debian: apt-get install chromium-headless-shell)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for each file of tests: while it is open, nothing else can run an event loop in this thread."""
    path = browser_path()
    if path is None:
        pytest.skip(NO_BROWSER)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path)
        yield found
        found.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """End the process of a test that hangs: what drives the browser may not be able to close it any more."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(120, method="thread"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let all tests that lack a browser say so in one line of the summary, and not each in a line of its own."""
    report = yield
    if report.skipped and NO_BROWSER in str(report.longrepr):
        report.longrepr = (__file__, 0, NO_BROWSER)
    return report


class Visit(Protocol):
    """Opens a window of a browser."""

    def __call__(self, url: str, **wishes: object) -> AbstractContextManager[Visitor]:
        """Return somebody who visits; see `visiting`."""
        ...


@pytest.fixture
def visit(browser: Browser) -> Visit:
    """Windows of the browser, each with the wishes of its own."""
    return partial(visiting, browser)


@pytest.fixture(scope="session")
def made_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of `content`, made once. Tests that change it take a copy."""
    database = tmp_path_factory.mktemp("content") / "tasks.db"
    content.make(database, "history", "killed")
    return database


@pytest.fixture(scope="session")
def made_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the shop goes on with."""
    database = tmp_path_factory.mktemp("history") / "tasks.db"
    content.make(database, "history")
    return database


@pytest.fixture(scope="module")
def of_file(made_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The dashboard of the file, for tests that only look."""
    database = content.copy(made_database, tmp_path_factory.mktemp("served"))
    with serving(database, *web(database)) as server:
        yield Served(server, "")


@pytest.fixture
def of_own_file(made_database: Path, tmp_path: Path) -> Iterator[Served]:
    """The dashboard of a file that belongs to this test, which may change it."""
    database = content.copy(made_database, tmp_path)
    with serving(database, *web(database, "--auth", "tests.browser.application:allowed")) as server:
        yield Served(server, "")


@pytest.fixture
def of_shop(made_history: Path, tmp_path: Path) -> Iterator[Served]:
    """The dashboard of a shop at work, below a path, on a file that belongs to this test."""
    with serving(content.copy(made_history, tmp_path), *SHOP) as server:
        yield Served(server, "/tasks")
