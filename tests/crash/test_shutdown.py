"""What becomes of a task at a stop, by real signals to real processes: the shutdown matrix, and the starts after it."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import Site, both, killed_at_the_end, wait_for

LONG_S = 30
SLACK_S = 3.0
"""For the interpreter's own exit, on a machine that is busy."""
SHORT_DRAIN = {"drain_timeout": 0.2}

# (database, host, signal, exit code): under `run(main)` both signals are graceful, and end the program after the stop;
# elsewhere Ctrl-C is asyncio's, SIGTERM the host's. A stop writes the same under each, so a server has one of them.
HOSTS = [
    pytest.param("sqlite", "run", signal.SIGTERM, -signal.SIGTERM, id="run-sigterm"),
    pytest.param("sqlite", "run", signal.SIGINT, -signal.SIGINT, id="run-sigint"),
    pytest.param("sqlite", "plain", signal.SIGINT, -signal.SIGINT, id="plain-sigint"),
    pytest.param("sqlite", "handler", signal.SIGTERM, 0, id="own-handler-sigterm"),
    pytest.param("postgresql", "run", signal.SIGTERM, -signal.SIGTERM, id="on-server", marks=pytest.mark.long),
]
# Rows of the matrix that hold whichever way the task is persisted.
PERSISTED = [["safe", "running safe", LONG_S, {}], ["once", "running once", LONG_S, {}]]
BY_MANAGER = [["inherit_safe", "running safe", LONG_S, {}], ["inherit", "running once", LONG_S, {}]]

DELAY_S = 0.5
"""Longer than the first process lives after its enqueue."""


def waiting(safe: str, once: str) -> list[list[Any]]:
    """Tasks that are waiting at the stop: behind a holder of a narrow queue, and for their time."""
    narrow = {"queue_name": "narrow"}
    return [
        [safe, "holder", LONG_S, narrow],
        [safe, "pending safe", LONG_S, narrow],
        [once, "pending once", LONG_S, narrow],
        [safe, "delayed safe", 0, {"delay": 1.5}],
        [once, "delayed once", 0, {"delay": 1.5}],
    ]


@pytest.mark.req("PR-12", "PR-13", "PR-14", "PR-17", "PR-18", "PR-19", "PR-20", "PR-21", "PR-22", "PR-23", "PR-24")
@pytest.mark.req("PR-11", "PR-42", "PR-44", "PR-49", "PR-50", "PR-10", "PR-16", "PR-02", "PR-04", "PR-09")
@pytest.mark.parametrize(("database", "host", "number", "code"), HOSTS, indirect=["database"])
@pytest.mark.parametrize("by", ["persist", "requeue_pending"])
def test_a_stop_keeps_what_waited_and_requeues_what_may_run_again(
    tmp_path: Path, database: str, host: str, number: int, code: int, by: str
) -> None:
    """Running: requeued with `requeue_on_interrupt`, else INTERRUPTED. Waiting and delayed: always kept. Once each."""
    site = Site(tmp_path, database)
    by_manager = by == "requeue_pending"
    enqueue = (BY_MANAGER if by_manager else PERSISTED) + waiting(
        *(("inherit_safe", "inherit") if by_manager else ("safe", "once"))
    )
    options: dict[str, Any] = {"manager": {"requeue_pending": by_manager, **SHORT_DRAIN}, "host": host}
    first = site.spawn(enqueue=enqueue, **options)
    with killed_at_the_end(first):
        first.until("ready")
        first.until_starts(3)
        assert first.stop(number) < 0.2 + 2 + SLACK_S
    assert first.code == code, first.errors()
    kept = {"running safe", "holder", "pending safe", "pending once", "delayed safe", "delayed once"}
    assert site.statuses() == dict.fromkeys(kept, "PENDING") | {"running once": "INTERRUPTED"}
    assert site.query(
        "SELECT count(*) FROM taskmanager_tasks WHERE claimed_by_worker_id NOTNULL AND status='PENDING'"
    ) == [(0,)]
    assert not list(tmp_path.glob("*.lock"))
    assert site.query("SELECT instance_id FROM taskmanager_instances") == []

    site.finish(**options)
    assert site.statuses() == dict.fromkeys(kept, "COMPLETED") | {"running once": "INTERRUPTED"}
    expected = {"running safe": 2, "holder": 2, "running once": 1}
    assert site.starts() == dict.fromkeys(kept, 1) | expected
    assert site.outcomes("running safe") == ["INTERRUPTED", "COMPLETED"]
    assert site.outcomes("running once") == ["INTERRUPTED"]

    site.finish(**options)
    assert site.starts() == dict.fromkeys(kept, 1) | expected, "a third start re-dispatches nothing"
    site.assert_sound()
    site.assert_settled()


