"""A manager that was started and never stopped: what a stop would write is written at the end of the program.

Real programs, real endings; what they left is read with plain `sqlite3`.
"""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.timeout(60)

PROGRAM: Final = """
import asyncio, atexit, gc, os, sqlite3, sys, threading, time
left_at, last_words = [], []
atexit.register(lambda: [print(each()) for each in last_words])
atexit.register(lambda: left_at and print("the exit took", time.monotonic() - left_at[0], file=sys.stderr))
from taskmanager import TaskManager

began = []
manager = TaskManager("t.db", requeue_pending=True, concurrency=2, threads=1)

@manager.task(requeue_on_interrupt=True)
async def again(n):
    began.append(n)
    await asyncio.sleep(1000)

@manager.task
async def once(n):
    began.append(n)
    await asyncio.sleep(1000)

@manager.task(requeue_on_interrupt=True)
def blocking(n):
    began.append(n)
    time.sleep(1000)

@manager.task(persist=False)
async def forgotten(n):
    pass

def more():
    pass

async def main():
    await manager.start()
    again.enqueue(0)
    once.enqueue(0)
    while len(began) < 2:
        await asyncio.sleep(0.01)
    for n in range(100):
        again.enqueue(n)
    more()

def in_thread():
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(main(), loop).result()
    return loop
"""
LINE: Final = "101 tasks were written for the next start, 1 recorded as interrupted, 0 lost"

ENDINGS: Final = {
    "asyncio.run": ("asyncio.run(main())", 0),
    "sys.exit": ("asyncio.run(main()); sys.exit(3)", 3),
    "sys.exit in main": ("async def leave():\n    await main()\n    sys.exit(4)\nasyncio.run(leave())", 4),
    "an exception": ("asyncio.run(main()); raise ValueError", 1),
    "a loop left open": ("asyncio.new_event_loop().run_until_complete(main())", 0),
    "a loop closed at once": ("l = asyncio.new_event_loop(); l.run_until_complete(main()); l.close()", 0),
    "a collected loop": ("asyncio.run(main()); gc.collect()", 0),
    "a loop in a thread": ("in_thread()", 0),
    "a loop in a thread, and sys.exit": ("in_thread(); sys.exit(3)", 3),
}


IN_A_CHILD: Final = """
def child():
    {0}

if __name__ == "__main__":
    import multiprocessing
    process = multiprocessing.get_context("{1}").Process(target=child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
METHODS: Final = ["spawn"] if sys.platform == "win32" else ["spawn", "forkserver", "fork"]


def ended(folder: Path, ending: str) -> subprocess.CompletedProcess[str]:
    """The program, run to its end."""
    (folder / "program.py").write_text(f"{PROGRAM}\n{ending}\n")
    command = [sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=40)


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of the file that the program has left."""
    with closing(sqlite3.connect(folder / "t.db")) as connection:
        return connection.execute(sql).fetchall()


def tasks(folder: Path) -> list[tuple[Any, ...]]:
    """How many tasks of each name have which status and are free."""
    return query(
        folder,
        "SELECT replace(task_name, 'program:', ''), status, claimed_by_worker_id IS NULL, count(*)"
        " FROM taskmanager_tasks GROUP BY 1, 2, 3 ORDER BY 1, 2",
    )


def said(done: subprocess.CompletedProcess[str]) -> str:
    """The one line about the manager that was never stopped."""
    lines = [line for line in done.stderr.splitlines() if "never stopped" in line]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize("ending", ENDINGS)
def test_unwritten_tasks_are_written_at_exit(tmp_path: Path, ending: str) -> None:
    """Accepted tasks are free rows, running ones stand as a stop without a drain leaves them, and one line says so."""
    text, status = ENDINGS[ending]
    done = ended(tmp_path, text)
    assert done.returncode == status, done.stderr
    assert tasks(tmp_path) == [("again", "PENDING", 1, 101), ("once", "INTERRUPTED", 0, 1)]
    assert LINE in said(done)
    assert "destroyed" not in done.stderr
    assert not list(tmp_path.glob("*.lock"))
    assert query(tmp_path, "SELECT count(*) FROM taskmanager_instances") == [(0,)]
    outcomes = query(tmp_path, "SELECT outcome, attempt, error_code FROM taskmanager_task_attempts")
    assert outcomes == [("INTERRUPTED", 1, "TASK_INTERRUPTED")] * 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("start", ["asyncio.run(main())", "in_thread()", "asyncio.run(main()); sys.exit(3)"])
