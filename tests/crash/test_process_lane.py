"""The process lane: a child that dies takes only its own task with it, and none outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import PATIENCE_S, ROOT, Site, both, both_with, is_alive, killed_at_the_end, rows_of, wait_for


@both_with("how", ["os._exit", "SIGKILL"], "SIGKILL", is_long=True)
def test_a_child_that_dies_fails_its_own_task_only(tmp_path: Path, database: str, how: str) -> None:
    """`WORKER_CRASHED` for the one; its neighbour in another child goes on, and the pool takes the next."""
    site = Site(tmp_path, database)
    dies: list[Any] = ["process_dies", "dies", 0 if how == "SIGKILL" else 1, {}]
    enqueue = [["process_once", "neighbour", 1.5, {}], dies, ["process_once", "next", 0, {}]]
    child = site.spawn(enqueue=enqueue, until="results", manager={"processes": 2})
    with killed_at_the_end(child):
        assert child.wait() == 0, child.errors()
    assert site.statuses() == {"neighbour": "COMPLETED", "dies": "FAILED", "next": "COMPLETED"}
    assert site.codes()["dies"] == "WORKER_CRASHED"
    assert site.outcomes("dies") == ["WORKER_FAILURE"]
    assert site.starts() == {"neighbour": 1, "dies": 1, "next": 1}
    site.assert_sound()
    site.assert_settled()


@both
def test_a_timeout_kills_the_child_and_the_pool_goes_on(tmp_path: Path, database: str) -> None:
    """A loop in a child cannot be asked; it is killed, and its slot takes the next task."""
    site = Site(tmp_path, database)
    # The limit counts the start of the child too, so the first task warms it up.
    warm = [["process_once", "warm", 0, {}]]
    slow = [["process_timeout", "slow", 30, {}], ["process_once", "next", 0, {}]]
    child = site.spawn(enqueue=warm + slow, until="results", manager={"processes": 1})
    with killed_at_the_end(child):
        began = time.monotonic()
        assert child.wait() == 0, child.errors()
        assert time.monotonic() - began < 20
    assert site.statuses() == {"warm": "COMPLETED", "slow": "FAILED", "next": "COMPLETED"}
    assert site.codes()["slow"] == "TASK_TIMEOUT"
    for line in site.lines("start", "slow"):
        assert not is_alive(line.pid)
    site.assert_sound()


OF_MAIN = """
import asyncio, dataclasses, os
from taskmanager import TaskManager

manager = TaskManager(None, processes=1)

class Empty(Exception): ...

@dataclasses.dataclass
class Size:
    count: int

@manager.task(executor="process", exception_mapper={Empty: "EMPTY"})
def measure(text: str) -> Size:
    if not text:
        raise Empty
    return Size(len(text))

def fork() -> int:
    pid = os.fork()
    if not pid:
        raise SystemExit(5)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

forks = [manager.task(name=lane, executor=lane)(fork) for lane in ("thread", "process")]

async def main() -> None:
    async with manager:
        for each in forks if hasattr(os, "fork") else ():
            assert await each.enqueue() == 5
        print(await measure.enqueue("abc"), (await measure.enqueue("").result()).err_value.error_code)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_classes_of_the_main_module_come_back_from_a_child(tmp_path: Path) -> None:
    """In a child the module has another name than in the program, and it is the same module for all that.

    And a copy that a task forks ends where the code of the task ends: it is no second worker, and answers nothing.
    """
    (tmp_path / "app.py").write_text(OF_MAIN)
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=PATIENCE_S,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "Size(count=3) EMPTY\n", done.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@both_with("name", ["process_safe", "process_once"], "process_once", is_long=True)
def test_a_child_ends_with_its_parent(tmp_path: Path, database: str, name: str) -> None:
    """SIGKILL of the parent: the child does not go on alone, where its work would be repeated beside it."""
    site = Site(tmp_path, database)
    parent = site.spawn(enqueue=[[name, "a", 60, {}]])
    with killed_at_the_end(parent):
        parent.until_starts(1)
        (line,) = site.lines("start")
        assert is_alive(line.pid)
        parent.kill()
    wait_for(lambda: not is_alive(line.pid), lambda: "the child goes on", within_s=5)
    site.finish()
    assert site.statuses() == {"a": "COMPLETED" if name == "process_safe" else "FAILED"}
    site.assert_sound()


