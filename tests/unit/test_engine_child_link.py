"""The channel between a child process and its parent: what comes through while a task runs, and what ends it."""

import asyncio
import contextlib
import logging
import logging.config
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskCancelled, TaskFailed, TaskManager, current_task
from taskmanager.engine.run import child_program
from taskmanager.engine.run.child_link import ending

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
log = logging.getLogger("app.of.tests")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")


async def happens(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # another process does it
            await asyncio.sleep(0.005)


def waits_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.005)


@pytest.fixture
async def manager(tmp_path: Path, anyio_backend: str) -> AsyncIterator[TaskManager]:
    made = TaskManager(tmp_path / "tasks.db", processes=1)
    async with made:
        yield made


def bound(manager: TaskManager, fn: Callable[..., Any], **options: Any) -> Any:
    return manager.task(executor="process", persist=True, **options)(fn)


async def death_of(handle: Any) -> tuple[str, str]:
    """Its message and its reason, once it is shown that it was started once, and has crashed."""
    with pytest.raises(TaskFailed) as caught:
        await asyncio.wait_for(handle, 30)
    info = await handle.info(include_attempts=True)
    assert (info.error_code, info.start_count) == ("WORKER_CRASHED", 1)
    assert [each.outcome for each in info.attempts or ()] == ["WORKER_FAILURE"]
    return str(caught.value.error.message), str(info.failed_reason)


# What is reported.


def reports_and_waits(gate: str) -> None:
    current_task().progress(1, 4, "a quarter")
    current_task().log("read the file", lines=7)
    log.warning("careful with %s", "this")
    waits_for(gate)


