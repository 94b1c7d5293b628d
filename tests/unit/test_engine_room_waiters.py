"""Who waits for room in a queue looks in turn: one look for each place, and nobody is forgotten."""

import asyncio
from collections import Counter

import pytest

from taskmanager.engine.words.waiters import RoomWaiters

pytestmark = pytest.mark.anyio


class Scene:
    """Queues with so many free places, which whoever is let in takes."""

    def __init__(self, **free: int) -> None:
        self.free, self.waiters = Counter(free), RoomWaiters()
        self.looks = 0
        self.let_in: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    def is_full(self, queue_name: str) -> bool:
        self.looks += 1
        return self.free[queue_name] <= 0

    async def _wait(self, number: int, queue_name: str) -> None:
        await self.waiters.wait(queue_name, self.is_full)
        self.free[queue_name] -= 1
        self.let_in.append(number)

    async def begin(self, *queue_names: str) -> None:
        first = len(self.tasks)
        self.tasks += [asyncio.create_task(self._wait(first + n, name)) for n, name in enumerate(queue_names)]
        await settled()

    async def come_free(self, queue_name: str, places: int = 1) -> None:
        self.free[queue_name] += places
        self.waiters.look()
        await settled()


async def settled() -> None:
    """Let everybody go on who can."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_each_place_is_for_the_one_that_came_first() -> None:
    """Also where several come free in one turn, and where one comes free that somebody else takes."""
    scene = Scene()
    await scene.begin(*["mail"] * 6)
    await scene.come_free("mail")
    await scene.come_free("mail", 0)
    await scene.come_free("mail", 3)
    assert scene.let_in == [0, 1, 2, 3]


async def test_a_place_makes_nobody_look_but_the_next_ones() -> None:
    """All 1,000 looked at each place before: what waits must not hold up the loop that makes room."""
    scene = Scene()
    await scene.begin(*["mail"] * 1000)
    before = scene.looks
    for _ in range(20):
        await scene.come_free("mail")
    assert len(scene.let_in) == 20
    assert scene.looks - before <= 40, "one finds the place, and the next one finds none"


async def test_a_queue_that_is_full_keeps_nobody_from_another_one() -> None:
    scene = Scene()
    await scene.begin("mail", "mail", "web", "web")
    await scene.come_free("web", 2)
    assert scene.let_in == [2, 3]


async def test_the_next_one_looks_when_the_first_one_goes() -> None:
    """Cancelled while it waits, and cancelled in the moment in which it was to look."""
    scene = Scene()
    await scene.begin(*["mail"] * 4)
    scene.tasks[0].cancel()
    await settled()
    scene.free["mail"] = 1
    scene.waiters.look()
    scene.tasks[1].cancel()
    scene.tasks[3].cancel()
    await settled()
    assert scene.let_in == [2]
    assert not scene.waiters, "nothing is kept of those who have gone"


async def test_nobody_who_comes_later_overtakes() -> None:
    """There is a place, and the one for whom it came free has not looked yet."""
    scene = Scene()
    await scene.begin("mail", "mail")
    scene.free["mail"] = 1
    scene.waiters.look()
    await scene.begin("mail")
    assert scene.let_in == [0]


async def test_all_are_let_in_at_once_when_nothing_is_taken_in_any_more() -> None:
    """The loop may have two turns left then."""
    scene = Scene()
    await scene.begin(*["mail"] * 50, *["web"] * 50)
    scene.free = Counter(mail=50, web=50)
    scene.waiters.let_all_in()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(scene.let_in) == 100
