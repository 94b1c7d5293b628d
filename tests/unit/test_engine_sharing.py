"""Several instances on one file: who takes what, and who waits for whom."""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager import QueueConfig, TaskCancelled, TaskManager, TaskStatus
from taskmanager.engine.look import sharing
from taskmanager.model.record import TaskRow, TaskWrite, expected_of
from taskmanager.model.schedule import ScheduleDeclaration
from taskmanager.store.protocol import ClaimRequest, CommitReport, InstanceRow, News
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.presence import InstanceLock
from tests.contract.rows import FREE_ROW

pytestmark = pytest.mark.anyio


def held_until(gate: asyncio.Event, db: Path, **options: Any) -> tuple[TaskManager, Any]:
    """A manager with a task `work` that ends when the gate opens."""
    manager = TaskManager(db, store_poll=0.02, **options)

    async def work(number: int) -> int:
        await gate.wait()
        return number

    return manager, manager.task(name="work", persist=True, requeue_on_interrupt=True)(work)


def owners(db: Path) -> dict[str, int]:
    """How many CLAIMED and RUNNING rows each instance has."""
    with closing(sqlite3.connect(db)) as connection:
        sql = "SELECT claimed_by_worker_id, count(*) FROM taskmanager_tasks WHERE status IN ('CLAIMED', 'RUNNING')"
        return dict(connection.execute(f"{sql} GROUP BY 1").fetchall())


def unfinished(db: Path) -> int:
    """How many rows have not ended, whoever has them."""
    with closing(sqlite3.connect(db)) as connection:
        sql = "SELECT count(*) FROM taskmanager_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')"
        return int(connection.execute(sql).fetchone()[0])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  # what another instance does in the file has no event
            await asyncio.sleep(0.005)


async def test_what_one_instance_claimed_for_later_is_shared_with_one_that_comes(tmp_path: Path) -> None:
    """Alone, memory is filled for speed; beside another one, nobody holds what an idle one could start."""
    db, gate = tmp_path / "tasks.db", asyncio.Event()
    left, task = held_until(gate, db, drain_timeout=0)
    async with left:
        for number in range(50):
            task.enqueue(number)
    (a, _), (b, _) = (held_until(gate, db, concurrency=2, threads=1, processes=1) for _ in "ab")
    async with a:
        assert list(owners(db).values()) == [50]
        async with b:
            await until(lambda: len(owners(db)) == 2 and sum(owners(db).values()) < 50)
            await until(lambda: max(owners(db).values()) <= 2 + 2 * 4)
            gate.set()
            await until(lambda: not unfinished(db))
        counts = await a.counts()
    assert {status: number for status, number in counts.items() if number} == {"COMPLETED": 50}


async def test_join_by_tag_waits_for_tasks_that_wait_in_the_file(tmp_path: Path) -> None:
    """Where there is no room in memory they are nobody's, and accepted here all the same."""
    gate = asyncio.Event()
    manager, task = held_until(gate, tmp_path / "tasks.db", concurrency=1, max_in_memory=1)
    async with manager:
        mine = [task.with_options(tags={"batch": "1"}).enqueue(number) for number in range(6)]
        await asyncio.gather(*(each.saved() for each in mine))
        joining = asyncio.ensure_future(manager.join(tags={"batch": "1"}))
        gate.set()
        await asyncio.wait_for(joining, 20)
        assert [each.status for each in mine] == ["COMPLETED"] * 6


