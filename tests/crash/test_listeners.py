"""What listeners are told of tasks whose process dies: the rest, in the process that recovers them."""

from pathlib import Path

from tests.crash.harness import Child, Site, both, killed_at_the_end

LONG_S = 30


def told(site: Site, child: Child, label: str) -> list[str]:
    return [
        line.event.removeprefix("told ")
        for line in site.lines(label=label)
        if line.event.startswith("told ") and line.pid == child.pid
    ]


@both
def test_the_tasks_of_a_dead_process_are_told_where_they_are_recovered(tmp_path: Path, database: str) -> None:
    """Each process hears what it has done itself, in order; nobody hears it twice."""
    site = Site(tmp_path, database)
    first = site.spawn(hears=True, enqueue=[["safe", "safe", LONG_S, {}], ["once", "once", LONG_S, {}]])
    with killed_at_the_end(first):
        first.until("told started", 2)
        first.kill()
    second = site.finish(hears=True)
    for label in ("safe", "once"):
        assert told(site, first, label) == ["enqueued", "started"]
    assert told(site, second, "safe") == ["requeued", "started", "completed"]
    assert told(site, second, "once") == ["failed"]
    assert site.statuses() == {"safe": "COMPLETED", "once": "FAILED"}
