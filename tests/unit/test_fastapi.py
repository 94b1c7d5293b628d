"""A FastAPI or Starlette application with tasks, as the test client and the ASGI transport drive it.

Real servers, sockets and signals are in `tests/acceptance/test_servers.py`.
"""

import asyncio
import inspect
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient as StarletteClient
from starlette.websockets import WebSocketDisconnect

from taskmanager import Background, ConfigurationError, QueueConfig, QueueFull, TaskManager, current_task
from taskmanager.testing import isolated


class Office:
    """A manager with two tasks that note what they did: `send` is asynchronous, `stamp` is not."""

    def __init__(self, **options: Any) -> None:
        self.manager = TaskManager(None, **options)
        self.done: list[tuple[str, Any]] = []

        @self.manager.task(name="send")
        async def send(to: str) -> str:
            self.note("send", to)
            return to

        @self.manager.task(name="stamp")
        def stamp(number: int) -> int:
            self.note("stamp", number)
            return number

        self.send, self.stamp = send, stamp

    def note(self, what: str, value: Any) -> None:
        self.done.append((f"{what}{' directly' if current_task().is_detached else ''}", value))

    def finish(self, client: TestClient) -> list[tuple[str, Any]]:
        """What was done once nothing is unfinished."""
        assert client.portal is not None
        client.portal.call(self.manager.join)
        return self.done


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def app(office: Office) -> FastAPI:
    return FastAPI(lifespan=office.manager.lifespan)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as made:
        yield made


# The lifespan.


def test_the_lifespan_runs_the_manager_while_the_application_serves(app: FastAPI, office: Office) -> None:
    """`FastAPI(lifespan=manager.lifespan)` is the whole integration; it can be started again."""
    for _ in range(2):
        with TestClient(app):
            assert office.manager.status().state == "open"
        assert office.manager.status().state == "stopped"


def test_an_existing_lifespan_goes_around_the_manager(office: Office) -> None:
    """What the tasks use is open before they start, and closed after they have ended; the state is kept."""
    order: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        order.append(f"opened, {office.manager.status().state}")
        async with office.manager.lifespan(app):
            yield {"database": "the database"}
        order.append(f"closed, {office.manager.status().state}")

    app = FastAPI(lifespan=lifespan)

    @app.get("/")
    async def route(request: Request) -> str:
        return str(request.state.database)

    with TestClient(app) as client:
        assert client.get("/").json() == "the database"
    assert order == ["opened, held until start", "closed, stopped"]


def test_starlette_alone_is_served_too(office: Office) -> None:
    """The same lifespan, an asynchronous and a synchronous endpoint, and a mounted application inside."""

    async def asynchronous(request: Request) -> Response:
        office.send.enqueue("ada")
        return JSONResponse({})

    def synchronous(request: Request) -> Response:
        office.stamp.enqueue(1)
        return JSONResponse({}, background=BackgroundTask(office.stamp, 2))

    inner = Starlette(routes=[Route("/b", synchronous)])
    app = Starlette(routes=[Route("/a", asynchronous), Mount("/inner", inner)], lifespan=office.manager.lifespan)
    with StarletteClient(app) as client:
        assert client.get("/a").status_code == client.get("/inner/b").status_code == 200
        assert sorted(office.finish(client)) == [("send", "ada"), ("stamp", 1), ("stamp", 2)]


def test_the_lifespan_of_a_mounted_application_is_run_by_nobody(office: Office, app: FastAPI) -> None:
    """So the outermost one starts the manager, and the mounted ones use it."""
    inner = FastAPI()

    @inner.post("/")
    def route(background: Annotated[Background, Depends(office.manager.background)]) -> None:
        background.add_task(office.send, "ada")

    app.mount("/inner", inner)
    with TestClient(app) as client:
        assert client.post("/inner/").status_code == 200
        assert office.finish(client) == [("send", "ada")]


