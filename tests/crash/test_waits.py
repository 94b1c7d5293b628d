"""A program that sleeps and waits between its steps, killed at any of its transactions: it goes on where it was.

After each death the judge reads the database, a file by plain `sqlite3`, and the lines that the steps have noted.
"""

import signal
from collections import Counter
from pathlib import Path

from tests.crash.harness import both, both_with
from tests.crash.kinds import is_server
from tests.crash.stage import Stage, staged

PROGRAM = """
import asyncio, signal
from contextlib import contextmanager
from taskmanager import TaskManager, current_task, sleep, step, wait_for


_, database, name, point, *words = sys.argv
run_queues = () if "sends" in words else None
manager = TaskManager(database, store_poll=0.05, commit_interval=0.01, run_queues=run_queues)
count = 0

real = Session.transaction

@contextmanager
def deadly(connection, *, is_beside=False):
    global count
    if sys._getframe(2).f_globals["__name__"].rpartition(".")[2] not in ("claims", "events", "transitions"):
        with real(connection, is_beside=is_beside):
            yield
        return
    count += 1
    with real(connection, is_beside=is_beside):
        yield
        if point == f"before {count}":
            os.kill(os.getpid(), signal.SIGKILL)
    if point == f"after {count}":
        os.kill(os.getpid(), signal.SIGKILL)

Session.transaction = deadly

async def work(number: int) -> int:
    note(f"ran {number}")
    return number

@manager.task(name="saga", persist=True, requeue_on_interrupt=True)
async def saga() -> int:
    total = await step(work, 1)
    try:
        await sleep(0.05)
    finally:
        note(f"left {current_task().is_suspended}")
    total += await wait_for("go", int)
    try:
        await wait_for("never", int, timeout=0.05)
    except TimeoutError:
        total += await step(work, 20)
    return total + sum(await asyncio.gather(wait_for("go", int, key="x"), wait_for("go", int, key="y")))

async def main() -> None:
    handle = saga.with_options(idempotency_key="saga").enqueue()
    if "waits" not in words:
        for number in (100, 1_000, 10_000):
            assert await manager.send(handle.task_id, "go", number, key=str(number)) or "late" in words
            note(f"sent {number}")
    if "sends" not in words:
        note(f"result {await handle}")

if __name__ == "__main__":
    manager.run(main)
"""
TOTAL = 1 + 20 + 100 + 1_000 + 10_000
LEGAL = ("PENDING", "CLAIMED", "RUNNING", "COMPLETED")


def ran(stage: Stage) -> Counter[str]:
    """How often the function of each step has begun."""
    return Counter(line for line in stage.lines() if line.startswith("ran "))


class Deaths:
    """Judges each death: what was recorded at the one before is as it was, and has not run since."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._recorded: dict[object, object] = {}
        self._ran = Counter[str]()

    def judge(self) -> None:
        rows = self._stage.rows("SELECT number || key, result, error_code, event_id, name FROM taskmanager_steps"
                                " WHERE ended_at IS NOT NULL")  # fmt: skip
        recorded: dict[object, object] = {place: rest for place, *rest in rows}
        assert recorded.items() >= self._recorded.items()
        for place, what in (("1", "ran 1"), ("5", "ran 20")):
            if place in self._recorded:
                assert ran(self._stage)[what] == self._ran[what]
        assert all(status in LEGAL for (status,) in self._stage.rows("SELECT status FROM taskmanager_tasks"))
        self._recorded, self._ran = recorded, ran(self._stage)


def judge_end(stage: Stage) -> None:
    """The result is the right one, and each event was received once, in the order in which they were sent."""
    assert stage.rows("SELECT status, result FROM taskmanager_tasks") == [("COMPLETED", f'{{"ok":{TOTAL}}}')]
    assert stage.rows("SELECT number, name, error_code FROM taskmanager_steps WHERE number > 0 ORDER BY number") == [
        (1, "work", None), (2, "sleep", None), (3, "wait:go", None), (4, "wait:never", "TASK_TIMEOUT"),
        (5, "work", None),
    ]  # fmt: skip
    # The numbers of a server have gaps where a transaction was undone.
    first, second, third = stage.rows("SELECT id FROM taskmanager_events ORDER BY id")
    assert stage.rows("SELECT event_id FROM taskmanager_steps WHERE event_id IS NOT NULL ORDER BY id") in (
        [first, second, third], [first, third, second],
    )  # fmt: skip
    assert f"result {TOTAL}" in stage.lines()


@both_with("when", ["before", "after"], "before", is_long=True)
def test_kill_at_each_transaction_loses_no_sleep_and_no_event(tmp_path: Path, database: str, when: str) -> None:
    """Each process dies at a later transaction of its life than the one before it, until one comes to the end.

    On a server, where each death takes a second to be seen, every other one is enough.
    """
    with staged(tmp_path, PROGRAM, database) as stage:
        deaths = Deaths(stage)
        for number in range(1, 40, 2 if is_server(database) else 1):
            code = stage.start(f"p{number}", f"{when} {number}", "late").wait(60)
            if code == 0:
                break
            assert code == -signal.SIGKILL, stage.log_of(f"p{number}")
            deaths.judge()
        assert number > 5
        judge_end(stage)


@both
def test_another_process_wakes_a_task_that_sleeps_or_waits_in_place(tmp_path: Path, database: str) -> None:
    """Who sends only enqueues. The task is woken where it can run."""
    with staged(tmp_path, PROGRAM, database) as stage:
        worker = stage.start("worker", "", "waits")
        stage.until_noted("left True")
        sender = stage.start("sender", "", "sends")
        assert sender.wait(60) == 0, stage.log_of("sender")
        assert worker.wait(60) == 0, stage.log_of("worker")
        judge_end(stage)
        assert ran(stage) == {"ran 1": 1, "ran 20": 1}


@both
def test_deploy_in_a_sleep_frees_nothing_and_loses_nothing(tmp_path: Path, database: str) -> None:
    """The stop finds nothing of it here. Another process goes on."""
    with staged(tmp_path, PROGRAM, database) as stage:
        first = stage.start("first", "", "waits")
        stage.until_noted("left True")
        stage.until(lambda: bool(stage.rows("SELECT 1 FROM taskmanager_steps WHERE waits_for = 'go'")))
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == -signal.SIGTERM, stage.log_of("first")
        rows = stage.rows("SELECT status, claimed_by_worker_id FROM taskmanager_tasks")
        assert rows == [("PENDING", None)]
        assert stage.start("second", "").wait(60) == 0, stage.log_of("second")
        judge_end(stage)
        assert ran(stage) == {"ran 1": 1, "ran 20": 1}
