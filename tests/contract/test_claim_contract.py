"""What every store gives to whom: the order of claims, what is free and when, releases, limits for all instances."""

from typing import Any

import pytest

from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.model.states import WAITING, TaskStatus
from taskmanager.rules.claims import Room, Starting
from taskmanager.store.protocol import ClaimRequest, CommitReport, FreeQueue, InstanceRow, Store, WaitingLevel
from tests.contract.rows import ME, OTHER, expected, put, task, wants

pytestmark = pytest.mark.anyio


async def test_claim_takes_the_best_first(store: Store) -> None:
    """Best is (priority, enqueued_at, id), across functions."""
    rows = [
        task("d", priority=50, enqueued_at=100),
        task("c", priority=50, enqueued_at=100, task_name="app:other"),
        task("b", priority=50, enqueued_at=99, task_name="app:other"),
        task("a", priority=1, enqueued_at=500),
        task("z", priority=99, enqueued_at=1),
    ]
    await put(store, *rows)
    first = await store.claim(wants(limit=3))
    assert [row.task_id for row in first] == ["a", "b", "c"]
    assert [row.task_id for row in await store.claim(wants(limit=3))] == ["d", "z"]
    assert await store.claim(wants()) == []


async def test_a_claimed_row_names_its_owner(store: Store) -> None:
    """What claim returns is what stands in the store."""
    await put(store, task())
    (row,) = await store.claim(wants())
    assert row == task(status="CLAIMED", claimed_at=1_000, updated_at=1_000)
    assert await store.fetch("t1") == row


@pytest.mark.parametrize(
    "row",
    [
        task(enqueued_at=1_001),
        task(queue_name="mail"),
        task(task_name="app:unknown"),
        task(claimed_by_worker_id=OTHER),
        *[task(status=status.value) for status in TaskStatus if status != TaskStatus.PENDING],
    ],
    ids=lambda row: f"{row.status} {row.task_name} {row.queue_name} {row.enqueued_at}",
)
async def test_claim_leaves_what_is_not_for_it(store: Store, row: TaskRow) -> None:
    """Only free, due, PENDING rows of known functions in the asked queue."""
    await put(store, row)
    assert await store.claim(wants()) == []
    assert await store.fetch("t1") == row


async def test_claim_steps_over_delayed_rows_to_due_ones_of_lower_priority(store: Store) -> None:
    """A better row that is not due yet hides nothing."""
    await put(store, *[task(f"late{i}", priority=1, enqueued_at=2_000) for i in range(20)], task("due", priority=90))
    assert [row.task_id for row in await store.claim(wants(limit=1))] == ["due"]


async def test_claim_can_ask_for_better_rows_only(store: Store) -> None:
    """`better_than` is a priority number that must be undercut."""
    await put(store, *[task(f"p{priority}", priority=priority) for priority in (10, 20, 30)])
    assert [row.task_id for row in await store.claim(wants(better_than=20))] == ["p10"]


@pytest.mark.parametrize("nothing", [{"limit": 0}, {"task_names": []}], ids=str)
async def test_claim_of_nothing_is_nothing(store: Store, nothing: dict[str, Any]) -> None:
    """An empty wish is no error."""
    await put(store, task())
    assert await store.claim(wants(**nothing)) == []


def starts(limit: int = 9, *rooms: Room) -> Starting:
    """Slots for what a claim starts; of one lane with all functions if no others are given."""
    return Starting(limit, rooms or (Room(frozenset({"app:job", "app:other"}), 9),), 7, "host", "main")


