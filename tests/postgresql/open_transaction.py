"""Measure claims while another program has a transaction open, so that no dead row can be cleaned up.

    python -m tests.postgresql.open_transaction --seconds 600 --rate 500

Rows are inserted, claimed and ended at an even rate, first for a tenth of the time without that transaction, then for
the whole time with it, then for a tenth after it. The medians of the claims are printed for each tenth.

With `--limited` the queue has a limit for all hosts: each claim counts what is taken, and starts what it takes. One
task runs all the time.
"""

import argparse
import statistics
import sys
import time
from typing import Any, Final

import psycopg

from taskmanager.rules.claims import Room, Starting
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import connect, lead_to_schema
from taskmanager.store.postgresql.schema import migrate
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.sql.claims import claim
from tests.contract.rows import wants
from tests.servers import Cluster

SCHEMA: Final = "jobs"
BATCH: Final = 25
PARTS: Final = 10
HELD: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"
PUT: Final = f"""
INSERT INTO {SCHEMA}.taskmanager_tasks (id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at,
    created_at, updated_at)
SELECT lpad((%(now)s + n)::text, 36, '0'), 'app:job', 'default', 50, '[]', '{{}}', 'PENDING', %(now)s, %(now)s,
    %(now)s, %(now)s
FROM generate_series(1, %(count)s) AS n
"""
LIMIT: Final = 3 * BATCH
STARTING: Final = Starting(BATCH, (Room(frozenset({"app:job"}), BATCH),), 1, "host", "main")
RUN: Final = f"""
INSERT INTO {SCHEMA}.taskmanager_tasks (id, task_name, queue_name, priority, status, sent_at, enqueued_at, claimed_at,
    started_at, start_count, claimed_by_worker_id, created_at, updated_at)
VALUES ('long', 'app:job', 'default', 50, 'RUNNING', 1, 1, 1, 1, 1, 'other', 1, 1)
"""
END: Final = f"""
UPDATE {SCHEMA}.taskmanager_tasks SET status = 'COMPLETED', claimed = 0, completed_at = %(now)s, updated_at = %(now)s
WHERE id = ANY (%(ids)s) AND status IN ('CLAIMED', 'RUNNING')
"""


def now_us() -> int:
    """Return the time as rows have it."""
    return time.time_ns() // 1000


def work(session: PostgresSession, seconds: float, rate: float, changes: dict[str, Any]) -> list[float]:
    """Insert, claim and end for so long. The claims are usual ones but for `changes`.

    Return how long each claim has taken, with the question before it and its commit, in milliseconds.
    """
    took_ms = []
    began_s = due_s = time.monotonic()
    while due_s < began_s + seconds:
        time.sleep(max(due_s - time.monotonic(), 0.0))
        due_s += BATCH / rate
        session.execute_plain(PUT, {"now": now_us(), "count": BATCH})
        claim_s = time.perf_counter()
        assert [each.task_name for each in session.free_pairs()] == ["app:job"]
        rows = claim(session, wants(now=now_us(), limit=BATCH, **changes))
        took_ms.append((time.perf_counter() - claim_s) * 1000)
        assert len(rows) == BATCH, len(rows)
        session.execute_plain(END, {"now": now_us(), "ids": [row.task_id for row in rows]})
    return took_ms


def measure(
    session: PostgresSession, holder: "psycopg.Connection[Any]", seconds: float, rate: float, changes: dict[str, Any]
) -> float:
    """Print the medians. Return the worst one of those with the open transaction, against the one before it."""
    work(session, 5, rate, changes)
    before_ms = statistics.median(work(session, seconds / PARTS, rate, changes))
    print(f"before: {before_ms:.2f} ms", flush=True)
    holder.execute(HELD.encode())
    worst_ms = 0.0
    for part in range(1, PARTS + 1):
        found_ms = statistics.median(work(session, seconds / PARTS, rate, changes))
        worst_ms = max(worst_ms, found_ms)
        print(f"open for {seconds * part / PARTS:.0f} s: {found_ms:.2f} ms", flush=True)
    holder.execute("ROLLBACK")
    print(f"after: {statistics.median(work(session, seconds / PARTS, rate, changes)):.2f} ms", flush=True)
    return worst_ms / before_ms


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=500.0, help="tasks a second")
    parser.add_argument("--limited", action="store_true", help="the queue has a limit for all hosts")
    given = parser.parse_args()
    cluster = Cluster.create()
    try:
        cluster.set("autovacuum_naptime", "1s")
        session = connect(Address.of(cluster.url(SCHEMA)))
        migrate(session.raw, SCHEMA)
        lead_to_schema(session)
        session.execute_plain(RUN)
        changes = {"file_limit": LIMIT, "starting": STARTING} if given.limited else {}
        with psycopg.connect(cluster.url(), autocommit=True) as holder:
            ratio = measure(session, holder, given.seconds, given.rate, changes)
            print(f"the worst is {ratio:.2f} times the one before")
        session.raw.close()
    finally:
        cluster.destroy()
    return 0


if __name__ == "__main__":
    sys.exit(main())
