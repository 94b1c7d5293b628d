"""The page of tasks: its filter, its pages, and the actions in its rows."""

import asyncio
import re
from pathlib import Path

import pytest

from taskmanager import TaskManager, TaskStatus
from taskmanager.web import tasks
from tests.web.rows import first_failure, multiply, query
from tests.web.visitor import manager_on, visit

pytestmark = pytest.mark.anyio
_ROW = re.compile(r'<tr id="task-[^"]*" data-id="([^"]*)"')
_OLDER = re.compile(r'href="\./(tasks\?[^"]*)" rel="next"')


def ids_in(html: str) -> list[str]:
    return _ROW.findall(html)


def older_in(html: str) -> str | None:
    match = _OLDER.search(html)
    return None if match is None else match[1].replace("&amp;", "&")


async def failed(manager: TaskManager, count: int, name: str = "fail") -> list[str]:
    """Add so many tasks that fail at once, and return their ids, oldest first."""

    @manager.task(persist=None if "in memory" in repr(manager) else True, name=name)
    async def fail(text: str) -> None:
        raise ValueError(text)

    handles = [fail.enqueue(f"<b>no</b> {n}") for n in range(count)]
    for handle in handles:
        assert (await handle.result()).is_err()
    await manager.flush()
    return [handle.task_id for handle in handles]


async def test_list_shows_what_a_failure_says_as_text(tmp_path: Path) -> None:
    """Whatever an application raises is text, and an id stands in the page as a whole."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        (task_id,) = await failed(manager, 1)
        html = await visitor.text("tasks?status=FAILED")
        assert "ValueError: &lt;b&gt;no&lt;/b&gt; 0" in html
        assert "<b>no</b>" not in html
        assert f'<span class="id mono">{task_id}</span>' in html
        assert "1 failed task<" in html


async def test_pages_neither_skip_nor_repeat_while_tasks_arrive(tmp_path: Path) -> None:
    """A page begins behind a place in the list, not after a number of rows."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        expected = await failed(manager, tasks.PAGE * 2 + 7)
        address: str | None = "tasks?status=FAILED"
        seen: list[str] = []
        while address is not None:
            html = await visitor.text(address)
            seen += ids_in(html)
            await failed(manager, 3, f"later{len(seen)}")
            address = older_in(html)
        assert seen == expected[::-1]


async def test_list_that_is_held_keeps_its_rows_and_counts_the_new_ones(tmp_path: Path) -> None:
    """What arrives must not push the rows away from under the pointer."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        first = (await failed(manager, 3))[::-1]
        await failed(manager, 2, "later")
        held = await visitor.get("tasks?status=FAILED", **{"x-rows": ",".join(first)})
        assert ids_in(held.text) == first
        assert ">2 new</a>" in held.text
        await visitor.post(f"tasks/{first[0]}/retry", {})
        held = await visitor.get("tasks?status=COMPLETED", **{"x-rows": ",".join(first)})
        assert ids_in(held.text) == first


@pytest.mark.parametrize(
    "query", ["status=NOPE", "since=x", "tag=a", "before=x", "task=a&task=b", "queue=" + "x" * 2000]
)
async def test_filter_with_a_fault_shows_a_sentence_and_no_task(tmp_path: Path, query: str) -> None:
    """A list of all tasks would be wrong, and a traceback of no use."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        await failed(manager, 1)
        answer = await visitor.get(f"tasks?{query}")
        assert answer.status_code == 400
        assert 'class="fault"' in answer.text
        assert ids_in(answer.text) == []
        assert "bulk/" not in answer.text


async def test_address_of_a_form_is_made_short(tmp_path: Path) -> None:
    """What a form has left empty says nothing to the colleague who gets the address."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        answer = await visitor.get("tasks?status=FAILED&text=&task=&queue=mail&tag=")
        assert (answer.status_code, answer.headers["location"]) == (303, "./tasks?status=FAILED&queue=mail")


async def test_retry_in_a_row_leads_back_to_its_list(tmp_path: Path) -> None:
    """Who works through a list stays in it."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        (task_id,) = await failed(manager, 1)
        answer = await visitor.post(f"tasks/{task_id}/retry", {"list": "status=FAILED&task=a%26b"})
        assert (answer.status_code, answer.headers["location"]) == (303, "../../tasks?status=FAILED&task=a%26b")
        await manager.handle(task_id).result()
        assert (await manager.handle(task_id).info()).start_count == 2
        answer = await visitor.post(f"tasks/{task_id}/cancel", {})
        assert answer.headers["location"] == f"../../tasks/{task_id}"


