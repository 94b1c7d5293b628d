"""The page of failures."""

import re
from html import unescape
from pathlib import Path

import pytest

from taskmanager import TaskManager
from tests.web.rows import DATABASE, first_failure, multiply, query
from tests.web.visitor import visit

pytestmark = pytest.mark.anyio
_ROW = re.compile(r'<tr id="kind-.*?</tr>', re.DOTALL)


async def test_failures_are_grouped_by_function_and_error(tmp_path: Path) -> None:
    """A thousand tasks that fail in one way are one line, with the one that failed last."""
    await first_failure(tmp_path)
    multiply(tmp_path, 1_199)
    await first_failure(tmp_path, "app:<b>")
    multiply(tmp_path, 4, "other", error_code="A&B")
    async with visit(TaskManager(tmp_path / DATABASE)) as visitor:
        html = await visitor.text("failures")
    rows = [unescape(re.sub(r"<[^>]*>", " ", row)).split() for row in _ROW.findall(html)]
    assert sorted((row[0], row[1], row[2]) for row in rows) == [
        ("1", "app:<b>", "UNHANDLED_EXCEPTION"),
        ("1,200", "fail", "UNHANDLED_EXCEPTION"),
        ("4", "app:<b>", "A&B"),
    ]
    assert "1,205 failed tasks of 3 kinds" in html
    assert "app:<b>" not in html


async def test_group_leads_to_its_tasks_and_to_their_retry(tmp_path: Path) -> None:
    """The links mean the tasks of the group, and no others."""
    await first_failure(tmp_path, "app:a&b")
    multiply(tmp_path, 2, "other", error_code="A=B")
    async with visit(TaskManager(tmp_path / DATABASE)) as visitor:
        html = await visitor.text("failures?since=1h")
        links = [unescape(link) for link in re.findall(r'href="\./((?:tasks|bulk/retry)\?[^"]*)"', html)]
        assert len(links) == 4
        for link in links:
            count = 2 if "A%3DB" in link else 1
            found = unescape(await visitor.text(link))
            expected = f"{count} failed task{'s' if count > 1 else ''} of app:a&b with the error"
            assert expected in found


async def test_group_of_a_name_with_wildcards_leads_to_its_own_tasks(tmp_path: Path) -> None:
    """A `*` in the name of a function is a star there. The retry of its group must not mean other functions."""
    await first_failure(tmp_path, "app:*")
    await first_failure(tmp_path, "app:other")
    async with visit(TaskManager(tmp_path / DATABASE)) as visitor:
        links = re.findall(r'href="\./((?:tasks|bulk/retry)\?[^"]*%2A[^"]*)"', await visitor.text("failures"))
        assert len(links) == 2
        for link in links:
            assert "1 failed task of" in await visitor.text(unescape(link))


async def test_failures_of_an_empty_file_say_what_stands_here(tmp_path: Path) -> None:
    """An empty page must not look like one that is broken."""
    await first_failure(tmp_path)
    query(tmp_path, "DELETE FROM taskmanager_tasks")
    async with visit(TaskManager(tmp_path / DATABASE)) as visitor:
        assert "Nothing has failed." in await visitor.text("failures")
        assert (await visitor.get("failures?since=x")).status_code == 400


async def test_group_without_an_error_offers_no_retry_of_all_errors(tmp_path: Path) -> None:
    """No filter means "without an error", and one without that field means the failures of every kind."""
    await first_failure(tmp_path)
    multiply(tmp_path, 2, "other")
    query(tmp_path, "UPDATE taskmanager_tasks SET error_code = NULL WHERE id GLOB 'other*'")
    async with visit(TaskManager(tmp_path / DATABASE)) as visitor:
        assert len(re.findall(r'href="\./bulk/retry', await visitor.text("failures"))) == 1
