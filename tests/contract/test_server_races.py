"""Two instances on one server at the same moment: what a file decides by its one lock, a server must decide too."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

import psycopg
import pytest

from taskmanager.model.record import TaskWrite
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.session import _WRITING
from taskmanager.store.postgresql.store import PostgresStore
from taskmanager.store.protocol import TaskFilter
from tests.conftest import SCHEMA
from tests.contract.rows import ME, OTHER, expected, put, task, wants
from tests.contract.test_event_contract import NOW, STORED, WAIT, event, fall_asleep, running
from tests.contract.test_schedule_contract import begin, declared, fire, only

if TYPE_CHECKING:
    from tests.servers import Cluster

pytestmark = pytest.mark.anyio
R = TypeVar("R")
ROUNDS = 20
SHARED = f"BEGIN; SELECT pg_advisory_xact_lock_shared({_WRITING}, '{SCHEMA}'::regnamespace::oid::int)"
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'taskmanager%'"
)


@pytest.fixture
async def stores(empty_url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two on one schema."""
    one, two = PostgresStore(Address.of(empty_url)), PostgresStore(Address.of(empty_url))
    await one.open()
    await two.open()
    yield one, two
    await one.close()
    await two.close()


Pair = tuple[PostgresStore, PostgresStore]


@pytest.fixture
def session(cluster: "Cluster") -> "psycopg.Connection[tuple[object, ...]]":
    """A session that does in single steps what an instance does."""
    return psycopg.connect(cluster.url(), autocommit=True)


async def until_it_waits(cluster: "Cluster", asked: "asyncio.Future[R]") -> None:
    """Wait until the server has made it wait for a lock."""
    while cluster.psql(WAITING) == [("0",)]:
        assert not asked.done(), asked
        await asyncio.sleep(0)


def begun(what: Awaitable[R]) -> "asyncio.Future[R]":
    return asyncio.ensure_future(what)


