"""Makes HTML of what a page has found, and answers 304 to those who have it already.

A page is drawn once for all viewers of a second. What differs between two of them, the token of the forms and what was
said to them, is put into the HTML that they share.

The tag of a page is a hash of that HTML without the text inside `<time>` elements, which goes on by itself. So a page
whose data has not changed is not sent again, although "5m ago" has become "6m ago" on it.
"""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.meta import find_referenced_templates
from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from taskmanager.console import figures
from taskmanager.model.clock import Clock
from taskmanager.model.errors import TaskManagerError
from taskmanager.model.escaping import escaped
from taskmanager.web.assets import address_of
from taskmanager.web.markup import FILTERS
from taskmanager.web.mounting import place_in
from taskmanager.web.site import site_of, viewer_of

FORM_FIELD: Final = "form_token"
SAID: Final = "taskmanager_said"
"""The cookie with the sentence that the next page shows once: what became of the action."""
SAID_S: Final = 30
MAX_SAID: Final = 500
MAX_LIKE: Final = 20
COOKIE_PATH: Final = "/"
SECURE_PREFIX: Final = "__Host-"
"""Of a cookie over https: a browser takes it only from this very host, and not from a neighbour in the same domain."""
SLICE_S: Final = 0.0005
"""How long drawing keeps others waiting. A page takes some milliseconds, which every request beside it would wait."""
_TOKEN_HERE: Final = secrets.token_hex(16)
_SAID_HERE: Final = secrets.token_hex(16)
"""Where the token and the sentence go. No text of a row can be one of these."""
_PASSING: Final = re.compile(r"(<time\b[^>]*>)[^<]*</time>")


class View(NamedTuple):
    """What a page shows: its template, and the values in it."""

    template: str
    values: Mapping[str, Any]
    status_code: int = 200


class Sheet(NamedTuple):
    """A page as all viewers of a second share it, with its tag."""

    html: str
    tag: str
    status_code: int


async def drawn(request: Request, view: View, clock: Clock) -> Sheet:
    """Return the page that shows this. Drawing lets the loop of the application have its turn at short intervals."""
    if view.template not in _compiled:
        await asyncio.to_thread(_compile, view.template)
    parts, turn_s = list[str](), clock.elapsed_s()
    for part in _environment.get_template(view.template).generate(_values(request, view)):
        parts.append(part)
        if clock.elapsed_s() - turn_s >= SLICE_S:
            await asyncio.sleep(0)
            turn_s = clock.elapsed_s()
    return _sheet("".join(parts), view)


def _compile(name: str) -> None:
    """Compile a template, and those that it names. A large one takes 100 ms, the first time that somebody sees it."""
    if name not in _compiled:
        for each in find_referenced_templates(_environment.parse(_loader.get_source(_environment, name)[0])):
            if each is not None:
                _compile(each)
        _environment.get_template(name)
        _compiled.add(name)


def _sheet(html: str, view: View) -> Sheet:
    lasting = _PASSING.sub(r"\1", html).replace(_TOKEN_HERE, "").replace(_SAID_HERE, "").encode()
    return Sheet(html, f'W/"{hashlib.blake2b(lasting, digest_size=12).hexdigest()}"', view.status_code)


def sent(request: Request, sheet: Sheet) -> Response:
    """Return the answer that brings the page to one viewer: 304 if the browser has it."""
    headers = {"ETag": sheet.tag, "Vary": "Cookie"}
    if sheet.status_code == 200 and sheet.tag == request.headers.get("if-none-match"):
        return Response(status_code=304, headers=headers)
    said = said_to(request)
    html = sheet.html.replace(_TOKEN_HERE, str(escape(viewer_of(request).form_token)))
    response = HTMLResponse(html.replace(_SAID_HERE, str(escape(said))), sheet.status_code, headers)
    if said:
        response.delete_cookie(_said_name(request), COOKIE_PATH, secure=is_secure(request), samesite="strict")
    return response


def respond(request: Request, view: View) -> Response:
    """Return the answer to one viewer, shared with nobody."""
    html = _environment.get_template(view.template).render(_values(request, view))
    return sent(request, _sheet(html, view))


