"""Starts the server that a browser visits, on a port that the system chooses, and ends it for certain."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.crash.harness import ROOT, wait_for

READY_S: Final = 60.0
STOP_S: Final = 20.0
ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Server:
    """One server process, which writes its address into its log when it listens."""

    def __init__(self, database: Path, *command: str, environment: Mapping[str, str] | None = None) -> None:
        self.database = database
        self._log = database.parent / "server.log"
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env={**kept, "SERVED_DB": str(database), "PYTHONUNBUFFERED": "1", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text(errors="replace")

    def _is_listening(self) -> bool:
        assert self.process.poll() is None, f"ended before it was ready:\n{self.log()}"
        return ADDRESS.search(self.log()) is not None

    def url(self) -> str:
        """Its address, as soon as it listens."""
        wait_for(self._is_listening, self.log, READY_S)
        found = ADDRESS.search(self.log())
        assert found is not None
        return found[0]

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Signal it, and wait for its end."""
        self.process.send_signal(number)
        self.process.wait(STOP_S)

    def kill(self) -> None:
        """End all its processes, whatever state they are in."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S)


SHOP: Final = ("uvicorn", "--factory", "tests.browser.application:living", "--port", "0", "--no-access-log")
"""The command that lets the shop work, and serves its dashboard below `/tasks`."""


def web(database: Path, *options: str) -> tuple[str, ...]:
    """The command that serves a file."""
    return ("taskmanager", "web", "--db", str(database), "--port", "0", *options)


class Served(NamedTuple):
    """A dashboard that can be visited."""

    server: Server
    root: str  # the path that it is mounted at

    @property
    def url(self) -> str:
        """Its address."""
        return self.server.url() + self.root

    def tell(self, verb: str, said: object = None) -> Any:
        """Tell the shop what to do next, and return its answer."""
        body = json.dumps({} if said is None else said).encode()
        call = urllib.request.Request(f"{self.server.url()}/shop/{verb}", body, method="POST")
        with urllib.request.urlopen(call, timeout=STOP_S) as answer:
            return json.loads(answer.read())

    def task_id(self, where: str, *values: object) -> str:
        """The id of the first task in the file of which that is true."""
        found: str = self.one(f"SELECT id FROM taskmanager_tasks WHERE {where} ORDER BY id LIMIT 1", *values)
        return found

    def one(self, sql: str, *values: object) -> Any:
        """The single value that this selects in the file."""
        with contextlib.closing(sqlite3.connect(self.server.database)) as connection:
            return connection.execute(sql, values).fetchone()[0]


@contextlib.contextmanager
def serving(database: Path, *command: str, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server that listens; all of its processes end with the block."""
    server = Server(database, *command, environment=environment)
    try:
        server.url()
        yield server
    finally:
        server.kill()
