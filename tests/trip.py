"""The trip of a no-op task through the package, from its call to its flushed end: which modules it visits, in order.

    python -m tests.trip               # both kinds of task, call by call
    python -m tests.trip persisted     # one
    python -m tests.trip --short       # the figures alone

The manager has run a task before, and has been quiet for half a second. A call is a function of the package that is
entered, or a coroutine or generator that goes on, in the thread of the event loop or of the store. The modules are
those of five trips together, the calls those of the median one. The manager looks for the work of others once a
minute, so that such a look seldom falls into a trip.

`tests/acceptance/test_trip.py` has the bounds.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import taskmanager
from taskmanager import TaskManager

PACKAGE: Final = f"{Path(taskmanager.__file__).parent}/"
KINDS: Final = ("memory-only", "persisted")
TRIPS: Final = 5
QUIET_S: Final = 0.5
COMMIT_INTERVAL_S: Final = 0.5
"""Longer than a commit may take on a busy disk: at the usual 20 ms its timer rings in the middle of a trip there."""
STORE_POLL_S: Final = 60.0


class Call(NamedTuple):
    """One function that was entered, or went on."""

    is_loop: bool
    module: str
    function: str


class Trip(NamedTuple):
    """What five trips of one kind of task are measured by."""

    modules: int
    engine_modules: int
    calls: int


@contextmanager
def recording(calls: list[Call]) -> Iterator[None]:
    """Note the calls of this thread from here on, and those of all threads that are started meanwhile."""
    loop_thread = threading.get_ident()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            name = code.co_qualname.replace(".<locals>", "")
            calls.append(Call(threading.get_ident() == loop_thread, code.co_filename.removeprefix(PACKAGE), name))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def travel(is_persisted: bool, path: Path) -> list[list[Call]]:
    """Send a task on its way, again and again."""
    calls: list[Call] = []
    trips = []

    async def no_op() -> None:
        pass

    with recording(calls):
        manager = TaskManager(path, store_poll=STORE_POLL_S, commit_interval=COMMIT_INTERVAL_S)
        task = manager.task(name="no_op", persist=is_persisted)(no_op)
        async with manager:
            await task.enqueue()
            await manager.flush()
            for _ in range(TRIPS):
                await asyncio.sleep(QUIET_S)
                calls.clear()
                await task.enqueue()
                await manager.flush()
                trips.append(calls.copy())
    return trips


def trips_of(kind: str) -> list[list[Call]]:
    """Five trips of one kind, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(travel(kind == "persisted", Path(folder) / "tasks.db"))


def measure(trips: Sequence[Sequence[Call]]) -> Trip:
    """Count. A trip that is longer than the median one met a duty of the manager on its way, and is left out."""
    calls = statistics.median_low(len(trip) for trip in trips)
    modules = {call.module for trip in trips if len(trip) <= calls for call in trip}
    return Trip(len(modules), sum(module.startswith("engine/") for module in modules), calls)


def measure_apart(kind: str) -> Trip:
    """The same in a process of its own, where nothing else is profiled."""
    command = [sys.executable, "-m", "tests.trip", "--json", kind]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Trip(*json.loads(output))


def lines(trip: Sequence[Call]) -> Iterator[str]:
    """One line for each stay in a module. What stands to the right runs in the thread of the store."""
    width = max(len(call.module) for call in trip)
    for (is_loop, module), stay in groupby(trip, key=lambda call: call[:2]):
        names = []
        for name, same in groupby(call.function for call in stay):
            count = len(list(same))
            names.append(name if count == 1 else f"{name} ×{count}")
        yield f"{'' if is_loop else '    store: '}{module:{width}}  {', '.join(names)}"


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", nargs="?", choices=KINDS, help="both, unless one is named")
    parser.add_argument("--short", action="store_true", help="the figures alone")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    for kind in [given.kind] if given.kind else KINDS:
        trips = trips_of(kind)
        found = measure(trips)
        if given.json:
            print(json.dumps(found))
            continue
        if not given.short:
            print(f"\n{kind}:\n", *lines(trips[-1]), sep="\n")
        print(f"\n{kind}: {found.modules} modules, {found.engine_modules} of them of engine/, {found.calls} calls")


if __name__ == "__main__":
    main()
