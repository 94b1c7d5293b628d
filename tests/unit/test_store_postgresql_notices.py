"""Many commits become one notice, which is never too large, and is heeded in its own schema only."""

import json

import psycopg
import pytest

from taskmanager.model.ids import new_task_id
from taskmanager.store.postgresql.notices import MAX_PAYLOAD_BYTES, Notices, channel_of, has_news, is_of, queue_state
from tests.servers import Cluster


def test_notices_of_several_commits_become_one() -> None:
    notices = Notices("jobs")
    assert notices.add(["a", "b"], "new")
    assert not notices.add(["b", "c"], "new"), "somebody was woken already"
    assert not notices.add(["a"], "done")
    assert notices.take() == 'jobs:{"new":["a","b","c"],"done":["a"]}'
    assert not notices
    assert notices.add(["d"], "new")


@pytest.mark.parametrize("ids", [[new_task_id() for _ in range(500)], ["é" * 2000, "ü" * 2000]], ids=["many", "long"])
def test_notices_that_do_not_fit_say_many(ids: list[str]) -> None:
    notices = Notices("jobs")
    notices.add(ids, "new")
    notices.add(["another"], "new")
    assert notices.take() == 'jobs:{"many":true}'
    assert not notices


def test_notices_tell_news_beside_tasks() -> None:
    """A write without ids, such as a pause, is heard also where it is said together with commits of tasks."""
    notices = Notices("jobs")
    for count in (1, 500):
        notices.add([f"t{number}" for number in range(count)], "written")
        assert not has_news(notices.take())
        notices.add([f"t{number}" for number in range(count)], "written")
        notices.add((), "written")
        assert has_news(notices.take())
    notices.add((), "written")
    assert notices.take() == 'jobs:{"news":true}'
    notices.add(["t1"], "written")
    assert notices.take() == 'jobs:{"written":["t1"]}'
    assert has_news("jobs:01a2"), "a row of another program"
    assert has_news("sent by hand")


def test_notices_fit_with_as_many_ids_as_are_kept() -> None:
    notices = Notices("jobs")
    for _ in range(180):
        notices.add([new_task_id()], "new")
    payload = notices.take()
    assert len(payload.encode()) <= MAX_PAYLOAD_BYTES
    assert len(json.loads(payload.removeprefix("jobs:"))["new"]) == 180


def test_notices_of_another_schema_are_told_apart() -> None:
    notices = Notices("jobs")
    notices.add(["a"], "new")
    payload = notices.take()
    assert is_of("jobs", payload)
    assert not is_of("other", payload)
    assert is_of("jobs", "what somebody has sent by hand")


def test_channel_is_the_name_of_the_schema_if_that_fits() -> None:
    assert channel_of("jobs") == "taskmanager_jobs"
    names = {channel_of("s" * length) for length in range(1, 64)}
    assert len(names) == 63
    assert max(map(len, names)) <= 63


def test_queue_state_names_the_session_that_is_open_longest(cluster: Cluster) -> None:
    """In any database: the queue is one for all of them."""
    forgotten = psycopg.connect(cluster.url(), dbname="template1", application_name="forgotten")
    with forgotten as idle, psycopg.connect(cluster.url()) as asking:
        idle.execute("SELECT 1")
        state = queue_state(asking)
        assert (state.usage, state.pid, state.application_name) == (0.0, idle.info.backend_pid, "forgotten")
        assert state.open_s is not None
        assert state.open_s >= 0.0
