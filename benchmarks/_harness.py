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
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

BOUND: Final = 100
"""Tasks at a time: the default concurrency of a manager, and the semaphore of the bounded TaskGroup."""
ROUNDS: Final = 7
ROUNDS_QUICK: Final = 3
HERE: Final = Path(__file__).resolve().parent.parent
_PLAIN_WIDTH: Final = 170


class Options(NamedTuple):
    """How a benchmark was called."""

    is_quick: bool
    rounds: int
    directory: Path
    against: Path | None
    only: str
    json: Path | None

    def size(self, full: int, quick: int) -> int:
        """The full size of a benchmark, or its quick one."""
        return quick if self.is_quick else full


Figures = Mapping[str, float]
Part = Callable[[Options], Figures]


class Line(NamedTuple):
    """One line of the table: what a part measured, and what it is compared with.

    `must` and `wish` are bounds of the ratio (of the difference, or of the value itself, if that is what is quoted),
    as ">= 0.3" or "<= 2".
    """

    what: str
    part: str
    figure: str
    unit: str
    base: str | None = None
    base_figure: str | None = None
    quote: str = "ratio"
    must: str = ""
    wish: str = ""

    def judged(self, ours: float, base: float) -> float:
        """The number that is held against the targets."""
        if self.quote == "ratio" and self.base is not None:
            return ours / base if base else math.nan
        return ours - base if self.quote == "difference" else ours


class Found(NamedTuple):
    """What one line saw in all rounds."""

    line: Line
    ours: list[float]
    base: list[float]
    other: list[float]

    def note(self, figures: Mapping[tuple[str, Path], Figures], against: Path | None) -> None:
        """Take over what one round found."""
        part, base, figure = self.line.part, self.line.base, self.line.figure
        self.ours.append(figures[part, HERE][figure])
        if base is not None:
            self.base.append(figures[base, HERE][self.line.base_figure or figure])
        if against is not None:
            self.other.append(figures[part, against][figure])

    @property
    def judged(self) -> list[float]:
        """One number per round."""
        return [self.line.judged(*each) for each in zip(self.ours, self.base or self.ours, strict=True)]

    @property
    def against(self) -> list[float]:
        """This checkout as a multiple of the other one, per round."""
        return [ours / other if other else math.nan for ours, other in zip(self.ours, self.other, strict=False)]


def run(
    doc: str | None, file: str, parts: Mapping[str, Part], lines: Sequence[Line], notes: Sequence[str] = ()
) -> None:
    """Measure and print the table, or be the process of one part."""
    options, part = _parse(doc)
    if part is not None:
        # Stops with waiting tasks say so at ERROR; without a handler that would be printed between the figures.
        logging.getLogger("taskmanager").addHandler(logging.NullHandler())
        figures = parts[part](options)
        print(json.dumps({"package": sys.modules["taskmanager"].__file__, **figures}))
        return
    chosen = [line for line in lines if options.only in line.what]
    found = _race(file, options, chosen)
    _print(doc, options, found, notes)
    if options.json is not None:
        rows = [{"file": Path(file).name, **_row(each)} for each in found]
        options.json.write_text(json.dumps(rows), encoding="utf-8")


def _parse(doc: str | None) -> tuple[Options, str | None]:
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small numbers, for a first look")
    parser.add_argument("--rounds", type=int, default=None, help=f"default {ROUNDS}, with --quick {ROUNDS_QUICK}")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where the databases are made")
    parser.add_argument("--against", type=Path, default=None, help="another checkout, to compare with")
    parser.add_argument("--only", default="", help="only the lines that contain this text")
    parser.add_argument("--json", type=Path, default=None, help="write the lines into this file, too")
    parser.add_argument("--part", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rounds = given.rounds or (ROUNDS_QUICK if given.quick else ROUNDS)
    return Options(given.quick, rounds, given.dir, given.against, given.only, given.json), given.part


# The rounds.


def _race(file: str, options: Options, lines: Sequence[Line]) -> list[Found]:
    """Run all heats in every round. Parts that are compared are in one heat, where each runs once per round."""
    found = [Found(line, [], [], []) for line in lines]
    for number in range(options.rounds):
        for heat in _heats(lines):
            figures = {}
            for runner in _order(heat, lines, options.against, number):
                figures[runner] = run_part(file, options, *runner)
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


def run_part(file: str, options: Options, part: str, package: Path = HERE) -> dict[str, Any]:
    """Run one part in a fresh process, with the package of a checkout."""
    found = finish_part(start_part(file, options, part, package))
    if not Path(found.pop("package")).is_relative_to(package.resolve()):
        raise SystemExit(f"{package} was to be measured, and another package was imported")
    return found


def start_part(file: str, options: Options, part: str, package: Path = HERE) -> "subprocess.Popen[str]":
    """Begin to run a part in a fresh process."""
    command = [sys.executable, file, "--part", part, "--dir", str(options.directory)]
    return subprocess.Popen(
        [*command, "--quick"] if options.is_quick else command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(package),
    )


def finish_part(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for a part, and read what it found."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a part of the benchmark ended with {process.returncode}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def environment(package: Path) -> dict[str, str]:
    """The environment of a process that imports the package of a checkout, from byte code."""
    changed = {**os.environ, "PYTHONPATH": str(package.resolve())}
    changed.pop("PYTHONDONTWRITEBYTECODE", None)
    return changed


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
            shutil.copyfile(copy_of, path)
        yield path


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
    line = found.line
    median = statistics.median(found.judged)
    measured = f"{_figure(median)}{'' if line.base and line.quote == 'ratio' else ' ' + line.unit}"
    return {
        "what": line.what,
        "ours": f"{_figure(statistics.median(found.ours))} {line.unit}",
        "base": f"{_figure(statistics.median(found.base))}" if found.base else "",
        "measured": f"{'+' if line.quote == 'difference' and median > 0 else ''}{measured}",
        "spread": f"{_figure(min(found.judged))} – {_figure(max(found.judged))}",
        "must": line.must,
        "wish": line.wish,
        "reached": _reached(median, line),
        "other": f"{_figure(statistics.median(found.other))}" if found.other else "",
        "this/other": f"{_figure(statistics.median(found.against))}" if found.other else "",
    }


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
        table.add_row(*(row[name] for name in columns))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    console.print(table)
    for text in notes:
        console.print(text)


def _print(doc: str | None, options: Options, found: Sequence[Found], notes: Sequence[str]) -> None:
    columns = ["what", "ours", "base", "measured", "spread", "must", "wish", "reached"]
    if options.against is not None:
        columns[2:2] = ["other", "this/other"]
    size = ", --quick" if options.is_quick else ""
    last = f"Medians of {options.rounds} rounds{size}; {machine(options.directory)}\n"
    show((doc or "").splitlines()[0], [_row(each) for each in found], columns, (*notes, last))


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
