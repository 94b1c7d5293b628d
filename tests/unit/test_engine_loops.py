"""The host of an instance: what raises in it, or is cancelled there by a stranger, harms nothing beside it."""

import asyncio
import gc
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.engine.words import loops
from taskmanager.engine.words.loops import Host

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "AGAIN_AFTER_S", 0.005)


class Scene:
    """A host, and loops that count how often they were begun and how many of each run at once."""

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self.host = Host(asyncio.get_running_loop(), self.faults)
        self.begun: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.most = 0

    def loop(self, name: str, end: Callable[[], None] = lambda: None) -> None:
        async def run() -> None:
            self.begun[name] += 1
            self.running[name] += 1
            self.most = max(self.most, self.running[name])
            try:
                if self.begun[name] == 1:
                    end()
                await asyncio.Event().wait()
            finally:
                self.running[name] -= 1

        self.host.start(name, run)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110  # loops begin by themselves
                await asyncio.sleep(0.001)

    async def pauses(self) -> None:
        """Until whatever rests now has been begun again, if it ever is."""
        self.loop("clock", end=fail)
        await self.until(lambda: self.begun["clock"] == 2)

    async def end(self) -> None:
        await self.host.stop()
        await self.host.close()
        assert not self.running.total()


@pytest.fixture
async def scene(anyio_backend: str) -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.end()


def ours() -> set["asyncio.Task[Any]"]:
    return {each for each in asyncio.all_tasks() if each.get_name().startswith("taskmanager-")}


def fail() -> None:
    raise ZeroDivisionError("of a duty")


async def test_host_keeps_a_loop_that_raises_from_its_neighbours(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """A task group would end them all; here the one is begun again, and the others do not notice."""
    scene.loop("a")
    scene.loop("b", end=fail)
    await scene.until(lambda: scene.begun["b"] == 2)
    assert scene.begun == {"a": 1, "b": 2}
    assert scene.faults == {}
    (said,) = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert said.getMessage() == "the b was ended by ZeroDivisionError, and is begun again"
    assert said.exc_info is not None


async def test_host_keeps_a_member_of_a_lane_that_raises_from_the_loops(scene: Scene) -> None:
    """It is said, and it is not begun again."""
    scene.loop("a")
    count = 0

    async def lane() -> None:
        nonlocal count
        count += 1
        fail()

    scene.host.spawn(lane, "child")
    await scene.until(lambda: count == 1 and scene.begun["a"] == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (count, scene.begun["a"], scene.running["a"]) == (1, 1, 1)


@pytest.mark.parametrize("how", [SystemExit, KeyboardInterrupt])
def test_host_passes_an_exit_on_once_and_keeps_the_neighbours(how: type[BaseException]) -> None:
    """It ends what runs the loop. If that runs the loop again, as the end of `asyncio.run` does, all goes on."""

    def leave() -> None:
        raise how

    with asyncio.Runner() as runner:

        async def begin() -> Scene:
            made = Scene()
            made.loop("a")
            await made.until(lambda: made.running["a"] == 1)
            return made

        async def exit_in_a_loop() -> None:
            scene.loop("b", end=leave)
            await asyncio.Event().wait()

        scene = runner.run(begin())
        with pytest.raises(how):
            runner.run(exit_in_a_loop())
        runner.run(scene.until(lambda: scene.running == {"a": 1, "b": 1}))
        assert scene.begun == {"a": 1, "b": 2}
        runner.run(scene.end())


@pytest.mark.parametrize("turns", range(6))
async def test_host_is_whole_again_after_a_stranger_cancelled_everything(scene: Scene, turns: int) -> None:
    """In whatever turn that comes, before the first step of a loop too: each of them runs again, and once."""
    for name in "abc":
        scene.loop(name)
    for _ in range(3):
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in ours():
            task.cancel()
    await scene.until(lambda: scene.running == {"a": 1, "b": 1, "c": 1})
    await scene.pauses()
    assert scene.running["a"] == scene.running["b"] == scene.running["c"] == 1
    assert scene.most == 1
    assert scene.faults == {}


async def test_host_outlives_a_stranger_who_cancels_one_loop(scene: Scene) -> None:
    """A task group would end with its member."""
    scene.loop("a")
    scene.loop("b")
    await scene.until(lambda: scene.running.total() == 2)
    next(each for each in ours() if each.get_name() == "taskmanager-a").cancel()
    await scene.until(lambda: scene.begun["a"] == 2)
    assert scene.begun["b"] == 1


async def test_host_begins_a_stopped_loop_no_more(scene: Scene) -> None:
    """Neither one that rests before it is begun again, nor one that has not made its first step."""
    scene.loop("a", end=fail)
    await scene.until(lambda: scene.begun["a"] == 1 and not scene.running["a"])
    scene.loop("b")
    await scene.host.stop()
    await scene.pauses()
    assert scene.begun == {"a": 1, "clock": 2}


async def test_host_has_the_duties_and_tasks_of_users_are_plain() -> None:
    """The duties have names of ours; what users run is in no task group, so nobody's scope cancels it."""
    manager = TaskManager(None)
    seen: list[Any] = []

    @manager.task
    async def work() -> None:
        from anyio import get_current_task

        seen.extend((asyncio.current_task(), get_current_task().parent_id))

    async with manager:
        await work.enqueue()
        names = {each.get_name() for each in ours()}
        assert {"taskmanager-takeover", "taskmanager-claimer", "taskmanager-schedules"} <= names
    task, parent = seen
    assert type(task) is asyncio.Task
    assert parent is None
    assert ours() == set()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("turns", range(6))
def test_loops_that_end_before_their_first_step_end_without_a_word(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that starts and is over at once reads of no coroutine that was never awaited."""
    monkeypatch.setattr(sys, "unraisablehook", lambda found: said.append(found.exc_value))
    said: list[BaseException | None] = []

    async def begin() -> None:
        Scene().loop("of all")
        for _ in range(turns):
            await asyncio.sleep(0)

    asyncio.run(begin())
    gc.collect()
    assert said == []
