"""Makes the files that the dashboard shows: a day of a shop, and the moment in which its process was killed.

    SERVED_DB=tasks.db python -m tests.browser.content history     ends by itself
    SERVED_DB=tasks.db python -m tests.browser.content busy        the same, with more in the last hour
    SERVED_DB=tasks.db python -m tests.browser.content killed      ends by SIGKILL

A real manager leaves them. Only its clock is moved, so that what it did is spread over a day.
"""

import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from taskmanager.model.clock import HOUR_US, MINUTE_US, SECOND_US, SystemClock, from_us
from tests.browser import shop
from tests.browser.shop import HOSTILE, LARGE_SIZE, manager
from tests.crash.harness import ROOT

# How long before the end something happens: two-hourly at first, then every three minutes of the last hour. No hour is
# whole before the end, where the hourly schedule would fire once more or not.
MOMENTS: Final = (
    *(hours * HOUR_US + 20 * MINUTE_US for hours in range(26, 1, -2)),
    *(m * MINUTE_US for m in range(60, 2, -3)),
)
# For pictures: a shop that had something to do in each minute of the hour.
BUSY_MOMENTS: Final = (*MOMENTS[:-19], *(m * MINUTE_US for m in range(59, 2, -1)))
CUSTOMERS: Final = ("ann", "bob", "cyd", "dee")
PATIENCE_S: Final = 30.0
FAST_COUNT: Final = 30  # of the cities of a workflow
SLOW_COUNT: Final = 4


class MovableClock(SystemClock):
    """The clock of the machine, some time ago; it can be moved on, as a suspended machine's is."""

    def __init__(self, ago_us: int) -> None:
        self._ago_us = ago_us

    def now_us(self) -> int:
        return super().now_us() - self._ago_us

    def elapsed_s(self) -> float:
        return super().elapsed_s() - self._ago_us / SECOND_US

    def move(self, ago_us: int) -> None:
        """Be so long ago from now on."""
        assert ago_us <= self._ago_us
        self._ago_us = ago_us


async def history(moments: Sequence[int] = MOMENTS) -> None:
    """Leave what has ended, what waits, and one that was interrupted by the stop."""
    clock = manager._clock = MovableClock(moments[0])
    manager._intake = manager._new_intake()  # the first one has the clock of the machine
    chance = random.Random(7)
    orders = itertools.count(1)
    async with manager:
        for ago_us in moments:
            clock.move(ago_us)
            await some_orders(orders, chance)
        await one_of_each(clock)
        await workflows()
        await waiting()
        clock.move(0)
        shop.load.with_options(queue_name="default").enqueue("a/file/that/was/interrupted.csv")
        await shop.begun.wait()


async def some_orders(orders: Iterator[int], chance: random.Random) -> None:
    """A few of what a shop does all day; now and then one fails."""
    for _ in range(chance.randint(1, 3)):
        order, customer = next(orders), chance.choice(CUSTOMERS)
        tags = {"customer": customer, "order": str(order)}
        shop.charge.with_options(tags=tags).enqueue(order, order * 7.5, is_refused=chance.random() < 0.06)
        shop.send_mail.with_options(tags=tags).enqueue(f"{customer}@example.org", is_down=chance.random() < 0.08)
        shop.resize.enqueue(f"products/{order}.jpg", 320)
        shop.count_stock.enqueue(order)
    await manager.join(timeout=PATIENCE_S)


