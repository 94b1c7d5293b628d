"""One measure of one contender, in this process: prints one JSON object.

    python -m benchmarks.peers.process NAME throughput|single|restart|steps|fill FOLDER --count N

The runner starts it with the interpreter of the contender's environment, in the root of the repository.
"""

import argparse
import asyncio
import json
import logging
import os
import platform
import sys
import time
from pathlib import Path

from benchmarks.peers import measures
from benchmarks.peers.contenders import CONTENDERS

MEASURES = ("throughput", "single", "restart", "steps", "fill")


async def measured(options: argparse.Namespace) -> dict[str, float]:
    """What the options ask for."""
    contender = CONTENDERS[options.name]
    peer = contender.make(options.folder)
    if options.measure == "fill":
        await peer.fill(options.count, options.ended)
        return {}
    if options.measure == "throughput":
        return await measures.throughput(contender, peer, options.count)
    if options.measure == "single":
        return await measures.single(contender, peer, options.count)
    if options.measure == "steps":
        return await measures.steps(contender, peer, options.count)
    return await measures.restart(peer, options.count, options.spawned_at)


def main() -> None:
    """Measure, and say on what."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, required=True, help="how many tasks")
    parser.add_argument("--ended", type=int, default=0, help="how many ended tasks a filled file has")
    parser.add_argument("--spawned-at", type=float, default=time.monotonic(), help="time.monotonic() of the runner")
    options = parser.parse_args()
    logging.disable()  # some write a line for each task
    found = asyncio.run(measured(options))
    versions = {"python": platform.python_version(), "sqlite": sys.modules["sqlite3"].sqlite_version}
    sys.stdout.write("\n" + json.dumps({"values": found, **versions}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # some leave threads behind that never end


if __name__ == "__main__":
    main()
