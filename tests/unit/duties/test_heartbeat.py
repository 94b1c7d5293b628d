"""Heartbeats: who beats, for whom, how long, and what is no blocked loop."""

import asyncio
import logging
import sqlite3
import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from taskmanager import RecoveryConfig
from taskmanager.duties.heartbeat import BLOCKED_AFTER_S, LOOP_PROBE_S, Heartbeat, Rest
from taskmanager.duties.visibility import Visibility
from taskmanager.store.sqlite.presence import sign_of_life
from tests.unit.duties.scene import NOW_US, until

pytestmark = pytest.mark.anyio


@pytest.mark.req(
    "RC-40", "RC-41", "HB-02", "HB-08", "HB-09", "HB-10", "HB-11", "HB-12", "HB-13", "HB-14", "HB-15", "HB-43", "HB-44",
    "HB-45", "HB-46", "HB-47", "HB-48", "HB-49", "HB-s1", "DS-064", "DS-065", "DS-066", "DS-067", "DS-068", "DS-069",
    "DS-070", "DS-071",
)  # fmt: skip
async def test_an_instance_beats_for_all_its_tasks_in_both_roles_every_interval(stage: Any) -> None:
    """One row per role covers what waits and what runs, from the start on, by a thread beside the loop."""
    scene = await stage()
    who = scene.engine.identity
    rows = "SELECT id, task_id, sender_id, role, sent_at, hostname, pid FROM taskmanager_heartbeats ORDER BY id"
    await until(lambda: len(scene.query(rows)) == 2)
    expected = [
        (number, None, who.instance_id, role, NOW_US, who.hostname, who.pid)
        for number, role in ((1, "claimer"), (2, "runner"))
    ]
    assert scene.query(rows) == expected
    scene.clock.pass_s(30)
    await until(lambda: len(scene.query(rows)) == 4)
    assert {row[4] for row in scene.query(rows)[2:]} == {NOW_US + 30_000_000}


