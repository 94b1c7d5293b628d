"""Kill it again and again: two instances on one database, signals for many rounds, then one clean run and the count.

    python -m tests.crash.churn --rounds 500 --seed 7
    python -m tests.crash.churn --rounds 500 --seed 7 --url 'postgresql://postgres@localhost/test?schema=churn'

What must hold at the end, whatever happened: every task whose `saved()` returned has ended; no success was recorded
twice or ran again; nothing that may not be repeated started twice; SQLite finds a file whole.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from taskmanager import NotPersisted, RecoveryConfig, TaskHandle, TaskManager, TaskManagerError
from tests.crash import child as child_program
from tests.crash.harness import Child, Site
from tests.crash.jobs import JOURNAL, note

SLOTS = 2
PER_GENERATION = 40
"""Tasks one child enqueues in its life: enough to be busy, few enough for the last run to finish."""
CRASH_BUDGET = 1_000
"""Here bystanders die again and again; nobody is to be quarantined for it."""
QUICK_TO_JUDGE = RecoveryConfig(
    check_interval_ms=1_000,
    claimed_stale_threshold_ms=2_000,
    running_stale_threshold_ms=2_000,
    finalizing_stale_threshold_ms=2_000,
    runner_heartbeat_interval_ms=1_000,
    claimer_heartbeat_interval_ms=1_000,
)
NAMES = ("safe", "once", "crash_retry", "thread_safe", "thread_once", "memory")
ONCE = ("once", "thread_once")
ROLES = (None, None, (), ("narrow",))
ACTIONS = ("kill", "kill", "kill", "term", "freeze")
LONGEST_FREEZE_S = 3.0
LONGEST_START_S = 3.0


# --- the child --------------------------------------------------------------------------------------------------------


async def enqueue_for_a_while(manager: TaskManager, config: dict[str, Any]) -> None:
    """Random tasks, and a line for each that is promised."""
    sign_of_life(Path(os.environ[JOURNAL]).parent, os.getpid()).touch()
    chance = random.Random(config["seed"])
    # Nobody would run a memory-only task that is left to others.
    names = NAMES if config["manager"]["run_queues"] is None else NAMES[:-1]
    promises = set()
    for number in range(PER_GENERATION):
        name = chance.choice(names)
        label = f"{name}-{os.getpid()}-{number}"
        options: dict[str, Any] = {"delay": chance.choice((0, 0, 0.05, 0.3))}
        if chance.random() < 0.2:
            options["queue_name"] = "narrow"
        if chance.random() < 0.1:
            options["idempotency_key"] = label
        handle = manager.get_task(name).with_options(**options).enqueue(label, chance.choice((0, 0.01, 0.1)))
        promise = asyncio.ensure_future(tell_when_saved(label, handle))
        promises.add(promise)
        promise.add_done_callback(promises.discard)
        await asyncio.sleep(chance.random() * 0.02)
    await asyncio.Event().wait()


def sign_of_life(folder: Path, pid: int) -> Path:
    """Made by a child that has started."""
    return folder / f"up-{pid}"


async def tell_when_saved(label: str, handle: TaskHandle[Any]) -> None:
    """The promise, as the judge will hold it against the file."""
    try:
        await handle.saved()
    except NotPersisted:
        return
    except TaskManagerError as exc:
        note(f"not saved: {type(exc).__name__}", label, handle.task_id)
        return
    note("saved", label, handle.task_id)


def run_child(config: dict[str, Any]) -> None:
    """One generation of one instance."""
    child_program.RECOVERY = QUICK_TO_JUDGE
    manager = child_program.make_manager(config)
    manager.run(lambda: enqueue_for_a_while(manager, config))


# --- the parent -------------------------------------------------------------------------------------------------------


class Churn:
    """Keeps two children running, and keeps hitting them."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._running: list[Child] = []
        self._frozen_until: dict[int, float] = {}
        self.faults: list[str] = []

    def run(self, rounds: int, *, is_loud: bool) -> None:
        """So many rounds; then everything thaws and stops."""
        began = time.monotonic()
        try:
            for number in range(1, rounds + 1):
                self._fill()
                child = self._chance.choice(self._running)
                # Most are hit at work, some while they start.
                if self._chance.random() < 0.8:
                    self._wait_for_life(child)
                time.sleep(self._chance.uniform(0.05, 0.4))
                self._hit(child)
                if is_loud and number % 25 == 0:
                    print(
                        f"round {number} of {rounds}, {time.monotonic() - began:.0f} s: {self._summary()}", flush=True
                    )
            for each in self._running:
                each.send(signal.SIGCONT)
                each.send(signal.SIGTERM)
            for each in self._running:
                self._bury(each)
        finally:
            for each in self._running:
                if each.process.poll() is None:
                    each.kill()

    def _summary(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))

    def _fill(self) -> None:
        now = time.monotonic()
        for each in list(self._running):
            if self._frozen_until.get(each.pid, now + 1) <= now:
                del self._frozen_until[each.pid]
                each.send(signal.SIGCONT)
            if each.process.poll() is not None:
                self._bury(each)
                self._running.remove(each)
        while len(self._running) < SLOTS:
            seed = self._chance.randrange(1 << 30)
            options = {"drain_timeout": 0.2, "concurrency": 10, "run_queues": self._chance.choice(ROLES)}
            self._running.append(
                self._site.spawn(program="churn", seed=seed, manager=options, crash_budget=CRASH_BUDGET)
            )
            self.counts["started"] += 1

    def _wait_for_life(self, child: Child) -> None:
        end = time.monotonic() + LONGEST_START_S
        sign = sign_of_life(self._site.folder, child.pid)
        while not sign.exists() and child.pid not in self._frozen_until and time.monotonic() < end:
            time.sleep(0.01)

    def _hit(self, child: Child) -> None:
        action = self._chance.choice(ACTIONS)
        self.counts[action] += 1
        if action == "kill":
            child.process.kill()
        elif action == "term":
            child.send(signal.SIGCONT)
            self._frozen_until.pop(child.pid, None)
            child.send(signal.SIGTERM)
        else:
            child.send(signal.SIGSTOP)
            self._frozen_until[child.pid] = time.monotonic() + self._chance.uniform(0, LONGEST_FREEZE_S)

    def _bury(self, child: Child) -> None:
        """Nothing but our signals may end a child."""
        code = child.wait()
        # SIGTERM while the interpreter starts, before anybody can handle it, is a death by that signal.
        if code not in (0, -signal.SIGKILL, -signal.SIGTERM) or "Traceback" in child.errors():
            self.faults.append(f"a child ended with {code}:\n{child.errors()}")


