"""The password in a URL is shown nowhere: not by a command, a log, an exception, a page, or a row."""

import asyncio
import logging
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from taskmanager import StoreUnavailable, TaskManager
from taskmanager.store.place import place_at
from taskmanager.web.local import everybody_here, file_dashboard
from tests.crash.harness import wait_for
from tests.servers import EVERYBODY
from tests.unit.command_line import taskmanager
from tests.web.visitor import Visitor

if TYPE_CHECKING:
    from tests.servers import Cluster

SECRET = "hunter2%25"  # of a server that lives for a minute
RIGHT = "hunter2%"
COMMANDS = (
    ("migrate",), ("status",), ("status", "--json"), ("watch",), ("list",), ("show", "a"), ("retry", "a"),
    ("cancel", "a"), ("pause", "mail"), ("resume", "mail", "--json"), ("schedules",), ("workflows",),
    ("workflow", "show", "a"), ("send", "a", "go"), ("purge", "--older-than", "1d"), ("recover", "--json"),
    ("doctor",), ("doctor", "--json"), ("backup", "copy.db"), ("migrate", "--sql"), ("demo",),
)  # fmt: skip


@pytest.fixture
def secret_url(schema_url: str, cluster: "Cluster") -> Iterator[str]:
    """A schema whose owner has to give a password."""
    role = schema_url.rpartition("=")[2]
    cluster.psql(f"CREATE ROLE {role} LOGIN PASSWORD '{RIGHT}'; CREATE SCHEMA {role} AUTHORIZATION {role}")
    cluster.admit(f"host all {role} all scram-sha-256\n{EVERYBODY}")
    open_url = schema_url.replace("postgres@", f"{role}@")
    wait_for(lambda: "no password supplied" in taskmanager("list", "--db", open_url).err, lambda: "asks for none")
    yield schema_url.replace("postgres@", f"{role}:{SECRET}@")
    cluster.admit(EVERYBODY)
    cluster.psql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def rows_of(cluster: "Cluster", schema: str) -> str:
    """All that stands in the tables of a schema."""
    names = cluster.psql(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
    assert len(names) > 10
    return "".join(str(cluster.psql(f"SELECT t::text FROM {schema}.{name} AS t")) for (name,) in names)


@pytest.mark.parametrize("is_right", [True, False])
def test_password_is_in_no_answer_of_a_command(secret_url: str, is_right: bool) -> None:
    """A command is run beside others on a screen, and what it says is sent around."""
    url = secret_url if is_right else secret_url.replace(SECRET, "hunter2-wrong")
    for words in COMMANDS:
        ran = taskmanager(*words, "--db", url)
        assert "hunter2" not in ran.out + ran.err, words
        if not is_right and words[0] not in ("demo", "backup") and "--sql" not in words:  # they ask no server
            assert (ran.code, ran.out) == (1, ""), words
            assert "password authentication failed" in ran.err, words


@pytest.mark.anyio
async def test_password_is_in_no_row_log_page_or_exception(
    secret_url: str, cluster: "Cluster", caplog: pytest.LogCaptureFixture
) -> None:
    """Rows are seen by everybody who may look, and logs are kept for years."""
    caplog.set_level(logging.DEBUG)
    manager = TaskManager(secret_url)

    @manager.task(persist=True)
    async def fail() -> None:
        raise ValueError("no")

    async with manager:
        await fail.enqueue().result()
        assert "hunter2" not in repr(manager) + repr(manager.status())
        pages = [f"{each}" for each in ("", "instances", "queues", "tasks", "healthz")]
        async with Visitor(file_dashboard(place_at(secret_url), everybody_here, hosts=None)) as visitor:
            for page in pages:
                assert "hunter2" not in await visitor.text(page), page
        ran = await asyncio.to_thread(taskmanager, "status", "--json", "--db", secret_url)
        assert (ran.code, "hunter2" in ran.out) == (0, False)
    assert "hunter2" not in rows_of(cluster, secret_url.rpartition("=")[2])
    assert "hunter2" not in caplog.text


@pytest.mark.anyio
async def test_wrong_password_is_in_no_traceback_and_on_no_page(
    secret_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever mistypes one letter must not find the others in a log."""
    url = secret_url.replace(SECRET, "hunter2-wrong")
    with pytest.raises(StoreUnavailable, match="password authentication failed") as refused:
        async with TaskManager(url):
            pass
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))
    async with Visitor(file_dashboard(place_at(url), everybody_here, hosts=None)) as visitor:
        answer = await visitor.get("tasks")
        assert (answer.status_code, "hunter2" in answer.text) == (503, False)
    assert "hunter2" not in caplog.text