@both
def test_signals_to_all_processes_of_a_program_are_the_parents_business(tmp_path: Path, database: str) -> None:
    """A terminal sends SIGINT to the whole group, systemd SIGTERM; the child goes on, and is drained."""
    site = Site(tmp_path, database)
    parent = site.spawn(enqueue=[["process_once", "a", 1.0, {}]], manager={"drain_timeout": 10})
    with killed_at_the_end(parent):
        parent.until_starts(1)
        (line,) = site.lines("start")
        os.kill(line.pid, signal.SIGINT)
        os.kill(line.pid, signal.SIGTERM)
        parent.stop(signal.SIGTERM)
    assert parent.code == -signal.SIGTERM, parent.errors()
    assert site.statuses() == {"a": "COMPLETED"}


_JOBS = """
import multiprocessing, subprocess

def ends_its_own():
    with multiprocessing.get_context("fork").Pool(1) as pool:  # leaving it sends SIGTERM to the process in it
        pool.apply(abs, (-1,))
    program = subprocess.Popen(["sleep", "60"])
    program.terminate()
    return program.wait()
"""

_INTERRUPTED = """
import os, pathlib, sys, time
from taskmanager import TaskManager
import jobs

manager = TaskManager(None, processes=1)
ends_its_own = manager.task(executor="process")(jobs.ends_its_own)
marker = pathlib.Path("pid")
if __name__ == "__mp_main__" and not marker.exists():
    marker.with_suffix(".new").write_text(str(os.getpid()))
    marker.with_suffix(".new").rename(marker)
    time.sleep(60)

async def main():
    print(await ends_its_own.enqueue(), flush=True)

if __name__ == "__main__":
    manager.run(main)
"""


def test_ctrl_c_at_a_childs_start_fails_no_task_its_programs_hear_sigterm(tmp_path: Path) -> None:
    """Until it has read the main module, Ctrl-C ends the child: there was no task in it yet. And a task can end its own
    programs, and leave its own pool of processes.
    """
    (tmp_path / "jobs.py").write_text(_JOBS)
    (tmp_path / "app.py").write_text(_INTERRUPTED)
    program = _start_program(tmp_path)
    try:
        wait_for((tmp_path / "pid").exists, lambda: "no child came up")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)
        out, errors = program.communicate(timeout=PATIENCE_S)
    finally:
        program.kill()
    assert out == f"{-signal.SIGTERM}\n", errors


_HANGING = """
import pathlib, time
from taskmanager import TaskManager
from taskmanager.engine.run import lanes

lanes.RISE_S = 1.0
manager = TaskManager(None, processes=1)
marker = pathlib.Path("hangs")
if __name__ == "__mp_main__" and marker.exists():
    marker.unlink()
    time.sleep(60)

@manager.task(executor="process", timeout=0.5)
def work():
    return "worked"

async def main():
    marker.touch()
    print((await work.enqueue().result()).is_ok(), flush=True)
    while (await work.enqueue().result()).is_err():
        pass
    print("worked", flush=True)

if __name__ == "__main__":
    manager.run(main)
"""


def test_a_child_that_hangs_in_the_main_module_is_killed(tmp_path: Path) -> None:
    """A module that connects to something when it is imported, say. Nothing else would give its place back."""
    out, errors = _run_program(tmp_path, _HANGING)
    assert out == "False\nworked\n", errors


_UNGUARDED = """
import sys
from taskmanager import TaskManager
import jobs

manager = TaskManager(sys.argv[1])
work = manager.task(executor="process", persist=True)(jobs.ends_its_own)

async def main():
    await work.enqueue()

manager.run(main)
"""


@both
def test_a_program_without_its_main_guard_is_told_so_and_runs_once(tmp_path: Path, database: str) -> None:
    """A child reads the main module; what starts the manager there would run the whole program again in each child."""
    (tmp_path / "jobs.py").write_text(_JOBS)
    (tmp_path / "app.py").write_text(_UNGUARDED)
    program = _start_program(tmp_path, database)
    _, errors = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 1
    assert 'under `if __name__ == "__main__":`' in errors
    assert rows_of(database, "SELECT status, error_code FROM taskmanager_tasks") == [("FAILED", "WORKER_CRASHED")]


