"""What an attempt has come to when its code raises: the same in every lane, whatever the exception does."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskmanager import TaskManager
from taskmanager.engine.outcome import words_of
from tests.unit.hostile import OTHERS, TRAITS, made, raise_it, raise_it_async

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LANES = ("async", "thread", "process")
WORDLESS = {"str fails", "str leaves", "str interrupts", "str is none", "str is a text of its own"}


class Scene:
    """A manager with a task in each lane that retries what it can."""

    def __init__(self) -> None:
        self.manager = TaskManager(None, processes=1)
        options: Any = {"retries": 0}
        self.tasks: dict[str, Any] = {
            lane: self.manager.task(name=lane, executor=lane, **options)(
                raise_it_async if lane == "async" else raise_it
            )
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


@given(st.lists(st.sampled_from(sorted(TRAITS)), unique=True, max_size=6))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_traits_of_an_exception_do_no_more_harm_together(traits: list[str]) -> None:
    """The same for any set of them."""

    async def main() -> None:
        scene = Scene()
        async with scene.manager:
            for lane in LANES:
                assert (await scene.outcome(lane, "", traits)).startswith("Hostile: ")

    asyncio.run(main())


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