async def test_reports_of_a_child_are_seen_while_it_runs(
    manager: TaskManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Progress and log records arrive at once; the log of the task has its lines when it has ended."""
    handle = bound(manager, reports_and_waits).enqueue(str(tmp_path / "gate"))
    await happens(lambda: any(each.name == log.name for each in caplog.records))
    info = await handle.info()
    assert (info.status.value, info.progress) == ("RUNNING", {"done": 1, "total": 4, "text": "a quarter"})
    (record,) = [each for each in caplog.records if each.name == log.name]
    assert (record.getMessage(), record.funcName, record.levelname) == (
        "careful with this",
        "reports_and_waits",
        "WARNING",
    )
    assert (record.task_id, record.task_name) == (handle.task_id, info.task_name)  # type: ignore[attr-defined]
    assert record.process != os.getpid()
    (tmp_path / "gate").touch()
    await asyncio.wait_for(handle, 30)
    (line,) = (await handle.info()).log
    assert (line["text"], line["lines"]) == ("read the file", 7)


def reports_and_dies(how: str) -> None:
    for number in range(3):
        current_task().log(f"line {number}")
    current_task().progress(2, 3)
    log.error("the last words")
    print("printed", flush=True)
    os.write(2, b"written to stderr\n")
    if how == "exit":
        os._exit(9)
    if how == "abort":
        os.abort()
    os.kill(os.getpid(), getattr(signal, how))


@POSIX
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exited with 9"),
        ("abort", "killed by SIGABRT"),
        ("SIGSEGV", "killed by SIGSEGV"),
        ("SIGKILL", "killed by SIGKILL, the system does that when memory runs out"),
    ],
)
async def test_a_death_says_its_cause_and_keeps_what_was_reported(
    manager: TaskManager, caplog: pytest.LogCaptureFixture, how: str, words: str
) -> None:
    """The signal or the exit code; log, progress and records up to the last; and the end of what it has written."""
    handle = bound(manager, reports_and_dies).enqueue(how)
    message, reason = await death_of(handle)
    assert message == f"the child process died while it ran the task: {words}"
    assert "printed\nwritten to stderr" in reason
    if how in ("abort", "SIGSEGV"):
        assert "in reports_and_dies" in reason, "faulthandler shows the line"
    info = await handle.info()
    assert [each["text"] for each in info.log] == ["line 0", "line 1", "line 2"]
    assert (info.progress["done"], info.progress["total"]) == (2, 3)
    assert "the last words" in caplog.text


@POSIX
async def test_a_timeout_keeps_what_was_reported(manager: TaskManager, tmp_path: Path) -> None:
    """The child is killed by its parent; what it had said by then stays."""
    warm = bound(manager, warms_up)
    await asyncio.wait_for(warm.enqueue(), 30)
    handle = bound(manager, reports_and_waits, timeout=0.5).enqueue(str(tmp_path / "never"))
    with pytest.raises(TaskFailed) as caught:
        await asyncio.wait_for(handle, 30)
    assert caught.value.error.error_code == "TASK_TIMEOUT"
    info = await handle.info()
    assert info.log[0]["text"] == "read the file"
    assert info.progress["text"] == "a quarter"


def warms_up() -> None: ...


def reports_much(count: int) -> None:
    for number in range(count):
        current_task().progress(number, count)
        current_task().log(f"line {number}")


async def test_reports_in_a_loop_are_gathered_and_the_newest_count(manager: TaskManager) -> None:
    """Each report of its own would keep the parent from its work; the last thousand lines are kept, as in all lanes."""
    handle = bound(manager, reports_much).enqueue(5_000)
    await asyncio.wait_for(handle, 30)
    info = await handle.info()
    assert info.progress["done"] == 4_999
    assert [each["text"] for each in info.log] == [f"line {number}" for number in range(4_000, 5_000)]


def leaves_a_thread(gate: str) -> None:
    context = current_task()

    def go_on() -> None:
        waits_for(gate)
        context.progress(9, 9, "of the first")
        context.log("of the first")
        log.warning("of a thread")
        Path(gate + ".said").touch()

    threading.Thread(target=go_on, daemon=True).start()


def opens_and_waits(gate: str) -> None:
    Path(gate).touch()
    waits_for(gate + ".said")


async def test_a_thread_that_a_task_has_left_behind_reports_for_no_other(
    manager: TaskManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its progress and its lines are of a task that is over; what it logs is still logged."""
    gate = str(tmp_path / "gate")
    await asyncio.wait_for(bound(manager, leaves_a_thread).enqueue(gate), 30)
    handle = bound(manager, opens_and_waits).enqueue(gate)
    await asyncio.wait_for(handle, 30)
    info = await handle.info()
    assert (info.progress, info.log) == (None, ())
    assert "of a thread" in caplog.text


# Log records.


def logs(levels: list[int]) -> list[bool]:
    for level in levels:
        log.log(level, "at %d", level)
    return [log.isEnabledFor(level) for level in levels]


async def test_records_cross_that_the_parent_would_emit(manager: TaskManager, caplog: pytest.LogCaptureFixture) -> None:
    """Its levels are those of the child, as they are when the task begins; what nobody would see is not even made."""
    task, levels = bound(manager, logs), [10, 20, 30]
    expected = {logging.DEBUG: [10, 20, 30], logging.INFO: [20, 30], logging.ERROR: [], logging.WARNING: [30]}
    for level, seen in expected.items():
        caplog.clear()
        with caplog.at_level(level, log.name):
            enabled = await asyncio.wait_for(task.enqueue(levels), 30)
        assert [each.levelno for each in caplog.records if each.name == log.name] == seen
        assert enabled == [each in seen for each in levels]
    caplog.clear()
    log.disabled = True
    try:
        assert await asyncio.wait_for(task.enqueue(levels), 30) == [False] * 3
    finally:
        log.disabled = False
    assert [each for each in caplog.records if each.name == log.name] == []


class Mute:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def logs_oddly() -> None:
    try:
        raise KeyError("in the child")
    except KeyError:
        log.exception("failed", extra={"customer": 7, "lock": object()})
    log.warning("%s", Mute())
    log.warning("%d", "not a number")
    log.warning("100%")
    logging.getLogger().warning("of the root", stack_info=True)


async def test_a_record_arrives_with_all_that_can_come(manager: TaskManager, caplog: pytest.LogCaptureFixture) -> None:
    """Its traceback as text, what was added to it, and one whose text cannot be made is there for all that."""
    await asyncio.wait_for(bound(manager, logs_oddly).enqueue(), 30)
    failed, mute, wrong, plain, of_root = [each for each in caplog.records if each.process != os.getpid()]
    assert "KeyError: 'in the child'" in (failed.exc_text or "")
    assert (failed.customer, failed.lock.startswith("<object")) == (7, True)  # type: ignore[attr-defined]
    assert "text cannot be made: ValueError" in mute.getMessage()
    assert "%d, <its text cannot be made: TypeError>" in wrong.getMessage()
    assert plain.getMessage() == "100%"
    assert (of_root.name, "logs_oddly" in (of_root.stack_info or "")) == ("root", True)


def logs_much(count: int) -> None:
    """Nothing is sent meanwhile, however slow the machine is: not at once, and the thread that sends gets no turn."""
    long_text, interval_s = child_program.LONG_TEXT, sys.getswitchinterval()
    child_program.LONG_TEXT = -1  # type: ignore[misc]  # in this child only: nothing is short enough
    sys.setswitchinterval(1_000)
    try:
        for number in range(count):
            log.warning("number %d", number)
    finally:
        child_program.LONG_TEXT = long_text  # type: ignore[misc]
        sys.setswitchinterval(interval_s)


async def test_records_that_are_too_many_are_counted(manager: TaskManager, caplog: pytest.LogCaptureFixture) -> None:
    """What came and what is said to be dropped is all there was."""
    count = 3 * child_program.MAX_RECORDS
    handle = bound(manager, logs_much).enqueue(count)
    await asyncio.wait_for(handle, 50)
    came = [each for each in caplog.records if each.name == log.name]
    said = [each for each in caplog.records if "were dropped" in each.getMessage()]
    dropped = sum(int(each.getMessage().split()[0].replace(",", "")) for each in said)
    assert len(came) + dropped == count
    assert dropped > 0
    assert came[-1].getMessage() == f"number {count - 1}"
    assert all(each.task_id == handle.task_id for each in said)  # type: ignore[attr-defined]


def logs_into(path: str) -> None:
    handler = logging.FileHandler(path)
    logging.getLogger().addHandler(handler)
    log.warning("into the file")
    logging.getLogger().removeHandler(handler)
    log.warning("to the parent")


def logs_with_basic_config() -> None:
    logging.basicConfig(level=logging.DEBUG, force=True)
    log.warning("to the parent, too")


async def test_a_child_that_configures_logging_says_nothing_twice(
    manager: TaskManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler of the task has the record for itself; one for the standard streams of the child has no reader."""
    path = tmp_path / "own.log"
    await asyncio.wait_for(bound(manager, logs_into).enqueue(str(path)), 30)
    await asyncio.wait_for(bound(manager, logs_with_basic_config).enqueue(), 30)
    assert path.read_text() == "into the file\n"
    assert [each.getMessage() for each in caplog.records if each.name == log.name] == [
        "to the parent",
        "to the parent, too",
    ]


def configures_logging() -> None:
    logging.config.dictConfig({"version": 1})


async def test_loggers_that_a_task_disabled_log_again_in_the_next_one(
    manager: TaskManager, caplog: pytest.LogCaptureFixture
) -> None:
    """`logging.config` disables what it does not name: in a child that would be the loggers of all later tasks."""
    await asyncio.wait_for(bound(manager, configures_logging).enqueue(), 30)
    await asyncio.wait_for(bound(manager, logs).enqueue([logging.WARNING]), 30)
    assert [each.getMessage() for each in caplog.records if each.name == log.name] == ["at 30"]


# What user code does to the descriptors, and to the process.


def uses_the_standard_streams() -> list[Any]:
    print("x" * 100_000)
    os.write(1, b"\0" * 50_000)
    sys.stdout.flush()
    sys.__stdout__.write("more")  # type: ignore[union-attr]  # it is there
    subprocess.run([sys.executable, "-c", "print('x' * 100_000); import sys; sys.stdin.read()"], check=True)
    with contextlib.suppress(EOFError):
        input()
    read = [sys.stdin.read(), os.read(0, 10)]
    for number in (0, 1, 2):
        os.close(number)
    return read


async def test_the_standard_streams_of_a_child_are_not_its_channel(manager: TaskManager) -> None:
    """Written to, read, handed to other programs and closed: the reply comes."""
    task = bound(manager, uses_the_standard_streams)
    for _ in range(2):
        await asyncio.wait_for(task.enqueue().result(), 30)
    assert await asyncio.wait_for(bound(manager, doubled).enqueue(2), 30) == 4


def doubled(number: int) -> int:
    return 2 * number


def closes_everything(and_then: str) -> int:
    os.closerange(3, 256)
    if and_then == "goes on":
        time.sleep(60)
    return 1


def becomes_another_program() -> None:
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])


def speaks_nonsense() -> None:
    for number in range(3, 20):
        try:
            os.write(number, b"\xff" * 64)
        except OSError:
            continue
    time.sleep(60)


@POSIX
@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (closes_everything, ["returns"]),
        (closes_everything, ["goes on"]),
        (becomes_another_program, []),
        (speaks_nonsense, []),
    ],
)
async def test_a_child_that_breaks_the_channel_has_died(manager: TaskManager, fn: Any, args: list[str]) -> None:
    """One start, FAILED, within seconds, whatever the process goes on to do; and the lane goes on."""
    message, _ = await death_of(bound(manager, fn).enqueue(*args))
    assert message.startswith("the child process died while it ran the task: ")
    assert await asyncio.wait_for(bound(manager, doubled).enqueue(2), 30) == 4


class Bomb:
    """An argument that kills who reads it."""

    def __reduce__(self) -> Any:
        return os._exit, (5,)


def takes(what: object) -> None: ...


@POSIX
async def test_death_of_a_child_that_has_begun_counts_as_a_start(manager: TaskManager) -> None:
    """Reading the arguments is part of the task, or it would be tried for ever."""
    task = manager.task(executor="process")(takes)
    handle = task.enqueue(Bomb())
    with pytest.raises(TaskFailed, match="exited with 5"):
        await asyncio.wait_for(handle, 30)
    assert (await handle.info()).start_count == 1
    assert manager.status().failing_duties == {}


def own_pid() -> int:
    return os.getpid()


@POSIX
async def test_a_child_that_died_while_it_was_idle_fails_no_task(manager: TaskManager) -> None:
    """The system may take it for its memory; the next task has not begun in it, and gets another one."""
    task = bound(manager, own_pid)
    for _ in range(3):
        pid = await asyncio.wait_for(task.enqueue(), 30)
        os.kill(pid, signal.SIGKILL)
        handle = task.enqueue()
        assert await asyncio.wait_for(handle, 30) != pid
        info = await handle.info(include_attempts=True)
        assert (info.start_count, [each.outcome for each in info.attempts or ()]) == (1, ["COMPLETED"])


def touches_and_waits(path: str, gate: str) -> None:
    Path(path).touch()
    waits_for(gate)


@pytest.mark.parametrize("is_up", [False, True])
@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_stranger_who_cancels_what_listens_leaves_no_child_unheard(
    manager: TaskManager, tmp_path: Path, times: int, is_up: bool
) -> None:
    """A program may cancel every task that it finds, again and again: the child is killed, and its end is told."""
    path, gate = tmp_path / "path", tmp_path / "gate"
    handle = bound(manager, touches_and_waits).enqueue(str(path), str(gate))
    await happens(lambda: path.exists() if is_up else _of_children())
    for _ in range(times):
        for task in _of_children():
            task.cancel()
        await asyncio.sleep(0)
    gate.touch()
    result = await asyncio.wait_for(handle.result(), 30)
    assert result.is_ok() is not is_up, "what had not begun is begun in another child"
    assert await asyncio.wait_for(bound(manager, doubled).enqueue(2), 30) == 4


def _of_children() -> "list[asyncio.Task[Any]]":
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("taskmanager-child ")]


def tells_its_pid_and_exits(pid: str, gate: str) -> None:
    Path(pid).write_text(str(os.getpid()))
    waits_for(gate)
    os._exit(7)


@POSIX
async def test_killing_what_has_exited_takes_its_status_from_nobody(
    manager: TaskManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio logs a warning when the exit status of a process was taken away from it."""
    pid, gate = tmp_path / "pid", tmp_path / "gate"
    handle = bound(manager, tells_its_pid_and_exits).enqueue(str(pid), str(gate))
    await happens(lambda: pid.exists() and pid.read_text())
    gate.touch()
    with contextlib.suppress(ChildProcessError):  # a thread of asyncio was faster
        how = os.WEXITED | os.WNOWAIT
        os.waitid(os.P_PID, int(pid.read_text()), how)  # noqa: ASYNC222  # the loop stands still, and hears nothing
    handle.cancel()
    with pytest.raises(TaskCancelled):
        await asyncio.wait_for(handle, 30)
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def leaves_a_copy(gate: str) -> None:
    if os.fork() == 0:
        log.warning("from the copy")
        current_task().progress(1, 1, "from the copy")
        waits_for(gate)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def leaves_a_program(gate: str) -> None:
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            os.set_inheritable(number, True)
    program = "import sys, time, pathlib\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)"
    subprocess.Popen([sys.executable, "-c", program, gate], close_fds=False)
    os.kill(os.getpid(), signal.SIGKILL)


@POSIX
@pytest.mark.parametrize("fn", [leaves_a_copy, leaves_a_program])
async def test_a_copy_that_is_left_behind_neither_speaks_nor_holds_up_the_news(
    manager: TaskManager, tmp_path: Path, caplog: pytest.LogCaptureFixture, fn: Callable[[str], None]
) -> None:
    """It has the descriptors of the child; the parent hears of the death for all that."""
    handle = bound(manager, fn).enqueue(str(tmp_path / "gate"))
    message, _ = await asyncio.wait_for(death_of(handle), 20)
    (tmp_path / "gate").touch()
    assert "killed by SIGKILL" in message
    assert (await handle.info()).progress is None
    assert [each for each in caplog.records if each.name == log.name] == []


def is_interrupted(count: int) -> int:
    class Late(Exception): ...

    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    found = 0
    for _ in range(count):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            until = time.monotonic() + 0.02  # `logging` may have caught it
            while time.monotonic() < until:
                current_task().progress(found, count)
                log.warning("found %d", found)
            signal.setitimer(signal.ITIMER_REAL, 0)  # a process that had to wait hears only here of the alarm
        except Late:
            found += 1
    return found


@POSIX
async def test_a_signal_handler_that_raises_leaves_no_half_message(manager: TaskManager) -> None:
    """`signal.alarm` is how a child gives itself a time limit; it may come in the middle of a report."""
    assert await asyncio.wait_for(bound(manager, is_interrupted).enqueue(200), 50) > 100


def test_an_end_is_told_in_words() -> None:
    """By the name of the signal where it has one."""
    assert ending(3) == "exited with 3"
    if sys.platform != "win32":
        assert ending(-11) == "killed by SIGSEGV"
        assert ending(-40) == "killed by signal 40"
        assert ending(-9, is_ours=True) == "killed by SIGKILL"
