"""Shows a manager on the terminal of its own program: once, or kept up to date while a block runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from rich.console import ConsoleRenderable, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from taskmanager.console.oneself import InstanceObserver
from taskmanager.console.terminal.screen import Focus, Screen
from taskmanager.engine.engine import Engine
from taskmanager.model.logger import logger
from taskmanager.model.wording import counted

REFRESH_S: Final = 0.5


def instance_view(engine: Engine | None, held_count: int) -> RenderableType:
    """Return the screen of a manager as it is now."""
    if engine is None:
        return Text(f"not running, {counted(held_count, 'task')} held for the start")
    return Screen(InstanceObserver(engine).overview())


class Region(Live):
    """A live view that is drawn at the right place after the terminal has become narrower and has wrapped its lines."""

    _view: RenderableType = ""
    _drawn: RenderableType = ""

    def show(self, view: RenderableType) -> None:
        """Draw this in the place of what was drawn last."""
        self._view = view
        self.update(view, refresh=True)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what is to be printed. It first goes up by the wrapped lines, of which rich does not know."""
        width = max(1, self.console.width)
        widths = self._drawn.widths if isinstance(self._drawn, Screen) else ()
        more = sum((each - 1) // width for each in widths if each > width)
        self._drawn = self._view
        up = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * more
        found = super().process_renderables(renderables)
        return [Control(*up), *found] if more and self.console.is_interactive else found


@asynccontextmanager
async def live_view(running: Callable[[], Engine | None]) -> AsyncIterator[None]:
    """Show the manager while the block runs. `running` returns the engine of the start that runs now, or None."""
    ended = asyncio.Event()
    with Region(auto_refresh=False, vertical_overflow="crop") as live:
        showing = asyncio.get_running_loop().create_task(_keep_showing(live, running, ended), name="taskmanager-live")
        try:
            yield
        finally:
            ended.set()
            await asyncio.wait([showing])
            if (fault := showing.exception()) is not None:
                logger.warning("the live view has ended early: %r", fault)


async def _keep_showing(live: Region, running: Callable[[], Engine | None], ended: asyncio.Event) -> None:
    """Draw again and again until the block has ended, and then once more."""
    observer: InstanceObserver | None = None
    engine: Engine | None = None
    is_last = False
    while not is_last:
        is_last = ended.is_set()
        if running() is not engine:
            engine = running()
            observer = None if engine is None else InstanceObserver(engine)
        view: RenderableType = Text("not running")
        if observer is not None:
            view = Screen(await observer.overview_aside(), Focus.RUNNING)
        await asyncio.to_thread(live.show, view)
        if not is_last:
            waiting = asyncio.ensure_future(ended.wait())
            await asyncio.wait([waiting], timeout=REFRESH_S)
            waiting.cancel()
