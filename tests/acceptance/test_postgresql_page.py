"""docs/postgresql.md: the rights that it grants suffice, and are all that is needed. Its programs: `test_readme`."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from taskmanager import TaskManager
from tests.acceptance.test_readme import blocks

if TYPE_CHECKING:
    from tests.servers import Cluster

ROLES = ("jobs_worker", "jobs_writer")


@pytest.fixture
def granted_schema(cluster: "Cluster", schema_url: str) -> Iterator[str]:
    """The name of a schema whose tables are there, with the roles and rights of the page."""
    schema = schema_url.rpartition("=")[2]

    async def make() -> None:
        async with TaskManager(schema_url):
            pass

    asyncio.run(make())
    for block in blocks():
        if block.language == "sql" and "postgresql" in block.words:
            cluster.psql(block.text.replace("SCHEMA jobs", f"SCHEMA {schema}").replace("jobs.", f"{schema}."))
    for role in ROLES:
        cluster.psql(f"ALTER ROLE {role} LOGIN")
    yield schema
    for role in ROLES:
        cluster.psql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_rights_on_the_page_suffice_to_run_and_to_write_tasks(cluster: "Cluster", granted_schema: str) -> None:
    """A worker needs no right to change a table, and a program that only writes tasks needs INSERT on one."""
    import psycopg

    worker = TaskManager(cluster.url(granted_schema, user="jobs_worker"), requeue_pending=True)
    writer = TaskManager(cluster.url(granted_schema, user="jobs_writer"), requeue_pending=True)

    async def double(number: int) -> int:
        return 2 * number

    theirs, ours = writer.task(name="double")(double), worker.task(name="double")(double)

    async def main() -> None:
        async with worker:
            assert await ours.enqueue(2) == 4
            with psycopg.connect(cluster.url(user="jobs_writer"), autocommit=True) as connection:
                statement, values = writer.insert_statement(theirs, 4)
                connection.execute(statement.encode(), values)
            assert await worker.handle(str(values[0])) == 8

    asyncio.run(main())
