"""The page of schedules."""

import re
from pathlib import Path

import pytest

from taskmanager.store.file_place import FilePlace
from taskmanager.web.app import file_site, pages_of
from taskmanager.web.guard import Guard
from tests.web.visitor import Visitor, manager_on, visit

pytestmark = pytest.mark.anyio


async def test_schedule_is_paused_resumed_and_run_by_its_forms(tmp_path: Path) -> None:
    """What is pressed in the browser holds for every instance; a run by hand leads to its task."""
    manager = manager_on(tmp_path)

    @manager.schedule(every=3_600, name="sweep")
    @manager.task(name="app:sweep")
    async def sweep() -> None: ...

    async with manager, visit(manager) as visitor:
        answer = await visitor.post("schedules/pause", {"schedule": "sweep"})
        assert (answer.status_code, answer.headers["location"]) == (303, "../schedules")
        assert "Paused" in await visitor.text("schedules")
        assert [each.is_paused for each in await manager.schedules()] == [True]
        await visitor.post("schedules/resume", {"schedule": "sweep"})
        assert [each.is_paused for each in await manager.schedules()] == [False]
        answer = await visitor.post("schedules/run", {"schedule": "sweep"})
        task_id = answer.headers["location"].rpartition("/")[2]
        await manager.handle(task_id)
        html = await visitor.text("schedules")
        assert f'href="./tasks/{task_id}"' in html
        assert "Completed" in html


async def test_fires_of_a_day_stand_on_the_line(tmp_path: Path) -> None:
    """An interval is seen as many marks, and one that fires each minute as a band; a paused one has none."""
    manager = manager_on(tmp_path)

    @manager.schedule(every=7_200, name="rare")
    @manager.schedule(every=60, name="often")
    @manager.schedule(cron="0 3 * * *", name="paused")
    @manager.task(name="app:sweep")
    async def sweep() -> None: ...

    async with manager, visit(manager) as visitor:
        await manager.pause_schedule("paused")
        html = await visitor.text("schedules")
        rows = {
            name: html.partition(f'id="schedule-{name}"')[2].partition("</tr>")[0]
            for name in ("rare", "often", "paused")
        }
        assert rows["rare"].count("<circle") in (11, 12)
        assert rows["often"].count("<rect") == 1
        assert "<circle" not in rows["paused"]


async def test_hostile_name_of_a_schedule_is_text(tmp_path: Path) -> None:
    """A name may be anything, in the table, in its forms and in the question before a run."""
    manager, name = manager_on(tmp_path), "<b>\"x\" 'y' &amp;"

    @manager.schedule(every=3_600, name=name)
    @manager.task(name="app:sweep")
    async def sweep() -> None: ...

    async with manager, visit(manager) as visitor:
        html = await visitor.text("schedules")
        assert "<b>" not in html
        assert (await visitor.post("schedules/pause", {"schedule": name})).status_code == 303
        assert [each.is_paused for each in await manager.schedules()] == [True]
        assert (await visitor.post("schedules/pause", {"schedule": "no such"})).status_code == 400


async def test_schedules_of_a_file_whose_application_is_down_say_so(tmp_path: Path) -> None:
    """Nothing fires then, and a person who waits for the next run should know."""
    manager = manager_on(tmp_path)

    @manager.schedule(every=3_600, name="sweep")
    @manager.task(name="app:sweep")
    async def sweep() -> None: ...

    async with manager:
        pass
    site = file_site(FilePlace(tmp_path / "tasks.db"), title="tasks")
    async with Visitor(Guard(pages_of(site), lambda _request: "read", read_only=False, title="tasks")) as visitor:
        html = await visitor.text("schedules")
    assert "No instance is running" in html
    assert not re.search(r"<form[^>]+schedules/", html)


async def test_schedule_that_nobody_declares_is_told_apart(tmp_path: Path) -> None:
    """A schedule of an earlier release stands in the file, and fires no more."""
    before = manager_on(tmp_path)

    @before.schedule(every=3_600, name="old")
    @before.task(name="app:sweep")
    async def sweep() -> None: ...

    async with before:
        pass
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        html = await visitor.text("schedules")
        row = html.partition('id="schedule-old"')[2].partition("</tr>")[0]
        assert "not declared" in row
        assert "<circle" not in row
