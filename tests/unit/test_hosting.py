"""`manager.run(main)`: whatever `main` does with a signal, or without one, the manager stops in order and in time.

A signal that asks a program to end ends it, after the stop; tests in this process ignore SIGTERM to live on.
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from taskmanager import ConfigurationError, StoreError, StoreUnavailable, TaskManager
from taskmanager.store.memory import MemoryStore

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform == "win32", reason="the signals are POSIX ones"),
]


@pytest.fixture
def _ignores_sigterm() -> Iterator[None]:
    """Whoever is sent SIGTERM in this process lives on."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_ignores_sigterm")
@pytest.mark.parametrize("drain_timeout", [0.0, 600.0])
def test_a_main_that_swallows_its_cancellation_holds_up_nobody(drain_timeout: float) -> None:
    """It has the drain time, or until the second signal; else a server could be ended by SIGKILL only."""
    manager = TaskManager(None, drain_timeout=drain_timeout)
    cancels = 0

    async def main() -> None:
        nonlocal cancels
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels += 1
                if drain_timeout:
                    os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        manager.run(main)
    assert ended.value.code == 128 + signal.SIGTERM
    assert cancels == 1
    assert manager.status().state == "stopped"


@pytest.mark.usefixtures("_ignores_sigterm")
def test_a_main_may_clean_up_with_tasks_of_its_manager() -> None:
    """The manager runs until `main` has ended."""
    manager = TaskManager(None)
    tidied: list[str] = []

    @manager.task
    async def tidy(label: str) -> str:
        return label

    async def main() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            tidied.append(await tidy.enqueue("tidied"))

    with pytest.raises(SystemExit):
        manager.run(main)
    assert tidied == ["tidied"]


def test_a_main_that_cancelled_itself_does_not_pass_for_one_that_ended() -> None:
    """Nobody has asked it to end, so nobody expects that; `asyncio.run` raises it as well."""
    manager = TaskManager(None)

    async def main() -> str:
        raise asyncio.CancelledError("by a library")

    with pytest.raises(asyncio.CancelledError):
        manager.run(main)
    assert manager.status().state == "stopped"


@pytest.mark.parametrize("exc", [SystemExit(3), KeyboardInterrupt(), ValueError("main")])
def test_a_main_that_ends_the_process_interrupts_what_runs(tmp_path: Path, exc: BaseException) -> None:
    """`sys.exit()` in `main` is a stop like any other: interruption is not failure."""
    manager = TaskManager(tmp_path / "t.db", drain_timeout=0.0)

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def work() -> None:
        running.set()
        await asyncio.Event().wait()

    async def main() -> None:
        work.enqueue()
        await running.wait()
        raise exc

    running = asyncio.Event()
    with pytest.raises(type(exc)):
        manager.run(main)
    connection = sqlite3.connect(tmp_path / "t.db")
    assert connection.execute("SELECT status, claimed_by_worker_id FROM taskmanager_tasks").fetchall() == [
        ("PENDING", None)
    ]
    connection.close()


_PROGRAM: Final = """
import asyncio, os, signal, sqlite3, sys, time
from taskmanager import TaskManager

manager = TaskManager("t.db", drain_timeout=0.0)
number = getattr(signal, sys.argv[1])

@manager.task(persist=True, requeue_on_interrupt=True)
async def page(n):
    await asyncio.Event().wait()

def ask(which=number):
    os.kill(os.getpid(), which)

async def asked():
    for n in range(12):
        page.enqueue(n)
    await manager.flush()
    print("half a crawl", end="")
    ask()
    await asyncio.Event().wait()

async def value():
    try:
        await asked()
    except asyncio.CancelledError:
        return "a value"

async def left():
    try:
        await asked()
    except asyncio.CancelledError:
        sys.exit(7)

async def broken():
    try:
        await asked()
    except asyncio.CancelledError:
        raise ValueError("of main")

async def twice():
    asyncio.get_running_loop().call_soon(lambda: (ask(), ask(signal.SIGTERM), ask(signal.SIGINT)))
    await asyncio.Event().wait()

async def locked():
    global other
    try:
        await asked()
    finally:
        other = sqlite3.connect("t.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
"""


def test_the_first_signal_says_what_a_second_one_does(tmp_path: Path) -> None:
    """The drain may take seconds, and whoever sees nothing presses Ctrl-C again, which interrupts what runs."""
    _, errors = _ends(tmp_path, "SIGINT", "import logging; logging.basicConfig(level='INFO'); manager.run(asked)")
    assert "stopping after SIGINT: 0 s for what runs; a second signal cuts it short" in errors


