"""What every store tells of its rows, and does to them for people: lists, cancel requests, counts, purges, queues."""

import random
from typing import Any, Final

import pytest

from taskmanager.engine.words.definition import with_sender
from taskmanager.model.record import TaskWrite
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.store.protocol import InstanceRow, Store, TaskFilter
from taskmanager.store.watch_protocol import Whereabouts
from tests.contract.rows import ME, OTHER, attempt, put, task, wants

pytestmark = pytest.mark.anyio
FREE_LATER: Final = {"enqueued_at": 9_000}
HELD: Final = {"status": "RUNNING"}
ENDED: Final = {"status": "FAILED", "failed_at": 130}


async def test_many_are_listed_newest_first_and_paged_by_place(store: Store) -> None:
    """Order is (sent_at, id) descending; `before` goes on after the last record seen, also within one instant, and
    whether that one is in the store or not.
    """
    rows = [task(f"t{i}", sent_at=100 + i // 2) for i in range(6)]
    await put(store, *rows)
    listed = [row.task_id for row in await store.fetch_many(TaskFilter())]
    assert listed == ["t5", "t4", "t3", "t2", "t1", "t0"]
    assert [row.task_id for row in await store.fetch_many(TaskFilter(limit=2, before=(101, "t3")))] == ["t2", "t1"]
    assert [row.task_id for row in await store.fetch_many(TaskFilter(limit=2, before=(101, "t25")))] == ["t2", "t1"]
    assert await store.fetch_many(TaskFilter(before=(100, "t0"))) == []


async def test_many_are_filtered(store: Store) -> None:
    """By status, function and queue, together."""
    await put(
        store, task("a", status="FAILED"), task("b", queue_name="mail"), task("c", task_name="app:x", queue_name="mail")
    )

    async def ids(**wanted: Any) -> list[str]:
        return [row.task_id for row in await store.fetch_many(TaskFilter(**wanted))]

    assert await ids(status=TaskStatus.FAILED) == ["a"]
    assert await ids(queue_name="mail") == ["c", "b"]
    assert await ids(queue_name="mail", task_name="app:x", status=TaskStatus.PENDING) == ["c"]


async def test_many_are_filtered_by_tags_error_and_last_change(store: Store) -> None:
    """All tags that are asked for must be there; tags that cannot be read are none."""
    failed = {"status": "FAILED", "failed_at": 130}
    await put(
        store,
        task("a", tags='{"customer": "1", "kind": "mail"}', error_code="BOOM", updated_at=130, **failed),
        task("b", tags='{"customer": "1"}', error_code="TIMEOUT", updated_at=140, **failed),
        task("c", tags='{"customer": "2"}', updated_at=150),
        task("d", updated_at=160),
    )

    async def ids(**wanted: Any) -> list[str]:
        return [row.task_id for row in await store.fetch_many(TaskFilter(**wanted))]

    assert await ids(tags=(("customer", "1"),)) == ["b", "a"]
    assert await ids(tags=(("customer", "1"), ("kind", "mail"))) == ["a"]
    assert await ids(tags=(("kind", "1"),)) == []
    assert await ids(tags=(("a.b\"'$", "1"),)) == []
    assert await ids(error_code="BOOM") == ["a"]
    assert await ids(since=150) == ["d", "c"]
    assert await ids(tags=(("customer", "1"),), since=140) == ["b"]
    assert await store.find_ids(TaskFilter(tags=(("customer", "1"),)), [TaskStatus.FAILED]) == ["a", "b"]
    assert await store.find_ids(TaskFilter(), [TaskStatus.PENDING]) == ["c", "d"]
    assert await store.find_ids(TaskFilter(TaskStatus.FAILED), [TaskStatus.PENDING]) == []


async def test_purge_deletes_only_what_fits(store: Store) -> None:
    """By tags and by the error code; what has not ended stays whatever it carries."""
    failed = {"status": "FAILED", "failed_at": 130, "tags": '{"customer": "1"}'}
    await put(
        store,
        task("a", error_code="BOOM", **failed),
        task("b", error_code="TIMEOUT", **failed),
        task("c", tags='{"customer": "1"}'),
        task("d", status="COMPLETED"),
    )
    assert await store.purge(TaskFilter(tags=(("customer", "2"),)), None, 100) == 0
    assert await store.purge(TaskFilter(error_code="BOOM"), None, 100) == 1
    assert await store.purge(TaskFilter(tags=(("customer", "1"),)), None, 100) == 1
    assert [row.task_id for row in await store.fetch_many(TaskFilter())] == ["d", "c"]


async def test_rows_of_owners_and_orphans_are_complementary(store: Store) -> None:
    """Every live row with an owner is in one of the two, ended and free rows in neither."""
    await put(
        store,
        task("a", claimed_by_worker_id=ME),
        task("b", status="CLAIMED", claimed_by_worker_id="dead-1"),
        task("c", status="RUNNING", claimed_by_worker_id="dead-2"),
        task("d", status="RUNNING", claimed_by_worker_id=OTHER),
        task("e", status="FAILED", claimed_by_worker_id="dead-1"),
        task("f"),
    )
    living = {ME, OTHER}
    assert [row.task_id for row in await store.fetch_owned(living, limit=9)] == ["a", "d"]
    assert [row.task_id for row in await store.fetch_orphans(living, limit=9)] == ["b", "c"]
    assert [row.task_id for row in await store.fetch_orphans([], limit=9)] == ["a", "b", "c", "d"]
    assert [row.task_id for row in await store.fetch_owned(living, limit=9, is_running=True)] == ["d"]
    assert await store.fetch_owned([ME], limit=9, is_running=True) == []
    assert await store.fetch_owned([], limit=9) == []


@pytest.mark.parametrize("seed", range(5))
async def test_orphans_are_all_that_no_living_owner_has(store: Store, seed: int) -> None:
    """Wherever their owners stand among the living. What is held waits for its workflow, and is none."""
    chance, held = random.Random(seed), "held"
    owners = ["", "\x01", "a", "a\x01", "aa", "b", "held ", "hele", "z", "\u00e9", "\U0010ffff"]
    rows = [task(f"t{number:02}", claimed_by_worker_id=chance.choice([*owners, held])) for number in range(30)]
    await put(store, *rows)
    living = chance.sample(owners, chance.randint(0, len(owners)))
    found = await store.fetch_orphans(living, limit=30)
    assert found == [row for row in rows if row.claimed_by_worker_id not in (*living, held)]


async def test_pages_go_on_after_an_id(store: Store) -> None:
    """Pages by id cannot starve, whatever happens to rows already seen."""
    await put(store, *[task(f"t{i}", claimed_by_worker_id=ME if i % 2 else OTHER) for i in range(6)])
    assert [row.task_id for row in await store.fetch_owned([ME, OTHER], limit=2, after="t1")] == ["t2", "t3"]
    await put(store, *[task(f"r{i}", status="RUNNING") for i in range(4)])
    running = await store.fetch_owned([ME, OTHER], limit=2, after="r1", is_running=True)
    assert [row.task_id for row in running] == ["r2", "r3"]
    assert [row.task_id for row in await store.fetch_orphans([], limit=2, after="t3")] == ["t4", "t5"]


async def test_a_summary_of_an_orphan_leaves_out_what_may_be_large(store: Store) -> None:
    """Whoever looks for tasks of the silent reads all that the living hold, too."""
    row = task(status="RUNNING", args="[1]", log="[]")
    await put(store, row)
    assert await store.fetch_orphans([], limit=9) == [row]
    assert await store.fetch_orphans([], limit=9, is_summary=True) == [row.without_payload()]


async def test_a_cancel_request_is_recorded_once(store: Store) -> None:
    """The first instant counts; asking again is still a yes."""
    await put(store, task(status="RUNNING"))
    assert await store.request_cancel(["t1"], 500) == {"t1"}
    assert await store.request_cancel(["t1"], 600) == {"t1"}
    assert await store.fetch("t1") == task(status="RUNNING", cancel_requested_at=500, updated_at=500)


@pytest.mark.parametrize("count", [3, 700])
async def test_many_are_asked_to_cancel_at_once(store: Store, count: int) -> None:
    """Each for itself: who is told which of them were, and those that wait for their time are due."""
    asked: dict[str, dict[str, Any]] = {
        f"t{number:03}": [FREE_LATER, HELD, ENDED][number % 3] for number in range(count)
    }
    await put(store, *(task(name, **columns) for name, columns in asked.items()), task("other", status="RUNNING"))
    live = {name for name, columns in asked.items() if columns is not ENDED}
    assert await store.request_cancel([*asked, "nobody"], 500) == live
    for name, row in (await store.fetch_ids([*asked])).items():
        assert row.cancel_requested_at == (500 if name in live else None)
        assert row.enqueued_at == (500 if asked[name] is FREE_LATER else task(**asked[name]).enqueued_at)
    assert await store.fetch("other") == task("other", status="RUNNING")


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_an_ended_task_cannot_be_asked_to_cancel(store: Store, status: TaskStatus) -> None:
    """False, and the record stays as it is; so for an id that does not exist."""
    row = task(status=status.value)
    await put(store, row)
    assert not await store.request_cancel(["t1"], 500)
    assert not await store.request_cancel(["nobody"], 500)
    assert await store.fetch("t1") == row


async def test_cancel_requests_are_found_by_owner(store: Store) -> None:
    """Only live rows of that owner that were asked."""
    await put(
        store,
        task("a", status="RUNNING", cancel_requested_at=5),
        task("b", claimed_by_worker_id=ME, cancel_requested_at=5),
        task("c", status="RUNNING"),
        task("d", status="RUNNING", claimed_by_worker_id=OTHER, cancel_requested_at=5),
        task("e", status="CANCELLED", claimed_by_worker_id=ME, cancel_requested_at=5),
    )
    assert await store.fetch_cancel_requests(ME) == ["a", "b"]
    assert (await store.news(ME)).cancel_requests == ["a", "b"]


async def test_counts_name_every_status(store: Store) -> None:
    """Zeros included."""
    await put(store, task("a"), task("b"), task("c", status="FAILED"))
    zeros = dict.fromkeys(TaskStatus, 0)
    assert await store.counts() == zeros | {TaskStatus.PENDING: 2, TaskStatus.FAILED: 1}


async def test_purge_deletes_ended_rows_only(store: Store) -> None:
    """Live rows stay at any age; attempts go with their task."""
    await store.commit(
        [
            TaskWrite(task(f"t{i}", status=status.value), None, (attempt(f"t{i}"),))
            for i, status in enumerate(TaskStatus)
        ]
    )
    assert await store.purge(TaskFilter(), None, 100) == len(TERMINAL)
    left = await store.fetch_many(TaskFilter())
    assert {row.status for row in left} == {"PENDING", "CLAIMED", "RUNNING"}
    gone = [f"t{i}" for i, status in enumerate(TaskStatus) if status in TERMINAL]
    assert [await store.fetch_attempts(task_id) for task_id in gone] == [[]] * len(gone)


async def test_purge_is_bounded_by_age_status_and_batch(store: Store) -> None:
    """Strictly older than the given instant, of the given status, at most `limit` at once: a slow disk gets fewer."""
    await put(
        store,
        task("old", status="COMPLETED", completed_at=500),
        task("edge", status="COMPLETED", completed_at=600),
        task("failed", status="FAILED", failed_at=500),
        *[task(f"x{i}", status="CANCELLED", updated_at=10, sent_at=10) for i in range(5)],
    )
    assert await store.purge(TaskFilter(TaskStatus.COMPLETED), 600, 100) == 1
    gone = await store.purge(TaskFilter(TaskStatus.CANCELLED), 600, 3)
    assert 1 <= gone <= 3
    assert await store.purge(TaskFilter(TaskStatus.PENDING), None, 100) == 0
    while page := await store.purge(TaskFilter(), 600, 100):
        gone += page
    assert gone == 6
    assert [row.task_id for row in await store.fetch_many(TaskFilter())] == ["edge"]


async def test_instances_are_saved_replaced_and_forgotten(store: Store) -> None:
    """Oldest start first."""
    young = InstanceRow("b", None, "host", 1, "main", None, 200, None, None, 200)
    old = InstanceRow("a", "web", "host", 2, "main", "boot", 100, None, "[]", 100)
    await store.save_instance(young)
    await store.save_instance(old)
    assert await store.instances() == [old, young]
    stopped = young._replace(stopped_at=300, updated_at=300)
    await store.save_instance(stopped)
    assert await store.instances() == [old, stopped]
    await store.forget_instances(["a", "nobody"])
    assert await store.instances() == [stopped]


async def test_queues_pause_and_resume(store: Store) -> None:
    """Both are idempotent."""
    assert await store.paused_queues() == frozenset()
    for _ in range(2):
        await store.set_paused("mail", True, 1)
    assert await store.paused_queues() == {"mail"}
    for _ in range(2):
        await store.set_paused("mail", False, 2)
    assert await store.paused_queues() == frozenset()


async def test_own_commits_are_no_changes(store: Store) -> None:
    """Only somebody else's writes are news."""
    presence = store.presence(ME)
    if presence is not None:  # on a server it is what hears of others
        await presence.take()
    before = await store.changes()
    await put(store, task())
    await store.claim(wants())
    assert await store.changes() == before
    if presence is not None:
        presence.drop()
    assert await store.look_after() is Whereabouts.WHOLE


async def test_a_stored_row_is_there_after_closing_and_opening(store: Store) -> None:
    """Closing twice is fine, too."""
    await put(store, task())
    await store.close()
    await store.close()
    await store.open()
    assert await store.fetch("t1") == task()


async def test_the_first_unfinished_task_of_a_sender_is_found(store: Store) -> None:
    """Whoever has it now, and whatever its status: only an end takes it away."""
    mine, others = (with_sender('{"persist":true}', each) for each in (ME, OTHER))
    assert await store.first_unfinished(ME, {}) is None
    await put(
        store,
        task("t0", sent_at=90, task_options=mine, status="COMPLETED", completed_at=130, start_count=1),
        task("t1", sent_at=91, task_options=others),
        task("t2", sent_at=92),
        task("t3", sent_at=93, task_options=mine, status="RUNNING"),
        task("t4", sent_at=94, task_options=mine, status="CLAIMED", tags='{"user":"1"}'),
        task("t5", sent_at=95, task_options=mine),
    )
    assert await store.first_unfinished(ME, {}) == 93
    assert await store.first_unfinished(ME, {}, 94) == 94
    assert await store.first_unfinished(ME, {}, 96) is None
    assert await store.first_unfinished(ME, {"user": "1"}) == 94
    assert await store.first_unfinished(ME, {"user": "2"}) is None
    assert await store.first_unfinished(OTHER, {}) == 91
