"""A claim that is given up after the server has said where free rows begin, and before it has taken any: see `Floors`.

Such a claim goes to the server twice, in one transaction.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from taskmanager.model.clock import SECOND_US
from taskmanager.model.errors import StoreUnavailable
from taskmanager.rules.claims import Room, Starting
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.floors import Floors
from taskmanager.store.postgresql.seldom import SLOW_S
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.postgresql.store import PostgresStore
from tests.contract.rows import ME, put, task, wants
from tests.crash.harness import PATIENCE_S
from tests.servers import Cluster
from tests.unit.engine_worlds import happens

pytestmark = pytest.mark.anyio

FREE = {f"t{number}": task(f"t{number}") for number in range(4)}
STARTING = Starting(2, (Room(frozenset({"app:job"}), 2),), 7, "host", "main")


class Between(Floors):
    """Floors of a server that is slow. Each claim stands still when it knows them, until it `may_go` on."""

    def __init__(self) -> None:
        super().__init__(quick_s=0.0)
        self.note(SLOW_S * SECOND_US, 0)
        self.is_there, self.may_go = threading.Event(), threading.Event()

    def given(self, session: Any, known: dict[str, Any]) -> str | None:
        given = super().given(session, known)
        assert given is not None
        self.is_there.set()
        assert self.may_go.wait(PATIENCE_S)
        return given


class Claiming:
    """A claim of all free tasks, two of which it starts. It stands between its two ways to the server."""

    def __init__(self, store: PostgresStore, session: PostgresSession) -> None:
        self.store, self.between = store, Between()
        self.pid = session.raw.info.backend_pid
        session._floors["default"] = self.between
        self.answer = asyncio.create_task(store.claim(wants(starting=STARTING)))

    async def ids(self) -> list[str]:
        """Claim again, and return what is taken."""
        return [row.task_id for row in await self.store.claim(wants(now=3_000))]


@pytest.fixture
async def claiming(schema_url: str) -> AsyncIterator[Claiming]:
    store = PostgresStore(Address.of(schema_url))
    await store.open()
    await put(store, *FREE.values())
    made = Claiming(store, await store._write(lambda session: session))
    assert await asyncio.to_thread(made.between.is_there.wait, PATIENCE_S)
    yield made
    made.between.may_go.set()
    await store.close()


async def test_postgres_claim_whose_caller_is_cancelled_is_released(claiming: Claiming) -> None:
    """The thread goes on, and takes them. A release that was asked for meanwhile comes behind that, and frees all."""
    claiming.answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming.answer
    release = asyncio.create_task(claiming.store.release(ME, 2_000, unanswered=1_000))
    await asyncio.sleep(0)
    claiming.between.may_go.set()
    assert await release == len(FREE)
    found = await claiming.store.fetch_ids(list(FREE))
    assert {row.task_id: (row.status, row.claimed_by_worker_id) for row in found.values()} == dict.fromkeys(
        FREE, ("PENDING", None)
    )
    assert await claiming.ids() == list(FREE)


async def test_postgres_claim_that_the_server_cancels_takes_nothing(
    claiming: Claiming, cluster: Cluster, schema_url: str
) -> None:
    """After the question was answered. The session stays, and the next claim goes by the same floors."""
    schema = schema_url.partition("?schema=")[2]
    waits = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {claiming.pid} AND wait_event_type = 'Lock'"
    with psycopg.connect(cluster.url()) as other:
        # The claim reads these, and the question before it did not.
        other.execute(f"LOCK TABLE {schema}.taskmanager_steps IN ACCESS EXCLUSIVE MODE".encode())
        claiming.between.may_go.set()
        await happens(lambda: cluster.psql(waits) == [("1",)])
        cluster.psql(f"SELECT pg_cancel_backend({claiming.pid})")
        with pytest.raises(StoreUnavailable, match="was cancelled"):
            await claiming.answer
        other.rollback()
    assert await claiming.store.fetch_ids(list(FREE)) == FREE
    assert await claiming.ids() == list(FREE)
    session = await claiming.store._write(lambda session: session)
    assert (session.raw.info.backend_pid, session._floors["default"]) == (claiming.pid, claiming.between)


async def test_postgres_claim_whose_session_ends_takes_nothing(claiming: Claiming, cluster: Cluster) -> None:
    """The server ends one that stands still for too long. The next claim has a new session, which knows no floors."""
    cluster.psql(f"SELECT pg_terminate_backend({claiming.pid})")
    claiming.between.may_go.set()
    with pytest.raises(StoreUnavailable):
        await claiming.answer
    assert await claiming.store.fetch_ids(list(FREE)) == FREE
    assert await claiming.ids() == list(FREE)
