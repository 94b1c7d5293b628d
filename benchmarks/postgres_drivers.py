"""psycopg in a thread or asyncpg in the loop: what does a commit cost on PostgreSQL, alone and in batches of 500?

psycopg runs as SQLite does here: a thread takes work from a queue, and hands the result back to the loop. asyncpg runs
in the loop. A commit alone inserts one task; its latency is measured while the loop idles, and while a coroutine
computes all the time and lets others in after each millisecond. A batch inserts 500 tasks and ends the 500 before, and
asks which of them it has ended; the columns are made of the tasks where the driver runs. For psycopg there are four
ways to hand over the columns, and each can be sent in a pipeline, which is one way to the server and back. `held` is by
how much the loop came late, at the worst of a thousand looks.

Needs a PostgreSQL server, the extra `postgres`, and `pip install asyncpg`.
"""

import asyncio
import importlib
import json
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psutil
from _harness import Figures, Line, Options, Part, Watch, lacking, percentile, run

import taskmanager  # noqa: F401  # the harness asks which checkout is measured

if TYPE_CHECKING:
    import psycopg

BATCH: Final = 500
ALONE, BATCHES = (2_000, 200), (200, 20)
"""Commits of one task, and batches, in full and quickly."""
WARM_UP: Final = 10
PIECE_S: Final = 0.001

COLUMNS: Final = {
    "id": "text",
    "task_name": "text",
    "queue_name": "text",
    "priority": "integer",
    "args": "text",
    "kwargs": "text",
    "status": "text",
    "sent_at": "bigint",
    "task_options": "text",
    "start_count": "integer",
    "owner": "text",
    "tags": "text",
}
"""What is handed over: instants in microseconds, JSON as text."""
TABLE: Final = """
CREATE TABLE tasks (
    id text PRIMARY KEY, task_name text NOT NULL, queue_name text NOT NULL, priority integer NOT NULL,
    args text NOT NULL, kwargs text NOT NULL, status text NOT NULL, sent_at timestamptz NOT NULL,
    task_options jsonb NOT NULL, start_count integer NOT NULL, owner text, tags jsonb,
    completed_at timestamptz, result text
) WITH (fillfactor = 70);
CREATE INDEX ON tasks (task_name, queue_name, priority, id) WHERE status = 'PENDING';
CREATE INDEX ON tasks (owner) WHERE status = 'RUNNING';
ALTER DATABASE postgres SET enable_hashjoin = off;
ALTER DATABASE postgres SET enable_mergejoin = off;
ALTER DATABASE postgres SET enable_seqscan = off
"""
"""The table is empty when the statements are planned. Without the settings the plans that are kept read all of it."""
STORED: Final = ", ".join(
    {"sent_at": "'epoch'::timestamptz + sent_at * interval '1 microsecond'"}.get(name)
    or (f"{name}::jsonb" if name in ("task_options", "tags") else name)
    for name in COLUMNS
)
INSERT: Final = f"INSERT INTO tasks ({', '.join(COLUMNS)}) SELECT {STORED} FROM "
UPDATE: Final = """
UPDATE tasks SET status = 'COMPLETED', result = new.result,
    completed_at = 'epoch'::timestamptz + new.completed_at * interval '1 microsecond'
FROM {} WHERE tasks.id = new.id AND status = new.was AND start_count = new.start_was RETURNING tasks.id
"""
"""`status = 'RUNNING'` instead of a column would let the planner read all of a partial index, for each of the rows."""
ENDED: Final = {"id": "text", "was": "text", "start_was": "integer", "completed_at": "bigint", "result": "text"}

Row = tuple[str | int | None, ...]
Commit = Callable[[Sequence[Row], Sequence[Row]], Awaitable[int]]
"""Insert rows and end others; returns how many were ended."""


def started(first: int, number: int = BATCH) -> list[Row]:
    """Return tasks that run."""
    at = time.time_ns() // 1000
    keyword = json.dumps({"name": 'Zoë "Z" O\'Hara', "path": "C:\\temp"})
    tail = ("default", 50), (keyword, "RUNNING", at, '{"persist":true}', 1, "01a2b3c4-host")
    return [
        (f"{each:036d}", "app.jobs:report", *tail[0], f"[{each}]", *tail[1], None if each % 2 else '{"user":"7"}')
        for each in range(first, first + number)
    ]


def ended(rows: Sequence[Row]) -> list[Row]:
    """Return the ends of tasks."""
    at = time.time_ns() // 1000
    return [(row[0], "RUNNING", 1, at, '{"ok":{"pages":12}}') for row in rows]


def statements(source: Callable[[dict[str, str]], str]) -> tuple[str, str]:
    """Return the two statements of a batch; `source` says where the rows come from."""
    return INSERT + source(COLUMNS), UPDATE.format(source(ENDED))


# Four ways to hand over columns. Each returns the parameters of a statement.


def of_arrays(placeholder: str, columns: dict[str, str]) -> str:
    """Return the rows of arrays."""
    arrays = ", ".join(f"{placeholder}::{kind}[]" for kind in columns.values())
    return f"unnest({arrays}) AS new ({', '.join(columns)})"


