"""Many seeds: `python -m tests.simulation --seeds 2000 --start 1`. Prints failing seeds with their history; exit 1."""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.scenario import Story, play

TAIL = 400
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
    with ProcessPoolExecutor(options.workers, max_tasks_per_child=200) as pool:
        for number, story in enumerate(pool.map(play, seeds, chunksize=5), 1):
            runs += story.run_count
            if story.faults:
                failing.append(story.seed)
                tell(story, options.lines)
            if number % 100 == 0:
                took_s = time.monotonic() - began
                print(f"{number} seeds, {runs} runs of user code, {len(failing)} failing, {took_s:.0f} s", flush=True)
    print(f"{len(seeds)} seeds from {options.start}: {len(failing)} failing {failing}")
    return 1 if failing else 0


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
