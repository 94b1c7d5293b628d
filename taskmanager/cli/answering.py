"""How an answer leaves: as one JSON document, or as something rich draws for whoever is at the other end."""

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDTH_OF_A_PIPE: Final = 200
"""Columns where nobody says how many there are: wide enough that nothing is cut that `grep` may look for."""


def answer_json(value: object) -> None:
    """One document on stdout, in UTF-8 whatever the terminal speaks."""
    click.echo(as_document(value), nl=False)


def as_document(value: object) -> bytes:
    """The document, with the end of its last line."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text.encode("utf-8", "replace") + b"\n"


def draw(*parts: "RenderableType") -> None:
    """Print these. What is no terminal gets no spaces at the ends of lines, for they would only fill a table."""
    console = screen()
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def screen() -> "Console":
    """stdout: as wide as the terminal, or `$COLUMNS`; colours only on a terminal, and not under `NO_COLOR`."""
    from rich.console import Console  # not for --json

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows what it can
    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = WIDTH_OF_A_PIPE
    return console