async def test_claim_starts_the_best_rows_and_claims_the_rest(store: Store) -> None:
    """As many as there are slots of their lane, and in all; each names who started it, when, and for which time."""
    ran = {"start_count": 2, "next_retry_at": 90, "progress": "{}", "retry_count": 1}
    await put(store, task("a", enqueued_at=90, **ran), task("b", task_name="app:other"), task("c"), task("d"))
    lanes = Room(frozenset({"app:job"}), 2), Room(frozenset({"app:other"}), 0)
    rows = await store.claim(wants(limit=3, starting=starts(9, *lanes)))
    begun = {"status": "RUNNING", "claimed_at": 1_000, "started_at": 1_000, "updated_at": 1_000}
    worker = {"worker_pid": 7, "worker_hostname": "host", "worker_process_name": "main"}
    claimed = {"status": "CLAIMED", "claimed_at": 1_000, "updated_at": 1_000}
    assert rows == [
        task("a", **begun, **worker, enqueued_at=90, start_count=3, retry_count=1),
        task("b", **claimed, task_name="app:other"),
        task("c", **begun, **worker, start_count=1),
    ]
    assert list((await store.fetch_ids(["a", "b", "c", "d"])).values()) == [*rows, task("d")]
    assert [row.status for row in await store.claim(wants(starting=starts(0)))] == ["CLAIMED"]


@pytest.mark.parametrize("kind", [{"crash_count": 1}, {"good_until": 9_999}, {"cancel_requested_at": 5}], ids=str)
async def test_claim_starts_only_plain_rows(store: Store, kind: dict[str, Any]) -> None:
    """A suspect runs apart, what may expire is looked at when it starts, and what is to be cancelled never starts."""
    await put(store, task("a", **kind), task("b"))
    assert [row.status for row in await store.claim(wants(starting=starts(1)))] == ["CLAIMED", "RUNNING"]


async def test_a_claim_is_found_again_by_its_instant(store: Store) -> None:
    """What a lost answer has said: the rows of that claim that are still this instance's, and have not ended."""
    await put(store, *(task(name) for name in "abcd"))
    rows = await store.claim(wants(limit=3, starting=starts(1)))
    await store.claim(wants(now=1_001))
    assert await store.fetch_claim(ME, 1_000) == rows
    assert await store.fetch_claim(OTHER, 1_000) == []
    assert await store.fetch_claim(ME, 999) == []
    done = rows[0]._replace(status="COMPLETED", completed_at=1_002)
    await store.commit([TaskWrite(done, expected(rows[0]))])
    assert await store.fetch_claim(ME, 1_000) == rows[1:]


async def test_release_frees_what_an_unanswered_claim_has_started(store: Store) -> None:
    """Nobody heard that it may run. Its start counts, because the count of a row never goes back."""
    await put(store, task("a"), task("b"), task("c"))
    await store.claim(wants(limit=1, starting=starts(1), now=900))
    await store.claim(wants(starting=starts(1)))
    assert await store.release(ME, 2_000, 1_000) == 2
    found = await store.fetch_ids(["b", "c"])
    assert found == {"b": task("b", start_count=1, updated_at=2_000), "c": task("c", updated_at=2_000)}
    assert await store.release(ME, 2_001, 1_000) == 0
    ran = await store.fetch("a")
    assert ran is not None
    assert (ran.status, ran.started_at) == ("RUNNING", 900)


async def test_take_over_starts_every_second_row_that_waits_at_others(store: Store) -> None:
    """Best first, of all others together; free rows and those of this instance are not meant."""
    theirs = [task(f"t{i}", claimed_by_worker_id=OTHER, priority=20 - i) for i in range(4)]
    third = [task("t9", status="CLAIMED", claimed_by_worker_id="third", priority=30)]
    kept = [task("free"), task("mine", claimed_by_worker_id=ME), task("runs", status="RUNNING")]
    await put(store, *theirs, *third, *kept)
    rows = await store.claim(wants(starting=starts(), others_due_at=900))
    assert [(row.task_id, row.status, row.claimed_by_worker_id, row.start_count) for row in rows] == [
        ("t3", "RUNNING", ME, 1),
        ("t1", "RUNNING", ME, 1),
        ("t9", "RUNNING", ME, 1),
    ]
    assert all((row.claimed_at, row.started_at, row.worker_pid) == (1_000, 1_000, 7) for row in rows)
    assert list((await store.fetch_ids([row.task_id for row in kept])).values()) == kept
    assert (await store.fetch("t2")) == theirs[2]


