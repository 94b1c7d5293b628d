"""What other instances on the same file do about one that was killed, and about one that is frozen and wakes again."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash.harness import PATIENCE_S, both
from tests.crash.stage import Stage, staged

PROGRAM = """
import asyncio, logging, os, sys
from taskmanager import RecoveryConfig, TaskManager

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
quick = RecoveryConfig(
    check_interval_ms=1_000, runner_heartbeat_interval_ms=1_000, claimer_heartbeat_interval_ms=1_000,
    running_stale_threshold_ms=3_000, claimed_stale_threshold_ms=3_000, finalizing_stale_threshold_ms=3_000,
)
manager = TaskManager(sys.argv[1], concurrency=2, recovery=quick, store_poll=0.05)

@manager.task(name="job", persist=True, requeue_on_interrupt=True)
async def job(number: int) -> int:
    note(f"start {number} {sys.argv[2]}")
    await asyncio.sleep(6 if sys.argv[2] == "a" and number < 2 else 0.01)
    note(f"end {number} {sys.argv[2]}")
    return number

async def main() -> None:
    if sys.argv[2] == "a":
        handles = [job.enqueue(number) for number in range(6)]
        await asyncio.gather(*(handle.saved() for handle in handles))
    note(f"ready {sys.argv[2]}")
    while not os.path.exists(NOTES + ".more." + sys.argv[2]):
        await asyncio.sleep(0.05)
    print(await job.enqueue(100), flush=True)

manager.run(main)
"""


class Pair(NamedTuple):
    """Two instances of the program; `a` runs its first two tasks for long, and has four waiting."""

    stage: Stage
    a: "subprocess.Popen[str]"
    b: "subprocess.Popen[str]"

    def ends(self) -> list[str]:
        """Which tasks ended, by number and instance."""
        return sorted(line.removeprefix("end ") for line in self.stage.lines() if line.startswith("end"))

    def finish(self, name: str) -> None:
        """Let an instance run one more task, and stop."""
        Path(f"{self.stage.notes}.more.{name}").touch()
        process = self.a if name == "a" else self.b
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, "100\n")


@pytest.fixture
def pair(tmp_path: Path, database: str) -> Iterator[Pair]:
    with staged(tmp_path, PROGRAM, database) as stage:
        a = stage.start("a")
        stage.until_noted("ready a")
        b = stage.start("b")
        stage.until_noted("ready b", "start 1 a")
        yield Pair(stage, a, b)


@both
@pytest.mark.req("RC-04", "RC-22", "RC-24", "RC-42", "HB-04", "HB-21")
def test_the_work_of_a_killed_instance_goes_on_in_another(pair: Pair) -> None:
    """Its lock can be taken, so it is dead: the next sweep gives all its work back, running and waiting."""
    pair.a.send_signal(signal.SIGKILL)
    pair.a.communicate()
    pair.stage.until(lambda: len(pair.ends()) == 6)
    assert pair.ends() == [f"{number} b" for number in range(6)]
    pair.finish("b")


@both
@pytest.mark.req("RC-26", "RC-30", "HB-18", "HB-22", "RP-s7")
def test_a_frozen_instance_loses_its_claims_and_goes_on_with_new_work(pair: Pair) -> None:
    """Its heart is silent, so its work is taken over; when it wakes, its writes are refused, and it takes new tasks."""
    pair.a.send_signal(signal.SIGSTOP)
    pair.stage.until(lambda: len(pair.ends()) == 6)
    assert pair.ends() == [f"{number} b" for number in range(6)]
    pair.a.send_signal(signal.SIGCONT)
    pair.stage.until(lambda: "claim lost" in pair.stage.log_of("a"))
    pair.finish("a")
    pair.finish("b")
    rows = pair.stage.rows("SELECT status, count(*) FROM taskmanager_tasks GROUP BY 1")
    assert rows == [("COMPLETED", 8)]
