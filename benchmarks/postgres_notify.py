"""What does a NOTIFY cost the commits of a PostgreSQL server: in the transaction, behind it, or not at all?

A transaction that calls NOTIFY takes one lock for the whole cluster at its commit, until that is on disk and on the
standby. Here one and four writers insert a row per commit, as fast as they can: silent, with `pg_notify` in the same
transaction, or told by the watch of each writer behind its commits, in sessions of their own. One other instance
listens. The second half has a synchronous standby that is 5 ms away and back, behind a proxy that holds up the bytes.
Last, how soon the loop of another instance wakes after a commit.

Needs a PostgreSQL server and the extra `postgres`.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from _harness import (
    Figures,
    Line,
    Options,
    Part,
    free_port,
    lacking,
    percentile,
    run,
    start_part,
    wait_until_it_listens,
)

from taskmanager.model.clock import SystemClock
from taskmanager.model.ids import new_task_id

if TYPE_CHECKING:
    from taskmanager.store.postgresql.watch import Watch
    from tests.servers import Cluster

SECONDS, SECONDS_QUICK = 5, 2
WAKES, WAKES_QUICK = 500, 100
PAUSE_S: Final = 0.01
DELAY_S: Final = 0.0025
"""One way, and the same back."""
SCHEMA: Final = "bench"
TABLES: Final = f"""
    CREATE SCHEMA {SCHEMA};
    CREATE TABLE {SCHEMA}.taskmanager_heartbeats (id bigint PRIMARY KEY, sender_id text);
    CREATE TABLE {SCHEMA}.rows (id text PRIMARY KEY)
"""
HOW: Final = ("silent", "inside", "behind")
WRITERS: Final = (1, 4)


def proxy(options: Options) -> Figures:
    """Hold up everything between the port and the target, both of which are given, for `DELAY_S`; without end."""
    port, target = map(int, options.given.split(","))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(1 << 16):
            loop.call_later(DELAY_S, writer.write, data)
        loop.call_later(DELAY_S, writer.close)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def serve() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(serve())
    return {}


@contextmanager
def servers(options: Options, *, has_standby: bool) -> "Iterator[Cluster]":
    """A server with the tables, and perhaps a standby that every commit waits for."""
    from tests.servers import Cluster

    with ExitStack() as stack:
        cluster = Cluster.create()
        stack.callback(cluster.destroy)
        cluster.psql(TABLES)
        if has_standby:
            standby, port = cluster.standby(), free_port()
            stack.callback(standby.destroy)
            slow = start_part(__file__, options, "proxy", f"{port},{cluster.port}")
            stack.callback(slow.kill)
            wait_until_it_listens(port)
            standby.set("primary_conninfo", f"host=127.0.0.1 port={port} user=postgres application_name=standby")
            standby.until_it_has(cluster)
            cluster.set("synchronous_standby_names", "standby")
            while cluster.psql("SELECT sync_state, client_port FROM pg_stat_replication WHERE client_port > 0") == []:
                time.sleep(PAUSE_S)
        yield cluster


def watch_of(cluster: "Cluster", name: str) -> "Watch":
    """An instance that holds its lock and listens."""
    from taskmanager.store.postgresql.watch import Watch

    watch = Watch(cluster.url(), SCHEMA, name, SystemClock())
    asyncio.run(watch.take())
    return watch


def commits(options: Options, *, how: str, writers: int, has_standby: bool) -> Figures:
    """The rate of all writers together."""
    import psycopg

    until_s, counts = 0.0, [0] * writers

    def write(number: int, connection: "psycopg.Connection[Any]", mouth: "Watch") -> None:
        insert = f"INSERT INTO {SCHEMA}.rows VALUES (%s)"
        if how == "inside":
            insert = f"WITH new AS ({insert} RETURNING id) SELECT pg_notify('bench', id) FROM new"
        while time.perf_counter() < until_s:
            task_id = new_task_id()
            connection.execute(insert, (task_id,))
            counts[number] += 1
            if how == "behind":
                mouth.tell([task_id], "new")

    with servers(options, has_standby=has_standby) as cluster:
        ear = watch_of(cluster, "ear")
        mouths = [watch_of(cluster, f"mouth {number}") for number in range(writers)]
        connections = [psycopg.connect(cluster.url(), autocommit=True, prepare_threshold=1) for _ in mouths]
        with psycopg.connect(cluster.url(), autocommit=True) as listener:
            listener.execute("LISTEN bench")
            seconds = options.size(SECONDS, SECONDS_QUICK)
            until_s = time.perf_counter() + seconds
            threads = [
                threading.Thread(target=write, args=(number, *pair))
                for number, pair in enumerate(zip(connections, mouths, strict=True))
            ]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        for closed in connections:
            closed.close()
        for watch in (ear, *mouths):
            watch.drop()
    return {"per_s": sum(counts) / seconds}


def wakes(options: Options) -> Figures:
    """From the return of a commit to the descriptor of another instance, which can be read."""
    import psycopg

    found_ms = []
    with servers(options, has_standby=False) as cluster, selectors.DefaultSelector() as selector:
        ear, mouth = watch_of(cluster, "ear"), watch_of(cluster, "mouth")
        descriptor = ear.watch()
        assert descriptor is not None
        selector.register(descriptor, selectors.EVENT_READ)
        with psycopg.connect(cluster.url(), autocommit=True) as connection:
            for _ in range(options.size(WAKES, WAKES_QUICK)):
                ear.watch()
                task_id = new_task_id()
                connection.execute(f"INSERT INTO {SCHEMA}.rows VALUES (%s)", (task_id,))
                began_s = time.perf_counter()
                mouth.tell([task_id], "new")
                selector.select(1.0)
                found_ms.append((time.perf_counter() - began_s) * 1000)
                time.sleep(PAUSE_S)
        ear.drop()
        mouth.drop()
    return {"p50_ms": percentile(found_ms, 50), "p95_ms": percentile(found_ms, 95)}


def named(how: str, writers: int, has_standby: bool) -> str:
    """The name of a part."""
    return f"{how}, {writers} {'writers' if writers > 1 else 'writer'}{', standby 5 ms away' if has_standby else ''}"


CASES: Final = [(how, writers, standby) for standby in (False, True) for writers in WRITERS for how in HOW]
PARTS: Final[dict[str, Part]] = {
    "proxy": proxy,
    "wakes": wakes,
    **{named(*case): partial(commits, how=case[0], writers=case[1], has_standby=case[2]) for case in CASES},
}
LINES: Final = [
    *(
        Line(named(how, *rest), named(how, *rest), "per_s", "commits/s", named("silent", *rest))
        for how, *rest in CASES
        if how != "silent"
    ),
    Line("another instance wakes, median", "wakes", "p50_ms", "ms", quote="value"),
    Line("another instance wakes, 95 %", "wakes", "p95_ms", "ms", quote="value"),
]


if __name__ == "__main__":
    notes = lacking("psycopg[binary]")
    run(__doc__, __file__, PARTS, [] if notes else LINES, notes)
