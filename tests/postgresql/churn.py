"""Kill servers and instances again and again: three instances on one server, then one clean run and the count.

    python -m tests.postgresql.churn --rounds 200 --seed 7
    python -m tests.postgresql.churn --rounds 200 --seed 7 --namespaces

With `--namespaces` each instance runs on a host of its own, whose cable is pulled for up to 40 s: no session ends by
that, and what runs on may be taken for dead meanwhile.

What must hold at the end, whatever happened: every task whose `saved()` returned has ended; what somebody has waited
for has succeeded, as that one was told while the server was there; what may not be repeated has started once; nothing
that has succeeded has started again; the server has let go of every session.
"""

import argparse
import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from taskmanager import RecoveryConfig, TaskManager, TaskManagerError, TaskStatus, current_task
from tests.postgresql.namespaces import Host, Network, NoNamespaces
from tests.servers import HOST, Cluster

INSTANCES: Final = 3
ACTIONS: Final[tuple[str, ...]] = ("kill", "kill", "term", "freeze", "fast", "immediate", "server", "sessions")
ACTIONS_ON_HOSTS: Final = ("kill", "kill", "kill", "cut", "cut", "cut", "immediate", "server")
PAUSES_S: Final = (0.5, 2.0)
PAUSES_ON_HOSTS_S: Final = (1.0, 5.0)
SHORTEST_CUT_S: Final = 1.0
LONGEST_CUT_S: Final = 40.0
LIVE: Final = (TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING)
PER_LIFE: Final = 60
SCHEMA: Final = "jobs"
LET_GO_S: Final = 30.0
"""By then the server must have noticed which hosts are silent."""
LAST_S: Final = 480.0
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
        handle = manager.get_task(name).enqueue(chance.choice((0.0, 0.01, 0.2, 1.0)))
        promise = asyncio.create_task(_promise(manager, config["journal"], name, handle))
        promises.add(promise)
        promise.add_done_callback(promises.discard)
        await asyncio.sleep(chance.random() * 0.03)
    await asyncio.Event().wait()


async def _promise(manager: TaskManager, journal: str, name: str, handle: Any) -> None:
    with suppress(TaskManagerError):
        await handle.saved()
        note(journal, f"saved-{name}", handle.task_id)
        await handle
        # What ends while the server is away is told before it is written.
        if manager.status().storage_degraded_since is None:
            note(journal, "done", handle.task_id)


