"""Recovery: in how many steps the tasks of a dead instance are given back, and in which order."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.duties import recovery
from taskmanager.duties.recovery import Recovery
from taskmanager.engine.words.instance import new_identity
from taskmanager.model.config import DEFAULT_RECOVERY, RecoveryConfig
from taskmanager.model.record import TaskRow
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import InstanceRow, Store, TaskFilter
from tests.contract.rows import put, task
from tests.unit.duties.scene import Clock, Scene, until

pytestmark = pytest.mark.anyio

FOLLOWED = (
    '"on_failure": {"task_name": "app:alert", "queue_name": "default", "priority": 5, "options": {"persist": true}}'
)
SAFE = '{"persist": true, "requeue_on_interrupt": true}'


async def left_by_a_dead_one(store: Store, *rows: TaskRow, config: RecoveryConfig = DEFAULT_RECOVERY) -> Recovery:
    """A recovery that finds them. Without a file, every other instance is dead."""
    clock = Clock()
    await store.save_instance(InstanceRow("died", None, "host", 1, "main", None, 1, None, None, 1))
    await put(store, *(row._replace(claimed_by_worker_id="died") for row in rows))
    return Recovery(store, clock, new_identity(None, clock.now_us()), None, config)


async def owners(store: Store, *task_ids: str) -> str:
    """For each task, whether it is free."""
    found = await store.fetch_ids(task_ids)
    return "".join("-" if found[each].claimed_by_worker_id is None else "o" for each in task_ids)


async def test_start_frees_the_first_rows_of_each_queue_and_what_ran() -> None:
    """The next call frees the rest. Only then is nothing left of the dead instance."""
    store = MemoryStore()
    waiting = [task(f"a{i}", status="CLAIMED", priority=9 - i) for i in range(4)]
    waiting += [task(f"b{i}", status="CLAIMED", queue_name="mail", priority=9 - i) for i in range(4)]
    found = await left_by_a_dead_one(store, *waiting, task("ran", status="RUNNING", task_options=SAFE))
    assert await found.run_once(at_once=3) == 7
    assert found.cut
    assert await owners(store, *(row.task_id for row in waiting), "ran") == "o---o----"
    assert [each.instance_id for each in await store.instances()] == ["died"]
    assert await found.run_once() == 2
    assert not found.cut
    assert await owners(store, *(row.task_id for row in waiting)) == "--------"
    assert await store.instances() == []


async def test_start_recovers_all_of_an_owner_that_left_little() -> None:
    """Then one call is enough, as for whom only a person could stop: to be cancelled, or too late."""
    store = MemoryStore()
    rows = [task("a", status="CLAIMED"), task("b", status="CLAIMED", cancel_requested_at=5)]
    found = await left_by_a_dead_one(store, *rows, task("c", status="CLAIMED", good_until=5))
    assert await found.run_once(at_once=2) == 3
    assert not found.cut
    assert {row.status for row in (await store.fetch_ids(["a", "b", "c"])).values()} == {
        "PENDING",
        "CANCELLED",
        "EXPIRED",
    }
    assert await store.instances() == []


async def test_start_waits_for_all_rows_of_more_queues_than_a_page_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some queue not even the first rows would be free."""
    monkeypatch.setattr(recovery, "FIRST_PAGE", 4)
    store = MemoryStore()
    rows = [task(f"t{i}", status="CLAIMED", queue_name=f"q{i % 3}") for i in range(9)]
    found = await left_by_a_dead_one(store, *rows)
    assert await found.run_once(at_once=2) == 9
    assert not found.cut


async def test_recovery_without_the_switch_for_waiting_rows_leaves_them() -> None:
    store = MemoryStore()
    rows = [task(f"t{i}", status="CLAIMED") for i in range(5)]
    ran, config = task("ran", status="RUNNING", task_options=SAFE), RecoveryConfig(auto_requeue_stale_claimed=False)
    found = await left_by_a_dead_one(store, *rows, ran, config=config)
    assert await found.run_once(at_once=2) == 1
    assert await owners(store, *(row.task_id for row in rows), "ran") == "ooooo-"


async def test_manager_starts_the_best_of_what_a_dead_one_left_and_then_the_rest(tmp_path: Path) -> None:
    """Few rows are freed before the first task runs: the others beside it, until nothing is left of the dead one."""
    scene = Scene(tmp_path)
    started: list[int] = []
    may_go_on = asyncio.Event()

    def manager() -> TaskManager:
        made = TaskManager(scene.db, concurrency=2, threads=1, processes=1)

        @made.task(name="work", persist=True, requeue_on_interrupt=True)
        async def work(number: int) -> None:
            started.append(number)
            await may_go_on.wait()

        return made

    async with scene.manager:
        rows: list[Any] = [
            task(f"t{i:02}", task_name="work", args=f"[{i}]", status="CLAIMED", priority=60 - i) for i in range(60)
        ]
        await scene.other("died", *rows, is_alive=False)
    async with manager() as second:
        await until(lambda: len(started) == 2)
        assert started == [59, 58]
        await until(lambda: scene.query("SELECT count(*) FROM taskmanager_instances") == [(1,)])
        may_go_on.set()
        await second.join()
    assert started == list(reversed(range(60)))


@pytest.mark.parametrize("way", ["dead", "silent", "budget", "unreadable"])
async def test_failure_of_what_ran_enqueues_what_follows_it(way: str) -> None:
    """By whichever road a task is recovered; the message says what has become of it."""
    store, options = MemoryStore(), f'{{"persist": true, {FOLLOWED}}}'
    ran = task("ran", status="RUNNING", task_options=options)
    if way == "budget":
        ran = ran._replace(crash_count=2, task_options=f"{SAFE[:-1]}, {FOLLOWED}}}")
    if way == "unreadable":
        ran = ran._replace(log="{}", task_options=options.replace("true,", 'true, "requeue_on_interrupt": true,', 1))
    found = await left_by_a_dead_one(store, ran)
    moved = await (found.recover_stale(await found.stale(0)) if way == "silent" else found.run_once())
    rows = {row.task_name: row for row in await store.fetch_many(TaskFilter())}
    assert (moved, rows["app:job"].status, rows["app:alert"].status) == (1, "FAILED", "PENDING")
    alert = await store.fetch(rows["app:alert"].task_id)
    assert alert is not None
    (failed,) = json.loads(alert.args or "")
    assert failed["error"]["message"].startswith(
        {"budget": "quarantined: ", "unreadable": "the record cannot be read: "}.get(
            way, "its owner is gone while it ran"
        )
    )
