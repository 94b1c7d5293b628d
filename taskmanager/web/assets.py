"""The style, the scripts and the icon of the pages. Their addresses change with them, so an upgrade shows at once."""

import hashlib
from functools import cache
from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

ASSETS: Final = {
    "dashboard.css": "text/css", "dashboard.js": "text/javascript", "idiomorph.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}  # fmt: skip
VERSION_FIELD: Final = "v"
_FOR_EVER: Final = "private, max-age=31536000, immutable"


@cache
def _content(name: str) -> tuple[bytes, str]:
    """Return what is in the file, and its version."""
    content = resources.files("taskmanager.web").joinpath("static", name).read_bytes()
    return content, hashlib.blake2b(content, digest_size=6).hexdigest()


def address_of(name: str) -> str:
    """Return the address of an asset, below the dashboard."""
    return f"static/{name}?{VERSION_FIELD}={_content(name)[1]}"


def asset(name: str, request: Request) -> Response | None:
    """Return the answer with an asset, or None if there is none of that name.

    An address of another version comes from a page that a process of another version has made. Its answer is not kept.
    """
    if name not in ASSETS:
        return None
    content, version = _content(name)
    is_this = request.query_params.get(VERSION_FIELD) == version
    headers = {"Cache-Control": _FOR_EVER if is_this else "no-cache", "ETag": f'"{version}"'}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=ASSETS[name], headers=headers)
