"""Screens as a person sees them, drawn at a given width and compared with what is stored beside the tests.

Run the tests with `UPDATE_SCREENS=1` to store what is drawn now; then read the difference.
"""

import io
import os
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType

FOLDER: Final = Path(__file__).with_name("screens")


def drawn(renderable: RenderableType, width: int) -> str:
    """What a terminal without colours shows, without the spaces that fill its lines."""
    console = Console(width=width, file=io.StringIO(), highlight=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= width
    return "\n".join(lines) + "\n"


def assert_screen(name: str, text: str) -> None:
    """That `text` is the stored screen of that name."""
    stored = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        FOLDER.mkdir(exist_ok=True)
        stored.write_text(text, encoding="utf-8")
    assert text == stored.read_text(encoding="utf-8")
