"""One running instance at one moment, as it shows itself: `status()`, its row, the console and the router."""

import asyncio
import io
import json
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from taskmanager import ManagerStatus, QueueConfig, TaskManager, current_task, step
from taskmanager.duties.reports import Reports, report_of
from taskmanager.integrations.answers import health_of
from taskmanager.testing import isolated
from tests.unit.cli.test_golden_screens import compare

pytestmark = pytest.mark.anyio


def shown(view: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, height=60, color_system=None)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_views_of_one_running_instance_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says the same in its own words: for programs, for other processes, for a person and for a probe."""
    monkeypatch.setattr("os.getpid", lambda: 812)
    monkeypatch.setattr("socket.gethostname", lambda: "host-1")
    queues = (QueueConfig("mail", max_concurrency=2), QueueConfig("one", max_concurrency=1, scope="file"))
    manager = TaskManager("never.db", instance_name="web", queues=queues, threads=3, concurrency=50)
    never = asyncio.Event()

    @manager.task(name="app:build", persist=True)
    async def build(number: int) -> None:
        current_task().progress(number, 10, f"page {number}")
        await never.wait()

    @manager.task(name="app:send", queue_name="mail")
    async def send() -> None:
        await never.wait()

    @manager.task(name="app:fail", retries=1, retry_delay=3600)
    async def fail() -> None:
        raise ValueError("no such mailbox")

    @manager.task(name="app:done", persist=True)
    async def done() -> None: ...

    async with isolated(manager) as world:
        for number in (3, 7):
            build.enqueue(number)
        for _ in range(4):
            send.enqueue()
        fail.enqueue()
        await done.enqueue()
        build.with_options(queue_name="one").enqueue(1)
        build.with_options(queue_name="one").enqueue(2)
        done.with_options(delay=60).enqueue()
        await manager.pause("mail")
        await world.advance(5)
        status = manager.status()
        engine = manager._engine()
        assert engine is not None
        await Reports(engine).show()
        (row,) = await world.store.instances()
        screens = [shown(manager.console(), width) for width in (80, 120)]
        parts = [
            json.dumps(asdict(status), indent=2, default=str),
            json.dumps(json.loads(row.live_tasks or ""), indent=2),
            health_of(status).model_dump_json(indent=2),
            *screens,
        ]
        text = "\n".join(parts).replace(status.instance_id or "", "an-instance")
        for each in world.enqueued:
            text = text.replace(each.task_id, f"id-of-{each.task_name}").replace(each.task_id[-6:], "------")
        compare("instance.txt", text)


async def test_status_of_a_manager_that_does_not_run_says_what_is_held() -> None:
    """There is no instance then, and the tasks wait for the start."""
    manager = TaskManager(None)

    @manager.task(name="job")
    async def job() -> None: ...

    job.enqueue()
    assert manager.status() == ManagerStatus(state=manager.status().state, held_count=1)
    assert "not running, 1 task held for the start" in shown(manager.console(), 80)


async def test_task_that_says_nothing_of_its_progress_shows_its_steps() -> None:
    """The one that runs, and how many run beside it."""
    manager, paid, packed = TaskManager("never.db"), asyncio.Event(), asyncio.Event()

    @manager.task(name="app:order", persist=True)
    async def order(*, is_talkative: bool) -> None:
        if is_talkative:
            current_task().progress(1, 2, "paying")
        await step.with_options(name="charge")(paid.wait)
        calls = [step.with_options(name=name)(packed.wait) for name in ("pack", "label", "pack")]
        await asyncio.gather(*calls)

    async with isolated(manager) as world:
        handles = [order.enqueue(is_talkative=each) for each in (False, True)]
        await world.idle()
        assert texts(manager) == ["paying", "charge"]
        paid.set()
        await world.idle()
        assert texts(manager) == ["paying", "pack and 1 more"]
        packed.set()
        await asyncio.gather(*handles)


def texts(manager: TaskManager) -> list[str]:
    engine = manager._engine()
    assert engine is not None
    return [each.text for each in report_of(engine).tasks]