def _ends(folder: Path, number: str, way: str) -> tuple[str, str]:
    """What the shell says of `python crawl.py && echo published`, and what the program wrote to stderr."""
    (folder / "crawl.py").write_text(f"{_PROGRAM}\n{way}\n")
    line = f"'{sys.executable}' crawl.py {number} && echo ' published' || echo \" $?\""
    done = subprocess.run(["/bin/sh", "-c", line], cwd=folder, capture_output=True, text=True, check=True, timeout=40)
    return done.stdout, done.stderr


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("main", ["asked", "value", "twice"])
def test_a_program_that_was_asked_to_end_ends_by_its_first_signal(
    tmp_path: Path, number: str, status: int, main: str
) -> None:
    """Whatever `main` returned, and whatever comes after the first signal: half a crawl is not published."""
    out, errors = _ends(tmp_path, number, f"manager.run({main}); print('goes on')")
    assert out == ("" if main == "twice" else "half a crawl") + f" {status}\n", errors
    if main != "twice":
        assert f"stopped after {number}; 12 tasks wait for the next start" in errors
    assert ("KeyboardInterrupt" in errors) == (number == "SIGINT")


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_another_manager_that_is_never_stopped_is_written_before_the_end(
    tmp_path: Path, number: str, status: int
) -> None:
    """Who dies of a signal runs no exit hooks."""
    way = """
another = TaskManager("another.db")
@another.task(persist=True)
async def kept():
    await asyncio.Event().wait()
async def both():
    await another.start()
    kept.with_options(delay=60).enqueue()
    await asked()
manager.run(both)
"""
    out, errors = _ends(tmp_path, number, way)
    assert out == f"half a crawl {status}\n"
    assert "another.db was started and never stopped: 1 task was written" in errors
    with closing(sqlite3.connect(tmp_path / "another.db")) as connection:
        assert connection.execute("SELECT status FROM taskmanager_tasks").fetchall() == [("PENDING",)]


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(("main", "status"), [("left", 7), ("broken", 1), ("locked", 1)])
def test_an_exception_of_main_and_a_file_not_written_come_before_the_signal(
    tmp_path: Path, number: str, main: str, status: int
) -> None:
    """What went wrong is news; that the program was asked to end is not."""
    out, errors = _ends(tmp_path, number, f"manager.run({main}); print('goes on')")
    assert out == f"half a crawl {status}\n", errors
    assert "KeyboardInterrupt" not in errors


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: print(' mine', end='')"])
def test_a_program_that_lives_through_its_signal_exits_with_its_number(tmp_path: Path, handler: str) -> None:
    """The handlers of before have the signal first; the first process of a container has none, and lives on."""
    out, errors = _ends(tmp_path, "SIGTERM", f"signal.signal(number, {handler}); manager.run(asked)")
    assert out == ("half a crawl mine 143\n" if "mine" in handler else "half a crawl 143\n"), errors


@pytest.mark.parametrize(
    ("number", "then", "out"),
    [
        ("SIGINT", "SIGTERM", "half a crawl out 130\n"),
        ("SIGINT", "SIGINT", "half a crawl out 130\n"),
    ],
)
def test_a_further_signal_on_the_way_out_does_not_change_how_it_ends(
    tmp_path: Path, number: str, then: str, out: str
) -> None:
    """A supervisor may send its signal to all processes of a service, and repeat it."""
    way = f"try:\n    manager.run(asked)\nfinally:\n    print(' out', end='', flush=True); ask(signal.{then})"
    assert _ends(tmp_path, number, way)[0] == out


@pytest.mark.parametrize(
    ("number", "then", "out"),
    [
        ("SIGTERM", "None", "goes on published\n"),
        ("SIGINT", "None", " 130\n"),
        ("SIGTERM", "signal.SIGTERM", " published\n"),
        ("SIGINT", "signal.SIGTERM", " 130\n"),
    ],
)
def test_a_worker_that_stopped_in_order_has_done_its_work(tmp_path: Path, number: str, then: str, out: str) -> None:
    """`run()` waits to be asked: 0 after SIGTERM, 130 after Ctrl-C, also when the signal is repeated on the way out."""
    way = f"""
@manager.task(persist=True)
async def stop():
    ask()
stop.enqueue()
try:
    manager.run()
finally:
    if {then} is not None:
        ask({then})
print("goes on", end="")
"""
    stdout, errors = _ends(tmp_path, number, way)
    assert stdout == out, errors
    assert "Traceback" not in errors


def test_a_program_that_nobody_asked_to_end_has_its_signals_as_before(tmp_path: Path) -> None:
    """Each run says only of itself how the program ends."""
    way = """
async def nothing():
    return "nothing"
import threading
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, ask, [signal.SIGTERM]).start()
manager.run()
assert manager.run(nothing) == "nothing"
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
ask(signal.SIGTERM)
"""
    assert _ends(tmp_path, "SIGTERM", way)[0] == " 143\n"


