"""Starts children, signals them, and judges what they left: a file by plain `sqlite3`, the rest by the journal.

The judge shares no code with the product: what it counts was written by SQLite and by `os.write`. On a server it is
the product that puts the judge's question into the server's words.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

both = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True
)
"""Lets a test run on a file, and on a server where there is time for that."""

both_new = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("new postgresql", marks=pytest.mark.long)], indirect=True
)
"""The same, where no table has been made before."""


def both_with(name: str, values: Sequence[object], on_server: object, *, is_long: bool = False) -> pytest.MarkDecorator:
    """Let a test run with each of these values on a file, and with one of them on a server, which may take long."""
    on_servers = pytest.param("postgresql", on_server, marks=pytest.mark.long if is_long else ())
    pairs = [*(("sqlite", each) for each in values), on_servers]
    return pytest.mark.parametrize(("database", name), pairs, indirect=["database"])


ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
POLL_S = 0.01
TERMINAL = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED")


class Line(NamedTuple):
    """One line of the journal."""

    event: str
    label: str
    task_id: str
    attempt: int
    pid: int


def rows_of(database: str, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Rows of a database: of a file as anybody could read them."""
    if "://" not in database:
        with closing(sqlite3.connect(database, timeout=10)) as connection:
            return connection.execute(sql, parameters).fetchall()
    from taskmanager.store.place import place_at

    with place_at(database).read(is_any_version=True) as session:
        return session.execute(sql, parameters).fetchall()


def change(database: str, sql: str) -> int:
    """Change rows as a tool does that knows nothing of this library. Return how many."""
    if "://" not in database:
        with closing(sqlite3.connect(database, timeout=10)) as connection, connection:
            return connection.execute(sql).rowcount
    from taskmanager.store.place import place_at

    with place_at(database).write() as session:
        return session.execute(sql).rowcount


class Site:
    """One database, its journal, and the children that ran on it."""

    def __init__(self, folder: Path, database: str | None = None) -> None:
        self.folder = folder
        self.db = database or str(folder / "tasks.db")
        self.journal = folder / "journal"
        self._count = 0

    def spawn(
        self, *, sleep_s: float | None = None, program: str = "child", within: Sequence[str] = (), **config: Any
    ) -> "Child":
        """Start a child; `config` is the argument of `tests.crash.child`, `within` the command that runs it."""
        self._count += 1
        errors = self.folder / f"err{self._count}"
        return Child(self, {"db": self.db, **config}, sleep_s, errors, program, within)

    def finish(self, **config: Any) -> "Child":
        """A clean last run: whatever is unfinished runs now, and the child ends by itself."""
        child = self.spawn(**{"until": "empty", "sleep_s": 0.01, **config})
        child.wait()
        assert child.code == 0, child.errors()
        return child

    def lines(self, event: str | None = None, label: str | None = None) -> list[Line]:
        """The journal so far, whole lines only."""
        if not self.journal.exists():
            return []
        text = self.journal.read_text()
        found = [Line(**json.loads(each)) for each in text[: text.rfind("\n") + 1].splitlines()]
        return [
            each for each in found if (event is None or each.event == event) and (label is None or each.label == label)
        ]

    def starts(self) -> Counter[str]:
        """How often user code of each label started."""
        return Counter(line.label for line in self.lines("start"))

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Rows of the database."""
        return rows_of(self.db, sql, parameters)

    def tables(self) -> list[str]:
        """The tables that are there, in a file with all that SQLite keeps for them."""
        if "://" not in self.db:
            return [str(name) for (name,) in self.query("SELECT name FROM sqlite_master")]
        schema = self.db.partition("?schema=")[2]
        return [str(name) for (name,) in self.query("SELECT tablename FROM pg_tables WHERE schemaname = ?", schema)]

    def statuses(self) -> dict[str, str]:
        """Label → status, for every row."""
        return self._by_label("status")

    def codes(self) -> dict[str, str | None]:
        """Label → error code, for every row."""
        return self._by_label("error_code")

    def _by_label(self, column: str) -> dict[str, Any]:
        # A memory-only record may come without its arguments; the journal knows its label.
        labels = {line.task_id: line.label for line in self.lines()}
        rows = self.query(f"SELECT id, json_extract(args, '$[0]'), {column} FROM taskmanager_tasks")
        return {label or labels.get(task_id, task_id): value for task_id, label, value in rows}

    def outcomes(self, label: str) -> list[str]:
        """The outcomes of a task's attempts, oldest first."""
        sql = (
            "SELECT outcome FROM taskmanager_task_attempts AS a JOIN taskmanager_tasks AS t ON t.id = a.task_id "
            "WHERE json_extract(t.args, '$[0]') = ? ORDER BY attempt"
        )
        return [str(each[0]) for each in self.query(sql, label)]

    def assert_whole(self) -> None:
        """Nothing of a file is damaged. A server sees to that by itself."""
        if "://" not in self.db:
            assert self.query("PRAGMA integrity_check") == [("ok",)]
            assert self.query("PRAGMA foreign_key_check") == []

    def assert_sound(self) -> None:
        """Whatever happened: the file is whole, and nothing succeeded twice or ran after its success."""
        self.assert_whole()
        twice = self.query(
            "SELECT task_id, count(*) FROM taskmanager_task_attempts WHERE outcome = 'COMPLETED' "
            "GROUP BY task_id HAVING count(*) > 1"
        )
        assert twice == [], f"recorded as a success twice: {twice}"
        starts = Counter((line.task_id, line.attempt) for line in self.lines("start"))
        repeated = {key: count for key, count in starts.items() if count > 1}
        assert not repeated, f"one attempt started user code twice: {repeated}"
        ended = dict(self.query("SELECT task_id, attempt FROM taskmanager_task_attempts WHERE outcome = 'COMPLETED'"))
        late = [key for key in starts if key[1] > ended.get(key[0], key[1])]
        assert not late, f"ran again after a recorded success: {late}"

    def assert_settled(self) -> None:
        """Every row has ended, and agrees with its attempts."""
        live = self.query(f"SELECT id, args, status FROM taskmanager_tasks WHERE status NOT IN {TERMINAL}")
        assert live == [], f"not ended: {live}"
        wrong = self.query(
            "SELECT id FROM taskmanager_tasks AS t WHERE status = 'COMPLETED' AND NOT EXISTS "
            "(SELECT 1 FROM taskmanager_task_attempts AS a WHERE a.task_id = t.id AND a.outcome = 'COMPLETED') "
            "AND instr(task_options, '\"persist\":true') > 0"
        )
        assert wrong == [], f"completed without an attempt that did: {wrong}"