async def test_join_by_tag_waits_for_a_task_that_is_being_claimed(tmp_path: Path) -> None:
    """Between a claim and its answer a row is neither free in the file nor in memory. The task is unfinished."""
    gate, answered = asyncio.Event(), asyncio.Event()
    manager, task = held_until(gate, tmp_path / "tasks.db", concurrency=1, max_in_memory=1)
    async with manager:
        assert manager._lifecycle is not None
        store, loop = manager._lifecycle.engine.store, asyncio.get_running_loop()
        claim, claimed = store.claim, asyncio.Event()
        mine = [task.with_options(tags={"batch": "1"}).enqueue(number) for number in range(6)]
        await asyncio.gather(*(each.saved() for each in mine))

        async def slow(*requests: ClaimRequest) -> list[TaskRow]:
            rows = await claim(*requests)
            if any(row.task_id == mine[-1].task_id for row in rows):
                claimed.set()
                await answered.wait()
            return rows

        store.claim = slow  # type: ignore[method-assign]  # the one call that is to take long
        gate.set()
        await asyncio.wait_for(claimed.wait(), 20)
        loop.call_later(0.1, answered.set)
        await asyncio.wait_for(manager.join(tags={"batch": "1"}), 20)
        assert mine[-1].status is TaskStatus.COMPLETED


@pytest.mark.parametrize("is_taken", [True, False], ids=["the other takes it", "nobody takes it"])
async def test_a_place_is_left_for_a_moment_to_others_whose_task_is_the_best(tmp_path: Path, is_taken: bool) -> None:
    """Or an instance with a backlog would take its own place again for ever, and what only they can run would wait."""
    db, gate = tmp_path / "tasks.db", asyncio.Event()
    gate.set()
    queue = QueueConfig("shared", max_concurrency=1, scope="file")
    manager, task = held_until(gate, db, queues=[queue])
    mine = task.with_options(queue_name="shared")
    lock = InstanceLock(db, "other")
    lock.take()
    async with manager:
        assert manager._lifecycle is not None
        engine, other = manager._lifecycle.engine, SqliteStore(db)
        await other.open()
        document = json.dumps({"task_names": ["theirs"]})
        await other.save_instance(InstanceRow("other", None, "host", 1, "main", None, 1, None, document, 1))
        theirs = FREE_ROW._replace(task_id="theirs", task_name="theirs", queue_name="shared")
        await other.commit([TaskWrite(theirs, None)])
        neighbours = manager._lifecycle.engine.neighbours
        await until(lambda: neighbours.living == {"other"})
        async with asyncio.timeout(20):
            await mine.enqueue(1)
            second = mine.enqueue(2)
            await second.saved()
            shared_limit = engine.dispatcher.queue("shared").shared_limit
            assert shared_limit is not None
            await until(lambda: shared_limit.is_left_to_others)
            if is_taken:
                request = ClaimRequest("other", ["theirs"], "shared", 9, engine.clock.now_us(), file_limit=1)
                (claimed,) = await other.claim(request)
                await until(lambda: not shared_limit.is_left_to_others)
                assert second.status is TaskStatus.PENDING, "the place is in use"
                started = claimed._replace(status="RUNNING", started_at=200, start_count=1)
                ended = started._replace(status="COMPLETED", completed_at=300)
                for row, base in ((started, claimed), (ended, started)):
                    assert await other.commit([TaskWrite(row, expected_of(base))]) == CommitReport({}, {})
            assert await second == 2
        counts = await manager.counts()
        await other.close()
    lock.drop()
    assert (counts[TaskStatus.COMPLETED], counts[TaskStatus.PENDING]) == ((3, 0) if is_taken else (2, 1))


@pytest.mark.parametrize(
    ("live_tasks", "can_run"),
    [
        ('{"task_names": ["theirs"]}', True),
        ('{"task_names": null}', True),
        ('{"task_names": ["others"]}', False),
        ('{"task_names": null, "run_queues": ["mail"]}', True),
        ('{"task_names": ["theirs"], "run_queues": []}', False),
        ('{"task_names": ["theirs"], "is_stopping": true}', False),
        ('{"is_stopping": false}', False),
        ("[]", False),
        ("{", False),
        (None, False),
    ],
)
def test_a_place_is_left_only_to_who_says_that_it_can_take_it(live_tasks: str | None, can_run: bool) -> None:
    """One that stops, that knows other functions, or that another version has described, would leave it empty."""
    instance = InstanceRow("other", None, "host", 1, "main", None, 1, None, live_tasks, 1)
    assert sharing._can_run(instance, "theirs", "mail") is can_run


