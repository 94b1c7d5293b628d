"""How fast is the same no-op in libraries that somebody could choose instead, and what does each of them promise?

Each library runs in an environment and in processes of its own. They take turns, so that a busy machine disturbs all of
them alike. Each is compared with the contender of ours that promises at least as much, measured right beside it.

    python -m benchmarks.peers.run --quick
    python -m benchmarks.peers.run --only huey,litequeue
    python -m benchmarks.peers.run --write docs/benchmarks.md
"""

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks._harness import filesystem
from benchmarks.peers.contenders import CONTENDERS, chosen
from benchmarks.peers.environments import ROOT, NotInstalled, interpreter_of
from benchmarks.peers.interface import CONCURRENCY, Contender
from benchmarks.peers.report import OURS, Pair, Results, markdown, written_into

REPETITIONS = 5
QUICK_PART = 10
PATIENCE_S = 300


class MeasureFailed(Exception):
    """A process that found nothing; the message says why."""


class Versions(NamedTuple):
    """What a contender ran on."""

    python: str
    sqlite: str


@dataclass(frozen=True, slots=True)
class Runner:
    """Starts the measures, and keeps what it learns about the machine."""

    folder: Path
    part: int
    """The sizes are divided by it."""
    interpreters: Mapping[str, Path]
    """By the name of the environment."""
    versions: dict[str, Versions] = field(default_factory=dict)
    commits_ms: list[float] = field(default_factory=list)

    def measure(self, contender: Contender, measure: str) -> dict[str, float]:
        """Measure once, in a process and a folder of their own."""
        work = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            if measure == "restart":
                shutil.copytree(self.filled(contender), work, dirs_exist_ok=True)
            os.sync()  # the disk is done with what was written before
            self.commits_ms.append(plain_commit_ms(self.folder))
            return self.call(contender, measure, work)
        finally:
            shutil.rmtree(work)

    def filled(self, contender: Contender) -> Path:
        """A folder with the file of a start with waiting tasks, written once and copied for each start."""
        folder = self.folder / f"filled, {contender.name}"
        if not folder.exists():
            folder.mkdir()
            self.call(contender, "fill", folder)
        return folder

    def call(self, contender: Contender, measure: str, folder: Path) -> dict[str, float]:
        """Run process.py with the interpreter of the contender."""
        sizes = {"throughput": contender.count, "single": contender.samples, "steps": contender.steps}
        least = CONCURRENCY if measure == "steps" else 10
        count = max(sizes.get(measure, contender.waiting) // self.part, least)
        command = [str(self.interpreters[contender.environment]), "-m", "benchmarks.peers.process"]
        command += [contender.name, measure, str(folder), "--count", str(count)]
        command += ["--ended", str(contender.ended // self.part), "--spawned-at", repr(time.monotonic())]
        # Everyone starts from byte code, as for users.
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=PATIENCE_S
            )
        except subprocess.TimeoutExpired:
            raise MeasureFailed(f"not ready after {PATIENCE_S} s") from None
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"values"')]
        if not lines:
            raise MeasureFailed((done.stderr.strip().splitlines() or ["no output"])[-1])
        found = json.loads(lines[-1])
        self.versions[contender.environment] = Versions(found["python"], found["sqlite"])
        values: dict[str, float] = found["values"]
        return values


def installed(contenders: Sequence[Contender], python: str, failures: dict[str, str]) -> dict[str, Path]:
    """The interpreters of the environments that can be made. Who has none is left out, and why is noted."""
    found: dict[str, Path] = {}
    for name in dict.fromkeys(each.environment for each in contenders):
        say(f"environment of {name}")
        try:
            found[name] = interpreter_of(name, python)
        except NotInstalled as error:
            failures |= {each.name: str(error) for each in contenders if each.environment == name}
    return found


def turns(contenders: Sequence[Contender], repetitions: int) -> Iterator[tuple[int, str, Contender]]:
    """Who measures what when. All take turns at each measure, and each repetition begins with another one."""
    for turn in range(repetitions):
        shift = turn * len(contenders) // repetitions
        order = [*contenders[shift:], *contenders[:shift]]
        yield from ((turn, "throughput", each) for each in order if each.count)
        yield from ((turn, "single", each) for each in order if each.samples)
        yield from ((turn, "restart", each) for each in order if each.waiting)
        yield from ((turn, "steps", each) for each in order if each.steps)


def measure_all(runner: Runner, contenders: Sequence[Contender], repetitions: int, failures: dict[str, str]) -> Results:
    """Measure everything of everyone, each time beside ours. A measure that fails is noted, and the others go on."""
    pairs: list[Pair] = []
    for turn, measure, each in turns([each for each in contenders if each.against], repetitions):
        say(f"{turn + 1} of {repetitions}: {each.name}, {measure}")
        found: dict[str, dict[str, float]] = {}
        both = [CONTENDERS[str(each.against)], each]
        for contender in both if turn % 2 == 0 else reversed(both):
            try:
                found[contender.name] = runner.measure(contender, measure)
            except MeasureFailed as error:
                say(f"failed: {error}")
                failures[f"{contender.name}, {measure},"] = str(error)
        pairs.append(Pair(each.name, found.get(each.name, {}), found.get(str(each.against), {})))
    scale = f"{repetitions} repetitions" + (f" at 1/{runner.part} of the sizes" if runner.part > 1 else "")
    return Results(pairs, failures, facts(runner, scale))


def facts(runner: Runner, scale: str) -> str:
    """On what, when and how often it was measured."""
    python = statistics.mode(each.python for each in runner.versions.values())
    sqlite = statistics.mode(each.sqlite for each in runner.versions.values())
    others = [f"; {each.sqlite} for {name}" for name, each in runner.versions.items() if each.sqlite != sqlite]
    return (
        f"Measured on {datetime.now(UTC).date()} in {scale}, on {os.cpu_count()} cores of {os.uname().machine} with "
        f"{os.uname().sysname} and {filesystem(runner.folder)}. A synced commit of plain `sqlite3` took "
        f"{statistics.median(runner.commits_ms):.2g} ms there. Python {python}, SQLite {sqlite}{''.join(others)}."
    )


def plain_commit_ms(folder: Path, count: int = 20) -> float:
    """How long a synced commit of one row takes here and now."""
    took_ms = []
    with closing(sqlite3.connect(folder / "plain.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS rows (text TEXT) STRICT")
        for _ in range(count):
            began = time.monotonic()
            connection.execute("INSERT INTO rows VALUES ('no-op')")
            took_ms.append((time.monotonic() - began) * 1e3)
    return statistics.median(took_ms)


def say(text: str) -> None:
    """Tell what is going on: all of it takes long."""
    print(text, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, for a first look")
    parser.add_argument("--only", default="", help="parts of names, with commas between them")
    parser.add_argument("--repetitions", type=int, help=f"default {REPETITIONS}, with --quick 2")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of all environments")
    parser.add_argument("--dir", help="where the databases are made; default: the temporary folder")
    parser.add_argument("--write", type=Path, help="a page whose tables a whole run replaces")
    return parser.parse_args()


def main() -> None:
    """Measure, and print or write the tables."""
    options = parse_options()
    failures: dict[str, str] = {}
    wanted = chosen([word for word in options.only.split(",") if word])
    interpreters = installed(wanted, options.python, failures)
    if OURS not in interpreters:
        raise SystemExit("\n".join(f"{name}: {why}" for name, why in failures.items()) or "nobody has such a name")
    contenders = [each for each in wanted if each.environment in interpreters]
    with tempfile.TemporaryDirectory(prefix="taskmanager-peers-", dir=options.dir) as folder:
        runner = Runner(Path(folder), QUICK_PART if options.quick else 1, interpreters)
        repetitions = options.repetitions or (2 if options.quick else REPETITIONS)
        results = measure_all(runner, contenders, repetitions, failures)
    print(markdown(results))
    if options.write and not (options.quick or options.only):
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(written_into(page, results), encoding="utf-8")


if __name__ == "__main__":
    main()
