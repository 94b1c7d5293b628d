"""Sessions that lose what they have prepared, or find its name taken, as behind a pooler that mixes them up."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from taskmanager import StoreUnavailable
from tests.acceptance.server_world import Records, ServerWorld, eventually, hearing
from tests.servers import Cluster

pytestmark = pytest.mark.anyio
# The driver names them `_pg3_0`, `_pg3_1`, and so on.
FORGET: Final = "EXECUTE 'DEALLOCATE ALL';"
OCCUPY: Final = """
    FOR number IN 0..99 LOOP
        IF NOT EXISTS (SELECT FROM pg_prepared_statements WHERE name = '_pg3_' || number) THEN
            EXECUTE 'PREPARE _pg3_' || number || ' AS SELECT 1';
        END IF;
    END LOOP;
"""
REFUSE: Final = "RAISE 'mixed up' USING ERRCODE = '{0}';"
PREPARED: Final = {
    "26000": (FORGET, 'prepared statement "_pg3_[0-9]+" does not exist'),
    "42P05": (OCCUPY, 'prepared statement "_pg3_[0-9]+" already exists'),
}
ENOUGH: Final = 5


@pytest.fixture
def schema(schema_url: str) -> str:
    """The name of a schema that only this test has."""
    return schema_url.partition("?schema=")[2]


@pytest.fixture
def records() -> Iterator[Records]:
    """What the manager says, and the driver."""
    with hearing("taskmanager", "psycopg") as heard:
        yield heard


@contextmanager
def each_insert(cluster: Cluster, schema: str, body: str) -> Iterator[None]:
    """Let each session that inserts tasks do this as well."""
    cluster.psql(f"""
        CREATE FUNCTION {schema}.meddle() RETURNS trigger LANGUAGE plpgsql AS
            $$ DECLARE number integer; BEGIN {body} RETURN NULL; END $$;
        CREATE TRIGGER meddle AFTER INSERT ON {schema}.taskmanager_tasks EXECUTE FUNCTION {schema}.meddle()
    """)
    yield
    cluster.psql(f"DROP FUNCTION {schema}.meddle CASCADE")


@pytest.mark.parametrize("code", PREPARED)
async def test_prepared_statements_that_are_mixed_up_double_nothing(
    cluster: Cluster, schema_url: str, schema: str, records: Records, code: str
) -> None:
    """Each time the session is made anew, and the transaction done again. That is said to nobody."""
    body, error = PREPARED[code]
    refused = re.compile(rf"\] taskmanager .*ERROR:  {error}")
    before = len(refused.findall(cluster.log.read_text(errors="replace")))
    world = ServerWorld(schema_url)
    await world.manager.start()
    async with world.load():
        await world.some_more()
        with each_insert(cluster, schema, body):
            await eventually(lambda: len(refused.findall(cluster.log.read_text(errors="replace"))) >= before + ENOUGH)
            await world.some_more()
        await world.some_more()
    await world.stop()
    world.judge(cluster, schema)
    assert not records.told


@pytest.mark.parametrize("code", PREPARED)
async def test_prepared_statements_that_are_always_refused_are_explained(
    cluster: Cluster, schema_url: str, schema: str, records: Records, code: str
) -> None:
    """With what to do about it, once; and when that was done, all is written."""
    world = ServerWorld(schema_url)
    await world.manager.start()
    with each_insert(cluster, schema, REFUSE.format(code)):
        handle = world.once.enqueue()
        with pytest.raises(StoreUnavailable, match="a pooler mixes sessions up: use its session mode"):
            await handle.saved(timeout=5)
        assert records.count("a pooler mixes sessions up") == 1, records.told
    await asyncio.gather(handle.saved(), handle)
    await world.stop()
    world.judge(cluster, schema)
