"""A manager in a thread of its own: started and stopped by a block, and reached by calls that wait in their thread."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from taskmanager import ConfigurationError, ManagerStopped, StoreError, TaskFailed, TaskManager, TaskStatus

pytestmark = pytest.mark.timeout(60)

ENDS_INSIDE = """
from taskmanager import TaskManager

manager = TaskManager("tasks.db")

@manager.task(persist=True)
async def kept(n: int) -> None: ...

block = manager.in_thread()
block.__enter__()
manager.call(manager.pause("default"))
for n in range(3):
    kept.enqueue(n)
"""


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
            handle.wait()
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
    """What was accepted is in the file, as after any end without a stop."""
    ran = subprocess.run([sys.executable, "-c", ENDS_INSIDE], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    again = TaskManager(tmp_path / "tasks.db")
    with again.in_thread():
        assert again.call(again.counts())[TaskStatus.PENDING] == 3
