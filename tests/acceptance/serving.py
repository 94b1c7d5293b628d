"""Starts servers, loads them over sockets from a process of their own, and signals them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.crash.harness import ROOT, Site, wait_for

READY_S = 60.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    """One server process group, on one site and port."""

    def __init__(
        self, site: Site, port: int, *command: str, folder: Path = ROOT, environment: Mapping[str, str] | None = None
    ) -> None:
        self.port = port
        self._log = site.folder / f"server-{time.monotonic_ns()}.log"
        wanted = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SERVED_DB": str(site.db),
            "TASKMANAGER_TEST_JOURNAL": str(site.journal),
            **(environment or {}),
        }
        wanted.pop("PYTHONWARNINGS", None)
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=folder,
                env=wanted,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        """What it and its workers wrote."""
        return self._log.read_text(errors="replace")

    def request(self, method: str, path: str, *, timeout: float = 20.0) -> Any:
        """One request on a connection of its own; the JSON of the answer."""
        call = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(call, timeout=timeout) as answer:
            return json.loads(answer.read() or b"null")

    def is_ready(self, probe: str = "/healthz") -> bool:
        """Whether it answers."""
        assert self.process.poll() is None, f"ended before it was ready:\n{self.log()}"
        with contextlib.suppress(OSError):
            self.request("GET", probe, timeout=5)
            return True
        return False

    def until_ready(self) -> "Server":
        """Wait until it answers."""
        wait_for(self.is_ready, self.log, READY_S)
        return self

    def until_logged(self, text: str, count: int) -> None:
        """Wait until it and its workers have written this so often."""
        wait_for(lambda: self.log().count(text) >= count, self.log, READY_S)

    def stop(self, number: int = signal.SIGTERM, *, within_s: float = 20.0) -> float:
        """Signal the first process, wait until all of them have ended, and say how many seconds that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {within_s} s:\n{self.log()}") from None
        took = time.monotonic() - began
        wait_for(lambda: not self._is_group_alive(), self.log, 5)
        return took

    def _is_group_alive(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """All of its processes, whatever state they are in."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@contextlib.contextmanager
def served(site: Site, port: int, *command: str, **options: Any) -> Iterator[Server]:
    """A server that answers; none of its processes outlives the block."""
    server = Server(site, port, *command, **options)
    try:
        yield server.until_ready()
    finally:
        server.kill()


def logged(site: Site, text: str) -> int:
    """How often the servers of a site wrote this."""
    return sum(path.read_text(errors="replace").count(text) for path in site.folder.glob("server-*.log"))


class Accepted(NamedTuple):
    """A request that was answered with 202, and what it said: an id, an object that holds one, or nothing."""

    label: str
    task_id: Any


class Load:
    """A process that sends requests as fast as they are answered, and writes down what was accepted."""

    def __init__(self, folder: Path, port: int, *paths: str, connections: int = 8) -> None:
        self._said = folder / f"accepted-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.hammer", str(port), str(self._said), str(connections), *paths],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )

    def accepted(self) -> list[Accepted]:
        """What was accepted so far."""
        text = self._said.read_text() if self._said.exists() else ""
        return [Accepted(*json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]

    def until(self, count: int) -> None:
        """Wait until so many were accepted."""
        wait_for(lambda: len(self.accepted()) >= count, lambda: f"{len(self.accepted())} of {count}")

    def stop(self) -> list[Accepted]:
        """End it; everything that was accepted."""
        self.process.terminate()
        self.process.wait(20)
        return self.accepted()


@contextlib.contextmanager
def loaded(folder: Path, port: int, *paths: str, connections: int = 8) -> Iterator[Load]:
    """Load that does not outlive the block."""
    load = Load(folder, port, *paths, connections=connections)
    try:
        yield load
    finally:
        load.process.kill()
        load.process.wait(10)
