"""`taskmanager status` and `watch`: one look at everything, or the same live until somebody presses q."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from taskmanager.cli.database import check_is_there, read
from taskmanager.cli.keyboard import News, listening
from taskmanager.cli.options import answer_json, file_options, screen
from taskmanager.console.documents import overview_document
from taskmanager.console.observer import Watch, look
from taskmanager.console.overview import Overview, Problem
from taskmanager.model.clock import SystemClock
from taskmanager.store.place import Place
from taskmanager.store.sql.session import Session

if TYPE_CHECKING:
    from rich.console import Console

LOOK_S: Final = 0.5  # how often it is asked whether something has changed
READ_PATIENCE_S: Final = 0.2
"""How long a look waits for a file that another program has locked: as long as that no key is heard."""
EXIT_CODES: Final = {News.QUIT: 0, News.INTERRUPTED: 130, News.TERMINATED: 143}
STATUS_EPILOG: Final = """\b
Examples:
  taskmanager status
  taskmanager status --db /srv/app/tasks.db
  taskmanager status --json | jq .problems

Works while the application is running, after it has stopped, and on the file that a crash left behind. Memory-only
tasks are counted while they wait and run; once they have ended, it takes up to a minute until they are in the file.
"""
WATCH_EPILOG: Final = """\b
Examples:
  taskmanager watch
  taskmanager watch --db /srv/app/tasks.db

q or Ctrl-C quits. A task gets a progress bar by calling current_task().progress(done, total, text). If stdout is not a
terminal, and with --json, the answer is printed once, as by `taskmanager status`.
"""


@click.command(epilog=STATUS_EPILOG)
@file_options
def status(db: Place, as_json: bool) -> None:
    """Show instances, queues, throughput, failures, schedules and storage on one screen."""
    check_is_there(db)
    writer = db.writer_watch().judge()
    with read(db) as connection:
        overview = look(db, connection, SystemClock())
    _answer(_with_writer(overview, writer), as_json)


@click.command(epilog=WATCH_EPILOG)
@file_options
def watch(db: Place, as_json: bool) -> int:
    """Show what is running, waiting and failing, kept up to date: progress, time left, last failures. q quits."""
    clock = SystemClock()
    with read(db) as connection:  # what is wrong with the file is said before the screen is taken
        overview = look(db, connection, clock)
    if as_json or not (console := screen()).is_terminal or console.is_dumb_terminal:
        _answer(overview, as_json)
        return 0
    watched = Watch(db, clock, partial(_opened, db))
    while (news := _show(console, db, watched)) is News.SUSPENDED:
        os.kill(os.getpid(), signal.SIGSTOP)  # the terminal has been given back; here it goes on after `fg`
    return EXIT_CODES[news]


def _answer(overview: Overview, as_json: bool) -> None:
    if as_json:
        answer_json(overview_document(overview))
        return
    from taskmanager.console.terminal.screen import Screen  # not for --json

    screen().print(Screen(overview))


def _with_writer(overview: Overview, writer: str | None) -> Overview:
    """Add the process that keeps everybody from writing as the first problem: everything else may be old then."""
    if writer is None:
        return overview
    text = f"{writer} holds the write lock: nothing can be saved"
    advice = "let it finish its transaction, or end it; taskmanager doctor says more"
    return replace(overview, problems=(Problem(severity="error", text=text, advice=advice), *overview.problems))


@contextmanager
def _opened(db: Place) -> Iterator[Session]:
    check_is_there(db)
    with db.read(patience_s=READ_PATIENCE_S) as connection:
        yield connection


def _show(console: "Console", db: Place, watched: Watch) -> News:
    """Show the live screen until a key or a signal ends it, and return which."""
    from rich.console import Group
    from rich.live import Live

    from taskmanager.console.terminal.screen import fault_lines, watch_lines

    locks, drawn, news = db.writer_watch(), None, News.RESIZED
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with listening() as keyboard, live:
        while news in (News.NOTHING, News.RESIZED):
            writer = locks.look()
            watched.look()
            if watched.fault is not None or watched.last is None:
                lines = fault_lines(str(db), watched.fault or "", *console.size)
            else:
                overview = _with_writer(watched.last, writer)
                lines = watch_lines(overview, *console.size, is_ascii=console.options.ascii_only)
            if lines != drawn or news is News.RESIZED:
                live.update(Group(*lines), refresh=True)
                drawn = lines
            news = keyboard.wait(LOOK_S)
    return news
