"""Decides who may see a page and who may act, before any page is asked; and says so to the browser in headers.

Every request is judged by itself, so there is no session to steal, to forget or to share between workers.
"""

import inspect
import secrets
from collections.abc import Awaitable, Callable
from http.cookies import SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskmanager.model.errors import ConfigurationError
from taskmanager.web.render import FORM_FIELD, cookie_path
from taskmanager.web.site import Level, Viewer

Auth = Callable[[Request], "Level | Awaitable[Level | None] | None"]
"""Gets the request, and answers what may be done: "read", "act", or None for nothing."""

FORM_COOKIE: Final = "taskmanager_form"
MAX_FORM_BYTES: Final = 1_000_000
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_READS: Final = ("GET", "HEAD")


class Guard:
    """Stands before the pages of one dashboard."""

    def __init__(self, app: ASGIApp, auth: Auth, *, read_only: bool) -> None:
        self._app = app
        self._auth = auth
        self._read_only = read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through if its sender may make it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        token = request.cookies.get(FORM_COOKIE, "")
        is_new = len(token) < 32
        if is_new:
            token = secrets.token_urlsafe(24)
        send = _with_headers(send, _form_cookie(request, token) if is_new else None)
        refusal = await self._judge(request, token)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, request.receive if request.method in _READS else _again(await _body(request)), send)

    async def _judge(self, request: Request, token: str) -> Response | None:
        """Note the viewer in the scope, and return None; or return why the request is refused."""
        level = self._auth(request)
        if inspect.isawaitable(level):
            level = await level
        if level not in ("read", "act"):
            return PlainTextResponse("You are not allowed to see this page.\n", 403)
        request.scope["taskmanager.viewer"] = Viewer(level, name_of(request), token)
        if request.method in _READS:
            return None
        if request.method != "POST":
            return PlainTextResponse("Only GET and POST.\n", 405)
        if level != "act" or self._read_only:
            return PlainTextResponse("You may look at this page, but not act on it.\n", 403)
        if not _is_same_site(request):
            return PlainTextResponse("This form was sent by another site, so nothing was done.\n", 403)
        sent = dict(parse_qsl((await _body(request)).decode("utf-8", "replace"))).get(FORM_FIELD, "")
        if not secrets.compare_digest(sent.encode(), token.encode()):
            return PlainTextResponse("This form is too old. Go back, reload the page and try again.\n", 403)
        return None


def check_auth(auth: Any) -> Auth:
    """Return what was given as `auth=`. Raise `ConfigurationError` if it cannot be called."""
    if not callable(auth):
        raise ConfigurationError(
            f"dashboard: auth must be a function of the request that returns 'read', 'act' or None, not {auth!r}"
        )
    found: Auth = auth
    return found


def name_of(request: Request) -> str:
    """Return what the application calls the sender of a request, or else its address."""
    user = request.scope.get("user")
    name = getattr(user, "display_name", "") or getattr(user, "username", "")
    return str(name) if name else (request.client.host if request.client else "unknown")


def _is_same_site(request: Request) -> bool:
    """Return whether the browser says that a page of this dashboard has sent the form."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return urlsplit(request.headers.get("origin", "")).netloc == request.headers.get("host", "-")


async def _body(request: Request) -> bytes:
    body = getattr(request, "_taskmanager_body", None)
    if body is None:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > MAX_FORM_BYTES:
                break
            parts.append(part)
        body = b"".join(parts)
        request._taskmanager_body = body  # type: ignore[attr-defined]  # noqa: SLF001  # read once, used twice
    return bytes(body)


def _again(body: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _form_cookie(request: Request, token: str) -> str:
    cookie: SimpleCookie = SimpleCookie()
    cookie[FORM_COOKIE] = token
    for name, value in {"path": cookie_path(request), "httponly": True, "samesite": "Strict"}.items():
        cookie[FORM_COOKIE][name] = value
    if request.url.scheme == "https":
        cookie[FORM_COOKIE]["secure"] = True
    return cookie.output(header="").strip()


def _with_headers(send: Send, cookie: str | None) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
            if cookie is not None:
                headers.append("Set-Cookie", cookie)
        await send(message)

    return sending
