"""A service that makes reports in the background: `uvicorn app:app`. README.md beside this file is its tour."""

import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException
from jobs import Report, build_report, count_words, manager, send_email
from pydantic import BaseModel

from taskmanager import Background, TaskStatus, UnknownTask
from taskmanager.integrations.fastapi import router

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
ADMIN_KEY = os.environ.get("REPORTS_ADMIN_KEY", "change me")

# What is added is handed over when the route has succeeded, before its response is sent.
Tasks = Annotated[Background, Depends(manager.background, scope="function")]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """What tasks use is opened before the manager starts, and closed when it has stopped."""
    logging.getLogger("reports").info("open what the tasks need here")
    async with manager.lifespan(app):
        yield
    logging.getLogger("reports").info("close it here")


def admin(x_api_key: Annotated[str, Header()] = "") -> None:
    """Who may see and change tasks."""
    if not secrets.compare_digest(x_api_key.encode(), ADMIN_KEY.encode()):
        raise HTTPException(401, "the X-API-Key header is missing or wrong")


app = FastAPI(title="Reports", lifespan=lifespan)
# The records over HTTP: /admin/tasks, /admin/counts, ... and /admin/healthz, which lets probes in.
app.include_router(router(manager, auth=admin, health_auth=None), prefix="/admin")


class Accepted(BaseModel):
    """The promise: this will be done."""

    task_id: str


class ReportState(BaseModel):
    """How far it is, and what it has come to."""

    status: TaskStatus
    progress: dict[str, Any] | None
    report: Report | None
    error: str | None


@app.post("/reports/{customer}", status_code=202)
async def order_report(
    customer: str,
    pages: int = 4,
    address: str | None = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Accepted:
    """Order a report. The answer comes when the order is in the file: from then on nothing but the disk can lose it."""
    handle = build_report.with_options(idempotency_key=idempotency_key).enqueue(customer, pages, address)
    await handle.saved(timeout=5)
    return Accepted(task_id=handle.task_id)


@app.get("/reports/{task_id}")
async def read_report(task_id: str) -> ReportState:
    """Ask for it, in any worker process and after any restart."""
    info = await manager.get(task_id)
    if info is None or info.task_name != build_report.name:
        raise HTTPException(404, "no such report")
    result = info.result
    return ReportState(
        status=info.status,
        progress=None if info.progress is None else dict(info.progress),
        report=result.ok_value if result is not None and result.is_ok() else None,
        error=result.err_value.message if result is not None and result.is_err() else None,
    )


@app.delete("/reports/{task_id}", status_code=202)
async def cancel_report(task_id: str) -> None:
    """Cancel it, waiting or running."""
    try:
        if not await manager.cancel(task_id):
            raise HTTPException(409, "it has ended already")
    except UnknownTask as exc:
        raise HTTPException(404, "no such report") from exc


@app.post("/customers", status_code=201)
async def sign_up(address: str, tasks: Tasks) -> Accepted:
    """The mail goes out only if the route succeeds."""
    task_id = tasks.add_task(send_email, address, "Welcome")
    if "@" not in address:
        raise HTTPException(422, "that is no address")
    return Accepted(task_id=task_id)


@app.post("/feedback", status_code=202)
def feedback(text: str, background_tasks: BackgroundTasks) -> None:
    """A route that has not moved over: Starlette's own `BackgroundTasks`, with a task in the place of a function."""
    background_tasks.add_task(count_words, text)
