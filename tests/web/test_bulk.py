"""Retry and cancel of all tasks of a filter, page by page."""

import logging
import re
from html import unescape
from pathlib import Path

import pytest

from taskmanager import TaskManager
from taskmanager.store.sql.windows import Cursor
from taskmanager.web import bulk
from taskmanager.web.bulk import PAGE, Course, course_of
from tests.web.rows import DATABASE, first_failure, multiply, query
from tests.web.visitor import Visitor, visit

pytestmark = pytest.mark.anyio
_FIELD = re.compile(r'<input type="hidden" name="(?!form_token)([^"]+)" value="([^"]*)">')
_ADDRESS = re.compile(r'<form method="post" action="\.\./(bulk/[^"]+)"')
FILTER = "status=FAILED&task=fail"


def visitor_of(folder: Path, level: str = "act") -> Visitor:
    """Return a visitor of a worker whose manager does not run, so that nobody runs what is retried."""
    return visit(TaskManager(folder / DATABASE), level)


def form_in(html: str) -> tuple[str, dict[str, str]] | None:
    """Return the address and the fields of the form that goes on, or None if there is none."""
    address = _ADDRESS.search(html)
    if address is None:
        return None
    return unescape(address[1]), {name: unescape(value) for name, value in _FIELD.findall(html)}


async def follow(visitor: Visitor, html: str, pages: int = 1_000) -> str:
    """Send the form of a page, and that of the answer, and so on, and return the last page."""
    for _ in range(pages):
        form = form_in(html)
        if form is None:
            break
        answer = await visitor.post(*form, page="tasks")
        assert answer.status_code == 200, answer.text
        html = answer.text
    return html


def counts(folder: Path) -> dict[object, object]:
    return dict(query(folder, "SELECT status, count(*) FROM taskmanager_tasks GROUP BY status"))  # type: ignore[arg-type]


async def test_retry_of_a_filter_ends_at_the_newest_of_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that fail while it goes on are not meant: nobody has counted them."""
    monkeypatch.setattr(bulk, "COUNT_S", 60.0)  # however busy the machine is
    await first_failure(tmp_path)
    multiply(tmp_path, 9_999)
    async with visitor_of(tmp_path) as visitor:
        html = await visitor.text(f"bulk/retry?{FILTER}")
        assert "<h1>Retry 10,000 failed tasks of fail?</h1>" in html
        for number in range(3):
            html = await follow(visitor, html, 1)
            multiply(tmp_path, 5, f"later{number}")
        html = await follow(visitor, html)
        assert "<h1>10,000 tasks retried</h1>" in html
    assert counts(tmp_path) == {"PENDING": 10_000, "FAILED": 15}
    assert query(tmp_path, "SELECT count(*) FROM taskmanager_tasks WHERE status = 'FAILED' AND id LIKE 'later%'") == [
        (15,)
    ]


async def test_retry_that_was_stopped_is_ended_by_another_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process remembers it: what is left is counted anew, and no task is retried twice."""
    monkeypatch.setattr(bulk, "COUNT_S", 60.0)  # however busy the machine is
    await first_failure(tmp_path)
    multiply(tmp_path, 4 * PAGE - 1)
    async with visitor_of(tmp_path) as visitor:
        html = await follow(visitor, await visitor.text(f"bulk/retry?{FILTER}"), 2)
        assert f"{2 * PAGE:,} retried of {4 * PAGE:,}." in html
    async with visitor_of(tmp_path) as visitor:
        html = await follow(visitor, html, 1)
        assert f"{3 * PAGE:,} retried of {4 * PAGE:,}." in html
        query(tmp_path, "UPDATE taskmanager_tasks SET updated_at = 1 WHERE status = 'PENDING'")
        html = await visitor.text(f"bulk/retry?{FILTER}")
        assert f"Retry {PAGE} failed tasks of fail?" in html
        await follow(visitor, html)
    assert counts(tmp_path) == {"PENDING": 4 * PAGE}
    assert query(tmp_path, "SELECT count(*) FROM taskmanager_tasks WHERE updated_at = 1") == [(3 * PAGE,)]


async def test_retry_leaves_alone_what_does_not_fit_any_more(tmp_path: Path) -> None:
    """Somebody else may have dealt with it since the count."""
    await first_failure(tmp_path)
    multiply(tmp_path, PAGE + 10)
    async with visitor_of(tmp_path) as visitor:
        html = await follow(visitor, await visitor.text("bulk/retry?error=UNHANDLED_EXCEPTION"), 1)
        query(tmp_path, "UPDATE taskmanager_tasks SET error_code = 'OTHER' WHERE id = ?", f"copy-{PAGE + 5:07}")
        query(tmp_path, "UPDATE taskmanager_tasks SET args = NULL WHERE id = ?", f"copy-{PAGE + 6:07}")
        html = await follow(visitor, html)
        assert f"<h1>{PAGE + 9} tasks retried</h1>" in html
        assert "1 was left alone. The reason for the first: its arguments could not be stored." in html
    assert counts(tmp_path) == {"PENDING": PAGE + 9, "FAILED": 2}