async def test_a_backlog_does_not_keep_an_instance_from_hearing_others(tmp_path: Path) -> None:
    """What runs makes room for more without end; a pause from a second terminal counts all the same."""
    db, count, ran = tmp_path / "tasks.db", 3000, 0
    manager = TaskManager(db, store_poll=0.02, max_in_memory=100)

    @manager.task(persist=True, name="work")
    async def work() -> None:
        nonlocal ran
        ran += 1
        if ran == 200:
            with closing(sqlite3.connect(db)) as connection, connection:
                connection.execute("INSERT INTO taskmanager_queues (queue_name, paused_at) VALUES ('default', 1)")

    async with manager:
        with closing(sqlite3.connect(db)) as connection, connection:
            for _ in range(count):
                connection.execute(*manager.insert_statement(work))
        assert manager._lifecycle is not None
        queue = manager._lifecycle.engine.dispatcher.queue("default")
        await until(lambda: queue.is_paused)
        assert ran < count


async def test_the_schedules_of_one_that_died_are_taken_over(tmp_path: Path) -> None:
    """Also by an instance that knew another definition, which fired nothing while that one was there."""
    db = tmp_path / "tasks.db"
    manager, other = TaskManager(db, store_poll=0.02), SqliteStore(db)

    @manager.schedule(every=3600, name="tick")
    @manager.task(name="tick")
    async def tick() -> None: ...

    lock = InstanceLock(db, "zz-later")
    lock.take()
    async with manager:
        assert manager._lifecycle is not None
        neighbours, schedules = manager._lifecycle.engine.neighbours, manager._lifecycle.duties.schedules
        await other.open()
        await other.save_instance(InstanceRow("zz-later", None, "host", 1, "main", None, 1, None, None, 1))
        newer = ScheduleDeclaration("tick", "another", "tick", "every 7200 s", "{}", 1)
        assert await other.declare_schedules([newer], "zz-later", 2) == {"tick"}
        await until(lambda: neighbours.living == {"zz-later"})
        await schedules.refresh()
        assert schedules.book.rows["tick"].owner_id == "zz-later"
        lock.close_descriptor()
        await until(lambda: schedules.book.rows["tick"].owner_id == manager.status().instance_id)
        await other.close()


async def test_a_pause_holds_against_what_was_read_before_it(tmp_path: Path) -> None:
    """A look at what others did is under way when a queue is paused here, and ends after it."""
    manager, store = TaskManager(tmp_path / "tasks.db", store_poll=0.01), SqliteStore(tmp_path / "tasks.db")
    manager._make_store = lambda: store
    read, reading, gate = store.news, asyncio.Event(), asyncio.Event()

    async def held(instance_id: str) -> News:
        found = await read(instance_id)
        reading.set()
        await gate.wait()
        return found

    async with manager:
        assert manager._lifecycle is not None
        poller = manager._lifecycle._poller
        store.news = held  # type: ignore[method-assign]  # the one call that is to take long
        manager._lifecycle.engine.life.whole_looks_wanted += 1
        await reading.wait()
        await manager.pause("default")
        store.news = read  # type: ignore[method-assign]  # as it was
        gate.set()
        await until(lambda: not poller.wants_whole_look)
        assert manager.status().queues["default"].is_paused


# Tasks that wait at a busy instance.


class Site:
    """One instance with a task that notes who ran it, and waits for the gate of its instance."""

    def __init__(self, db: Path, name: str, ran: list[tuple[str, int]], **options: Any) -> None:
        self.gate = asyncio.Event()
        self.manager = TaskManager(db, store_poll=0.02, **options)

        async def work(number: int) -> int:
            ran.append((name, number))
            await self.gate.wait()
            return number

        self.work: Any = self.manager.task(name="work", persist=True)(work)

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self.manager.status().queues.values())