def judge(site: Site) -> list[str]:
    """Every sentence that should not be true."""
    faults = []
    for check in (site.assert_sound, site.assert_settled):
        try:
            check()
        except AssertionError as exc:
            faults.append(str(exc))
    statuses = site.statuses()
    saved = {line.label for line in site.lines("saved")}
    if lost := saved - statuses.keys():
        faults.append(f"saved and gone: {sorted(lost)}")
    if twice := [label for label, count in site.starts().items() if label.startswith(ONCE) and count > 1]:
        faults.append(f"may start once, started more often: {twice}")
    safe = {label: status for label, status in statuses.items() if label.startswith(("safe", "thread_safe"))}
    if bad := {label: status for label, status in safe.items() if status != "COMPLETED"}:
        faults.append(f"safe to repeat, and not completed: {bad}")
    if left := [str(path.name) for path in site.folder.glob("*.lock")]:
        faults.append(f"lock files left: {left}")
    return faults


def run_rounds(
    folder: Path, rounds: int, seed: int, database: str | None = None, *, is_loud: bool = False
) -> list[str]:
    """All of it in `folder`, or with the tasks on a server; the faults found."""
    site = Site(folder, database)
    churn = Churn(site, seed)
    churn.run(rounds, is_loud=is_loud)
    last = site.spawn(until="empty", sleep_s=0.0, crash_budget=CRASH_BUDGET)
    faults = list(churn.faults)
    if last.wait(120) != 0:
        faults.append(f"the last run ended with {last.code}:\n{last.errors()}")
    faults += judge(site)
    if is_loud:
        statuses = Counter(site.statuses().values())
        print(f"{len(site.lines('saved'))} promised, {sum(site.starts().values())} starts, {dict(statuses)}")
    return faults


def main() -> int:
    """The command line."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        run_child(json.loads(sys.argv[1]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--url", help="an empty schema on a server, instead of a file")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="churn-"))
    print(f"{given.rounds} rounds, seed {given.seed}, in {folder}", flush=True)
    faults = run_rounds(folder, given.rounds, given.seed, given.url, is_loud=True)
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"{len(faults)} faults" if faults else "no faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
