"""Runs of a schedule, noted by the time for which each was scheduled; and time that passes."""

import asyncio
from datetime import datetime, timedelta

from taskmanager import current_task
from taskmanager.testing import START, World

MINUTE = timedelta(minutes=1)


class Fires(list[datetime]):
    """A task body that notes the scheduled time of each run."""

    async def run(self) -> None:
        scheduled_for = current_task().scheduled_for
        assert scheduled_for is not None
        self.append(scheduled_for)

    def minutes(self) -> list[float]:
        return [(each - START) / MINUTE for each in self]


async def pass_time(seconds: float) -> None:
    """On the virtual clock, without any application."""
    await asyncio.sleep(seconds)


async def away(world: World, minutes: float) -> None:
    """The application is down for so long."""
    await world.manager.stop()
    await asyncio.sleep(minutes * 60)
    await world.start()
    await world.idle()
