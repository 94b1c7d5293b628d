"""How long until the work of a killed process runs again, after a restart and beside a living instance?

A process with running and waiting tasks gets SIGKILL. Restart: a fresh process, from its `start()` to the first and the
last repeated task, imports not counted. Living instance: from the SIGKILL on; it looks four times a second whether the
locks of the others can be taken.
"""

import asyncio
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from _sheet import Options, Sheet, database, finish_child, interleaved, parse_options, start_child

from taskmanager import TaskManager

RUNNING = 100
POLL_S = 0.005


class Times(NamedTuple):
    """Seconds to the first and to the last of the killed process's tasks."""

    first_s: float
    last_s: float


def make(path: Path, is_victim: bool) -> tuple[TaskManager, list[float]]:
    """A manager whose task lasts for ever in the victim, and notes its start elsewhere."""
    manager = TaskManager(path)
    starts: list[float] = []

    async def work(number: int) -> None:
        starts.append(time.monotonic())
        if is_victim:
            await asyncio.Event().wait()

    manager.task(name="work", persist=True, requeue_on_interrupt=True)(work)
    return manager, starts


async def be_victim(path: Path, count: int) -> None:
    """Start as many tasks as run at once, let the others wait, say so, and wait for the end."""
    manager, _ = make(path, True)
    async with manager:
        await asyncio.gather(*(manager.enqueue("work", number).saved() for number in range(count)))
        path.with_suffix(".ready").touch()
        await asyncio.Event().wait()


async def be_heir(path: Path, count: int) -> dict[str, float]:
    """Start, and wait until all of it has run; monotonic instants."""
    manager, starts = make(path, False)
    began = time.monotonic()
    async with manager:
        path.with_suffix(".heir").touch()
        while len(starts) < count:  # noqa: ASYNC110  # a benchmark may look
            await asyncio.sleep(POLL_S)
    return {"began": began, "first": starts[0], "last": starts[-1]}


def killed_at(victim: "subprocess.Popen[str]") -> float:
    """SIGKILL, and when."""
    at = time.monotonic()
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    return at


def wait_for(path: Path) -> None:
    """Until that file is there."""
    while not path.exists():
        time.sleep(POLL_S)


def restarted(options: Options) -> Times:
    """Killed, then started again."""
    with database(options) as path:
        victim = start_child(__file__, options, f"victim {path}")
        wait_for(path.with_suffix(".ready"))
        killed_at(victim)
        found = finish_child(start_child(__file__, options, f"heir {path}"))
    return Times(found["first"] - found["began"], found["last"] - found["began"])


def beside(options: Options) -> Times:
    """Killed beside an instance that has nothing to do."""
    with database(options) as path:
        victim = start_child(__file__, options, f"victim {path}")
        wait_for(path.with_suffix(".ready"))
        heir = start_child(__file__, options, f"heir {path}")
        wait_for(path.with_suffix(".heir"))
        at = killed_at(victim)
        found = finish_child(heir)
    return Times(found["first"] - at, found["last"] - at)


def main() -> None:
    """Print the table, or be one of the processes."""
    options = parse_options(__doc__)
    count = options.size(5_000, 500)
    if options.child is not None:
        role, _, path = options.child.partition(" ")
        if role == "victim":
            asyncio.run(be_victim(Path(path), count))
        else:
            print(json.dumps(asyncio.run(be_heir(Path(path), count))))
        return
    runs = interleaved({"restart": lambda: restarted(options), "beside": lambda: beside(options)}, options.repetitions)
    sheet = Sheet(__doc__, options)
    for name, what in (
        ("restart", "restart on the same host, from start()"),
        ("beside", "living instance, from SIGKILL"),
    ):
        sheet.add(f"{what}: to the first task", [each.first_s for each in runs[name]], "s")
        sheet.add(f"{what}: to the last of {count:,}", [each.last_s for each in runs[name]], "s")
    sheet.note(f"{RUNNING} tasks ran and {count - RUNNING:,} waited when the process was killed.")
    sheet.print()


if __name__ == "__main__":
    main()