def test_a_start_outside_of_an_event_loop_of_asyncio_says_what_it_needs() -> None:
    """Trio runs coroutines too, and so does the test client of Starlette with that backend."""
    manager = TaskManager(None)
    with pytest.raises(ConfigurationError, match="needs an event loop of asyncio"):
        manager.start().send(None)
    assert manager.status().state == "held until start"


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (".", "taskmanager.StoreError: {folder} is a directory; give the path of a file in it"),
        ("/", "taskmanager.StoreError: / is a directory; give the path of a file in it"),
        ("text.db", "taskmanager.StoreError: {folder}/text.db cannot be used (file is not a database): "),
        ("no/such.db", "taskmanager.StoreUnavailable: {folder}/no/such.db cannot be opened: the directory "),
        ("a\nb/c.db", "taskmanager.StoreUnavailable: {folder}/a b/c.db cannot be opened: the directory "),
    ],
)
@pytest.mark.parametrize("logs", ["", "import logging; logging.basicConfig()"])
def test_a_run_that_cannot_start_says_one_line(tmp_path: Path, place: str, line: str, logs: str) -> None:
    """TYPE: what, where, what to do. Frames of a start say nothing to whoever reads the log of a service."""
    (tmp_path / "text.db").write_text("this is a text, and longer than a hundred bytes " * 5)
    program = f"""
from taskmanager import TaskManager
{logs}
async def main() -> None: print("started")
TaskManager({place!r}).run(main)
"""
    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(line.format(folder=tmp_path))
    assert ran.stderr.count("\n") == 1


def test_an_error_of_main_keeps_its_traceback() -> None:
    """The one line is for a start that failed; of the program itself the frames are what its author needs."""
    manager = TaskManager(None)

    async def main() -> None:
        raise ConfigurationError("of main")

    with pytest.raises(ConfigurationError, match="of main"):
        manager.run(main)


_LOCKS: Final = """
async def place_order():
    global other
    page.enqueue(1)
    await manager.flush()
    other = sqlite3.connect("t.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    page.enqueue(2)
    {way}
"""


def _is_locked(folder: Path, way: str) -> tuple[str, str]:
    """What the shell says of a program whose `main` locks the file, ends in that way, and what it wrote to stderr."""
    return _ends(folder, "SIGTERM", f"{_LOCKS.format(way=way)}\nmanager.run(place_order); print('goes on')")


def test_a_file_that_the_stop_cannot_write_is_said_in_the_same_form(tmp_path: Path) -> None:
    """TYPE: what, where, what to do; and status 1."""
    out, errors = _is_locked(tmp_path, "return 1")
    assert out == " 1\n"
    (line,) = [each for each in errors.splitlines() if "could not be written at the stop" in each]
    assert line.startswith("taskmanager.StoreUnavailable: 2 records could not be written at the stop (")
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("way", "status", "said"),
    [("raise ValueError('a bug of main')", 1, "ValueError: a bug of main"), ("sys.exit(7)", 7, "")],
)
def test_an_exception_of_main_comes_before_that_of_the_stop(tmp_path: Path, way: str, status: int, said: str) -> None:
    """What the stop could not write is a line of the log beside it: who reads both knows what happened."""
    out, errors = _is_locked(tmp_path, way)
    assert out == f" {status}\n"
    assert "could not be written at the stop" in errors
    assert errors.endswith(f"{said}\n")
    assert ("in place_order" in errors) == bool(said)


@pytest.mark.parametrize("raised", [ValueError("a bug of main"), SystemExit(7)])
def test_an_exception_of_main_comes_before_any_failure_of_the_stop(
    raised: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That one is logged with its frames."""

    async def fails(_: MemoryStore) -> None:
        raise StoreError("cannot be closed")

    async def main() -> None:
        raise raised

    monkeypatch.setattr(MemoryStore, "close", fails)
    with pytest.raises(type(raised)) as caught:
        TaskManager(None).run(main)
    assert caught.value.args == raised.args
    (record,) = [each for each in caplog.records if "the stop has failed" in each.message]
    assert "cannot be closed" in caplog.text
    assert record.exc_info


def test_an_unwritable_file_that_main_has_met_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The stop may have written everything since. So its author must see where `main` has ended."""

    async def main() -> None:
        raise StoreUnavailable("a.db cannot be written; free some space")

    with pytest.raises(StoreUnavailable, match="free some space"):
        TaskManager(None).run(main)
    assert not [each for each in caplog.messages if "free some space" in each]
