"""Where the demo speaks: a terminal with a live view, or plain lines in a file or a pipe."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from taskmanager.console.views import Progress, progress_line, progress_view

MAX_WIDTH: Final = 100
INDENT: Final = "   "
DRAW_S: Final = 0.25
"""How often the live view is drawn."""
LINE_S: Final = 3.0
"""How often a line is printed where there is no live view."""
RATE_WINDOW_S: Final = 3.0


class Screen:
    """Paragraphs, steps and progress. Colours, width and liveness are what the terminal and NO_COLOR allow."""

    def __init__(self, *, is_on_stderr: bool) -> None:
        self._console = Console(highlight=False, stderr=is_on_stderr)
        self._console.width = min(self._console.width, MAX_WIDTH)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal

    def say(self, text: str) -> None:
        """A paragraph."""
        self._paragraph(Text(text), "", "")

    def note(self, text: str) -> None:
        """A paragraph that belongs to a step."""
        self._paragraph(Text(text), INDENT, INDENT)

    def step(self, number: int, title: str, text: str) -> None:
        """A numbered step: what happens now, and why it matters."""
        self._console.print()
        self._paragraph(Text.assemble((title, "bold"), " ", text), f"{number:<{len(INDENT)}}", INDENT)

    def command(self, line: str) -> None:
        """A command line to copy: in one piece, however long."""
        self._console.print(Text(INDENT + line.rstrip(), style="bold"), soft_wrap=True)

    def show(self, *parts: RenderableType) -> None:
        """Anything rich can print; nothing at all is an empty line."""
        for part in parts or ("",):
            self._console.print(part)

    def _paragraph(self, text: Text, first: str, others: str) -> None:
        """Wrapped here, because rich would fill every line with spaces to its end."""
        for number, line in enumerate(text.wrap(self._console, self._console.width - len(others))):
            line.rstrip()
            self._console.print(Text.assemble((first, "bold cyan") if number == 0 else others, line), soft_wrap=True)

    @contextmanager
    def progress(self, done: int) -> "Iterator[ProgressView]":
        """A view that is there during the block, at the beginning of which so many are done."""
        if not self._is_live:
            yield ProgressView(self._console, None, done)
            return
        with Live(console=self._console, transient=True, auto_refresh=False) as live:
            yield ProgressView(self._console, live, done)


class ProgressView:
    """Progress as it goes: tells when it wants news, and works out the speed."""

    def __init__(self, console: Console, live: Live | None, done: int) -> None:
        self._console = console
        self._live = live
        self._interval_s = LINE_S if live is None else DRAW_S
        self._drawn_at = time.perf_counter()
        self._seen: deque[tuple[float, int]] = deque([(self._drawn_at, done)])

    def wants_news(self) -> bool:
        """Whether the last news are old enough."""
        return time.perf_counter() - self._drawn_at >= self._interval_s

    def draw(self, progress: Progress) -> None:
        """Show it with the speed of the last seconds."""
        self._drawn_at = now = time.perf_counter()
        self._seen.append((now, progress.done))
        while now - self._seen[0][0] > RATE_WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        progress = progress._replace(per_s=(last - first) / (last_at - first_at) if last_at > first_at else 0.0)
        if self._live is None:
            self._console.print(progress_line(progress))
        else:
            self._live.update(progress_view(progress), refresh=True)

    def last(self, progress: Progress) -> None:
        """The line that stays when the view goes."""
        if self._live is not None:
            self._live.stop()
        self._console.print(progress_line(progress))