async def test_take_over_takes_no_more_than_it_can_start(store: Store) -> None:
    """By the limit, and by the slots of each lane: what is taken over is started, so that nothing must go back."""
    await put(store, *(task(f"t{i}", claimed_by_worker_id=OTHER) for i in range(9)))
    assert [row.task_id for row in await store.claim(wants(limit=2, starting=starts(), others_due_at=900))] == [
        "t0",
        "t2",
    ]
    one = starts(9, Room(frozenset({"app:job"}), 1))
    assert [row.task_id for row in await store.claim(wants(starting=one, others_due_at=900))] == ["t1"]
    none = starts(9, Room(frozenset({"app:other"}), 9))
    assert await store.claim(wants(starting=none, others_due_at=900)) == []


@pytest.mark.parametrize(
    "row",
    [
        task(enqueued_at=901),
        task(queue_name="mail"),
        task(task_name="app:unknown"),
        task(crash_count=1),
        task(start_count=1),
        task(good_until=9_999),
        task(cancel_requested_at=5),
        *[task(status=status.value) for status in TaskStatus if status not in WAITING],
    ],
    ids=lambda row: f"{row.status} {row.task_name} {row.queue_name} {row.enqueued_at} {row.crash_count}",
)
async def test_take_over_leaves_what_is_not_for_it(store: Store, row: TaskRow) -> None:
    """Not yet due for so long, not known here, not plain, not waiting, or with an earlier run that may go on there."""
    await put(store, row._replace(claimed_by_worker_id=OTHER))
    assert await store.claim(wants(starting=starts(), others_due_at=900)) == []
    assert await store.fetch("t1") == row._replace(claimed_by_worker_id=OTHER)


async def test_a_due_row_stays_due_when_the_clock_goes_back(store: Store) -> None:
    """Rows that were due when they were last written are due now; a moment still to come is a promise, and waits on."""
    was_due = task("due", enqueued_at=5_000, updated_at=5_000)
    promised = task("promised", enqueued_at=9_000, updated_at=5_000)
    owned = task("owned", enqueued_at=5_000, updated_at=5_000, claimed_by_worker_id=ME)
    await put(store, was_due, promised, owned, task("old"))
    assert await store.make_due(1_000) == 1
    assert await store.make_due(1_000) == 0
    found = await store.fetch_ids(["due", "promised", "owned", "old"])
    assert found == {
        "due": task("due", enqueued_at=1_000, updated_at=1_000),
        "promised": promised,
        "owned": owned,
        "old": task("old"),
    }
    assert await store.release(ME, 2_000) == 1
    assert await store.fetch("owned") == task("owned", enqueued_at=2_000, updated_at=2_000)


async def test_a_release_keeps_a_moment_that_is_still_to_come(store: Store) -> None:
    """A retry that waits in memory is released with its delay."""
    await put(store, task("later", enqueued_at=9_000, claimed_by_worker_id=ME))
    await store.release(ME, 2_000)
    assert await store.fetch("later") == task("later", enqueued_at=9_000, updated_at=2_000)