@pytest.mark.anyio
async def test_an_isolated_manager_is_driven_through_the_asgi_transport(app: FastAPI, office: Office) -> None:
    """`httpx.ASGITransport` runs no lifespan; the test does, and virtual time does the rest."""

    @app.post("/")
    async def route() -> str:
        return office.send.with_options(delay=3600).enqueue("ada").task_id

    transport = httpx.ASGITransport(app)
    async with isolated(office.manager) as world, office.manager.lifespan(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            task_id = (await client.post("/")).json()
        assert [each.task_id for each in world.enqueued] == [task_id]
        await world.advance(3600)
    assert office.done == [("send", "ada")]


# `Depends(manager.background)`.

SCOPES = [pytest.param("request", id="after the response"), pytest.param("function", id="before the response")]


def tasks_of(office: Office, scope: Any) -> Any:
    return Annotated[Background, Depends(office.manager.background, scope=scope)]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_a_task_that_a_route_added_runs_when_it_has_succeeded(
    app: FastAPI, client: TestClient, office: Office, scope: str, is_async: bool
) -> None:
    """`add_task` returns the id at once, on the loop and in the thread of a synchronous route alike."""

    async def asynchronous(background) -> Any:  # type: ignore[no-untyped-def]
        return synchronous(background)

    def synchronous(background) -> Any:  # type: ignore[no-untyped-def]
        return background.add_task(office.send, "ada"), background.add_task(office.stamp, number=1)

    route = asynchronous if is_async else synchronous
    route.__annotations__["background"] = tasks_of(office, scope)
    app.post("/")(route)
    ids = client.post("/").json()
    assert sorted(office.finish(client)) == [("send", "ada"), ("stamp", 1)]
    assert client.portal is not None
    assert [each.task_id for each in client.portal.call(office.manager.list)] == ids[::-1]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("error", [RuntimeError("broken"), HTTPException(409)], ids=["error", "HTTPException"])
def test_a_task_that_a_route_added_is_dropped_when_it_raised(
    app: FastAPI,
    client: TestClient,
    office: Office,
    caplog: pytest.LogCaptureFixture,
    scope: str,
    error: Exception,
) -> None:
    """Whatever it raised; one line of the log names what is not going to happen."""
    added: list[str] = []
    caplog.set_level(logging.INFO, "taskmanager")

    def route(background) -> None:  # type: ignore[no-untyped-def]
        added.append(background.add_task(office.send, "ada"))
        added.append(background.add_task(office.stamp, 1))
        raise error

    route.__annotations__["background"] = tasks_of(office, scope)
    app.post("/")(route)
    assert client.post("/").status_code in (500, 409)
    assert office.finish(client) == []
    names = f"send ({added[0]}), stamp ({added[1]})"
    assert f"dropped 2 background tasks of a route or block that failed: {names}" in caplog.messages


def test_arguments_are_checked_where_the_task_is_added(app: FastAPI, client: TestClient, office: Office) -> None:
    """The route hears of it, not a log line after its response."""

    @app.post("/")
    async def route(background: Annotated[Background, Depends(office.manager.background)]) -> list[str]:
        problems = []
        for call in (
            lambda: background.add_task(office.send),  # type: ignore[call-arg]
            lambda: background.add_task(print, "x"),
        ):
            try:
                call()
            except (TypeError, ConfigurationError) as exc:
                problems.append(type(exc).__name__)
        return problems

    assert client.post("/").json() == ["TypeError", "ConfigurationError"]


@pytest.mark.parametrize("scope", ["request", "function"])
def test_when_a_task_starts_against_the_response(office: Office, scope: Any) -> None:
    """With `scope="function"` before the response is sent, else after it, like `BackgroundTasks`."""
    order: list[str] = []

    @office.manager.task(name="work")
    async def work() -> None:
        order.append("task")

    app = FastAPI(lifespan=office.manager.lifespan)

    @app.get("/")
    async def route(background: Annotated[Background, Depends(office.manager.background, scope=scope)]) -> Response:
        background.add_task(work)

        async def body() -> AsyncIterator[bytes]:
            await asyncio.sleep(0.05)
            order.append("response")
            yield b""

        return StreamingResponse(body())

    with TestClient(app) as client:
        client.get("/")
        office.finish(client)
    assert order == (["task", "response"] if scope == "function" else ["response", "task"])


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("what", ["body", "plain"])
def test_a_response_that_fails_drops_nothing(
    app: FastAPI, client: TestClient, office: Office, scope: str, what: str
) -> None:
    """The route has succeeded: a body or a plain background function that raises afterwards changes nothing about it.

    (The framework throws both into dependencies that end after the response.)
    """

    def route(background, plain: BackgroundTasks) -> Response:  # type: ignore[no-untyped-def]
        background.add_task(office.send, "ada")

        def body() -> Iterator[bytes]:
            yield b"x"
            if what == "body":
                raise RuntimeError("the body")

        plain.add_task(dict.fromkeys)  # needs an argument
        return StreamingResponse(body(), background=plain)

    route.__annotations__["background"] = tasks_of(office, scope)
    app.get("/")(route)
    client.get("/")
    assert office.finish(client) == [("send", "ada")]


def test_server_sent_events_that_fail_drop_nothing(app: FastAPI, client: TestClient, office: Office) -> None:
    """FastAPI makes them beside the response, in a group of tasks; the route has succeeded as with any other body."""
    sse = pytest.importorskip("fastapi.sse", reason="this FastAPI has no routes that yield events")

    async def route(background) -> AsyncIterator[int]:  # type: ignore[no-untyped-def]
        background.add_task(office.send, "ada")
        yield 1
        raise RuntimeError("the body")

    route.__annotations__["background"] = tasks_of(office, "request")
    app.get("/", response_class=sse.EventSourceResponse)(route)
    client.get("/")
    assert office.finish(client) == [("send", "ada")]


async def cancel_a_request(app: FastAPI, office: Office, began: asyncio.Event) -> None:
    """Send one, cancel it when its route has `began`, and run the tasks that there are."""
    transport = httpx.ASGITransport(app)
    async with isolated(office.manager) as world, httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        request = asyncio.create_task(client.get("/"))
        await began.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await world.drain()


@pytest.mark.anyio
@pytest.mark.parametrize("scope", SCOPES)
async def test_a_request_cancelled_while_its_response_is_sent_drops_nothing(
    app: FastAPI, office: Office, scope: str
) -> None:
    """A server does that at the end of its patience, and some when the client is gone."""
    began = asyncio.Event()

    async def route(background) -> Response:  # type: ignore[no-untyped-def]
        background.add_task(office.send, "ada")

        async def body() -> AsyncIterator[bytes]:
            began.set()
            await asyncio.Event().wait()
            yield b""

        return StreamingResponse(body())

    route.__annotations__["background"] = tasks_of(office, scope)
    app.get("/")(route)
    await cancel_a_request(app, office, began)
    assert office.done == [("send", "ada")]


def test_a_dependency_or_a_result_that_fails_is_a_route_that_failed(
    app: FastAPI, client: TestClient, office: Office
) -> None:
    """The route has succeeded when there is a response to send, and not before."""
    Tasks = Annotated[Background, Depends(office.manager.background)]  # noqa: N806  # a type

    def refuses() -> None:
        raise HTTPException(403)

    @app.get("/dependency")
    def dependency(background: Tasks, nothing: Annotated[None, Depends(refuses)]) -> None:
        background.add_task(office.send, "dependency")

    @app.get("/result", response_model=int)
    def result(background: Tasks) -> str:
        background.add_task(office.send, "result")
        return "no number"

    assert [client.get(path).status_code for path in ("/dependency", "/result")] == [403, 500]
    assert office.finish(client) == []


def test_a_task_that_a_streaming_body_adds_is_handed_over_at_once(
    app: FastAPI, client: TestClient, office: Office
) -> None:
    """With `scope="function"` the route has succeeded when its body is made: nothing may wait for an end that was."""

    @app.get("/")
    def route(
        background: Annotated[Background, Depends(office.manager.background, scope="function")],
    ) -> StreamingResponse:
        def body() -> Iterator[str]:
            yield background.add_task(office.send, "ada")

        return StreamingResponse(body())

    task_id = client.get("/").text
    assert office.finish(client) == [("send", "ada")]
    assert client.portal is not None
    assert client.portal.call(office.manager.get, task_id) is not None


@pytest.mark.anyio
async def test_a_task_that_is_added_after_a_failure_is_refused(office: Office) -> None:
    """It would be forgotten silently: nobody hands it over any more."""
    async with isolated(office.manager):
        around = asynccontextmanager(office.manager.background)()
        background = await around.__aenter__()
        assert not await around.__aexit__(RuntimeError, RuntimeError("the route"), None)
        with pytest.raises(ConfigurationError, match="use its enqueue"):
            background.add_task(office.send, "ada")


@pytest.mark.anyio
async def test_one_that_is_refused_takes_none_of_the_others_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """A full queue is named and raised; the tasks that were added after that one are handed over."""
    office = Office(queues=[QueueConfig("narrow", max_concurrency=1, max_pending=1)])
    narrow = office.send.with_options(queue_name="narrow", delay=60)
    async with isolated(office.manager) as world:
        narrow.enqueue("first")

        async def route() -> None:
            async with asynccontextmanager(office.manager.background)() as background:
                background.add_task(narrow, "refused")
                background.add_task(office.send, "kept")

        with pytest.raises(QueueFull):
            await route()
        assert [each.args for each in world.enqueued] == [("first",), ("kept",)]
    assert any("send" in line and "not accepted" in line for line in caplog.messages)


def test_dependencies_with_yield_share_the_background_of_their_route(
    app: FastAPI, client: TestClient, office: Office
) -> None:
    """One `Background` per request: what a dependency adds goes the way of its route."""
    Tasks = Annotated[Background, Depends(office.manager.background)]  # noqa: N806  # a type

    async def session(background: Tasks) -> AsyncIterator[Background]:
        background.add_task(office.send, "from the dependency")
        yield background

    @app.get("/")
    def route(inner: Annotated[Background, Depends(session)], outer: Tasks, fails: bool = False) -> bool:
        outer.add_task(office.send, "from the route")
        if fails:
            raise HTTPException(400)
        return inner is outer

    assert client.get("/", params={"fails": True}).status_code == 400
    assert office.finish(client) == []
    assert client.get("/").json() is True
    assert sorted(office.finish(client)) == [("send", "from the dependency"), ("send", "from the route")]


def test_a_web_socket_enqueues_at_once_and_adds_for_its_end(app: FastAPI, client: TestClient, office: Office) -> None:
    """`enqueue` for now; `add_task` waits for the handler to return."""

    @app.websocket("/")
    async def route(socket: WebSocket, background: Annotated[Background, Depends(office.manager.background)]) -> None:
        await socket.accept()
        background.add_task(office.send, "at the end")
        await socket.send_text(await office.send.enqueue("now"))
        try:
            await socket.receive_text()
        except WebSocketDisconnect:
            office.note_end = True  # type: ignore[attr-defined]

    with client.websocket_connect("/") as socket:
        assert socket.receive_text() == "now"
        assert office.done == [("send", "now")]
    deadline = threading.Event()
    while len(office.finish(client)) < 2:
        assert not deadline.wait(0.01)
    assert office.done == [("send", "now"), ("send", "at the end")]


@pytest.mark.parametrize("is_streaming", [True, False])
def test_middleware_changes_nothing(office: Office, is_streaming: bool) -> None:
    """`BaseHTTPMiddleware` runs the route in a task of its own, a plain one does not; tasks do not care."""

    async def dispatch(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        office.send.enqueue("before")
        response = await call_next(request)
        office.send.enqueue("after")
        return response

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=dispatch), Middleware(BaseHTTPMiddleware, dispatch=dispatch)]
    app = FastAPI(lifespan=office.manager.lifespan, middleware=middleware)

    @app.get("/")
    async def route(
        background: Annotated[Background, Depends(office.manager.background)], plain: BackgroundTasks
    ) -> Response:
        background.add_task(office.stamp, 1)
        plain.add_task(office.stamp, 2)
        return StreamingResponse(iter([b"x"] * 3), background=plain) if is_streaming else Response(background=plain)

    with TestClient(app) as client:
        assert client.get("/").status_code == 200
        done = office.finish(client)
    assert sorted(done) == [("send", "after")] * 2 + [("send", "before")] * 2 + [("stamp", 1), ("stamp", 2)]


