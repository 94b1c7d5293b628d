"""What every page of one dashboard knows: where its data is, and what may be shown and done."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

from starlette.requests import Request

from taskmanager.model.dataclass import dataclass
from taskmanager.web.source import Source

Level = Literal["read", "act"]
FormatArguments = Callable[[str, Any, Any], str | None]
"""Gets the name of the function, its positional and its named arguments as JSON has them; returns their text, or None
for the usual one.
"""


class Viewer(NamedTuple):
    """Who looks at a page, what that person may do, and the token that the forms of this browser carry."""

    level: Level
    name: str
    form_token: str

    @property
    def may_act(self) -> bool:
        """Return whether the person may change something."""
        return self.level == "act"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One dashboard."""

    source: Source
    title: str
    hide_arguments: bool = False
    format_arguments: FormatArguments | None = None
    read_only: bool = False

    @property
    def looks_in_arguments(self) -> bool:
        """Return whether a search for a text looks in the arguments. It must not find what no page shows."""
        return not self.hide_arguments and self.format_arguments is None


def site_of(request: Request) -> Site:
    """Return the dashboard that this request came to."""
    return cast(Site, request.app.state.site)


def viewer_of(request: Request) -> Viewer:
    """Return who sent this request. The guard has let that person in."""
    return cast(Viewer, request.scope["taskmanager.viewer"])
