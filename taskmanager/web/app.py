"""Builds the dashboard: which page is at which address."""

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from taskmanager.manager import TaskManager
from taskmanager.model.errors import ConfigurationError, StoreError, TaskManagerError
from taskmanager.store.place import Place
from taskmanager.web import (
    acting,
    bulk,
    enqueue_again,
    export,
    failures,
    health,
    instances,
    overview,
    queues,
    schedules,
    task,
    tasks,
    workflow,
    workflows,
)
from taskmanager.web.assets import asset
from taskmanager.web.guard import Auth, Guard, check_auth
from taskmanager.web.mounting import place_in
from taskmanager.web.render import Sheet, View, drawn, fault_page, refuse, respond, said_to, sent
from taskmanager.web.site import FormatArguments, Site, site_of, viewer_of
from taskmanager.web.source import Source

Page = Callable[[Request], Awaitable[View | RedirectResponse]]
"""What is drawn for all viewers. Any other answer has the token, or the sentence, of one of them in it."""
Answer = Callable[[Request], Awaitable[View | Response]]

PAGES: Final[tuple[tuple[str, Page], ...]] = (
    ("/", overview.show),
    ("/tasks/{task_id}", task.show),
    ("/tasks/{task_id}/enqueue", enqueue_again.show),
    ("/tasks", tasks.show),
    ("/failures", failures.show),
    ("/schedules", schedules.show),
    ("/queues", queues.show),
    ("/workflows", workflows.show),
    ("/workflows/{workflow_id:path}", workflow.show),
    ("/instances", instances.show),
)
"""The pages that are only looked at: address and function. All viewers of one second share what it draws.

A name in an address is one segment, quoted.
"""
ANSWERS: Final[tuple[tuple[str, Answer, str], ...]] = (
    ("/healthz", health.show, "GET"),
    ("/tasks/export.csv", export.as_csv, "GET"),
    ("/tasks/export.json", export.as_json, "GET"),
    ("/bulk/retry", bulk.ask_retry, "GET"),
    ("/bulk/retry", bulk.retry, "POST"),
    ("/bulk/cancel", bulk.ask_cancel, "GET"),
    ("/bulk/cancel", bulk.cancel, "POST"),
    ("/tasks/{task_id}/retry", acting.retry_one, "POST"),
    ("/tasks/{task_id}/cancel", acting.cancel_one, "POST"),
    ("/tasks/{task_id}/enqueue", enqueue_again.enqueue, "POST"),
    ("/schedules/pause", schedules.pause, "POST"),
    ("/schedules/resume", schedules.resume, "POST"),
    ("/schedules/run", schedules.run, "POST"),
    ("/workflows/{workflow_id:path}/pause", workflow.pause, "POST"),
    ("/workflows/{workflow_id:path}/resume", workflow.resume, "POST"),
    ("/workflows/{workflow_id:path}/cancel", workflow.cancel, "POST"),
    ("/workflows/{workflow_id:path}/retry", workflow.retry, "POST"),
    ("/queues/pause", queues.pause, "POST"),
    ("/queues/resume", queues.resume, "POST"),
    ("/instances/recover", instances.recover, "POST"),
)
"""The answers to one viewer: address, function and method."""
MAX_MARKS: Final = 256


