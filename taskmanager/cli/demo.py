"""`taskmanager demo`: a program that works on files is stopped and started again, and every file is accounted for.

Real files, a real process, a real SIGTERM. Whether every file is accounted for is decided from the rows alone.
"""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

import taskmanager
from taskmanager.cli.demo_tasks import check_file, key_of
from taskmanager.cli.options import answer_json, json_option
from taskmanager.model.escaping import escaped
from taskmanager.model.wording import counted
from taskmanager.store.place import place_at
from taskmanager.store.sqlite.files import open_existing
from taskmanager.store.sqlite.presence import is_dead, lock_files

SKIPPED: Final = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})
START: Final = "A program enqueues one task per file. Each is in the database before it runs, so no crash can lose it."
SIGTERM: Final = "as at a deploy. Process {} may neither lose a task nor leave one behind whose state nobody knows."
AGAIN: Final = """A new process takes over what waits in the database. It also enqueues its files once more, as a \
program does at every start: the idempotency key of a file, its path, finds the task that is there, none is doubled."""
ROWS: Final = """
SELECT t.status, t.error_code, t.idempotency_key, count(a.id), ifnull(max(a.outcome = 'INTERRUPTED'), 0)
FROM taskmanager_tasks AS t LEFT JOIN taskmanager_task_attempts AS a ON a.task_id = t.id GROUP BY t.id ORDER BY t.args
"""
EPILOG = """
\b
Examples:
  taskmanager demo ~/projects --limit 500
  taskmanager demo --resume               go on after Ctrl-C
  taskmanager demo --json >count.json     the tour on stderr, the count here

Nothing is changed below DIR. The database stays, to look at; the next demo starts it anew.
"""


@click.command(epilog=EPILOG)
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--db", default="taskmanager-demo.db", show_default=True, metavar="PATH", help="Where to keep the tasks.")
@click.option("--resume", is_flag=True, help="Go on with what an interrupted demo left in the database.")
@click.option("--limit", type=click.IntRange(1), default=20_000, show_default=True, help="Take at most so many files.")
@json_option
def demo(directory: str | None, db: str, resume: bool, limit: int, as_json: bool) -> int:
    """Watch a program survive its own restart, on your own files.

    One task per file below DIR (by default Python's standard library): hash it, and parse it if it is Python. In the
    middle the program gets a SIGTERM, as at a deploy, and is started again. Takes half a minute.
    """
    if (file := place_at(db).file) is None:
        raise click.UsageError("the demo makes a file of its own; give --db the path of one")
    database = file.absolute()
    before = _check(database, escaped(db))
    if resume and before is None:
        raise click.ClickException(f"there is nothing in {escaped(db)} to go on with; start without --resume")
    root = Path(directory or (resume and before) or Path(os.__file__).parent).expanduser().absolute()
    for path in (root, database.parent):
        if not path.is_dir():
            raise click.UsageError(f"{escaped(str(path))} is not a directory")
    story = Story(database, root, list(_files_below(root, database))[:limit], as_json)
    if before and not resume:
        story.say(f"{escaped(db)} is of an earlier demo and is started anew (--resume would go on with it).")
        for end in ("", "-wal", "-shm", ".log"):
            database.with_name(database.name + end).unlink(missing_ok=True)
    try:
        code = story.tell(resume)
        if database.exists():
            story.say(f"To look at them: taskmanager status --db {escaped(db)}")
        return code
    except KeyboardInterrupt:
        story.stop()
        story.say(f"Stopped: {story.done():,} files done. Go on with: taskmanager demo --resume --db {escaped(db)}")
        return 130


def _check(database: Path, db: str) -> str | None:
    """Refuse a file that is not ours to touch. Return the directory of the demo that is in it; None without one."""
    if not database.exists() or not database.stat().st_size:
        return None
    try:
        with contextlib.closing(open_existing(str(database), "mode=rw")) as connection:
            found = connection.execute("SELECT task_name, json_extract(args, '$[0]') FROM taskmanager_tasks").fetchall()
    except sqlite3.Error:
        found = [("foreign", "")]
    if any(name != check_file.name for name, _ in found):
        raise click.ClickException(f"{db} is not a demo's database and is left alone; give another --db PATH")
    if not all(is_dead(database, instance_id) for _, instance_id in lock_files(database)):
        raise click.ClickException(f"another program is running on {db}; stop it, or give another --db PATH")
    return found[0][1] if found else None


