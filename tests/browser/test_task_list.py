"""The list of tasks: a filter that is an address, pages that neither skip nor repeat, rows that stay in their place."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.serving import Served
from tests.browser.shop import HOSTILE
from tests.browser.visiting import Visitor, is_look

ALL = "SELECT count(*) FROM taskmanager_tasks"


@pytest.fixture
def visitor(visit: Visit, of_file: Served) -> Iterator[Visitor]:
    with visit(of_file.url) as found:
        yield found


@pytest.fixture
def acting(visit: Visit, of_shop: Served) -> Iterator[Visitor]:
    with visit(of_shop.url) as found:
        yield found


ROWS_AND_OLDER = """() => [
    [...document.querySelectorAll("tr[data-id]")].map((row) => row.dataset.id),
    document.querySelector("main a[rel=next]")?.href ?? null,  // a search that has taken its time names it otherwise
]"""


def shown_ids(page: Page) -> list[str]:
    """The ids in the list, from its top."""
    found: list[str] = page.locator("tr[data-id]").evaluate_all("rows => rows.map((row) => row.dataset.id)")
    return found


def asked(page: Page) -> dict[str, list[str]]:
    """The filter in the address."""
    return parse_qs(urlsplit(page.url).query)


@pytest.mark.parametrize("has_script", [True, False])
def test_list_is_filtered_by_its_form(visit: Visit, of_file: Served, has_script: bool) -> None:
    """What the form says comes into the address, and nothing that it does not say."""
    with visit(of_file.url, has_script=has_script) as visitor:
        page = visitor.go("tasks")
        page.get_by_text("Failed", exact=True).first.click()
        page.get_by_label("Function").fill("shop.orders:charge")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_role("link", name="All", exact=True)).to_be_visible()
        assert asked(page) == {"status": ["FAILED"], "task": ["shop.orders:charge"]}
        wanted = of_file.one(f"{ALL} WHERE status = 'FAILED' AND task_name = 'shop.orders:charge'")
        expect(page.locator("tr[data-id]")).to_have_count(wanted)
        expect(page.get_by_label("Function")).to_have_value("shop.orders:charge")


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("status=CANCELLED", "status = 'CANCELLED'"),
        ("status=EXPIRED&status=INTERRUPTED", "status IN ('EXPIRED', 'INTERRUPTED')"),
        ("task=shop.weather:*&status=FAILED", "task_name LIKE 'shop.weather:%' AND status = 'FAILED'"),
        ("queue=newsletter", "queue_name = 'newsletter'"),
        ("tag=order:refused", "json_extract(tags, '$.order') = 'refused'"),
        ("tag=customer:ann&tag=order:refused", "json_extract(tags, '$.order') = 'refused'"),
        ("error=OUT_OF_STOCK", "error_code = 'OUT_OF_STOCK'"),
        ("text=4711", "json_extract(args, '$[0]') = 4711"),
        ("text=the+bank+refused&status=FAILED", "error_code = 'PAYMENT_REFUSED'"),
    ],
)
def test_list_is_filtered_by_its_address(visitor: Visitor, of_file: Served, address: str, where: str) -> None:
    """So that it can be sent to a colleague."""
    page = visitor.go(f"tasks?{address}")
    wanted = of_file.one(f"SELECT group_concat(id) FROM taskmanager_tasks WHERE {where}")
    assert set(shown_ids(page)) == set(wanted.split(","))


def test_list_finds_a_text_that_is_hostile(visitor: Visitor) -> None:
    """It is looked for as it is, and stands in the field as it is."""
    page = visitor.go("tasks")
    for text in (HOSTILE["markup"], HOSTILE["attribute"], HOSTILE["template"]):
        page.get_by_label("Text").fill(text)
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_label("Text")).to_have_value(text)
        expect(page.locator("tr[data-id]")).not_to_have_count(0)
        assert page.title() == "Tasks · tasks.db"


def test_list_says_what_is_wrong_with_an_address(visitor: Visitor) -> None:
    """And shows no tasks: those of another filter would be taken for what was asked for."""
    visitor.complaints.forgive("was answered with 400")
    page = visitor.go("tasks?status=SLEEPING&since=yesterday")
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page.locator("tr[data-id]")).to_have_count(0)


def test_pages_neither_skip_nor_repeat_while_tasks_arrive(acting: Visitor, of_shop: Served) -> None:
    """Each page begins where the one before has ended, and not behind so many rows."""
    page = acting.go("tasks?queue=default")
    there = "SELECT group_concat(id) FROM taskmanager_tasks WHERE queue_name = 'default'"
    wanted, found = of_shop.one(there).split(","), list[str]()
    while True:
        # Nobody is at the first page, so it moves when tasks arrive. Its rows belong to the address of this moment.
        rows, older = page.evaluate(ROWS_AND_OLDER)
        found += rows
        if older is None:
            break
        for _ in range(3):
            of_shop.tell("resize", {"args": ["new.jpg", 64]})
        page.goto(older)
    assert len(found) == len(set(found))
    assert set(wanted) <= set(found)


def test_rows_stay_where_they_are_while_tasks_arrive(acting: Visitor, of_shop: Served) -> None:
    """Somebody who reads the list is told of new ones, and looks at them when it suits."""
    page = acting.go("tasks?task=shop.images:resize")
    row = page.locator("tr[data-id]").first
    row.get_by_role("link").first.focus()
    before = shown_ids(page)
    for _ in range(2):
        of_shop.tell("resize", {"args": ["new.jpg", 64]})
    expect(page.get_by_role("link", name="2 new")).to_be_visible()
    assert shown_ids(page) == before
    page.get_by_role("link", name="2 new").click()
    expect(page.get_by_role("link", name="2 new")).to_be_hidden()
    assert shown_ids(page)[2:] == before[:-2]


def test_status_of_a_row_changes_in_its_place(acting: Visitor, of_shop: Served) -> None:
    """Without a new page, and while the row keeps the focus."""
    made = of_shop.tell("build-report", {"args": ["2026-04", 5]})
    page = acting.go(f"tasks?text={made}")
    row = page.locator(f"tr[data-id='{made}']")
    expect(row).to_contain_text("Running")
    row.get_by_role("link").first.focus()
    of_shop.tell("gate")
    expect(row).to_contain_text("Completed")
    expect(row.get_by_role("link").first).to_be_focused()


def test_keys_go_through_the_list_and_to_its_search(visitor: Visitor) -> None:
    """`j` and `k` only with the focus in the list, `/` from everywhere."""
    page = visitor.go("tasks")
    first, second = page.locator("tr[data-id]").nth(0), page.locator("tr[data-id]").nth(1)
    page.keyboard.press("j")
    expect(page.locator("tr.chosen")).to_have_count(0)
    page.get_by_role("region", name="Tasks").focus()
    page.keyboard.press("j")
    expect(first.get_by_role("link").first).to_be_focused()
    page.keyboard.press("j")
    expect(second.get_by_role("link").first).to_be_focused()
    page.keyboard.press("k")
    expect(first.get_by_role("link").first).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Text")).to_be_focused()
    page.keyboard.type("j/k?")
    expect(page.get_by_label("Text")).to_have_value("j/k?")


def test_chosen_row_stays_chosen_when_the_page_is_brought_up_to_date(acting: Visitor) -> None:
    """Whoever goes through the list by keys goes on from there."""
    page = acting.go("tasks?status=COMPLETED")
    page.get_by_role("region", name="Tasks").focus()
    for _ in range(3):
        page.keyboard.press("j")
    third = shown_ids(page)[2]
    page.wait_for_event("response", is_look)
    page.wait_for_event("response", is_look)
    expect(page.locator("tr.chosen")).to_have_attribute("data-id", third)


def test_single_keys_can_be_switched_off(visitor: Visitor) -> None:
    """For those whose voice or hand presses keys by chance; it is remembered."""
    page = visitor.go("tasks")
    page.keyboard.press("?")
    page.get_by_label("Single keys").uncheck()
    page.keyboard.press("Escape")
    visitor.go("tasks")
    page.get_by_role("region", name="Tasks").focus()
    page.keyboard.press("j")
    page.keyboard.press("/")
    expect(page.locator("tr.chosen")).to_have_count(0)
    expect(page.get_by_label("Text")).not_to_be_focused()


def test_retry_by_key_asks_first(acting: Visitor, of_shop: Served) -> None:
    """`r` is a letter like any other, and pressed by chance."""
    failed = of_shop.task_id("error_code = 'OUT_OF_STOCK'")
    page = acting.go("tasks?error=OUT_OF_STOCK")
    page.get_by_role("region", name="Tasks").focus()
    page.keyboard.press("j")
    page.keyboard.press("r")
    question = page.get_by_role("dialog")
    expect(question).to_contain_text("Retry")
    question.get_by_role("button", name="No").click()
    starts = "SELECT start_count FROM taskmanager_tasks WHERE id = ?"
    assert of_shop.one(starts, failed) == 1
    page.keyboard.press("r")
    question.get_by_role("button", name="Yes").click()
    expect(page.get_by_role("status")).not_to_be_empty()
    expect(page.locator(f"tr[data-id='{failed}'] .attempts")).to_have_text("2")


def test_question_right_after_another_one_can_be_answered(acting: Visitor, of_shop: Served) -> None:
    """The browser tells the end of the first one when the second one is asked already."""
    failed = of_shop.task_id("error_code = 'OUT_OF_STOCK'")
    page = acting.go("tasks?error=OUT_OF_STOCK")
    page.evaluate(
        """() => {
            const form = document.querySelector("form[data-retry]");
            form.requestSubmit();
            document.querySelector("#ask button[value=no]").click();
            form.requestSubmit();
        }"""
    )
    page.get_by_role("dialog").get_by_role("button", name="Yes").click()
    expect(page.get_by_role("status")).to_contain_text(failed)


def test_list_of_tasks_is_dense_and_its_rows_have_two_lines_at_most(visitor: Visitor) -> None:
    """Fifty tasks are read on two to three screens of a laptop; each row still tells its whole id and its workflow."""
    page = visitor.go("tasks?task=shop.weather:*")
    rows = page.locator("tr[data-id]")
    expect(rows.first.get_by_role("link").nth(1)).to_be_visible()
    heights: list[float] = rows.evaluate_all("all => all.map((row) => row.getBoundingClientRect().height)")
    assert max(heights) <= 44, heights
    assert all(identity in page.locator("main").inner_text() for identity in shown_ids(page))


def test_list_on_paper_has_its_rows_and_none_of_what_is_pressed(visitor: Visitor) -> None:
    """A print, or a PDF for a colleague, shows what was found; buttons and filters mean nothing on paper."""
    page = visitor.go("tasks?status=FAILED")
    page.emulate_media(media="print")
    expect(page.locator("tr[data-id]").first).to_be_visible()
    for each in (page.get_by_role("button"), page.get_by_role("navigation"), page.get_by_role("search")):
        expect(each.locator("visible=true")).to_have_count(0)
