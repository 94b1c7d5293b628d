"""The application that the servers of `test_servers.py` serve: it enqueues persisted tasks, and each leaves its lines.

The file and the journal are named by the environment, as `tests.crash.harness.Site` reads them.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import BackgroundTasks, Depends, FastAPI, WebSocket
from fastapi.responses import StreamingResponse

from taskmanager import Background, RecoveryConfig, TaskManager, current_task
from taskmanager.integrations.fastapi import router

manager = TaskManager(
    os.environ["SERVED_DB"],
    recovery=RecoveryConfig(check_interval_ms=1_000),
    store_poll=0.05,
    drain_timeout=float(os.environ.get("SERVED_DRAIN_S", "5")),
)
app = FastAPI(lifespan=manager.lifespan)
app.include_router(router(manager, auth=None))


def note(event: str, label: str = "") -> None:
    """One line of the journal. Not synced: these processes end by signals, not by power cuts."""
    task_id, attempt = "", 0
    if event in ("start", "finish"):
        task_id, attempt = current_task().task_id, current_task().attempt
    line = {"event": event, "label": label, "task_id": task_id, "attempt": attempt, "pid": os.getpid()}
    descriptor = os.open(os.environ["TASKMANAGER_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


note("loaded", "file is there" if Path(os.environ["SERVED_DB"]).exists() else "no file yet")


@manager.task(name="once", persist=True)
async def once(label: str, seconds: float = 0.0) -> None:
    """Not safe to repeat."""
    note("start", label)
    await asyncio.sleep(seconds)
    note("finish", label)


@manager.task(name="safe", persist=True, requeue_on_interrupt=True, executor="thread")
def safe(label: str, seconds: float = 0.0) -> None:
    """Safe to repeat, in a thread."""
    note("start", label)
    time.sleep(seconds)
    note("finish", label)


@app.get("/")
async def trivial() -> int:
    """Which process answers."""
    return os.getpid()


@app.post("/once/{label}", status_code=202)
async def accept_once(label: str, seconds: float = 0.0) -> str:
    """Accepted means: in the file."""
    handle = once.enqueue(label, seconds)
    await handle.saved()
    return handle.task_id


@app.post("/safe/{label}", status_code=202)
def accept_safe(label: str) -> str:
    """A synchronous route, in the server's thread pool: it says yes when the call is accepted."""
    return safe.enqueue(label).task_id


@app.post("/added/{label}", status_code=202)
async def accept_added(
    label: str, background: Annotated[Background, Depends(manager.background, scope="function")]
) -> str:
    """Handed over before the response is sent."""
    return background.add_task(once, label)


@app.post("/plain/{label}", status_code=202)
async def accept_plain(label: str, background_tasks: BackgroundTasks) -> None:
    """Starlette's own, with a task in it: handed over when the response has been sent."""
    background_tasks.add_task(once, label)


@app.post("/hangs/{label}")
async def hang(label: str, background: Annotated[Background, Depends(manager.background)]) -> None:
    """Never answers: what it enqueued goes on, what it added is dropped."""
    once.enqueue(f"{label} enqueued")
    background.add_task(once, f"{label} added")
    note("hangs", label)
    try:
        await asyncio.Event().wait()
    finally:
        note("let go", label)


@app.get("/stream/{label}")
async def stream(
    label: str, background: Annotated[Background, Depends(manager.background, scope="function")]
) -> StreamingResponse:
    """A response that never ends, of a route that has succeeded."""
    background.add_task(once, label)

    async def body() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1024
            await asyncio.sleep(0.01)

    return StreamingResponse(body())


@app.websocket("/socket/{label}")
async def socket(label: str, websocket: WebSocket) -> None:
    """Enqueues once, and then waits for a client that leaves without a word."""
    await websocket.accept()
    await websocket.send_text(once.enqueue(label, 0.2).task_id)
    await websocket.receive_text()