def _files_below(root: Path, database: Path) -> Iterator[str]:
    """Yield the names of regular files, without hidden directories, installed packages and our own files."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        is_ours = database.name if Path(folder).resolve() == database.parent.resolve() else "/"
        for path in (Path(folder, name) for name in sorted(files) if not name.startswith(is_ours)):
            if os.path.isfile(path):  # noqa: PTH113  # Path.is_file raises where a directory may not be searched
                yield os.path.relpath(path, root)


class Story:
    """One demo, told step by step; on stderr where the count goes to stdout as JSON."""

    def __init__(self, database: Path, root: Path, names: list[str], as_json: bool) -> None:
        self._database, self._root, self._names, self._as_json = database, root, names, as_json
        self._console = Console(highlight=False, stderr=as_json)
        self._program: subprocess.Popen[bytes] | None = None
        self._worked_s = 0.0

    def say(self, text: str, number: int | None = None, title: str = "") -> None:
        """Print a paragraph. A number begins a step, and 0 goes on with it."""
        start = "" if number is None else f"{number or '':<3}"
        lines = textwrap.wrap(f"{title} {text}".strip(), min(97, self._console.width - 3), break_on_hyphens=False)
        line = Text(start + f"\n{' ' * len(start)}".join(lines))
        line.stylize("bold cyan", 0, len(start))
        line.stylize("bold", len(start), len(start) + len(title))
        self._console.print(*[""] * bool(number), line, sep="\n", soft_wrap=True)

    def tell(self, is_resumed: bool) -> int:
        """Start, SIGTERM in the middle, start again, count. Return the exit code."""
        number, files = len(self._names), counted(len(self._names), "file")
        self.say(f"{files if number else 'no files'} below {escaped(str(self._root))}; one task for each.")
        if not number:
            return self._count(1)
        if not is_resumed:
            self.say(START, 1, "Start.")
            if not self._run(stop_at=max(1, number // 2)):
                return 1
            self.say(SIGTERM.format(self._program and self._program.pid), 2, "SIGTERM in the middle,")
            self.stop()
            left = Counter(status for status, *_ in self._rows())
            waiting, running = left["PENDING"], left["RUNNING"] + left["CLAIMED"]
            self.say(f"{self.done():,} done, {waiting:,} wait in the database, {running or 'none'} left as running.", 0)
        self.say(AGAIN, 1 if is_resumed else 3, "Start again.")
        return self._count(2 if is_resumed else 4) if self._run(stop_at=number + 1) else 1

    def done(self) -> int:
        """Return how many tasks have ended."""
        rows = self._rows("SELECT count(*) FROM taskmanager_tasks WHERE status IN ('COMPLETED', 'FAILED')")
        return rows[0][0] if rows else 0

    def _rows(self, query: str = ROWS) -> list[Any]:
        """Return the rows of a query, or nothing while there is no database yet."""
        source = partial(open_existing, str(self._database), "mode=rw", timeout=1.0)
        with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(source()) as connection:
            return connection.execute(query).fetchall()
        return []

    def _run(self, stop_at: int) -> bool:
        """Start the program, and show progress until it ends or so many files are done. Return whether it is well."""
        # Enqueueing a failed one would be a retry, and the demo counts what the policy does alone.
        failed = {key for status, _, key, *_ in self._rows() if status == "FAILED"}
        with self._database.with_name(f"{self._database.name}.log").open("ab") as log:
            # A session of its own, or Ctrl-C would reach the program too, and the demo could not say how it stops. The
            # working directory makes the package importable. The program stops when its stdin is closed.
            self._program = program = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [sys.executable, "-m", "taskmanager.cli.demo_tasks", str(self._database), str(self._root)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, bufsize=0,
                cwd=Path(taskmanager.__file__).parent.parent,
            )  # fmt: skip
        assert program.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; its exit code tells
            names = [name for name in self._names if key_of(name) not in failed]
            program.stdin.write(json.dumps(names).encode() + b"\n")
        before, since = self.done(), time.perf_counter()
        with Progress(console=self._console, transient=True, disable=not self._console.is_terminal) as progress:
            bar = progress.add_task("   files", total=len(self._names))
            while (done := self.done()) < stop_at and program.poll() is None and time.perf_counter() < since + 3_600:
                progress.update(bar, completed=done)
                time.sleep(0.02)
        took_s = time.perf_counter() - since
        self._worked_s += took_s
        self.say(f"{done:,} of {counted(len(self._names), 'file')} · {(done - before) / took_s:,.0f}/s", 0)
        if program.poll():
            self.say(f"The program ended with exit code {program.returncode}; {escaped(log.name)} says why.", 0)
        return not program.poll()

    def stop(self) -> None:
        """Stop the program in order, as a deploy does; kill it when that takes longer than a container waits."""
        if self._program is not None:
            self._program.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._program.wait(10.0)
            self._program.kill()
            self._program.communicate()
            self._program = None

    def _count(self, step: int) -> int:
        """Say what became of every file. Return the exit code: 0 if each has one task, completed or failed."""
        self.say("Not by the program: these are the rows of the database, read with plain sqlite3.", step, "Count.")
        rows = self._rows()
        ended = {key for status, _, key, *_ in rows if status in ("COMPLETED", "FAILED")}
        missing = [escaped(name) for name in self._names if key_of(name) not in ended]
        failures = [(code, key) for status, code, key, *_ in rows if status == "FAILED"]
        found: dict[str, Any] = {
            "db": escaped(str(self._database)), "files": len(self._names), "unaccounted": missing,
            "completed": len(ended) - len(failures), "failed": len(failures),
            "error_codes": dict(Counter(code for code, _ in failures)), "interrupted": sum(row[4] for row in rows),
            "run_once": sum(row[3] == 1 for row in rows), "run_more_than_once": sum(row[3] > 1 for row in rows),
            "tasks_per_s": round(len(rows) / self._worked_s, 1) if self._worked_s else None,
        }  # fmt: skip
        for name in ("completed", "failed", "run_once", "run_more_than_once", "interrupted", "tasks_per_s"):
            words = "interrupted runs" if name == "interrupted" else name.replace("_", " ")
            self._console.print(f"   {words:<20}{found[name] or 0:>10,}")
        for code, key in failures[:5]:
            self._console.print(Text.assemble("   ", (code, "red"), f"  {escaped(key)}"), soft_wrap=True)
        verdict = f"Every one of {len(self._names):,} files has exactly one task, and it is completed or failed."
        self._console.print()
        self.say(f"NOT every file is accounted for: {', '.join(missing[:5])}" if missing else verdict)
        if self._as_json:
            answer_json(found)
        return 1 if missing else 0
