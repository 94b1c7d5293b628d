"""What other instances on the same file do about one that was killed, and about one that is frozen and wakes again."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, logging, os, sys
from taskmanager import RecoveryConfig, TaskManager

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
quick = RecoveryConfig(
    check_interval_ms=1_000, runner_heartbeat_interval_ms=1_000, claimer_heartbeat_interval_ms=1_000,
    running_stale_threshold_ms=3_000, claimed_stale_threshold_ms=3_000, finalizing_stale_threshold_ms=3_000,
)
manager = TaskManager(sys.argv[1], concurrency=2, recovery=quick, store_poll=0.05)

def note(text: str) -> None:
    fd = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (text + "\\n").encode())
    os.close(fd)

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
    while not os.path.exists(sys.argv[1] + ".more." + sys.argv[2]):
        await asyncio.sleep(0.05)
    print(await job.enqueue(100), flush=True)

manager.run(main)
"""


class Stage:
    """Two instances of one program on one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "tasks.db"
        self.notes = folder / "notes.txt"
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, name: str) -> "subprocess.Popen[str]":
        """Start one instance and wait until it is ready."""
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, str(self.program), str(self.database), name, str(self.notes)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.processes.append(process)
        self.until(lambda: f"ready {name}" in self.read(), 20)
        return process

    def read(self) -> str:
        """The notes so far."""
        return self.notes.read_text() if self.notes.exists() else ""

    def until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait until it holds; fail with the notes when it does not."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, self.read()
            time.sleep(0.05)

    def ends(self) -> list[str]:
        """Which tasks ended, by number and instance."""
        return sorted(line[4:] for line in self.read().splitlines() if line.startswith("end"))

    def finish(self, process: "subprocess.Popen[str]", name: str) -> str:
        """Let an instance run one more task, and stop."""
        Path(f"{self.database}.more.{name}").touch()
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        return out


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()


@pytest.mark.req("RC-04", "RC-22", "RC-24", "RC-42", "HB-04", "HB-21")
def test_the_work_of_a_killed_instance_goes_on_in_another(stage: Stage) -> None:
    """Its lock can be taken, so it is dead: the next sweep gives all its work back, running and waiting."""
    a = stage.start("a")
    b = stage.start("b")
    stage.until(lambda: "start 1 a" in stage.read(), 10)
    a.send_signal(signal.SIGKILL)
    a.communicate()
    stage.until(lambda: len(stage.ends()) == 6, 15)
    assert stage.ends() == [f"{number} b" for number in range(6)]
    assert "100" in stage.finish(b, "b")


@pytest.mark.req("RC-26", "RC-30", "HB-18", "HB-22", "RP-s7")
def test_a_frozen_instance_loses_its_claims_and_goes_on_with_new_work(stage: Stage) -> None:
    """Its heart is silent, so its work is taken over; when it wakes, its writes are refused, and it takes new tasks."""
    a = stage.start("a")
    b = stage.start("b")
    stage.until(lambda: "start 1 a" in stage.read(), 10)
    a.send_signal(signal.SIGSTOP)
    stage.until(lambda: len(stage.ends()) == 6, 25)
    assert stage.ends() == [f"{number} b" for number in range(6)]
    a.send_signal(signal.SIGCONT)
    stage.until(lambda: "claim lost" in (stage.folder / "a.log").read_text(), 15)
    assert "100" in stage.finish(a, "a")
    assert "100" in stage.finish(b, "b")
    rows = sqlite3.connect(stage.database).execute("SELECT status, count(*) FROM taskmanager_tasks GROUP BY 1")
    assert dict(rows.fetchall()) == {"COMPLETED": 8}