async def test_cancel_of_a_filter_ends_what_waits(tmp_path: Path) -> None:
    """A filter without a status means all that has not ended."""
    await first_failure(tmp_path)
    async with visitor_of(tmp_path) as visitor:
        await follow(visitor, await visitor.text("bulk/retry?task=fail"))
        multiply(tmp_path, 20)
        html = await visitor.text("bulk/cancel?task=fail")
        assert "<h1>Cancel 21 pending or claimed or running tasks of fail?</h1>" in html
        html = await follow(visitor, html)
        assert "<h1>21 tasks cancelled</h1>" in html
    assert counts(tmp_path) == {"CANCELLED": 21}


async def test_each_page_of_an_action_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who did it to which tasks can be found later."""
    await first_failure(tmp_path)
    multiply(tmp_path, PAGE)
    with caplog.at_level(logging.INFO, "taskmanager"):
        async with visitor_of(tmp_path) as visitor:
            await follow(visitor, await visitor.text(f"bulk/retry?{FILTER}"))
    lines = [record.getMessage() for record in caplog.records if "retried" in record.getMessage()]
    names = [name for line in lines for name in line.removeprefix("dashboard: 127.0.0.1: retried: ").split(", ")]
    assert names[1:] == [f"copy-{number:07}" for number in range(1, PAGE + 1)]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("bulk/retry", "Retry is not for all tasks of the file at once"),
        ("bulk/retry?before=5.x", "Retry is not for all tasks of the file at once"),
        ("bulk/retry?status=RUNNING", "Retry is not for tasks that are RUNNING"),
        ("bulk/cancel?status=FAILED", "Cancel is not for tasks that are FAILED"),
        ("bulk/cancel?status=NOPE", "is none of"),
    ],
)
async def test_action_without_a_clear_filter_is_refused(tmp_path: Path, address: str, sentence: str) -> None:
    """A mistake here would be a mistake a thousand times."""
    await first_failure(tmp_path)
    async with visitor_of(tmp_path) as visitor:
        for answer in (await visitor.get(address), await visitor.post(address, {"until": f"{2**52}.x"}, page="tasks")):
            assert answer.status_code == 400
            assert sentence in answer.text
    assert counts(tmp_path) == {"FAILED": 1}


async def test_action_is_not_for_those_who_only_look(tmp_path: Path) -> None:
    """The question itself would promise too much."""
    await first_failure(tmp_path)
    async with visitor_of(tmp_path, "read") as visitor:
        assert (await visitor.get(f"bulk/retry?{FILTER}")).status_code == 403


async def test_form_without_its_end_does_nothing(tmp_path: Path) -> None:
    """Without the newest task of the count, it would go on into what nobody has counted."""
    await first_failure(tmp_path)
    async with visitor_of(tmp_path) as visitor:
        for fields in ({}, {"until": "x"}, {"until": "5.x", "after": "x"}):
            answer = await visitor.post(f"bulk/retry?{FILTER}", fields, page="tasks")
            assert answer.status_code == 400
    assert counts(tmp_path) == {"FAILED": 1}


@pytest.mark.parametrize("after", [None, (5, "x")])
def test_course_is_read_again_from_its_form(after: Cursor | None) -> None:
    """The form is all that is known of it."""
    course = Course((9, "y"), after, 12, True, 3, 4, "because")
    assert course_of(course.fields()) == course


def test_course_takes_numbers_only_where_numbers_belong() -> None:
    """The browser sends whatever somebody has put there."""
    course = course_of({"until": "9.y", "total": "-1", "done": "9" * 99, "refused": "\u0663", "why": "w" * 5000})
    assert course is not None
    assert (course.total, course.done, course.refused) == (0, 0, 0)
    assert len(course.why) == 200


async def test_retry_of_a_filter_reaches_a_manager_in_memory() -> None:
    """Its tasks are in no file, so it is asked itself."""
    manager = TaskManager(None)

    @manager.task(name="fail")
    async def fail() -> None:
        raise ValueError("no")

    async with manager, visit(manager) as visitor:
        for _ in range(3):
            await fail.enqueue().result()
        await manager.flush()
        html = await follow(visitor, await visitor.text(f"bulk/retry?{FILTER}"))
        assert "<h1>3 tasks retried</h1>" in html
        await manager.join()
        assert [task.start_count for task in await manager.list()] == [2, 2, 2]
