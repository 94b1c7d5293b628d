"""`taskmanager.duties.visibility`: when an instance is out of sight of the others, and when it starts tasks again."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from taskmanager.duties.visibility import LOOK_S, STALE_S, Visibility
from taskmanager.store.presence import UNSEEN_S
from tests.unit.duties.scene import Clock

pytestmark = pytest.mark.anyio


class Proof:
    """The lock of a session, as this side knows of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.unseen_after_s: float | None = UNSEEN_S
        self.seen_s: tuple[float, float] | None = None

    def take(self) -> None:
        self.seen_s = self._clock.elapsed, self._clock.elapsed

    def answered(self) -> None:
        """The server has answered to the session that holds the lock."""
        assert self.seen_s is not None
        self.seen_s = self.seen_s[0], self._clock.elapsed


class Scene:
    """A started instance, and what it does as time passes."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.proof = Proof(self.clock)
        self.dispatcher = SimpleNamespace(is_unseen=False)
        self.wants_claim, self.kicks = asyncio.Event(), list[float]()
        life = SimpleNamespace(wants_claim=self.wants_claim, kick=lambda: self.kicks.append(self.clock.elapsed))
        engine: Any = SimpleNamespace(clock=self.clock, presence=self.proof, dispatcher=self.dispatcher, life=life)
        self.visibility = Visibility(engine)
        self.proof.take()
        self.visibility.begin()

    async def pass_s(self, seconds: float, *, holds: bool = False, beats: bool = False) -> float | None:
        """After how many of these seconds it is held back, or goes on; None where nothing changes.

        It `holds` its lock, of which it hears at each look, or `beats` each second.
        """
        before, changed_s = self.dispatcher.is_unseen, None
        for number in range(1, round(seconds / LOOK_S) + 1):
            self.clock.pass_s(LOOK_S)
            if holds:
                self.proof.answered()
            if beats and number % 2:
                self.visibility.beaten()
            await self.visibility.look()
            if changed_s is None and self.dispatcher.is_unseen is not before:
                changed_s = number * LOOK_S
        return changed_s


async def test_visibility_is_lost_without_lock_and_beats_and_is_back_after_a_while() -> None:
    """The others need a look until they know that it is there again. Until then nothing is started or claimed."""
    scene = Scene()
    assert await scene.pass_s(60, holds=True) is None
    assert await scene.pass_s(20) == UNSEEN_S + LOOK_S
    assert scene.kicks == []
    scene.proof.take()
    assert await scene.pass_s(10, holds=True) == UNSEEN_S
    assert len(scene.kicks) == 1
    assert scene.wants_claim.is_set()


async def test_visibility_of_beats_is_enough() -> None:
    """Where only the session is lost, as when `direct=` leads nowhere, work goes on."""
    scene = Scene()
    assert await scene.pass_s(60, beats=True) is None
    assert await scene.pass_s(20) == UNSEEN_S, "the last beat was half a second ago"
    assert await scene.pass_s(20, beats=True) == UNSEEN_S + LOOK_S


async def test_visibility_is_not_lost_in_a_short_outage() -> None:
    """A server that restarts within three seconds delays no start: the new session comes in time."""
    scene = Scene()
    assert await scene.pass_s(UNSEEN_S) is None
    scene.proof.take()
    assert await scene.pass_s(20, holds=True) is None


async def test_visibility_is_back_at_once_where_the_lock_was_held_all_along() -> None:
    """A server that hung, or a process that was stopped: the session goes on, and nobody has seen a free lock."""
    scene = Scene()
    assert await scene.pass_s(20) == UNSEEN_S + LOOK_S
    assert await scene.pass_s(20, holds=True) == LOOK_S


async def test_visibility_must_last_before_anything_starts() -> None:
    """A lock that is lost again in a moment may have been seen by nobody."""
    scene = Scene()
    await scene.pass_s(20)
    scene.proof.take()
    assert await scene.pass_s(UNSEEN_S - LOOK_S, holds=True) is None
    assert await scene.pass_s(1.0) == LOOK_S, "the lock was lost a moment ago, and seen for long enough before"
    await scene.pass_s(20)
    scene.proof.take()
    assert await scene.pass_s(1.0, holds=True) is None
    await scene.pass_s(20)
    assert scene.dispatcher.is_unseen


async def test_visibility_of_a_blocked_loop_is_not_lost() -> None:
    """The beats of its thread went on, and nobody has taken it for dead."""
    scene = Scene()
    for _ in range(20):
        scene.clock.pass_s(1.0)
        scene.visibility.beaten()
    assert await scene.pass_s(1.0) is None


async def test_visibility_begins_anew_with_each_start() -> None:
    """A start may wait long for its server, and nobody has called dead who has just come."""
    scene = Scene()
    scene.clock.pass_s(100)
    scene.proof.take()
    scene.visibility.begin()
    assert await scene.pass_s(20, holds=True) is None


async def test_visibility_of_a_lock_file_is_never_lost() -> None:
    """Who holds it can be seen to live by everybody who sees the file."""
    scene = Scene()
    scene.proof.unseen_after_s = scene.proof.seen_s = None
    assert not scene.visibility.can_be_lost
    assert await scene.pass_s(600) is None
    assert not scene.visibility.is_stale()


async def test_visibility_is_stale_when_the_server_has_not_answered() -> None:
    """The session may hang for seconds until it is known to be lost. Beats must show meanwhile that it lives."""
    scene = Scene()
    await scene.pass_s(STALE_S)
    assert not scene.visibility.is_stale()
    await scene.pass_s(LOOK_S)
    assert scene.visibility.is_stale()
    scene.proof.answered()
    assert not scene.visibility.is_stale()


async def test_visibility_behind_a_pooler_is_that_of_rare_beats() -> None:
    """Its beats are half a minute apart, and the others are patient for minutes."""
    scene = Scene()
    scene.proof.unseen_after_s, scene.proof.seen_s = 150.0, None
    for _ in range(4):
        scene.visibility.beaten()
        assert await scene.pass_s(30) is None
    assert await scene.pass_s(200) == 120.0 + LOOK_S
    scene.visibility.beaten()
    assert await scene.pass_s(10) == UNSEEN_S
