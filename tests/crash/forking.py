"""A program that forks. While its manager runs, the child may do nothing with it, and must harm nothing by ending;
before it was started, as under a server that loads the application first, each child may start it for itself.

python -m tests.crash.forking '{"db": ..., "is_child_lasting": false, "is_preloaded": false}'
"""

import asyncio
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from taskmanager import TaskManager, WrongProcess
from tests.crash.child import make_manager
from tests.crash.jobs import note


def in_the_child(manager: TaskManager) -> None:
    """What a forked child tries."""
    try:
        manager.get_task("once").enqueue("from the child", 0)
    except WrongProcess as exc:
        note(type(exc).__name__)


async def stop_and_start(manager: TaskManager) -> None:
    """What a forked child may do instead: leave the start of the parent alone, and make one of its own."""
    await manager.stop()
    note("stopped in the child")
    await serve(manager, "by the child itself")


def live_on() -> NoReturn:
    """A child that is still there when its parent is not."""
    note("forked")
    time.sleep(60)
    os._exit(0)


def fork_and_wait(manager: TaskManager) -> None:
    """Fork, and note how the child ended: once at once, once with all that Python does at the end of a process."""
    pid = os.fork()
    if pid == 0:
        in_the_child(manager)
        asyncio._set_running_loop(None)  # else the child would take the loop of the parent for its own
        asyncio.run(stop_and_start(manager))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    note(f"child ended {os.waitstatus_to_exitcode(status)}")
    process = multiprocessing.get_context("fork").Process(target=in_the_child, args=(manager,))
    process.start()
    process.join()
    note(f"child ended {process.exitcode}")


async def serve(manager: TaskManager, label: str) -> None:
    """What one process does with the manager."""
    async with manager:
        await manager.get_task("once").enqueue(label, 0)
        await manager.join(timeout=30)


def preload(manager: TaskManager, database: Path) -> None:
    """Hold a task, fork twice, and start the manager in each of the three processes."""
    manager.get_task("once").enqueue("held by the parent", 0)
    assert not database.exists(), "the constructor must open nothing"
    children = []
    for number in (1, 2):
        pid = os.fork()
        if pid == 0:
            in_the_child(manager)
            asyncio.run(serve(manager, f"child {number}"))
            os._exit(0)
        children.append(pid)
    asyncio.run(serve(manager, "parent"))
    for pid in children:
        _, status = os.waitpid(pid, 0)
        note(f"child ended {os.waitstatus_to_exitcode(status)}")


async def main(manager: TaskManager, config: dict[str, Any]) -> None:
    """Work, fork, work."""
    async with manager:
        if config.get("is_child_lasting"):
            await manager.get_task("safe").enqueue("long", 30).saved()
            await asyncio.sleep(0.2)
            if os.fork() == 0:
                live_on()
            await asyncio.Event().wait()
        await manager.get_task("once").enqueue("before", 0)
        fork_and_wait(manager)
        await manager.get_task("once").enqueue("after", 0)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given.get("is_preloaded"):
        preload(make_manager(given), Path(given["db"]))
    else:
        asyncio.run(main(make_manager(given), given))
