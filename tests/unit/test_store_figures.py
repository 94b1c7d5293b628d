"""The figures of time, as they are read: by minute or hour, over all tasks, and by task and queue."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.rules.figures import Span
from taskmanager.store.noted import COUNTS
from taskmanager.store.sql.counting import FigureKey, add
from taskmanager.store.sql.figures import by_queue, series, total
from taskmanager.store.sql.statistics import statistics
from taskmanager.store.sqlite.schema import migrate
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.web.past import HOUR, total_of
from tests.sessions import connect

NOW = 1_796_000_400_000_000
NOW -= NOW % HOUR_US


@pytest.fixture
def connection() -> Iterator[SqliteSession]:
    with closing(connect(":memory:", isolation_level=None)) as made:
        migrate(made, "tasks.db")
        yield made


def counts(**of: int) -> list[int]:
    found = [0] * len(COUNTS)
    for name, count in of.items():
        found[COUNTS.index(name)] = count
    return found


def put(connection: SqliteSession, minute: int, task_name: str, queue_name: str = "default", **of: int) -> None:
    add(connection, {FigureKey(60, NOW + minute * MINUTE_US, task_name, queue_name): counts(**of)})


def test_figures_added_twice_to_a_span_are_added_up(connection: SqliteSession) -> None:
    """Each column by itself, whoever adds it."""
    for number, name in enumerate(COUNTS, 1):
        put(connection, 0, "a", **{name: number})
        put(connection, 0, "a", **{name: 100})
    (found,) = series(connection, Span.MINUTE, NOW, NOW + 1)
    numbers = [*found[1:8], *found.waited, *found.ran]
    assert numbers == [100 + number for number in range(1, len(COUNTS) + 1)]
    assert found.at == NOW


def test_series_has_one_of_each_span_with_anything_oldest_first(connection: SqliteSession) -> None:
    """The first is that in which `since` lies; all begin before `until`. Hours are no minutes."""
    for minute in (3, 0, 1, 5):
        put(connection, minute, "a", started=minute)
        put(connection, minute, "b", started=10)
    add(connection, {FigureKey(3600, NOW, "a", "default"): counts(started=99)})
    found = series(connection, Span.MINUTE, NOW + MINUTE_US + 59_000_000, NOW + 5 * MINUTE_US)
    assert [(each.at, each.started) for each in found] == [(NOW + MINUTE_US, 11), (NOW + 3 * MINUTE_US, 13)]
    (hour,) = series(connection, Span.HOUR, NOW + MINUTE_US, NOW + HOUR_US)
    assert (hour.at, hour.started) == (NOW, 99)


def test_series_of_one_task_or_queue_leaves_out_the_others(connection: SqliteSession) -> None:
    for task_name, queue_name, count in (("a", "x", 1), ("a", "y", 2), ("b", "x", 4)):
        put(connection, 0, task_name, queue_name, completed=count)

    def completed(**which: str) -> list[int]:
        return [each.completed for each in series(connection, Span.MINUTE, NOW, NOW + 1, **which)]

    assert completed() == [7]
    assert completed(task_name="a") == [3]
    assert completed(queue_name="x") == [5]
    assert completed(task_name="a", queue_name="x") == [1]
    assert completed(task_name="c") == []


def test_queues_come_first_in_which_most_tasks_have_ended(connection: SqliteSession) -> None:
    """In whatever way; those with as many come by name. A limit leaves out the rest."""
    put(connection, 0, "x", "a", completed=3)
    put(connection, 1, "y", "a", failed=3, ran_4=1)
    put(connection, 0, "y", "b", cancelled=2, expired=3, interrupted=4, waited_2=5)
    put(connection, 1, "x", "c", completed=6)
    put(connection, -1, "x", "c", completed=60)
    put(connection, 60, "x", "d", completed=60)
    found = by_queue(connection, Span.MINUTE, NOW, NOW + HOUR_US, 10)
    assert [(name, each.ended_count) for name, each in found] == [("b", 9), ("a", 6), ("c", 6)]
    assert found[1][1].ran[4] == 1
    assert found[0][1].waited[2] == 5
    assert [name for name, _ in by_queue(connection, Span.MINUTE, NOW, NOW + HOUR_US, 2)] == ["b", "a"]


def test_hour_of_the_screens_is_that_of_the_charts(connection: SqliteSession) -> None:
    """The same 60 minutes, of which the last goes on: `status` and the dashboard say the same percentiles."""
    for minute in (-61, -60, -59, -1, 0):
        put(connection, minute, "a", started=1, waited_3=1)
    for now in (NOW, NOW + 30_000_000, NOW + MINUTE_US - 1):
        starts = HOUR.starts(now)
        shown = total_of(series(connection, HOUR.span, starts[0], starts[-1] + HOUR.span.us))
        found = statistics(connection, now).figures
        assert found is not None
        assert found[1:] == shown[1:]
        assert found.started == 3


def test_total_is_the_sum_of_the_series(connection: SqliteSession) -> None:
    """Where nothing has happened, it is nothing."""
    assert total(connection, Span.MINUTE, NOW, NOW + HOUR_US)[1:] == (*[0] * 7, (0,) * 16, (0,) * 16)
    put(connection, 0, "a", started=2, waited_3=2, retried=1)
    put(connection, 59, "b", started=3, waited_3=1, failed=2)
    put(connection, 60, "b", started=4)
    found = total(connection, Span.MINUTE, NOW, NOW + HOUR_US)
    assert (found.started, found.waited[3], found.failure_count) == (5, 3, 3)
