"""Decides who may see a page and who may act, before any page is asked; and says so to the browser in headers.

Every request is judged by itself, so there is no session to steal, to forget or to share between workers. Whatever goes
wrong here is a refusal.
"""

import asyncio
import inspect
import re
import secrets
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from http.cookies import SimpleCookie
from typing import Any, Final, cast
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskmanager.model.errors import ConfigurationError
from taskmanager.model.logger import Raised, logger
from taskmanager.web.mounting import Place, inner_scope, place_of
from taskmanager.web.render import COOKIE_PATH, FORM_FIELD, SECURE_PREFIX, is_secure, refusal_page
from taskmanager.web.site import Level, Viewer

Auth = Callable[[Request], "Level | Awaitable[Level | None] | None"]
"""Gets the request, and answers what may be done: "read", "act", or None for nothing."""

FORM_COOKIE: Final = "taskmanager_form"
MAX_FORM_BYTES: Final = 1_000_000
FORM_S: Final = 20.0
"""How long a form may take to arrive. A server does not stop before it has answered all requests."""
MIN_TOKEN_LENGTH: Final = 32
AUTH_THREADS: Final = 8
"""How many requests at a time ask a plain `auth`, of all dashboards in an event loop."""
NAMES: Final = ("display_name", "username", "name", "email")
"""What users are called by, in the words of Starlette, Django and others."""
MAX_NAME_CHARS: Final = 100
OPEN_ASSETS: Final = ("static/dashboard.css", "static/icon.svg")
"""What a page that refuses needs itself. It is the same for everybody, and holds nothing of anybody."""
SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Other sites get none. With "no-referrer" a form would say "Origin: null", which nobody can tell from another site.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SECURE_HEADERS: Final = {**SECURITY_HEADERS, "Cross-Origin-Opener-Policy": "same-origin"}
"""With https. Without it browsers ignore the last one, and complain."""
_READS: Final = ("GET", "HEAD")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
"""A browser leaves them out, and a proxy may put them in."""
_NOT_PLAIN: Final = re.compile(rb"[^\x21-\x7e]")
_LEVELS: Final = ("read", "act")
_threads: Final[RunVar[CapacityLimiter]] = RunVar("taskmanager.web.auth")
"""Of each event loop."""
_VIEWER: Final = "taskmanager.viewer"
_ASK: Final = "taskmanager.still_allowed"


class Refusal(Exception):
    """The answer to a request that is not let through. An `auth` of ours may raise it, with a page of its own."""

    def __init__(self, status_code: int, what: str, cure: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status_code, what)
        self.status_code = status_code
        self.what = what
        self.cure = cure
        self.headers = headers or {}


