"""The verbs of schedules, for every store: who owns a definition, and a fire that happens once or not at all."""

from typing import Any

import pytest

from taskmanager.model.errors import StoreError
from taskmanager.model.record import TaskRow, TaskWrite, expected_of
from taskmanager.model.schedule import ScheduleDeclaration, ScheduleFire, ScheduleRow, tags_of_runs
from taskmanager.store.protocol import InstanceRow, Store
from tests.contract.rows import FREE_ROW

pytestmark = pytest.mark.anyio

OLD, NEW = "instance-1", "instance-2"


async def begin(store: Store, *instances: str) -> None:
    for each in instances:
        await store.save_instance(InstanceRow(each, None, "host", 1, "main", None, 1, None, None, 1))


def declared(name: str = "nightly", **changes: Any) -> ScheduleDeclaration:
    declaration = ScheduleDeclaration(name, "hash-1", "app:job", "every 60 s", '{"task_name": "app:job"}', 100)
    return declaration._replace(**changes)


def run_of(name: str = "nightly", task_id: str = "run-1", **changes: Any) -> TaskRow:
    row = FREE_ROW._replace(task_id=task_id, tags=tags_of_runs(name), scheduled_for=100)
    return row._replace(**changes)


def fire(name: str = "nightly", task_id: str | None = "run-1", **changes: Any) -> ScheduleFire:
    task = None if task_id is None else run_of(name, task_id)
    return ScheduleFire(name, "hash-1", 100, 160, task, 101)._replace(**changes)


async def only(store: Store, name: str = "nightly") -> ScheduleRow:
    (row,) = await store.schedules([name])
    return row


@pytest.mark.req("DS-094", "DS-095", "DS-096", "DS-097", "DS-098", "DS-099", "DS-100", "DS-101")
async def test_a_declared_schedule_comes_back_as_it_was_declared(store: Store) -> None:
    """With nothing run yet, and owned by who declared it."""
    await begin(store, OLD)
    assert await store.declare_schedules([declared()], OLD, 50) == {"nightly"}
    assert await only(store) == ScheduleRow(
        schedule_name="nightly",
        last_run_at=None,
        next_run_at=100,
        last_task_id=None,
        run_count=0,
        config_hash="hash-1",
        paused_at=None,
        updated_at=50,
        owner_id=OLD,
        task_name="app:job",
        definition="every 60 s",
        template='{"task_name": "app:job"}',
        is_declared=True,
    )
    assert await store.schedules(["nobody"]) == []
    assert await store.declare_schedules([], OLD, 50) == frozenset()


async def test_an_equal_definition_leaves_everything_as_it_is(store: Store) -> None:
    """The second worker of the same release joins in; it owns nothing and resets nothing."""
    await begin(store, OLD, NEW)
    await store.declare_schedules([declared()], OLD, 50)
    assert await store.declare_schedules([declared(next_run_at=999)], NEW, 60) == frozenset()
    row = await only(store)
    assert (row.owner_id, row.next_run_at, row.updated_at) == (OLD, 100, 50)


async def test_the_instance_that_started_last_owns_the_definition(store: Store) -> None:
    """A new release takes over; the old one, however often it declares its own, does not take it back."""
    await begin(store, OLD, NEW)
    await store.declare_schedules([declared()], OLD, 50)
    newer = declared(config_hash="hash-2", definition="every 5 s", next_run_at=65)
    assert await store.declare_schedules([newer], NEW, 60) == {"nightly"}
    assert await store.declare_schedules([declared(next_run_at=130)], OLD, 70) == frozenset()
    row = await only(store)
    assert (row.owner_id, row.config_hash, row.next_run_at) == (NEW, "hash-2", 65)


async def test_a_definition_whose_owner_is_gone_may_be_taken_by_anybody(store: Store) -> None:
    """After a new release was withdrawn, the old one that still runs goes on, reckoned from now."""
    await begin(store, OLD, NEW)
    await store.declare_schedules([declared(config_hash="hash-2", definition="every 5 s")], NEW, 60)
    await store.forget_instances([NEW])
    assert not (await only(store)).is_declared
    assert await store.declare_schedules([declared(next_run_at=130)], OLD, 70) == {"nightly"}
    row = await only(store)
    assert (row.owner_id, row.config_hash, row.next_run_at, row.is_declared) == (OLD, "hash-1", 130, True)


