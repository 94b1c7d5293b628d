"""The page of queues."""

from dataclasses import replace
from pathlib import Path

import pytest

from taskmanager.rules.figures import bucket_of
from taskmanager.web.past import NOTHING
from taskmanager.web.queues import Row, rows_of
from tests.unit.console_overviews import EMPTY, queue
from tests.web.visitor import manager_on, visit

pytestmark = pytest.mark.anyio


async def test_queue_is_paused_and_resumed_by_its_form(tmp_path: Path) -> None:
    """What is pressed in the browser holds for every instance, as `taskmanager pause` does."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True, queue_name="mail")
    async def send() -> None: ...

    async with manager, visit(manager) as visitor:
        await send.enqueue()
        answer = await visitor.post("queues/pause", {"queue": "mail"})
        assert (answer.status_code, answer.headers["location"]) == (303, "../queues")
        waiting = send.enqueue()
        await waiting.saved()
        assert "Paused" in await visitor.text("queues")
        await visitor.post("queues/resume", {"queue": "mail"})
        await waiting


async def test_page_that_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    """An open page asks every second or two; what it has already costs a tag."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        first = await visitor.get("queues")
        again = await visitor.get("queues", **{"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_form_that_names_no_queue_is_refused(tmp_path: Path) -> None:
    """A queue without a name would be paused, which nobody could see."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        for fields in ({}, {"queue": ""}, {"queue": "q" * 100_000}):
            assert (await visitor.post("queues/pause", fields)).status_code == 400
        assert "No queue is in use." in await visitor.text("queues")


async def test_search_finds_queues_by_a_part_of_their_names(tmp_path: Path) -> None:
    """Whoever has a queue for each customer does not read five hundred rows."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        for name in ("customer-1", "customer-2", "<b>"):
            await manager.pause(name)
        page = await visitor.text("queues?name=MER-2")
        assert ("customer-2" in page, "customer-1" in page) == (True, False)
        assert "&lt;b&gt;" in await visitor.text("queues?name=%3Cb%3E")
        assert "No queue has “nobody” in its name." in await visitor.text("queues?name=nobody")


async def test_paused_queue_says_since_when(tmp_path: Path) -> None:
    """A pause that somebody has forgotten is an old one."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        await manager.pause("mail")
        page = await visitor.text("queues")
    assert 'Paused</span> <span class="soft"><time' in page


def test_row_knows_how_long_tasks_waited_in_the_last_hour() -> None:
    """From the figures of its queue; without any nobody knows."""
    waited = [0] * 16
    waited[bucket_of(5_000)] = 10
    overview = replace(EMPTY, queues=(queue("mail", 0, 0), queue("reports", 0, 0)))
    mail, reports = rows_of(overview, {}, {"mail": NOTHING._replace(waited=tuple(waited))}, "")
    assert isinstance(mail, Row)
    assert 4_000 <= (mail.waited_us(0.5) or 0) <= 16_000
    assert reports.waited_us(0.5) is None
