"""The application that the servers of `test_web_viewers.py` serve: a manager, and its dashboard for whoever comes.

It notes in the journal when the stop of the manager begins, and when it is over.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from taskmanager import TaskManager
from taskmanager.web import dashboard
from tests.acceptance.served import note

manager = TaskManager(os.environ["SERVED_DB"], store_poll=0.05)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Run the manager, and a task that never ends by itself, so that the pages change."""
    async with manager:
        endless.enqueue()
        yield
        note("stop begins")
    note("stop is over")


@manager.task
async def endless() -> None:
    """Runs until the stop."""
    await asyncio.Event().wait()


app = FastAPI(lifespan=lifespan)
app.mount("/tm", dashboard(manager, auth=lambda _request: "act"))


@app.get("/healthz")
async def health() -> str:
    """Whether it serves."""
    return manager.status().state
