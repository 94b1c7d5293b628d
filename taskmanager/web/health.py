"""`/healthz`: one word for probes, with 200 if all is well and 503 if not."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from taskmanager.console.health import HealthReport, health_of, health_of_all
from taskmanager.model.errors import StoreError
from taskmanager.web.site import site_of


async def show(request: Request) -> JSONResponse:
    """Answer for the manager of this process, or else for every instance on the file."""
    source = site_of(request).source
    if source.manager is not None:
        return _answer(health_of(source.manager.status()))
    try:
        return _answer(health_of_all(await source.overview()))
    except StoreError as exc:
        return JSONResponse({"status": "unreadable", "detail": str(exc)}, 503)


def _answer(found: HealthReport) -> JSONResponse:
    document: dict[str, Any] = found._asdict()
    if found.storage_degraded_since is not None:
        document["storage_degraded_since"] = found.storage_degraded_since.isoformat().replace("+00:00", "Z")
    return JSONResponse(document, 200 if found.status == "ok" else 503)
