"""The dashboard inside the applications of others: every link, form and redirect leads where the browser can follow."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from taskmanager import TaskManager
from taskmanager.web import dashboard
from taskmanager.web.mounting import place_of
from tests.web.pages import links_of
from tests.web.visitor import manager_on

pytestmark = pytest.mark.anyio
SITE = "https://test"


@pytest.mark.parametrize(
    ("path", "raw_path", "root_path", "wanted"),
    [
        # Starlette and FastAPI: the path has the root path in it.
        ("/tasks/", "/tasks/", "/tasks", ("", 0, None)),
        ("/tasks", "/tasks", "/tasks", ("", 0, "./tasks/")),
        ("/tasks/queues", "/tasks/queues", "/tasks", ("queues", 0, None)),
        ("/tasks/tasks", "/tasks/tasks", "/tasks", ("tasks", 0, None)),
        ("/tasks/tasks/", "/tasks/tasks/", "/tasks", ("tasks", 0, "../tasks")),
        ("/tasks/tasks/a/b", "/tasks/tasks/a%2Fb", "/tasks", ("tasks/a/b", 1, None)),
        ("/tasks/tasks/a/b", "/tasks/tasks/a/b", "/tasks", ("tasks/a/b", 2, None)),
        ("/in/tasks/queues", "/in/tasks/queues", "/in/tasks/", ("queues", 0, None)),
        ("/tasksy", "/tasksy", "/tasks", ("tasksy", 0, None)),
        ("/ä b/ü", "/%C3%A4%20b/%C3%BC/", "/ä b", ("ü", 0, "../%C3%BC")),
        # The application knows of a prefix that its proxy strips.
        ("/tasks/queues", "/tasks/queues", "/in/tasks", ("queues", 0, None)),
        ("/tasks", "/tasks", "/in/tasks", ("", 0, "./tasks/")),
        # Litestar: neither the mount nor the root path is in the path, and it always ends with a slash.
        ("/", "/tasks", "", ("", 0, "./tasks/")),
        ("/", "/tasks/", "", ("", 0, None)),
        ("/tasks/", "/tasks/tasks", "", ("tasks", 0, None)),
        ("/tasks/", "/tasks/tasks/tasks", "/tasks", ("tasks", 0, None)),
        ("/tasks/a/b/", "/in/tasks/tasks/a%2Fb", "/in", ("tasks/a/b", 1, None)),
        ("/queues/", "/tasks/queues/", "", ("queues", 0, "../queues")),
        # A name may end with a slash, which is quoted.
        ("/tasks/workflows/a/", "/tasks/workflows/a%2F", "/tasks", ("workflows/a/", 1, None)),
        ("/workflows/a/", "/in/tasks/workflows/a%2F", "/in", ("workflows/a/", 1, None)),
        ("/workflows/a//", "/in/tasks/workflows/a%2F%2F", "/in", ("workflows/a//", 1, None)),
        # A server without `raw_path`, and the dashboard as the whole application.
        ("/tasks/x", None, "/tasks", ("x", 0, None)),
        ("/tasks/x", None, "", ("tasks/x", 1, None)),
        ("/", "/", "", ("", 0, None)),
        ("", "", "", ("", 0, None)),
        ("/tasks", "/tasks?x=/", "", ("tasks", 0, None)),
    ],
)
async def test_place_is_found_whoever_asks(
    path: str, raw_path: str | None, root_path: str, wanted: tuple[str, int, str | None]
) -> None:
    """The page, how deep it is for the browser, and where the address with the right slash is."""
    scope = {"path": path, "root_path": root_path, "raw_path": None if raw_path is None else raw_path.encode()}
    found = place_of(scope)
    assert (found.path, found.depth, found.redirect) == wanted


def starlette_app(pages: ASGIApp) -> ASGIApp:
    """Starlette with the dashboard."""
    return Starlette(routes=[Mount("/tasks", pages)])


def fastapi_app(pages: ASGIApp) -> ASGIApp:
    """FastAPI with the dashboard."""
    app = FastAPI()
    app.mount("/tasks", pages)
    return app


def litestar_app(pages: ASGIApp) -> ASGIApp:
    """Litestar with the dashboard, in the form in which its documents mount applications."""
    litestar = pytest.importorskip("litestar")
    types = pytest.importorskip("litestar.types")

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await pages(scope, receive, send)

    mounted.__annotations__ = {"scope": types.Scope, "receive": types.Receive, "send": types.Send, "return": None}
    app: ASGIApp = litestar.Litestar([litestar.asgi("/tasks", is_mount=True, copy_scope=True)(mounted)])
    return app


def proxied(app: ASGIApp, prefix: str, *, is_stripped: bool, root_path: str = "") -> ASGIApp:
    """What a browser sees of an application behind a proxy, and behind a server that was told the root path."""

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"].startswith(f"{prefix}/"), f"{scope['path']} leads out of the application"
        path, raw = scope["path"], scope["raw_path"]
        if is_stripped:
            path, raw = path.removeprefix(prefix), raw.removeprefix(prefix.encode())
        inner = {**scope, "path": root_path + path, "raw_path": root_path.encode() + raw, "root_path": root_path}
        await app(inner, receive, send)

    return proxy


PROXIES: dict[str, tuple[str, Callable[[ASGIApp], ASGIApp]]] = {
    "none": ("", lambda app: proxied(app, "", is_stripped=False)),
    "strips": ("/in", lambda app: proxied(app, "/in", is_stripped=True)),
    "strips, and the server knows": ("/in", lambda app: proxied(app, "/in", is_stripped=True, root_path="/in")),
    "keeps": ("/in", lambda app: proxied(Starlette(routes=[Mount("/in", app)]), "/in", is_stripped=False)),
}


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[TaskManager]:
    """A running manager with a task."""
    made = manager_on(tmp_path)

    @made.task(persist=True, queue_name="mail")
    async def send() -> None: ...

    async with made:
        await send.enqueue()
        yield made


@pytest.mark.parametrize("framework", [starlette_app, fastapi_app, litestar_app])
@pytest.mark.parametrize("proxy", PROXIES)
async def test_mounted_dashboard_leads_nobody_astray(
    manager: TaskManager, framework: Callable[[ASGIApp], ASGIApp], proxy: str
) -> None:
    """All that pages link to is there, forms arrive with their cookies, and an action leads back to its page."""
    prefix, wrap = PROXIES[proxy]
    root = f"{SITE}{prefix}/tasks/"
    app = wrap(framework(dashboard(manager, auth=lambda _request: "act")))
    async with AsyncClient(transport=ASGITransport(app), base_url=SITE) as browser:
        for address in (root, f"{root}queues", f"{root}instances"):
            page = await browser.get(address)
            assert page.status_code == 200, (address, page.text)
            for link in links_of(page.text):
                found = urljoin(address, link)
                assert found.startswith(root), link
                if "/static/" in found:
                    assert (await browser.get(found)).status_code == 200, link
        deep = await browser.get(f"{root}no-such/deep")
        style = next(urljoin(str(deep.url), each) for each in links_of(deep.text) if "dashboard.css" in each)
        assert (deep.status_code, (await browser.get(style)).status_code) == (404, 200)
        token = browser.cookies["__Host-taskmanager_form"]
        form = {"form_token": token, "queue": "mail"}
        done = await browser.post(f"{root}queues/pause", data=form, headers={"sec-fetch-site": "same-origin"})
        assert (done.status_code, urljoin(str(done.url), done.headers["location"])) == (303, f"{root}queues")
        assert "mail" in (await browser.get(f"{root}queues")).text


@pytest.mark.parametrize("framework", [starlette_app, fastapi_app, litestar_app])
@pytest.mark.parametrize("proxy", ["none", "strips, and the server knows", "keeps"])
async def test_address_without_its_slash_leads_to_the_overview(
    manager: TaskManager, framework: Callable[[ASGIApp], ASGIApp], proxy: str
) -> None:
    """And a slash too many to the page. The query stays."""
    prefix, wrap = PROXIES[proxy]
    root = f"{SITE}{prefix}/tasks/"
    app = wrap(framework(dashboard(manager, auth=lambda _request: "act")))
    async with AsyncClient(transport=ASGITransport(app), base_url=SITE) as browser:
        for address, wanted in ((root[:-1], root), (f"{root}queues/", f"{root}queues")):
            led = await browser.get(f"{address}?x=%2F")
            assert led.status_code in (307, 308)
            found = urlsplit(urljoin(address, led.headers["location"]))
            assert (found._replace(scheme="https", query="").geturl(), found.query) == (wanted, "x=%2F")