class Guard:
    """Stands before the pages of one dashboard."""

    def __init__(self, app: ASGIApp, auth: Auth, *, title: str, read_only: bool) -> None:
        self._app = app
        self._auth = auth
        self._is_async = any(map(inspect.iscoroutinefunction, (auth, type(auth).__call__)))
        self._title = title
        self._read_only = read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through if its sender may make it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "query_string": _plain(scope.get("query_string", b""))}
        request, place = Request(scope, receive), place_of(scope)
        token, cookie = _form_token(request)
        added = SECURE_HEADERS if is_secure(request) else SECURITY_HEADERS
        plain = _with_headers(send, added, None)
        send = plain if place.path.startswith("static/") else _with_headers(send, added, cookie)
        try:
            if place.path in OPEN_ASSETS and request.method in _READS:
                await self._app(inner_scope(scope, place), receive, send)
                return
            level = await self._allowed(request)
            body = None if request.method in _READS else await self._form(request, level, token)
        except Refusal as refused:
            await self._refusal(request, place, refused)(scope, receive, plain)
        except ClientDisconnect:
            return
        else:
            if place.redirect is not None:
                query = f"?{request.url.query}" if request.url.query else ""
                await Response(status_code=307, headers={"Location": place.redirect + query})(scope, receive, plain)
                return
            inner = inner_scope(scope, place)
            inner[_VIEWER], inner[_ASK] = Viewer(level, name_of(request), token), partial(self._still_allows, request)
            await self._app(inner, receive if body is None else _again(body, receive), send)

    def _refusal(self, request: Request, place: Place, refused: Refusal) -> Response:
        """Return the page that says why. Only a person who opens a page can be led to another one to sign in.

        A script would not get there, and of a form the policy of the page lets nobody lead to another site.
        """
        status_code, headers = refused.status_code, refused.headers
        if status_code < 400 and (request.method not in _READS or "x-live" in request.headers):
            status_code, headers = 401, {}
        page = refusal_page(self._title, place.up, status_code, refused.what, refused.cure)
        page.headers.update(headers)
        return page

    async def _allowed(self, request: Request) -> Level:
        """Return what the sender of a request may do. Raise `Refusal` if that is nothing."""
        level = await self._level_of(request)
        if level is None:
            raise Refusal(403, "you are not allowed to see this page", "sign in with the application, and come again")
        return level

    async def _form(self, request: Request, level: Level, token: str) -> bytes:
        """Return the body of a form that a page of this dashboard has sent. Raise `Refusal` for anything else."""
        if request.method != "POST":
            raise Refusal(405, "this page knows GET and POST", "open it in a browser", {"Allow": "GET, HEAD, POST"})
        if level != "act" or self._read_only:
            raise Refusal(403, "you may look at this page, but not act on it", "ask somebody who may act")
        if not is_same_site(request):
            raise Refusal(
                403, "this form was sent by another site, so nothing was done",
                "send it from the dashboard itself; behind a reverse proxy, have it pass the Host header on",
            )  # fmt: skip
        body = await _body(request)
        sent = dict(parse_qsl(body.decode("utf-8", "replace"))).get(FORM_FIELD, "")
        if not secrets.compare_digest(sent.encode(), token.encode()):
            raise Refusal(403, "this form is too old, so nothing was done", "go back, reload the page and try again")
        return body

    async def _level_of(self, request: Request) -> Level | None:
        """Return what `auth` says. Raise `Refusal` if it fails, or refuses by an exception of its own."""
        try:
            # A plain function may wait for a database, and must not keep the event loop from everything else meanwhile.
            level: Any = self._auth(request) if self._is_async else await _in_thread(self._auth, request)
            if inspect.isawaitable(level):
                level = await level
        except Refusal:
            raise
        except HTTPException as exc:  # the word of Starlette and FastAPI for "sign in first"
            if not 300 <= exc.status_code < 500:
                raise _broken(exc) from exc
            what = "sign in to see this page" if exc.status_code < 402 else "you are not allowed to see this page"
            headers = dict(exc.headers or {})
            raise Refusal(exc.status_code, what, "sign in with the application, and come again", headers) from exc
        except Exception as exc:
            raise _broken(exc) from exc
        if level is None or (isinstance(level, str) and level in _LEVELS):
            return cast("Level | None", level)
        logger.error(
            "dashboard: auth has returned %r, and nobody was let in; it must return 'read', 'act' or None", level
        )
        raise Refusal(500, "whether you may see this page is not known", "the log of the application says why")

    async def _still_allows(self, request: Request) -> bool:
        try:
            return await self._level_of(request) is not None
        except Refusal:
            return False


async def still_allowed(request: Request) -> bool:
    """Return whether the viewer may go on. Whatever is sent for longer than a minute asks that each minute."""
    ask: Callable[[], Awaitable[bool]] = request.scope[_ASK]
    return await ask()


def check_auth(auth: Any) -> Auth:
    """Return what was given as `auth=`. Raise `ConfigurationError` if it cannot be called."""
    if not callable(auth) or isinstance(auth, type):
        raise ConfigurationError(
            f"dashboard: auth must be a function of the request that returns 'read', 'act' or None, not {auth!r}"
        )
    found: Auth = auth
    return found


def name_of(request: Request) -> str:
    """Return what the application calls the sender of a request, or else its address."""
    try:
        found = _name_of(request.scope.get("user"))
    except Exception:  # noqa: BLE001  # code of the application: a user may be loaded only when it is looked at
        found = ""
    return found[:MAX_NAME_CHARS] or (request.client.host if request.client else "unknown")


