"""The first page: it goes on by itself, says what is wrong, and mends it at a press."""

import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served
from tests.browser.visiting import Visitor, is_look

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
MINUTE_MS = 60_000
AGO = re.compile(r"^(now|\d+[smhd] ago)$")


@pytest.fixture
def visitor(visit: Visit, of_shop: Served) -> Iterator[Visitor]:
    with visit(of_shop.url) as found:
        yield found


def problem(page: Page, text: str) -> Locator:
    """The problem with this in it."""
    return page.get_by_role("list", name="Problems").get_by_role("listitem").filter(has_text=text)


def test_bar_of_a_running_task_moves(visitor: Visitor, of_shop: Served) -> None:
    """As the task says how far it is."""
    of_shop.tell("build-report", {"args": ["2026-11"]})
    page = visitor.go()
    bar = page.get_by_role("progressbar", name="Progress of shop.reports:build").first
    expect(bar).to_have_attribute("value", "0.6200")
    of_shop.tell("progress", 80)
    expect(bar).to_have_attribute("value", "0.8000")


def test_paused_queue_is_resumed_by_the_press_that_is_offered(visitor: Visitor, of_shop: Served) -> None:
    """And the problem is gone with it."""
    of_shop.tell("load", {"args": ["a.csv"]})
    of_shop.tell("load", {"args": ["b.csv"]})
    page = visitor.go("queues")
    page.locator("tr", has=page.get_by_role("rowheader", name="imports")).get_by_role("button", name="Pause").click()
    visitor.go()
    problem(page, "Queue imports is paused").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("imports")
    visitor.go()
    expect(problem(page, "Queue imports is paused")).to_have_count(0)


def test_new_problem_is_read_aloud(visitor: Visitor, of_shop: Served) -> None:
    """Whoever does not see the page hears of it, and of nothing that was there before."""
    of_shop.tell("load", {"args": ["a.csv"]})
    of_shop.tell("load", {"args": ["b.csv"]})
    page = visitor.go()
    expect(page.locator("#news")).to_be_empty()
    other = visitor.another_page()
    other.goto(page.url + "queues")
    other.locator("tr", has=other.get_by_role("rowheader", name="imports")).get_by_role("button", name="Pause").click()
    expect(page.locator("#news")).to_contain_text("queue imports is paused")


def test_work_of_the_dead_is_recovered_by_a_press(visit: Visit, of_own_file: Served) -> None:
    """The application need not start for it, and nobody needs a shell."""
    with visit(of_own_file.url) as visitor:
        page = visitor.go()
        problem(page, "unfinished tasks").get_by_role("button", name="Recover now").click()
        expect(page.get_by_role("status")).to_contain_text("of dead instances recovered")
        visitor.go()
        expect(page.get_by_role("button", name="Recover now")).to_have_count(0)


def test_ages_are_right_where_the_clock_of_the_browser_is_wrong(visit: Visit, of_file: Served) -> None:
    """They are counted by the clock of the server, which wrote the instants."""
    with visit(of_file.url) as visitor:
        page = visitor.page
        page.clock.install(time=LONG_AGO)
        visitor.go()
        page.clock.run_for(5_000)
        ages = page.locator("[id^=failure-] time").all_inner_texts()
        assert ages
        assert all(AGO.match(each) for each in ages), ages


def waiting(page: Page) -> Locator:
    """How many imports wait."""
    return page.locator("#queue-imports").get_by_role("cell").nth(1)


def test_table_that_was_opened_stays_open(visitor: Visitor, of_shop: Served) -> None:
    """Although the page is brought up to date around it."""
    of_shop.tell("load", {"args": ["a.csv"]})
    of_shop.tell("load", {"args": ["b.csv"]})
    page = visitor.go()
    page.get_by_text("Figures as a table").click()
    before = int(waiting(page).inner_text())
    of_shop.tell("load", {"args": ["c.csv"]})
    expect(waiting(page)).to_have_text(str(before + 1))
    expect(page.get_by_text("Figures as a table").locator("..")).to_have_attribute("open", "")


def test_page_waits_while_somebody_presses(visitor: Visitor) -> None:
    """What was under the pointer when the button went down is there when it comes up."""
    page = visitor.page
    page.clock.install()
    visitor.go()
    looks: list[int] = []
    page.on("response", lambda response: looks.append(response.status) if is_look(response) else None)
    page.mouse.move(10, 500)
    page.mouse.down()
    page.clock.run_for(MINUTE_MS)
    assert looks == []
    with page.expect_response(is_look):
        page.mouse.up()
        page.clock.run_for(MINUTE_MS)


@pytest.mark.parametrize("width", [320, 390, 1_280])
def test_times_below_a_chart_stand_at_their_lines_and_apart(visit: Visit, of_shop: Served, width: int) -> None:
    """On a phone there is room for fewer; those that are left keep their places."""
    with visit(of_shop.url, width=width) as visitor:
        times = visitor.go().locator(".plot .times").first
        expect(times).to_be_attached()
        whole = times.bounding_box()
        assert whole is not None
        boxes = [each.bounding_box() for each in times.locator("span").all()[:4]]
        places = [(box["x"] - whole["x"]) / whole["width"] for box in boxes if box is not None]
        assert places == pytest.approx([0, 0.25, 0.5, 0.75], abs=0.01)
        texts = times.evaluate(
            """(row) => [...row.children].filter((each) => getComputedStyle(each).visibility === "visible")
                .map((each) => {
                const range = document.createRange();
                range.selectNodeContents(each);
                const { left, right } = range.getBoundingClientRect();
                return [left, right];
            })"""
        )
        assert all(before[1] < after[0] for before, after in itertools.pairwise(texts)), texts