class Churn:
    """Keeps the instances running, each on its host if there are any, and keeps hitting them and their server."""

    def __init__(self, folder: Path, seed: int, network: Network | None = None) -> None:
        self._folder, self._chance, self._network = folder, random.Random(seed), network
        self.journal = folder / "journal"
        self.journal.touch()
        self.cluster = Cluster.create()
        self._address, self._actions, self._pauses_s = HOST, ACTIONS, PAUSES_S
        if network is not None:
            self._address, self._actions, self._pauses_s = network.address, ACTIONS_ON_HOSTS, PAUSES_ON_HOSTS_S
            self.cluster.set("listen_addresses", f"{HOST},{network.address}")
            self.cluster.restart()
        self._children: list[subprocess.Popen[bytes] | None] = [None] * INSTANCES
        self._cuts: list[threading.Timer] = []
        self.counts: Counter[str] = Counter()
        self.last_code = 0

    def _spawn(self, number: int, *, is_last: bool = False) -> subprocess.Popen[bytes]:
        self.counts["started"] += 1
        config = {
            "url": self.cluster.url(SCHEMA, host=self._address), "journal": str(self.journal), "is_last": is_last,
            "seed": self._chance.randrange(1 << 30),
        }  # fmt: skip
        with (self._folder / f"err{self.counts['started']}").open("wb") as errors:
            command = [sys.executable, "-m", "tests.postgresql.churn", json.dumps(config)]
            if self._network is not None:
                command = self._network.hosts[number].command(*command)
            return subprocess.Popen(command, stderr=errors, stdout=errors)

    def run(self, rounds: int) -> None:
        """So many rounds, and a clean run."""
        began_s = time.monotonic()
        for number in range(1, rounds + 1):
            self._fill()
            time.sleep(self._chance.uniform(*self._pauses_s))
            self._hit(self._chance.choice(self._actions))
            if number % 10 == 0:
                print(f"round {number}, {time.monotonic() - began_s:.0f} s: {dict(self.counts)}", flush=True)
        for cut in self._cuts:
            cut.join()
        living = [each for each in self._children if each is not None]
        for each in living:
            each.send_signal(signal.SIGTERM)
        for each in living:
            each.wait(60)
        self.last_code = self._spawn(0, is_last=True).wait(LAST_S)

    def _fill(self) -> None:
        """Start what has ended, except on a host that is cut off: it would not find the server."""
        for number, child in enumerate(self._children):
            is_cut = self._network is not None and self._network.hosts[number].is_cut
            if (child is None or child.poll() is not None) and not is_cut:
                self._children[number] = self._spawn(number)

    def _cut(self, host: Host) -> None:
        """Pull a cable. That is over by itself."""
        seconds = math.exp(self._chance.uniform(math.log(SHORTEST_CUT_S), math.log(LONGEST_CUT_S)))
        host.cut()
        mending = threading.Timer(seconds, host.mend)
        mending.start()
        self._cuts.append(mending)

    def _hit(self, action: str) -> None:
        whole = [] if self._network is None else [each for each in self._network.hosts if not each.is_cut]
        living = [each for each in self._children if each is not None and each.poll() is None]
        if (action == "cut" and not whole) or (action in ("kill", "term", "freeze") and not living):
            action = "server"
        self.counts[action] += 1
        child = self._chance.choice(living or [None])
        if action == "cut":
            self._cut(self._chance.choice(whole))
        elif child is not None and action in ("kill", "term", "freeze"):
            self._hit_child(child, action)
        elif action == "sessions":
            self.cluster.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        else:
            self.cluster.kill() if action == "server" else self.cluster.stop(action)  # type: ignore[arg-type]
            time.sleep(self._chance.uniform(0.0, 2.0))
            self.cluster.start()

    def _hit_child(self, child: subprocess.Popen[bytes], action: str) -> None:
        if action == "kill":
            child.kill()
            child.wait()
        elif action == "term":
            child.terminate()
        else:
            child.send_signal(signal.SIGSTOP)
            time.sleep(self._chance.uniform(0.1, 3.0))
            child.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Leave nothing behind."""
        for cut in self._cuts:
            cut.cancel()
        for each in self._children:
            if each is not None:
                each.kill()
        self.cluster.destroy()
        if self._network is not None:
            self._network.destroy()

    def _judge_sessions(self) -> list[str]:
        """Everybody has ended, so no session may be left, of however silent an end."""
        question = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'taskmanager%'"
        end_s = time.monotonic() + LET_GO_S
        while (left := self.cluster.psql(question)) and time.monotonic() < end_s:
            time.sleep(0.5)
        return [f"the server still has the session {name}" for (name,) in left]

    def judge(self) -> list[str]:
        """Every sentence that should not be true."""
        lines = [each.split() for each in self.journal.read_text().splitlines()]
        starts = Counter(task_id for event, task_id in lines if event == "start")
        done = [task_id for event, task_id in lines if event == "done"]
        names = {task_id: event for event, task_id in lines if event.startswith("saved")}
        rows = {
            task_id: (name, status)
            for task_id, name, status in self.cluster.psql(
                f"SELECT id, task_name, status FROM {SCHEMA}.taskmanager_tasks"
            )
        }
        print(f"{len(names)} promised, {len(done)} waited for, {sum(starts.values())} starts, {Counter(rows.values())}")
        faults = [f"the clean run ended with {self.last_code}"] if self.last_code else []
        faults += self._judge_sessions()
        faults += [f"promised, and gone: {each}" for each in names.keys() - rows.keys()]
        faults += [
            f"waited for, and not completed: {each} {rows.get(each)}"
            for each in done
            if rows.get(each, ("", ""))[1] != "COMPLETED"
        ]
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
    parser.add_argument("--namespaces", action="store_true", help="each instance on a host of its own; needs root")
    given = parser.parse_args()
    try:
        network = Network(INSTANCES) if given.namespaces else None
    except NoNamespaces as exc:
        parser.error(str(exc))
    folder = Path(tempfile.mkdtemp(prefix="churn-"))
    print(f"{given.rounds} rounds, seed {given.seed}, in {folder}", flush=True)
    churn = Churn(folder, given.seed, network)
    try:
        churn.run(given.rounds)
        faults = churn.judge()
    finally:
        churn.end()
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"{len(faults)} faults" if faults else "no faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
