"""What is asked of SQLite is asked of a real PostgreSQL in its words, about the same rows, and answers the same."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import taskmanager.store.postgresql
from taskmanager.rules.figures import Span
from taskmanager.store.postgresql.words import translated
from taskmanager.store.sql import (
    claims,
    events,
    failures,
    figures,
    health,
    loads,
    queries,
    scanning,
    schedules,
    search,
    statistics,
    task_views,
    workflow_pages,
    workflow_recovery,
    workflow_rows,
    workflow_views,
)
from taskmanager.store.sqlite.schema import migrate
from taskmanager.store.statistics import FileSize
from tests.servers import Cluster
from tests.sessions import connect

psycopg = pytest.importorskip("psycopg")

NO_SIZE = FileSize(0, 0, 0)
NOW = 1_700_000_000_000_000
TASK = {"priority": 50, "args": "[1]", "kwargs": "{}", "task_options": '{"persist":true}', "created_at": NOW}
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "PENDING", "RUNNING")
COUNTERS = (
    "open", "completed", "failed", "inputs_open", "inputs_failed", "allow_failed_deps", "is_optional",
    "is_subworkflow", "delay_us", "max_retries",
)  # fmt: skip


class Asked:
    """A session that puts each statement into PostgreSQL's words."""

    too_large = psycopg.DataError

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Any = ()) -> Any:
        """Do a statement."""
        return self._connection.execute(translated(sql), values)

    def by_indexes(self) -> AbstractContextManager[None]:
        """The rows are few."""
        return nullcontext()

    def snapshot(self) -> AbstractContextManager[None]:
        """Nobody else writes."""
        return nullcontext()

    def size(self) -> None:
        """No two databases are of one size."""


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Some rows of each table, by its name."""
    yield (
        "instances",
        {"instance_id": "i", "hostname": "h", "pid": 1, "process_name": "p", "started_at": NOW, "updated_at": NOW},
    )
    for number in range(40):
        status, at = ENDS[number % 5], NOW + number // 3
        ended = {
            "COMPLETED": {"completed_at": at + 5},
            "FAILED": {"failed_at": at + 7, "error_code": "E", "result": '{"err": {"message": "it failed"}}'},
        }
        owned = {"claimed_by_worker_id": "i", "started_at": at, "start_count": 1} if status == "RUNNING" else {}
        row = {
            "id": f"t{number:02}",
            "task_name": f"a*{number % 2}",
            "queue_name": "q",
            "status": status,
            "sent_at": at,
            "enqueued_at": at,
            "updated_at": at,
            "tags": json.dumps({"k": "v", "n": str(number % 2)}),
        }
        yield "tasks", TASK | row | ended.get(status, {}) | owned
        if status in ended:
            code = {"error_code": "E", "error_message": "it failed"} if status == "FAILED" else {}
            attempt = {
                "task_id": f"t{number:02}",
                "attempt": 1,
                "outcome": status,
                "will_retry": 0,
                "started_at": at,
                "finished_at": at + number,
                "created_at": at,
            }
            yield "task_attempts", attempt | code
    for number in range(3):
        yield "heartbeats", {"sender_id": "i", "role": "runner", "sent_at": NOW + number}
        yield (
            "figures",
            {
                "span": 60,
                "at": Span.MINUTE.begin_of(NOW),
                "task_name": f"a{number}",
                "queue_name": "q",
                "started": number,
                "failed": 2,
            },
        )
    yield (
        "schedule_state",
        {
            "schedule_name": "s",
            "next_run_at": NOW,
            "config_hash": "c",
            "updated_at": NOW,
            "owner_id": "i",
            "task_name": "a",
            "definition": "d",
            "template": "{}",
        },
    )
    yield (
        "workflows",
        {
            "id": "w",
            "name": "n",
            "status": "RUNNING",
            "on_error": "fail",
            "definition_key": "k",
            "depth": 0,
            "root_workflow_id": "w",
            "sent_at": NOW,
            "created_at": NOW,
            "updated_at": NOW,
        },
    )
    for number in range(2):
        node = dict.fromkeys(COUNTERS, 0)
        row = {
            "workflow_id": "w",
            "task_index": number,
            "status": "ENQUEUED",
            "join_type": "all",
            "task_id": f"t0{number}",
            "created_at": NOW,
            "priority": 50,
            "node_id": f"n{number}",
            "task_name": "a",
            "queue_name": "q",
            "task_options": "{}",
            "dependencies": "[]",
        }
        yield "workflow_tasks", node | row


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "counts": queries.counts,
    "counts_up_to": lambda session: queries.counts_up_to(session, 3),
    "fetch": lambda session: [queries.fetch(session, each) for each in ("t01", "none")],
    "fetch_ids": lambda session: sorted(queries.fetch_ids(session, ["t03", "t01"])),
    "fetch_attempts": lambda session: queries.fetch_attempts(session, "t01"),
    "fetch_owned": lambda session: queries.fetch_owned(session, ["i"], limit=5, after="t04"),
    "fetch_orphans": lambda session: queries.fetch_orphans(session, ["other"], limit=5),
    "first_unfinished": lambda session: queries.first_unfinished(session, "i", {"k": "v"}),
    "free_queues": claims.free_queues,
    "waiting_levels": lambda session: claims.waiting_levels(session, 9),
    "latest_stamp": claims.latest_stamp,
    "statistics": lambda session: replace(statistics.statistics(session, NOW + 60), size=NO_SIZE),
    "failure_groups": lambda session: failures.failure_groups(session, 60),
    "find": lambda session: search.find(session, search.Search(task_name="a\\**", tags=(("n", "1"),)), 9),
    "find_ids": lambda session: search.find_ids(session, search.Search(before="t09", error_code="E")),
    "ids_like": lambda session: search.ids_like(session, "7", 9),
    "queue_names": search.queue_names,
    "error_messages": lambda session: search.error_messages(session, ["t00", "t01"], 5),
    "scan": lambda session: scanning.scan(session, search.Search(task_name="a?1"), 7, budget_s=60),
    "scan_text": lambda session: scanning.scan(session, search.Search(text="FAILED"), 7, budget_s=60),
    "page_ids": lambda session: scanning.page_ids(session, search.Search(), (NOW + 9, "t99"), None, 9, budget_s=60),
    "count_up_to": lambda session: scanning.count_up_to(session, search.Search(error_code="E"), budget_s=60),
    "series": lambda session: figures.series(session, Span.MINUTE, NOW, NOW + 9, task_name="a1"),
    "by_queue": lambda session: figures.by_queue(session, Span.MINUTE, NOW, NOW + 9, 5),
    "loads": lambda session: loads.loads_of(session, ("i",)),
    "owned": health.owned,
    "unreadable": health.unreadable,
    "near_limit": lambda session: health.near_limit(session, 1, 1),
    "newest_stamp": health.newest_stamp,
    "schedules": lambda session: schedules.fetch(session, ["s"]),
    "busy": lambda session: schedules.busy(session, ["s"]),
    "task_view": lambda session: task_views.task_view(session, "t01"),
    "event": lambda session: events.fetch_event(session, "t01", "e", ("step", 0, "")),
    "workflow": lambda session: workflow_views.view_of(session, "w"),
    "workflows": lambda session: workflow_views.find_workflows(session, "RUNNING", None, 9),
    "workflow_ids": lambda session: workflow_views.workflow_ids_like(session, "x", 9),
    "workflow_head": lambda session: workflow_pages.workflow_head(session, "w"),
    "outline": lambda session: workflow_pages.workflow_outline(session, "w"),
    "node_statuses": lambda session: workflow_pages.node_statuses(session, "w"),
    "nodes_about": lambda session: workflow_pages.nodes_about(session, "w", [1, 0]),
    "node_start": lambda session: workflow_rows.node_start(session, "t01"),
    "half_done": lambda session: workflow_recovery.half_done(session, NOW, 9),
}  # fmt: skip


def test_statements_answer_as_those_of_sqlite(cluster: Cluster, schema_url: str) -> None:
    """One word that only one of them knows, or reads in another way, would be a verb that fails on the other."""
    schema = schema_url.partition("?schema=")[2]
    scripts = sorted((Path(taskmanager.store.postgresql.__file__).parent / "migrations").glob("*.sql"))
    with connect(":memory:") as file, psycopg.connect(cluster.url(), autocommit=True) as server:
        migrate(file, ":memory:")
        server.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}")
        for each in scripts:
            server.execute(each.read_text())
        asked: Any = Asked(server)
        for table, row in rows():
            insert = f"INSERT INTO taskmanager_{table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
            file.execute(insert, tuple(row.values()))
            asked.execute(insert, tuple(row.values()))
        file.commit()
        different = {
            name: (there, here) for name, ask in ANSWERS.items() if (there := ask(asked)) != (here := ask(file))
        }
    assert not different
