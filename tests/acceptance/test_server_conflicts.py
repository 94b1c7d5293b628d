"""Transactions of others that are in the way of ours: what the server breaks off is done again, and nothing twice."""

import asyncio
import itertools
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
import pytest

from tests.acceptance.server_world import (
    SCHEMA,
    Records,
    ServerWorld,
    app_of_its_own,
    hearing,
    schema,
    server_of_its_own,
)
from tests.servers import Cluster

__all__ = ["schema"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.long]
ENOUGH: Final = 10


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that only this file uses, which looks early whether sessions wait for each other."""
    with server_of_its_own() as made:
        yield made


@pytest.fixture
def app(server: Cluster, schema: str) -> Iterator[str]:
    """A role with the right to make the schema, and no other. It finds a deadlock first, and so is broken off."""
    with app_of_its_own(server, schema) as url:
        server.psql("ALTER ROLE app SET deadlock_timeout = '50ms'")
        yield url


@pytest.fixture
def records() -> Iterator[Records]:
    """What the manager says, and the driver."""
    with hearing("taskmanager", "psycopg") as heard:
        yield heard


def deadlocks_of_ours(server: Cluster) -> int:
    """Return how often the server has broken a statement of ours off because of one."""
    return len(re.findall(r"\] taskmanager.* ERROR:  deadlock detected", server.log.read_text(errors="replace")))


@contextmanager
def meddling(server: Cluster, isolation: str) -> Iterator[Counter[str]]:
    """Change live rows, as a program that corrects tasks does, and every other time lock a table before.

    What became of its transactions is counted, by the code of the error.
    """
    is_over = threading.Event()
    counts: Counter[str] = Counter()
    change = f"UPDATE {SCHEMA}.taskmanager_tasks SET tags = tags WHERE status IN ('PENDING', 'RUNNING')"
    lock = f"LOCK {SCHEMA}.taskmanager_task_attempts IN SHARE MODE; SELECT pg_sleep(0.02)"
    ways = (
        f"BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM {SCHEMA}.taskmanager_tasks; {change}; COMMIT",
        f"BEGIN; {lock}; {change}; COMMIT",
    )

    def meddle() -> None:
        with psycopg.connect(server.url(), autocommit=True, application_name="meddler") as connection:
            for way in itertools.cycle(ways):
                if is_over.wait(0.02):
                    return
                try:
                    connection.execute(way.encode())
                    counts["committed"] += 1
                except psycopg.Error as exc:
                    counts[str(exc.sqlstate)] += 1
                    connection.execute("ROLLBACK")

    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_server_conflicts_of_two_instances_and_a_program_double_nothing(
    server: Cluster, schema: str, app: str, records: Records, isolation: str
) -> None:
    """Whatever isolation is the default of the server, or of the role.

    No task here may be repeated: one that may runs before its start is committed, and is taken over if that waits.
    """
    server.psql(f"ALTER ROLE app SET default_transaction_isolation = '{isolation}'")
    one, two = ServerWorld(app), ServerWorld(app)
    one.safe, two.safe = one.once, two.once
    await one.manager.start()
    await two.manager.start()
    before = deadlocks_of_ours(server)
    with meddling(server, isolation) as counts:
        async with one.load(), two.load():
            while min(counts["40001"], deadlocks_of_ours(server) - before) < ENOUGH:
                await asyncio.gather(one.some_more(100), two.some_more(100))
    await one.stop()
    await two.stop()
    one.starts.update(two.starts)
    one.saved |= two.saved
    one.judge(server, schema)
    assert not records.count("error ignored"), records.told
    assert not records.count("failing"), records.told
