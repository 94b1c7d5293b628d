"""Visits a dashboard as a browser does, with cookies and forms with tokens, but without a browser and a server."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from httpx import ASGITransport, AsyncClient, Response
from starlette.types import ASGIApp

from taskmanager import TaskManager
from taskmanager.web import dashboard

SITE = "http://test"
_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


class Visitor:
    """One browser at one dashboard. `get` and `post` take addresses below it, such as `tasks?status=FAILED`."""

    def __init__(self, app: ASGIApp, root: str = "/") -> None:
        self.app = app
        self._client = AsyncClient(transport=ASGITransport(app), base_url=SITE + root)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, address: str, **headers: str) -> Response:
        """Return the page, as it comes."""
        return await self._client.get(address, headers=headers)

    async def text(self, address: str) -> str:
        """Return the HTML of a page that must be there."""
        answer = await self.get(address)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer.text

    async def post(self, address: str, fields: Mapping[str, Any], *, page: str = "queues") -> Response:
        """Send a form as `page` would, and return the answer to it, which mostly leads to another page."""
        self._client.cookies.update((await self.get(page)).cookies)
        token = self._client.cookies.get("taskmanager_form")
        headers = {"sec-fetch-site": "same-origin"}
        return await self._client.post(address, data={"form_token": token, **fields}, headers=headers)


def visit(manager: TaskManager, level: str | None = "act", **options: Any) -> Visitor:
    """Return a visitor of the dashboard of `manager`, who may do so much."""
    return Visitor(dashboard(manager, auth=lambda _request: level, **options))


def manager_on(folder: Path, **options: Any) -> TaskManager:
    """Return a manager on a file of its own."""
    return TaskManager(folder / "tasks.db", **options)
