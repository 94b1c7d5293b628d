"""Bad days on virtual time, seed by seed: the map of the simulator, and its command line.

    make simulate                                              # thousands of seeds
    python -m tests.simulation --seeds 1 --start 7             # one; its history is printed where it fails
    python -m tests.simulation --seeds 1 --start 7 --history   # and where it does not

A seed is a world of its own, and the same each time: some processes on one store, each a real `TaskManager`, with its
real engine, on an event loop that runs one callback at a time and only when it is drawn. Whoever gets no turn any more
was killed, at any await. So a failing seed is a complete report: play it again, and read what happened before the line
that says FAULT. After a change of the library or of the simulator a seed is another one; a history worth keeping
becomes a test of its own, as in `test_pauses` and `test_histories`.

From the outside in:

- `scenario`: one seed from its first line to its last. Some seconds of faults, then none: everything must come to rest.
- `days`: what happens to processes, disk and clock, each with its weight. `calls`: what the application asks meanwhile.
- `world`: one seed. Who is there, what time it is, whose turn is next, what the seed is like.
- `process`: one program, with `turns` (its loop), `lanes` (its threads and children) and `jobs` (its user code).
- `disk`: the one place that survives, a store in memory or a real file. `faults`: the line to it, late and broken.
- The judge looks on and shares no code with the library: `checks` at the rows after each write, `runs` at each start of
  user code, `failures` at what follows them, `timetable` at the fires of schedules, `promises` at calls that came back,
  `hearing` at what listeners are told, `steps` and `waits` at the parts of one task, `workflows` at graphs of them.

A new fault is a method of `Days`, ended by `scenario` with all others. A new rule goes to the judge, and is proven by
breaking the library on purpose: some seed of the first hundred must find it.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.scenario import Story, play

TAIL = 400
SEEDS_PER_POOL = 1_000
HASH_SEED = "0"


def main() -> int:
    """Play them, and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--start", type=int, default=1, help="the first one")
    parser.add_argument("--step", type=int, default=1, help="3 from a multiple of 3 on: only those on a real file")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--lines", type=int, default=TAIL, help="lines of history that are printed of one seed")
    parser.add_argument("--history", action="store_true", help="print that of every seed, not only of failing ones")
    options = parser.parse_args()
    began, failing, runs = time.monotonic(), [], 0
    seeds = range(options.start, options.start + options.seeds * options.step, options.step)
    for number, story in enumerate(stories(seeds, options.workers), 1):
        runs += story.run_count
        if story.faults:
            failing.append(story.seed)
        if story.faults or options.history:
            tell(story, options.lines)
        if number % 100 == 0:
            took_s = time.monotonic() - began
            print(f"{number} seeds, {runs} runs of user code, {len(failing)} failing, {took_s:.0f} s", flush=True)
    print(f"{len(seeds)} seeds from {options.start}: {len(failing)} failing {failing}")
    return 1 if failing else 0


def stories(seeds: Sequence[int], workers: int) -> Iterator[Story]:
    """In the order of the seeds. The workers are new ones from time to time, so that nothing piles up in them.

    Not by `max_tasks_per_child`: a pool may wait for ever for the worker that is to follow
    (https://github.com/python/cpython/issues/115634).
    """
    for first in range(0, len(seeds), SEEDS_PER_POOL):
        with ProcessPoolExecutor(workers) as pool:
            yield from pool.map(play, seeds[first : first + SEEDS_PER_POOL], chunksize=5)


def tell(story: Story, lines: int) -> None:
    """The end of one history, and what is wrong with it."""
    print(f"--- seed {story.seed}")
    print("\n".join(story.lines[-lines:]))
    for fault in story.faults:
        print(f"seed {story.seed}: {fault}")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:  # or sets would be walked in another order each time
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": HASH_SEED},
        )
    sys.exit(main())