@pytest.mark.anyio
async def test_a_cancelled_request_cancels_no_task_that_was_enqueued(app: FastAPI, office: Office) -> None:
    """A server cancels requests at its time-out; what was handed over is the manager's, what was added is dropped."""
    began = asyncio.Event()

    @app.get("/")
    async def route(background: Annotated[Background, Depends(office.manager.background)]) -> None:
        background.add_task(office.send, "added")
        office.send.with_options(delay=60).enqueue("enqueued")
        began.set()
        await asyncio.Event().wait()

    await cancel_a_request(app, office, began)
    assert office.done == [("send", "enqueued")]


# Starlette's own `BackgroundTasks`.


def test_a_task_among_plain_background_tasks_is_enqueued(app: FastAPI, client: TestClient, office: Office) -> None:
    """The annotation stays, the function becomes a task: asynchronous and synchronous alike, with its own arguments."""

    @app.post("/")
    async def route(background_tasks: BackgroundTasks) -> None:
        background_tasks.add_task(office.send, "ada")
        background_tasks.add_task(office.stamp, number=1)
        background_tasks.add_task(office.send.with_options(priority=1).enqueue, "with options")

    assert client.post("/").status_code == 200
    assert sorted(office.finish(client)) == [("send", "ada"), ("send", "with options"), ("stamp", 1)]


