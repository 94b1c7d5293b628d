"""What an attempt has come to when its code raises: the same in every lane, whatever the exception does."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskmanager import TaskError, TaskManager, TaskResult
from taskmanager.engine.words.outcome import words_of
from tests.unit.hostile import OTHERS, TRAITS, made, raise_it, raise_it_async

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LANES = ("async", "thread", "process")
WORDLESS = {"str fails", "str leaves", "str interrupts", "str is none", "str is a text of its own"}


class Scene:
    """A manager with a task in each lane that retries what it can."""

    def __init__(self) -> None:
        self.manager = TaskManager(None, processes=1)
        task: Any = self.manager.task
        self.tasks: dict[str, Any] = {
            lane: task(name=lane, executor=lane, retries=0)(raise_it_async if lane == "async" else raise_it)
            for lane in LANES
        }

    async def outcome(self, lane: str, what: str, traits: list[str]) -> str:
        """The message of the failure, once it is shown that it is one."""
        handle = self.tasks[lane].enqueue(what, traits)
        result = await asyncio.wait_for(handle.result(), 30)
        info = await handle.info(include_attempts=True)
        assert (info.status.value, info.start_count) == ("FAILED", 1), (lane, what, traits)
        assert [each.outcome for each in info.attempts or ()] == ["FAILED"]
        assert result.err_value.error_code == "UNHANDLED_EXCEPTION"
        assert "raise_it" in (info.failed_reason or ""), "where it was raised is told whatever it is"
        assert self.manager.status().failing_duties == {}
        return str(result.err_value.message)


@pytest.fixture
async def scene(anyio_backend: str) -> AsyncIterator[Scene]:
    made = Scene()
    async with made.manager:
        yield made


async def test_an_exception_that_harms_its_reader_fails_its_task_once(scene: Scene) -> None:
    """One start, FAILED, with its class and, where it can be had, its message: it is no fault of the lane."""
    for trait in TRAITS:
        for lane in LANES:
            message = await scene.outcome(lane, "", [trait])
            assert message.startswith("Hostile: "), (lane, trait)
            assert ("no luck" in message) is (trait not in WORDLESS) or trait == "str is a text of its own", (
                lane,
                trait,
            )


async def test_an_exception_for_somebody_else_fails_its_task_once(scene: Scene) -> None:
    """Those of the interpreter, of futures and of pipes; those whose class, chain or fields are odd."""
    for what in OTHERS:
        for lane in LANES:
            message = await scene.outcome(lane, what, [])
            named = what if (lane, what) != ("async", "StopIteration") else "RuntimeError"  # Python makes it one
            assert message.startswith(f"{named}: "), (lane, what, message)
            assert "no luck" in message or named == "RuntimeError", (lane, what, message)


class Guest:
    """A part of an error that cannot come out of a child process."""

    def __reduce__(self) -> Any:
        raise SystemExit


class Own:
    """An error type of the user's own."""

    error_code = "TOO_MANY"
    message = "later"

    def __init__(self) -> None:
        self.data = {"count": 3, "guest": Guest()}


def returns_an_error(what: str) -> TaskResult[int]:
    if what == "own":
        return TaskResult(err=Own())  # type: ignore[arg-type]  # any object is taken
    if what == "plain":
        return TaskResult(err=TaskError("TOO_MANY", "later", {"count": 3}))
    return TaskResult(err=TaskError("TOO_MANY", "later", {"count": 3, "guest": Guest()}))


async def returns_an_error_async(what: str) -> TaskResult[int]:
    return returns_an_error(what)


@pytest.mark.parametrize("what", ["plain", "with a guest", "own"])
@pytest.mark.parametrize("lane", LANES)
async def test_an_error_that_was_returned_fails_its_task_whatever_its_data_is(
    scene: Scene, lane: str, what: str
) -> None:
    """A result that cannot come out of a child is a success without its value; an error is none for that."""
    options: Any = {"executor": lane, "retries": 0}
    fn: Any = returns_an_error_async if lane == "async" else returns_an_error
    handle = scene.manager.task(**options)(fn).enqueue(what)
    error = (await asyncio.wait_for(handle.result(), 30)).err_value
    assert (error.error_code, error.message, (error.data or {})["count"]) == ("TOO_MANY", "later", 3)
    info = await handle.info()
    assert (info.status.value, info.error_code, info.start_count) == ("FAILED", "TOO_MANY", 1)


def test_traits_of_an_exception_do_no_more_harm_together() -> None:
    """The same for any set of them, one after the other on one manager."""
    with asyncio.Runner() as runner:
        scene = Scene()
        runner.run(scene.manager.start())

        @given(st.lists(st.sampled_from(sorted(TRAITS)), unique=True, max_size=6))
        @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
        def judge(traits: list[str]) -> None:
            for lane in LANES:
                assert runner.run(scene.outcome(lane, "", traits)).startswith("Hostile: ")

        try:
            judge()
        finally:
            runner.run(scene.manager.stop())


@pytest.mark.parametrize("base", [Exception, BaseException, GeneratorExit, StopIteration, KeyboardInterrupt])
def test_words_of_an_exception_can_always_be_had(base: type[BaseException]) -> None:
    """All of it at once, and nothing is raised."""
    assert words_of(made(list(TRAITS), base)).startswith("Hostile: ")


async def test_an_exception_that_ends_generators_leaves_nothing_behind_in_a_thread(scene: Scene) -> None:
    """A future that holds it would say, when it is collected, that nobody has retrieved it."""
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    for what in ("GeneratorExit", "StopIteration", "SystemExit"):
        await scene.outcome("thread", what, [])
    gc.collect()
    await asyncio.sleep(0)
    assert said == []
