"""The page of queues."""

from pathlib import Path

import pytest

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