def test_a_task_with_options_among_them_is_enqueued_too(app: FastAPI, client: TestClient, office: Office) -> None:
    """As `Depends(manager.background)` takes it. Nobody else may call it: its options would be lost."""
    urgent = office.send.with_options(priority=1, tags={"by": "route"})

    @app.post("/")
    async def route(background_tasks: BackgroundTasks) -> None:
        background_tasks.add_task(urgent, "ada")

    assert client.post("/").status_code == 200
    assert office.finish(client) == [("send", "ada")]
    assert client.portal is not None
    (info,) = client.portal.call(office.manager.list)
    assert (info.priority, info.tags) == (1, {"by": "route"})
    with pytest.raises(TypeError, match="is not called but enqueued"):
        urgent("ada")


def test_a_plain_function_among_them_calls_a_task_directly(app: FastAPI, client: TestClient, office: Office) -> None:
    """Only `BackgroundTask` itself enqueues; a direct call is a direct call, wherever it is made."""

    async def asynchronous() -> None:
        await office.send("ada")

    def synchronous() -> None:
        office.stamp(1)

    @app.post("/")
    async def route(background_tasks: BackgroundTasks) -> None:
        background_tasks.add_task(asynchronous)
        background_tasks.add_task(synchronous)

    client.post("/")
    assert sorted(office.finish(client)) == [("send directly", "ada"), ("stamp directly", 1)]


