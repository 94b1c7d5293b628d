"""What do 500 tasks per second in the background do to the latency of a trivial route?

A FastAPI application under uvicorn, in a process of its own; requests come over sockets from another one, at a fixed
rate on keep-alive connections. A latency counts from the moment when the request was due, so that a server that stalls
does not slow the measurement down with it.

Two controls: an application without a manager, and one whose only background is a thread that syncs a file to the disk
about as often as the manager commits. What the second one costs is the machine's price for durability, whoever asks.

One kind has the dashboard mounted, and ten viewers of its pages beside the load, who ask as often as a browser does.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn
from _harness import (
    Figures,
    Line,
    Options,
    database,
    finish_part,
    free_port,
    percentile,
    run,
    start_part,
    wait_until_it_listens,
)
from fastapi import FastAPI

from taskmanager import TaskManager
from taskmanager.web import dashboard

TASKS_PER_S = 500
REQUESTS_PER_S = 200
CONNECTIONS = 10
WARM_UP_S = 1.0

NOTHING = "no manager"
SYNCING = "no manager, 500 syncs/s"
IDLE = "an idle manager"
MEMORY = "500 memory-only tasks/s"
PERSISTED = "500 persisted tasks/s"
NORMAL = '500 persisted tasks/s, "normal"'
VIEWED = "500 persisted tasks/s, ten viewers of the dashboard"
KINDS = (NOTHING, SYNCING, IDLE, MEMORY, PERSISTED, NORMAL, VIEWED)
LOADED = (MEMORY, PERSISTED, NORMAL, VIEWED)
VIEWED_PAGES = ("", "tasks", "", "failures", "queues", "", "tasks?status=FAILED", "instances", "", "tasks")
VIEW_S = 1.5
SYNCS_PER_S = 500
MUST = {PERSISTED: "<= 0.7"}


# The server.


async def pace(enqueue: Callable[[], Any]) -> None:
    """One task every 2 ms, by the clock; what is late is made up for."""
    began, sent = time.perf_counter(), 0
    while True:
        due = int((time.perf_counter() - began) * TASKS_PER_S)
        for _ in range(due - sent):
            enqueue()
        sent = due
        await asyncio.sleep(1 / TASKS_PER_S)


def sync_for_ever(path: str) -> None:
    """A page, and a sync, as often as a manager with this load commits."""
    descriptor = os.open(f"{path}-synced", os.O_RDWR | os.O_CREAT, 0o600)
    due = time.perf_counter()
    while True:
        os.write(descriptor, bytes(4096))
        os.fsync(descriptor)
        due = max(due + 1 / SYNCS_PER_S, time.perf_counter() - 1)
        time.sleep(max(0.0, due - time.perf_counter()))


def make_app(kind: str, path: str) -> FastAPI:
    """The application, with what goes on in its background."""
    manager = TaskManager(path, synchronous="normal" if kind == NORMAL else "full")
    ended = 0

    async def count(number: int) -> None:
        nonlocal ended
        ended += 1

    task = manager.task(name="count", persist=kind in (PERSISTED, NORMAL, VIEWED))(count)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if kind == SYNCING:
            threading.Thread(target=sync_for_ever, args=(path,), daemon=True).start()
        if kind in (NOTHING, SYNCING):
            yield
            return
        async with manager.lifespan(app):
            if kind == IDLE:
                yield
                return
            pacer = asyncio.create_task(pace(lambda: task.enqueue(1)))
            yield
            pacer.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.get("/")
    async def trivial() -> dict[str, str]:
        return {"hello": "world"}

    @app.get("/ended")
    async def how_many() -> int:
        return ended

    if kind == VIEWED:
        app.mount("/jobs", dashboard(manager, auth=lambda request: "read"))
    return app


def serve(kind: str, port: int, path: str) -> None:
    """What the server's process does, until SIGTERM."""
    uvicorn.run(make_app(kind, path), port=port, log_level="error", access_log=False)


# The load.