@pytest.mark.req("PR-01", "PR-07", "PR-08", "PR-15", "PR-25")
@both
@pytest.mark.parametrize("host", ["run", "handler"])
def test_without_persistence_nothing_comes_back(tmp_path: Path, database: str, host: str) -> None:
    """Row 4 of the matrix: lost on restart, but recorded: the running one INTERRUPTED, the waiting ones CANCELLED."""
    site = Site(tmp_path, database)
    narrow = {"queue_name": "narrow"}
    enqueue = [
        ["inherit", "running", LONG_S, {}],
        ["memory", "holder", LONG_S, narrow],
        ["memory", "waiting", 0, narrow],
    ]
    first = site.spawn(enqueue=[*enqueue, ["memory", "delayed", 0, {"delay": 60}]], host=host, manager=SHORT_DRAIN)
    with killed_at_the_end(first):
        first.until("ready")
        first.until_starts(2)
        first.stop()
    assert first.code == (-signal.SIGTERM if host == "run" else 0), first.errors()
    assert "2 memory-only tasks waiting at the stop" in first.errors()
    assert site.query("SELECT status, error_code, count(*) FROM taskmanager_tasks GROUP BY 1, 2 ORDER BY 1") == [
        ("CANCELLED", "MANAGER_STOPPED", 2),
        ("INTERRUPTED", "TASK_INTERRUPTED", 2),
    ]
    site.finish()
    assert site.starts() == {"running": 1, "holder": 1}


@pytest.mark.req("PR-39", "PR-40")
@both
def test_a_task_of_an_unknown_function_waits_until_it_is_known_again(tmp_path: Path, database: str) -> None:
    """A rename between two deploys loses nothing: left in place, said once in the log, run when it is registered."""
    site = Site(tmp_path, database)
    first = site.spawn(enqueue=[["once", "parked", 0, {"delay": DELAY_S}], ["safe", "known", 0, {"delay": DELAY_S}]])
    with killed_at_the_end(first):
        first.until("ready")
        first.stop()
    time.sleep(DELAY_S)  # rows that nobody has claimed do not count for join(), so they must be due at the start
    for _ in range(2):
        without = site.finish(unknown=["once"], until="join")
        assert "unknown function 'once'" in without.errors()
        assert site.statuses() == {"parked": "PENDING", "known": "COMPLETED"}
    site.finish()
    assert site.starts() == {"parked": 1, "known": 1}
    site.assert_settled()


