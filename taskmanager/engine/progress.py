"""Saves the progress that running tasks report, once a second at most, from whatever thread they report it."""

import asyncio
import contextlib
import threading
from typing import Final

from taskmanager.engine.live_task import LiveTask, Phase
from taskmanager.engine.writer import Writer
from taskmanager.model.clock import SECOND_US, Clock

INTERVAL_US: Final = SECOND_US


class ProgressSaver:
    """For one engine; `save` is what an attempt calls with every report."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: Writer, clock: Clock) -> None:
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._writer = writer
        self._clock = clock

    def save(self, live: LiveTask) -> None:
        """A persisted task reported progress."""
        now = self._clock.now_us()
        if live.is_persisted and not 0 <= now - live.updated_at < INTERVAL_US:  # before: the clock was stepped back
            live.updated_at = now
            if threading.get_ident() == self._thread_id:
                self._mark(live)
            else:
                with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody keeps progress any more
                    self._loop.call_soon_threadsafe(self._mark, live)

    def _mark(self, live: LiveTask) -> None:
        if live.phase is Phase.RUNNING:
            self._writer.mark(live)
