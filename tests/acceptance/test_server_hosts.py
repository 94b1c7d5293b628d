"""Instances on hosts of their own: what becomes silent there is noticed, and nothing is lost or done twice by it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.acceptance.server_world import OURS, server_of_its_own
from tests.crash.harness import wait_for
from tests.postgresql.namespaces import Host, Network, NoNamespaces
from tests.servers import HOST, Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
SCHEMA: Final = "jobs"
LET_GO_S: Final = 40.0
"""The server needs less than half of it to notice that a host is silent."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """One host."""
    try:
        made = Network(1)
    except NoNamespaces as exc:
        pytest.skip(str(exc))
    yield made
    made.destroy()


@pytest.fixture
def server(network: Network) -> Iterator[Cluster]:
    """A server that this host reaches."""
    with server_of_its_own() as made:
        made.set("listen_addresses", f"{HOST},{network.address}")
        made.restart()
        yield made


@contextmanager
def instance(host: Host, url: str, journal: Path) -> Iterator[None]:
    """An instance there, which has started. It enqueues for a while and then waits."""
    journal.touch()
    config = {"url": url, "journal": str(journal), "is_last": False, "seed": 1}
    command = host.command(sys.executable, "-m", "tests.postgresql.churn", json.dumps(config))
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: "saved" in journal.read_text(), journal.read_text, LET_GO_S)
            yield
        finally:
            process.kill()


def test_silent_host_keeps_no_session_on_the_server(network: Network, server: Cluster, tmp_path: Path) -> None:
    """Its connections are free for others after seconds, and so are the locks, and what its reader kept from being
    cleaned up. When the host is back, it goes on.
    """

    def until_sessions_are(count: int) -> None:
        question = f"SELECT count(*), array_agg(application_name)::text {OURS}"
        wait_for(lambda: server.psql(question)[0][0] == str(count), lambda: f"{server.psql(question)}", LET_GO_S)

    (host,) = network.hosts
    with instance(host, server.url(SCHEMA, host=network.address), tmp_path / "journal"):
        until_sessions_are(3)
        host.cut()
        until_sessions_are(0)
        host.mend()
        until_sessions_are(3)


def test_churn_on_hosts_of_their_own_loses_and_doubles_nothing(network: Network) -> None:
    """A few rounds of what `python -m tests.postgresql.churn --namespaces` does for long."""
    command = [sys.executable, "-m", "tests.postgresql.churn", "--namespaces", "--rounds", "15", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
