"""`taskmanager copy` with real files, servers and signals: nothing is lost or doubled, and all that waited goes on."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager, Workflow, step
from taskmanager import wait_for as wait_for_event
from taskmanager.store.place import place_at
from tests.acceptance.odd_files import OTHERS, fill_healthy, fill_others, fill_tasks
from tests.acceptance.odd_files import made_file as made_odd_file
from tests.crash.harness import wait_for
from tests.unit.command_line import taskmanager

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals"),
]
MANY = 6_000


def run_app(place: str, ran: Counter[str], main: Any) -> Any:
    """Run `main(manager, tasks)` with an application whose tasks count themselves in `ran`."""
    manager = TaskManager(place, requeue_pending=True)

    @manager.task(persist=True, name="plain")
    async def plain(number: int) -> int:
        ran[f"plain {number}"] += 1
        return number

    @manager.task(persist=True, name="failing", retries=1, retry_delay=5)
    async def failing() -> str:
        ran["failing"] += 1
        if ran["failing"] == 1:
            raise OSError("not yet")
        return "at last"

    @manager.task(persist=True, name="ordering", requeue_on_interrupt=True)
    async def ordering() -> str:
        def charge() -> str:
            ran["charge"] += 1
            return "receipt"

        receipt = await step(charge)
        paid = await wait_for_event("paid", str)
        return f"{receipt} {paid}"

    @manager.task(persist=True, name="later", queue_name="later")
    async def later(number: int) -> int:
        ran["later"] += 1
        return number + 1

    @manager.schedule(every=3_600, name="hourly")
    @manager.task(persist=True, name="hourly")
    async def hourly() -> None:
        ran["hourly"] += 1

    tasks = {"plain": plain, "failing": failing, "ordering": ordering, "later": later}

    async def work() -> Any:
        async with manager:
            return await main(manager, tasks)

    return asyncio.run(work())


async def leave_in_the_middle(manager: TaskManager, tasks: dict[str, Any]) -> dict[str, str]:
    """Everything has begun and nothing is done when the application stops."""
    await manager.pause("later")
    done = tasks["plain"].enqueue(0)
    retried, ordered = tasks["failing"].enqueue(), tasks["ordering"].enqueue()
    waiting = tasks["later"].enqueue(5)
    graph = Workflow("graph")
    first = graph.add(tasks["plain"], 1)
    graph.output(graph.add(tasks["later"], first.value))
    await manager.start_workflow(graph, workflow_id="graph")
    assert await done == 0

    async def are_in_the_middle() -> bool:
        infos = [await handle.info() for handle in (retried, ordered)]
        nodes = await manager.workflow("graph").nodes()
        waits = [info is not None and info.status == "PENDING" and info.start_count == 1 for info in infos]
        return all(waits) and nodes[0].status == "COMPLETED"

    async with asyncio.timeout(60):
        while not await are_in_the_middle():  # noqa: ASYNC110  # what is waited for is in the file
            await asyncio.sleep(0.01)
    return {"failing": retried.task_id, "ordering": ordered.task_id, "later": waiting.task_id}


def test_copy_to_a_server_lets_all_that_waited_go_on_there(tmp_path: Path, schema_url: str) -> None:
    """A retry, a wait for an event behind a step, a paused queue, a workflow and a schedule: each runs exactly once."""
    ran = Counter[str]()
    ids = run_app(str(tmp_path / "tasks.db"), ran, leave_in_the_middle)
    assert taskmanager("copy", tmp_path / "tasks.db", schema_url).code == 0

    async def go_on(manager: TaskManager, tasks: dict[str, Any]) -> None:
        assert [each.next_run_at for each in await manager.schedules()] == due
        assert ran["later"] == 0
        await manager.resume("later")
        assert await manager.send(ids["ordering"], "paid", "by ann")
        assert await manager.handle(ids["failing"]).result() is not None
        assert await manager.handle(ids["ordering"]) == "receipt by ann"
        assert await manager.handle(ids["later"]) == 6
        assert await manager.workflow("graph") == 2

    async def look(manager: TaskManager, tasks: dict[str, Any]) -> list[Any]:
        return [each.next_run_at for each in await manager.schedules()]

    due = run_app(str(tmp_path / "tasks.db"), Counter(), look)
    run_app(schema_url, ran, go_on)
    assert ran == {"plain 0": 1, "plain 1": 1, "failing": 2, "charge": 1, "later": 2}


def made_file(path: Path, number: int) -> None:
    """A file with many tasks that wait, in their hundreds of pages."""

    async def make(manager: TaskManager, tasks: dict[str, Any]) -> None:
        await manager.pause("default")
        handles = [tasks["plain"].enqueue(each) for each in range(number)]
        await handles[-1].saved()

    run_app(str(path), Counter(), make)


def copying(*places: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "taskmanager", "copy", *map(str, places)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def kill_at(source: str, target: str, least: int) -> None:
    """Begin to copy, and kill that when so many tasks are there."""
    copy = copying(source, target)
    wait_for(lambda: count(target) >= least, lambda: f"{count(target)} tasks are there")
    copy.send_signal(signal.SIGKILL)
    copy.wait()


def rows(place: str) -> list[tuple[Any, ...]]:
    with place_at(place).read() as session:
        return session.execute("SELECT * FROM taskmanager_tasks ORDER BY id").fetchall()


def test_copy_goes_on_after_it_was_killed(tmp_path: Path, schema_url: str) -> None:
    """Killed at several places on the way there, and on the way back: the last file is the first one."""
    made_file(tmp_path / "tasks.db", MANY)
    back = tmp_path / "back.db"
    for source, target in ((str(tmp_path / "tasks.db"), schema_url), (schema_url, str(back))):
        for least in (1, MANY // 3):
            kill_at(source, target, least)
        found = json.loads(taskmanager("copy", source, target, "--json").out)
        of_tasks = found["tables"][0]
        assert of_tasks["copied"] < of_tasks["source"] == of_tasks["target"]
    assert rows(str(back)) == rows(str(tmp_path / "tasks.db"))


def count(place: str) -> int:
    """How many tasks are there, 0 while there is no table."""
    if "://" not in place:
        if not Path(place).exists():
            return 0
        with closing(sqlite3.connect(place)) as connection:
            try:
                return int(connection.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()[0])
            except sqlite3.OperationalError:
                return 0
    import psycopg

    address, _, schema = place.partition("?schema=")
    with psycopg.connect(address) as server:
        try:
            found = server.execute(f"SELECT count(*) FROM {schema}.taskmanager_tasks".encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            return 0
    return 0 if found is None else int(found[0])


def test_copy_is_refused_while_an_instance_lives(tmp_path: Path, schema_url: str) -> None:
    """What it holds in memory would run in both places. The refusal names it, and changes nothing."""
    run_app(str(tmp_path / "tasks.db"), Counter(), _nothing)

    def refused(*places: object) -> None:
        ran = taskmanager("copy", *map(str, places))
        assert ran.code == 1
        assert f"(process {os.getpid()} on " in ran.err

    def both(place: object, others: Sequence[object]) -> Any:
        async def look(manager: TaskManager, tasks: dict[str, Any]) -> None:
            for other in others:
                await asyncio.to_thread(refused, place, other)
            await asyncio.to_thread(refused, tmp_path / "tasks.db", place) if place != tmp_path / "tasks.db" else None

        return look

    new = tmp_path / "new.db"
    run_app(str(tmp_path / "tasks.db"), Counter(), both(tmp_path / "tasks.db", [new, schema_url]))
    assert not new.exists()
    run_app(schema_url, Counter(), both(schema_url, [new]))
    assert not new.exists()
    assert taskmanager("copy", tmp_path / "tasks.db", new).code == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_copy_names_each_odd_row_that_stays_behind(tmp_path: Path, schema_url: str) -> None:
    """Every column of every table holds what nobody would write. Whatever a server refuses harms no other row."""
    with closing(asyncio.run(made_odd_file(tmp_path / "tasks.db"))) as connection:
        fill_tasks(connection)
        healthy = [*fill_healthy(connection, "ended", 3), *fill_healthy(connection, "free", 6)]
        fill_others(connection, healthy[0], tuple(OTHERS))
        connection.execute("COMMIT")
    ran = taskmanager("copy", tmp_path / "tasks.db", schema_url, "--json")
    found = json.loads(ran.out)
    assert ran.code == 1
    left = [each["key"] for each in found["left_out"] if each["table"] == "task"]
    tasks = found["tables"][0]
    assert tasks["source"] - tasks["target"] == len(left) > 100
    assert {each["table"] for each in found["left_out"]} == {"task", "attempts of task", "schedule_state"}
    assert not {*healthy} & {*left}
    assert {*healthy} < {row[0] for row in rows(schema_url)}


async def _nothing(manager: TaskManager, tasks: dict[str, Any]) -> None:
    """Start and stop."""