def numbered(columns: dict[str, str]) -> str:
    """Return the rows of arrays, with the placeholders of asyncpg."""
    arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(columns.values(), 1))
    return f"unnest({arrays}) AS new ({', '.join(columns)})"


def of_json(columns: dict[str, str]) -> str:
    """Return the rows of one text."""
    return f"json_to_recordset(%s) AS new ({', '.join(f'{name} {kind}' for name, kind in columns.items())})"


def as_lists(rows: Sequence[Row], columns: dict[str, str]) -> list[Any]:
    """Return one list for each column."""
    return [list(column) for column in zip(*rows, strict=True)]


def as_literals(rows: Sequence[Row], columns: dict[str, str]) -> list[Any]:
    """Return one literal for each column. The two signs that separate and stand for NULL occur in no text here."""
    literals = []
    for column, kind in zip(zip(*rows, strict=True), columns.values(), strict=True):
        if kind == "text":
            joined = "\2".join(["\1" if value is None else value for value in column])
            escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\2", '","')
            literals.append(f'{{"{escaped}"}}'.replace('"\1"', "NULL"))
        else:
            literals.append("{" + ",".join(map(str, column)) + "}")
    return literals


def as_json(rows: Sequence[Row], columns: dict[str, str]) -> list[Any]:
    """Return one text for all columns."""
    import msgspec

    return [msgspec.json.encode([dict(zip(columns, row, strict=True)) for row in rows]).decode()]


WAYS: Final[dict[str, tuple[tuple[str, str], Callable[[Sequence[Row], dict[str, str]], list[Any]]]]] = {
    "lists": (statements(partial(of_arrays, "%s")), as_lists),
    "binary lists": (statements(partial(of_arrays, "%b")), as_lists),
    "literals": (statements(partial(of_arrays, "%s")), as_literals),
    "json": (statements(of_json), as_json),
}


# The two drivers.


