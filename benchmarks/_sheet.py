"""What every benchmark shares: options, interleaved repetitions, medians, the bare TaskGroup, and the table.

A benchmark asks one question and asserts nothing. The library and the bare `asyncio.TaskGroup` take turns in the same
run, so that a noisy machine disturbs both alike, and the ratio is quoted beside the median.
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
from typing import Any, NamedTuple, TypeVar

import psutil
from rich.console import Console
from rich.table import Table

T = TypeVar("T")

BOUND = 100
"""Tasks at a time: the default concurrency of a manager, and the semaphore of the bounded TaskGroup."""
REPETITIONS = 5
_PLAIN_WIDTH = 140


class Options(NamedTuple):
    """How a benchmark was called."""

    is_quick: bool
    repetitions: int
    directory: Path
    child: str | None

    def size(self, full: int, quick: int) -> int:
        """The full size of a benchmark, or its quick one."""
        return quick if self.is_quick else full


def parse_options(doc: str | None) -> Options:
    """Read the command line; the first line of the benchmark's docstring is its question."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small numbers, for a first look")
    parser.add_argument("--repetitions", type=int, default=None, help=f"default {REPETITIONS}, with --quick 2")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where the databases are made")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    # Stops with waiting tasks say so at ERROR; without a handler that would be printed between the figures.
    logging.getLogger("taskmanager").addHandler(logging.NullHandler())
    repetitions = given.repetitions or (2 if given.quick else REPETITIONS)
    return Options(given.quick, repetitions, given.dir, given.child)


def interleaved(contenders: Mapping[str, Callable[[], T]], repetitions: int) -> dict[str, list[T]]:
    """Run every contender once per repetition, each time beginning with another one."""
    results: dict[str, list[T]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(repetitions):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            results[name].append(contenders[name]())
    return results


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


def run_child(file: str, options: Options, child: str) -> dict[str, Any]:
    """Run this benchmark's part `child` in a fresh process; it prints one JSON object."""
    return finish_child(start_child(file, options, child))


def start_child(file: str, options: Options, child: str) -> "subprocess.Popen[str]":
    """Begin to run a part in a fresh process."""
    command = [sys.executable, file, "--child", child, "--dir", str(options.directory)]
    return subprocess.Popen([*command, "--quick"] if options.is_quick else command, stdout=subprocess.PIPE, text=True)


def finish_child(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for a part, and read what it found."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a child process of the benchmark ended with {process.returncode}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


# The bare TaskGroup.


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


async def bare_unbounded(count: int, body: Callable[[], Any] = no_op) -> None:
    """`count` tasks in a TaskGroup, all at once."""
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(body())


class Rate(NamedTuple):
    """How fast tasks went. The times are µs of processor per task, which a busy machine disturbs less than the rate."""

    per_s: float
    loop_us: float
    process_us: float


class Watch:
    """A stopwatch for one run, to be used in the thread of the loop."""

    def __init__(self) -> None:
        self._began = (time.perf_counter(), time.thread_time(), time.process_time())

    def rate(self, count: int) -> Rate:
        """What `count` tasks took until now."""
        wall_s, loop_s, process_s = self._began
        return Rate(
            count / (time.perf_counter() - wall_s),
            (time.thread_time() - loop_s) / count * 1e6,
            (time.process_time() - process_s) / count * 1e6,
        )


def bare_rate(runner: Callable[[int], Awaitable[None]], count: int) -> Rate:
    """The rate of one of the two above."""

    async def main() -> Rate:
        watch = Watch()
        await runner(count)
        return watch.rate(count)

    return asyncio.run(main())


# The answer.


class Sheet:
    """The table of one question."""

    def __init__(self, doc: str | None, options: Options) -> None:
        self._options = options
        self._notes: list[str] = []
        self._table = Table(title=(doc or "").splitlines()[0], title_justify="left", title_style="bold")
        self._table.add_column("what")
        for name in ("median", "lowest – highest", "unit", "target", "ratio to bare"):
            self._table.add_column(name, justify="left" if name == "unit" else "right")

    def add(
        self, what: str, samples: Sequence[float], unit: str, *, target: str = "", bare: Sequence[float] | None = None
    ) -> None:
        """One line: the samples are one value per repetition, `bare` those that they are compared with."""
        median = statistics.median(samples)
        spread = f"{_figure(min(samples))} – {_figure(max(samples))}"
        ratio = ""
        if bare is not None:
            base = statistics.median(bare)
            ratio = _figure(median / base) if base else "–"
        self._table.add_row(what, _figure(median), spread, unit, target, ratio)

    def add_processor(self, what: str, rates: Sequence[Rate], bare: Sequence[Rate]) -> None:
        """Two lines: the processor time per task, of the loop's thread and of all threads."""
        for name in ("loop_us", "process_us"):
            thread = "loop thread" if name == "loop_us" else "all threads"
            samples = [getattr(each, name) for each in rates]
            self.add(f"{what}, CPU of {thread}", samples, "µs/task", bare=[getattr(each, name) for each in bare])

    def fact(self, what: str, value: str, *, target: str = "") -> None:
        """One line that is no measurement."""
        self._table.add_row(what, value, "", "", target, "")

    def note(self, text: str) -> None:
        """A line below the table."""
        self._notes.append(text)

    def print(self) -> None:
        """Show the table, the notes, and what it was measured on."""
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_PLAIN_WIDTH)
        console.print(self._table)
        size = ", --quick" if self._options.is_quick else ""
        for text in self._notes:
            console.print(text)
        console.print(
            f"{self._options.repetitions} interleaved repetitions{size}; {machine(self._options.directory)}\n"
        )


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
    target = str(directory.resolve())
    best, kind = "", "unknown filesystem"
    for each in psutil.disk_partitions(all=True):
        mount = each.mountpoint
        if (target == mount or target.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, each.fstype
    return kind
