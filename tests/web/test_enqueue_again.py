"""The page that enqueues another task with other arguments."""

from html import unescape
from pathlib import Path

import pytest

from taskmanager import TaskManager, current_task
from tests.web.visitor import manager_on, visit

pytestmark = pytest.mark.anyio


def typed(html: str, name: str) -> str:
    """Return what stands in a field of the form."""
    return unescape(html.partition(f'name="{name}"')[2].partition(">")[2].partition("</textarea>")[0]).removeprefix(
        "\n"
    )


async def test_form_enqueues_another_task_and_leads_to_it(tmp_path: Path) -> None:
    """The new task has the same function, queue and tags, and the arguments that were typed."""
    manager, seen = manager_on(tmp_path), []

    @manager.task(name="app:charge", persist=True, queue_name="money")
    async def charge(order: int, *, note: str) -> None:
        seen.append((order, note, dict(current_task().tags)))

    async with manager, visit(manager) as visitor:
        handle = charge.with_options(tags={"customer": "ann"}).enqueue(7, note="<b>\u202e\n")
        await handle
        await manager.flush()
        address = f"tasks/{handle.task_id}/enqueue"
        html = await visitor.text(address)
        assert (typed(html, "args"), "\u202e" in html) == ("[7]", False)
        answer = await visitor.post(address, {"args": "[8]", "kwargs": typed(html, "kwargs")})
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"].startswith("../../tasks/")
        await manager.handle(answer.headers["location"].rpartition("/")[2])
        assert [(order, tags) for order, _, tags in seen] == [(7, {"customer": "ann"}), (8, {"customer": "ann"})]
        assert len({note for _, note, _ in seen}) == 1


@pytest.mark.parametrize("args", ["[1", '{"a": 1}', "7", "[1] <b>"])
async def test_typed_arguments_are_kept_when_refused(tmp_path: Path, args: str) -> None:
    """Nothing is enqueued, nothing is lost, and the page says what is wrong."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True)
    async def work(value: int) -> None: ...

    async with manager, visit(manager) as visitor:
        handle = work.enqueue(7)
        await handle
        await manager.flush()
        answer = await visitor.post(f"tasks/{handle.task_id}/enqueue", {"args": args, "kwargs": '{"x": 1}'})
        assert answer.status_code == 422
        assert 'role="alert"' in answer.text
        assert (typed(answer.text, "args"), typed(answer.text, "kwargs")) == (args, '{"x": 1}')
        assert sum((await manager.counts()).values()) == 1


async def test_hidden_arguments_are_not_in_the_form(tmp_path: Path) -> None:
    """The form is no way around `hide_arguments` and `format_arguments`; whoever may act writes all of them."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True)
    async def work(value: str) -> None: ...

    async with manager:
        handle = work.enqueue("secret")
        await handle
        await manager.flush()
        for options in ({"hide_arguments": True}, {"format_arguments": lambda *_: "***"}):
            async with visit(manager, **options) as visitor:
                html = await visitor.text(f"tasks/{handle.task_id}/enqueue")
                assert "secret" not in html
                assert "write all of them" in html


async def test_reader_gets_no_form_to_enqueue(tmp_path: Path) -> None:
    """Who may only look cannot enqueue, by the form or without it."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True)
    async def work() -> None: ...

    async with manager, visit(manager, "read") as visitor:
        handle = work.enqueue()
        await handle
        await manager.flush()
        address = f"tasks/{handle.task_id}/enqueue"
        assert "<textarea" not in await visitor.text(address)
        assert (await visitor.post(address, {"args": "[]", "kwargs": "{}"})).status_code == 403


async def test_manager_in_memory_runs_what_the_form_enqueues(tmp_path: Path) -> None:
    """Nobody looks for rows in memory, so the manager is told of the new one."""
    manager = TaskManager(None)

    @manager.task
    async def work(value: int) -> int:
        return value

    async with manager, visit(manager) as visitor:
        handle = work.enqueue(7)
        await handle
        await manager.flush()
        answer = await visitor.post(f"tasks/{handle.task_id}/enqueue", {"args": "[8]", "kwargs": "{}"})
        assert await manager.handle(answer.headers["location"].rpartition("/")[2]) == 8
