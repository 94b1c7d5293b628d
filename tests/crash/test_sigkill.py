"""SIGKILL at named points: what the file holds afterwards is one of the legal states, and the next start mends it.

The child stops at the point (see `pauses`) and is killed there. "What survives what" is what is judged by.
"""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import Site, both, both_new, both_with, killed_at_the_end

LONG_S = 30


def kill_at(site: Site, pause: dict[str, Any], **config: Any) -> None:
    """Run a child up to that point, and kill it there."""
    child = site.spawn(pause=pause, **config)
    with killed_at_the_end(child):
        child.until("paused")
        child.kill()
    site.assert_whole()


@both
def test_killed_before_the_commit_nothing_was_promised(tmp_path: Path, database: str) -> None:
    """Accepted and not saved: the task may be lost, `saved()` has not returned, and no user code ran for it."""
    site = Site(tmp_path, database)
    kill_at(site, {"point": "before", "function": "safe"}, enqueue=[["safe", "a", LONG_S, {}]])
    assert site.lines("saved") == []
    assert site.lines("start") == []
    assert site.statuses() == {}
    site.finish()
    assert site.statuses() == {}


@both
def test_killed_inside_the_transaction_all_of_it_is_undone(tmp_path: Path, database: str) -> None:
    """A flush is all or nothing; what an earlier one brought is there."""
    site = Site(tmp_path, database)
    enqueue = [["once", "early", 0, {}], *(["safe", f"late {n}", LONG_S, {}] for n in range(20))]
    first = site.spawn(enqueue=enqueue[:1], until="results")
    first.wait()
    kill_at(site, {"point": "inside", "function": "safe"}, enqueue=enqueue[1:])
    assert site.statuses() == {"early": "COMPLETED"}
    assert site.starts() == {"early": 1}
    site.finish()
    site.assert_sound()


@pytest.mark.req("PR-51", "PR-54", "PR-27")
@both_with("point", ["after start", "after commit"], "after start")
def test_killed_after_the_commit_everything_saved_is_there_and_goes_on(
    tmp_path: Path, database: str, point: str
) -> None:
    """Waiting: kept. Running: requeued, retried or FAILED `WORKER_CRASHED`, by its declaration. Never dropped."""
    site = Site(tmp_path, database)
    narrow = {"queue_name": "narrow"}
    running = ["safe", "once", "crash_retry"]
    enqueue = [[name, name, LONG_S, {}] for name in running]
    enqueue += [
        ["safe", "holder", LONG_S, narrow],
        ["once", "waiting", 0, narrow],
        ["once", "delayed", 0, {"delay": 1}],
    ]
    child = site.spawn(enqueue=enqueue)
    with killed_at_the_end(child):
        child.until("ready")
        if point == "after start":
            child.until_starts(4)
        child.kill()
    saved = {line.label for line in site.lines("saved")}
    assert saved == {label for _, label, _, _ in enqueue}
    assert saved <= site.statuses().keys()

    site.finish()
    assert site.statuses() == dict.fromkeys(saved - {"once"}, "COMPLETED") | {"once": "FAILED"}
    assert site.codes()["once"] == "WORKER_CRASHED"
    assert site.outcomes("once") == ["WORKER_FAILURE"]
    assert site.outcomes("safe") == site.outcomes("crash_retry") == ["WORKER_FAILURE", "COMPLETED"]
    assert site.outcomes("waiting") == site.outcomes("delayed") == ["COMPLETED"]
    retries = dict(site.query("SELECT json_extract(args, '$[0]'), retry_count FROM taskmanager_tasks"))
    assert (retries["safe"], retries["once"], retries["crash_retry"]) == (0, 0, 1)
    assert site.starts()["once"] <= 1
    site.assert_sound()
    site.assert_settled()


@pytest.mark.req("RC-28", "RC-29", "HB-23", "HB-24")
@both_with("name", ["safe", "crash_retry", "once"], "once")
def test_killed_between_the_end_and_its_commit_it_counts_as_running(tmp_path: Path, database: str, name: str) -> None:
    """User code returned, nobody wrote it down: at least once where that is safe, at most once where it is not."""
    site = Site(tmp_path, database)
    kill_at(site, {"point": "before", "status": "COMPLETED"}, enqueue=[[name, "a", 0, {}]])
    assert len(site.lines("finish")) == 1
    assert site.statuses() == {"a": "RUNNING"}
    site.finish()
    is_repeated = name != "once"
    assert site.statuses() == {"a": "COMPLETED" if is_repeated else "FAILED"}
    assert site.outcomes("a") == ["WORKER_FAILURE", *(["COMPLETED"] if is_repeated else [])]
    assert site.starts()["a"] == 1 + is_repeated
    site.assert_sound()