async def test_lost_claim_is_asked_for_behind_its_commit(
    stores: Pair, cluster: "Cluster", session: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    """The server is still at the commit when the connection is lost. Who asks before it takes the rows for free."""
    one, _ = stores
    await put(one, task("a"))
    session.execute(SHARED)
    session.execute(
        f"UPDATE {SCHEMA}.taskmanager_tasks SET status = 'CLAIMED', claimed = 1, claimed_by_worker_id = '{ME}',"
        " claimed_at = 1000 WHERE id = 'a'"
    )
    asked = begun(one.fetch_claim(ME, 1_000))
    await until_it_waits(cluster, asked)
    session.execute("COMMIT")
    assert [row.task_id for row in await asked] == ["a"]
    session.close()


async def test_claims_at_once_take_no_row_twice(stores: Pair) -> None:
    """Beside them, two people ask to cancel all of them, each in another order: what is asked for is claimed all the
    same, and by one only.
    """
    one, two = stores
    names = [f"t{number:03}" for number in range(200)]
    await put(one, *(task(name) for name in names))

    async def claim_all(store: PostgresStore, owner: str) -> list[str]:
        taken: list[str] = []
        while rows := await store.claim(wants(owner=owner, limit=3)):
            taken += [row.task_id for row in rows]
        return taken

    async def cancel_all(store: PostgresStore, asked: Sequence[str]) -> int:
        pages = [asked[start : start + 20] for start in range(0, len(asked), 20)]
        return sum([len(await store.request_cancel(page, NOW)) for page in pages])

    mine, others, *cancelled = await asyncio.gather(
        claim_all(one, ME), claim_all(two, OTHER), cancel_all(one, names), cancel_all(two, names[::-1])
    )
    left = await claim_all(one, ME)  # what a request to cancel had locked was skipped
    assert sorted(mine + others + left) == names
    assert cancelled == [200, 200]
    rows = (await one.fetch_ids(names)).values()
    assert all(row.cancel_requested_at == NOW for row in rows)
    assert {row.task_id for row in rows if row.claimed_by_worker_id == OTHER} == set(others)


async def test_event_and_sleep_at_once_leave_the_task_awake(stores: Pair) -> None:
    one, two = stores
    for number in range(ROUNDS):
        name = f"t{number}"
        row = await running(one, name)
        sent, _ = await asyncio.gather(two.send_event(event(task_id=name)), fall_asleep(one, row, WAIT))
        assert sent == STORED
        assert [each.task_id for each in await one.claim(wants(now=NOW))] == [name]


async def test_request_to_cancel_and_sleep_at_once_leave_the_task_awake(stores: Pair) -> None:
    one, two = stores
    for number in range(ROUNDS):
        name = f"t{number}"
        row = await running(one, name)
        asked, _ = await asyncio.gather(two.request_cancel([name], NOW), fall_asleep(one, row, WAIT))
        assert asked
        found = await one.fetch(name)
        assert found is not None
        assert found.cancel_requested_at == NOW
        assert [each.task_id for each in await one.claim(wants(now=NOW))] == [name]


async def test_schedule_that_two_fire_at_once_runs_once(stores: Pair) -> None:
    one, two = stores
    await begin(one, ME)
    for number in range(ROUNDS):
        name = f"nightly-{number}"
        await one.declare_schedules([declared(name)], ME, 50)
        runs = [f"{name}-mine", f"{name}-other"]
        lost = await asyncio.gather(
            *(each.fire_schedules([fire(name, run)]) for each, run in zip(stores, runs, strict=True))
        )
        assert sorted(map(len, lost)) == [0, 1]
        assert len(await one.fetch_ids(runs)) == 1
        assert (await only(two, name)).run_count == 1


async def test_limit_of_a_queue_holds_for_claims_at_once(stores: Pair) -> None:
    one, two = stores
    await put(one, *(task(f"t{number}", queue_name="gpu") for number in range(9)))
    asked = wants(queue_name="gpu", limit=9, file_limit=3)
    found = await asyncio.gather(
        *(each.claim(asked._replace(owner=owner)) for _ in range(3) for each, owner in ((one, ME), (two, OTHER)))
    )
    assert sum(map(len, found)) == 3


async def test_one_of_two_ends_of_a_task_at_once_wins(stores: Pair) -> None:
    """An owner that was silent saves its success while others give its task back: one of both, and one attempt."""
    one, two = stores
    for number in range(ROUNDS):
        row = await running(one, f"t{number}")
        done = row._replace(status="COMPLETED", completed_at=NOW)
        freed = row._replace(status="PENDING", claimed_by_worker_id=None, started_at=None)
        reports = await asyncio.gather(
            one.commit([TaskWrite(done, expected(row))]), two.commit([TaskWrite(freed, expected(row))])
        )
        assert sorted(len(each.lost) for each in reports) == [0, 1]
        found = await one.fetch(row.task_id)
        assert found is not None
        assert (found.status == "COMPLETED") == (not reports[0].lost)
        (lost,) = [each.lost for each in reports if each.lost]
        assert lost[row.task_id] == found


async def test_retry_and_retention_at_once_lose_no_retried_task(stores: Pair) -> None:
    one, two = stores
    for number in range(ROUNDS):
        ended = task(f"t{number}", status="FAILED", failed_at=130, start_count=1)
        await put(one, ended)
        again = ended._replace(status="PENDING", failed_at=None)
        report, _ = await asyncio.gather(
            one.commit([TaskWrite(again, expected(ended))]), two.purge(TaskFilter(), NOW, 10)
        )
        assert (await one.fetch(ended.task_id) is None) == bool(report.lost)


async def test_row_that_a_program_holds_keeps_others_from_nothing(
    stores: Pair, cluster: "Cluster", session: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    """Whoever writes that row waits. Who must write alone waits for that one, and all others would wait behind it."""
    one, two = stores
    rows = [await running(one, "held"), await running(one, "free")]
    session.execute("BEGIN")
    session.execute(f"SELECT 1 FROM {SCHEMA}.taskmanager_tasks WHERE id = 'held' FOR UPDATE")
    done = [row._replace(status="COMPLETED", completed_at=NOW) for row in rows]
    waiting = begun(one.commit([TaskWrite(done[0], expected(rows[0]))]))
    await until_it_waits(cluster, waiting)
    async with asyncio.timeout(60):
        await two.send_event(event(task_id="free"))
        assert not (await two.commit([TaskWrite(done[1], expected(rows[1]))])).lost
    session.execute("COMMIT")
    session.close()
    await asyncio.wait([waiting])
