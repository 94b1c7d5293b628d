"""How long does the server take for each page, on a file with a million tasks that gets a thousand more every second?

`taskmanager web` serves a copy of the file of `dashboard_file`. An application of its own runs tasks on it. Each look
comes so long after the last one that nothing is shared with it. The first look of a process is a line of its own: it
loads modules and compiles templates.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote
from urllib.request import urlopen

from _harness import Figures, Line, Options, database, free_port, percentile, run, start_part, wait_until_it_listens
from dashboard_file import MANY, dashboard_file

from taskmanager import TaskManager

LOOKS: Final = 8
APART_S: Final = 1.1
PAGES: Final = {
    "overview": "",
    "tasks": "tasks",
    "tasks that failed": "tasks?status=FAILED",
    "tasks of one function": "tasks?task=app.jobs:task_150",
    "tasks of a function that is not there": "tasks?task=nothing",
    "tasks with a tag": "tasks?tag=customer:42",
    "tasks with a text": "tasks?text=user4242",
    "failures": "failures",
    "queues": "queues",
    "schedules": "schedules",
    "workflows": "workflows",
    "instances": "instances",
    "question before a retry": "bulk/retry?status=FAILED",
}
TASKS_PER_S: Final = 1_000
MUST: Final = "<= 100"


def load_part(options: Options) -> Figures:
    """Run tasks until SIGTERM, as many a second as it is told."""
    manager = TaskManager(options.given)

    @manager.task(persist=True, name="app.jobs:task_1")
    async def no_op(number: int) -> None: ...

    async def main() -> None:
        began, sent = time.perf_counter(), 0
        while True:
            due = int((time.perf_counter() - began) * TASKS_PER_S)
            for number in range(sent, due):
                no_op.enqueue(number)
            sent = due
            await asyncio.sleep(0.01)

    manager.run(main)
    return {}


@contextmanager
def served(path: Path) -> Iterator[str]:
    """Serve the file, and return the address."""
    port = free_port()
    command = [sys.executable, "-m", "taskmanager", "web", "--db", str(path), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until_it_listens(port)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait()


def look_ms(address: str) -> float:
    """How long a page takes, to its last byte."""
    began = time.perf_counter()
    with urlopen(address) as answer:
        answer.read()
    return (time.perf_counter() - began) * 1000


def pages_part(options: Options) -> Figures:
    """Look at each page a few times."""
    with database(options, copy_of=dashboard_file(options.size(*MANY))) as path:
        load = start_part(__file__, options, "load", str(path))
        try:
            with served(path) as address:
                time.sleep(APART_S)
                first_ms = look_ms(address)
                took = {name: _looks(address + quote(page, safe="?=&:")) for name, page in PAGES.items()}
        finally:
            load.terminate()
            load.wait()
    medians = {name: statistics.median(each) for name, each in took.items()}
    every = [each for looks in took.values() for each in looks]
    return {**medians, "first": first_ms, "p95": percentile(every, 95), "worst": max(every)}


def _looks(address: str) -> list[float]:
    found = []
    for _ in range(LOOKS):
        time.sleep(APART_S)
        found.append(look_ms(address))
    return found


PARTS = {"pages": pages_part, "load": load_part}
LINES = [
    *(Line(f"{name}, median", "pages", name, "ms", quote="value", must=MUST) for name in PAGES),
    Line("all pages, 95th percentile", "pages", "p95", "ms", quote="value", must=MUST),
    Line("all pages, the longest look", "pages", "worst", "ms", quote="value"),
    Line("the first look of a process, at the overview", "pages", "first", "ms", quote="value"),
]
NOTES = [f"{TASKS_PER_S:,} tasks a second run beside it, in another process; looks stand {APART_S} s apart"]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
