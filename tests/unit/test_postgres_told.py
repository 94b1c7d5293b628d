"""Whoever listens hears at once what others have written, and is left alone by what concerns nobody else."""

import selectors
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from taskmanager.rules.claims import Room, Starting
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.free_pairs import FreePairs
from taskmanager.store.postgresql.seldom import ASK_S
from taskmanager.store.postgresql.store import PostgresStore
from tests.contract.rows import ME, put, task, wants
from tests.crash.harness import PATIENCE_S
from tests.unit.test_store_postgresql_watch import ManualClock

pytestmark = pytest.mark.anyio

Verb = Callable[[PostgresStore], Awaitable[object]]
STARTING = Starting(9, (Room(frozenset({"app:job"}), 9),), 7, "host", "main")
TOLD: dict[str, Verb] = {
    "pause": lambda store: store.set_paused("default", True, 1_000),
    "cancel": lambda store: store.request_cancel(["t1"], 1_000),
    "release": lambda store: store.release(ME, 1_000),
    "free_waiting": lambda store: store.free_waiting(ME, 1_000, 10),
    "commit": lambda store: put(store, task("t2")),
}
UNTOLD: dict[str, Verb] = {
    "claim": lambda store: store.claim(wants()),
    "claim that starts": lambda store: store.claim(wants(starting=STARTING)),
    "answer to a claim": lambda store: store.fetch_claim(ME, 1_000),
    "purge": lambda store: store.prune_heartbeats(1_000, 10),
}


@pytest.fixture
async def hearing(schema_url: str) -> AsyncIterator[PostgresStore]:
    """One that listens."""
    made = PostgresStore(Address.of(schema_url))
    watch = made.presence("hearing")
    await made.open()
    await watch.take()
    yield made
    watch.drop()
    await made.close()


@pytest.fixture(params=["instance", "command"])
async def writing(
    hearing: PostgresStore, schema_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[PostgresStore]:
    """One that has a task. A command has no session that tells others."""
    made = PostgresStore(Address.of(schema_url))
    watch = made.presence("writing") if request.param == "instance" else None
    await made.open()
    if watch is not None:
        await watch.take()
    await put(made, task("t1", claimed_by_worker_id=ME))
    assert hears(hearing)
    yield made
    if watch is not None:
        watch.drop()
    await made.close()


def hears(store: PostgresStore, within_s: float = PATIENCE_S) -> bool:
    """Whether it hears something within so many seconds."""
    descriptor = store._watch._wakes_loop.fileno()  # type: ignore[union-attr]  # `watch()` would forget what was heard
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        is_heard = bool(selector.select(within_s))
    store.watch()
    return is_heard


@pytest.mark.parametrize("verb", TOLD)
async def test_others_hear_at_once(hearing: PostgresStore, writing: PostgresStore, verb: str) -> None:
    """A commit of tasks is no news: the rest of what others may have written is as before."""
    before, news_mark = await hearing.changes(), hearing.news_mark()
    await TOLD[verb](writing)
    assert hears(hearing)
    assert await hearing.changes() != before
    assert (hearing.news_mark() == news_mark) == (verb == "commit")


@pytest.mark.parametrize("verb", UNTOLD)
async def test_others_are_not_woken(hearing: PostgresStore, writing: PostgresStore, verb: str) -> None:
    """The next thing that is heard is the pause."""
    await UNTOLD[verb](writing)
    assert not hears(hearing, within_s=0.2)
    await writing.set_paused("default", True, 1_000)
    assert hears(hearing)


async def test_store_changes_when_something_was_passed_over(hearing: PostgresStore) -> None:
    """Nobody tells of that. One change is enough: what looks then sees it, or needs another look."""
    session = await hearing._read(lambda session: session)
    session._free_pairs = FreePairs(clock := ManualClock(), slow_s=0.0)  # type: ignore[attr-defined]  # of a reader
    await put(hearing, task("t1"))
    assert len(await hearing.free_queues(1)) == 1
    await put(hearing, task("t2", task_name="app:other"))
    assert len(await hearing.free_queues(1)) == 1
    before = await hearing.changes()
    assert await hearing.changes() == before
    clock.now_s += ASK_S
    after = await hearing.changes()
    assert after != before
    assert await hearing.changes() == after
    assert len(await hearing.free_queues(1)) == 2


async def test_free_queues_of_a_host_with_a_wrong_clock_are_seen_at_once(hearing: PostgresStore) -> None:
    """Tasks are stamped by the clock of the server, so what comes late is told by that one too."""
    session = await hearing._read(lambda session: session)
    session._free_pairs = FreePairs(clock := ManualClock(), slow_s=0.0)  # type: ignore[attr-defined]  # of a reader
    hearing.clock_offset_us = -3_600_000_000
    now = clock.now_us() + hearing.clock_offset_us
    await put(hearing, task("t1", enqueued_at=now))
    assert len(await hearing.free_queues(1)) == 1
    assert len(await hearing.claim(wants(now=now))) == 1
    clock.now_s += ASK_S
    assert await hearing.free_queues(1) == []
    await put(hearing, task("t2", enqueued_at=now))
    assert len(await hearing.free_queues(1)) == 1
