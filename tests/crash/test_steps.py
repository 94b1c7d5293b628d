"""A program of ten steps, killed at any point: a recorded step is never run again, and the result is the right one.

After each death the judge reads the database, a file by plain `sqlite3`, and the lines that the steps have noted.
"""

import random
import signal
from collections import Counter
from pathlib import Path

from tests.crash.harness import both, both_with
from tests.crash.stage import Stage, staged

PROGRAM = """
import asyncio, signal, time
from taskmanager import StepFailed, TaskManager, current_step, step
from taskmanager.store.sql import transitions

_, database, name, point, *words = sys.argv
manager = TaskManager(database, store_poll=0.05, commit_interval=0.01)
count = 0

async def work(number: int) -> int:
    note(f"ran {number}")
    await asyncio.sleep(0.01)
    return number * number

def blocking(number: int) -> int:
    note(f"ran {number}")
    time.sleep(0.01)
    return number * number

async def refused(number: int) -> int:
    note(f"ran {number}")
    raise OSError("refused")

async def branch(number: int) -> int:
    return await step.with_options(key=f"branch:{number}")(work, number)

@manager.task(name="ten", persist=True, requeue_on_interrupt=True)
async def ten() -> int:
    total = 0
    for number in range(1, 4):
        total += await step(work, number)
    try:
        await step(refused, 4)
    except StepFailed:
        total += await step(work, 5)
    total += sum(await asyncio.gather(step(blocking, 6), step(work, 7)))
    total += sum(await asyncio.gather(branch(8), branch(9)))
    return total + await step(blocking, 10)

real_commit = transitions.commit

def commit(connection, writes, counting):
    global count
    count += any(getattr(each, "steps", ()) for each in writes)
    if point == f"before {count}":
        os.kill(os.getpid(), signal.SIGKILL)
    report = real_commit(connection, writes, counting)
    if point == f"after {count}":
        os.kill(os.getpid(), signal.SIGKILL)
    return report

transitions.commit = commit

async def main() -> None:
    if "enqueue" in words:
        await ten.with_options(idempotency_key="ten").enqueue().saved()
        note("saved")
    while not (await manager.counts())["COMPLETED"] and "wait" in words:
        await asyncio.sleep(0.01)
    await manager.join()

if __name__ == "__main__":
    manager.run(main)
"""
TOTAL = 1 + 4 + 9 + 25 + 36 + 49 + 64 + 81 + 100
NUMBER = {("step", str(number)): number for number in (1, 2, 3, 4, 5)} | {
    ("step", "6"): 6, ("step", "7"): 7, ("key", "branch:8"): 8, ("key", "branch:9"): 9, ("step", "8"): 10,
}  # fmt: skip
"""What the step of each number, or key, works at."""


def recorded(stage: Stage) -> set[int]:
    """The steps that no later run may run again: those with a value, and the error that the code has seen."""
    rows = stage.rows("SELECT number, key FROM taskmanager_steps WHERE error_code IS NULL OR is_final = 1")
    return {NUMBER[("key", str(key)) if key else ("step", str(number))] for number, key in rows}


def ran(stage: Stage) -> Counter[int]:
    """How often the function of each step has begun."""
    return Counter(int(line.split()[1]) for line in stage.lines() if line.startswith("ran "))


def judge_end(stage: Stage) -> None:
    """The task has ended with the right result, and every step is recorded once."""
    ((status, result),) = stage.rows("SELECT status, result FROM taskmanager_tasks")
    assert (status, result) == ("COMPLETED", f'{{"ok":{TOTAL}}}')
    assert recorded(stage) == set(range(1, 11))
    assert set(ran(stage)) == set(range(1, 11))


class Deaths:
    """Judges each death: what was recorded at the one before has not run since."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._before: tuple[set[int], Counter[int]] = set(), Counter()

    def judge(self) -> None:
        known, counts = self._before
        now = ran(self._stage)
        assert {each: now[each] for each in known} == {each: counts[each] for each in known}
        self._before = recorded(self._stage), now


@both_with("when", ["before", "after"], "before")
def test_kill_at_each_commit_repeats_at_most_the_steps_under_way(tmp_path: Path, database: str, when: str) -> None:
    """Each process dies at the next commit of steps than the one before it did; the last one is left alone."""
    with staged(tmp_path, PROGRAM, database) as stage:
        deaths = Deaths(stage)
        for number in range(2):
            code = stage.start(f"p{number}", f"{when} {1 + number % 2}", "enqueue", "wait").wait(60)
            assert code == -signal.SIGKILL, stage.log_of(f"p{number}")
            deaths.judge()
        assert stage.start("last", "", "enqueue", "wait").wait(60) == 0, stage.log_of("last")
        deaths.judge()
        judge_end(stage)


@both
def test_kill_at_random_points_repeats_no_recorded_step(tmp_path: Path, database: str) -> None:
    """The signal comes from outside, after a random number of notes."""
    chance = random.Random(7)
    with staged(tmp_path, PROGRAM, database) as stage:
        deaths = Deaths(stage)
        for number in range(3):
            seen = len(stage.lines())
            process = stage.start(f"p{number}", "", "enqueue")
            until = seen + chance.randint(1, 4)
            stage.until(lambda: len(stage.lines()) >= until or process.poll() is not None)  # noqa: B023  # called at once
            process.kill()
            process.wait(60)
            deaths.judge()
        assert stage.start("last", "", "enqueue", "wait").wait(60) == 0, stage.log_of("last")
        deaths.judge()
        judge_end(stage)


@both
def test_sigterm_frees_the_task_and_another_process_goes_on(tmp_path: Path, database: str) -> None:
    """A deploy: the second process runs beside the first one, and takes over what that has left."""
    with staged(tmp_path, PROGRAM, database) as stage:
        first = stage.start("first", "", "enqueue")
        stage.until_noted("ran 2")
        second = stage.start("second", "", "wait")
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == -signal.SIGTERM, stage.log_of("first")
        assert second.wait(60) == 0, stage.log_of("second")
        judge_end(stage)
        assert ran(stage)[1] == 1