async def test_another_task_with_the_same_timing_keeps_the_next_fire(store: Store) -> None:
    """New arguments are no reason to forget that a fire was missed, or to begin a day's interval anew."""
    await begin(store, OLD, NEW)
    await store.declare_schedules([declared()], OLD, 50)
    await store.declare_schedules([declared(config_hash="hash-2", template="{}", next_run_at=999)], NEW, 60)
    row = await only(store)
    assert (row.config_hash, row.template, row.next_run_at) == ("hash-2", "{}", 100)


async def test_a_fire_that_is_to_run_alone_loses_while_a_run_has_not_ended(store: Store) -> None:
    """Asked in the transaction of the fire: a run beside the fires, by another instance, may have come in between."""
    await begin(store, OLD)
    await store.declare_schedules([declared()], OLD, 50)
    beside = fire(task_id="at-start", next_run_at=100, is_alone=True)
    assert await store.fire_schedules([beside]) == frozenset()
    assert await store.fire_schedules([fire(is_alone=True)]) == {"nightly"}
    assert await store.fetch("run-1") is None
    assert (await only(store)).next_run_at == 100
    assert await store.fire_schedules([fire()]) == frozenset()


async def test_a_fire_moves_the_schedule_and_inserts_a_free_task(store: Store) -> None:
    """Both or neither: one transaction."""
    await begin(store, OLD)
    await store.declare_schedules([declared()], OLD, 50)
    assert await store.fire_schedules([fire()]) == frozenset()
    row = await only(store)
    assert (row.last_run_at, row.next_run_at, row.last_task_id, row.run_count) == (101, 160, "run-1", 1)
    assert await store.fetch("run-1") == run_of()


@pytest.mark.parametrize("changes", [{"expected_next": 99}, {"expected_hash": "hash-2"}, {"expected_next": None}])
async def test_a_fire_on_another_state_loses_and_changes_nothing(store: Store, changes: dict[str, Any]) -> None:
    """Who fires second, or by an older definition, is told so; there is no task of it."""
    await begin(store, OLD)
    await store.declare_schedules([declared()], OLD, 50)
    before = await only(store)
    assert await store.fire_schedules([fire(**changes)]) == {"nightly"}
    assert await only(store) == before
    assert await store.fetch("run-1") is None
    assert await store.fire_schedules([fire("nobody")]) == {"nobody"}


async def test_losers_and_winners_of_one_batch_do_not_disturb_each_other(store: Store) -> None:
    """A thousand schedules of one second are one transaction, whoever else fires some of them."""
    await begin(store, OLD)
    names = [f"s{number}" for number in range(5)]
    await store.declare_schedules([declared(name) for name in names], OLD, 50)
    await store.fire_schedules([fire("s1", "other")])
    assert await store.fire_schedules([fire(name, f"run-{name}") for name in names]) == {"s1"}
    assert [row.run_count for row in await store.schedules(names)] == [1] * 5
    assert (await only(store, "s1")).last_task_id == "other"
    assert await store.fetch("run-s1") is None


async def test_a_dropped_fire_moves_on_without_a_task(store: Store) -> None:
    """The last run stays the last run."""
    await begin(store, OLD)
    await store.declare_schedules([declared()], OLD, 50)
    assert await store.fire_schedules([fire(task_id=None)]) == frozenset()
    row = await only(store)
    assert (row.last_run_at, row.next_run_at, row.run_count) == (None, 160, 0)


async def test_a_fire_whose_task_exists_is_not_run_again(store: Store) -> None:
    """The id of a run is that of its fire: a clock that was stepped back and a row that was reset repeat nothing."""
    await begin(store, OLD)
    await store.declare_schedules([declared()], OLD, 50)
    await store.fire_schedules([fire()])
    assert await store.fire_schedules([fire(expected_next=160, next_run_at=220)]) == frozenset()
    row = await only(store)
    assert (row.next_run_at, row.run_count) == (220, 1)


async def test_a_row_that_cannot_be_stored_spoils_the_batch_by_name_of_an_error(store: Store) -> None:
    """Nothing of it is written, so that the caller can try one by one."""
    await begin(store, OLD)
    await store.declare_schedules([declared(), declared("other")], OLD, 50)
    guilty = fire()._replace(task=run_of(priority=101))
    with pytest.raises(StoreError):
        await store.fire_schedules([fire("other", "run-2"), guilty])
    assert [row.run_count for row in await store.schedules()] == [0, 0]
    assert await store.fetch("run-2") is None