@pytest.mark.parametrize(
    "kind",
    [
        {"start_count": 2, "snooze_count": 1},
        {"start_count": 2, "retry_count": 1, "next_retry_at": 9_500},
        {"task_options": '{"persist":true,"is_delay":true}'},
    ],
    ids=["snooze", "retry", "delay"],
)
async def test_a_pause_is_as_long_as_it_was_when_the_clock_goes_back(store: Store, kind: dict[str, Any]) -> None:
    """It waits for some seconds, not for a moment: free, or freed when its owner stops or has died."""
    pause: dict[str, Any] = {**kind, "enqueued_at": 9_500, "updated_at": 9_000}
    owned = [task(name, **pause, claimed_by_worker_id=name) for name in ("stops", "died")]
    before = task("before", **{**pause, "updated_at": 900})
    await put(store, task("free", **pause), *owned, before)
    assert await store.make_due(1_000) == 1
    assert await store.make_due(1_000) == 0
    assert await store.release("stops", 1_000) == 1
    assert await store.free_waiting("died", 1_000, 9) == 1
    found = await store.fetch_ids(["free", "stops", "died", "before"])
    assert {name: row.enqueued_at for name, row in found.items()} == {
        "free": 1_500,
        "stops": 1_500,
        "died": 1_500,
        "before": 9_500,
    }
    if "next_retry_at" in kind:
        assert all(row.next_retry_at == row.enqueued_at for row in found.values()), "it is shown to people"


async def test_the_latest_stamp_tells_of_a_clock_that_went_back(store: Store) -> None:
    """The last task sent, or instance that wrote its row; nothing in an empty store."""
    assert await store.latest_stamp() == 0
    await put(store, task("a", sent_at=300), task("b", sent_at=200))
    assert await store.latest_stamp() == 300
    await store.save_instance(InstanceRow("i1", None, "host", 1, "main", None, 100, None, None, 400))
    assert await store.latest_stamp() == 400


async def test_the_latest_stamp_is_none_of_the_future(store: Store) -> None:
    """One damaged row must not say when the file was used last; what lies outside of the calendar never counts."""
    await put(store, task("a", sent_at=300), task("b", sent_at=200), task("odd", sent_at=2**62))
    await store.save_instance(InstanceRow("i1", None, "host", 1, "main", None, 100, None, None, 2**62))
    assert await store.latest_stamp() == 300
    assert await store.latest_stamp(250) == 200
    assert await store.latest_stamp(50) == 0


async def test_the_best_that_waits_is_what_a_claim_would_take_first(store: Store) -> None:
    """By priority, then by age, among what is due; nothing is taken by it."""
    rows = [
        task("a", task_name="app:a", priority=2, enqueued_at=300),
        task("b", task_name="app:b", priority=2, enqueued_at=200),
        task("c", task_name="app:c", priority=1, enqueued_at=900),
        task("d", task_name="app:d", priority=1, status="CLAIMED"),
        task("e", task_name="app:e", priority=1, queue_name="mail"),
    ]
    await put(store, *rows)
    names = [row.task_name for row in rows]
    assert await store.best_waiting(names, "default", 899) == "app:b"
    assert await store.best_waiting(names, "default", 900) == "app:c"
    assert await store.best_waiting(["app:a", "app:none"], "default", 899) == "app:a"
    assert await store.best_waiting(["app:d"], "default", 899) is None
    assert await store.best_waiting([], "default", 899) is None
    assert list((await store.fetch_ids(["a", "b", "c", "d", "e"])).values()) == rows


async def test_release_frees_the_waiting_rows_of_one_owner(store: Store) -> None:
    """PENDING and CLAIMED rows of the owner; running ones and those of others stay."""
    mine = [task("m1", claimed_by_worker_id=ME), task("m2", status="CLAIMED")]
    others = [
        task("o1", status="CLAIMED", claimed_by_worker_id=OTHER),
        task("o2", status="RUNNING"),
        task("o3", status="FAILED", claimed_by_worker_id=ME),
    ]
    await put(store, *mine, *others)
    assert await store.release(ME, 900) == 2
    assert await store.fetch_ids(["m1", "m2"]) == {name: task(name, updated_at=900) for name in ("m1", "m2")}
    assert list((await store.fetch_ids([row.task_id for row in others])).values()) == others
    assert await store.release(ME, 901) == 0


