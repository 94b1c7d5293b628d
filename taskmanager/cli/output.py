"""Prints answers: as one JSON document, or as text and tables that rich draws."""

import io
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDTH_OF_A_PIPE: Final = 200
"""Columns where nobody says how many there are: wide enough that nothing is cut that `grep` may look for."""
_NOT_ASCII: Final = re.compile(r"[^\n -~]")


def answer_json(value: object) -> None:
    """Print one document on stdout, in UTF-8 whatever the terminal speaks."""
    click.echo(as_document(value), nl=False)


def as_document(value: object) -> bytes:
    """Return the document with a newline at its end; no control character is left that could steer a terminal."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if not text.replace("\n", "").isprintable():
        text = _NOT_ASCII.sub(_shown, text)
    return text.encode("utf-8", "replace") + b"\n"


def _shown(match: re.Match[str]) -> str:
    """JSON leaves most control characters beyond ASCII, and those that turn the direction of writing, as they are."""
    sign = match[0]
    is_half = "\ud800" <= sign <= "\udfff"
    return sign if sign.isprintable() or is_half else json.dumps(sign)[1:-1]


def draw(part: "RenderableType") -> None:
    """Print this; not on a terminal, without the spaces at the ends of lines that only fill up a table."""
    console = screen()
    if console.is_terminal:
        console.print(part)
        return
    with console.capture() as capture:
        console.print(part)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def screen() -> "Console":
    """Return stdout, as wide as the terminal or `$COLUMNS`; colours are for a terminal only, and not under NO_COLOR."""
    from rich.console import Console  # not for --json

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows what it can
    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = WIDTH_OF_A_PIPE
    return console
