"""Many seeds: `python -m tests.simulation --seeds 2000 --start 1`. Prints failing seeds with their history; exit 1."""

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
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--start", type=int, default=1, help="the first one")
    parser.add_argument("--step", type=int, default=1, help="3 from a multiple of 3 on: only those on a real file")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--lines", type=int, default=TAIL, help="lines of history printed of a failing seed")
    options = parser.parse_args()
    began, failing, runs = time.monotonic(), [], 0
    seeds = range(options.start, options.start + options.seeds * options.step, options.step)
    for number, story in enumerate(stories(seeds, options.workers), 1):
        runs += story.run_count
        if story.faults:
            failing.append(story.seed)
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
    """One failing seed."""
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