async def test_rows_that_waited_at_a_dead_owner_are_freed_a_page_at_a_time(store: Store) -> None:
    """All that may still run, with its delay and its history; nothing stays of the claim, nor of who made it."""
    claim = {"claimed_by_worker_id": ME, "claimed_at": 300, "claim_expires_at": 400, "started_at": 200}
    worker = {"worker_pid": 7, "worker_hostname": "host", "worker_process_name": "main", "failed_reason": "stopping"}
    kept = {"retry_count": 2, "next_retry_at": 9_000, "start_count": 3, "crash_count": 1, "good_until": 901}
    waits = [task("m1", **claim, **worker), task("m2", **kept, enqueued_at=9_000, claimed_by_worker_id=ME)]
    waits += [task("m3", **{**claim, "status": "CLAIMED"}), task("m4", updated_at=5_000, enqueued_at=4_000, **claim)]
    ran = task("o1", status="RUNNING", claimed_by_worker_id=ME)
    others = [task("o2", status="CLAIMED", claimed_by_worker_id=OTHER), task("o3", status="FAILED"), task("o4"), ran]
    await put(store, *waits, *others)
    counts = [await store.free_waiting(ME, 900, 3) for _ in range(3)]
    assert counts == [3, 1, 0]
    assert await store.fetch_ids([row.task_id for row in waits]) == {
        "m1": task("m1", updated_at=900),
        "m2": task("m2", **kept, enqueued_at=9_000, updated_at=900),
        "m3": task("m3", updated_at=900),
        "m4": task("m4", enqueued_at=900, updated_at=900),
    }
    assert list((await store.fetch_ids([row.task_id for row in others])).values()) == others


async def test_first_rows_of_each_queue_are_freed_in_the_order_of_a_claim(store: Store) -> None:
    """Of one owner, and of what may run. What others own, or is free already, takes no place."""
    mine = [
        task("m1", status="CLAIMED", priority=90),
        task("m2", status="CLAIMED", priority=50, enqueued_at=99),
        task("m3", claimed_by_worker_id=ME, priority=50),
        task("m4", claimed_by_worker_id=ME, priority=50, task_name="app:other"),
        task("m5", claimed_by_worker_id=ME, priority=1, cancel_requested_at=5),
        task("m6", claimed_by_worker_id=ME, priority=1, good_until=900),
        task("m7", status="RUNNING", priority=1),
        task("m8", status="CLAIMED", queue_name="mail", priority=99, enqueued_at=9_000),
    ]
    others = [task("o1", status="CLAIMED", claimed_by_worker_id=OTHER, priority=1), task("o2", priority=1)]
    await put(store, *mine, *others, task("o3", status="COMPLETED", priority=1))

    async def free() -> list[str]:
        found = await store.fetch_ids([row.task_id for row in mine])
        return [row.task_id for row in found.values() if row.claimed_by_worker_id is None]

    assert await store.free_waiting(ME, 900, 9, 2) == 3
    assert sorted(await free()) == ["m2", "m3", "m8"]
    assert await store.free_waiting(ME, 900, 9, 1) == 1
    assert sorted(await free()) == ["m2", "m3", "m4", "m8"]
    assert await store.free_waiting(ME, 900, 9, 9) == 1
    assert await store.free_waiting(ME, 900, 9, 9) == 0
    assert list((await store.fetch_ids(["o1", "o2"])).values()) == others


async def test_a_row_to_be_cancelled_or_expired_is_not_freed(store: Store) -> None:
    """It must not run, so it is left to those who judge row by row; and it is in the way of no other."""
    asked = [task(f"a{i}", status="CLAIMED", cancel_requested_at=500) for i in range(3)]
    expired = [task("e1", claimed_by_worker_id=ME, good_until=900), task("e2", claimed_by_worker_id=ME, good_until=8)]
    await put(store, *asked, *expired, task("z", claimed_by_worker_id=ME, good_until=901))
    assert await store.free_waiting(ME, 900, 2) == 1
    assert [row.task_id for row in await store.fetch_owned([ME], limit=9)] == ["a0", "a1", "a2", "e1", "e2"]


