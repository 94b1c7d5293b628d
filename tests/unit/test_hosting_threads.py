"""A manager in a thread of its own: started and stopped by a block, and reached by calls that wait in their thread."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from taskmanager import ConfigurationError, ManagerStopped, StoreError, TaskEvent, TaskFailed, TaskManager, TaskStatus
from taskmanager.engine.intake.intake import Intake
from taskmanager.engine.words.live_task import LiveTask

pytestmark = pytest.mark.timeout(60)

is_posix = pytest.mark.skipif(os.name != "posix", reason="forks, and sends POSIX signals")

ENDS_INSIDE: Final = """
from taskmanager import TaskManager

manager = TaskManager("tasks.db")

@manager.task(persist=True)
async def kept(n: int) -> None: ...

manager.in_thread().__enter__()
manager.call(manager.pause("default"))
for n in range(3):
    kept.enqueue(n)
"""

FORKS: Final = """
import asyncio, os, sys
from taskmanager import TaskManager

def tried(way):
    try:
        return way()
    except Exception as exc:
        return type(exc).__name__

def fork(manager):
    @manager.task
    async def double(n):
        return 2 * n

    @manager.task
    async def sleep():
        await asyncio.Event().wait()

    def enter():
        with manager.in_thread():
            return "entered"

    with manager.in_thread():
        waiting = sleep.enqueue()
        pid = os.fork()
        if pid == 0:
            ways = lambda: double.enqueue(1), lambda: manager.call(manager.counts()), waiting.wait, enter
            print(*map(tried, ways), flush=True)
            sys.exit(3)  # leaves the block
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), double.enqueue(21).wait(timeout=20), flush=True)
        waiting.cancel()

fork(TaskManager("tasks.db"))
fork(TaskManager(None))
"""

INTERRUPTED: Final = """
import asyncio, os, signal, sys, threading
from taskmanager import TaskManager, lifecycle

lifecycle.START_PATIENCE_S = 3600.0
manager = TaskManager("tasks.db", concurrency=1, drain_timeout=600.0 if "drain" in sys.argv[1] else 0.0)
has_all = threading.Event()

@manager.task(persist=True, requeue_on_interrupt=True)
async def work(n):
    if n:
        return
    while not has_all.is_set():
        await asyncio.sleep(0.01)
    await manager.flush()
    press()
    while "drain" in sys.argv[1] and manager.status().state != "draining":
        await asyncio.sleep(0.01)
    press()
    await asyncio.Event().wait()

def press():
    os.kill(os.getpid(), signal.SIGINT)

def press_in_the_start():
    while manager._lifecycle is None:
        pass
    press()

def hosted():
    with manager.in_thread():
        handle = [work.enqueue(n) for n in range(3)][0]
        has_all.set()
        if "wait" in sys.argv[1]:
            handle.wait()
        else:
            manager.call(manager.join())

if "start" in sys.argv[1]:
    threading.Thread(target=press_in_the_start).start()
try:
    hosted()
finally:
    print(manager.status().state, [each.name for each in threading.enumerate()][1:])
"""


def rows(folder: Path) -> list[tuple[Any, ...]]:
    """How the tasks stand in the file."""
    with closing(sqlite3.connect(folder / "tasks.db")) as connection:
        return connection.execute("SELECT status, claimed_by_worker_id FROM taskmanager_tasks").fetchall()


def ended(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A program, run to its end."""
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=40, check=False)


@pytest.fixture
def manager(tmp_path: Path) -> TaskManager:
    return TaskManager(tmp_path / "tasks.db")


def test_a_block_starts_and_stops_it(manager: TaskManager) -> None:
    """Nothing of it is left behind, and the same manager can be hosted again."""

    @manager.task(persist=True)
    async def double(n: int) -> int:
        return 2 * n

    for _ in range(2):
        with manager.in_thread() as hosted:
            assert hosted is manager
            handle = double.enqueue(21)
            assert handle.wait(timeout=30) == 42
            manager.call(handle.saved(), timeout=30)
            assert manager.call(manager.counts())[TaskStatus.COMPLETED] >= 0
        assert not [each for each in threading.enumerate() if each.name == "taskmanager"]
        with pytest.raises(ManagerStopped):
            manager.handle(handle.task_id).wait()
        with pytest.raises(ManagerStopped):
            manager.call(manager.counts())


