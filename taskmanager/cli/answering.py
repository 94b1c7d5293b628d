"""How an answer leaves: as one JSON document, or as something rich draws for whoever is at the other end."""

import json
import os
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_A_PIPE: Final = 200
"""Columns where nobody says how many there are: wide enough that nothing is cut that `grep` may look for."""


def answer_json(value: object) -> None:
    """One document on stdout, in UTF-8 whatever the terminal speaks."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    click.echo(text.encode("utf-8", "replace"))


def screen() -> "Console":
    """stdout: as wide as the terminal, or `$COLUMNS`; colours only on a terminal, and not under `NO_COLOR`."""
    from rich.console import Console  # not for --json

    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = WIDTH_OF_A_PIPE
    return console