def _values(request: Request, view: View) -> dict[str, Any]:
    site, viewer = site_of(request), viewer_of(request)
    path, up = path_of(request), up_of(request)
    common: dict[str, Any] = {
        "title": site.title,
        "section": path.split("/")[0],
        "said": _SAID_HERE,
        "may_act": viewer.may_act and not site.read_only,
        "form_token": _TOKEN_HERE,
        "up": up,
        "query": request.url.query,
        "now": site.source.clock.now_us(),
        "is_live": request.method in ("GET", "HEAD") and view.status_code in (200, 503),
    }
    return common | dict(view.values)


def done(request: Request, to: str, said: str) -> Response:
    """Lead to the page at `to`, relative to the dashboard, which says once what was done."""
    response = RedirectResponse(up_of(request) + to, status_code=303)
    text = quote(figures.cut(escaped(said), MAX_SAID))
    response.set_cookie(
        _said_name(request), text, SAID_S,
        path=COOKIE_PATH, httponly=True, samesite="strict", secure=is_secure(request),
    )  # fmt: skip
    return response


def said_to(request: Request) -> str:
    """Return the sentence that the page shows to who has just acted; an empty text to anybody else."""
    if "x-live" in request.headers:
        return ""
    return escaped(unquote(request.cookies.get(_said_name(request), ""))[:MAX_SAID])


def is_secure(request: Request) -> bool:
    """Return whether the browser speaks https, as far as the server knows."""
    return request.url.scheme == "https"


def _said_name(request: Request) -> str:
    return f"{SECURE_PREFIX}{SAID}" if is_secure(request) else SAID


def refusal(status_code: int, what: str, cure: str) -> View:
    """Return a page that says why the request cannot be answered, and what to do."""
    return View("fault.html", {"what": what, "cure": cure}, status_code)


def refuse(request: Request, status_code: int, what: str, cure: str) -> Response:
    """Return the answer with such a page, for one viewer."""
    return respond(request, refusal(status_code, what, cure))


def those_like(request: Request, what: str, part: str, ids: Sequence[str]) -> View | RedirectResponse:
    """Lead to the task or workflow whose id begins or ends with `part`; let the viewer choose if there are several."""
    if len(ids) == 1:
        return RedirectResponse(f"{up_of(request)}{what}s/{segment(ids[0])}", 307)
    values = {"what": what, "part": part, "ids": ids[:MAX_LIKE], "has_more": len(ids) > MAX_LIKE}
    return View("like.html", values, 300)


def refusal_page(title: str, up: str, status_code: int, what: str, cure: str) -> Response:
    """Return a page for somebody who may not see the dashboard. It holds nothing of it but the title."""
    values = {"title": title, "up": up, "status_code": status_code, "what": what, "cure": cure}
    return HTMLResponse(_environment.get_template("refusal.html").render(values), status_code)


def fault_page(request: Request, error: TaskManagerError) -> Response:
    """Return a page with the reason why the file cannot be read or written, and the cure that its message names."""
    what, _, cure = str(error).partition("; ")
    return refuse(request, 503, what, cure or "the log of the application may say more")


# Addresses. All of them are relative, so that they hold under any root path and behind any proxy.


def path_of(request: Request) -> str:
    """Return the path below the dashboard, without a slash at its beginning: `tasks/ID`."""
    return place_in(request.scope).path


def up_of(request: Request) -> str:
    """Return the relative way from this page to the dashboard: `../` for each folder."""
    return place_in(request.scope).up


def segment(text: str) -> str:
    """Return a name as one segment of a path."""
    return quote(text, safe="")


def query_of(given: Mapping[str, Any]) -> str:
    """Return a query of those values that are not empty, `?` included; an empty text if there is none."""
    pairs = [(name, each) for name, value in given.items() for each in (value if _is_many(value) else [value])]
    found = urlencode([(name, each) for name, each in pairs if each not in (None, "")])
    return f"?{found}" if found else ""


def _is_many(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


_loader: Final = PackageLoader("taskmanager.web")
_compiled: Final[set[str]] = set()


def _environment_of_pages() -> Environment:
    made = Environment(
        loader=_loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {**FILTERS, "asset": address_of, "segment": segment, "query": query_of}
    return made


_environment: Final = _environment_of_pages()
