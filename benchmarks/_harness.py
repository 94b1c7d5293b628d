"""What every benchmark shares: contenders in fresh processes, ratios within a round, targets, and the table.

A benchmark asks one question and asserts nothing. It names its parts, each of which is measured in a process of its
own, and its lines, each of which compares two parts. The two run one after the other in every round, each time the
other one first, and the ratio is taken within the round: so a machine whose speed varies disturbs both alike. What is
quoted is the median of the ratios, beside its target.

With `--against PATH` the parts that use the library run a second time with the package of another checkout.
"""

import argparse
import asyncio
import gc
import json
import logging
import math
import os
import platform
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

BOUND: Final = 100
"""Tasks at a time: the default concurrency of a manager, and the semaphore of the bounded TaskGroup."""
ROUNDS: Final = 7
ROUNDS_QUICK: Final = 3
SERVER_START_S: Final = 60.0
HERE: Final = Path(__file__).resolve().parent.parent
_PLAIN_WIDTH: Final = 190


class Options(NamedTuple):
    """How a benchmark was called. What stands last is for the processes of its parts."""

    is_quick: bool
    rounds: int
    directory: Path
    against: Path | None
    only: str
    json: Path | None
    part: str | None
    given: str
    shared: Path | None

    def size(self, full: int, quick: int) -> int:
        """The full size of a benchmark, or its quick one."""
        return quick if self.is_quick else full


Figures = Mapping[str, float]
Part = Callable[[Options], Figures]


class Line(NamedTuple):
    """One line of the table: what a part measured, and what it is compared with.

    `must` and `wish` bound what is quoted, as ">= 0.3" or "<= 2": the ratio to the base, the difference to it, or the
    value itself. Where both parts measured `process_us`, the ratio of that is quoted beside it.
    """

    what: str
    part: str
    figure: str
    unit: str
    base: str | None = None
    base_figure: str | None = None
    quote: Literal["ratio", "difference", "value"] = "ratio"
    must: str = ""
    wish: str = ""

    @property
    def is_ratio(self) -> bool:
        """Whether what is quoted has no unit."""
        return self.base is not None and self.quote == "ratio"


class Found(NamedTuple):
    """What one line saw, once per round."""

    line: Line
    ours: list[float]
    base: list[float]
    other: list[float]
    processor: list[float]

    def note(self, figures: Mapping[tuple[str, Path], Figures], against: Path | None) -> None:
        """Take over what one round found."""
        line = self.line
        mine = figures[line.part, HERE]
        self.ours.append(mine[line.figure])
        if line.base is not None:
            base = figures[line.base, HERE]
            self.base.append(base[line.base_figure or line.figure])
            if "process_us" in mine and "process_us" in base and line.part != line.base:
                self.processor.append(mine["process_us"] / base["process_us"])
        if against is not None:
            self.other.append(figures[line.part, against][line.figure])

    @property
    def quoted(self) -> list[float]:
        """What is held against the targets."""
        if self.line.is_ratio:
            return ratios(self.ours, self.base)
        if self.line.quote == "difference":
            return [ours - base for ours, base in zip(self.ours, self.base, strict=True)]
        return self.ours


def ratios(ours: Sequence[float], base: Sequence[float]) -> list[float]:
    """One ratio per round."""
    return [one / other if other else math.nan for one, other in zip(ours, base, strict=True)]


def run(
    doc: str | None, file: str, parts: Mapping[str, Part], lines: Sequence[Line], notes: Sequence[str] = ()
) -> None:
    """Measure and print the table, or be the process of one part."""
    options = _parse(doc)
    if options.part is not None:
        # Stops with waiting tasks say so at ERROR; without a handler that would be printed between the figures.
        logging.getLogger("taskmanager").addHandler(logging.NullHandler())
        print(json.dumps({"package": str(package()), **parts[options.part](options)}))
        return
    with tempfile.TemporaryDirectory(prefix="taskmanager-bench-", dir=options.directory) as shared:
        options = options._replace(shared=Path(shared))
        found = _race(file, options, [line for line in lines if options.only in line.what])
    rows = [{"file": Path(file).name, **_row(each)} for each in found]
    if options.json is not None:
        options.json.write_text(json.dumps(rows), encoding="utf-8")
    _print(doc, options, rows, notes)


