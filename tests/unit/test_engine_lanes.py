"""The thread lane on a day on which the system gives no more threads: a task waits for one, and does not fail."""

import asyncio
import threading
from contextvars import copy_context

import pytest

from taskmanager.engine import lanes
from taskmanager.engine.lanes import ThreadLane

pytestmark = pytest.mark.anyio


class Threads:
    """How many more may be started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        self.asked = asyncio.Event()
        start = threading.Thread.start

        def start_if_allowed(thread: threading.Thread) -> None:
            if thread.name.startswith("taskmanager-thread"):
                self.asked.set()
                if not self.left:
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_if_allowed)


async def test_the_next_idle_thread_takes_what_no_thread_could_be_started_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """User code has not begun, so there is nothing that could have failed; and the count of the idle stays right."""
    Threads(monkeypatch, 2)
    lane, gate = ThreadLane(), threading.Event()
    futures = [lane.submit(gate.wait, copy_context()) for _ in range(5)]
    gate.set()
    assert await asyncio.wait_for(asyncio.gather(*futures), 10) == [True] * 5
    for _ in range(3):
        assert await asyncio.wait_for(lane.submit(lambda: 1, copy_context()), 10) == 1
    assert repr(lane) in ("<ThreadLane 2 threads, 2 idle>", "<ThreadLane 2 threads, 1 idle>")  # the last one goes home
    lane.close()


async def test_without_any_thread_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said, and not for ever: somebody else's threads end one day."""
    monkeypatch.setattr(lanes, "THREAD_RETRY_S", 0.0)
    threads = Threads(monkeypatch, 0)
    lane = ThreadLane()
    future = lane.submit(lambda: 1, copy_context())
    threads.asked.clear()
    await asyncio.wait_for(threads.asked.wait(), 10)
    assert not future.done()
    threads.left = 1
    assert await asyncio.wait_for(future, 10) == 1
    lane.close()