@pytest.mark.req("PR-58", "PR-21", "PR-59")
@both
def test_a_grace_that_is_too_short_ends_in_bounded_time_whatever_runs(tmp_path: Path, database: str) -> None:
    """Async, thread, process, stubborn: the process is gone within drain + 2 s, each recorded as interrupted."""
    site = Site(tmp_path, database)
    safe, once = (
        ("safe", "thread_safe", "process_safe", "stubborn_safe"),
        ("once", "thread_once", "process_once", "stubborn_once"),
    )
    enqueue = [[name, name, LONG_S, {}] for name in (*safe, *once)]
    first = site.spawn(enqueue=enqueue, manager={"drain_timeout": 0.5, "processes": 2})
    with killed_at_the_end(first):
        first.until("ready")
        first.until_starts(len(enqueue))
        took_s = first.stop()
    assert took_s < 0.5 + 2 + SLACK_S
    assert first.code == -signal.SIGTERM, first.errors()
    said = [line for line in first.errors().splitlines() if "still executes" in line]
    assert {"runs again" in line for line in said if "_safe" in line} == {True}, said
    assert {"is recorded as interrupted" in line for line in said if "_once" in line} == {True}, said
    assert site.query("SELECT count(*) FROM taskmanager_tasks WHERE status IN ('FAILED', 'COMPLETED')") == [(0,)]
    site.finish()
    assert site.statuses() == dict.fromkeys(safe, "COMPLETED") | dict.fromkeys(once, "INTERRUPTED")
    for name in once:
        assert site.outcomes(name) == ["INTERRUPTED"], name
    for name in safe:
        assert site.outcomes(name) == ["INTERRUPTED", "COMPLETED"], name
    assert site.query("SELECT sum(crash_count), sum(retry_count) FROM taskmanager_tasks") == [(0, 0)]
    site.assert_sound()
    site.assert_settled()


@pytest.mark.req("PR-32")
@both
def test_an_interruption_is_no_failure(tmp_path: Path, database: str) -> None:
    """With no retries left it still comes back, at once, with its retries unspent; nothing is logged as an error."""
    site = Site(tmp_path, database)
    first = site.spawn(enqueue=[["safe", "last chance", LONG_S, {}]], manager=SHORT_DRAIN)
    with killed_at_the_end(first):
        first.until_starts(1)
        first.stop()
    assert "ERROR" not in first.errors()
    ((retries, crashes, waits_us),) = site.query(
        "SELECT retry_count, crash_count, enqueued_at - updated_at FROM taskmanager_tasks"
    )
    assert (retries, crashes) == (0, 0)
    assert waits_us <= 0, "no backoff"
    site.finish()
    assert site.outcomes("last chance") == ["INTERRUPTED", "COMPLETED"]


@pytest.mark.req("PR-57")
@both
def test_running_work_gets_the_drain_time_and_its_result_is_kept(tmp_path: Path, database: str) -> None:
    """What ends during the drain is a success, whatever lane it is in; nothing else starts meanwhile."""
    site = Site(tmp_path, database)
    names = ("safe", "once", "thread_once", "process_once", "memory")
    narrow = {"queue_name": "narrow"}
    enqueue = [[name, name, 0.5, {}] for name in names if name != "once"]
    enqueue.append(["once", "once", 3, narrow])
    enqueue.append(["once", "next", 0, narrow])
    first = site.spawn(enqueue=enqueue, manager={"drain_timeout": 10})
    with killed_at_the_end(first):
        first.until_starts(len(names))
        assert first.stop() < 3 + SLACK_S
    assert first.code == -signal.SIGTERM, first.errors()
    assert site.statuses() == dict.fromkeys(names, "COMPLETED") | {"next": "PENDING"}
    site.assert_sound()


@both
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_cuts_the_drain_short(tmp_path: Path, database: str, second: int) -> None:
    """Who presses Ctrl-C twice does not want to wait; nothing is lost by it."""
    site = Site(tmp_path, database)
    first = site.spawn(enqueue=[["safe", "a", LONG_S, {}], ["once", "b", LONG_S, {}]], manager={"drain_timeout": 30})
    with killed_at_the_end(first):
        first.until_starts(2)
        first.send(signal.SIGTERM)
        assert_draining(site)
        assert first.stop(second) < 2 + SLACK_S
    assert first.code == -signal.SIGTERM, first.errors()
    assert site.statuses() == {"a": "PENDING", "b": "INTERRUPTED"}


def assert_draining(site: Site) -> None:
    """The first signal has arrived: `main` has ended, and nothing has been recorded yet."""
    wait_for(lambda: bool(site.lines("main ended")), lambda: str(site.lines()))
    assert set(site.statuses().values()) == {"RUNNING"}
