"""An instance on a server: by whose clock it goes, and what it does while its session or the server is away."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.model import ids
from taskmanager.model.errors import StoreError
from taskmanager.store.place import place_at
from taskmanager.store.postgresql import store
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.beat import PostgresBeater
from taskmanager.store.postgresql.connection import Connection
from taskmanager.store.postgresql.store import PostgresStore
from taskmanager.store.postgresql.watch import Watch
from taskmanager.store.presence import UNSEEN_S
from taskmanager.store.protocol import Beat
from tests.crash.harness import is_alive
from tests.servers import EVERYBODY, Cluster
from tests.unit.engine_worlds import engine_of, happens

pytestmark = pytest.mark.anyio

AHEAD = timedelta(hours=5)


def rows_of(url: str, sql: str) -> list[tuple[Any, ...]]:
    with place_at(url).read() as session:
        return session.execute(sql).fetchall()


def _is_refused(url: str) -> bool:
    try:
        rows_of(url, "SELECT 1")
    except StoreError:
        return True
    return False


async def test_held_tasks_go_by_the_clock_of_the_server(schema_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were stamped before it was known, as the start itself was. A promised instant stays what it is."""
    monkeypatch.setattr(ids, "_sequence", ids._Sequence())
    monkeypatch.setattr(store, "_clock_offset_us", lambda session, clock: AHEAD // timedelta(microseconds=1))
    manager = TaskManager(schema_url)

    @manager.task(persist=True)
    async def work() -> None: ...

    promised = datetime.now(UTC) + 2 * AHEAD
    begun = datetime.now(UTC)
    held = [work.enqueue(), work.with_options(delay=3600).enqueue(), work.with_options(run_at=promised).enqueue()]
    async with manager:
        await asyncio.gather(*(each.saved() for each in held))
        infos = [await manager.get(each.task_id) for each in held]
        [(started_us,)] = rows_of(schema_url, "SELECT started_at FROM taskmanager_instances")
        assert engine_of(manager).started_at == started_us
    early = [each for each in infos if each is None or not timedelta(0) <= each.sent_at - begun - AHEAD < AHEAD / 5]
    assert early == []
    now, later, at = (each.enqueued_at for each in infos if each is not None)
    assert later - now > timedelta(minutes=59)
    assert at == promised
    assert started_us > (begun + AHEAD).timestamp() * 1_000_000


async def test_beat_goes_by_the_writer_where_the_reader_is_refused(cluster: Cluster, schema_url: str) -> None:
    """A server that lets nobody in any more: by the session that is left the others hear that this instance lives."""
    reader, writer = Connection(Address.of(schema_url), "reader"), Connection(Address.of(schema_url), "writer")
    made = PostgresStore(Address.of(schema_url))
    await made.open()
    await made.close()
    await reader.open()
    await writer.open()
    beater = PostgresBeater(lambda: [reader, writer], Address.of(schema_url))
    beats = "SELECT sent_at FROM taskmanager_heartbeats"
    reader._let_go()
    cluster.admit("")
    try:
        await happens(lambda: _is_refused(schema_url))
        beater.beat([Beat("me", "runner", 7, "host", 1)])
    finally:
        cluster.admit(EVERYBODY)
    await happens(lambda: not _is_refused(schema_url))
    assert rows_of(schema_url, beats) == [(7,)]
    await reader.close()
    await writer.close()


async def test_instance_without_session_and_store_starts_nothing(cluster: Cluster, schema_url: str) -> None:
    """Others may take it for dead by then, and run its tasks: what is safe to repeat waits as well, and runs after."""
    manager, started = TaskManager(schema_url), list[str]()

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def stored(label: str) -> str:
        started.append(label)
        return label

    @manager.task
    async def light() -> None:
        started.append("light")

    async with manager:
        assert await stored.enqueue("before") == "before"
        engine = engine_of(manager)
        cluster.stop()
        try:
            await happens(lambda: engine.dispatcher.is_detached())
            first = stored.enqueue("first")
            await happens(lambda: engine.dispatcher.is_store_degraded)
            second = stored.enqueue("second")
            await light.enqueue()
            assert started == ["before", "light"]
        finally:
            cluster.start()
        assert await asyncio.wait_for(asyncio.gather(first, second), 30) == ["first", "second"]


async def test_instance_that_was_out_of_sight_starts_when_others_have_looked(cluster: Cluster, schema_url: str) -> None:
    """Those who call it dead may not have looked since it is back. Its store can be written before."""
    manager, started_s = TaskManager(schema_url), list[float]()

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def work() -> None:
        started_s.append(engine.clock.elapsed_s())

    async with manager:
        engine = engine_of(manager)
        cluster.stop()
        try:
            await happens(lambda: engine.dispatcher.is_unseen)
        finally:
            back_s = engine.clock.elapsed_s()
            cluster.start()
        handle = work.enqueue()
        await asyncio.wait_for(handle.saved(), 30)
        await asyncio.wait_for(handle, 30)
        assert started_s[0] - back_s >= UNSEEN_S, "nobody has seen it before"


async def test_instance_whose_sessions_are_ended_goes_on_at_once(cluster: Cluster, schema_url: str) -> None:
    """As in a restart of the server that takes less than the others need to miss it."""
    manager = TaskManager(schema_url)

    @manager.task(persist=True)
    async def work() -> None: ...

    async with manager:
        engine = engine_of(manager)
        watch = engine.presence
        assert watch is not None
        assert watch.seen_s is not None
        before_s, _ = watch.seen_s
        cluster.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        await happens(lambda: watch.put_back() and watch.seen_s is not None and watch.seen_s[0] > before_s)
        await asyncio.wait_for(work.enqueue(), UNSEEN_S)
        assert not engine.dispatcher.is_unseen


async def test_call_after_the_sessions_were_ended_is_done_in_new_ones(cluster: Cluster, schema_url: str) -> None:
    """The server answers, and nothing was sent to the sessions that are gone. So nobody has to try again."""
    manager = TaskManager(schema_url)

    @manager.task(persist=True)
    async def work() -> None: ...

    async with manager:
        handle = work.enqueue()
        await handle
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: manager.pause("mail"),
            lambda: manager.resume("mail"),
            lambda: manager.get(handle.task_id),
            lambda: manager.retry(handle.task_id, force=True),
            manager.purge,
        ]
        for call in calls:
            ended = cluster.psql(
                "SELECT pid FROM pg_stat_activity, pg_terminate_backend(pid) "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            await happens(lambda ended=ended: not any(is_alive(int(pid)) for (pid,) in ended))  # type: ignore[misc]
            await call()


async def test_instance_that_writes_all_the_time_hears_of_others_at_once(schema_url: str) -> None:
    """Its own commits change the mark of the store, and others are not looked for by the clock because of that."""
    manager = TaskManager(schema_url)

    @manager.task(persist=True)
    async def work() -> None: ...

    async with manager:
        assert manager._lifecycle is not None
        write_watch = manager._lifecycle._poller._write_watch
        for _ in range(100):
            await work.enqueue()
            if write_watch._descriptor is not None:
                break
        assert repr(write_watch) == "<WriteWatch waits for a write>"


async def test_instance_is_not_kept_busy_by_writes_that_bring_no_work(schema_url: str) -> None:
    """A look that has brought some is followed by the next one at once, any other one by a pause."""
    manager = TaskManager(schema_url)
    async with manager:
        assert manager._lifecycle is not None
        watch, looks = engine_of(manager).presence, list[str]()
        assert isinstance(watch, Watch)
        write_watch = manager._lifecycle._poller._write_watch
        await happens(lambda: write_watch._descriptor is not None)
        write_watch._look_soon = lambda: looks.append("look")
        write_watch._quiet_until_s = asyncio.get_running_loop().time() + 3600
        write_watch.has_brought_work = True
        watch._rouse()  # as a notice does
        await happens(lambda: looks == ["look"])
        write_watch._quiet_until_s = asyncio.get_running_loop().time() + 3600
        write_watch.has_brought_work = False
        watch._rouse()
        await happens(lambda: repr(write_watch) == "<WriteWatch looks>")
        assert looks == ["look"]
        assert write_watch._timer is not None
        write_watch._timer.cancel()
        write_watch._look()  # when the pause is over
        assert looks == ["look", "look"]
        assert repr(write_watch) == "<WriteWatch waits for a write>"
