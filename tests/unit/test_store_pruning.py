"""How much is deleted at once: what the last calls say takes some milliseconds."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager.model.record import TaskWrite
from taskmanager.store.protocol import TaskFilter
from taskmanager.store.sql.pruning import FEW, FIRST_SIZE, HOLD_S, BatchSize, purge
from taskmanager.store.sqlite import SqliteStore
from tests.contract.rows import task
from tests.sessions import connect


@pytest.mark.req("RC-s7")
def test_a_call_that_took_too_long_is_followed_by_one_that_fits() -> None:
    """However long it was; and by more again, at most twice as many at a time, when those are quick."""
    batch = BatchSize(1_000)
    batch.note(1_000, 9 * HOLD_S, HOLD_S)
    assert batch.size == 100
    sizes = []
    for _ in range(4):
        batch.note(batch.size, HOLD_S / 50, 0.0)
        sizes.append(batch.size)
    assert sizes == [200, 400, 800, 1_600]
    batch.note(1_600, HOLD_S / 2, HOLD_S / 2)
    assert batch.size == 1_600, "just right"


def test_few_rows_say_nothing_of_what_many_would_take() -> None:
    """The last of a sweep are deleted in no time, whatever the size of a batch."""
    batch = BatchSize()
    batch.note(3, HOLD_S / 100, HOLD_S / 100)
    assert batch.size == FIRST_SIZE


def test_a_slow_disk_does_not_stop_a_sweep_and_large_rows_go_one_by_one() -> None:
    """A commit takes its time for one row as for fifty, so it makes batches no smaller than that; the rows may."""
    batch = BatchSize(1_000)
    for _ in range(2):
        batch.note(batch.size, HOLD_S / 100, 100 * HOLD_S)
        assert batch.size == FEW
    batch.note(FEW, 100 * HOLD_S, HOLD_S)
    assert batch.size == 1
    batch.note(1, 5 * HOLD_S, HOLD_S)
    assert batch.size == 1


@pytest.mark.anyio
async def test_a_task_that_is_retried_in_the_last_moment_is_not_purged(tmp_path: Path) -> None:
    """Rows are searched for before the write lock is taken; only those that are old still when it is held may go."""
    store = SqliteStore(tmp_path / "tasks.db", synchronous="normal")
    await store.open()
    await store.commit([TaskWrite(task(name, status="COMPLETED"), None) for name in ("retried", "old")])
    retry = "UPDATE taskmanager_tasks SET status = 'PENDING', completed_at = NULL WHERE id = 'retried'"

    def retry_before_the_lock(statement: str) -> None:
        if statement.startswith("BEGIN"):
            purging.set_trace_callback(None)
            somebody.execute(retry)

    with (
        closing(connect(store.path, isolation_level=None)) as purging,
        closing(connect(store.path, isolation_level=None)) as somebody,
    ):
        purging.set_trace_callback(retry_before_the_lock)
        assert purge(purging, BatchSize(), BatchSize(), TaskFilter(), None, 100) == 1
    assert (await store.fetch_ids(["retried", "old"])).keys() == {"retried"}
    await store.close()


@pytest.mark.anyio
async def test_all_of_it_goes_in_the_end_and_the_log_stays_small(tmp_path: Path) -> None:
    """Each call moves its part of the log, so that no connection of the application has to move it all at a commit."""
    store = SqliteStore(tmp_path / "tasks.db", synchronous="normal")
    await store.open()
    rows = [task(f"t{number}", status="COMPLETED", result="x" * 10_000) for number in range(1_200)]
    for start in range(0, len(rows), 400):
        await store.commit([TaskWrite(row, None) for row in rows[start : start + 400]])
    await store.checkpoint()
    gone = []
    while not gone or gone[-1]:
        gone.append(await store.purge(TaskFilter(), None, 300))
    assert (gone[0], sum(gone)) == (FIRST_SIZE, 1_200)
    shutil.copyfile(store.path, tmp_path / "without its log.db")
    with closing(connect(tmp_path / "without its log.db")) as connection:
        assert connection.execute("SELECT count(*) FROM taskmanager_tasks").fetchone() == (0,)
    await store.close()
