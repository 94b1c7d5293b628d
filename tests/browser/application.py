"""The application that is served to a browser: the shop with its dashboard.

What the shop does next is told by `POST /shop/...`, so that a test decides when a page has something new to show.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from taskmanager.web import dashboard
from tests.browser import content, shop
from tests.browser.shop import manager

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")

VERBS: Final = {
    "charge": shop.charge,
    "resize": shop.resize,
    "build-report": shop.build_report,
    "load": shop.load,
    "hostile": shop.hostile,
}


async def enqueue(request: Request) -> JSONResponse:
    """Enqueue what the address names with what the body says, and answer the id when it is in the file."""
    said: dict[str, Any] = await request.json()
    handle = VERBS[request.path_params["verb"]].enqueue(*said.get("args", ()), **said.get("kwargs", {}))
    await handle.saved()
    return JSONResponse(handle.task_id)


async def progress(request: Request) -> JSONResponse:
    """Say how far all reports are."""
    shop.tell_progress(await request.json())
    return JSONResponse(None)


async def open_gate(request: Request) -> JSONResponse:
    """Let everything end that waits."""
    shop.gate.set()
    return JSONResponse(None)


def allowed(request: Request) -> str | None:
    """Who says nothing may act; a header makes somebody less."""
    said = request.headers.get("x-may", "act")
    return None if said == "nothing" else said


@asynccontextmanager
async def at_work(app: Starlette) -> AsyncIterator[None]:
    """The manager runs, and is in the middle of its work, for as long as the application is served."""
    async with manager.lifespan(app):
        await content.at_work()
        yield


def living() -> ASGIApp:
    """The shop at work, with its dashboard at `/tasks`."""
    routes = [
        Route("/shop/progress", progress, methods=["POST"]),
        Route("/shop/gate", open_gate, methods=["POST"]),
        Route("/shop/{verb}", enqueue, methods=["POST"]),
        Mount("/tasks", dashboard(manager, auth=allowed, title="shop")),
    ]
    return Starlette(routes=routes, lifespan=at_work)