class Thread:
    """A thread that does one piece of work after the other, as the connection to a SQLite file has it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (taken := self._work.get()) is not None:
            work, future = taken
            # What fails here ends the benchmark: nobody waits for more than its time limit.
            self._loop.call_soon_threadsafe(future.set_result, work())

    async def do(self, work: Callable[[], Any]) -> Any:
        """Do it in the thread, and return the result."""
        future = self._loop.create_future()
        self._work.put((work, future))
        return await future

    def close(self) -> None:
        """Let it end after what it has to do."""
        self._work.put(None)


def commit_in_thread(
    connection: "psycopg.Connection[Any]", way: str, pipelined: bool, rows: Sequence[Row], ends: Sequence[Row]
) -> int:
    """Insert and end in one transaction, in the thread of the connection."""
    (insert, update), handed_over = WAYS[way]
    together: AbstractContextManager[Any] = connection.pipeline() if pipelined else nullcontext()
    with connection.cursor() as inserting, connection.cursor() as updating:
        with together:
            connection.execute("BEGIN")
            inserting.execute(insert.encode(), handed_over(rows, COLUMNS), prepare=True)
            if ends:
                updating.execute(update.encode(), handed_over(ends, ENDED), prepare=True)
            connection.execute("COMMIT")
        return len(updating.fetchall()) if ends else 0


async def commit_in_loop(connection: Any, rows: Sequence[Row], ends: Sequence[Row]) -> int:
    """Insert and end in one transaction, in the loop."""
    insert, update = ASYNCPG
    async with connection.transaction():
        await connection.execute(insert, *as_lists(rows, COLUMNS))
        return len(await connection.fetch(update, *as_lists(ends, ENDED))) if ends else 0


ASYNCPG: Final = statements(numbered)
ONE: Final = f"INSERT INTO tasks ({', '.join(COLUMNS)}) SELECT {STORED} FROM "


class Driver:
    """One connection: `insert` commits one task, `commit` a batch. `server` is the process that serves it."""

    def __init__(self, insert: Callable[[Row], Awaitable[object]], commit: Commit, server: int) -> None:
        self.insert = insert
        self.commit = commit
        self.server = psutil.Process(server)


async def psycopg_driver(url: str, way: str = "lists", pipelined: bool = False) -> Driver:
    """Connect in a thread."""
    import psycopg

    thread = Thread()
    connection = await thread.do(partial(psycopg.connect, url, autocommit=True))
    values = ", ".join(f"%s::{kind}" for kind in COLUMNS.values())
    statement = f"{ONE} (SELECT {values}) AS new ({', '.join(COLUMNS)})".encode()
    pid = await thread.do(lambda: connection.info.backend_pid)
    return Driver(
        lambda row: thread.do(partial(connection.execute, statement, row, prepare=True)),
        lambda rows, ends: thread.do(partial(commit_in_thread, connection, way, pipelined, rows, ends)),
        pid,
    )


async def asyncpg_driver(url: str) -> Driver:
    """Connect in the loop."""
    connection = await importlib.import_module("asyncpg").connect(url)
    values = ", ".join(f"${number}::{kind}" for number, kind in enumerate(COLUMNS.values(), 1))
    statement = await connection.prepare(f"{ONE} (SELECT {values}) AS new ({', '.join(COLUMNS)})")
    pid = connection.get_server_pid()
    return Driver(lambda row: statement.fetch(*row), partial(commit_in_loop, connection), pid)


# The parts.


@contextmanager
def server() -> Iterator[str]:
    """A server with the table, at the address."""
    from tests.servers import Cluster

    cluster = Cluster.create()
    try:
        cluster.psql(TABLE)
        yield cluster.url()
    finally:
        cluster.destroy()


async def compute() -> None:
    """Keep the loop busy, and let others in after each piece."""
    while True:
        end = time.perf_counter() + PIECE_S
        while time.perf_counter() < end:
            pass
        await asyncio.sleep(0)


async def look(late_s: list[float]) -> None:
    """Note by how much the loop comes late."""
    while True:
        due = time.perf_counter() + PIECE_S
        await asyncio.sleep(PIECE_S)
        late_s.append(time.perf_counter() - due)


async def latencies(driver: Driver, number: int, ids: Iterator[int]) -> tuple[float, float]:
    """Return the median and the 95th percentile of commits of one task, in ms."""
    taken = []
    for each in ids:
        [row] = started(each, 1)
        began = time.perf_counter()
        await driver.insert(row)
        taken.append((time.perf_counter() - began) * 1e3)
        if len(taken) == number + WARM_UP:
            break
    return percentile(taken[WARM_UP:], 50), percentile(taken[WARM_UP:], 95)


def alone(connect: Callable[[str], Awaitable[Driver]], options: Options) -> Figures:
    """Commit one task after the other, in a loop that idles and in one that is busy."""

    async def measure(url: str) -> Figures:
        driver = await connect(url)
        number, ids = options.size(*ALONE), iter(range(10**9))
        idle = await latencies(driver, number, ids)
        busy = asyncio.create_task(compute())
        crowded = await latencies(driver, number // 4, ids)
        busy.cancel()
        return {"idle_p50": idle[0], "idle_p95": idle[1], "busy_p50": crowded[0], "busy_p95": crowded[1]}

    with server() as url:
        return asyncio.run(measure(url))


def batches(connect: Callable[[str], Awaitable[Driver]], options: Options) -> Figures:
    """Commit batches, each as soon as the one before it is committed."""

    async def measure(url: str) -> Figures:
        driver = await connect(url)
        number = options.size(*BATCHES)
        before: list[Row] = []
        late_s: list[float] = []
        looking = asyncio.create_task(look(late_s))
        watch, server_s = Watch(), 0.0
        for each in range(number + WARM_UP):
            if each == WARM_UP:
                late_s.clear()
                watch, server_s = Watch(), sum(driver.server.cpu_times()[:2])
            rows = started(each * BATCH)
            assert await driver.commit(rows, ended(before)) == len(before)
            before = rows
        figures = watch.figures(number * BATCH)
        server_us = (sum(driver.server.cpu_times()[:2]) - server_s) / (number * BATCH) * 1e6
        looking.cancel()
        held = {"held_p99_ms": percentile(late_s, 99) * 1e3, "held_ms": percentile(late_s, 99.9) * 1e3}
        return {**figures, **held, "server_us": server_us}

    with server() as url:
        return asyncio.run(measure(url))


def pipelined(way: str) -> str:
    return f"{way}, pipeline"


PSYCOPG: Final = {
    **{way: partial(psycopg_driver, way=way) for way in WAYS},
    **{pipelined(way): partial(psycopg_driver, way=way, pipelined=True) for way in WAYS},
}
PARTS: Final[dict[str, Part]] = {
    "psycopg alone": partial(alone, psycopg_driver),
    "asyncpg alone": partial(alone, asyncpg_driver),
    "asyncpg": partial(batches, asyncpg_driver),
    **{name: partial(batches, connect) for name, connect in PSYCOPG.items()},
}
LATENCIES: Final = {
    "idle_p50": "median, idle loop", "idle_p95": "95 %, idle loop", "busy_p50": "median, busy loop",
    "busy_p95": "95 %, busy loop",
}  # fmt: skip
FIGURES: Final = {
    "per_s": ("rate", "tasks/s"), "process_us": ("processor time", "µs/task"), "loop_us": ("of the loop", "µs/task"),
    "server_us": ("of the server", "µs/task"), "held_p99_ms": ("loop held, 99 %", "ms"),
    "held_ms": ("loop held", "ms"),
}  # fmt: skip
LINES: Final = [
    *(
        Line(f"one commit, psycopg to asyncpg: {what}", "psycopg alone", figure, "ms", "asyncpg alone")
        for figure, what in LATENCIES.items()
    ),
    *(
        Line(f"batch, psycopg with {name} to asyncpg: {what}", name, figure, unit, "asyncpg")
        for figure, (what, unit) in FIGURES.items()
        for name in PSYCOPG
    ),
]


if __name__ == "__main__":
    notes = lacking("psycopg", "asyncpg")
    run(__doc__, __file__, PARTS, [] if notes else LINES, notes)