async def test_a_paused_schedule_does_not_fire_but_can_be_run_by_hand(store: Store) -> None:
    """The pause holds against a fire that was decided before it."""
    await begin(store, OLD)
    await store.declare_schedules([declared()], OLD, 50)
    assert await store.set_schedule_paused("nightly", True, 90)
    assert await store.set_schedule_paused("nightly", True, 95)
    assert (await only(store)).paused_at == 90
    assert await store.fire_schedules([fire()]) == {"nightly"}
    assert await store.fire_schedules([fire(next_run_at=100, is_manual=True)]) == frozenset()
    row = await only(store)
    assert (row.next_run_at, row.last_task_id, row.run_count) == (100, "run-1", 1)


async def test_a_resumed_schedule_forgets_its_next_fire(store: Store) -> None:
    """It is reckoned from then on; one that was not paused keeps it."""
    await begin(store, OLD)
    await store.declare_schedules([declared()], OLD, 50)
    assert await store.set_schedule_paused("nightly", False, 80)
    assert (await only(store)).next_run_at == 100
    await store.set_schedule_paused("nightly", True, 90)
    assert await store.set_schedule_paused("nightly", False, 110)
    row = await only(store)
    assert (row.paused_at, row.next_run_at) == (None, None)
    assert not await store.set_schedule_paused("nobody", True, 90)


async def test_schedules_are_listed_by_their_next_fire(store: Store) -> None:
    """Those without one last; `limit` takes the first."""
    await begin(store, OLD)
    nexts = {"late": 300, "soon": 100, "none": None, "middle": 200}
    await store.declare_schedules([declared(name, next_run_at=at) for name, at in nexts.items()], OLD, 50)
    assert [row.schedule_name for row in await store.schedules()] == ["soon", "middle", "late", "none"]
    assert [row.schedule_name for row in await store.schedules(limit=2)] == ["soon", "middle"]
    assert [row.schedule_name for row in await store.schedules(["none", "late", "nobody"])] == ["late", "none"]
    await store.set_schedule_paused("late", True, 70)
    assert [row.schedule_name for row in await store.schedules(changed_since=60)] == ["late"]
    assert [row.schedule_name for row in await store.schedules(["soon", "late"], changed_since=50)] == ["soon", "late"]


@pytest.mark.parametrize(
    ("status", "is_busy"),
    [("PENDING", True), ("CLAIMED", True), ("RUNNING", True), ("COMPLETED", False), ("FAILED", False)],
)
async def test_a_schedule_is_busy_until_its_run_has_ended(store: Store, status: str, is_busy: bool) -> None:
    """Also while the run waits for a slot, or for its next retry. A tag alone makes no run of a schedule."""
    await begin(store, OLD)
    await store.commit([TaskWrite(run_of(), None), TaskWrite(run_of("other", "run-2", scheduled_for=None), None)])
    state: dict[str, Any] = {"CLAIMED": {"claimed_by_worker_id": OLD}, "COMPLETED": {"completed_at": 9}}.get(status, {})
    if status == "RUNNING":
        state = {"claimed_by_worker_id": OLD, "started_at": 5, "start_count": 1}
    changed = run_of(status=status, **state)
    await store.commit([TaskWrite(changed, expected_of(run_of()))])
    await store.commit([TaskWrite(run_of('a "hourly" one', "run-3"), None), TaskWrite(run_of("übrig", "run-4"), None)])
    asked = ["nightly", "other", 'a "hourly" one']
    assert await store.busy_schedules(asked) == {'a "hourly" one'} | ({"nightly"} if is_busy else set())
    assert await store.busy_schedules(["übrig"]) == {"übrig"}
    assert await store.busy_schedules([]) == frozenset()


async def test_a_run_that_nobody_knows_any_more_holds_up_no_other(store: Store) -> None:
    """The task of the schedule was renamed while a run waited: that would wait for ever, and the schedule with it."""
    await begin(store, OLD)
    await store.declare_schedules([declared(task_name=FREE_ROW.task_name)], OLD, 50)
    await store.commit([TaskWrite(run_of(), None)])
    assert await store.busy_schedules(["nightly"]) == {"nightly"}
    await store.declare_schedules([declared(task_name="app:renamed", config_hash="hash-2")], NEW, 60)
    assert await store.busy_schedules(["nightly"]) == frozenset()
    assert not await store.fire_schedules([fire(task_id="run-2", expected_hash="hash-2", is_alone=True)])
    claimed = run_of(status="CLAIMED", claimed_by_worker_id=OLD)
    await store.commit([TaskWrite(claimed, expected_of(run_of()))])
    assert await store.busy_schedules(["nightly"]) == {"nightly"}