def test_unwritten_tasks_are_written_at_the_end_of_a_child(tmp_path: Path, method: str, start: str) -> None:
    """A child of `multiprocessing` ends without the exit hooks of Python where it was forked, and not by a crash."""
    done = ended(tmp_path, IN_A_CHILD.format(start, method))
    assert done.returncode == (3 if "exit" in start else 0), done.stderr
    assert tasks(tmp_path) == [("again", "PENDING", 1, 101), ("once", "INTERRUPTED", 0, 1)]
    assert LINE in said(done)
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize("method", [each for each in METHODS if each != "fork"])
def test_tasks_held_at_the_end_of_a_child_are_said_to_be_lost_once(tmp_path: Path, method: str) -> None:
    """Each process has a manager of its own there, which nobody starts. (One that was forked refuses such tasks.)"""
    done = ended(tmp_path, IN_A_CHILD.format("again.enqueue(0)", method))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("1 task enqueued to a manager that was never started") == 1, done.stderr


def test_a_manager_that_nobody_holds_any_more_is_written_at_exit(tmp_path: Path) -> None:
    """An application may keep nothing of it but the tasks in its file."""
    made = "async def main_of_all():\n    await main()\n    globals().pop('manager')\n    globals().pop('again')\n"
    assert LINE in said(ended(tmp_path, f"{made}asyncio.run(main_of_all()); gc.collect()"))
    assert tasks(tmp_path) == [("again", "PENDING", 1, 101), ("once", "INTERRUPTED", 0, 1)]


def test_keys_delays_and_deadlines_survive_an_exit_without_a_stop(tmp_path: Path) -> None:
    """What a task was promised stands in its row, also where the file was to be asked about its key first."""
    more = """
def more():
    again.with_options(idempotency_key="a").enqueue(1)
    again.with_options(idempotency_key="a").enqueue(1)
    again.with_options(delay=3600, tags={"of": "b"}).enqueue(2)
    again.with_options(good_until=datetime.now(UTC) + timedelta(days=1), priority=7).enqueue(3)
from datetime import UTC, datetime, timedelta
asyncio.run(main())
"""
    assert "104 tasks were written" in said(ended(tmp_path, more))
    assert query(tmp_path, "SELECT count(*) FROM taskmanager_tasks WHERE idempotency_key = 'a'") == [(1,)]
    delayed = "SELECT round((enqueued_at - sent_at) / 1e6), tags FROM taskmanager_tasks WHERE tags IS NOT NULL"
    assert query(tmp_path, delayed) == [(3600, '{"of":"b"}')]
    assert query(tmp_path, "SELECT priority FROM taskmanager_tasks WHERE good_until IS NOT NULL") == [(7,)]


def test_memory_only_tasks_count_as_lost_at_exit(tmp_path: Path) -> None:
    """Nobody promised to keep them, and they do not vanish without a word."""
    done = ended(tmp_path, "def more():\n    [forgotten.enqueue(n) for n in range(3)]\nasyncio.run(main())")
    assert "1 recorded as interrupted, 3 lost" in said(done)
    assert ("forgotten", "CANCELLED", 1, 3) in tasks(tmp_path)


def test_a_thread_that_executes_at_exit_keeps_its_task_until_it_is_gone(tmp_path: Path) -> None:
    """Nobody runs it beside its thread. The next start finds the interruption noted, and counts no crash."""
    more = """
def more():
    blocking.enqueue(0)
async def both():
    await main()
    while len(began) < 3:
        await asyncio.sleep(0.01)
asyncio.run(both())
"""
    assert "102 tasks were written" in said(ended(tmp_path, more))
    assert ("blocking", "RUNNING", 0, 1) in tasks(tmp_path)
    ended(tmp_path, "async def look():\n    async with manager: pass\nasyncio.run(look())")
    assert ("blocking", "PENDING", 1, 1) in tasks(tmp_path)
    assert query(tmp_path, "SELECT sum(crash_count) FROM taskmanager_tasks") == [(0,)]


