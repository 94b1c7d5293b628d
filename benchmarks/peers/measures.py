"""What is measured: tasks run through at full speed, tasks one by one, a start with waiting tasks, and steps."""

import asyncio
import math
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.interface import CONCURRENCY, PROBE, STEPS, Contender, Peer

WARM_UP = 20
PAUSE_S = 0.005
"""How long everything is quiet before a single task."""
_STATUS = Path("/proc/self/status")


async def throughput(contender: Contender, peer: Peer, count: int) -> dict[str, float]:
    """Enqueue `count` tasks by many callers at once; the time is up when all are recorded as ended."""
    await peer.start()
    await _run_through(contender, peer, WARM_UP)
    await peer.settled(WARM_UP)
    began, worked = time.monotonic(), time.process_time()
    accepted_s = await _run_through(contender, peer, count)
    await peer.settled(WARM_UP + count)
    took_s, worked_s = time.monotonic() - began, time.process_time() - worked
    peak = peak_mib()
    await peer.stop()
    return {
        "per_s": count / took_s,
        "accepted_per_s": count / accepted_s,
        "processor_us": worked_s / count * 1e6,
        "peak_mib": peak,
    }


async def _run_through(contender: Contender, peer: Peer, count: int) -> float:
    """Return how long it took until all calls had returned; all tasks have run then."""
    PROBE.expect(count)
    callers = min(contender.callers, count)

    async def caller(first: int) -> None:
        for number in range(first, count, callers):
            await peer.put(number)

    began = time.monotonic()
    await asyncio.gather(*(caller(first) for first in range(callers)))
    accepted_s = time.monotonic() - began
    await PROBE.wait()
    return accepted_s


async def single(contender: Contender, peer: Peer, count: int) -> dict[str, float]:
    """Enqueue tasks one by one, each after the one before has run: how long the call takes, and until it runs."""
    await peer.start()
    await _run_through(contender, peer, WARM_UP)
    calls, free_calls, waits = [], [], []
    for number in range(count):
        call_s, wait_s = await _one(peer, number, in_thread=False)
        calls.append(call_s)
        waits.append(wait_s)
        if contender.is_blocking:
            free_calls.append((await _one(peer, number, in_thread=True))[0])
    await peer.stop()
    return {
        "call_us": median(calls) * 1e6,
        "free_call_us": median(free_calls or calls) * 1e6,
        "idle_ms": median(waits) * 1e3,
    }


async def _one(peer: Peer, number: int, *, in_thread: bool) -> tuple[float, float]:
    """Return how long the call took, and how long it was from the call to the first line of the task."""
    await asyncio.sleep(PAUSE_S)
    PROBE.expect(1)
    began = time.monotonic()
    if in_thread:
        await asyncio.to_thread(peer.put_blocking, number)
    else:
        await peer.put(number)
    call_s = time.monotonic() - began
    await PROBE.wait()
    return call_s, PROBE.first_at - began


async def restart(peer: Peer, count: int, spawned_at: float) -> dict[str, float]:
    """Start on a file with `count` waiting tasks: from the start of the process to the first and the last of them."""
    PROBE.expect(count)
    await peer.start()
    await PROBE.wait()
    peak = peak_mib()
    await peer.settled(count)
    await peer.stop()
    return {
        "first_s": PROBE.first_at - spawned_at,
        "restart_per_s": count / (PROBE.last_at - spawned_at),
        "restart_mib": peak,
    }


async def steps(contender: Contender, peer: Peer, count: int) -> dict[str, float]:
    """Run `count` tasks of steps, a hundred at a time; the time is up when all are recorded as ended."""
    await peer.start()
    await _run_through(contender, peer, WARM_UP)
    await peer.settled(WARM_UP)
    began, worked = time.monotonic(), time.process_time()
    for first in range(0, count, CONCURRENCY):
        await _run_through(contender, peer, min(CONCURRENCY, count - first))
    await peer.settled(WARM_UP + count)
    took_s, worked_s = time.monotonic() - began, time.process_time() - worked
    await peer.stop()
    return {"steps_per_s": count * STEPS / took_s, "step_us": worked_s / (count * STEPS) * 1e6}


def median(values: Sequence[float]) -> float:
    """The smallest value that at least half of all values do not exceed."""
    return sorted(values)[math.ceil(len(values) / 2) - 1]


def peak_mib() -> float:
    """The largest resident memory of this process.

    Linux counts the memory of the process that spawned this one in `ru_maxrss`, so it is asked elsewhere there.
    """
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (1024 * 1024 if sys.platform == "darwin" else 1024)
