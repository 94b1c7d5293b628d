"""Finds out which page of the dashboard is asked for, whoever has mounted it, and under whichever root path.

Frameworks hand a request on in different ways. Starlette and FastAPI leave the root path in the path, Litestar takes it
out, adds a slash at the end, and joins what a quoted slash had kept apart. `raw_path` is what the browser has sent, as
far as proxies let it through: it tells a page from a folder, and how many folders deep the page is.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

_PLACE: Final = "taskmanager.place"


class Place(NamedTuple):
    """Where a request leads: the path below the dashboard, with no slash at either end, and how deep that is.

    `name` is the last part of the address as the browser has it. `redirect` is the right address, relative to this one,
    if this one has a slash too few or too many at its end.
    """

    path: str
    depth: int
    name: str
    redirect: str | None

    @property
    def up(self) -> str:
        """Return the relative way from the page to the dashboard: `../` for each folder."""
        return "../" * self.depth or "./"


def place_of(scope: Mapping[str, Any]) -> Place:
    """Return where this request leads."""
    path: str = scope["path"]
    raw = (scope.get("raw_path") or quote(path).encode() or b"/").split(b"?")[0].decode("latin-1")
    segments = raw.split("/")
    last = unquote(segments[-1])
    # A slash at the end leads to the same page, but one that is quoted is a part of a name.
    inside = _inside(path, unquote(raw), scope.get("root_path", "").rstrip("/")) + last[len(last.rstrip("/")) :]
    name, redirect = quote(unquote(segments[-1]), safe=""), None
    if not name:
        segments.pop()
    if not inside and name:
        redirect = f"./{name}/"
    elif inside and not name:
        redirect = f"../{quote(unquote(segments[-1]), safe='')}"
    return Place(inside, _depth(inside, segments), name, redirect)


def _inside(path: str, asked: str, root: str) -> str:
    """Return the path below the dashboard, of a path that may or may not have the root path in it."""
    is_cut = path.rstrip("/") != asked.rstrip("/") and asked.rstrip("/").endswith(path.rstrip("/"))
    if not is_cut:
        # A proxy may have stripped a prefix that the application knows of: the root path then begins with it.
        for number in range(root.count("/")):
            end = "/" + root.split("/", number + 1)[-1]
            if f"{path}/".startswith(f"{end}/"):
                path = path.removeprefix(end)
                break
    return path.strip("/")


def _depth(inside: str, segments: list[str]) -> int:
    """Return how many folders there are between the dashboard and the page. A quoted slash makes none."""
    count = inside.count("/")
    for depth in range(min(count, len(segments) - 1) + 1):
        if unquote("/".join(segments[len(segments) - 1 - depth :])) == inside:
            return depth
    return count


def inner_scope(scope: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Return the scope in which the pages are asked: the dashboard is the root."""
    return {
        **scope,
        "root_path": "",
        "path": f"/{place.path}",
        "raw_path": quote(f"/{place.path}").encode(),
        _PLACE: place,
    }


def place_in(scope: Mapping[str, Any]) -> Place:
    """Return what `inner_scope` has noted."""
    place: Place = scope[_PLACE]
    return place
