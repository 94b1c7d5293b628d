"""Several processes of one program, written out for one test, on one database. What they note in passing is lines.

The program is started as `program.py DATABASE NAME *WORDS`, and appends its lines to the file `NOTES`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.harness import PATIENCE_S, ROOT, rows_of, wait_for

NOTE = """
import os, sys
from tests.crash.kinds import hasten, session_class

NOTES = os.environ["TASKMANAGER_TEST_NOTES"]
hasten(sys.argv[1])
Session = session_class(sys.argv[1])

def note(text: str) -> None:
    fd = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (text + "\\n").encode())
    os.close(fd)
"""
"""Stands before the text of every program: how it notes a line, whole also where the next statement kills it."""


class Stage:
    """The database, the program, and its processes."""

    def __init__(self, folder: Path, program: str, database: str) -> None:
        self.folder = folder
        self.database = database
        self.notes = folder / "notes"
        self.program = folder / "program.py"
        self.program.write_text(NOTE + program)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, name: str, *words: str) -> "subprocess.Popen[str]":
        """Start one, and do not wait; what it logs is in `log_of(name)`."""
        command = [sys.executable, str(self.program), self.database, name, *words]
        with (self.folder / f"{name}.log").open("w") as log:
            environment = {**os.environ, "TASKMANAGER_TEST_NOTES": str(self.notes), "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes.append(process)
        return process

    def log_of(self, name: str) -> str:
        """What that process has logged so far."""
        return (self.folder / f"{name}.log").read_text()

    def lines(self) -> list[str]:
        """The notes so far, whole lines only."""
        text = self.notes.read_text() if self.notes.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def until(self, holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        """Wait until it holds; fail with the notes when it does not."""
        wait_for(holds, lambda: str(self.lines()), within_s)

    def until_noted(self, *lines: str) -> None:
        """Wait until each of these lines has been noted."""
        self.until(lambda: set(lines) <= set(self.lines()))

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        """Rows of the database."""
        return rows_of(self.database, sql)


@contextmanager
def staged(folder: Path, program: str, database: str | None = None) -> Iterator[Stage]:
    """A stage whose processes end with the test, the frozen ones too."""
    stage = Stage(folder, program, database or str(folder / "tasks.db"))
    try:
        yield stage
    finally:
        for process in stage.processes:
            with process:
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
                    process.kill()