UNWRITABLE: Final = {
    "locked": ("c = sqlite3.connect('t.db', isolation_level=None); c.execute('BEGIN IMMEDIATE')", "locked"),
    "deleted": ("[os.unlink(each) for each in os.listdir('.') if each.startswith('t.db')]", "deleted"),
    "no descriptors": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n\
held = []\ntry:\n    while True: held.append(os.dup(0))\nexcept OSError: pass\n\
os.close(held.pop()); os.close(held.pop())",  # not enough for a loop; a thread that ends needs one
        "Too many open files",
    ),
}


@pytest.mark.parametrize("trouble", UNWRITABLE)
def test_a_file_that_cannot_be_written_at_exit_is_said_in_time(tmp_path: Path, trouble: str) -> None:
    """The line says how many are lost and why; the exit takes two seconds more, and its status stays."""
    text, words = UNWRITABLE[trouble]
    done = ended(tmp_path, f"asyncio.run(main())\n{text}\nleft_at.append(time.monotonic())\nsys.exit(3)")
    assert done.returncode == 3
    assert "0 tasks were written" in said(done)
    assert words in said(done)
    assert " lost (" in said(done)
    assert float(done.stderr.split("the exit took ")[1]) < 4  # two seconds, and those of a machine with other work
    if trouble != "deleted":
        assert tasks(tmp_path) == [("again", "RUNNING", 0, 1), ("once", "RUNNING", 0, 1)]


@pytest.mark.parametrize("is_unlocked", [False, True])
def test_a_closed_loop_whose_file_is_locked_is_tried_again_until_the_exit(tmp_path: Path, is_unlocked: bool) -> None:
    """The program goes on, so there is time: tasks are lost only if the lock is still held at the end."""
    locked, _ = UNWRITABLE["locked"]
    tries = "\nwriter = manager._lifecycle.engine.writer\nwhile writer.degraded_since is None: time.sleep(0.05)"
    tries += "\nwhile any(each._writing.locked() for each in stop._unstopped): time.sleep(0.01)"
    end = "\nc.rollback()\nwhile stop._unstopped: time.sleep(0.05)" if is_unlocked else ""
    done = ended(tmp_path, f"from taskmanager import stop\nasyncio.run(main())\n{locked}{tries}{end}")
    assert done.returncode == 0, done.stderr
    if is_unlocked:
        assert LINE in said(done)
        assert tasks(tmp_path) == [("again", "PENDING", 1, 101), ("once", "INTERRUPTED", 0, 1)]
    else:
        assert "0 tasks were written" in said(done)
        assert "locked" in said(done)


def test_a_forked_child_writes_nothing_at_its_exit(tmp_path: Path) -> None:
    """The start is its parent's, which goes on with it, and writes it."""
    fork = "if os.fork() == 0: sys.exit(5)\nassert os.waitstatus_to_exitcode(os.wait()[1]) == 5"
    assert LINE in said(ended(tmp_path, f"asyncio.run(main())\n{fork}"))
    assert tasks(tmp_path) == [("again", "PENDING", 1, 101), ("once", "INTERRUPTED", 0, 1)]


def test_a_task_that_somebody_took_over_is_left_to_them_at_exit(tmp_path: Path) -> None:
    """Each write repeats its precondition, as those of a stop do."""
    taken = "UPDATE taskmanager_tasks SET claimed_by_worker_id = 'other', start_count = 2 WHERE task_name LIKE '%once'"
    done = ended(tmp_path, f'asyncio.run(main()); c = sqlite3.connect("t.db"); c.execute("{taken}"); c.commit()')
    assert "101 tasks were written for the next start, 0 lost" in said(done)
    assert query(
        tmp_path, "SELECT status, start_count FROM taskmanager_tasks WHERE claimed_by_worker_id = 'other'"
    ) == [("RUNNING", 2)]


def test_a_second_run_in_one_program_finds_what_an_unstopped_one_left(tmp_path: Path) -> None:
    """A second `asyncio.run` finds what the first one has left, as if that had been stopped."""
    second = """
async def look():
    async with manager:
        assert sum((await manager.counts()).values()) == 102, await manager.counts()
asyncio.run(main()); asyncio.run(look())
"""
    done = ended(tmp_path, second)
    assert done.returncode == 0, done.stderr
    assert LINE in said(done)
    assert tasks(tmp_path) == [("again", "PENDING", 1, 101), ("once", "INTERRUPTED", 0, 1)]