@pytest.mark.req("HB-s4")
async def test_a_heartbeat_that_cannot_be_written_harms_no_task_and_is_tried_again(stage: Any) -> None:
    """The file is locked when it is due: the beat comes late, and the task does not notice. The lock file says so."""
    scene = await stage()
    me = scene.engine.identity.instance_id
    gate = asyncio.Event()

    @scene.manager.task(persist=True)  # type: ignore[untyped-decorator]
    async def work() -> str:
        await gate.wait()
        return "done"

    handle = work.enqueue()
    await handle.saved()
    await until(lambda: len(scene.query("SELECT 1 FROM taskmanager_heartbeats")) >= 2)
    with closing(sqlite3.connect(scene.db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        before = sign_of_life(scene.db, me)
        scene.clock.pass_s(30)
        await until(lambda: scene.duties.heartbeat.failed_count > 0)
        assert sign_of_life(scene.db, me) != before
        assert not scene.duties.heartbeat.is_well
        other.execute("ROLLBACK")
    await until(lambda: len(scene.query("SELECT 1 FROM taskmanager_heartbeats")) >= 4)
    await until(lambda: scene.duties.heartbeat.failed_count == 0)
    gate.set()
    assert await handle == "done"


async def test_a_start_that_waited_is_no_loop_that_was_blocked(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """For the file, or for somebody's lock: the loop was free meanwhile, and a warning would blame the application."""
    scene = await stage()
    scene.duties.heartbeat.stop()
    heartbeat = Heartbeat(scene.engine, Visibility(scene.engine))
    scene.clock.pass_s(BLOCKED_AFTER_S + 0.4)
    heartbeat.start(lambda: True)
    heartbeat.stop(10)
    assert "blocked" not in caplog.text


@pytest.mark.parametrize("phase", ["rest", "beat"])
async def test_a_process_that_was_stopped_is_no_loop_that_was_blocked(
    stage: Any, caplog: pytest.LogCaptureFixture, phase: str
) -> None:
    """Wherever the heart was when SIGSTOP came. A loop that is blocked from then on is said to be as soon as any."""
    scene = await stage()
    heart = scene.duties.heartbeat
    heart.stop()

    class Slow:
        def beat(self, beats: object) -> None:
            if phase == "beat":
                scene.clock.pass_s(100)

        def let_go(self) -> None: ...

    heart._due_s = dict.fromkeys(heart._due_s, 0.0)
    heart.pulse(Slow())
    if phase == "rest":
        scene.clock.pass_s(100)
        heart.pulse(Slow())
    assert "blocked" not in caplog.text
    silent_s = 0.0
    while "blocked" not in caplog.text:
        scene.clock.pass_s(LOOP_PROBE_S)
        heart.pulse(Slow())
        silent_s += LOOP_PROBE_S
        assert silent_s <= BLOCKED_AFTER_S + 2 * LOOP_PROBE_S


async def test_heart_beats_every_second_while_nobody_sees_that_it_lives(stage: Any) -> None:
    """Where the proof of life is lost, beats are all that the others see: for what runs, until it is put back."""
    scene = await stage()
    scene.duties.heartbeat.stop()
    heart, beats = Heartbeat(scene.engine, Visibility(scene.engine)), list[str]()
    heart._presence = SimpleNamespace(put_back=lambda: is_seen, show_life=lambda: None)
    beater = SimpleNamespace(beat=lambda them: beats.extend(each.role for each in them), let_go=lambda: None)

    def pulses(seconds: float) -> list[str]:
        beats.clear()
        for _ in range(int(seconds / LOOP_PROBE_S)):
            scene.clock.pass_s(LOOP_PROBE_S)
            heart.pulse(beater)
        return list(beats)

    is_seen = True
    assert pulses(5) == ["claimer", "runner"]
    is_seen = False
    assert pulses(5) == ["runner"] * 5
    is_seen = True
    pulses(1)
    assert pulses(5) == []


class SetBack(threading.Event):
    """An event whose time-outs are measured by a wall clock that is set back while somebody waits: none ever comes."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None)


async def test_a_wall_clock_that_is_set_back_makes_no_heart_stop(stage: Any) -> None:
    """Time-outs of locks go by the wall clock with some C libraries; all hearts of a machine would stop together."""
    scene = await stage()
    other = Heartbeat(scene.engine, Visibility(scene.engine))
    other._stop = SetBack()
    rounds, pulse = threading.Semaphore(0), other.pulse

    def counted(beater: Any) -> bool:
        rounds.release()
        return pulse(beater)

    other.pulse = counted  # type: ignore[method-assign]  # to be told of each round
    other.start(lambda: True)
    for _ in range(3):
        assert await asyncio.to_thread(rounds.acquire, timeout=20)
    other.stop(20)
    assert other._thread is not None
    assert not other._thread.is_alive(), "and it ends at once when it is told to"


def test_a_heart_without_descriptors_rests_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have none left, or close what it did not open; that is no reason to spin, or to end."""
    waits: list[float | None] = []
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", waits.append)
    closed = Rest(stop)
    closed.close()
    assert not closed.wait(0.5)
    with monkeypatch.context() as patch:
        patch.setattr("socket.socketpair", lambda: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        bare = Rest(stop)
    assert not bare.wait(0.5)
    assert waits == [0.5, 0.5]
    stop.set()
    bare.end()
    assert bare.wait(0.5)
    bare.close()


async def test_a_loop_is_blocked_while_it_does_not_beat(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its own beat says that it runs, so it is woken by nobody. At the end of a stop it beats no more, and may run."""
    scene = await stage()
    heart, beater = scene.duties.heartbeat, scene.engine.store.open_beater()
    heart.stop()

    def listen(rounds: int, *, is_heard: bool) -> list[str]:
        caplog.clear()
        for _ in range(rounds):
            scene.clock.pass_s(LOOP_PROBE_S)
            scene.engine.stall.beat_count += is_heard
            assert heart.pulse(beater)
        return [each.getMessage() for each in caplog.records]

    assert listen(10, is_heard=True) == []
    assert listen(10, is_heard=False) == ["the event loop has been blocked for 2.5 s; running: no task"]
    assert listen(10, is_heard=True) == ["the event loop goes on after being blocked for 5.5 s"]
    scene.engine.stall.close()
    assert listen(10, is_heard=False) == []
    beater.close()


async def test_a_blocked_loop_frees_what_waits_and_keeps_what_runs(stage: Any) -> None:
    """After the threshold of running tasks the claimer beats no more, so that others start what waits here."""
    scene = await stage(recovery=RecoveryConfig(running_stale_threshold_ms=60_000))
    heart = scene.duties.heartbeat
    heart.stop()
    beaten: list[str] = []
    beater = SimpleNamespace(beat=lambda beats: beaten.extend(each.role for each in beats), let_go=lambda: None)
    while not beaten or "claimer" in beaten:
        beaten.clear()
        heart._due_s = dict.fromkeys(heart._due_s, 0.0)
        scene.clock.pass_s(LOOP_PROBE_S)
        heart.pulse(beater)
        assert scene.clock.elapsed - heart._heard_s <= 60 + 2 * LOOP_PROBE_S
    assert beaten == ["runner"]
    assert scene.clock.elapsed - heart._heard_s > 60


async def test_no_mistake_of_ours_stops_the_heart(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Without its beats others would take over what runs here."""
    scene = await stage()
    heartbeat = scene.duties.heartbeat
    heartbeat.stop()

    class Broken:
        def beat(self, beats: object) -> None:
            raise ValueError("boom")

        def let_go(self) -> None: ...

    scene.clock.pass_s(100)
    for _ in range(2):
        assert heartbeat._survives(Broken())
    assert scene.manager.status().failing_duties == {"heartbeat": "ValueError: boom"}
    assert heartbeat.failed_count == 2, "so that no observation of others is trusted"
    assert [each.levelno for each in caplog.records] == [logging.CRITICAL]
    beater = scene.engine.store.open_beater()
    assert heartbeat._survives(beater)
    beater.close()
    assert scene.manager.status().failing_duties == {}


async def test_the_heart_beats_until_the_last_task_of_a_drain_has_ended(stage: Any) -> None:
    """Else a long drain would look like a death, and others would start the tasks that are about to end."""
    scene = await stage()
    gate = asyncio.Event()

    @scene.manager.task(persist=True, requeue_on_interrupt=True)  # type: ignore[untyped-decorator]
    async def work() -> str:
        await gate.wait()
        return "done"

    handle = work.enqueue()
    await until(lambda: len(scene.engine.runner.running) == 1)
    await until(lambda: len(scene.query("SELECT 1 FROM taskmanager_heartbeats")) >= 2)
    stopping = asyncio.ensure_future(scene.manager.stop(timeout=30))
    await until(lambda: scene.manager.status().state == "draining")
    scene.clock.pass_s(30)
    await until(lambda: len(scene.query("SELECT 1 FROM taskmanager_heartbeats")) >= 4)
    assert not stopping.done()
    gate.set()
    await stopping
    assert await handle == "done"