async def test_an_idle_instance_takes_over_what_waits_at_a_busy_one(tmp_path: Path) -> None:
    """Due tasks that have waited for a poll, as many as it has slots; it looks again when they have ended. The busy one
    drops what it has lost, and whoever waits there is told.
    """
    ran: list[tuple[str, int]] = []
    busy = Site(tmp_path / "tasks.db", "busy", ran, concurrency=1)
    idle = Site(tmp_path / "tasks.db", "idle", ran, concurrency=4)
    idle.gate.set()
    async with busy.manager, idle.manager:
        mine = [busy.work.enqueue(number) for number in range(40)]
        async with asyncio.timeout(20):
            assert await asyncio.gather(*mine[1:]) == list(range(1, 40))
            assert not mine[0].status.is_terminal
            assert busy.waiting == 0
            joining = asyncio.ensure_future(busy.manager.join())
            busy.gate.set()
            await joining
    assert sorted(number for _, number in ran) == list(range(40))
    assert [number for name, number in ran if name == "busy"] == [0]


async def test_a_taken_over_task_is_cancelled_joined_and_found_from_where_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is lost for those who enqueued it, and the log has no word of it: it is no fault."""
    ran: list[tuple[str, int]] = []
    busy = Site(tmp_path / "tasks.db", "busy", ran, concurrency=1)
    idle = Site(tmp_path / "tasks.db", "idle", ran, concurrency=4)
    async with busy.manager, idle.manager:
        first = busy.work.enqueue(0)
        keyed = busy.work.with_options(idempotency_key="k").enqueue(1)
        tagged = busy.work.with_options(tags={"batch": "1"}).enqueue(2)
        await asyncio.gather(keyed.saved(), tagged.saved())
        await until(lambda: {("idle", 1), ("idle", 2)} <= set(ran))
        await until(lambda: busy.waiting == 0)
        again = busy.work.with_options(idempotency_key="k").enqueue(9)
        joining = asyncio.ensure_future(busy.manager.join(tags={"batch": "1"}))
        await until(lambda: again.is_duplicate is True)
        assert not joining.done()
        assert await busy.manager.cancel(keyed.task_id)
        for handle in (keyed, again):
            with pytest.raises(TaskCancelled):
                await asyncio.wait_for(handle, 10)
        idle.gate.set()
        await asyncio.wait_for(joining, 10)
        assert await tagged == 2
        busy.gate.set()
        assert await first == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_idle_instance_takes_over_nothing_that_is_not_for_it(tmp_path: Path) -> None:
    """Paused queues, functions that it does not know, and lanes in which it has no slot."""
    ran: list[tuple[str, int]] = []
    busy = Site(tmp_path / "tasks.db", "busy", ran, concurrency=1)
    idle = Site(tmp_path / "tasks.db", "idle", ran, concurrency=2)

    @busy.manager.task(persist=True, name="unknown")
    async def unknown() -> None: ...

    idle.gate.set()
    async with busy.manager, idle.manager:
        await busy.manager.pause("paused")
        handles = [busy.work.enqueue(0), busy.work.with_options(queue_name="paused").enqueue(1), unknown.enqueue()]
        handles.append(busy.work.with_options(delay=3600).enqueue(2))
        await asyncio.gather(*(each.saved() for each in handles))
        assert await asyncio.wait_for(busy.work.enqueue(3), 10) == 3
        assert [each.status for each in handles] == ["RUNNING", "PENDING", "PENDING", "PENDING"]
        assert ran == [("busy", 0), ("idle", 3)]
        busy.gate.set()
        await handles[0]
        await handles[2]
        assert await busy.manager.cancel(handles[3].task_id)
        assert await busy.manager.cancel(handles[1].task_id)