def _start_program(folder: Path, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "app.py", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _run_program(folder: Path, text: str) -> tuple[str, str]:
    """Run it to its end, and return what it has printed."""
    (folder / "app.py").write_text(text)
    program = _start_program(folder)
    try:
        return program.communicate(timeout=PATIENCE_S)
    finally:
        program.kill()


@both
def test_enqueueing_in_a_child_is_refused(tmp_path: Path, database: str) -> None:
    """`WrongProcess`: the work is returned to the parent, which enqueues it."""
    site = Site(tmp_path, database)
    child = site.spawn(enqueue=[["process_enqueues", "a", 0, {}]], until="results")
    with killed_at_the_end(child):
        assert child.wait() == 0, child.errors()
    assert len(site.lines("result WrongProcess", "a")) == 1


@both
def test_a_task_that_kills_each_process_is_failed_and_the_others_finish(tmp_path: Path, database: str) -> None:
    """Every start is on record before user code runs, so a supervisor that restarts for ever comes to an end."""
    site = Site(tmp_path, database)
    innocent = [f"t{number}" for number in range(30)]
    enqueue = [["poison", "poison", 0, {}], *(["safe", label, 0, {}] for label in innocent)]
    child = site.spawn(enqueue=enqueue, bulk=True, until="empty")
    for _ in range(5):
        if child.wait() == 0:
            break
        child = site.spawn(until="empty")
    child.wait()
    assert child.code == 0, child.errors()
    assert site.codes()["poison"] == "WORKER_CRASHED"
    assert {site.statuses()[label] for label in innocent} <= {"COMPLETED"}
    site.assert_sound()
    site.assert_settled()


_WITHOUT_A_STOP = """
import asyncio, sys
from tests.crash.child import make_manager

async def main():
    manager = make_manager({"db": sys.argv[1]})
    await manager.start()
    handles = [manager.get_task("process_safe").enqueue(str(number), 0) for number in range(8)]
    lane = manager._lifecycle.engine.runner.processes
    while not lane._coming:
        await asyncio.sleep(0)
    await asyncio.gather(*(each.saved() for each in handles))
    sys.exit(5)

asyncio.run(main())
"""


@both
def test_a_program_that_ends_without_a_stop_waits_for_no_child_that_comes_up(tmp_path: Path, database: str) -> None:
    """It ends at once, as it asked to, and what it left is an interruption: it runs at the next start."""
    site = Site(tmp_path, database)
    environment = {**os.environ, "TASKMANAGER_TEST_JOURNAL": str(site.journal), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _WITHOUT_A_STOP, str(site.db)]
    done = subprocess.run(command, env=environment, cwd=ROOT, timeout=PATIENCE_S, check=False, stderr=subprocess.PIPE)
    assert done.returncode == 5, done.stderr.decode()
    site.finish()
    assert set(site.statuses().values()) == {"COMPLETED"}
    site.assert_sound()


_PACKAGE_MAIN = """
import asyncio, logging, sys, time
from pathlib import Path
from taskmanager import TaskManager
from .helper import helped

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", handlers=[
    logging.FileHandler(sys.argv[1]), logging.StreamHandler()])
logging.getLogger("taskmanager").setLevel(logging.WARNING)
log = logging.getLogger("shop")
manager = TaskManager(None, processes=1)

@manager.task(executor="process")
def work(number: int) -> int:
    log.info("order %d", number)
    print("not shown")
    return helped(number)

@manager.task(executor="process")
def sleep() -> None:
    Path(sys.argv[1] + ".up").touch()
    time.sleep(60)

async def main() -> None:
    await manager.start()
    print([await work.enqueue(number) for number in range(3)])
    sleep.enqueue()
    while not Path(sys.argv[1] + ".up").exists():
        await asyncio.sleep(0.01)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_main_module_of_a_package_is_read_as_it_was_started(tmp_path: Path) -> None:
    """With its relative imports and its arguments; its own logging says each record once, in the file too. And a loop
    that ends under a busy child kills that at once, before anything of the instance is begun again.
    """
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "helper.py").write_text("def helped(number): return number + 1\n")
    (tmp_path / "shop" / "app.py").write_text(_PACKAGE_MAIN)
    done = subprocess.run(
        [sys.executable, "-m", "shop.app", "own.log"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=PATIENCE_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "[1, 2, 3]\n", done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("shop:")] == [
        f"shop: order {n}" for n in range(3)
    ]
    assert [line for line in (tmp_path / "own.log").read_text().splitlines() if "order" in line] == [
        f"shop: order {number}" for number in range(3)
    ]
    assert "begun again" not in done.stderr


_CHATTY_THEN_QUIET = """
import os
from taskmanager import TaskManager, current_task

manager = TaskManager(None, processes=1)

@manager.task(executor="process")
def chatty():
    for number in range(200):
        current_task().log("line", number=number)

@manager.task(executor="process")
def dies():
    current_task().progress(7, 9, "row 7")
    for number in range(20):
        current_task().log("step", number=number)
    os._exit(3)

async def main():
    await chatty.enqueue()
    handle = dies.enqueue()
    await handle.result()
    info = await handle.info()
    print(len(info.log), info.log[-1]["number"], info.progress["text"], flush=True)

if __name__ == "__main__":
    manager.run(main)
"""


def test_reports_of_a_task_survive_its_child_whatever_ran_there_before(tmp_path: Path) -> None:
    """What another task has reported in the same second does not hold them back."""
    out, errors = _run_program(tmp_path, _CHATTY_THEN_QUIET)
    assert out == "20 19 row 7\n", errors
