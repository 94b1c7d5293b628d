"""The first page."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from taskmanager import TaskManager, current_task
from taskmanager.console.overview import NO_COUNTS
from taskmanager.model.states import TaskStatus
from taskmanager.store.sql.scanning import COUNT_CAP
from taskmanager.web.overview import MAX_ROWS, sentences_of, tiles_of, troubles_of, values_of
from tests.unit.console_overviews import BAD_DAY, BUSY, EMPTY, queue
from tests.web.visitor import manager_on, visit

pytestmark = pytest.mark.anyio


async def test_empty_file_says_what_to_do_and_nothing_of_problems(tmp_path: Path) -> None:
    """Whoever has just mounted the dashboard sees that it works."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        page = await visitor.text("")
    assert "There is no task yet." in page
    assert 'class="problems"' not in page


async def test_paused_queue_is_a_problem_that_one_press_mends(tmp_path: Path) -> None:
    """The form on the overview is the one of the page of queues."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True, queue_name="mail")
    async def send() -> None: ...

    async with manager, visit(manager) as visitor:
        await manager.pause("mail")
        waiting = send.enqueue()
        await waiting.saved()
        page = await visitor.text("")
        assert "Queue mail is paused, and 1 task waits in it" in page
        assert 'action="./queues/resume"' in page
        await visitor.post("queues/resume", {"queue": "mail"}, page="")
        await waiting


async def test_viewer_who_may_not_act_sees_the_problem_without_the_button(tmp_path: Path) -> None:
    """What would be refused is not offered."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True, queue_name="mail")
    async def send() -> None: ...

    async with manager, visit(manager, "read") as visitor:
        await manager.pause("mail")
        await send.enqueue().saved()
        page = await visitor.text("")
    assert "Queue mail is paused" in page
    assert "<form" not in page


async def test_running_task_shows_its_progress_and_the_time_left(tmp_path: Path) -> None:
    """What a task has said of itself is a bar; without it there is none."""
    manager, is_told, may_end = manager_on(tmp_path), asyncio.Event(), asyncio.Event()

    @manager.task(name="report", persist=True)
    async def report() -> None:
        current_task().progress(62, 100, "<page> 62")
        is_told.set()
        await may_end.wait()

    async with manager, visit(manager) as visitor:
        running = report.enqueue()
        await is_told.wait()
        page = await visitor.text("")
        may_end.set()
        await running
    assert '<progress max="1" value="0.6200" aria-label="Progress of report">' in page
    assert "62 of 100 · &lt;page&gt; 62" in page
    assert 'data-left="0.620000"' in page


async def test_failure_links_to_its_task(tmp_path: Path) -> None:
    """From the newest failures to the traceback it is one press."""
    manager = manager_on(tmp_path)

    @manager.task(name="fail", persist=True)
    async def fail() -> None:
        raise ValueError("no such customer")

    async with manager, visit(manager) as visitor:
        failed = fail.enqueue()
        with pytest.raises(Exception, match="no such customer"):
            await failed
        page = await visitor.text("")
    assert f'href="./tasks/{failed.task_id}"' in page
    assert "ValueError: no such customer" in page


async def test_stretch_of_the_charts_is_part_of_the_address(tmp_path: Path) -> None:
    """So that it can be sent to a colleague; an unknown one means the hour."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True)
    async def send() -> None: ...

    async with manager, visit(manager) as visitor:
        await send.enqueue()
        assert "The last day" in await visitor.text("?span=day")
        assert "The last hour" in await visitor.text("?span=1%27%20OR%201")


async def test_manager_in_memory_has_an_overview_too() -> None:
    """A dashboard can be mounted before anybody thinks of a file."""
    manager = TaskManager(None)

    @manager.task
    async def send() -> None: ...

    async with manager, visit(manager) as visitor:
        await send.enqueue()
        assert "In memory" in await visitor.text("")


def test_tiles_say_no_more_than_that_there_are_more_than_10_000() -> None:
    """As the page of tasks does, to which they lead."""
    counts = {**NO_COUNTS, TaskStatus.PENDING: COUNT_CAP, TaskStatus.FAILED: COUNT_CAP + 1}
    tiles = {each.status: each for each in tiles_of(replace(EMPTY, counts=counts))}
    assert (tiles[TaskStatus.PENDING].number, tiles[TaskStatus.PENDING].is_capped) == (COUNT_CAP, False)
    assert (tiles[TaskStatus.FAILED].number, tiles[TaskStatus.FAILED].is_capped) == (COUNT_CAP, True)


def test_tiles_of_counts_that_were_cut_say_that_there_are_more() -> None:
    """An instance that looks at itself stops counting a status that has many rows."""
    tiles = tiles_of(replace(EMPTY, capped=frozenset({TaskStatus.COMPLETED})))
    assert [each.status for each in tiles if each.is_capped] == [TaskStatus.COMPLETED]


def test_troubles_name_each_task_once_and_the_failing_first() -> None:
    """A task may fail often and take long."""
    names = [each.task_name for each in troubles_of(BUSY)]
    assert names == ["mail:send_mail", "crawler:crawl", "reports:build_report", "shop.jobs:resize_image"]


def test_fullest_queues_are_shown_by_name() -> None:
    """Rows that change places with every task would jump under the pointer."""
    queues = tuple(queue(f"q{number}", 0, 9 - number) for number in (2, 1, 3, 4, 5, 6, 7, 8, 0))
    shown = values_of(replace(EMPTY, queues=queues))["queues"]
    assert shown == sorted(queues[:MAX_ROWS], key=lambda each: each.queue_name)


def test_problem_begins_as_a_sentence_but_no_name_is_changed() -> None:
    """An instance that is called web is not called Web."""
    paused = BAD_DAY.problems[0]._replace(text="queue mail is paused")
    overview = replace(BAD_DAY, problems=(BAD_DAY.problems[0], paused))
    assert sentences_of(overview) == [BAD_DAY.problems[0].text, "Queue mail is paused"]
