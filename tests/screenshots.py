"""The screenshots of the documents: `python -m tests.screenshots` draws them anew, with rich's own SVG export."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from taskmanager.console.terminal.screen import screen_lines, watch_lines
from tests.unit.console_overviews import SHOWCASE

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
WIDTH: Final = 80
HEIGHT: Final = 24
SCREENS: Final = {
    "status": screen_lines(SHOWCASE, WIDTH, HEIGHT - 1),
    "watch": watch_lines(SHOWCASE, WIDTH, HEIGHT),
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
