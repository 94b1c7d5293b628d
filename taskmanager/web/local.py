"""Who gets in where `taskmanager web` serves a file: whoever has its token, or whoever sits at this machine.

Without a token the server listens on the loopback interface only. Programs and people of this machine reach it, and so
do the pages that their browsers show: a page of another site may have its name resolve to 127.0.0.1 and then be "the
same site". Such a request names that site in its Host header, so it is answered only if it names this machine.
"""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from taskmanager.store.place import Place
from taskmanager.web.app import file_site, pages_of
from taskmanager.web.guard import Auth, Guard, Refusal, cookie_line
from taskmanager.web.mounting import place_of
from taskmanager.web.render import is_secure
from taskmanager.web.site import Level

TOKEN_FIELD: Final = "token"  # noqa: S105  # the name of it
MIN_TOKEN_LENGTH: Final = 16
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
HTTP_PORT: Final = 80
ANY_PORT: Final = ":*"


def file_dashboard(place: Place, auth: Auth, *, hosts: frozenset[str] | None, read_only: bool = False) -> ASGIApp:
    """Return the dashboard of a database, whose application may be down. It answers to these names, None means any."""
    site = file_site(place, title=place.name, read_only=read_only)
    guarded = Guard(pages_of(site), auth, title=site.title, read_only=read_only)
    return guarded if hosts is None else HostCheck(guarded, hosts)


async def everybody_here(_request: Request) -> Level:
    """Let everybody act who reaches the loopback interface."""
    return "act"


class TokenAuth:
    """Lets in whoever knows the token: from the address once, then by a cookie, or as `Authorization: Bearer TOKEN`.

    The cookie is made from the token, so that any process with the same token can judge it, and is not the token.
    Its name is made from it too: cookies know no ports, and two dashboards on one machine must not sign each other off.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._cookie_name = f"taskmanager_web_{self._derived('name')[:12]}"
        self._cookie = self._derived("cookie")

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._token.encode(), f"taskmanager web {purpose}".encode(), hashlib.sha256).hexdigest()

    async def __call__(self, request: Request) -> Level:
        """Return "act", or raise `Refusal`."""
        query = parse_qsl(request.url.query, keep_blank_values=True)
        given = [value for name, value in query if name == TOKEN_FIELD]
        if given and request.method in ("GET", "HEAD"):
            if not _is_same(given[0], self._token):
                raise _unknown()
            left = [(name, value) for name, value in query if name != TOKEN_FIELD]
            raise self._welcome(request, f"?{urlencode(left)}" if left else "")
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_same(bearer.strip(), self._token):
            return "act"
        if not _is_same(request.cookies.get(self._cookie_name, ""), self._cookie):
            raise _unknown()
        return "act"

    def _welcome(self, request: Request, query: str) -> Refusal:
        """Return the way to the same page without the token in its address, where it would be seen and sent on."""
        page = f"./{place_of(request.scope).name}{query}"
        cookie = cookie_line(self._cookie_name, self._cookie, secure=is_secure(request), same_site="Strict")
        headers = {"Location": page, "Set-Cookie": cookie, "Referrer-Policy": "no-referrer"}
        return Refusal(303, "you are in", "go on to the dashboard", headers)


def _is_same(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _unknown() -> Refusal:
    cure = "open the address with the token that `taskmanager web` has printed, or reload this page if you did before"
    return Refusal(401, "this dashboard does not know you", cure)


class HostCheck:
    """Answers only to requests that name this machine. Nobody else gets anything, whatever the address."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer 421."""
        if scope["type"] == "lifespan" or self._is_for_us(scope):
            await self._app(scope, receive, send)
            return
        names = ", ".join(sorted(each.removesuffix(ANY_PORT) for each in self._hosts))
        text = f"This dashboard answers to {names}. For another name, start it with --allowed-host NAME.\n"
        answer = PlainTextResponse(text, 421, {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
        await answer(scope, receive, send)

    def _is_for_us(self, scope: Scope) -> bool:
        named = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        if len(named) != 1:
            return False
        return named[0] in self._hosts or _without_port(named[0]) + ANY_PORT in self._hosts


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if port.isdigit() else host


def hosts_of(port: int, allowed: Iterable[str]) -> frozenset[str]:
    """Return the names of the loopback interface with this port, and those that were allowed.

    A name that was allowed without a port is good with any: a proxy or a tunnel listens where it wants.
    """
    found = {f"{name}:{port}" for name in LOOPBACK_NAMES}
    if port == HTTP_PORT:  # a browser leaves it out
        found.update(LOOPBACK_NAMES)
    names = [name.strip().lower() for name in allowed]
    return frozenset(found.union(name if _without_port(name) != name else name + ANY_PORT for name in names))


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address that a server is bound to."""
    bound = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(bound, "ipv4_mapped", None)
    return bool((mapped or bound).is_loopback)
