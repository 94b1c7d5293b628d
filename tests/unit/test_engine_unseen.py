"""What an instance starts and claims while the others may take it for dead: see `taskmanager.duties.visibility`."""

import asyncio
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.duties.visibility import Visibility
from taskmanager.store.presence import UNSEEN_S
from tests.unit.engine_worlds import assert_counters, engine_of, happens, manager_of, persisted, turns_until, world_of
from tests.unit.test_engine_claim_starts import look, put_free

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


def hold(manager: TaskManager) -> None:
    """Nobody has seen for a while that this instance lives."""
    engine_of(manager).dispatcher.is_unseen = True


def go_on(manager: TaskManager) -> None:
    """It has been seen for a while."""
    engine = engine_of(manager)
    engine.dispatcher.is_unseen = False
    engine.life.wants_claim.set()
    engine.life.kick()


async def test_unseen_instance_starts_what_is_stored_when_it_was_seen_for_a_while() -> None:
    """Its store can be written all the time: the others may call it dead all the same. Memory-only tasks go on."""
    manager, log = manager_of(), list[Any]()
    work = persisted(manager, log, requeue_on_interrupt=True)

    @manager.task
    async def light() -> None:
        log.append("light")

    async with world_of(manager) as (world, store):
        engine = engine_of(manager)
        proof = SimpleNamespace(unseen_after_s=UNSEEN_S, seen_s=None)
        visibility = Visibility(replace(engine, presence=proof))  # type: ignore[arg-type]  # all that it is asked
        await world.advance(UNSEEN_S + 1)
        await visibility.look()
        handle = work.enqueue("stored")
        await handle.saved()
        await light.enqueue()
        assert log == ["light"]
        assert store.memory.live[handle.task_id].status == "PENDING"
        visibility.beaten()
        await visibility.look()
        await world.advance(UNSEEN_S - 1)
        visibility.beaten()
        await visibility.look()
        assert log == ["light"]
        await world.advance(1.5)
        await visibility.look()
        assert await handle == "stored"
        assert_counters(engine)


async def test_unseen_instance_claims_nothing_until_it_is_seen() -> None:
    """What it would claim is another's in a moment. Others are there who can run it."""
    manager, log = manager_of(), list[Any]()
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        hold(manager)
        (task_id,) = await put_free(manager, store, work, "a")
        look(manager, store)
        await world.advance(30)
        row = store.memory.live[task_id]
        assert (row.status, row.claimed_by_worker_id) == ("PENDING", None)
        go_on(manager)
        await turns_until(lambda: log == ["a"])
        await manager.join()


async def test_unseen_instance_waits_with_what_a_claim_has_started() -> None:
    """The claim was on its way when it went out of sight. Its start counts, and it is no crash."""
    manager, log = manager_of(), list[Any]()
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        store.hold("claim", after=True)
        (task_id,) = await put_free(manager, store, work, "a")
        look(manager, store)
        await store.until_held("claim")
        hold(manager)
        store.let_go()
        await world.advance(30)
        assert log == []
        assert store.memory.live[task_id].status == "PENDING"
        go_on(manager)
        await turns_until(lambda: log == ["a"])
        await manager.join()
        assert store.memory.ended[task_id].crash_count == 0
        assert_counters(engine_of(manager))


async def test_unseen_instance_waits_with_what_a_late_write_has_started() -> None:
    """The write may have hung as long as the network was away, and come through when the others call it dead."""
    manager, log = manager_of(), list[Any]()
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        store.hold("commit")
        handle = work.enqueue("a")
        await store.until_held("commit")
        hold(manager)
        store.let_go()
        await world.advance(30)
        assert log == []
        assert store.memory.live[handle.task_id].status == "PENDING"
        assert_counters(engine_of(manager))
        go_on(manager)
        assert await handle == "a"
        assert log == ["a"]


async def test_unseen_instance_cancels_what_a_late_write_has_started() -> None:
    """A cancel that came meanwhile needs no slot."""
    manager, log = manager_of(), list[Any]()
    work = persisted(manager, log)
    async with world_of(manager) as (_, store):
        store.hold("commit")
        handle = work.enqueue("a")
        await store.until_held("commit")
        hold(manager)
        assert handle.cancel()
        store.let_go()
        await turns_until(lambda: handle.task_id in store.memory.ended)
        assert store.memory.ended[handle.task_id].status == "CANCELLED"
        assert log == []


async def test_unseen_instance_takes_nothing_over(tmp_path: Path) -> None:
    """It is idle, and another one has tasks that have waited for long. They start when it is seen."""
    gate, log = asyncio.Event(), list[str]()

    def new(name: str) -> tuple[TaskManager, Any]:
        manager = TaskManager(tmp_path / "tasks.db", store_poll=0.02, concurrency=1, threads=1)

        async def work() -> None:
            log.append(name)
            await gate.wait()

        return manager, manager.task(name="work", persist=True, requeue_on_interrupt=True)(work)

    (busy, task), (idle, _) = new("busy"), new("idle")
    async with busy, idle:
        hold(idle)
        handles = [task.enqueue() for _ in range(2)]
        await happens(lambda: log == ["busy"])
        store, looks = engine_of(idle).store, count()
        changes = store.changes

        async def counted() -> int | None:
            next(looks)
            return await changes()

        store.changes = counted  # type: ignore[method-assign]  # it begins each look
        await happens(lambda: repr(looks) == "count(20)")
        assert log == ["busy"]
        go_on(idle)
        await happens(lambda: log == ["busy", "idle"])
        gate.set()
        await asyncio.gather(*handles)