def test_a_task_as_a_dependency_or_a_route_is_called_directly(app: FastAPI, client: TestClient, office: Office) -> None:
    """The framework takes it for the function that it wraps."""

    @app.get("/dependency")
    def dependency(
        sent: Annotated[str, Depends(office.send)], stamped: Annotated[int, Depends(office.stamp)]
    ) -> tuple[str, int]:
        return sent, stamped

    app.get("/route")(office.stamp)
    assert client.get("/dependency", params={"to": "ada", "number": 1}).json() == ["ada", 1]
    assert client.get("/route", params={"number": 2}).json() == 2
    assert sorted(office.done) == [("send directly", "ada"), ("stamp directly", 1), ("stamp directly", 2)]


@pytest.mark.anyio
async def test_a_background_task_enqueues_wherever_it_is_run(office: Office) -> None:
    """Also one that a unit test makes and awaits by hand: that is its rule, there is no other."""
    async with isolated(office.manager) as world:
        await BackgroundTask(office.send, "ada")()
        assert await office.send("bob") == "bob"
        assert [each.args for each in world.enqueued] == [("ada",)]
        await world.drain()
    assert sorted(office.done) == [("send", "ada"), ("send directly", "bob")]


@pytest.mark.anyio
async def test_a_background_task_that_cannot_be_enqueued_is_named(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """Starlette checks nothing when it is added, so the error comes after the response, to the server and the log."""
    async with isolated(office.manager):
        with pytest.raises(TypeError):
            await BackgroundTask(office.send)()  # type: ignore[call-arg]
    assert any("send" in line and "not accepted" in line for line in caplog.messages)


def test_a_task_is_what_its_function_is_to_those_who_ask(office: Office) -> None:
    """A framework that is not recognised awaits it in the request rather than losing the coroutine."""
    # `inspect` hears of the mark from 3.12 on, and from 3.14 on `asyncio` has no opinion any more.
    asks = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    assert asks(office.send.__call__)
    assert not asks(office.stamp.__call__)
