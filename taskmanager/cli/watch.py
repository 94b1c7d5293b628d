"""`taskmanager watch`: the same as `status`, live, until somebody presses q."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from taskmanager.cli.database import check_is_there, db_option, json_option, read
from taskmanager.cli.keyboard import News, listening
from taskmanager.cli.locks import WriterWatch, problem_of
from taskmanager.cli.output import answer_json, screen
from taskmanager.console.documents import overview_document
from taskmanager.console.observer import look
from taskmanager.console.overview import Overview
from taskmanager.console.terminal.screen import Screen, fault_lines, watch_lines
from taskmanager.console.watch import Watch
from taskmanager.model.clock import SystemClock
from taskmanager.store.sqlite.reading import open_read_only

LOOK_S: Final = 0.5
"""How often it is asked whether something has changed."""
READ_PATIENCE_S: Final = 0.2
"""How long a look waits for a file that another program has locked: as long as that no key is heard."""
CTRL_C_EXIT: Final = 130
TERMINATED_EXIT: Final = 143

EPILOG: Final = """
\b
Examples:
  taskmanager watch
  taskmanager watch --db /srv/app/tasks.db

q or Ctrl-C quits. A task gets a progress bar by calling current_task().progress(done, total, text). If stdout is not a
terminal, and with --json, the answer is printed once, as by `taskmanager status`.
"""


@click.command(epilog=EPILOG)
@db_option
@json_option
def watch(db: Path, as_json: bool) -> int:
    """Show what is running, waiting and failing, kept up to date: progress, time left, last failures. q quits."""
    clock = SystemClock()
    with read(db) as connection:  # what is wrong with the file is said before the screen is taken
        overview = look(db, connection, clock)
    if as_json:
        answer_json(overview_document(overview))
        return 0
    console = screen()
    if not console.is_terminal or console.is_dumb_terminal:
        console.print(Screen(overview))
        return 0
    return _keep_watching(console, db, Watch(db, clock, _look_again))


@contextmanager
def _look_again(db: Path) -> Iterator[sqlite3.Connection]:
    check_is_there(db)
    with open_read_only(db, patience_s=READ_PATIENCE_S) as connection:
        yield connection


def _keep_watching(console: Console, db: Path, watched: Watch) -> int:
    """Until a key or a signal ends it: the exit code."""
    while (news := _show(console, db, watched)) is News.SUSPENDED:
        os.kill(os.getpid(), signal.SIGSTOP)  # the terminal has been given back; here it goes on after `fg`
    return {News.QUIT: 0, News.INTERRUPTED: CTRL_C_EXIT}.get(news, TERMINATED_EXIT)


def _show(console: Console, db: Path, watched: Watch) -> News:
    """The live screen, until there are news that end it."""
    drawn: list[Text] = []
    locks = WriterWatch(db)
    news = News.RESIZED
    with (
        listening() as keyboard,
        Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
    ):
        while news in (News.NOTHING, News.RESIZED):
            writer = locks.look()
            watched.look()
            lines = _lines(console, db, watched.fault, _with_writer(watched.last, writer))
            if lines != drawn or news is News.RESIZED:
                live.update(Group(*lines), refresh=True)
                drawn = lines
            news = keyboard.wait(LOOK_S)
    return news


def _with_writer(overview: Overview | None, writer: int | None) -> Overview | None:
    if overview is None or writer is None:
        return overview
    return replace(overview, problems=(problem_of(writer), *overview.problems))


def _lines(console: Console, db: Path, fault: str | None, overview: Overview | None) -> list[Text]:
    width, height = console.size
    if fault is not None or overview is None:
        return fault_lines(str(db), fault or "", width, height)
    return watch_lines(overview, width, height, is_ascii=console.options.ascii_only)