async def test_only_free_rows_past_their_time_expire_in_the_store(store: Store) -> None:
    """The longest past first; what an instance holds, runs or has ended is not meant."""
    free = [task(f"t{i}", good_until=good_until) for i, good_until in enumerate((900, 901, 7, 0))]
    held = [task("o1", claimed_by_worker_id=ME, good_until=8), task("o2", status="CLAIMED", good_until=8)]
    await put(store, *free, *held, task("o3", status="RUNNING", good_until=8), task("o4"))
    await put(store, task("o5", status="EXPIRED", good_until=8))
    assert await store.fetch_expired(900, limit=9) == [free[3], free[2], free[0]]
    assert await store.fetch_expired(900, limit=2) == [free[3], free[2]]
    assert await store.fetch_expired(-1, limit=9) == []


async def test_free_queues_shows_what_waits_unowned(store: Store) -> None:
    """Per function and queue: how many, and the earliest due time of any priority."""
    await put(
        store,
        task("a", enqueued_at=300, priority=1),
        task("b", enqueued_at=200, priority=2),
        task("c", queue_name="mail", enqueued_at=400),
        task("d", task_name="app:other", enqueued_at=500),
        task("e", task_name="app:owned", claimed_by_worker_id=ME),
        task("f", task_name="app:done", status="COMPLETED"),
    )
    assert await store.free_queues() == [
        FreeQueue("app:job", "default", 2, 200),
        FreeQueue("app:job", "mail", 1, 400),
        FreeQueue("app:other", "default", 1, 500),
    ]
    assert [each.count for each in await store.free_queues(1)] == [1, 1, 1]


async def test_free_queues_of_an_empty_store_is_empty(store: Store) -> None:
    """Nothing waits."""
    assert await store.free_queues() == []


def _places(owner: str, limit: int, **changes: Any) -> ClaimRequest:
    return ClaimRequest(owner, ["app:job"], "gpu", 100, 200, file_limit=limit, **changes)


async def test_a_claim_counts_what_every_owner_holds_of_the_queue(store: Store) -> None:
    """The count and the claim are one: no two instances together take more than the limit."""
    await put(store, *(task(f"t{number}", queue_name="gpu") for number in range(6)))
    await put(store, task("elsewhere", status="RUNNING"), task("another", status="CLAIMED"))
    await put(store, task("waits", queue_name="gpu", claimed_by_worker_id=ME))
    first = await store.claim(_places(ME, 3)._replace(limit=2))
    assert [row.task_id for row in first] == ["t0", "t1"]
    running = first[0]._replace(status="RUNNING", started_at=210, start_count=1)
    assert await store.commit([TaskWrite(running, expected(first[0]))]) == CommitReport({}, {})
    second = await store.claim(_places(OTHER, 3))
    assert [row.task_id for row in second] == ["t2"]
    assert await store.claim(_places(ME, 3)) == []
    assert await store.claim(_places(OTHER, 2)) == [], "a lower limit than what runs takes nothing"
    done = running._replace(status="COMPLETED", completed_at=220)
    assert await store.commit([TaskWrite(done, expected(running))]) == CommitReport({}, {})
    assert [row.task_id for row in await store.claim(_places(OTHER, 3))] == ["t3"]


async def test_claims_for_several_queues_are_each_kept_to_their_own_limit(store: Store) -> None:
    """With one token, as if they were made one after the other, each best first."""
    for queue, count in (("gpu", 3), ("cpu", 2), ("full", 2), ("free", 3)):
        await put(store, *(task(f"{queue}{each}", queue_name=queue, priority=9 - each) for each in range(count)))
    await put(store, task("runs", queue_name="full", status="RUNNING"))
    requests = [_places(ME, 1)._replace(queue_name=each) for each in ("gpu", "full", "cpu", "nothing")]
    rows = await store.claim(*requests, _places(ME, 1)._replace(queue_name="free", limit=2, file_limit=None))
    assert [row.task_id for row in rows] == ["gpu2", "cpu1", "free2", "free1"]
    assert {(row.status, row.claimed_by_worker_id, row.claimed_at) for row in rows} == {("CLAIMED", ME, 200)}
    assert [row.task_id for row in await store.fetch_claim(ME, 200)] == ["free2", "gpu2", "cpu1", "free1"]
    assert await store.claim(*requests) == []


