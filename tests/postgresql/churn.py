"""Kill servers and instances again and again: three instances on one server, then one clean run and the count.

    python -m tests.postgresql.churn --rounds 200 --seed 7

What must hold at the end, whatever happened: every task whose `saved()` returned has ended; what may not be repeated
has started once; nothing that has succeeded has started again.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from taskmanager import RecoveryConfig, TaskManager, TaskManagerError, TaskStatus, current_task
from tests.servers import Cluster

INSTANCES: Final = 3
ACTIONS: Final = ("kill", "kill", "term", "freeze", "fast", "immediate", "server", "sessions")
LIVE: Final = (TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING)
PER_LIFE: Final = 60
SCHEMA: Final = "jobs"
LAST_S: Final = 240.0
"""How long the clean run may take: first it must be sure that those before it are dead."""


def note(journal: str, event: str, label: str) -> None:
    """Add one line, which a kill cannot tear."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{event} {label}\n".encode())
    os.close(descriptor)


def make_manager(url: str, journal: str) -> TaskManager:
    """One task that may be repeated, and one that may not."""
    recovery = replace(RecoveryConfig(), crash_budget=1_000, check_interval_ms=1_000)
    manager = TaskManager(url, recovery=recovery, store_poll=0.1, drain_timeout=0.5, concurrency=10)

    async def work(seconds: float) -> None:
        note(journal, "start", current_task().task_id)
        await asyncio.sleep(seconds)
        note(journal, "end", current_task().task_id)

    manager.task(name="once", persist=True)(work)
    manager.task(name="safe", persist=True, requeue_on_interrupt=True)(work)
    return manager


async def live(manager: TaskManager, config: dict[str, Any]) -> None:
    """Enqueue for a while, and tell what was promised."""
    if config["is_last"]:
        # One look for all of them: what is recovered between two would be in neither.
        while sum(map((await manager.counts()).__getitem__, LIVE)):  # noqa: ASYNC110  # the store has no event for it
            await asyncio.sleep(0.1)
        return
    chance = random.Random(config["seed"])
    promises = set()
    for _ in range(PER_LIFE):
        name = chance.choice(("once", "safe"))
        handle = manager.get_task(name).enqueue(chance.choice((0.0, 0.01, 0.2)))
        promise = asyncio.create_task(_promise(config["journal"], name, handle))
        promises.add(promise)
        promise.add_done_callback(promises.discard)
        await asyncio.sleep(chance.random() * 0.03)
    await asyncio.Event().wait()


async def _promise(journal: str, name: str, handle: Any) -> None:
    try:
        await handle.saved()
    except TaskManagerError:
        return
    note(journal, f"saved-{name}", handle.task_id)


class Churn:
    """Keeps the instances running, and keeps hitting them and their server."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._chance = folder, random.Random(seed)
        self.journal = folder / "journal"
        self.cluster = Cluster.create()
        self._children: list[subprocess.Popen[bytes]] = []
        self.counts: Counter[str] = Counter()
        self.last_code = 0

    def _spawn(self, *, is_last: bool = False) -> subprocess.Popen[bytes]:
        self.counts["started"] += 1
        config = {
            "url": self.cluster.url(SCHEMA), "journal": str(self.journal), "is_last": is_last,
            "seed": self._chance.randrange(1 << 30),
        }  # fmt: skip
        with (self._folder / f"err{self.counts['started']}").open("wb") as errors:
            command = [sys.executable, "-m", "tests.postgresql.churn", json.dumps(config)]
            return subprocess.Popen(command, stderr=errors, stdout=errors)

    def run(self, rounds: int) -> None:
        """So many rounds, and a clean run."""
        began_s = time.monotonic()
        for number in range(1, rounds + 1):
            self._children = [each for each in self._children if each.poll() is None]
            while len(self._children) < INSTANCES:
                self._children.append(self._spawn())
            time.sleep(self._chance.uniform(0.5, 2.0))
            self._hit(self._chance.choice(ACTIONS))
            if number % 10 == 0:
                print(f"round {number}, {time.monotonic() - began_s:.0f} s: {dict(self.counts)}", flush=True)
        for each in self._children:
            each.send_signal(signal.SIGTERM)
        for each in self._children:
            each.wait(60)
        self.last_code = self._spawn(is_last=True).wait(LAST_S)

    def _hit(self, action: str) -> None:
        self.counts[action] += 1
        child = self._chance.choice(self._children)
        if action == "kill":
            child.kill()
            child.wait()
        elif action == "term":
            child.terminate()
        elif action == "freeze":
            child.send_signal(signal.SIGSTOP)
            time.sleep(self._chance.uniform(0.1, 3.0))
            child.send_signal(signal.SIGCONT)
        elif action == "sessions":
            self.cluster.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        else:
            self.cluster.kill() if action == "server" else self.cluster.stop(action)  # type: ignore[arg-type]
            time.sleep(self._chance.uniform(0.0, 2.0))
            self.cluster.start()

    def judge(self) -> list[str]:
        """Every sentence that should not be true."""
        lines = [each.split() for each in self.journal.read_text().splitlines()]
        starts = Counter(task_id for event, task_id in lines if event == "start")
        names = {task_id: event for event, task_id in lines if event.startswith("saved")}
        rows = {
            task_id: (name, status)
            for task_id, name, status in self.cluster.psql(
                f"SELECT id, task_name, status FROM {SCHEMA}.taskmanager_tasks"
            )
        }
        print(f"{len(names)} promised, {sum(starts.values())} starts, {Counter(rows.values())}")
        faults = [f"the clean run ended with {self.last_code}"] if self.last_code else []
        faults += [f"promised, and gone: {each}" for each in names.keys() - rows.keys()]
        faults += [
            f"not ended: {each} {rows[each]}" for each in rows if rows[each][1] in ("PENDING", "CLAIMED", "RUNNING")
        ]
        faults += [
            f"safe, and not completed: {each} {row}"
            for each, row in rows.items()
            if row[0] == "safe" and row[1] != "COMPLETED"
        ]
        faults += [
            f"may start once, started {starts[each]}: {each}"
            for each, row in rows.items()
            if row[0] == "once" and starts[each] > 1
        ]
        twice = self.cluster.psql(
            f"SELECT task_id FROM {SCHEMA}.taskmanager_task_attempts WHERE outcome = 'COMPLETED'"
            " GROUP BY task_id HAVING count(*) > 1"
        )
        return faults + [f"succeeded twice: {each}" for (each,) in twice]


def main() -> int:
    """The command line."""
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        config = json.loads(sys.argv[1])
        manager = make_manager(config["url"], config["journal"])
        manager.run(lambda: live(manager, config))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="churn-"))
    print(f"{given.rounds} rounds, seed {given.seed}, in {folder}", flush=True)
    churn = Churn(folder, given.seed)
    try:
        churn.run(given.rounds)
        faults = churn.judge()
    finally:
        churn.cluster.destroy()
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"{len(faults)} faults" if faults else "no faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