async def test_retry_of_a_task_that_is_gone_says_so(tmp_path: Path) -> None:
    """Its record may have been deleted since the page was made."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        answer = await visitor.post("tasks/01a22079-3add-750c-9d03-39fd28862abb/retry", {})
        assert answer.status_code == 400
        assert "There is no task 01a22079" in answer.text


async def test_cancel_in_a_row_reaches_a_task_in_memory(tmp_path: Path) -> None:
    """A task that is not in the file is asked for at the manager itself."""
    manager = manager_on(tmp_path)

    @manager.task()
    async def wait() -> None:
        await asyncio.Event().wait()

    async with manager, visit(manager) as visitor:
        handle = wait.enqueue()
        await visitor.post(f"tasks/{handle.task_id}/cancel", {})
        assert (await handle.result()).is_err()
        assert handle.status is TaskStatus.CANCELLED


async def test_actions_are_for_those_who_may_act(tmp_path: Path) -> None:
    """Who only looks gets no button that would be refused."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager, "read") as visitor:
        (task_id,) = await failed(manager, 1)
        html = await visitor.text("tasks?status=FAILED")
        assert ids_in(html) == [task_id]
        assert 'method="post"' not in html
        assert "bulk/" not in html


async def test_list_of_a_manager_in_memory_shows_its_tasks(tmp_path: Path) -> None:
    """A manager without a file has a dashboard too, while it runs."""
    manager = TaskManager(None)
    async with manager, visit(manager) as visitor:
        (task_id,) = await failed(manager, 1)
        assert ids_in(await visitor.text("tasks")) == [task_id]
        await visitor.post(f"tasks/{task_id}/retry", {})
        await manager.handle(task_id).result()
        assert (await manager.handle(task_id).info()).start_count == 2


async def test_list_shows_rows_that_cannot_be_read(tmp_path: Path) -> None:
    """A flipped byte in one row must not hide the others, nor the pages behind it."""
    await first_failure(tmp_path)
    multiply(tmp_path, 2 * tasks.PAGE)
    bad = f"copy-{tasks.PAGE + 1:07}"
    query(tmp_path, "UPDATE taskmanager_tasks SET id = CAST(x'ff3c' AS TEXT), tags = '[' WHERE id = ?", bad)
    async with visit(TaskManager(tmp_path / "tasks.db")) as visitor:
        html = await visitor.text("tasks")
        assert ids_in(html)[-1] == "\ufffd&lt;"
        assert "task_id is not UTF-8, tags is not the JSON that belongs there" in html
        older = older_in(html)
        assert older is not None
        assert ids_in(await visitor.text(older))[0] == f"copy-{tasks.PAGE:07}"


async def test_list_says_how_far_a_long_search_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is searched on from there, until everything was looked at."""
    await first_failure(tmp_path)
    multiply(tmp_path, 3_000)
    query(tmp_path, "UPDATE taskmanager_tasks SET queue_name = 'rare' WHERE id = 'copy-0000001'")
    monkeypatch.setattr(tasks, "LOOK_S", 0.0)
    async with visit(TaskManager(tmp_path / "tasks.db")) as visitor:
        address: str | None = "tasks?queue=rare"
        found: list[str] = []
        looks = 0
        while address is not None:
            html = await visitor.text(address)
            assert ("Search on from there" in html) == (older_in(html) is not None)
            found += ids_in(html)
            address = older_in(html)
            looks += 1
        assert found == ["copy-0000001"]
        assert looks > 1


async def test_list_without_a_task_leads_to_names_that_contain_the_given_one(tmp_path: Path) -> None:
    """Who types a part of a name means the functions that have it."""
    await first_failure(tmp_path, "app.mail:send")
    async with visit(TaskManager(tmp_path / "tasks.db")) as visitor:
        html = await visitor.text("tasks?task=mail")
        (address,) = re.findall(r'href="\./(tasks\?task=[^"]*)"', html)
        assert len(ids_in(await visitor.text(address))) == 1


async def test_empty_list_beside_a_task_in_memory_does_not_say_there_is_none(tmp_path: Path) -> None:
    """Who has just enqueued the first task, and sees it in no list, is told where it is."""
    manager = manager_on(tmp_path)
    begun, gate = asyncio.Event(), asyncio.Event()

    @manager.task
    async def wait() -> None:
        begun.set()
        await gate.wait()

    async with manager, visit(manager) as visitor:
        assert "There is no task yet." in await visitor.text("tasks")
        handle = wait.enqueue()
        await begun.wait()
        async with asyncio.timeout(10):
            while "1 more running in the memory" not in (html := await visitor.text("tasks")):  # noqa: ASYNC110  # a file has no event
                await asyncio.sleep(0)
        assert "No task is in this list yet." in html
        gate.set()
        await handle


async def test_empty_list_of_a_manager_in_memory_says_when_tasks_come_into_it() -> None:
    """A task without a file is in no row before its end."""
    manager = TaskManager(None)
    async with manager, visit(manager) as visitor:
        assert "No task is in this list yet." in await visitor.text("tasks")