async def test_claims_for_several_queues_share_what_they_may_take_together(store: Store) -> None:
    """The first ones go first; what nobody of them takes is left to the next."""
    for queue in ("gpu", "cpu", "last"):
        await put(store, *(task(f"{queue}{each}", queue_name=queue) for each in range(3)))
    requests = [_places(ME, 2)._replace(queue_name=each, limit=5, most=3) for each in ("nothing", "gpu", "cpu", "last")]
    assert [row.task_id for row in await store.claim(*requests)] == ["gpu0", "gpu1", "cpu0"]
    assert [row.task_id for row in await store.claim(*requests)] == ["cpu1", "last0", "last1"]


async def test_a_task_that_waits_lends_its_place_to_its_own_instance(store: Store) -> None:
    """To nobody else, not twice, and only as long as its row says that it runs."""
    await put(store, task("parent", queue_name="gpu", status="RUNNING"), *(task(n, queue_name="gpu") for n in "abcd"))
    lent: dict[str, Any] = {"lenders": ["parent"]}
    assert await store.claim(_places(OTHER, 1)) == []
    assert await store.claim(_places(OTHER, 1, **lent)) == []
    assert await store.claim(_places(ME, 1, **lent, borrowed=1)) == []
    assert [row.task_id for row in await store.claim(_places(ME, 1, **lent))] == ["a"]
    assert [row.task_id for row in await store.claim(_places(ME, 3, **lent))] == ["b", "c"]
    parent = await store.fetch("parent")
    assert parent is not None
    done = parent._replace(status="COMPLETED", completed_at=220)
    assert await store.commit([TaskWrite(done, expected(parent))]) == CommitReport({}, {})
    assert await store.claim(_places(ME, 3, **lent)) == []
    more = await store.claim(_places(ME, 4, **lent, borrowed=1))
    assert [row.task_id for row in more] == ["d"], "what is borrowed is counted already"


async def test_waiting_levels_show_what_waits_at_instances(store: Store) -> None:
    """Per queue and priority, whoever has it: when the earliest is due. Free rows and what runs are not meant."""
    await put(
        store,
        task("a", claimed_by_worker_id=ME, enqueued_at=300),
        task("b", claimed_by_worker_id=OTHER, enqueued_at=200),
        task("c", status="CLAIMED", priority=7, enqueued_at=900),
        task("d", claimed_by_worker_id=OTHER, queue_name="mail", enqueued_at=400),
        task("e"),
        task("f", status="RUNNING"),
        task("g", status="FAILED", claimed_by_worker_id=ME),
    )
    levels = [WaitingLevel("default", 7, 900), WaitingLevel("default", 50, 200), WaitingLevel("mail", 50, 400)]
    assert await store.waiting_levels(9) == levels
    assert await store.waiting_levels(0) == []


async def test_fetch_taken_finds_rows_that_another_instance_has_had_last(store: Store) -> None:
    """Whether it runs them, or has ended them."""
    kept = [task("mine", claimed_by_worker_id=ME), task("free"), task("theirs", claimed_by_worker_id=OTHER)]
    ended = task("ended", status="COMPLETED", completed_at=130, claimed_by_worker_id=OTHER)
    await put(store, *kept, ended)
    found = await store.fetch_taken(["mine", "free", "theirs", "ended", "gone"], ME)
    assert found == {"theirs": kept[2], "ended": ended}
    assert await store.fetch_taken([], ME) == {}
