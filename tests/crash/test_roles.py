"""A web process that only enqueues, and two workers beside it: whichever side dies under load, nothing is lost or run
twice.
"""

import signal
from pathlib import Path

from tests.crash.harness import Child, Site, both, both_with, killed_at_the_end, wait_for

PRODUCER = {"run_queues": []}
COUNT = 30


def worker(site: Site) -> Child:
    return site.spawn(manager={"concurrency": 4, "drain_timeout": 2.0})


def have_completed(site: Site, count: int) -> bool:
    (found,) = site.query("SELECT count(*) FROM taskmanager_tasks WHERE status = 'COMPLETED'")
    return found[0] == count


@both_with("name", ["SIGKILL", "SIGTERM"], "SIGKILL", is_long=True)
def test_tasks_of_a_producer_that_dies_run_once_in_its_workers(tmp_path: Path, database: str, name: str) -> None:
    """All that was saved runs, and goes on running while nobody enqueues; the next producer finds all as it was."""
    site = Site(tmp_path, database)
    calls = [["once", f"{number}", 0.005, {}] for number in range(COUNT)]
    workers = [worker(site), worker(site)]
    with killed_at_the_end(*workers):
        for each in workers:
            each.until("ready")
        for half in (calls[: COUNT // 2], calls[COUNT // 2 :]):
            producer = site.spawn(enqueue=half, bulk=True, manager=PRODUCER)
            with killed_at_the_end(producer):
                producer.until("ready")
                producer.send(signal.Signals[name])
                producer.wait()
        wait_for(lambda: have_completed(site, COUNT), lambda: str(site.statuses()))
        for each in workers:
            each.stop()
    assert site.starts() == {label: 1 for _, label, _, _ in calls}
    assert {line.pid for line in site.lines("start")} <= {each.pid for each in workers}
    site.assert_sound()
    site.assert_settled()


@both
def test_a_producer_hears_of_every_task_whose_worker_dies(tmp_path: Path, database: str) -> None:
    """One worker is killed and one is stopped under load; those that follow go on with what they had."""
    site = Site(tmp_path, database)
    calls = [["safe", f"{number}", 0.05, {}] for number in range(2 * COUNT)]
    first, second = worker(site), worker(site)
    with killed_at_the_end(first, second):
        for each in (first, second):
            each.until("ready")
        producer = site.spawn(enqueue=calls, bulk=True, until="results", manager=PRODUCER)
        for each in (first, second):
            each.until("start", 4)
        first.kill()
        second.send(signal.SIGTERM)
        others = [worker(site), worker(site)]
        with killed_at_the_end(producer, *others):
            assert producer.wait() == 0, producer.errors()
            assert second.wait() == -signal.SIGTERM, second.errors()
            for each in others:
                each.stop()
    assert {line.label for line in site.lines() if line.event.startswith("result")} == {each[1] for each in calls}
    held = {line.label for line in site.lines("start") if line.pid == first.pid}
    again = {label for label, count in site.starts().items() if count > 1}
    assert again <= held, "only what the killed one had begun is begun again"
    site.assert_sound()
    site.assert_settled()