@pytest.mark.req("PR-34", "PR-35", "PR-53")
@both
def test_killed_after_the_commit_of_the_end_it_never_runs_again(tmp_path: Path, database: str) -> None:
    """A success in the file is final, whatever its handle was told."""
    site = Site(tmp_path, database)
    kill_at(site, {"point": "after", "status": "COMPLETED"}, enqueue=[["safe", "a", 0, {}]])
    for _ in range(2):
        site.finish()
    assert site.statuses() == {"a": "COMPLETED"}
    assert site.starts() == {"a": 1}
    site.assert_sound()


@pytest.mark.req("DS-114")
@both_new
def test_killed_in_the_middle_of_a_migration_the_next_start_makes_the_rest(tmp_path: Path, database: str) -> None:
    """Each step of a migration is one transaction: of the first one nothing is there."""
    site = Site(tmp_path, database)
    kill_at(site, {"point": "migration"})
    assert site.tables() == []
    site.finish(enqueue=[["once", "a", 0, {}]])
    assert site.statuses() == {"a": "COMPLETED"}
    site.assert_sound()


@pytest.mark.req("PR-58")
@both
def test_killed_while_draining_it_is_a_crash_like_any_other(tmp_path: Path, database: str) -> None:
    """SIGKILL follows SIGTERM where the host's grace is shorter than ours: nothing is lost by having been asked."""
    site = Site(tmp_path, database)
    enqueue = [["safe", "safe", LONG_S, {}], ["once", "once", LONG_S, {}], ["once", "delayed", 0, {"delay": 1}]]
    child = site.spawn(enqueue=enqueue, manager={"drain_timeout": 30})
    with killed_at_the_end(child):
        child.until("ready")
        child.until_starts(2)
        child.send(signal.SIGTERM)
        child.until("main ended")
        child.kill()
    site.finish()
    assert site.statuses() == {"safe": "COMPLETED", "once": "FAILED", "delayed": "COMPLETED"}
    site.assert_sound()
    site.assert_settled()


@both
def test_killed_inside_the_final_batch_the_stop_is_undone_as_a_whole(tmp_path: Path, database: str) -> None:
    """The last commit of a stop counts as a whole, or the next start recovers what was there before."""
    site = Site(tmp_path, database)
    enqueue = [["safe", "safe", LONG_S, {}], ["once", "once", LONG_S, {}], ["once", "delayed", 0, {"delay": 1.5}]]
    pause = {"point": "inside", "status": "INTERRUPTED"}
    child = site.spawn(enqueue=enqueue, manager={"drain_timeout": 0.1}, pause=pause)
    with killed_at_the_end(child):
        child.until("ready")
        child.until_starts(2)
        child.send(signal.SIGTERM)
        child.until("paused")
        child.kill()
    assert site.statuses()["once"] == "RUNNING"
    site.finish()
    assert site.statuses() == {"safe": "COMPLETED", "once": "FAILED", "delayed": "COMPLETED"}
    site.assert_sound()


@pytest.mark.req("PR-36", "PR-43")
@both_with("point", ["claimed", "recovered", "started"], "claimed")
def test_killed_again_and_again_while_reclaiming_nothing_is_lost(tmp_path: Path, database: str, point: str) -> None:
    """Reclaiming moves the ownership; it never holds the only copy. Three crashes between reclaim and completion."""
    site = Site(tmp_path, database)
    labels = [f"t{number}" for number in range(20)]
    first = site.spawn(enqueue=[["safe", label, LONG_S, {"queue_name": "narrow"}] for label in labels])
    with killed_at_the_end(first):
        first.until("ready")
        first.kill()
    pauses = {"claimed": {"point": "claimed"}, "recovered": {"point": "after"}, "started": None}
    for _ in range(3):
        child = site.spawn(pause=pauses[point])
        with killed_at_the_end(child):
            if point == "started":
                child.until("start")
            else:
                child.until("paused")
            child.kill()
        assert len(site.statuses()) == len(labels)
    site.finish()
    assert site.statuses() == dict.fromkeys(labels, "COMPLETED")
    site.assert_sound()
    site.assert_settled()
    assert not list(tmp_path.glob("*.lock")), "what dead instances left is cleared away"


@pytest.mark.req("PR-33")
@both
def test_hundreds_of_saved_tasks_survive_a_kill(tmp_path: Path, database: str) -> None:
    """Every saved task reaches an end, and none that had recorded its success runs again."""
    site = Site(tmp_path, database)
    labels = [f"t{number}" for number in range(300)]
    enqueue = [["safe", label, 0.2, {}] for label in labels]
    first = site.spawn(enqueue=enqueue, bulk=True, manager={"concurrency": 10})
    with killed_at_the_end(first):
        first.until("ready")
        first.until_starts(25)
        first.kill()
    done = {label for label, status in site.statuses().items() if status == "COMPLETED"}
    before = site.starts()
    site.finish()
    assert site.statuses() == dict.fromkeys(labels, "COMPLETED")
    assert {label for label in done if site.starts()[label] > before[label]} == set()
    site.assert_sound()
    site.assert_settled()
