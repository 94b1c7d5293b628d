"""What does a task cost a PostgreSQL server: processor, write-ahead log, disk; and what does a long history cost?

The rates and sizes that `docs/postgresql.md` reckons with. `--rounds 1` is enough for the sizes, which do not vary.

The history is made of copies of one real task, with its attempt, spread over 30 days. Half of it is deleted by the
verb of the retention, in its batches. The last lines ask for rows by their ids, in one table and in one that has 30
partitions by `sent_at`: an id does not say in which partition its row is.

Needs a PostgreSQL server and the extra `postgres`.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import psutil
from _harness import Figures, Line, Options, Part, lacking, no_op, run

from taskmanager import RecoveryConfig, TaskManager

if TYPE_CHECKING:
    from tests.servers import Cluster

SCHEMA: Final = "jobs"
TASKS, TASKS_QUICK = 20_000, 4_000
WARM_UP: Final = 500
INSTANCES: Final = 4
IDLE_S, IDLE_S_QUICK = 20, 5
HISTORY, HISTORY_QUICK = 2_000_000, 50_000
BATCHES, BATCHES_QUICK = 20, 10
DAYS: Final = 30
DAY_US: Final = 86_400_000_000
PARTITIONED, PARTITIONED_QUICK = 300_000, 30_000
ASKED: Final = 3_000
MB: Final = 1_000_000
CONNECTIONS: Final = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
TABLES: Final = ("taskmanager_tasks", "taskmanager_task_attempts")
INSTANTS: Final = ("sent_at", "enqueued_at", "claimed_at", "started_at", "completed_at", "created_at", "updated_at")


@contextmanager
def server() -> "Iterator[Cluster]":
    """A server of its own."""
    from tests.servers import Cluster

    cluster = Cluster.create()
    try:
        yield cluster
    finally:
        cluster.destroy()


def ask(cluster: "Cluster", sql: str) -> Any:
    """The first value of the first row."""
    return cluster.psql(sql)[0][0]


def processor_s(cluster: "Cluster") -> float:
    """What the processes of the server have used, those that have ended meanwhile included."""
    server_process = psutil.Process(cluster.pid)
    ended = server_process.cpu_times()
    total = ended.children_user + ended.children_system
    for each in server_process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return float(total)


def size_of(cluster: "Cluster", what: str) -> int:
    """`pg_table_size` or `pg_indexes_size` of the tables that grow with each task, together."""
    return sum(int(ask(cluster, f"SELECT {what}('{SCHEMA}.{table}')")) for table in TABLES)


async def run_tasks(manager: TaskManager, task: Any, count: int) -> None:
    """Enqueue so many, and wait until all are written."""
    for _ in range(count):
        task.enqueue()
    await manager.join()
    await manager.flush()


async def tasks_of(cluster: "Cluster", count: int) -> Figures:
    """No-op tasks through one instance."""
    manager = TaskManager(cluster.url(SCHEMA))
    noop = manager.task(name="noop", persist=True)(no_op)
    async with manager:
        await run_tasks(manager, noop, WARM_UP)
        cluster.psql("CHECKPOINT")
        before = (time.perf_counter(), processor_s(cluster), ask(cluster, "SELECT pg_current_wal_insert_lsn()"))
        await run_tasks(manager, noop, count)
        took_s, used_s = time.perf_counter() - before[0], processor_s(cluster) - before[1]
        wal = int(ask(cluster, f"SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{before[2]}')"))
    return {"per_s": count / took_s, "server_us": used_s / count * 1e6, "wal_bytes": wal / count}


def per_task(options: Options) -> Figures:
    """Processor, log and rate of tasks on an empty schema."""
    with server() as cluster:
        return asyncio.run(tasks_of(cluster, options.size(TASKS, TASKS_QUICK)))


async def idle_of(cluster: "Cluster", seconds: float) -> Figures:
    async with AsyncExitStack() as stack:
        for _ in range(INSTANCES):
            await stack.enter_async_context(TaskManager(cluster.url(SCHEMA)))
        connections = int(
            ask(cluster, "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'")
        )
        await asyncio.sleep(seconds / 4)
        before_s = processor_s(cluster)
        await asyncio.sleep(seconds)
        used_s = processor_s(cluster) - before_s
    return {"ms_per_s": used_s / seconds / INSTANCES * 1000, "connections": connections / INSTANCES}


def idle(options: Options) -> Figures:
    """Instances that have nothing to do."""
    with server() as cluster:
        return asyncio.run(idle_of(cluster, options.size(IDLE_S, IDLE_S_QUICK)))


async def make_one(cluster: "Cluster") -> None:
    """The tables, and one task that has ended, of which the history is made."""
    manager = TaskManager(cluster.url(SCHEMA))
    noop = manager.task(name="noop", persist=True)(no_op)
    async with manager:
        await run_tasks(manager, noop, 1)


def copy_task(count: int) -> str:
    """SQL that makes so many copies of the one task and its attempt, sent one after the other over 30 days."""
    from taskmanager.store.sql.statements import ATTEMPT_COLUMNS, TASK_COLUMNS

    at = f"t.sent_at - {DAYS * DAY_US} + n * {DAYS * DAY_US // count}"
    new_id = f"lpad(to_hex(({at}) / 1000), 12, '0') || '-7000-8000-' || lpad(to_hex(n), 12, '0')"
    tasks = dict.fromkeys(INSTANTS, at) | {"id": new_id}
    attempts = dict.fromkeys(("started_at", "finished_at", "created_at"), at) | {"task_id": new_id}
    ranks = f"generate_series(1::bigint, {count}) AS n"
    return f"""
        SET search_path = {SCHEMA}; SET taskmanager.silent = 'on';
        INSERT INTO taskmanager_tasks ({", ".join(TASK_COLUMNS)})
            SELECT {", ".join(tasks.get(name, f"t.{name}") for name in TASK_COLUMNS)}
            FROM (SELECT * FROM taskmanager_tasks LIMIT 1) AS t, {ranks};
        INSERT INTO taskmanager_task_attempts ({", ".join(ATTEMPT_COLUMNS)})
            SELECT {", ".join(attempts.get(name, f"a.{name}") for name in ATTEMPT_COLUMNS)}
            FROM (SELECT * FROM taskmanager_task_attempts LIMIT 1) AS a
                JOIN taskmanager_tasks AS t ON t.id = a.task_id, {ranks};
    """


async def purge_batches(cluster: "Cluster", count: int) -> float:
    """The seconds of one batch of the retention, the median of so many."""
    from taskmanager.store.postgresql.address import Address
    from taskmanager.store.postgresql.store import PostgresStore
    from taskmanager.store.protocol import TaskFilter

    size = RecoveryConfig().retention_delete_batch_size
    cutoff = int(ask(cluster, f"SELECT max(sent_at) - {DAYS * DAY_US // 2} FROM {SCHEMA}.taskmanager_tasks"))
    store, took_s = PostgresStore(Address.of(cluster.url(SCHEMA))), []
    await store.open()
    try:
        for _ in range(count):
            began_s = time.perf_counter()
            assert await store.purge(TaskFilter(), cutoff, size)
            took_s.append(time.perf_counter() - began_s)
    finally:
        await store.close()
    return sorted(took_s)[count // 2]


def timed(cluster: "Cluster", sql: str) -> float:
    """The seconds of a statement."""
    began_s = time.perf_counter()
    cluster.psql(sql)
    return time.perf_counter() - began_s


def history(options: Options) -> Figures:
    """A schema that holds many ended tasks."""
    count = options.size(HISTORY, HISTORY_QUICK)
    with server() as cluster:
        cluster.set("max_wal_size", "4GB")
        asyncio.run(make_one(cluster))
        fill_s = timed(cluster, copy_task(count))
        vacuum = "; ".join(f"VACUUM (ANALYZE) {SCHEMA}.{table}" for table in TABLES)
        for each in vacuum.split("; "):
            cluster.psql(each)
        tables, indexes = size_of(cluster, "pg_table_size"), size_of(cluster, "pg_indexes_size")
        found = asyncio.run(tasks_of(cluster, options.size(TASKS, TASKS_QUICK)))
        batch_s = asyncio.run(purge_batches(cluster, options.size(BATCHES, BATCHES_QUICK)))
        vacuum_s = sum(timed(cluster, each) for each in vacuum.split("; "))
    return {
        "fill_s": fill_s,
        "table_bytes": tables / count,
        "index_bytes": indexes / count,
        "per_s": found["per_s"],
        "server_us": found["server_us"],
        "wal_bytes": found["wal_bytes"],
        "batch_ms": batch_s * 1000,
        "vacuum_s": vacuum_s,
    }


def partitions(options: Options) -> Figures:
    """The same rows in one table and in 30 partitions, asked for by their ids."""
    import psycopg

    count = options.size(PARTITIONED, PARTITIONED_QUICK)
    with server() as cluster:
        asyncio.run(make_one(cluster))
        cluster.psql(copy_task(count))
        first = int(ask(cluster, f"SELECT min(sent_at) FROM {SCHEMA}.taskmanager_tasks"))
        wide = (int(ask(cluster, f"SELECT max(sent_at) FROM {SCHEMA}.taskmanager_tasks")) - first) // DAYS + 1
        cluster.psql(f"CREATE TABLE {SCHEMA}.parts (LIKE {SCHEMA}.taskmanager_tasks) PARTITION BY RANGE (sent_at)")
        for day in range(DAYS):
            begins = first + day * wide
            cluster.psql(
                f"CREATE TABLE {SCHEMA}.part_{day} PARTITION OF {SCHEMA}.parts"
                f" FOR VALUES FROM ({begins}) TO ({begins + wide})"
            )
        with psycopg.connect(cluster.url(), autocommit=True, prepare_threshold=0) as connection:
            connection.execute(f"INSERT INTO {SCHEMA}.parts SELECT * FROM {SCHEMA}.taskmanager_tasks")
            connection.execute(f"CREATE INDEX ON {SCHEMA}.parts (id)")
            ids = [each for (each,) in connection.execute(f"SELECT id FROM {SCHEMA}.parts LIMIT {ASKED}")]
            found = {}
            for name in ("parts", "taskmanager_tasks"):
                connection.execute("BEGIN")
                began_s = time.perf_counter()
                for each in ids:  # in one transaction: the disk is not the question
                    connection.execute(f"UPDATE {SCHEMA}.{name} SET log = NULL WHERE id = %s", (each,))
                found[name] = (time.perf_counter() - began_s) / len(ids)
                connection.execute("COMMIT")
    return {"one_us": found["taskmanager_tasks"] * 1e6, "parts_us": found["parts"] * 1e6}


PARTS: Final[dict[str, Part]] = {"per task": per_task, "idle": idle, "history": history, "partitions": partitions}
ONE: Final = "one task"
OF_HISTORY: Final = "history of 2,000,000"
LINES: Final = [
    Line(f"{ONE}: processor of the server", "per task", "server_us", "us", quote="value"),
    Line(f"{ONE}: write-ahead log", "per task", "wal_bytes", "bytes", quote="value"),
    Line("tasks of one instance", "per task", "per_s", "tasks/s", quote="value"),
    Line("an idle instance: processor of the server", "idle", "ms_per_s", "ms per s", quote="value"),
    Line("an idle instance: connections", "idle", "connections", "", quote="value"),
    Line(f"{OF_HISTORY}: table, each", "history", "table_bytes", "bytes", quote="value"),
    Line(f"{OF_HISTORY}: indexes, each", "history", "index_bytes", "bytes", quote="value"),
    Line(f"{OF_HISTORY}: made in", "history", "fill_s", "s", quote="value"),
    Line(f"{OF_HISTORY}: tasks of one instance", "history", "per_s", "tasks/s", quote="value"),
    Line(f"{OF_HISTORY}: processor of the server", "history", "server_us", "us", quote="value"),
    Line(f"{OF_HISTORY}: one batch of the retention", "history", "batch_ms", "ms", quote="value"),
    Line(f"{OF_HISTORY}: VACUUM after the batches", "history", "vacuum_s", "s", quote="value"),
    Line("an update by id in 30 partitions, and in one table", "partitions", "parts_us", "us", "partitions", "one_us"),
]


if __name__ == "__main__":
    notes = lacking("psycopg[binary]")
    run(__doc__, __file__, PARTS, [] if notes else LINES, notes)