class Connection:
    """One keep-alive connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def get(self, path: str) -> bytes:
        """The body of the answer, which has to be 200."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length"))
        return await self._reader.readexactly(int(length.partition(b":")[2]))

    async def look(self, path: str, tag: str) -> str:
        """The tag of a page, which is sent only if it is not the one that is given."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {tag}\r\n\r\n".encode())
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        assert lines[0].split()[1] in ("200", "304"), lines
        await self._reader.readexactly(int(headers.get("content-length", "0")))
        return next(line.partition(": ")[2] for line in lines if line.lower().startswith("etag"))


async def ended_tasks(port: int) -> int:
    """How many tasks have ended so far; on a connection of its own, since a server closes one that is idle."""
    return int(await (await Connection.open(port)).get("/ended"))


async def view(port: int, page: str) -> None:
    """Ask for a page as an open browser does, for ever."""
    connection, tag = await Connection.open(port), "none"
    while True:
        tag = await connection.look(f"/jobs/{page}", tag)
        await asyncio.sleep(VIEW_S)


async def load(port: int, duration_s: float, viewed: bool) -> dict[str, Any]:
    """Requests at the fixed rate, each on the next connection that is free; latencies in ms, and tasks per second."""
    viewers = [asyncio.create_task(view(port, page)) for page in VIEWED_PAGES if viewed]
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await Connection.open(port))
    latencies_ms: list[float] = []

    async def one(due: float, is_counted: bool) -> None:
        connection = await free.get()
        await connection.get("/")
        if is_counted:
            latencies_ms.append((time.perf_counter() - due) * 1000)
        free.put_nowait(connection)

    ended_before, counted_from = 0, 0.0
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int((WARM_UP_S + duration_s) * REQUESTS_PER_S)):
            due = began + number / REQUESTS_PER_S
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            is_counted = number >= WARM_UP_S * REQUESTS_PER_S
            if is_counted and not counted_from:
                ended_before, counted_from = await ended_tasks(port), time.perf_counter()
            group.create_task(one(due, is_counted))
    ended = await ended_tasks(port) - ended_before
    assert not any(viewer.done() for viewer in viewers), viewers
    for viewer in viewers:
        viewer.cancel()
    return {"latencies_ms": latencies_ms, "tasks_per_s": ended / (time.perf_counter() - counted_from)}


# One run.


def measure(options: Options, kind: str) -> Figures:
    """Serve, load, stop."""
    port = free_port()
    with database(options) as path:
        server = start_part(__file__, options, "server", json.dumps([kind, port, str(path)]))
        try:
            wait_until_it_listens(port)
            seen = finish_part(start_part(__file__, options, "load", json.dumps([port, kind == VIEWED])))
        finally:
            server.terminate()
            server.wait()
    latencies_ms = seen["latencies_ms"]
    return {
        "p50": percentile(latencies_ms, 50),
        "p99": percentile(latencies_ms, 99),
        "tasks_per_s": seen["tasks_per_s"],
    }


def server_part(options: Options) -> Figures:
    """The process of the server."""
    serve(*json.loads(options.given))
    return {}


def load_part(options: Options) -> Any:
    """The process of those who ask."""
    port, viewed = json.loads(options.given)
    return asyncio.run(load(port, options.size(8, 2), viewed))


PARTS = {
    **{kind: partial(measure, kind=kind) for kind in KINDS},
    "server": server_part,
    "load": load_part,
}
LINES = [
    *(
        Line(f"p99, {kind} – {NOTHING}", kind, "p99", "ms", NOTHING, quote="difference", must=MUST.get(kind, ""))
        for kind in (SYNCING, IDLE, *LOADED)
    ),
    Line(f"p99, {VIEWED} – without viewers", VIEWED, "p99", "ms", PERSISTED, quote="difference", must="<= 1"),
    *(Line(f"p50, {kind} – {NOTHING}", kind, "p50", "ms", NOTHING, quote="difference") for kind in LOADED),
    *(Line(f"tasks ended, {kind}", kind, "tasks_per_s", "/s") for kind in LOADED),
]
NOTES = [f"{REQUESTS_PER_S} requests per second over {CONNECTIONS} connections, uvicorn {uvicorn.__version__}"]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
