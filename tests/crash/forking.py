"""A program that forks. A child of a running manager may do nothing with it, nor with its file, and must harm nothing
by ending; before the start and after the stop, as under a server that loads the application first, each child may
start the manager for itself. On a server a child connects anew, so it may start a manager of its own at any moment.

python -m tests.crash.forking '{"db": ..., "is_child_lasting": false, "is_preloaded": false, "is_storm": false}'
"""

import asyncio
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from taskmanager import TaskManager, WrongProcess
from tests.crash.child import make_manager
from tests.crash.harness import rows_of
from tests.crash.jobs import note
from tests.crash.kinds import is_server

ROUNDS = 3
FORKS_PAUSE_S = 0.01
PATIENCE_S = 30.0


def in_the_child(manager: TaskManager) -> None:
    """What a forked child tries."""
    try:
        manager.get_task("once").enqueue("from the child", 0)
    except WrongProcess as exc:
        note(type(exc).__name__)


async def start_once(manager: TaskManager, label: str) -> None:
    """Start and stop, or note that the start is refused."""
    try:
        await manager.start()
    except WrongProcess:
        note("refused", label)
    else:
        note("served", label)
        await manager.stop()


async def try_to_start(manager: TaskManager, database: str) -> None:
    """Whatever a child does about the start of its parent, and by whatever manager: a file is not opened."""
    await start_once(manager, "its own")
    await start_once(TaskManager(database), "a new one")
    await manager.stop()
    note("stopped in the child")
    await start_once(manager, "after a stop")


def live_on() -> NoReturn:
    """A child that is still there when its parent is not."""
    note("forked")
    time.sleep(60)
    os._exit(0)


def fork_and_wait(manager: TaskManager, database: str) -> None:
    """Fork, and note how the child ended: once at once, once with all that Python does at the end of a process."""
    pid = os.fork()
    if pid == 0:
        in_the_child(manager)
        asyncio._set_running_loop(None)  # else the child would take the loop of the parent for its own
        asyncio.run(try_to_start(manager, database))
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


def preload(manager: TaskManager, database: str) -> None:
    """Hold a task, fork twice, and start the manager in each of the three processes; then fork after the stop."""
    manager.get_task("once").enqueue("held by the parent", 0)
    assert is_server(database) or not Path(database).exists(), "the constructor must open nothing"
    children = []
    for number in (1, 2):
        pid = os.fork()
        if pid == 0:
            in_the_child(manager)
            asyncio.run(serve(manager, f"child {number}"))
            os._exit(0)
        children.append(pid)
    asyncio.run(serve(manager, "parent"))
    pid = os.fork()
    if pid == 0:
        in_the_child(manager)
        asyncio.run(serve(manager, "child after the stop"))
        os._exit(0)
    for each in [*children, pid]:
        _, status = os.waitpid(each, 0)
        note(f"child ended {os.waitstatus_to_exitcode(status)}")


def be_a_child_of_the_storm(database: str) -> NoReturn:
    """Try to start a manager of its own. This thread is the only one here: nobody would hear of what it raises."""
    try:
        asyncio.run(start_once(TaskManager(database), "in the storm"))
    except Exception:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def fork_all_the_time(database: str, is_over: threading.Event) -> None:
    """Fork in a thread, whatever the others do at that moment, and let each child try to start a manager of its own."""
    while not is_over.wait(FORKS_PAUSE_S):
        pid = os.fork()
        if pid == 0:
            be_a_child_of_the_storm(database)
        end = time.monotonic() + PATIENCE_S
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end:
                note("hangs")
                return
            time.sleep(FORKS_PAUSE_S)
        note(f"child ended {os.waitstatus_to_exitcode(ended[1])}")


async def work(manager: TaskManager, label: str) -> None:
    """Start, have tasks acknowledged, and stop."""
    async with manager:
        for number in range(200):
            await manager.get_task("safe").enqueue(f"{label} {number}", 0).saved()
            note("saved", f"{label} {number}")


def storm(manager: TaskManager, database: str) -> None:
    """Start, work and stop, while another thread forks."""
    asyncio.run(serve(manager, "first"))  # all is imported: a fork in the middle of an import leaves it half done
    is_over = threading.Event()
    thread = threading.Thread(target=fork_all_the_time, args=(database, is_over))
    thread.start()
    try:
        for number in range(ROUNDS):
            asyncio.run(work(manager, f"round {number}"))
    finally:
        is_over.set()
        thread.join()


def sessions(database: str) -> set[int]:
    """The sessions of instances on a server. A file has none."""
    if not is_server(database):
        return set()
    asked = "SELECT pid, application_name FROM pg_stat_activity"
    return {pid for pid, name in rows_of(database, asked) if name.startswith("taskmanager") and "command" not in name}


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
        before = sessions(config["db"])
        fork_and_wait(manager, config["db"])
        note("sessions kept" if before <= sessions(config["db"]) else "sessions lost")
        await manager.get_task("once").enqueue("after", 0)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given.get("is_preloaded"):
        preload(make_manager(given), given["db"])
    elif given.get("is_storm"):
        storm(make_manager(given), given["db"])
    else:
        asyncio.run(main(make_manager(given), given))
