"""A program that forks while its manager runs: the child may do nothing with it, and must harm nothing by ending.

python -m tests.crash.forking '{"db": ..., "is_child_lasting": false}'
"""

import asyncio
import json
import os
import sys
import time
from typing import Any, NoReturn

from taskmanager import TaskManager, WrongProcess
from tests.crash.child import make_manager
from tests.crash.jobs import note


def in_the_child(manager: TaskManager, *, is_hard: bool) -> NoReturn:
    """What a forked child tries, and one of two ways to end."""
    try:
        manager.get_task("once").enqueue("from the child", 0)
    except WrongProcess as exc:
        note(type(exc).__name__)
    if is_hard:
        os._exit(0)
    sys.exit(0)


def fork_and_wait(manager: TaskManager, *, is_hard: bool) -> None:
    """Fork, and note how the child ended."""
    pid = os.fork()
    if pid == 0:
        in_the_child(manager, is_hard=is_hard)
    _, status = os.waitpid(pid, 0)
    note(f"child ended {os.waitstatus_to_exitcode(status)}")


async def main(manager: TaskManager, config: dict[str, Any]) -> None:
    """Work, fork, work."""
    async with manager:
        if config.get("is_child_lasting"):
            await manager.get_task("safe").enqueue("long", 30).saved()
            await asyncio.sleep(0.2)
            if os.fork() == 0:
                note("forked")
                time.sleep(60)
                os._exit(0)
            await asyncio.Event().wait()
        await manager.get_task("once").enqueue("before", 0)
        fork_and_wait(manager, is_hard=True)
        fork_and_wait(manager, is_hard=False)
        await manager.get_task("once").enqueue("after", 0)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(main(make_manager(given), given))
