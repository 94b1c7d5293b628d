"""Another program enqueues with plain SQL on a server, and a running manager starts the task at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.model.states import TaskStatus
from tests.servers import Cluster

psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.anyio

FAR_S = 60.0
"""A poll that is so far away that a notice must be what a task was started by."""
NEW = """
INSERT INTO {}.taskmanager_tasks
    (id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at, created_at, updated_at)
SELECT %s, 'work', %s, 50, %s, '{{}}', 'PENDING', now_us, now_us, now_us, now_us
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS clock
"""


class Worker:
    """A running manager, and the arguments of the tasks that it has started."""

    def __init__(self, url: str, *, store_poll: float = FAR_S) -> None:
        self.started: asyncio.Queue[int] = asyncio.Queue()
        self.manager = TaskManager(url, store_poll=store_poll)

        async def work(number: int) -> None:
            self.started.put_nowait(number)

        self.work = self.manager.task(name="work", persist=True)(work)

    async def next_start(self) -> int:
        return await asyncio.wait_for(self.started.get(), 30)


@asynccontextmanager
async def working(url: str, **options: Any) -> AsyncIterator[Worker]:
    worker = Worker(url, **options)
    async with worker.manager:
        yield worker


class Sender:
    """A program without this library, whose role has the right to insert tasks and no other."""

    def __init__(self, cluster: Cluster, schema: str) -> None:
        self.role = f"sender_{schema}"
        self._new = NEW.format(schema).encode()
        self._cluster, self._schema = cluster, schema
        cluster.psql(f"CREATE ROLE {self.role} LOGIN")

    def connect(self) -> "psycopg.Connection[Any]":
        self._cluster.psql(f"GRANT USAGE ON SCHEMA {self._schema} TO {self.role}")
        self._cluster.psql(f"GRANT INSERT ON {self._schema}.taskmanager_tasks TO {self.role}")
        return psycopg.connect(self._cluster.url(user=self.role), autocommit=True)

    def send(self, connection: "psycopg.Connection[Any]", number: int, queue: str = "default") -> None:
        connection.execute(self._new, (f"sent-{number}", queue, f"[{number}]"))


@pytest.fixture
def sender(cluster: Cluster, schema_url: str) -> Iterator[Sender]:
    made = Sender(cluster, schema_url.partition("?schema=")[2])
    yield made
    cluster.psql(f"DROP OWNED BY {made.role}; DROP ROLE {made.role}")


@pytest.mark.req("DS-102", "DS-103")
async def test_rows_of_others_start_at_the_notice(schema_url: str, sender: Sender) -> None:
    """The poll is a minute away. Any queue will do, also one that was never heard of."""
    async with working(schema_url) as worker:
        with sender.connect() as connection:
            for number in range(5):
                sender.send(connection, number, f"queue {number}")
                assert await worker.next_start() == number
            with connection.transaction():
                for number in range(10, 40):
                    sender.send(connection, number)
                assert worker.started.empty()
            assert {await worker.next_start() for _ in range(30)} == {*range(10, 40)}
        assert (await worker.manager.counts())[TaskStatus.COMPLETED] == 35


@pytest.mark.req("DS-107")
async def test_rows_of_others_wake_who_waits_when_they_end(schema_url: str, cluster: Cluster, sender: Sender) -> None:
    """A row that another program has ended wakes the waiter, whatever the end. Retention would delete an old end."""
    schema = schema_url.partition("?schema=")[2]
    now = "(extract(epoch FROM clock_timestamp()) * 1e6)::bigint"
    async with working(schema_url) as worker:
        for number, status in enumerate(("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")):
            cluster.psql(
                f"INSERT INTO {schema}.taskmanager_tasks (id, task_name, queue_name, priority, status, sent_at,"
                f" enqueued_at, created_at, updated_at) VALUES ('{number}', 'others', 'q', 50, 'PENDING', 1, 1, 1, 1)"
            )
            handle = worker.manager.handle(str(number))
            ends = f"completed_at = {now}" if status == "COMPLETED" else f"failed_at = {now}"
            end = f"UPDATE {schema}.taskmanager_tasks SET status = '{status}', {ends} WHERE id = '{number}'"
            await asyncio.gather(handle.result(timeout=30), asyncio.to_thread(cluster.psql, end))
            assert (await handle.info()).status.value == status


async def test_rows_of_the_library_are_told_to_no_program(schema_url: str, cluster: Cluster) -> None:
    """Its own transactions are silent: a notice in them would be one lock of the cluster for each commit."""
    async with working(schema_url) as worker:
        with psycopg.connect(cluster.url(), autocommit=True) as listener:
            listener.execute('LISTEN task_new; LISTEN task_done; LISTEN "task_queue_default"; LISTEN mark')
            for number in range(10):
                await worker.work.enqueue(number)
            await worker.manager.flush()
            listener.execute("NOTIFY mark")
            assert [each.channel for each in listener.notifies(timeout=30, stop_after=1)] == ["mark"]


async def test_rows_of_others_are_found_where_the_notice_is_lost(
    schema_url: str, cluster: Cluster, sender: Sender
) -> None:
    """The session that listens is killed again and again while they come. Nothing is lost, and no poll is needed."""
    schema = schema_url.partition("?schema=")[2]
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        f" AND classid = '{schema}'::regnamespace::oid"
    )
    async with working(schema_url) as worker:
        with sender.connect() as connection:
            for number in range(5):
                killed = asyncio.to_thread(cluster.psql, kill)
                sent = asyncio.to_thread(sender.send, connection, number)
                await asyncio.gather(killed, sent)
                assert await worker.next_start() == number