def _name_of(user: object) -> str:
    found: object = user if isinstance(user, str) else ""
    for attribute in NAMES:
        with suppress(NotImplementedError):  # a user of Starlette that has no name
            found = found or getattr(user, attribute, "")
    return str(found) if found else ""


def is_same_site(request: Request) -> bool:
    """Return whether the browser says that a page of this dashboard has sent the form.

    Browsers leave `Sec-Fetch-Site` out where there is no https. `Origin` must then name the host that was asked.
    """
    sites = request.headers.getlist("sec-fetch-site")
    if sites:
        return sites == ["same-origin"]
    origins, hosts = request.headers.getlist("origin"), request.headers.getlist("host")
    if len(origins) != 1 or len(hosts) != 1:
        return False
    scheme, _, named = origins[0].lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return bool(named) and port is not None and named.removesuffix(port) == hosts[0].lower().removesuffix(port)


async def _in_thread(auth: Auth, request: Request) -> Any:
    """Ask a plain `auth` in one of a few threads.

    One that hangs keeps its thread. If these were those of the application, its own functions would soon find none.
    """
    try:
        limiter = _threads.get()
    except LookupError:
        limiter = CapacityLimiter(AUTH_THREADS)
        _threads.set(limiter)
    return await to_thread.run_sync(auth, request, limiter=limiter)


def _broken(exc: Exception) -> Refusal:
    raised = Raised(exc, exc.__traceback__, "".join(traceback.format_exception(exc)))
    logger.error("dashboard: auth has failed, and nobody was let in", raised=raised, extra={})
    return Refusal(500, "whether you may see this page is not known", "the log of the application says why")


def _plain(query: bytes) -> bytes:
    """Return a query in which every byte that may not stand there is quoted. Some servers let such bytes through."""
    return _NOT_PLAIN.sub(lambda found: b"%%%02X" % found[0][0], query)


async def _body(request: Request) -> bytes:
    too_large = Refusal(413, "this form is too large, so nothing was done", "choose fewer at once")
    said = request.headers.get("content-length", "0")
    if said.isdigit() and int(said) > MAX_FORM_BYTES:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(FORM_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_FORM_BYTES:
                    raise too_large
                parts.append(part)
    except TimeoutError as exc:
        raise Refusal(408, "this form did not arrive, so nothing was done", "go back, and send it again") from exc
    return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body that was read here once more. Afterwards it waits for the client to leave."""
    left = [body]

    async def receiving() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return receiving


def _form_token(request: Request) -> tuple[str, str | None]:
    """Return the token that the forms of this browser carry, and the cookie that brings it there if it has none.

    The cookie is for the whole host: a proxy that strips a prefix leaves nobody here who knows the path in the browser.
    A link from another site must find it (`Lax`), or it would get another one, and open pages could not act any more.
    """
    name = f"{SECURE_PREFIX}{FORM_COOKIE}" if is_secure(request) else FORM_COOKIE
    token = request.cookies.get(name, "")
    if len(token) >= MIN_TOKEN_LENGTH and token.isascii():
        return token, None
    token = secrets.token_urlsafe(MIN_TOKEN_LENGTH)
    return token, cookie_line(name, token, secure=is_secure(request), same_site="Lax")


def cookie_line(name: str, value: str, *, secure: bool, same_site: str) -> str:
    """Return a `Set-Cookie` header of a cookie that no script can read, until the browser is closed."""
    cookie: SimpleCookie = SimpleCookie()
    cookie[name] = value
    for key, each in {"path": COOKIE_PATH, "httponly": True, "samesite": same_site, "secure": secure}.items():
        cookie[name][key] = each
    return cookie[name].OutputString()


def _with_headers(send: Send, added: Mapping[str, str], cookie: str | None) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in added.items():
                headers.setdefault(name, value)
            if cookie is not None:
                headers.append("Set-Cookie", cookie)
        await send(message)

    return sending
