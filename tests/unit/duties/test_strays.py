"""Rows that name this instance: those that it knows are left alone, the others are judged like a dead one's."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from taskmanager import QueueConfig, RecoveryConfig, TaskManager, TaskStatus
from taskmanager.store.protocol import Store
from taskmanager.testing.faulty import Fault, FaultyStore
from tests.contract.rows import task
from tests.unit.duties.scene import NOW_US, until

pytestmark = pytest.mark.anyio

SAFE = '{"persist": true, "requeue_on_interrupt": true}'
RETRIED = dumps(
    {
        "persist": True,
        "retry": {
            "codes": ["WORKER_CRASHED"],
            "max_retries": 1,
            "intervals": [5.0],
            "is_exponential": False,
            "factor": 2.0,
            "jitter": False,
            "min_delay_s": 0.0,
            "max_delay_s": 60.0,
        },
    }
)
OFF = RecoveryConfig(auto_requeue_stale_claimed=False, auto_fail_stale_running=False)


@pytest.mark.parametrize("config", [RecoveryConfig(), OFF], ids=["usual", "recovery of others switched off"])
async def test_strays_are_judged_by_their_rows_like_those_of_a_dead_instance(
    stage: Any, config: RecoveryConfig
) -> None:
    """PENDING, CLAIMED and RUNNING, whoever knows the function. Nobody else would ever free them: their owner lives."""
    scene = await stage(recovery=config)
    me = scene.engine.identity.instance_id
    rows = [
        task("pending"),
        task("claimed", status="CLAIMED"),
        task("running", status="RUNNING"),
        task("safe", status="RUNNING", task_options=SAFE),
        task("retried", status="RUNNING", task_options=RETRIED),
        task("to be cancelled", status="RUNNING", cancel_requested_at=1),
        task("too late", status="CLAIMED", good_until=NOW_US - 1),
    ]
    await scene.put(*(row._replace(claimed_by_worker_id=me) for row in rows))
    assert await scene.sweep() == {
        "pending": "PENDING",
        "claimed": "PENDING",
        "running": "FAILED",
        "safe": "PENDING",
        "retried": "PENDING",
        "to be cancelled": "CANCELLED",
        "too late": "EXPIRED",
    }
    assert scene.query("SELECT DISTINCT claimed_by_worker_id FROM taskmanager_tasks") == [(None,)]
    told = scene.query("SELECT failed_reason FROM taskmanager_tasks WHERE id = 'running'")
    assert told == [("its owner has lost it while it ran; no policy retries a crash",)]
    counts = scene.query("SELECT crash_count, retry_count FROM taskmanager_tasks WHERE id IN ('retried', 'safe')")
    assert sorted(counts) == [(1, 0), (1, 1)]


async def test_a_stray_that_is_lost_too_often_is_quarantined(stage: Any) -> None:
    """Each lost run counts as a crash of that task alone, so that none is begun for ever."""
    scene = await stage(recovery=RecoveryConfig(crash_budget=2))
    lost = {"status": "RUNNING", "task_options": SAFE, "claimed_by_worker_id": scene.engine.identity.instance_id}
    await scene.put(task("often", crash_count=1, **lost), task("also", crash_count=1, **lost), task("once", **lost))
    assert await scene.sweep() == {"often": "FAILED", "also": "FAILED", "once": "PENDING"}


async def test_a_task_that_is_here_in_any_way_is_no_stray(stage: Any) -> None:
    """Waiting, delayed, running, given up with its thread still at work, ended and not yet saved."""
    scene = await stage(concurrency=1)
    manager, gate, thread_gate = scene.manager, asyncio.Event(), threading.Event()

    @manager.task(name="held", persist=True)
    async def held() -> None:
        await gate.wait()

    @manager.task(name="thread", persist=True, executor="thread", timeout=0.05)
    def thread() -> None:
        thread_gate.wait(20)

    given_up = thread.enqueue()
    assert await _ended(given_up) is TaskStatus.FAILED
    running, waiting, delayed = held.enqueue(), held.enqueue(), held.with_options(delay=60).enqueue()
    await asyncio.gather(*(each.saved() for each in (running, waiting, delayed)))
    await until(lambda: running.status is TaskStatus.RUNNING)
    # As in a copy of the file from when it ran: its thread does still, though its failure was recorded since.
    await _set_running(scene, given_up.task_id)
    before = scene.query("SELECT id, status, claimed_by_worker_id, start_count FROM taskmanager_tasks ORDER BY id")
    await scene.sweep()
    after = scene.query("SELECT id, status, claimed_by_worker_id, start_count FROM taskmanager_tasks ORDER BY id")
    assert after == before
    thread_gate.set()
    await until(lambda: not scene.engine.runner.abandoned)
    await scene.sweep()
    assert scene.statuses()[given_up.task_id] == "FAILED"
    gate.set()
    await asyncio.gather(running, waiting)


async def _ended(handle: Any) -> TaskStatus:
    await asyncio.wait([asyncio.ensure_future(handle.result())])
    return TaskStatus(handle.status)


async def _set_running(scene: Any, task_id: str) -> None:
    await scene.manager.flush()
    me = scene.engine.identity.instance_id
    with closing(sqlite3.connect(scene.db)) as other, other:
        other.execute(
            "UPDATE taskmanager_tasks SET status = 'RUNNING', claimed_by_worker_id = ?, failed_at = NULL, "
            "error_code = NULL WHERE id = ?",
            (me, task_id),
        )


@pytest.mark.parametrize("verb", ["claim", "commit"])
async def test_no_stray_is_judged_while_a_claim_or_a_commit_is_under_way(
    tmp_path: Path, verb: str, make: Callable[..., Any]
) -> None:
    """The row says already what memory does not know yet."""
    world = make(tmp_path, Fault.hold(1, verb=verb, after=True))
    async with world.manager:
        if verb == "claim":
            await world.elsewhere()
        handle = None if verb == "claim" else world.work.enqueue()
        await until(lambda: world.faulty.held == [verb])
        sweep = asyncio.ensure_future(world.duties.reaper.recover_strays())
        await until(lambda: sweep.done() or bool(world.lifecycle.engine.claiming._waiters))
        world.faulty.let_go()
        assert await sweep == 0
        if handle is not None:
            await handle
        await world.manager.join()
    assert world.started == 1


async def test_an_end_that_was_told_is_no_stray_between_two_tries_to_write_it(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    """The first try after an outage finds the row as it is there, the second one writes over it; memory has the end."""
    end = (Fault.fail(2, verb="commit", after=True), Fault.hold(4, verb="commit"))
    world = make(tmp_path, *end)
    async with world.manager as manager:
        handle = world.work.enqueue()
        await handle
        await until(lambda: world.faulty.held == ["commit"])
        assert [handle.task_id] == list(world.lifecycle.engine.writer.unsaved_ended)
        assert await world.duties.reaper.recover_strays() == 0
        world.faulty.let_go()
        await manager.flush()
        assert not world.lifecycle.engine.writer.unsaved_ended
    assert world.counts() == {"COMPLETED": 1}


@pytest.mark.parametrize("queue", ["default", "shared"])
async def test_rows_of_a_claim_whose_answer_is_lost_run_once(
    tmp_path: Path, queue: str, make: Callable[..., Any]
) -> None:
    """The look that failed is owed: what the claim has taken is given back, and claimed again at once."""
    world = make(tmp_path, Fault.fail(1, verb="claim", after=True))
    async with world.manager:
        await world.elsewhere(queue)
        async with asyncio.timeout(10):
            await until(lambda: world.started == 1)
            await world.manager.join()
    assert world.started == 1
    assert world.faulty.is_spent


async def test_rows_of_this_instance_in_an_older_copy_of_the_file_go_on(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    """`mv backup tasks.db`, as the docs recommend: what has ended since waits and runs in it, and nobody has it."""
    world = make(tmp_path)
    async with world.manager as manager:
        world.gate.clear()
        handles = [world.work.enqueue() for _ in range(30)]
        await asyncio.gather(*(each.saved() for each in handles))
        await until(lambda: world.started == 10)
        backup = tmp_path / "backup.db"
        with closing(sqlite3.connect(world.db)) as other:
            other.execute("VACUUM INTO ?", (str(backup),))
        world.gate.set()
        await asyncio.gather(*handles)
        await manager.flush()
        os.rename(backup, world.db)  # noqa: PTH104  # the test has its loop to itself
        await until(lambda: world.started == 60)  # the file itself is not opened: its old log lies there for a moment
        await manager.join()
        await manager.flush()
    assert world.counts() == {"COMPLETED": 30}
    assert world.started == 60


async def test_a_running_task_that_an_older_file_has_as_free_is_not_begun_again(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    """Though the claim comes before the writer: the row is older than what is here, and is written over."""
    world = make(tmp_path)
    async with world.manager as manager:
        world.gate.clear()
        await manager.pause("default")
        await world.elsewhere()
        backup = tmp_path / "backup.db"
        with closing(sqlite3.connect(world.db)) as other:
            other.execute("VACUUM INTO ?", (str(backup),))
        await manager.resume("default")
        await until(lambda: world.started == 1)
        with closing(sqlite3.connect(backup)) as other, other:
            other.execute("DELETE FROM taskmanager_queues")
        world.faulty.plan.append(Fault.hold(world.faulty.calls.count("commit") + 1, verb="commit"))
        claims = world.faulty.calls.count("claim")
        os.rename(backup, world.db)  # noqa: PTH104  # the test has its loop to itself
        await until(lambda: world.faulty.held == ["commit"] and world.faulty.calls.count("claim") > claims)
        await world.lifecycle._poller.has_strays()  # and that claim is over
        world.faulty.let_go()
        await manager.flush()
        assert world.counts() == {"RUNNING": 1}
        world.gate.set()
        await manager.join()
    assert world.started == 1
    assert world.counts() == {"COMPLETED": 1}


@pytest.mark.parametrize("says", ["RUNNING", "CLAIMED", "PENDING", "free"])
async def test_a_running_task_of_which_a_copied_file_has_more_starts_is_recorded(
    tmp_path: Path, says: str, make: Callable[..., Any]
) -> None:
    """An old copy was put in place by mistake, and then a newer one: the run that goes on here is the only one."""
    world = make(tmp_path)
    async with world.manager as manager:
        world.gate.clear()
        handle = world.work.enqueue()
        await until(lambda: world.started == 1)
        me, copy = world.lifecycle.engine.identity.instance_id, tmp_path / "copy.db"
        with closing(sqlite3.connect(world.db)) as other:
            other.execute("VACUUM INTO ?", (str(copy),))
        with closing(sqlite3.connect(copy)) as other, other:
            other.execute(
                "UPDATE taskmanager_tasks SET start_count = 3, status = ?, claimed_by_worker_id = ?, claimed = ?",
                ("PENDING" if says == "free" else says, None if says == "free" else me, says == "CLAIMED"),
            )
        os.rename(copy, world.db)  # noqa: PTH104  # the test has its loop to itself
        # The file itself is not opened before: its old log lies there for a moment.
        quiet = world.lifecycle.engine.writer.quiet
        await until(lambda: world.faulty.calls.count("open") == 2 and not quiet.locked())
        await manager.flush()
        assert world.counts() == {"RUNNING": 1}
        await world.duties.reaper.recover_strays()
        world.gate.set()
        await handle
        await manager.flush()
    assert world.counts() == {"COMPLETED": 1}
    assert world.started == 1


@pytest.fixture
def make() -> Callable[..., Any]:
    return _World


class _World:
    """A manager on a file, with faults in front of it."""

    def __init__(self, folder: Path, *plan: Fault) -> None:
        self.db = folder / "tasks.db"
        self.started = 0
        self.gate = asyncio.Event()
        self.gate.set()
        shared = QueueConfig("shared", max_concurrency=1, scope="file")
        self.manager = TaskManager(self.db, store_poll=0.05, concurrency=10, queues=[shared])
        make_store = self.manager._make_store

        def with_faults(*args: Any) -> Store:
            self.faulty = FaultyStore(make_store(*args), plan)
            return self.faulty.as_store()

        self.manager._make_store = with_faults

        @self.manager.task(name="app:job", persist=True, requeue_on_interrupt=True)
        async def work() -> None:
            self.started += 1
            await self.gate.wait()

        self.work = work

    @property
    def lifecycle(self) -> Any:
        return self.manager._lifecycle

    @property
    def duties(self) -> Any:
        return self.lifecycle.duties

    async def elsewhere(self, queue: str = "default") -> None:
        """Another process leaves a free row."""
        free = task("free", queue_name=queue, task_options=SAFE)
        with closing(sqlite3.connect(self.db)) as other, other:
            names = ", ".join("id" if name == "task_id" else name for name in free._fields)
            marks = ", ".join("?" for _ in free)
            other.execute(f"INSERT INTO taskmanager_tasks ({names}) VALUES ({marks})", free)

    def counts(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.db)) as other:
            return dict(other.execute("SELECT status, count(*) FROM taskmanager_tasks GROUP BY status").fetchall())


async def test_a_stray_whose_id_cannot_be_read_is_ended_and_passed(stage: Any) -> None:
    """A page that ends with such an id is followed by the next one; what ran leaves an attempt."""
    scene = await stage()
    me = scene.engine.identity.instance_id
    rows = [task("a"), task("b", status="RUNNING"), task("c"), task("d", status="RUNNING"), task("e")]
    await scene.put(*(row._replace(claimed_by_worker_id=me) for row in rows))
    with closing(sqlite3.connect(scene.db)) as connection, connection:
        for task_id, odd in (("a", b"\xff"), ("b", b"\xfe"), ("c", b"c\0c"), ("d", b"d\0d")):
            connection.execute("UPDATE taskmanager_tasks SET id = CAST(? AS TEXT) WHERE id = ?", (odd, task_id))
    for _ in range(2):  # two ids that look the same are dealt with one after the other
        await asyncio.wait_for(scene.duties.reaper.run_once(), 20)
    said = "SELECT hex(id), status FROM taskmanager_tasks"
    assert dict(scene.query(said)) == {
        "FF": "FAILED", "FE": "FAILED", "630063": "FAILED", "640064": "FAILED", "65": "PENDING",
    }  # fmt: skip
    attempts = scene.query("SELECT hex(task_id), attempt, outcome, will_retry FROM taskmanager_task_attempts")
    assert sorted(attempts) == [("640064", 1, "WORKER_FAILURE", 0), ("FE", 1, "WORKER_FAILURE", 0)]


async def test_a_row_that_no_write_can_meet_any_more_is_given_up(stage: Any, tmp_path: Path) -> None:
    """Its count was damaged while its task waited here: it is another's row, and no stop fails for it."""
    scene = await stage()

    @scene.manager.task(persist=True)
    async def later() -> None: ...

    handle = later.with_options(delay=60).enqueue()
    await handle.saved()
    with closing(sqlite3.connect(scene.db)) as connection, connection:
        connection.execute("UPDATE taskmanager_tasks SET start_count = 1 << 40")
    handle.cancel()
    await until(lambda: handle.task_id not in scene.engine.live)
    await scene.sweep()
    result = await handle.result(timeout=20)
    assert "start_count is 1099511627776" in result.err_value.message
    await scene.manager.stop()