async def one_of_each(clock: MovableClock) -> None:
    """Whatever else a task can come to."""
    tags = {"customer": "ann", "order": "refused"}
    refused = shop.charge.with_options(tags=tags).enqueue(4_711, 99.5, is_refused=True)
    shop.send_mail.with_options(tags={"customer": "bob"}).enqueue("bob@example.org", is_down=True)
    shop.check_stock.enqueue("pencils")
    shop.dump.enqueue(LARGE_SIZE)
    for name, text in HOSTILE.items():
        shop.hostile.with_options(tags={f"hostile-{name}": text}).enqueue(text)
        shop.hostile.with_options(tags={"hostile": name}).enqueue(text, is_failing=True)
    await refused.saved()
    await manager.join(timeout=PATIENCE_S)
    shop.fulfil.with_options(tags={"customer": "cyd"}).enqueue(31, is_patient=False)
    shop.fulfil.enqueue(32)
    shop.wait_for_delivery.enqueue("pencils")
    cancelled = shop.send_mail.with_options(delay=3_600).enqueue("cancelled@example.org")
    await cancelled.saved()
    await manager.cancel(cancelled.task_id)
    await manager.pause("newsletter")
    end = from_us(clock.now_us() + MINUTE_US)
    expiring = shop.send_mail.with_options(queue_name="newsletter", good_until=end).enqueue("expired@example.org")
    await expiring.saved()
    clock.move(MINUTE_US // 2)
    await manager.resume("newsletter")
    await expiring.result(timeout=PATIENCE_S)


async def workflows() -> None:
    """One that is complete, one that has failed, one that is paused, and one that a child belongs to."""
    handles: Sequence[Any] = (
        await manager.start_workflow(shop.weather(["Rome", "Oslo", "Bern"]), workflow_id="weather-done"),
        await manager.start_workflow(shop.weather(["Rome", "Atlantis"]), workflow_id="weather-failed"),
        await manager.start_workflow(shop.nested(), workflow_id="delivery-done"),
    )
    for each in handles:
        await each.result(timeout=PATIENCE_S)
    paused = await manager.start_workflow(
        shop.weather(["Atlantis", "Rome"], is_pausing=True), workflow_id="weather-paused"
    )
    await until(lambda: has_status(paused, "PAUSED"))


async def waiting() -> None:
    """What nobody runs yet, in a queue that is paused and with a delay, and a workflow that waits for it."""
    await manager.pause("newsletter")
    newsletter = shop.send_mail.with_options(queue_name="newsletter", tags={"issue": "7"})
    for number in range(12):
        newsletter.enqueue(f"reader-{number}@example.org")
    shop.build_report.with_options(delay=timedelta(hours=3), priority=5).enqueue("2026-03")
    await manager.pause_schedule("weekly <em>digest</em>")
    await manager.pause("weather")
    await manager.start_workflow(shop.weather(["Rome", "Oslo"]), workflow_id="weather-waiting")
    await manager.flush()


async def at_work() -> None:
    """Begin what the gate holds, as far as it goes: tasks with progress, one in memory only, and a workflow."""
    await manager.resume("weather")
    shop.build_report.with_options(tags={"customer": "dee"}).enqueue("2026-02")
    shop.build_report.enqueue("2026-01", 7)
    shop.warm_cache.enqueue(3)
    for number in range(3):
        shop.load.enqueue(f"orders-{number}.csv")
    cities = [f"city-{number}" for number in range(40)]
    slow, late = cities[FAST_COUNT : FAST_COUNT + SLOW_COUNT], cities[FAST_COUNT + SLOW_COUNT :]
    workflow = shop.weather(cities, slow=slow, late=late)
    handle = await manager.start_workflow(workflow, workflow_id="weather-running")
    await until(lambda: has_completed(handle, 2 * FAST_COUNT))
    await until_running(SLOW_COUNT + 3)
    await manager.flush()


async def killed() -> None:
    """Be killed in the middle of the work: the rows say that it still runs."""
    await manager.start()
    await at_work()
    os.kill(os.getpid(), signal.SIGKILL)


async def until_running(count: int) -> None:
    """Wait until so many persisted tasks run."""

    async def are_running() -> bool:
        return (await manager.counts())["RUNNING"] >= count

    await until(are_running)


async def until(is_there: Callable[[], Awaitable[bool]]) -> None:
    """Look until it is."""
    async with asyncio.timeout(PATIENCE_S):
        while not await is_there():  # noqa: ASYNC110  # nobody tells what another task has committed
            await asyncio.sleep(0.01)


async def has_status(workflow: Any, status: str) -> bool:
    """Whether a workflow has come to that."""
    return await workflow.status() == status


async def has_completed(workflow: Any, count: int) -> bool:
    """Whether so many nodes of a workflow have."""
    return sum(node.status == "COMPLETED" for node in await workflow.nodes()) >= count


def make(database: Path, *parts: str) -> None:
    """Let these programs leave their file at that path, one after the other."""
    for part in parts:
        done = subprocess.run(
            [sys.executable, "-m", "tests.browser.content", part],
            cwd=ROOT, env={**os.environ, "SERVED_DB": str(database)}, check=False, capture_output=True, timeout=90,
        )  # fmt: skip
        assert done.returncode == (-signal.SIGKILL if part == "killed" else 0), done.stderr.decode(errors="replace")


def copy(database: Path, folder: Path) -> Path:
    """A copy of a file, with all that stands beside it."""
    for path in database.parent.glob(f"{database.name}*"):
        shutil.copy2(path, folder / path.name)
    return folder / database.name


if __name__ == "__main__":
    asyncio.run({"history": history, "busy": partial(history, BUSY_MOMENTS), "killed": killed}[sys.argv[1]]())
