"""The reaper, and what a person may do by hand: who is taken for dead, and what becomes of his tasks."""

import logging
from typing import Any

import pytest

from taskmanager import RecoveryConfig, TaskStatus
from taskmanager.duties import recovery
from taskmanager.model.errors import StoreUnavailable
from taskmanager.store.sqlite.presence import FilePresence, has_lock_file, lock_path, sign_of_life
from tests.contract.rows import task
from tests.unit.duties.scene import NOW_US, until

pytestmark = pytest.mark.anyio


async def test_a_write_of_others_during_a_slow_start_is_no_clock_set_back(
    stage: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many that start at once wait for each other."""
    scene = await stage()
    latest_stamp = scene.engine.store.latest_stamp

    async def latest_stamp_after_a_wait() -> int:
        scene.clock.pass_s(5)
        now = scene.clock.now_us()
        await scene.put(task("t1", task_name="elsewhere", enqueued_at=now, sent_at=now, updated_at=now))
        return int(await latest_stamp())

    monkeypatch.setattr(scene.engine.store, "latest_stamp", latest_stamp_after_a_wait)
    await scene.duties.recover()
    assert "set back" not in caplog.text


@pytest.mark.req("RC-02", "RC-08", "RC-10", "RC-39", "HB-03", "HB-06", "HB-17", "HB-18", "HB-19", "HB-20")
async def test_silence_is_judged_by_role_and_only_beyond_the_threshold(stage: Any) -> None:
    """Claims by the claimer's beat, runs by the runner's; one role keeps nothing of the other alive."""
    scene = await stage()
    await scene.other("quiet", task("claimed", status="CLAIMED"), task("running", status="RUNNING"))
    scene.beat("quiet", "claimer", "runner")
    waiting, started = {"claimed": "CLAIMED"}, {"running": "RUNNING"}
    assert await scene.sweep() == waiting | started
    scene.clock.pass_s(120)
    assert await scene.sweep() == waiting | started
    scene.clock.pass_s(1)
    assert await scene.sweep() == {"claimed": "PENDING"} | started
    scene.beat("quiet", "claimer")
    scene.clock.pass_s(179)
    assert await scene.sweep() == {"claimed": "PENDING"} | started
    scene.beat("quiet", "claimer")
    scene.clock.pass_s(1)
    assert await scene.sweep() == {"claimed": "PENDING", "running": "FAILED"}
    assert scene.query("SELECT error_code FROM taskmanager_tasks WHERE id = 'running'") == [("WORKER_CRASHED",)]
    (info,) = await scene.manager.list(status=TaskStatus.FAILED)
    attempts = (await scene.manager.get(info.task_id, include_attempts=True)).attempts
    assert [(each.attempt, each.outcome) for each in attempts] == [(1, "WORKER_FAILURE")]


RETRIED = """{"retry": {"codes": ["WORKER_CRASHED"], "max_retries": 1, "intervals": [1.0], "is_exponential": false,
"factor": 2.0, "jitter": true, "min_delay_s": 1.0, "max_delay_s": null}}"""


async def test_a_crash_says_why_as_any_failure_does(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One ERROR for good, one WARNING for a retry: nobody else would tell. What only goes on is neither."""
    scene = await stage()
    safe = task("safe", status="RUNNING", task_options='{"requeue_on_interrupt": true}')
    again = task("again", status="RUNNING", task_options=RETRIED)
    claimed = task("claimed", status="CLAIMED")
    await scene.other("gone", task("running", status="RUNNING"), safe, again, claimed, is_alive=False)
    await scene.manager._lifecycle.duties.recover()
    said = {each.task_id: each for each in caplog.records if hasattr(each, "task_id")}
    assert {name: each.levelname for name, each in said.items()} == {"running": "ERROR", "again": "WARNING"}
    assert said["running"].task_name == said["again"].task_name == "app:job"
    reason = "failed with WORKER_CRASHED: its owner is gone while it ran; "
    assert f"{reason}no policy retries a crash" in said["running"].getMessage()
    assert f"{reason}retry 1 of 1" in said["again"].getMessage()


@pytest.mark.parametrize(
    ("recovery", "left"),
    [
        (RecoveryConfig(auto_fail_stale_running=False), {"claimed": "PENDING", "running": "RUNNING"}),
        (RecoveryConfig(auto_requeue_stale_claimed=False), {"claimed": "CLAIMED", "running": "FAILED"}),
    ],
    ids=["running", "claimed"],
)
async def test_each_switch_holds_its_own_half_back(stage: Any, recovery: RecoveryConfig, left: dict[str, str]) -> None:
    """And the row of the dead instance stays with what is left: it tells who that was, and on which boot."""
    scene = await stage(recovery=recovery)
    await scene.other("dead", task("claimed", status="CLAIMED"), task("running", status="RUNNING"), is_alive=False)
    assert await scene.sweep() == left
    assert ("dead",) in scene.query("SELECT instance_id FROM taskmanager_instances")


@pytest.mark.parametrize(("is_same_boot", "crash_count"), [(True, 1), (False, 0)], ids=["killed", "power cut"])
async def test_only_a_death_on_the_same_boot_counts_as_a_crash(
    stage: Any, is_same_boot: bool, crash_count: int
) -> None:
    """A power cut says nothing about the tasks that ran, and must make none of them a suspect."""
    scene = await stage()
    safe = task("safe", status="RUNNING", task_options='{"requeue_on_interrupt": true}')
    boot_id = scene.engine.identity.boot_id if is_same_boot else "before the power cut"
    await scene.other("dead", safe, is_alive=False, boot_id=boot_id)
    await scene.sweep()
    assert scene.query("SELECT status, crash_count FROM taskmanager_tasks") == [("PENDING", crash_count)]


@pytest.mark.req("RC-30", "RC-31")
async def test_a_long_task_whose_instance_beats_is_healthy(stage: Any) -> None:
    """However long it runs: a beat whose value changes is a sign of life, whatever clock it was read from."""
    scene = await stage()
    await scene.other("busy", task("long", status="RUNNING"))
    for _ in range(10):
        scene.beat("busy", "runner")
        assert await scene.sweep() == {"long": "RUNNING"}
        scene.clock.pass_s(299)


async def test_a_run_whose_heartbeat_gets_not_through_is_not_run_twice(stage: Any) -> None:
    """A slow disk lets some write, and others wait for longer than the threshold. What waits there may be freed."""
    scene = await stage()
    await scene.other("starved", task("claimed", status="CLAIMED"), task("running", status="RUNNING"))
    scene.beat("starved", "claimer", "runner")
    await scene.sweep()
    for _ in range(3):
        before = sign_of_life(scene.db, "starved")
        while sign_of_life(scene.db, "starved") == before:  # the time of a file is coarse
            scene.locks[0].show_life()
        scene.clock.pass_s(200)
        assert (await scene.sweep())["running"] == "RUNNING"
    assert scene.statuses()["claimed"] == "PENDING"
    scene.clock.pass_s(301)
    assert (await scene.sweep())["running"] == "FAILED", "nothing shows any more that it lives"


@pytest.mark.req("RC-12", "RC-32", "RC-33", "DS-032", "DS-033")
async def test_a_task_whose_outcome_is_on_its_way_has_the_longer_of_two_thresholds(stage: Any) -> None:
    """Its code has returned; only the write is missing, and both thresholds must have passed."""
    scene = await stage(recovery=RecoveryConfig(finalizing_stale_threshold_ms=600_000))
    ending = task("ending", status="RUNNING", finalizing_at=125, finalizing_by_worker_id="quiet")
    await scene.other("quiet", ending, task("running", status="RUNNING"))
    scene.beat("quiet", "claimer", "runner")
    await scene.sweep()
    scene.clock.pass_s(301)
    assert await scene.sweep() == {"ending": "RUNNING", "running": "FAILED"}
    scene.clock.pass_s(300)
    assert (await scene.sweep())["ending"] == "FAILED"


async def test_an_instance_that_cannot_write_calls_no_other_silent(stage: Any) -> None:
    """A file that was locked for minutes looks like silence to everybody; what was seen before it is worth nothing."""
    scene = await stage()
    await scene.other("quiet", task("claimed", status="CLAIMED"))
    scene.beat("quiet", "claimer")
    await scene.sweep()
    scene.duties.heartbeat.stop()  # or its next beat would say that all is well
    scene.clock.pass_s(500)
    scene.duties.heartbeat.failed_count = 1
    assert await scene.sweep() == {"claimed": "CLAIMED"}
    scene.duties.heartbeat.failed_count = 0
    scene.clock.pass_s(120)
    assert await scene.sweep() == {"claimed": "CLAIMED"}
    scene.clock.pass_s(1)
    assert await scene.sweep() == {"claimed": "PENDING"}


async def test_an_instance_that_could_not_write_since_a_sweep_calls_none_silent(stage: Any) -> None:
    """A sweep may be more seldom than the file is locked. Whoever gets through first must not take the others, which
    waited for the same lock, for dead.
    """
    scene = await stage()
    await scene.other("kept out", task("claimed", status="CLAIMED"))
    scene.beat("kept out", "claimer")
    await scene.sweep()
    heartbeat = scene.duties.heartbeat
    heartbeat.stop()  # it beats when the test says so

    class Locked:
        def beat(self, beats: object) -> None:
            raise StoreUnavailable("locked")

        def let_go(self) -> None: ...

    scene.clock.pass_s(60)
    heartbeat.pulse(Locked())
    scene.clock.pass_s(240)
    beater = scene.engine.store.open_beater()
    assert beater is not None
    heartbeat.pulse(beater)
    beater.close()
    assert heartbeat.is_well
    assert await scene.sweep() == {"claimed": "CLAIMED"}
    scene.clock.pass_s(121)
    assert await scene.sweep() == {"claimed": "PENDING"}, "nobody is in its way any more"


async def test_troubles_now_and_then_do_not_keep_the_dead_for_ever(stage: Any) -> None:
    """Each starts the patience anew, but time in which the observer got through adds up: three thresholds suffice."""
    scene = await stage()
    await scene.other("quiet", task("claimed", status="CLAIMED"))
    scene.beat("quiet", "claimer")
    await scene.sweep()
    heartbeat = scene.duties.heartbeat
    heartbeat.stop()
    for _ in range(4):
        scene.clock.pass_s(90)
        assert await scene.sweep() == {"claimed": "CLAIMED"}
        heartbeat.trouble_count += 1
        scene.clock.pass_s(90)
        assert await scene.sweep() == {"claimed": "CLAIMED"}, "this time counts for nothing"
    scene.clock.pass_s(1)
    assert await scene.sweep() == {"claimed": "PENDING"}


@pytest.mark.req("RC-62", "RC-63", "RC-64", "HB-50", "RC-65", "RC-66", "RC-67", "RC-68", "RC-69", "RC-s5", "RC-s4")
async def test_switched_off_stuck_tasks_stay_until_somebody_acts(stage: Any) -> None:
    """Then a person decides, by wall time; before a first beat, the claim or the start counts as the last sign."""
    recovery = RecoveryConfig(auto_requeue_stale_claimed=False, auto_fail_stale_running=False)
    scene = await stage(recovery=recovery)
    minutes_ago = NOW_US - 4 * 60 * 1_000_000
    rows = (
        task("claimed", status="CLAIMED", claimed_at=minutes_ago),
        task("accepted", updated_at=minutes_ago),
        task("running", status="RUNNING", started_at=minutes_ago),
    )
    await scene.other("dead", *rows, is_alive=False)
    scene.clock.pass_s(3)
    assert await scene.sweep() == {"claimed": "CLAIMED", "accepted": "PENDING", "running": "RUNNING"}
    manager = scene.manager
    stale = {each.task_id: each.claimed for each in await manager.get_stale_tasks()}
    assert stale == {"claimed": True, "accepted": True, "running": False}
    assert await manager.get_stale_tasks(stale_threshold_minutes=5) == ()
    assert await manager.mark_stale_tasks_as_failed() == 0, "300 s have not passed"
    assert await manager.requeue_stale_claimed() == 2, "120 s have"
    assert [each.claimed for each in await manager.list(status=TaskStatus.PENDING)] == [False, False]
    scene.beat("dead", "claimer")
    assert await manager.mark_stale_tasks_as_failed(stale_threshold_ms=240_000) == 1, "the other role's beat is none"
    assert scene.statuses() == {"claimed": "PENDING", "accepted": "PENDING", "running": "FAILED"}


@pytest.mark.req("RC-04", "RC-22", "HB-04", "HB-34", "HB-55", "RC-15")
async def test_recovery_runs_by_itself_and_says_what_it_did(
    stage: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every `check_interval_ms`; the log tells that it was started, and what was moved."""
    caplog.set_level(logging.INFO, "taskmanager")
    scene = await stage(recovery=RecoveryConfig(check_interval_ms=1_000))
    assert "heartbeat, reaper and retention have started" in caplog.text
    await scene.other("dead", task("claimed", status="CLAIMED"), is_alive=False)
    await until(lambda: scene.statuses() == {"claimed": "PENDING"})
    await until(lambda: "recovered 1 task of 1 dead instance" in caplog.text)


async def test_a_death_while_recovery_waits_for_a_lock_file_is_recovered_too(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose lock file is gone has time to put it back; a death in that time is not missed for another round."""
    monkeypatch.setattr(recovery, "PUT_BACK_S", 0.05)
    scene = await stage()

    def look_while_the_other_dies(presence: FilePresence, instance_id: str) -> bool:
        scene.locks[0].close_descriptor()
        return not has_lock_file(scene.db, instance_id)

    monkeypatch.setattr(FilePresence, "is_missing", look_while_the_other_dies)
    await scene.other("late", task("second", status="CLAIMED"))
    await scene.other("gone", task("first", status="CLAIMED"), is_alive=False)
    lock_path(scene.db, "gone").unlink()
    scene.beat("late", "claimer")  # so that both are heard of
    await until(lambda: scene.statuses() == {"first": "PENDING", "second": "PENDING"})