class Child:
    """One running child."""

    def __init__(
        self,
        site: Site,
        config: dict[str, Any],
        sleep_s: float | None,
        errors: Path,
        program: str,
        within: Sequence[str],
    ) -> None:
        self.site = site
        self._errors = errors
        environment = {**os.environ, "TASKMANAGER_TEST_JOURNAL": str(site.journal), "PYTHONPATH": str(ROOT)}
        environment["TASKMANAGER_TEST_SLEEP_S"] = "" if sleep_s is None else str(sleep_s)
        # Hundreds of children are started: they compile once, and leave nothing in the checkout.
        environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / f"taskmanager-crash-tests-{os.getuid()}")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with errors.open("wb") as sink:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", f"tests.crash.{program}", json.dumps(config)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
        self.pid = self.process.pid

    @property
    def code(self) -> int | None:
        """The exit code; negative: the signal it died of."""
        return self.process.returncode

    def errors(self) -> str:
        """What it wrote to stderr."""
        return self._errors.read_text(errors="replace")

    def until(self, event: str, count: int = 1, *, label: str | None = None) -> None:
        """Wait until this child has noted `event` so often."""

        def is_there() -> bool:
            found = sum(line.pid == self.pid for line in self.site.lines(event, label))
            assert found >= count or self.process.poll() is None, f"ended before {event!r}:\n{self.errors()}"
            return found >= count

        wait_for(is_there, lambda: f"{event!r} x{count}: {self.site.lines()}\n{self.errors()}")

    def until_starts(self, count: int) -> None:
        """Wait until so many tasks have started, in this child or in a child process of it."""

        def is_there() -> bool:
            found = len(self.site.lines("start"))
            assert found >= count or self.process.poll() is None, f"ended after {found} starts:\n{self.errors()}"
            return found >= count

        wait_for(is_there, lambda: f"{self.site.lines()}\n{self.errors()}")

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for it."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self, number: int = signal.SIGTERM, *, within_s: float = PATIENCE_S) -> float:
        """Send a signal and wait for the end; how many seconds that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.wait(within_s)
        return time.monotonic() - began

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the end; a child that hangs is killed and reported."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(PATIENCE_S)
            raise AssertionError(f"did not end within {within_s} s:\n{self.errors()}") from None


def wait_for(is_there: Callable[[], bool], describe: Callable[[], str], within_s: float = PATIENCE_S) -> None:
    """Look every few milliseconds, `within_s` at most."""
    end = time.monotonic() + within_s
    while not is_there():
        if time.monotonic() > end:
            raise AssertionError(f"never came: {describe()}")
        time.sleep(POLL_S)


@contextmanager
def killed_at_the_end(*children: Child) -> Iterator[None]:
    """No child outlives a failed test."""
    try:
        yield
    finally:
        for child in children:
            if child.process.poll() is None:
                child.kill()


def is_alive(pid: int) -> bool:
    """Whether that process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