def test_calls_come_from_any_thread_at_once(manager: TaskManager) -> None:
    """As in a server that has a thread for each request."""
    answers: list[int] = []

    @manager.task
    async def double(n: int) -> int:
        return 2 * n

    with manager.in_thread():
        threads = [threading.Thread(target=lambda n=n: answers.append(double.enqueue(n).wait())) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert sorted(answers) == [2 * n for n in range(8)]


def test_call_raises_what_its_work_raises(manager: TaskManager) -> None:
    """The failure of a task, with its cause; a time limit of the task, and one of the call."""

    @manager.task
    async def fails() -> None:
        raise ValueError("no")

    @manager.task
    async def sleeps() -> None:
        await asyncio.sleep(3600)

    async def times_out() -> None:
        raise TimeoutError("its own")

    with manager.in_thread():
        with pytest.raises(TaskFailed) as caught:
            fails.enqueue().wait()
        assert isinstance(caught.value.__cause__, ValueError)
        handle = sleeps.enqueue()
        with pytest.raises(TimeoutError, match=r"after 0\.05 s"):
            handle.wait(timeout=0.05)
        with pytest.raises(TimeoutError, match="its own"):
            manager.call(times_out())
        with pytest.raises(ConfigurationError, match="timeout must be"):
            handle.wait(timeout="1")  # type: ignore[arg-type]  # that is the mistake
        assert handle.cancel()


@pytest.mark.parametrize("exc", [SystemExit(3), KeyboardInterrupt()])
def test_call_hands_an_exit_to_its_thread_and_the_manager_goes_on(manager: TaskManager, exc: BaseException) -> None:
    """Raised in a task of the loop it would end the loop, and with it the work of everybody else."""

    @manager.task(persist=True)
    async def double(n: int) -> int:
        return 2 * n

    async def leave() -> None:
        raise exc

    with manager.in_thread():
        with pytest.raises(type(exc)) as raised:
            manager.call(leave(), timeout=30)
        assert raised.value is exc
        assert double.enqueue(21).wait(timeout=30) == 42


def test_exit_in_a_task_of_the_loop_is_raised_where_the_block_ends(
    manager: TaskManager, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends the loop, as everywhere in asyncio. The manager stops in order, and a line says why."""
    left = set[asyncio.Task[None]]()

    @manager.task(persist=True)
    async def kept() -> None: ...

    async def leave() -> None:
        sys.exit(3)

    async def begin() -> None:
        left.add(asyncio.create_task(leave()))
        await asyncio.Event().wait()

    def end_the_loop() -> None:
        with pytest.raises(ManagerStopped):
            manager.call(begin(), timeout=30)

    waiting = kept.with_options(delay=3600).enqueue()
    with pytest.raises(SystemExit) as raised, manager.in_thread():
        end_the_loop()
    assert raised.value.code == 3
    assert [str(each.exception()) for each in left] == ["3"]
    assert "the manager has stopped: its event loop was ended by SystemExit(3)" in caplog.text
    with manager.in_thread():
        assert manager.call(manager.handle(waiting.task_id).info()).status is TaskStatus.PENDING


@pytest.mark.parametrize("persist", [True, False])
def test_handle_has_the_cause_of_a_task_that_ends_before_the_call(
    manager: TaskManager, monkeypatch: pytest.MonkeyPatch, persist: bool
) -> None:
    """The loop may run the task to its end before the thread that enqueued it goes on."""
    has_ended, hand_over = threading.Event(), Intake.hand_over

    def slowly(intake: Intake, live: LiveTask) -> tuple[LiveTask, bool]:
        handed_over = hand_over(intake, live)
        assert has_ended.wait(20)
        return handed_over

    @manager.task(persist=persist)
    async def fails() -> None:
        raise ValueError("no")

    @manager.on("failed")
    def note(event: TaskEvent) -> None:
        has_ended.set()

    monkeypatch.setattr(Intake, "hand_over", slowly)
    with manager.in_thread():
        handle = fails.enqueue()
        with pytest.raises(TaskFailed) as caught:
            handle.wait()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("persist", [True, False])
def test_handle_that_knows_the_end_tells_it_after_the_stop(manager: TaskManager, persist: bool) -> None:
    """In a thread as on an event loop. Of what has not ended here, only the next start can tell."""

    @manager.task(persist=persist)
    async def double(n: int) -> int:
        if n < 0:
            raise ValueError("no")
        return 2 * n

    with manager.in_thread():
        good, bad = double.enqueue(4), double.enqueue(-1)
        manager.call(manager.join())
        assert good.wait() == 8
    assert good.wait() == 8
    with pytest.raises(TaskFailed) as caught:
        bad.wait()
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ManagerStopped):
        manager.handle("unknown").wait()
    with pytest.raises(ConfigurationError, match="timeout must be"):
        good.wait(timeout="1")  # type: ignore[arg-type]  # that is the mistake


@pytest.mark.parametrize("lane", ["async", "thread"])
def test_waiting_is_refused_where_it_would_be_for_ever(manager: TaskManager, lane: str) -> None:
    """On the loop of the manager, and in a task that holds the slot which the awaited one may need."""

    @manager.task
    async def child() -> int:
        return 1

    if lane == "async":

        @manager.task
        async def parent() -> int:
            return child.enqueue().wait()
    else:

        @manager.task
        def parent() -> int:
            return child.enqueue().wait()

    with manager.in_thread(), pytest.raises(TaskFailed, match="ConfigurationError") as caught:
        parent.enqueue().wait()
    assert isinstance(caught.value.__cause__, ConfigurationError)


def test_a_call_that_is_refused_leaves_no_coroutine_behind(manager: TaskManager) -> None:
    """Python would warn that nobody awaited it."""
    with pytest.raises(ManagerStopped, match="in_thread"):
        manager.call(asyncio.sleep(0))


def test_a_call_ends_with_the_manager(manager: TaskManager) -> None:
    """Whoever waits in another thread is told, and does not wait for ever."""
    has_begun, said = threading.Event(), []

    async def for_ever() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        with pytest.raises(ManagerStopped) as caught:
            manager.call(for_ever())
        said.append(str(caught.value))

    with manager.in_thread():
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert has_begun.wait(20)
    waiting.join(20)
    assert said == ["the manager stopped before the call had ended"]


def test_a_start_that_fails_raises_here(tmp_path: Path) -> None:
    """The block does not run, and no thread is left."""
    (tmp_path / "tasks.db").write_text("this is no database, and never will be one; it is long enough to be looked at")
    manager = TaskManager(tmp_path / "tasks.db")
    with pytest.raises(StoreError), manager.in_thread():
        pytest.fail("it runs")
    assert not [each for each in threading.enumerate() if each.name == "taskmanager"]


@pytest.mark.anyio
async def test_a_running_loop_is_not_blocked(manager: TaskManager) -> None:
    """There the manager is started in that loop."""
    with pytest.raises(ConfigurationError, match="async with manager"), manager.in_thread():
        pytest.fail("it runs")


def test_a_program_may_end_inside_of_the_block(tmp_path: Path) -> None:
    """What was accepted is in the file, as after any end without a stop. Nobody needs to hold the block."""
    ran = ended(tmp_path, ENDS_INSIDE)
    assert ran.returncode == 0, ran.stderr
    again = TaskManager(tmp_path / "tasks.db")
    with again.in_thread():
        assert again.call(again.counts())[TaskStatus.PENDING] == 3


@is_posix
def test_a_forked_child_is_refused_and_may_leave_the_block(tmp_path: Path) -> None:
    """The thread is in the parent: a child can hand nothing over, nor wait for the thread to end. The parent goes on.

    It is so with a file and without one.
    """
    ran = ended(tmp_path, FORKS)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["WrongProcess " * 3 + "WrongProcess", "3 42"] * 2


@is_posix
@pytest.mark.parametrize("at", ["wait", "call"])
def test_ctrl_c_ends_a_program_that_waits_and_keeps_its_tasks(tmp_path: Path, at: str) -> None:
    """The block stops the manager on the way out, and nothing of it is left."""
    ran = ended(tmp_path, INTERRUPTED, at)
    assert ran.returncode == -signal.SIGINT
    assert ran.stdout == "stopped []\n"
    assert ran.stderr.rstrip().endswith("KeyboardInterrupt")
    assert rows(tmp_path) == [("PENDING", None)] * 3


@is_posix
def test_a_second_ctrl_c_ends_a_program_that_drains(tmp_path: Path) -> None:
    """It waits no longer for what runs, which is put back."""
    ran = ended(tmp_path, INTERRUPTED, "call, drain")
    assert ran.returncode == -signal.SIGINT
    assert rows(tmp_path) == [("PENDING", None)] * 3


@is_posix
def test_ctrl_c_in_a_start_leaves_no_thread_behind(tmp_path: Path) -> None:
    """The start waits for a file that somebody has locked; whoever presses it waits for neither."""
    with TaskManager(tmp_path / "tasks.db").in_thread():
        pass
    with closing(sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ran = ended(tmp_path, INTERRUPTED, "start")
    assert ran.returncode == -signal.SIGINT
    assert ran.stdout == "held until start []\n"
    assert ran.stderr.rstrip().endswith("KeyboardInterrupt")