def test_a_start_with_nothing_left_to_write_ends_without_a_word(tmp_path: Path) -> None:
    """Whoever never stops, and has lost nothing, needs no advice at each exit."""
    done = ended(tmp_path, "async def start():\n    await manager.start()\nasyncio.run(start())")
    slow = "Executing <"  # what asyncio says of a machine with other work
    assert not [line for line in done.stderr.splitlines() if "manager" in line and slow not in line]
    assert not list(tmp_path.glob("*.lock"))


def test_a_loop_that_does_not_answer_at_exit_is_waited_for_in_bounded_time(tmp_path: Path) -> None:
    """Its thread changes memory as it likes, so nothing is written beside it; what stands in the file is recovered."""
    done = ended(tmp_path, "in_thread().call_soon_threadsafe(time.sleep, 30)")
    assert "its event loop did not stop within 3 s" in said(done)


def test_threads_that_enqueue_without_pause_lose_nothing_at_exit(tmp_path: Path) -> None:
    """The door closes soon, whoever goes on calling; all that was accepted until then is written, and told of."""
    threads = """
accepted = [0] * 3
last_words.append(lambda: sum(accepted))
def call(number):
    while True:
        again.with_options(delay=60).enqueue(number)
        accepted[number] += 1
in_thread()
for number in range(3):
    threading.Thread(target=call, args=(number,), daemon=True).start()
time.sleep(0.5)
"""
    done = ended(tmp_path, threads)
    assert ", 0 lost;" in said(done)
    found = query(tmp_path, "SELECT count(*) FROM taskmanager_tasks WHERE status = 'PENDING'")
    assert found == [(int(done.stdout) + 101,)]


def test_a_stop_under_way_in_a_thread_is_cut_short_at_exit(tmp_path: Path) -> None:
    """What it drains for would be cut off with the program; what it has accepted would be lost with that."""
    draining = "asyncio.run_coroutine_threadsafe(manager.stop(timeout=50), in_thread()); time.sleep(0.2)"
    assert LINE in said(ended(tmp_path, draining))
    assert tasks(tmp_path) == [("again", "PENDING", 1, 101), ("once", "INTERRUPTED", 0, 1)]


def test_a_stop_that_the_end_of_its_loop_cuts_off_is_made_all_the_same(tmp_path: Path) -> None:
    """`asyncio.run` cancels every task when its main function is over, in whatever turn of the stop that is; starts
    that were on their way to the file are in nobody's hands then.
    """
    program = """
async def leave(manager, again, once, turns):
    await manager.start()
    for n in range(5):
        again.enqueue(n), once.enqueue(n)
    asyncio.create_task(manager.stop())
    for _ in range(turns):
        await asyncio.sleep(0)

def cut_off(turns):
    manager = TaskManager(f"cut{turns}.db", requeue_pending=True)

    @manager.task(name="again", requeue_on_interrupt=True)
    async def again(n):
        await asyncio.sleep(1000)

    @manager.task(name="once")
    async def once(n):
        await asyncio.sleep(1000)

    asyncio.run(leave(manager, again, once, turns))

for turns in range(12):
    cut_off(turns)
"""
    done = ended(tmp_path, program)
    assert done.returncode == 0, done.stderr
    for turns in range(12):
        with closing(sqlite3.connect(tmp_path / f"cut{turns}.db")) as connection:
            found = dict(
                connection.execute(
                    "SELECT task_name || ' ' || status, count(*) FROM taskmanager_tasks GROUP BY 1"
                ).fetchall()
            )
            named = connection.execute("SELECT claimed_by_worker_id, status FROM taskmanager_tasks").fetchall()
        assert found.pop("again PENDING") == 5, (turns, found)
        assert sum(found.values()) == 5
        assert set(found) <= {"once PENDING", "once INTERRUPTED"}, (turns, found)
        assert all(owner is None for owner, status in named if status == "PENDING")
    assert not list(tmp_path.glob("*.lock"))
