"""Those who wait until all that was unsaved when they asked is in the store."""

import asyncio
from collections.abc import Callable

from taskmanager.engine.events import resolve, resolve_error
from taskmanager.engine.outbox import Places


class Flushes:
    """Of one writer."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Places, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<Flushes, {len(self._waiting)} waiting>"

    def wait_for(self, places: Places) -> "asyncio.Future[None]":
        """Done when these places are passed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((places, done))
        return done

    def extend(self, places: Places) -> None:
        """What they wait for is to be written once more: they wait for these places too."""
        self._waiting = [(each.or_behind(places), done) for each, done in self._waiting]

    def end(self, has_passed: Callable[[Places], bool]) -> None:
        """Tell those whose places are passed."""
        waiting, self._waiting = self._waiting, []
        for places, done in waiting:
            if has_passed(places):
                resolve(done, None)
            else:
                self._waiting.append((places, done))

    def give_up(self, exc: Exception) -> None:
        """Nobody will write any more."""
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            resolve_error(done, exc)
