"""What every test shares: asyncio is the backend of `@pytest.mark.anyio`, Hypothesis repeats itself in CI, and there is
a PostgreSQL server for those who ask for it.
"""

import gc
import logging
import os
import secrets
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from taskmanager.model.logger import logger

if TYPE_CHECKING:
    from tests.servers import Cluster

NO_SERVER = "no PostgreSQL server is installed: apt install postgresql"
SCHEMA = "shared"
# Quicker than TRUNCATE, which makes each file anew.
EMPTY = f"""
DO $$ DECLARE each record; BEGIN
    FOR each IN SELECT tablename AS name FROM pg_tables
        WHERE schemaname = '{SCHEMA}' AND tablename <> 'taskmanager_schema'
    LOOP
        EXECUTE format('DELETE FROM {SCHEMA}.%I', each.name);
    END LOOP;
    PERFORM setval(name::regclass, 1, false) FROM (
        SELECT format('%I.%I', schemaname, sequencename) AS name FROM pg_sequences WHERE schemaname = '{SCHEMA}'
    ) AS sequences;
END $$
"""

# A shared machine is slow in bursts; a deadline per example would fail for that and for nothing else.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("brief", settings.get_profile("default"), max_examples=25)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell script that starts the suite in the background has it ignore Ctrl-C, and so would every program it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was collected stays to the end. The garbage collector need not go through it after each test again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    """The only event loop this library runs on."""
    return "asyncio"


@pytest.fixture(autouse=True)
def no_record_is_lost() -> Iterator[None]:
    """A mistake in the words of a record of ours raises nothing, so it is looked for after each test."""
    logger.lost_count, logger.fault = 0, None
    yield
    assert logger.lost_count == 0, logger.fault


class _ForbiddenMoves(logging.Handler):
    """What was said of moves that no table allows: the engine survives them, so that a test may too."""

    def __init__(self) -> None:
        super().__init__(logging.CRITICAL)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "cannot go from" in record.getMessage():
            self.told.append(record.getMessage())


@pytest.fixture(autouse=True)
def no_move_is_forbidden(request: pytest.FixtureRequest) -> Iterator[None]:
    """A task that goes where no move leads is a mistake of ours, also where nothing else of the test shows it."""
    handler = _ForbiddenMoves()
    tasks = logging.getLogger("taskmanager")
    tasks.addHandler(handler)
    yield
    tasks.removeHandler(handler)
    assert not handler.told or request.module.__name__.endswith("test_engine_phases"), handler.told


@pytest.fixture(scope="session")
def cluster() -> "Iterator[Cluster]":
    """One PostgreSQL server for each process of pytest, made when it is first asked for."""
    from tests.servers import Cluster, find_binaries

    if find_binaries() is None:
        pytest.skip(NO_SERVER)
    made = Cluster.create()
    yield made
    made.destroy()


@pytest.fixture
def schema_url(cluster: "Cluster") -> Iterator[str]:
    """The address of the server with a schema that only this test has. It is not made, and is dropped afterwards."""
    name = f"t_{secrets.token_hex(4)}"
    yield cluster.url(name)
    cluster.psql(f"SET lock_timeout = '20s'; DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def empty_url(cluster: "Cluster") -> Iterator[str]:
    """The address of a schema without rows. It is one for all these tests: to make its tables takes half a second."""
    yield cluster.url(SCHEMA)
    cluster.psql(EMPTY)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let all tests that lack a server say so in one line of the summary, with their number."""
    report = yield
    if report.skipped and NO_SERVER in str(report.longrepr):
        report.longrepr = (__file__, 0, NO_SERVER)
    return report
