"""Which functions wait in which queues, told to people within bounds."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager.console.observer import look
from taskmanager.model.clock import SystemClock
from taskmanager.model.states import TaskStatus
from taskmanager.store.file_place import FilePlace
from taskmanager.store.protocol import MAX_FREE
from taskmanager.store.sql.claims import free_queues
from taskmanager.store.sqlite.session import SqliteSession
from tests.sessions import connect
from tests.unit.cli.rich_file import write_empty

MANY = 3 * MAX_FREE
ONE_OF_EACH = "printf('task-%05d', number), printf('queue-%05d', number)"
ONE_FUNCTION = "'task', printf('queue-%05d', number)"
ONE_QUEUE = "printf('task-%05d', number), 'queue'"
SOME_OF_EACH = "printf('task-%05d', number / 3), printf('queue-%05d', number % 7)"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    write_empty(tmp_path / "tasks.db")
    return tmp_path / "tasks.db"


@pytest.fixture
def connection(database: Path) -> Iterator[SqliteSession]:
    with closing(connect(database)) as found:
        yield found


def put(connection: SqliteSession, names: str, count: int) -> None:
    """Let so many tasks wait. `names` makes the names of function and queue from a number."""
    connection.execute(
        f"""
        WITH RECURSIVE each(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM each WHERE number < {count})
        INSERT INTO taskmanager_tasks
            (id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at, task_options,
            created_at, updated_at)
        SELECT printf('id-%05d', number), {names}, 50, '[]', '{{}}', 'PENDING', 1, 1, '{{}}', 1, 1 FROM each
        """
    )
    connection.commit()


@pytest.mark.parametrize("names", [ONE_OF_EACH, ONE_FUNCTION, ONE_QUEUE, SOME_OF_EACH])
def test_bounded_look_tells_some_where_there_are_many(connection: SqliteSession, names: str) -> None:
    """As many as say that there are more, and none that is not there."""
    put(connection, names, MANY)
    some = free_queues(connection, is_bounded=True)
    assert MAX_FREE <= len(some) <= 2 * MAX_FREE + 2
    assert set(some) <= set(free_queues(connection))


@pytest.mark.parametrize("names", [ONE_OF_EACH, ONE_FUNCTION, ONE_QUEUE, SOME_OF_EACH])
def test_bounded_look_tells_all_where_there_are_few(connection: SqliteSession, names: str) -> None:
    """Less than the bound is everything."""
    put(connection, names, MAX_FREE - 1)
    assert free_queues(connection, is_bounded=True) == free_queues(connection)


def test_overview_of_many_names_counts_all_tasks(database: Path, connection: SqliteSession) -> None:
    """The queues that are shown say that more may wait in them, and the count by status has every task."""
    put(connection, ONE_OF_EACH, MANY)
    overview = look(FilePlace(database), connection, SystemClock())
    assert overview.counts[TaskStatus.PENDING] == MANY
    assert len(overview.queues) >= MAX_FREE
    assert all(each.is_waiting_capped for each in overview.queues)
