"""SIGKILL, and two processes: figures may miss what was counted in the last second, and never count too much."""

import signal
from pathlib import Path

from tests.crash.harness import both
from tests.crash.stage import staged

PROGRAM = """
import asyncio

from taskmanager import TaskManager

database, name, *words = sys.argv[1:]
manager = TaskManager(database, store_poll=0.02)

@manager.task(name="quick", persist=True)
async def quick() -> None:
    pass

async def main() -> None:
    for number in range(200):
        quick.enqueue()
        await asyncio.sleep(0)
    await manager.join()
    await manager.flush()
    note(f"done {name}")
    if "wait" in words:
        await asyncio.Event().wait()

manager.run(main)
"""
COUNTED = (
    "SELECT coalesce(sum(started), 0), coalesce(sum(completed), 0) FROM taskmanager_figures"
    " WHERE task_name = 'quick' AND span = {}"
)
ENDED = "SELECT count(*) FROM taskmanager_tasks WHERE status = 'COMPLETED'"


@both
def test_a_killed_process_has_lost_what_it_had_not_added(tmp_path: Path, database: str) -> None:
    """What a process has done a second ago is in the file, however it dies. The rest is missing, and nothing is
    counted twice when the next process goes on.
    """
    with staged(tmp_path, PROGRAM, database) as stage:
        first = stage.start("first", "wait")
        stage.until_noted("done first")
        stage.until(lambda: stage.rows(COUNTED.format(60)) == [(200, 200)])
        first.send_signal(signal.SIGKILL)
        first.wait()
        second = stage.start("second", "wait")
        stage.until_noted("done second")
        second.send_signal(signal.SIGKILL)
        second.wait()
        ((ended,),) = stage.rows(ENDED)
        for span in (60, 3600):
            ((started, completed),) = stage.rows(COUNTED.format(span))
            assert 200 <= completed <= ended == 400
            assert completed <= started <= 400


@both
def test_processes_that_stop_have_counted_all_that_they_did(tmp_path: Path, database: str) -> None:
    """Both add to the same rows."""
    with staged(tmp_path, PROGRAM, database) as stage:
        for process in [stage.start("first"), stage.start("second")]:
            assert process.wait() == 0, stage.log_of("first") + stage.log_of("second")
        assert stage.rows(ENDED) == [(400,)]
        for span in (60, 3600):
            assert stage.rows(COUNTED.format(span)) == [(400, 400)]
