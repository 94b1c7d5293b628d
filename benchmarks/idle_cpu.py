"""How much of a core does a started manager take when it has nothing to do?

Fresh processes that wait: one with a manager on a file, one with a bare event loop. They run at the same time, for idle
processes do not disturb each other.
"""

import asyncio
import json
import time

from _sheet import Options, Sheet, database, finish_child, interleaved, no_op, parse_options, start_child

from taskmanager import TaskManager


async def wait(seconds: float) -> float:
    """Percent of a core that this process takes while it waits."""
    await asyncio.sleep(1)
    before_s, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (time.process_time() - before_s) / (time.perf_counter() - began) * 100


async def library(options: Options, seconds: float) -> float:
    """With a manager that has run one task of each kind."""
    with database(options) as path:
        manager = TaskManager(path)
        remembered = manager.task(name="remembered")(no_op)
        kept = manager.task(name="kept", persist=True)(no_op)
        async with manager:
            await remembered.enqueue()
            await kept.enqueue()
            return await wait(seconds)


def main() -> None:
    """Print the table, or be one of the fresh processes."""
    options = parse_options(__doc__)
    seconds = options.size(10, 2)
    if options.child is not None:
        work = wait(seconds) if options.child == "bare" else library(options, seconds)
        print(json.dumps({"percent": asyncio.run(work)}))
        return

    def both() -> tuple[float, float]:
        children = [start_child(__file__, options, name) for name in ("library", "bare")]
        one, other = (finish_child(each)["percent"] for each in children)
        return one, other

    runs = interleaved({"both": both}, options.repetitions)["both"]
    bare = [percent for _, percent in runs]
    sheet = Sheet(__doc__, options)
    sheet.add(f"started manager, idle for {seconds} s", [percent for percent, _ in runs], "% of a core", target="< 0.5")
    sheet.add("bare event loop", bare, "% of a core")
    sheet.print()


if __name__ == "__main__":
    main()