def dashboard(
    manager: TaskManager,
    *,
    auth: Auth,
    title: str = "taskmanager",
    hide_arguments: bool = False,
    format_arguments: FormatArguments | None = None,
    read_only: bool = False,
) -> ASGIApp:
    """Return an ASGI application that shows `manager`, to be mounted: `app.mount("/tasks", dashboard(...))`.

    `auth` gets the request (a Starlette `Request`) and returns what its sender may do: `"read"`, `"act"`, or None for
    nothing. It is asked with every request, in a thread unless it is async. `title` stands at the top of each page.
    With `hide_arguments` no page shows arguments and results. `format_arguments` makes the text of arguments from the
    name of the function, its positional and its named arguments; None of it means the usual text. With either of them
    a search for a text does not look in arguments. With `read_only` nobody acts.

    Raises `ConfigurationError` if one of them is something else.
    """
    if not isinstance(manager, TaskManager):
        raise ConfigurationError(f"dashboard takes a TaskManager, not {manager!r}")
    for name, value in (("hide_arguments", hide_arguments), ("read_only", read_only)):
        if not isinstance(value, bool):  # "no" would mean yes
            raise ConfigurationError(f"dashboard: {name} must be True or False, not {value!r}")
    if not isinstance(title, str):
        raise ConfigurationError(f"dashboard: title must be text, not {title!r}")
    if format_arguments is not None and not callable(format_arguments):
        raise ConfigurationError(f"dashboard: format_arguments must be a function or None, not {format_arguments!r}")
    place = manager._settings.place  # noqa: SLF001  # a part of the package
    site = Site(
        source=Source(place, manager),
        title=title,
        hide_arguments=hide_arguments,
        format_arguments=format_arguments,
        read_only=read_only,
    )
    return Guard(pages_of(site), check_auth(auth), title=title, read_only=read_only)


def file_site(place: Place, *, title: str, hide_arguments: bool = False, read_only: bool = False) -> Site:
    """Return the dashboard of a database, whose application may be down."""
    return Site(source=Source(place.absolute()), title=title, hide_arguments=hide_arguments, read_only=read_only)


def pages_of(site: Site) -> Starlette:
    """Return the pages, without anybody who guards them."""
    # The first that fits answers: an address with a name in it comes after those that are written out.
    routes = [Route(path, _answered(answer), methods=[method]) for path, answer, method in ANSWERS]
    routes += [Route(path, _shown(page), methods=["GET"]) for path, page in PAGES]
    routes.append(Route("/static/{name}", _asset, methods=["GET"]))
    made = Starlette(
        routes=routes, exception_handlers={404: _not_found, 405: _not_so, TaskManagerError: _fault, Exception: _broken}
    )
    made.router.redirect_slashes = False  # the guard does it, by a relative address
    made.state.site = site
    return made


def _shown(page: Page) -> Callable[[Request], Awaitable[Response]]:
    """Draw the page once for all who ask for it within a second, and not at all for those who have it already."""
    marks: dict[Hashable, tuple[Hashable, str]] = {}

    async def answer(request: Request) -> Response:
        source = site_of(request).source

        async def draw() -> Sheet | RedirectResponse:
            found = await page(request)
            return found if isinstance(found, RedirectResponse) else await drawn(request, found, source.clock)

        if said_to(request):
            source.look_again()  # another worker may have done what this viewer wants to see
        held = request.headers.get(tasks.ROWS_HEADER, "")
        key = place_in(request.scope), request.url.query, held, viewer_of(request).may_act
        mark = await source.mark()
        if mark is not None and (mark, request.headers.get("if-none-match")) == marks.get(key):
            return Response(status_code=304, headers={"ETag": marks[key][1], "Vary": "Cookie"})
        try:
            found = await source.share(key, draw)
        except StoreError as exc:
            return fault_page(request, exc)
        if isinstance(found, Response):
            return found
        if len(marks) >= MAX_MARKS:
            marks.clear()
        marks[key] = mark, found.tag
        return sent(request, found)

    return answer


def _answered(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        try:
            found = await answer(request)
        except StoreError as exc:
            return fault_page(request, exc)
        return found if isinstance(found, Response) else respond(request, found)

    return answered


async def _asset(request: Request) -> Response:
    return asset(request.path_params["name"], request) or await _not_found(request, None)


async def _not_found(request: Request, _: Any) -> Response:
    return refuse(request, 404, "there is no such page", "go to the overview, and follow the links from there")


async def _not_so(request: Request, _: Exception) -> Response:
    return refuse(request, 405, "this address is for forms only, or takes none", "go to the overview, and begin again")


async def _broken(request: Request, _: Exception) -> Response:
    """Say no more than that. The server logs the exception."""
    return refuse(request, 500, "this page is broken", "the log of the application says why; please report it")


async def _fault(request: Request, exc: Exception) -> Response:
    return refuse(request, 400, str(exc), "go back, and change what you have asked for")