def _parse(doc: str | None) -> Options:
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small numbers, for a first look")
    parser.add_argument("--rounds", type=int, default=None, help=f"default {ROUNDS}, with --quick {ROUNDS_QUICK}")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where the databases are made")
    parser.add_argument("--against", type=Path, default=None, help="another checkout, to compare with")
    parser.add_argument("--only", default="", help="only the lines that contain this text")
    parser.add_argument("--json", type=Path, default=None, help="write the lines into this file, too")
    parser.add_argument("--part", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--given", default="", help=argparse.SUPPRESS)
    parser.add_argument("--shared", type=Path, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rounds = given.rounds or (ROUNDS_QUICK if given.quick else ROUNDS)
    return Options(
        given.quick, rounds, given.dir, given.against, given.only, given.json, given.part, given.given, given.shared
    )


# The rounds.


def _race(file: str, options: Options, lines: Sequence[Line]) -> list[Found]:
    """Run all heats in every round. Parts that are compared are in one heat, where each runs once per round."""
    found = [Found(line, [], [], [], []) for line in lines]
    for number in range(options.rounds):
        for heat in _heats(lines):
            order = _order(heat, lines, options.against, number)
            figures = {runner: run_part(file, options, *runner) for runner in order}
            for each in found:
                if each.line.part in heat:
                    each.note(figures, options.against)
    return found


def _order(heat: list[str], lines: Sequence[Line], against: Path | None, number: int) -> list[tuple[str, Path]]:
    """Who runs when in a round: each time another one first, and the two checkouts next to each other."""
    with_library = {line.part for line in lines}
    shift = number % len(heat)
    order = []
    for part in heat[shift:] + heat[:shift]:
        checkouts = [HERE] if against is None or part not in with_library else [HERE, against]
        order += [(part, each) for each in (checkouts if number % 2 else reversed(checkouts))]
    return order if number // 2 % 2 else order[::-1]


def _heats(lines: Sequence[Line]) -> list[list[str]]:
    """The parts that are compared with each other, directly or through a third one."""
    heats: list[list[str]] = []
    for line in lines:
        heat = [part for part in (line.part, line.base) if part is not None]
        for each in [each for each in heats if not set(each).isdisjoint(heat)]:
            heats.remove(each)
            heat = [*each, *heat]
        heats.append(list(dict.fromkeys(heat)))
    return heats


def run_part(file: str, options: Options, part: str, checkout: Path) -> dict[str, Any]:
    """Run one part in a fresh process, with the package of a checkout."""
    changed = options._replace(shared=options.shared and options.shared / str(checkout.resolve()).replace(os.sep, "_"))
    found = finish_part(start_part(file, changed, part, checkout=checkout))
    if not Path(found.pop("package")).is_relative_to(checkout.resolve()):
        raise SystemExit(f"{checkout} was to be measured, and another package was imported")
    return found


def start_part(
    file: str, options: Options, part: str, given: object = "", *, checkout: Path | None = None
) -> "subprocess.Popen[str]":
    """Begin to run a part in a fresh process: with the package of a checkout, or with that of this process."""
    command = [sys.executable, file, "--part", part, f"--given={given}", "--dir", str(options.directory)]
    command += ["--shared", str(options.shared)] if options.shared else []
    command += ["--quick"] if options.is_quick else []
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(checkout))


def finish_part(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for a part, and read what it found."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a part of the benchmark ended with {process.returncode}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_until_it_listens(port: int) -> None:
    """A server imports and starts meanwhile."""
    end = time.monotonic() + SERVER_START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > end:
            raise SystemExit("the server did not start")
        time.sleep(0.05)


def environment(checkout: Path | None = None) -> dict[str, str]:
    """The environment of a process that imports the package of a checkout, from byte code."""
    changed = dict(os.environ)
    changed.pop("PYTHONDONTWRITEBYTECODE", None)
    if checkout is not None:
        changed["PYTHONPATH"] = str(checkout.resolve())
    return changed


def package() -> Path:
    """The package that this process has imported."""
    return Path(str(sys.modules["taskmanager"].__file__)).parent


def lacking(*packages: str) -> list[str]:
    """Return what has to be installed first for a server of its own and these packages."""
    wanted = [f"pip install {each}" for each in packages if find_spec(each.partition("[")[0]) is None]
    if not wanted:
        from tests.servers import find_binaries  # it needs psycopg

        wanted = [] if find_binaries() else ["apt install postgresql"]
    return [f"Not measured: {each}" for each in wanted]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@contextmanager
def database(options: Options, copy_of: Path | None = None) -> Iterator[Path]:
    """The path of a database in a directory of its own, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="taskmanager-bench-", dir=options.directory) as folder:
        path = Path(folder) / "tasks.db"
        if copy_of is not None:
            # With the locks of those who died: without them nobody could know that they did.
            shutil.copytree(copy_of.parent, folder, dirs_exist_ok=True)
            with path.open("rb") as copied:
                os.fsync(copied.fileno())  # or the first commit would wait for the whole copy
        yield path


def prepared(options: Options, name: str, build: Callable[[Path], None]) -> Path:
    """The path of a database that is built once, for all parts that ask for it with this package."""
    assert options.shared is not None
    path = options.shared / name / "tasks.db"
    if not path.exists():
        path.parent.mkdir(parents=True)
        build(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


_ENDED: Final = """
WITH RECURSIVE number (n, at) AS (
    SELECT 1, :first_us UNION ALL SELECT n + 1, at + :between_us FROM number WHERE n < :count
)
INSERT INTO taskmanager_tasks (id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at,
    started_at, completed_at, failed_at, error_code, result, start_count, task_options, created_at, updated_at)
SELECT printf('%036d', n), 'app.jobs:task_' || (n % 20), 'default', 50, '[]', '{}',
    iif(n % 50, 'COMPLETED', 'FAILED'), at, at, at, iif(n % 50, at, NULL), iif(n % 50, NULL, at),
    iif(n % 50, NULL, 'REFUSED'), iif(n % 50, '{"ok":null}', NULL), 1, '{"persist":true}', at, at
FROM number
"""
_ATTEMPTS: Final = """
INSERT INTO taskmanager_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at, error_code,
    created_at)
SELECT id, 1, status, 0, started_at, updated_at, error_code, created_at FROM taskmanager_tasks
"""
BETWEEN_US: Final = 20_000
"""The history that is made up has fifty tasks a second, of twenty functions; one of fifty failed."""


def make_history(path: Path, count: int, *, age_us: int = 0) -> None:
    """Make a file with so many ended tasks, each with its attempt; the last one ended `age_us` ago."""
    from taskmanager import TaskManager

    async def make_tables() -> None:
        async with TaskManager(path):
            pass

    asyncio.run(make_tables())
    if count:
        first_us = time.time_ns() // 1000 - age_us - count * BETWEEN_US
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(_ENDED, {"first_us": first_us, "between_us": BETWEEN_US, "count": count})
            connection.execute(_ATTEMPTS)


# The bare TaskGroup, and the clocks.


async def no_op() -> None:
    """The task of most benchmarks."""


async def bare_bounded(count: int, body: Callable[[], Awaitable[None]] = no_op) -> None:
    """`count` tasks in a TaskGroup, `BOUND` at a time."""
    semaphore = asyncio.Semaphore(BOUND)

    async def one() -> None:
        async with semaphore:
            await body()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())


class Watch:
    """A stopwatch for one run, to be used in the thread of the loop."""

    def __init__(self) -> None:
        gc.collect()
        self._began = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), time.thread_time(), time.process_time()

    def figures(self, count: int) -> dict[str, float]:
        """What `count` tasks took until now: their rate, and µs of processor time per task.

        A busy machine disturbs the times less than the rate. `others_us` is what all threads but that of the loop took.
        """
        wall_s, loop_s, process_s = (now - began for now, began in zip(self._now(), self._began, strict=True))
        return {
            "per_s": count / wall_s,
            "loop_us": loop_s / count * 1e6,
            "others_us": (process_s - loop_s) / count * 1e6,
            "process_us": process_s / count * 1e6,
        }


# The answer.


def _row(found: Found) -> dict[str, str]:
    line, median = found.line, statistics.median(found.quoted)
    sign, unit = "+" if line.quote == "difference" and median > 0 else "", "" if line.is_ratio else f" {line.unit}"
    return {
        "what": line.what,
        "this": f"{_median(found.ours)} {line.unit}",
        "base": _median(found.base),
        "measured": f"{sign}{_figure(median)}{unit}",
        "lowest – highest": f"{_figure(min(found.quoted))} – {_figure(max(found.quoted))}",
        "CPU": _median(found.processor),
        "must": line.must,
        "wish": line.wish,
        "reached": _reached(median, line),
        "other": _median(found.other),
        "this / other": _median(ratios(found.ours, found.other)) if found.other else "",
    }


def _median(values: Sequence[float]) -> str:
    return _figure(statistics.median(values)) if values else ""


def _reached(value: float, line: Line) -> str:
    if not line.must:
        return ""
    if line.wish and _holds(value, line.wish):
        return "wish"
    return "yes" if _holds(value, line.must) else "NO"


def _holds(value: float, bound: str) -> bool:
    sign, number = bound.split()[:2]
    return value >= float(number) if sign == ">=" else value <= float(number)


def show(title: str, rows: Sequence[Mapping[str, str]], columns: Sequence[str], notes: Sequence[str] = ()) -> None:
    """Print rows as a table."""
    from rich.console import Console  # not at the top: the process of a part needs no tables
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in ("what", "file") else "right")
    for row in rows:
        table.add_row(*(row.get(name, "") for name in columns))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    console.print(table)
    for text in notes:
        console.print(text)


def _print(doc: str | None, options: Options, rows: Sequence[Mapping[str, str]], notes: Sequence[str]) -> None:
    columns = ["what", "this", "base", "measured", "lowest – highest", "CPU", "must", "wish", "reached"]
    if options.against is not None:
        columns[2:2] = ["other", "this / other"]
    size = ", --quick" if options.is_quick else ""
    last = f"Medians of {options.rounds} rounds{size}; {machine(options.directory)}\n"
    show((doc or "").splitlines()[0], rows, columns, (*notes, last))


def _figure(value: float) -> str:
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}" if size < 1 else f"{value:.2f}"


def machine(directory: Path) -> str:
    """What a figure depends on besides the code."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores "
        f"(load {load:.1f}), {filesystem(directory)}, {platform.system()} {platform.machine()}"
    )


def filesystem(directory: Path) -> str:
    """The type of the filesystem that `directory` is on."""
    import psutil

    target = str(directory.resolve())
    best, kind = "", "unknown filesystem"
    for each in psutil.disk_partitions(all=True):
        mount = each.mountpoint
        if (target == mount or target.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, each.fstype
    return kind
