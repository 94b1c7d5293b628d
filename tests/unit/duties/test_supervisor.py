"""What keeps the duties going: one that fails is tried again, one that fails for good is given up loudly."""

import asyncio
import logging
from typing import Any

import pytest

from taskmanager.duties import supervisor
from taskmanager.engine.words import loops
from taskmanager.model.errors import StoreError, StoreUnavailable
from tests.unit.duties.scene import until

pytestmark = pytest.mark.anyio


@pytest.mark.req("RC-s6")
async def test_a_duty_that_fails_for_good_three_times_in_a_row_is_given_up_loudly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Trouble that passes does not count, and a round that succeeds begins the count anew."""
    answers: list[Exception | None] = [StoreError("x"), StoreUnavailable("y"), StoreError("x"), None]
    answers += [StoreError("x")] * 3

    async def work() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    faults: dict[str, str] = {}
    await asyncio.wait_for(supervisor._repeat("reaper", 0, work, True, faults), 10)
    assert answers == []
    assert faults == {"reaper": "given up until the next start: x"}
    critical = [each.getMessage() for each in caplog.records if each.levelno == logging.CRITICAL]
    assert critical == ["the reaper failed 3 times and is given up until the next start"]


async def test_an_outage_is_logged_when_it_begins_and_when_it_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    """A disk that is away for a day is not worth a line for each round of each duty."""
    answers: list[Exception | None] = [StoreUnavailable("y")] * 3 + [None, None, StoreUnavailable("z"), None]
    answers += [StoreError("x")] * 3

    async def work() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    with caplog.at_level(logging.INFO, "taskmanager"):
        await asyncio.wait_for(supervisor._repeat("upkeep", 0, work, True, {}), 10)
    told = [each.getMessage() for each in caplog.records if each.levelno < logging.ERROR]
    begun, ended = "the upkeep could not do its round, and tries again: ", "the upkeep does its rounds again"
    assert told == [begun + "y", ended, begun + "z", ended]


async def test_a_duty_that_fails_is_tried_again_and_shown_until_it_succeeds(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of ours may have to do with what was there at that moment; nobody is left without a reaper for it."""
    scene = await stage()
    rounds_left, has_failed, has_ended = 5, asyncio.Event(), asyncio.Event()

    async def work() -> None:
        nonlocal rounds_left
        rounds_left -= 1
        if rounds_left > 0:
            raise ValueError("boom")
        has_failed.set()
        await has_ended.wait()

    scene.duties._begin("sweep", 0, work, at_once=True)
    await asyncio.wait_for(has_failed.wait(), 10)
    assert scene.manager.status().failing_duties == {"sweep": "ValueError: boom"}
    critical = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert [each.getMessage() for each in critical] == ["the sweep failed unexpectedly, and tries again"]
    assert critical[0].exc_info is not None, "once in a row, with its traceback"
    has_ended.set()
    await until(lambda: scene.manager.status().failing_duties == {})


async def test_a_duty_that_is_begun_again_waits_for_its_interval(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep after a step of the clock deletes nothing. Code that cancels every task there is must not let another
    one follow at once.
    """
    monkeypatch.setattr(loops, "AGAIN_AFTER_S", 0.0)
    scene, rounds = await stage(), list[int]()
    host, began = scene.engine.host, asyncio.Event()

    async def work() -> None:
        rounds.append(len(rounds))
        began.set()

    scene.duties._begin("sweep", 1_000, work, at_once=True)
    await asyncio.wait_for(began.wait(), 10)
    first = host._loops["sweep"].task
    first.cancel()
    await until(lambda: host._loops["sweep"].task not in (first, None))
    await until(lambda: host._loops["sweep"].task.get_coro().cr_await is not None)
    assert rounds == [0]


def test_a_duty_that_keeps_failing_is_tried_less_often_and_never_given_up() -> None:
    """Twice its interval, and so on, up to ten minutes or its own interval."""
    assert [supervisor.pause_s(1.0, number) for number in range(4)] == [1, 2, 4, 8]
    assert supervisor.pause_s(1.0, 1_000_000) == 600
    assert supervisor.pause_s(3_600.0, 5) == 3_600
