"""Pages as HTML."""

import asyncio
from pathlib import Path

import pytest
from starlette.requests import Request

from taskmanager.model.clock import SystemClock
from taskmanager.store.file_place import FilePlace
from taskmanager.web.app import file_site, pages_of
from taskmanager.web.markup import capitalize_first
from taskmanager.web.mounting import inner_scope, place_of
from taskmanager.web.overview import values_of
from taskmanager.web.past import HOUR, STRETCHES, past_of
from taskmanager.web.render import SLICE_S, View, drawn
from taskmanager.web.site import Viewer
from tests.unit.console_overviews import BUSY, NOW

pytestmark = pytest.mark.anyio


class Ticking(SystemClock):
    """Every look at it takes a part of a slice."""

    def __init__(self) -> None:
        self.seen_s = 0.0

    def elapsed_s(self) -> float:
        self.seen_s += SLICE_S / 4
        return self.seen_s


async def test_drawing_gives_others_their_turn(tmp_path: Path) -> None:
    """A request of the application beside it waits for a slice, and not for the page."""
    app = pages_of(file_site(FilePlace(tmp_path / "tasks.db"), title="shop"))
    scope = {
        "type": "http", "method": "GET", "path": "/", "root_path": "", "query_string": b"", "headers": [],
        "scheme": "http", "server": ("test", 80), "app": app, "taskmanager.viewer": Viewer("read", "ann", "t" * 32),
    }  # fmt: skip
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    past = past_of(HOUR, NOW, [])
    view = View("overview.html", {**values_of(BUSY), "past": past, "stretches": STRETCHES.values()})
    clock, running = Ticking(), asyncio.create_task(others())
    sheet = await drawn(Request(inner_scope(scope, place_of(scope))), view, clock)
    running.cancel()
    assert "</html>" in sheet.html
    assert turns >= clock.seen_s / SLICE_S / 2 > 10


def test_sentence_that_begins_with_a_command_keeps_it_as_it_is_typed() -> None:
    """Somebody copies it into a shell."""
    assert capitalize_first("taskmanager watch shows the newest") == "taskmanager watch shows the newest"
    assert capitalize_first("start your application") == "Start your application"
