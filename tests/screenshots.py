"""The screenshots of the documents: `python -m tests.screenshots` draws them anew, with rich's own SVG export."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from taskmanager.console.outlook import workflow_outlook
from taskmanager.console.terminal.screen import screen_lines, watch_lines
from taskmanager.console.terminal.workflow import WorkflowPage
from tests.unit.cli.rich_file import NOW
from tests.unit.cli.workflow_file import running_view
from tests.unit.console_overviews import SHOWCASE

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
WIDTH: Final = 80
HEIGHT: Final = 24


def workflow_lines() -> list[Text]:
    """What `taskmanager workflow show` prints of one that runs."""
    console = Console(file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor")
    view = running_view()
    with console.capture() as capture:
        console.print(WorkflowPage(view, workflow_outlook(view.row, is_running=True), NOW))
    return [Text.from_ansi(line.rstrip()) for line in capture.get().splitlines()]


SCREENS: Final = {
    "status": screen_lines(SHOWCASE, WIDTH, HEIGHT - 1),
    "watch": watch_lines(SHOWCASE, WIDTH, HEIGHT),
    "workflow": workflow_lines(),
}


def svg(name: str, lines: Iterable[Text]) -> str:
    """One screen as an image."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(line)
    return console.export_svg(title=f"taskmanager {name}", unique_id=f"taskmanager-{name}")


def main() -> None:
    """Write all of them."""
    for name, lines in SCREENS.items():
        (DOCS / f"{name}.svg").write_text(svg(name, lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
