"""A file that cannot be read is a page with its reason, which becomes the right page as soon as it can."""

from pathlib import Path

from playwright.sync_api import expect

from tests.browser import content
from tests.browser.conftest import Visit
from tests.browser.serving import serving, web


def test_page_of_a_file_that_is_not_there_yet_fills_by_itself(
    visit: Visit, made_database: Path, tmp_path: Path
) -> None:
    """Somebody opens the dashboard first, and then starts the application. Nothing has to be reloaded."""
    database = tmp_path / "tasks.db"
    (made := tmp_path / "made").mkdir()
    copy = content.copy(made_database, made)
    with serving(database, *web(database)) as server, visit(server.url()) as visitor:
        visitor.complaints.forgive("503")
        page = visitor.go("queues")
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_contain_text("There is no file")
        expect(page.get_by_text("The application makes it when it starts")).to_be_visible()
        page.wait_for_event("response", lambda response: response.status == 503)
        expect(page.locator("#trouble")).to_be_hidden()
        for each in made.iterdir():
            if each != copy:
                each.rename(tmp_path / each.name)
        copy.rename(database)
        expect(heading).to_have_text("Queues")
        expect(page.get_by_role("table")).to_be_visible()


def test_page_keeps_what_it_had_while_the_file_is_gone(visit: Visit, made_database: Path, tmp_path: Path) -> None:
    """What was seen last stays, with a line that says why nothing new comes; then it goes on."""
    database = content.copy(made_database, tmp_path)
    with serving(database, *web(database)) as server, visit(server.url()) as visitor:
        visitor.complaints.forgive("503")
        page = visitor.go("queues")
        expect(page.get_by_role("table")).to_be_visible()
        hidden = database.rename(tmp_path / "hidden.db")
        expect(page.locator("#trouble")).to_contain_text("There is no file")
        expect(page.get_by_role("table")).to_be_visible()
        hidden.rename(database)
        expect(page.locator("#trouble")).to_be_hidden()
